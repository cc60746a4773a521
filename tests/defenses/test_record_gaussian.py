"""RecordGaussian against what it promises: brute force over labels, the curves of Gaussian DP, and whole runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import NormalDist
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.nn import functional

from splitvfl import SplitModel
from splitvfl.app.trainer import Trainer
from splitvfl.claims import GaussianDP, RunPlan, claims_of
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.defenses import AxisGaussian, ClipGradient, GaussianTargets, Isotropic, RecordGaussian, SumKL
from splitvfl.errors import ArgumentError, ConfigError, HookError, PrivacyError, SplitVFLError
from splitvfl.exchange.taylor import Taylor
from splitvfl.hooks import Secrets
from splitvfl.learning.label_gradients import LabelGradients, Loss, mean_cross_entropy
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.learning.tasks import Binary, Multiclass, Regression, Task
from splitvfl.metrics import leak_auc
from splitvfl.models import LinearTop
from splitvfl.party.attaching import promises_of
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.privacy import gaussian_delta
from tests.builders import random

NORMAL = NormalDist()
MU = 1.2
DRAWS = 200_000
# Of a share of half of them: four standard errors, .006. Noise too small by a factor of √2 would show as .08.
NEAR = 4 * 0.5 / math.sqrt(DRAWS / 2)


def one_record(labels: Tensor, outputs: Tensor, jacobian: Tensor, **settings: Any) -> LabelGradients:
    """Return one record again and again: outputs ``(m,)``, gradients of its outputs ``(b, width)``."""
    n = len(labels)
    return LabelGradients(
        outputs=outputs.expand(n, -1),
        targets=labels,
        jacobian=jacobian[:, None, :].expand(-1, n, -1),
        **{"loss": mean_cross_entropy, "classes": 2, "values": (0.0, 1.0), **settings},
    )


def sent_by(defense: RecordGaussian, known: LabelGradients, *, seed: int = 0, dtype: Any = torch.float64) -> Tensor:
    own = Secrets(party="bank", step=0, generator=random(seed), label_gradients=known)
    return defense(known.rows.to(dtype), own)


def halves(count: int = DRAWS) -> Tensor:
    return (torch.arange(count) >= count // 2).double()


def told(ratios: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return ½(FPR + FNR) of the likelihood ratio test, and its AUC."""
    wrong = ((ratios > 0).double() - labels).abs()
    error = 0.5 * (wrong[labels == 0].mean() + wrong[labels == 1].mean()).item()
    return error, leak_auc(ratios, labels)


# One message ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [-6.0, 0.3, 6.0], ids=["sure of 0", "unsure", "sure of 1"])
def test_a_message_is_as_private_as_a_shift_of_gaussian_noise(output: float) -> None:
    labels, jacobian = halves(), torch.tensor([[3.0, -1.0, 0.5]], dtype=torch.float64)
    known = one_record(labels, torch.tensor([output], dtype=torch.float64), jacobian)
    sent = sent_by(RecordGaussian(mu=MU), known)

    # The observer knows p and J: the row's coordinate is (p − t) / n.
    coordinate = (sent @ jacobian[0]) / jacobian[0].square().sum() * len(labels)
    t = torch.sigmoid(torch.tensor(output, dtype=torch.float64)) - coordinate
    grid = 2.0**-29 * sent.abs().max().item()
    torch.testing.assert_close(coordinate[:, None] / len(labels) * jacobian, sent, rtol=0.0, atol=grid)
    ratios = MU**2 * (t - 0.5)
    error, auc = told(ratios, labels)
    assert error == pytest.approx(NORMAL.cdf(-MU / 2), abs=NEAR)
    assert auc == pytest.approx(NORMAL.cdf(MU / math.sqrt(2)), abs=NEAR)
    # The whole trade-off curve, and (ε, δ) by the hockey stick.
    no, yes = ratios[labels == 0].numpy(), ratios[labels == 1].numpy()
    for alpha in (0.01, 0.1, 0.3, 0.6, 0.9):
        missed = float((yes <= np.quantile(no, 1 - alpha)).mean())
        assert missed == pytest.approx(NORMAL.cdf(NORMAL.inv_cdf(1 - alpha) - MU), abs=3 * NEAR)
    for epsilon in (0.2, 0.7, 1.5):
        stick = float((yes > epsilon).mean() - math.exp(epsilon) * (no > epsilon).mean())
        assert stick == pytest.approx(gaussian_delta(1 / MU, epsilon, sensitivity=1.0), abs=6 * NEAR)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_k_labels_are_pairwise_as_private(width: int) -> None:
    classes, count = 3, DRAWS // 2
    generator = random(width)
    outputs = torch.randn(classes, generator=generator, dtype=torch.float64)
    jacobian = torch.randn(classes - 1, width, generator=generator, dtype=torch.float64)
    found = []
    for first, second in ((0, 1), (0, 2), (1, 2)):
        labels = torch.where(halves(count) == 1, second, first)
        known = one_record(labels, outputs, jacobian, classes=classes, values=(0.0, 1.0, 2.0))
        sent = sent_by(RecordGaussian(mu=MU), known, seed=width)
        rows = torch.stack([known.under(value)[0] for value in range(classes)])
        spread = rows - rows.mean(dim=0)
        covariance = 2 / MU**2 * spread.T @ spread
        noise = sent - rows[labels]
        measured = noise.T @ noise / count
        # A variance has a relative standard error of √(2 / count), .0045, and a covariance of .0032 of the largest.
        torch.testing.assert_close(measured, covariance, rtol=0.03, atol=0.015 * covariance.abs().max().item())
        direction = torch.linalg.pinv(covariance, rtol=1e-10) @ (rows[second] - rows[first])
        ratios = (sent - 0.5 * (rows[first] + rows[second])) @ direction
        found.append(told(ratios, halves(count))[0])
    promised, near = NORMAL.cdf(-MU / 2), NEAR * math.sqrt(2)
    if width >= classes - 1:
        assert found == [pytest.approx(promised, abs=near)] * 3
    else:  # all rows on one line: some pairs are closer than they need be
        assert min(found) > promised - near


def test_noise_of_k_labels_is_of_no_more_power_than_isotropic_noise_of_the_same_promise() -> None:
    generator = random(0)
    for classes in (2, 3, 5, 10):
        for _ in range(20):
            rows = torch.randn(classes, 16, generator=generator, dtype=torch.float64)
            spread = rows - rows.mean(dim=0)
            power = 2 / MU**2 * spread.square().sum().item()
            apart = torch.cdist(rows, rows).max().item()
            assert power <= (classes - 1) * (apart / MU) ** 2 * (1 + 1e-12)


@pytest.mark.parametrize("loss", ["squares", "huber"])
def test_a_label_range_is_covered_and_labels_outside_are_taken_for_its_ends(loss: str) -> None:
    compute: Loss = (
        (lambda o, t: functional.mse_loss(o[:, 0], t))
        if loss == "squares"
        else (lambda o, t: functional.huber_loss(o[:, 0], t, delta=0.3))
    )
    low, high = -1.0, 3.0
    labels = torch.where(halves() == 1, 7.0, -2.0).double()  # outside of it on both sides: the worst pair
    jacobian = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    settings = {"loss": compute, "classes": None, "values": None}
    output = torch.tensor([0.4], dtype=torch.float64)
    known = one_record(labels, output, jacobian, **settings)
    sent = sent_by(RecordGaussian(mu=MU, label_range=(low, high)), known)
    start, end = known.under(low)[0], known.under(high)[0]
    t = ((sent - start) @ (end - start)) / (end - start).square().sum()
    error, _ = told(t - 0.5, halves())
    assert error == pytest.approx(NORMAL.cdf(-MU / 2), abs=NEAR)
    # Within the range the mean is the clean row.
    inside = torch.full_like(labels, 0.9)
    known = one_record(inside, output, jacobian, **settings)
    sent = sent_by(RecordGaussian(mu=MU, label_range=(low, high)), known)
    off = (sent.mean(dim=0) - known.rows[0]).norm() / (known.under(high)[0] - known.under(low)[0]).norm()
    assert off < 4 / MU / math.sqrt(DRAWS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_sent_is_the_same_to_the_bit_for_the_same_noisy_label(dtype: torch.dtype) -> None:
    """No rounding tells the label, however the clean row was rounded."""
    generator = random(3)
    outputs = torch.randn(64, 1, generator=generator)
    jacobian = torch.randn(1, 64, 9, generator=generator)
    labels = torch.randint(0, 2, (64,), generator=generator).float()
    weights = torch.randn(64, 2, generator=generator, dtype=torch.float64)

    def sent(targets: Tensor) -> Tensor:
        known = LabelGradients(
            outputs=outputs,
            targets=targets,
            values=(0.0, 1.0),
            classes=2,
            loss=mean_cross_entropy,
            jacobian=jacobian,
        )
        return known.mixed(weights, (0.0, 1.0)).to(dtype)

    assert torch.equal(sent(labels), sent(1 - labels))


class Keep:
    """Keeps what an earlier defense sends."""

    crossing = "gradient"

    def __init__(self, sent: list[Tensor]) -> None:
        self.sent = sent

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        self.sent.append(message.double())
        return message.clone()


@pytest.mark.parametrize("half", [False, True])
def test_below_any_top_the_row_is_on_the_line_that_no_label_moves(half: bool) -> None:
    torch.manual_seed(0)
    model = SplitModel(nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)))
    columns, labels = torch.randn(32, 4), (torch.arange(32) % 2).float()
    sent: list[Tensor] = []
    model.cut.defend(RecordGaussian(mu=MU), noise_seed_for_experiments=0)
    model.cut.defend(Keep(sent))
    for given in (labels, 1 - labels):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            outputs = model(columns, labels=given)
        functional.binary_cross_entropy_with_logits(outputs.float()[:, 0], given).backward()
    # The same noise under the other label: rows differ by a_1 − a_0, the line that both lie on.
    unit = sent[0] / sent[0].norm(dim=1, keepdim=True)
    off = sent[1] - (sent[1] * unit).sum(dim=1, keepdim=True) * unit
    eps = torch.finfo(torch.bfloat16 if half else torch.float32).eps
    assert (off.norm(dim=1) < 4 * eps * torch.maximum(sent[0].norm(dim=1), sent[1].norm(dim=1))).all()


def test_rows_of_one_record_in_a_batch_get_one_draw() -> None:
    labels, ids = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]), torch.tensor([7, 3, 3, 9, 3])
    known = one_record(labels, torch.tensor([0.5]), torch.tensor([[1.0, 2.0]]))
    own = Secrets(party="bank", step=0, generator=random(0), ids=ids, label_gradients=known)
    sent = RecordGaussian(mu=MU)(known.rows, own)
    assert torch.equal(sent[1], sent[2])
    assert torch.equal(sent[1], sent[4])
    assert not torch.equal(sent[0], sent[3])
    known = one_record(1 - ids.eq(3).float() * torch.arange(5) % 2, torch.tensor([0.5]), torch.tensor([[1.0, 2.0]]))
    with pytest.raises(PrivacyError, match="rows of one id in a batch have different labels"):
        RecordGaussian(mu=MU)(
            known.rows, Secrets(party="b", step=0, generator=random(0), ids=ids, label_gradients=known)
        )


# Every message of a run -----------------------------------------------------------------------------------------------


def breast_cancer() -> tuple[Tensor, Tensor]:
    columns, labels = load_breast_cancer(return_X_y=True)
    return torch.tensor((columns - columns.mean(0)) / columns.std(0)).float(), torch.tensor(labels).float()


def errors_by_epoch(defense: Any, *, epochs: int, deep: bool = False) -> list[float]:
    """Return the detection error, in each epoch, of an observer of single messages who knows p and J."""
    torch.manual_seed(0)
    columns, labels = breast_cancer()
    top = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1)) if deep else nn.Linear(8, 1)
    model = SplitModel(nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU()), top)
    seen: list[tuple[Tensor, Tensor]] = []

    class Observed:
        """The defense, and what it sends to an observer: one that came after it would get no labels."""

        crossing = "gradient"
        needs_label_gradients = True

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            message = defense(message, secrets)
            known = secrets.label_gradients
            change = known.under(1.0) - known.under(0.0)
            length = change.square().sum(dim=1)
            t = ((message.double() - known.under(0.0)) * change).sum(dim=1) / length.clamp(min=1e-300)
            seen.append((t[length > 0], known.targets[length > 0]))
            return message

    model.cut.defend(Observed(), noise_seed_for_experiments=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    found = []
    for epoch in range(epochs):
        seen.clear()
        order = torch.randperm(len(columns), generator=random(epoch))
        for rows in order.split(64):
            optimizer.zero_grad()
            outputs = model(columns[rows], labels=labels[rows], ids=rows)
            functional.binary_cross_entropy_with_logits(outputs[:, 0], labels[rows]).backward()
            optimizer.step()
        t, truth = (torch.cat(part) for part in zip(*seen, strict=True))
        found.append(told(t - 0.5, truth.double())[0])
    with torch.no_grad():
        fitted = ((model(columns)[:, 0] > 0).float() == labels).float().mean().item()
    assert fitted > 0.9  # it is trained: what is promised of a model that knows nothing would be worth little
    return found


@pytest.mark.parametrize("deep", [False, True])
def test_every_message_of_a_training_run_keeps_the_detection_error(deep: bool) -> None:
    errors = errors_by_epoch(RecordGaussian(detection_error=0.4), epochs=12, deep=deep)
    # Shares of 212 and 357 records: half of the root of the sum of variances, .021; 4.5 of them for 12 epochs.
    assert min(errors) > 0.4 - 4.5 * 0.021
    assert np.mean(errors) == pytest.approx(0.4, abs=4 * 0.021 / math.sqrt(12))


def test_noise_on_the_axis_does_not() -> None:
    errors = errors_by_epoch(AxisGaussian(detection_error=0.4), epochs=12)
    assert errors[-1] < 0.15


# A promise over a run -------------------------------------------------------------------------------------------------


@contextmanager
def noise_moved(by: float, *, record: int, remembered: bool) -> Iterator[None]:
    """Move what is drawn for the noisy label of one record, as would make good for a change of its label."""
    added = Secrets.add_normal

    def moved(secrets: Secrets, message: Tensor, scale: float) -> Tensor:
        truth = message.clone()
        if message.shape[1:] == (1,):  # one number for each record; later defenses draw other shapes
            ids = secrets.ids.sort().values if remembered else secrets.ids
            truth[ids == record, 0] += by * scale
        return added(secrets, truth, scale)

    with mock.patch.object(Secrets, "add_normal", moved):
        yield


@contextmanager
def drawn_noise(numbers: Tensor) -> Iterator[None]:
    """Add these standard normal numbers, one piece after the other, as the noise."""
    left = iter(numbers)

    def add(secrets: Secrets, message: Tensor, scale: float) -> Tensor:
        return secrets.rounded(message + scale * next(left), scale=scale, like=message)

    with mock.patch.object(Secrets, "add_normal", add):
        yield


def party_data(name: str, columns: Tensor, labels: Tensor | None) -> PartyData:
    records = Records(ids=torch.arange(len(columns)), columns=Columns.of(columns), labels=labels)
    names = tuple(f"{name} {number}" for number in range(columns.shape[1]))
    return PartyData(name, names, names, (), train=records, test=records)


def a_run(
    defenses: list[Any],
    labels: Tensor,
    *,
    task: Task | None = None,
    top: nn.Module | None = None,
    epochs: int = 3,
    **settings: Any,
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return the weights after a run of two passive parties with fixed randomness, and what the label party sent."""
    torch.manual_seed(0)
    n = len(labels)
    task = task or Binary()
    sent: list[Tensor] = []
    own = top or nn.Linear(3 + 2 + 2, task.outputs)
    trainer = Trainer(
        ActiveParty(party_data("bank", torch.randn(n, 2), labels), own, task=task),
        {
            "telecom": PassiveParty(party_data("telecom", torch.randn(n, 4), None), nn.Linear(4, 3)),
            "shop": PassiveParty(party_data("shop", torch.randn(n, 2), None), nn.Linear(2, 2)),
        },
        defenses=defenses,
        batch_size=16,
        noise_seed_for_experiments=5,
        record=lambda message: sent.append(message.payload.clone()) if message.kind == "gradient" else None,
        **{"audit": False, **settings},
    )
    trainer.fit(epochs)
    weights = {
        f"{party.name} {name}": value.clone()
        for party in (trainer.active, *trainer.passives.values())
        for name, value in party.module.state_dict().items()
    }
    return weights, sent


RUNS: dict[str, tuple[Callable[[], list[Any]], float]] = {
    "record-gaussian": (lambda: [RecordGaussian(mu=MU, per="run")], MU / math.sqrt(3)),
    "record-gaussian, and a defense that reads labels": (
        lambda: [RecordGaussian(mu=MU, per="run"), SumKL(ratio=1.0)],
        MU / math.sqrt(3),
    ),
    "gaussian-targets, fresh": (lambda: [GaussianTargets(mu=MU, remembered=False)], MU / math.sqrt(3)),
    "gaussian-targets, remembered": (lambda: [GaussianTargets(mu=MU)], MU),
    "gaussian-targets, and a defense that reads labels": (lambda: [GaussianTargets(mu=MU), SumKL(ratio=1.0)], MU),
}


audited = pytest.mark.slow(reason="three audited runs of each defense")


@pytest.mark.parametrize(
    ("name", "audit"),
    [
        *((name, False) for name in RUNS),
        *(pytest.param(name, True, marks=[] if name == "record-gaussian" else audited) for name in RUNS),
    ],
)
def test_everything_of_a_run_is_the_same_to_the_bit_where_noise_makes_good_for_a_label(name: str, audit: bool) -> None:
    """The promise, end to end: a label enters the run through its noisy target alone, weights of the top included."""
    make, mu = RUNS[name]
    labels = (torch.arange(32) % 3 == 0).float()
    other = labels.clone()
    other[5] = 1 - other[5]
    weights, sent = a_run(make(), labels, audit=audit)
    plain, _ = a_run(make(), other, audit=audit)
    assert any(not torch.equal(plain[key], weights[key]) for key in weights)

    with noise_moved((labels[5] - other[5]).item() * mu, record=5, remembered=mu == MU):
        again, sent_again = a_run(make(), other, audit=audit)

    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert len(sent) == 12  # two parties, two batches, three epochs
    assert all(torch.equal(a, b) for a, b in zip(sent, sent_again, strict=True))


def test_a_top_that_learns_from_true_labels_tells_one_in_every_later_message() -> None:
    """Why μ per message makes no promise of a run, whatever the number of epochs."""
    labels = (torch.arange(32) % 3 == 0).float()
    other = labels.clone()
    other[5] = 1 - other[5]
    _, sent = a_run([RecordGaussian(mu=MU)], labels)
    with noise_moved((labels[5] - other[5]).item() * MU, record=5, remembered=False):
        _, again = a_run([RecordGaussian(mu=MU)], other)
    same = [torch.equal(a, b) for a, b in zip(sent, again, strict=True)]
    assert any(same)
    assert not any(same[-4:])


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        (Binary(), (torch.arange(32) % 3 == 0).float()),
        (Regression(), torch.linspace(0.0, 2.0, 32)),
    ],
    ids=["binary", "regression"],
)
def test_below_a_linear_top_it_is_the_same_mechanism_as_fresh_targets(task: Task, labels: Tensor) -> None:
    scope: dict[str, Any] = {} if task.classes else {"label_range": (0.0, 2.0)}
    here, sent_here = a_run([RecordGaussian(mu=MU, per="run", **scope)], labels, task=task)
    # The label party's chains have seeds of their own: the same noise is put into both.
    numbers = torch.randn(6, 16, 1, generator=random(1), dtype=torch.float64)
    runs = []
    for defense in (RecordGaussian(mu=MU, per="run", **scope), GaussianTargets(mu=MU, remembered=False, **scope)):
        with drawn_noise(numbers):
            runs.append(a_run([defense], labels, task=task))
    (weights, sent), (weights_too, sent_too) = runs
    for key in weights:
        # In float32: another order of operations, over six steps of Adam.
        torch.testing.assert_close(weights[key], weights_too[key], rtol=1e-4, atol=1e-5)
    for one, two in zip(sent, sent_too, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)
    assert any(not torch.equal(here[key], weights[key]) for key in here)
    assert len(sent_here) == len(sent)


def test_classes_learn_from_what_was_sent_too() -> None:
    labels = torch.arange(32) % 3
    numbers = torch.randn(6, 16, 3, generator=random(1), dtype=torch.float64)
    runs = []
    for defense in (RecordGaussian(mu=MU, per="run"), GaussianTargets(mu=MU, remembered=False, classes=3)):
        with drawn_noise(numbers):
            runs.append(a_run([defense], labels, task=Multiclass(3)))
    for key in runs[0][0]:
        torch.testing.assert_close(runs[0][0][key], runs[1][0][key], rtol=1e-4, atol=1e-5)


def test_a_record_is_sent_as_often_as_was_promised() -> None:
    columns, labels, ids = torch.randn(8, 3), (torch.arange(8) % 2).float(), torch.arange(8) * 1_000_000_007
    model = SplitModel(nn.Linear(3, 2), nn.Linear(2, 1))
    model.cut.defend(RecordGaussian(mu=MU, per="run", epochs=2))

    def step(rows: slice) -> None:
        outputs = model(columns[rows], labels=labels[rows], ids=ids[rows])
        functional.binary_cross_entropy_with_logits(outputs[:, 0], labels[rows]).backward()

    step(slice(0, 4))
    step(slice(0, 4))
    step(slice(4, 8))
    with pytest.raises(PrivacyError, match="is for 2 messages of a record"):
        step(slice(3, 6))
    step(slice(4, 8))
    state = model.cut.gradient.state_dict()
    resumed = SplitModel(nn.Linear(3, 2), nn.Linear(2, 1))
    resumed.cut.defend(RecordGaussian(mu=MU, per="run", epochs=2))
    resumed.cut.gradient.load_state_dict(state)
    model = resumed
    with pytest.raises(PrivacyError, match="is for 2 messages of a record"):
        step(slice(0, 4))
    longer = RecordGaussian(mu=MU, per="run", epochs=3)
    with pytest.raises(ArgumentError, match="promised over 2 epochs, and now the run has 3"):
        longer.load_state_dict(state["record-gaussian"]["defense"])


def test_a_loss_scaler_changes_nothing_of_a_run() -> None:
    columns, labels, ids = torch.randn(8, 3), (torch.arange(8) % 2).float(), torch.arange(8)
    gradients = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        model = SplitModel(nn.Linear(3, 2), nn.Linear(2, 1))
        model.cut.loss_scale = scale
        model.cut.defend(RecordGaussian(mu=MU, per="run", epochs=2), noise_seed_for_experiments=0)
        outputs = model(columns, labels=labels, ids=ids)
        (scale * functional.binary_cross_entropy_with_logits(outputs[:, 0], labels)).backward()
        gradients.append([weight.grad / scale for weight in model.parameters() if weight.grad is not None])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


# What is promised, and what is refused --------------------------------------------------------------------------------


def test_a_promise_is_given_in_three_ways() -> None:
    one = RecordGaussian(detection_error=0.4)
    assert claims_of(one) == (GaussianDP(one.mu, per="message"),)
    assert claims_of(one)[0].detection_error == pytest.approx(0.4)  # type: ignore[union-attr]
    assert RecordGaussian(mu=one.mu, per="run").claims() == (GaussianDP(one.mu, per="run"),)
    both = RecordGaussian(epsilon=1.0, delta=1e-5)
    assert gaussian_delta(1 / both.mu, 1.0, sensitivity=1.0) == pytest.approx(1e-5, rel=1e-6)
    dp_event = pytest.importorskip("dp_accounting")
    accountant = dp_event.pld.PLDAccountant()
    accountant.compose(dp_event.GaussianDpEvent(1 / both.mu))
    assert accountant.get_delta(1.0) == pytest.approx(1e-5, rel=0.01)  # its discretisation


def test_epochs_add_up_as_accountants_say() -> None:
    dp_event = pytest.importorskip("dp_accounting")
    defense = RecordGaussian(epsilon=1.0, delta=1e-5, per="run", epochs=40)
    accountant = dp_event.pld.PLDAccountant()
    accountant.compose(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1 / defense.step_mu), 40))
    assert accountant.get_delta(1.0) == pytest.approx(1e-5, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "exactly one of mu, epsilon together with delta, and detection_error, got none"),
        ({"mu": 1.0, "detection_error": 0.4}, "got mu and detection_error"),
        ({"epsilon": 1.0}, "got epsilon"),
        ({"delta": 1e-5}, "got delta"),
        ({"detection_error": 0.5}, "strictly between 0 and 0.5, got 0.5"),
        ({"mu": 0.0}, "mu must be finite and above 0, got 0.0"),
        ({"mu": math.nan}, "mu must be finite and above 0"),
        ({"mu": 1.0, "per": "epoch"}, "per must be 'message' or 'run', got 'epoch'"),
        ({"mu": 1.0, "epochs": 3}, "epochs, at least 1, go with per='run'"),
        ({"mu": 1.0, "label_range": (1.0, 1.0)}, "two finite numbers, the lower first"),
        ({"mu": 1.0, "classes": 1}, "classes must be at least 2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        RecordGaussian(**settings)


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 3), nn.ReLU(), nn.Linear(3, 1))


def frozen() -> nn.Module:
    return deep().requires_grad_(False)


ONES = (torch.arange(32) % 3 == 0).float()


@pytest.mark.parametrize(
    ("defenses", "labels", "settings", "text"),
    [
        ([RecordGaussian(mu=1.0, per="run")], ONES, {"top": deep()}, "gaussian-targets with remembered: false"),
        (
            [RecordGaussian(mu=1.0)],
            ONES,
            {"top": nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 1))},
            r"0 \(BatchNorm1d\) of the top model mixes the records",
        ),
        ([RecordGaussian(mu=1.0, per="run", epochs=2)], ONES, {}, "promised over 2 epochs, and the run has 3"),
        ([Isotropic(ratio=1.0), RecordGaussian(mu=1.0)], ONES, {}, "what isotropic did to it before would be lost"),
        ([RecordGaussian(mu=1.0, classes=3)], ONES, {}, "was made for 3 classes, and a binary task here has 2"),
        ([RecordGaussian(mu=1.0)], torch.linspace(0, 1, 32), {"task": Regression()}, "for regression say label_range"),
        ([RecordGaussian(mu=1.0, label_range=(0.0, 1.0))], ONES, {}, "label_range is for regression"),
        ([RecordGaussian(mu=1.0), GaussianTargets(mu=1.0)], ONES, {}, "its answers must be finitely many"),
    ],
)
def test_what_would_void_the_promise_is_refused_before_the_first_step(
    defenses: list[Any], labels: Tensor, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(SplitVFLError, match=text):
        a_run(defenses, labels, **settings)


def test_a_top_that_does_not_learn_may_be_deep_and_clips_may_follow() -> None:
    _, sent = a_run([RecordGaussian(mu=1.0, per="run"), ClipGradient(bound=0.1)], ONES, top=frozen())
    assert sent
    assert max(rows.norm(dim=1).max() for rows in sent) <= 0.1 * (1 + 1e-6)  # float32
    _, sent = a_run([RecordGaussian(mu=1.0)], ONES, top=deep(), early_stopping=EarlyStopping(patience=2))
    assert sent


def test_an_exchange_of_sums_is_refused_at_the_start() -> None:
    party = ActiveParty(party_data("bank", torch.randn(32, 2), ONES), LinearTop(1, 1, active_inputs=2))
    party.connect("telecom").defend(RecordGaussian(mu=1.0))
    with pytest.raises(ConfigError, match="sends no gradient for each record in the clear, and record-gaussian"):
        Taylor(rows=16).active(party)


def model_step(defense: Any, *, loss: Any = None, top: nn.Module | None = None, labels: Tensor | None = None) -> None:
    torch.manual_seed(0)
    labels = ONES if labels is None else labels
    model = SplitModel(nn.Linear(4, 7), top or nn.Linear(7, 1), loss=loss)
    model.defend(defense)
    outputs = model(torch.randn(32, 4), labels=labels, ids=torch.arange(32))
    compute = loss or (lambda o, y: functional.binary_cross_entropy_with_logits(o[:, 0], y))
    compute(outputs, labels).backward()


def test_a_model_refuses_the_same_tops() -> None:
    with pytest.raises(PrivacyError, match="mixes the records of a batch, so that a label changes the rows of others"):
        model_step(RecordGaussian(mu=1.0), top=nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 1)))
    with pytest.raises(PrivacyError, match="for a top model that learns from what was sent"):
        model_step(RecordGaussian(mu=1.0, per="run", epochs=1), top=deep())
    with pytest.raises(PrivacyError, match=r"their number is not known, so nothing was sent; .* say epochs="):
        model_step(RecordGaussian(mu=1.0, per="run"))


def test_a_gradient_that_is_not_finite_under_a_label_is_refused() -> None:
    with pytest.raises(HookError, match="record-gaussian: the gradient of a record under one of its labels is not fin"):
        model_step(RecordGaussian(mu=1.0), loss=lambda o, y: (o[:, 0] / y).mean(), labels=torch.ones(32))


def test_a_loop_with_another_loss_stops_before_the_top_learns_from_it() -> None:
    torch.manual_seed(0)
    for factor, kind in ((32.0, "a sum"), (0.5, "half")):
        model = SplitModel(nn.Linear(4, 7), nn.Linear(7, 1))
        model.defend(RecordGaussian(mu=1.0, per="run", epochs=1))
        outputs = model(torch.randn(32, 4), labels=ONES, ids=torch.arange(32))
        with pytest.raises(HookError, match="at the top model's output is not that of the loss"):
            (factor * functional.binary_cross_entropy_with_logits(outputs[:, 0], ONES)).backward()
        assert all(weight.grad is None for weight in model.parameters()), kind


def test_every_cut_is_defended_alike() -> None:
    torch.manual_seed(0)
    model = SplitModel({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}, nn.Linear(4, 1))
    model.cuts["a"].defend(RecordGaussian(mu=1.0, per="run", epochs=4))
    columns, ids = torch.randn(2, 32, 2), torch.arange(32)

    def step() -> None:
        outputs = model(*columns, labels=ONES, ids=ids)
        functional.binary_cross_entropy_with_logits(outputs[:, 0], ONES).backward()

    step()  # the other cut's rows follow from the same draw
    with (
        model.cuts["b"].defend(RecordGaussian(mu=0.5, per="run", epochs=4)),
        pytest.raises(PrivacyError, match="promise different things of the run"),
    ):
        step()
    with model.cuts["b"].defend(RecordGaussian(mu=1.0)), pytest.raises(PrivacyError, match="per run or per message"):
        step()


class Flip:
    """A label defense with two answers."""

    crossing = "labels"
    target_values = (-0.5, 1.5)

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        return labels * 2.0 - 0.5


def test_behind_a_label_defense_the_change_between_its_answers_is_covered() -> None:
    torch.manual_seed(0)
    top = nn.Linear(7, 1)
    model = SplitModel(nn.Linear(4, 7), top)
    model.defend(Flip())
    model.defend(RecordGaussian(mu=MU), noise_seed_for_experiments=0)
    labels = (torch.arange(200_000) % 2).float()
    outputs = model(torch.zeros(200_000, 4), labels=labels)
    functional.binary_cross_entropy_with_logits(outputs[:, 0], model.targets(labels)).backward()
    # Twice as far apart as labels are, under twice the noise.
    weight = top.weight[0].double()
    assert math.sqrt(model.cut.gradient.measurements["record-gaussian/power"]) == pytest.approx(
        2 * weight.norm().item() / MU / 200_000, rel=0.01
    )


def test_a_run_is_planned_once() -> None:
    defense = RecordGaussian(mu=1.0, per="run")
    plan = RunPlan(epochs=4, values=(0.0, 1.0))
    defense.plan_run(plan)
    defense.plan_run(plan)
    assert defense.step_mu == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="promised over 4 epochs, and the run has 5"):
        defense.plan_run(RunPlan(epochs=5, values=(0.0, 1.0)))


def test_what_is_promised_is_said_in_a_sentence() -> None:
    party = ActiveParty(party_data("bank", torch.randn(32, 2), ONES), nn.Linear(5, 1))
    party.connect("telecom").defend(RecordGaussian(detection_error=0.4))
    party.labels.attach(GaussianTargets(detection_error=0.3))
    of_run, of_message = promises_of(party, 40)
    assert of_run.startswith("gaussian-targets: all messages of the run together are 1.05-Gaussian differentially")
    assert "below 0.400. Of the run it promises nothing; the noise alone of 40 messages would allow 0.055" in of_message
    assert "the noise alone of one message would allow 0.400" in promises_of(party, 1)[1]
