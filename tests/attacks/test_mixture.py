from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from splitvfl.attacks import DirectionAttack, MixtureAttack, ReadoutAttack
from splitvfl.attacks.mixture_fit import LineMessages, fit_mixture, log_ratios, logits, weights
from splitvfl.cut.split_model import SplitModel
from splitvfl.defenses import AsymmetricResponse, AxisGaussian, AxisSumKL, Isotropic, MaxNorm
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View, call_attack
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.watching import Watch
from splitvfl.metrics import leak_auc, oriented
from tests.saving import through_disk

WIDTH = 5


class Recorder:
    """An attack that only takes down what it is shown."""

    needs = frozenset({"gradient", "activation"})

    def __init__(self) -> None:
        self.seen: list[View] = []

    def __call__(self, view: View, /) -> Tensor:
        self.seen.append(View(party="a", step=view.step, ids=view.ids, **{n: getattr(view, n) for n in self.needs}))
        return torch.zeros(view.ids.shape[0])


@cache
def columns(name: str) -> tuple[Tensor, Tensor]:
    load, held = {"breast cancer": (load_breast_cancer, 1 / 5), "digits": (load_digits, 1 / 7)}[name]
    rows, labels = load(return_X_y=True)
    if name == "digits":
        labels = labels == 8
    train, _, own, _ = train_test_split(rows, labels, test_size=held, random_state=0, stratify=labels)
    return torch.tensor(StandardScaler().fit_transform(train)).float(), torch.tensor(own).float()


def trained(
    name: str,
    defense: Any,
    *attacks: Any,
    epochs: int,
    batch: int,
    hidden: int = 0,
    own: int = 0,
    step: Callable[[int], None] = lambda _: None,
) -> list[Leak]:
    """Train as in the setting of the tables, and return the leaks; ``own``: columns that the label party has itself."""
    torch.manual_seed(0)
    rows, labels = columns(name)
    active, rows = (rows[:, :own], rows[:, own:]) if own else (None, rows)
    bottom = nn.Sequential(nn.Linear(rows.shape[1], 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    deep = nn.Sequential(nn.Linear(32 + own, hidden), nn.ReLU(), nn.Linear(hidden, 1)) if hidden else None
    model = SplitModel(bottom, deep or nn.Linear(32 + own, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if defense is not None:
        model.defend(defense, noise_seed_for_experiments=0)
    leaks = [model.cut.watch(attack) for attack in attacks]
    for _ in range(epochs):
        for ids in torch.randperm(len(rows)).split(batch):
            optimizer.zero_grad()
            truth = labels[ids]
            output = model(rows[ids], active=None if active is None else active[ids], labels=truth, ids=ids)
            targets = model.targets(truth, ids=ids)
            nn.functional.binary_cross_entropy_with_logits(output[:, 0], targets.float()).backward()
            optimizer.step()
    return leaks


def read_at_once(views: list[View], records: int) -> Tensor:
    """Return the scores of all records by one fit to a whole run's messages: the attack without its bookkeeping."""
    line = ReadoutAttack()
    parts = []
    for view in views:
        activation = line(view).numpy()
        assert line.direction is not None
        shift = (view.gradient.double() @ line.direction).numpy() * activation.size
        parts.append((view.ids.numpy(), np.full(activation.size, view.step), shift, activation))
    messages = LineMessages(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))
    fit, variances = fit_mixture(messages)
    assert not fit.failure
    weight = weights(messages, fit)
    prior = np.bincount(messages.record, weight * logits(messages, fit), minlength=records)
    total = prior / np.bincount(messages.record, weight, minlength=records)
    return torch.from_numpy(total + np.bincount(messages.record, log_ratios(messages, fit, variances), records))


@pytest.mark.slow(reason="ten epochs of 569 records")
def test_it_reads_breast_cancer_in_ten_epochs() -> None:
    (leak,) = trained("breast cancer", AxisSumKL(detection_error=0.4), MixtureAttack(), epochs=10, batch=64)
    assert leak.summary.worst_accumulated_auc > 0.97
    assert leak.summary.worst == pytest.approx(leak.summary.worst_accumulated_auc)


@pytest.mark.slow(reason="trains to convergence, twice")
@pytest.mark.parametrize(
    ("name", "defense", "batch", "least"),
    [
        # Breast cancer behind AxisSumKL is above.
        ("breast cancer", AxisGaussian(detection_error=0.4), 64, 0.995),
        ("digits", AxisSumKL(detection_error=0.4), 128, 0.99),
    ],
)
def test_it_reads_what_is_trained_to_convergence(name: str, defense: Any, batch: int, least: float) -> None:
    recorder = Recorder()
    trained(name, defense, recorder, epochs=40, batch=batch)
    truth = columns(name)[1]
    assert oriented(leak_auc(read_at_once(recorder.seen, len(truth)), truth)) > least


@pytest.mark.parametrize(
    ("hidden", "own"), [(0, 0), (8, 10)], ids=["linear top, all columns here", "deep top, some columns there"]
)
def test_where_nothing_hides_labels_it_is_as_good_as_who_knows_some(hidden: int, own: int) -> None:
    attacks = MixtureAttack(), DirectionAttack()
    leak, knowing = trained("breast cancer", None, *attacks, epochs=4, batch=64, hidden=hidden, own=own)
    assert leak.summary.worst > knowing.summary.worst - 0.01


@pytest.mark.slow(reason="two trainings behind noise")
@pytest.mark.parametrize("defense", [Isotropic(ratio=1.0), MaxNorm()], ids=["isotropic", "max-norm"])
def test_it_reads_other_noise(defense: Any) -> None:
    leak, readout = trained("breast cancer", defense, MixtureAttack(), ReadoutAttack(), epochs=8, batch=64)
    assert leak.summary.worst > readout.summary.worst
    assert leak.summary.worst > 0.99


@pytest.mark.slow(reason="trains on batches of eight")
def test_batches_of_eight_are_enough() -> None:
    recorder = Recorder()
    trained("breast cancer", AxisGaussian(detection_error=0.4), recorder, epochs=8, batch=8)
    truth = columns("breast cancer")[1]
    assert oriented(leak_auc(read_at_once(recorder.seen, len(truth)), truth)) > 0.98


def test_behind_a_label_defense_it_reads_the_answers() -> None:
    (leak,) = trained("breast cancer", AsymmetricResponse(detection_error=0.4), MixtureAttack(), epochs=6, batch=64)
    # The theorem gives .60 to whoever sees answers alone; a sum of both kinds of evidence adds the readout.
    assert leak.summary.worst < 0.75


# --- bookkeeping -----------------------------------------------------------------------------------------------------


def views(epochs: int, *, records: int = 60, batch: int = 25, noise: float = 0.3, seed: int = 0) -> list[View]:
    """Views below a linear top, with a short last batch in every epoch; ids are no row numbers."""
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(WIDTH, generator=random)
    activation = torch.randn(records, WIDTH, generator=random)
    logit = activation @ weight - 0.5
    labels = (torch.rand(records, generator=random) < torch.sigmoid(logit)).float()
    found = []
    for _ in range(epochs):
        for rows in torch.randperm(records, generator=random).split(batch):
            residues = torch.sigmoid(logit[rows]) - labels[rows] + noise * torch.randn(len(rows), generator=random)
            gradient = residues[:, None] * weight / len(rows)
            ids = rows * 1_000_003 - 7
            found.append(View(party="a", step=len(found), ids=ids, gradient=gradient, activation=activation[rows]))
    return found


def last_scores(attack: Any, seen: list[View]) -> dict[int, float]:
    scores: dict[int, float] = {}
    for view in seen:
        scores |= dict(zip(view.ids.tolist(), call_attack(attack, view).tolist(), strict=True))
    return scores


@pytest.mark.parametrize(("stop", "noise"), [(1, 0.3), (4, 0.3), (4, 1e6)])  # the last fit fails
def test_it_goes_on_to_the_bit(stop: int, noise: float) -> None:
    seen = views(3, noise=noise)
    straight, resumed = MixtureAttack(), MixtureAttack()
    last_scores(straight, seen[:stop])

    resumed.load_state_dict(through_disk(straight.state_dict()))

    for view in seen[stop:]:
        assert torch.equal(call_attack(resumed, view), call_attack(straight, view))
    assert resumed.fit == straight.fit
    assert resumed.note == straight.note


def test_before_an_epoch_is_over_it_is_the_plain_sum_and_says_so() -> None:
    attack = MixtureAttack()
    view = views(1)[0]

    scores = call_attack(attack, view)

    # At a linear top all rows lie on one line: the sum of one message is its place on it, in units of the batch.
    norms = view.gradient.double().norm(dim=1)
    torch.testing.assert_close(scores.abs(), norms / norms.square().mean().sqrt())
    assert attack.fit is None
    assert "plain sum" in attack.note


def test_a_fit_that_fails_is_said_and_the_sum_goes_on() -> None:
    attack, seen = MixtureAttack(), views(4, noise=1e6)
    scores = last_scores(attack, seen)

    assert attack.fit is not None
    assert "labels shift nothing" in attack.fit.failure
    assert "labels shift nothing" in attack.note
    assert "plain sum" in attack.note
    sums = dict.fromkeys(scores, 0.0)
    for view in seen:
        places = view.gradient.double().norm(dim=1) * torch.sign(view.gradient[:, 0])
        for record, place in zip(view.ids.tolist(), (places / places.square().mean().sqrt()).tolist(), strict=True):
            sums[record] += place
    found = torch.tensor([[scores[record], sums[record]] for record in scores]).T
    assert abs(torch.corrcoef(found)[0, 1].item()) == pytest.approx(1.0, abs=1e-6)


def test_after_a_fit_that_worked_one_that_fails_changes_nothing() -> None:
    attack = MixtureAttack()
    good = last_scores(attack, views(4))
    assert attack.note == ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("splitvfl.attacks.mixture_fit._LEAST_GAIN", 1e9)
        again = last_scores(attack, views(6)[12:])

    assert "by an earlier one" in attack.note
    # Two more messages of each record, by the fit that there was: what was sure is surer.
    assert all(np.sign(again[record]) == np.sign(score) for record, score in good.items() if abs(score) > 5)


def test_rows_of_zeros_are_no_messages() -> None:
    attack, other = MixtureAttack(), MixtureAttack()
    last_scores(attack, views(3))
    for view in views(3):
        # A dummy comes with a gradient of zeros, which must neither be fitted nor change how others are.
        gradient = torch.cat([view.gradient, torch.zeros(2, WIDTH)]) * len(view.ids) / (len(view.ids) + 2)
        activation = torch.cat([view.activation, torch.ones(2, WIDTH)])
        dummies = torch.tensor([9, 11]) + 100 * view.step
        padded = View(
            party="a",
            step=view.step,
            ids=torch.cat([view.ids, dummies]),
            gradient=gradient,
            activation=activation,
        )
        scores = call_attack(other, padded)
    assert other.fit is not None
    assert attack.fit is not None
    assert other.fit.messages == attack.fit.messages
    assert other.fit.kappa == pytest.approx(attack.fit.kappa, rel=1e-3)
    assert scores[-2:].tolist() == [0.0, 0.0]


def test_it_keeps_so_many_messages_and_whole_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitvfl.attacks.mixture._MOST_MESSAGES", 150)
    attack = MixtureAttack()
    last_scores(attack, views(4))
    assert attack.fit is not None
    assert attack.fit.messages == 120
    kept = sum(part[0].numel() for epoch in attack.state_dict()["epochs"] for part in epoch)
    assert kept <= 150 + 60

    last_scores(attack, views(1))
    assert len(attack.state_dict()["records"]["ids"]) == 60


def test_batches_whose_ids_are_not_known_are_refused() -> None:
    model = SplitModel(nn.Linear(3, 2), nn.Linear(2, 1))
    model.cut.watch(MixtureAttack())
    labels = torch.tensor([0.0, 1.0, 1.0])
    output = model(torch.randn(3, 3), labels=labels)
    with pytest.raises(HookError, match=r"mixture puts together what came of each record.*ids=ids"):
        nn.functional.binary_cross_entropy_with_logits(output[:, 0], labels).backward()


def test_another_width_is_refused() -> None:
    attack = MixtureAttack()
    call_attack(attack, views(1)[0])
    narrow = View(party="a", step=1, ids=torch.arange(3), gradient=torch.ones(3, 2), activation=torch.ones(3, 2))
    with pytest.raises(ArgumentError, match="width 5, got 2"):
        call_attack(attack, narrow)


def test_a_run_says_what_the_attack_says() -> None:
    watch = Watch(["telecom"])
    watch.add("telecom", Leak(MixtureAttack()))
    watch.add("telecom", Leak(ReadoutAttack()))
    reason = "the mixture was not fitted (no epoch was over); the score is the plain sum of the messages"
    assert watch.notes == [f"mixture at telecom: {reason}."]
