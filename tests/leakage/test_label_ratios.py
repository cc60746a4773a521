"""Log ratios of the labels: against autograd, closed forms and exact likelihoods, and blind where nothing was sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn import functional

from splitvfl.cut.split_model import SplitModel
from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.label_ratios import MOST, LabelRatios, answers_of, read_message
from splitvfl.learning.label_gradients import LabelGradients, mean_cross_entropy
from splitvfl.learning.randomness import PartyRandom
from splitvfl.metrics import leak_auc
from splitvfl.run import checkpoint

WIDTH = 3
Noise = Callable[[int, torch.Generator], Tensor]


def known_of(logits: Tensor, targets: Tensor, values: tuple[float, ...] | None = (0.0, 1.0)) -> LabelGradients:
    """What the label party knows at a linear top with the weights (2, 0, 0)."""
    line = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
    return LabelGradients(
        outputs=logits[:, None],
        targets=targets,
        values=values,
        classes=2,
        loss=mean_cross_entropy,
        jacobian=line.expand(1, logits.numel(), WIDTH),
    )


class World:
    """Records, their labels, and predictions that know something of them."""

    def __init__(self, seed: int, records: int, *, slope: float = 1.0) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.logits = slope * torch.randn(records, generator=self.random, dtype=torch.float64) - 0.8
        self.labels = (torch.rand(records, generator=self.random) < torch.sigmoid(self.logits)).double()

    def epoch(self, audit: Audit, batch: int, send: Callable[[Tensor, Tensor, LabelGradients], Tensor]) -> None:
        for rows in torch.randperm(self.labels.numel(), generator=self.random).split(batch):
            known = known_of(self.logits[rows], self.labels[rows])
            sent = send(known.rows, self.labels[rows], known)
            audit.see(known.rows, sent, self.labels[rows], rows, label_gradients=known)


def test_a_clean_message_is_the_label_itself_in_units_of_the_label_at_any_top() -> None:
    with PartyRandom(0):
        top = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        activation = torch.randn(7, 4, dtype=torch.float64)
    labels = torch.tensor([0.0, 1, 1, 0, 1, 0, 0], dtype=torch.float64)
    model = SplitModel(nn.Identity(), top)
    seen: list[LabelGradients] = []

    class Catch:
        needs_label_gradients = True

        def __call__(self, gradient: Tensor, secrets: object, /) -> Tensor:
            seen.append(secrets.label_gradients)  # type: ignore[attr-defined]
            return gradient

    model.defend(Catch())
    leaf = activation.requires_grad_()
    loss = functional.binary_cross_entropy_with_logits(model(leaf, labels=labels).squeeze(1), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    noise = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert leaf.grad is not None

    clean, noisy = (read_message(rows, seen[0]) for rows in (leaf.grad, leaf.grad + noise))

    np.testing.assert_allclose(clean.shift, labels, atol=1e-12)
    np.testing.assert_allclose(clean.centre, torch.sigmoid(top(activation)).detach().squeeze(1), atol=1e-12)
    # By brute force: the gradient of a sum of losses under each label, row by row.
    under = []
    for label in (0.0, 1.0):
        again = activation.detach().requires_grad_()
        functional.binary_cross_entropy_with_logits(top(again).squeeze(1), torch.full_like(labels, label)).backward()
        under.append(again.grad)
    way = (under[1] - under[0]).detach()
    np.testing.assert_allclose(noisy.shift - labels.numpy(), (noise * way).sum(1) / (way * way).sum(1), atol=1e-9)


def test_sums_of_ratios_reach_what_normal_theory_allows() -> None:
    """Noise of σ = 3 in units of the label, 9 epochs: a shift of 1 against a deviation of 1, AUC Φ(1/√2)."""
    world, audit = World(0, 1500), Audit()
    for _ in range(9):
        world.epoch(
            audit,
            250,
            lambda clean, labels, known: (
                clean
                + 3.0
                * known.under(0).new_tensor([2.0, 0, 0])
                / 250
                * torch.randn(250, 1, generator=world.random).double()
            ),
        )
    ratios = audit.history._records["ratio"][:]
    noisy_sums = torch.from_numpy(audit.history._records["shift"].copy())
    best = leak_auc(noisy_sums, world.labels)

    assert best == pytest.approx(norm.cdf(1 / 2**0.5), abs=0.04)  # .013 is the standard error
    assert leak_auc(torch.from_numpy(ratios.copy()), world.labels) == pytest.approx(best, abs=0.012)


def test_late_messages_weigh_what_they_weigh() -> None:
    """Noise that shrinks twentyfold: the shifts add up to d' = 3.8, where steps of equal weight would reach 2.9."""
    world, audit = World(1, 800), Audit()
    for noise in np.geomspace(8.0, 0.4, 12):
        world.epoch(audit, 100, lambda clean, labels, known, s=noise: _along(clean, s, world.random))  # type: ignore[misc]
    assert audit.ratio.summary().accumulated_auc > 0.985
    assert audit.linear.summary().accumulated_auc < 0.97
    assert audit.late_detection_error < audit.detection_error - 0.1
    assert audit.late_detection_error == pytest.approx(norm.cdf(-0.5 / 0.45), abs=0.05)


def _along(clean: Tensor, scale: float, random: torch.Generator) -> Tensor:
    noise = torch.zeros_like(clean)
    noise[:, 0] = scale * 2.0 / len(clean) * torch.randn(len(clean), generator=random).double()
    return clean + noise


def test_the_shape_of_the_noise_is_learned() -> None:
    """Under Laplace noise the exact log ratio, of who knows the shape, gains over the sum; so does the auditor."""
    world, audit = World(2, 1500), Audit()
    scale = 3.0
    exact = torch.zeros(1500, dtype=torch.float64)
    for _ in range(12):
        for rows in torch.randperm(1500, generator=world.random).split(125):
            known = known_of(world.logits[rows], world.labels[rows])
            uniform = torch.rand(len(rows), generator=world.random).double() - 0.5
            noise = -scale * uniform.sign() * torch.log1p(-2 * uniform.abs())
            sent = known.rows.clone()
            sent[:, 0] -= 2.0 / len(rows) * noise
            audit.see(known.rows, sent, world.labels[rows], rows, label_gradients=known)
            seen = world.labels[rows] + noise
            exact[rows] += ((seen.abs()) - (seen - 1).abs()) / scale
    sums = torch.from_numpy(audit.history._records["shift"].copy())
    plain, best = leak_auc(sums, world.labels), leak_auc(exact, world.labels)
    found = audit.ratio.summary().accumulated_auc

    assert best - plain > 0.03  # or the test could not tell
    assert found > plain + 0.015


def _noise_alone(clean: Tensor, _labels: Tensor, _known: LabelGradients, *, random: torch.Generator) -> Tensor:
    return torch.randn(clean.shape, generator=random).double()


@pytest.mark.slow(reason="trainings in four seeds")
@pytest.mark.parametrize("batch", [8, 60])
def test_messages_that_tell_nothing_are_read_as_nothing_however_good_predictions_are(batch: int) -> None:
    found, predictions = [], []
    for seed in range(4):
        world, audit = World(seed, 160, slope=2.5), Audit()
        for _ in range(3):
            world.epoch(audit, batch, partial(_noise_alone, random=world.random))
        found.append(audit.ratio.summary().accumulated_auc)
        predictions.append(audit.prediction_auc)
    assert np.mean(predictions) > 0.85
    # One such sum depends on the predictions with either sign: its AUC has a deviation of .06 over seeds.
    assert np.mean(found) == pytest.approx(0.5, abs=3 * 0.06 / 2)


def test_a_ratio_does_not_depend_on_any_label_of_its_batch() -> None:
    world = World(3, 400)
    known = known_of(world.logits, world.labels)
    messages = read_message(_along(known.rows, 1.0, world.random), known)
    first, second = LabelRatios(), LabelRatios()
    for ratios in (first, second):
        for _ in range(3):
            ratios(messages, world.labels.numpy() == 1)
    assert first.fitted
    flipped = np.arange(400) % 2 == 0
    np.testing.assert_array_equal(first(messages, flipped), second(messages, ~flipped))


@pytest.mark.parametrize("alternating", [False, True])
def test_a_class_that_is_marked_off_the_line_is_found_also_where_it_changes(alternating: bool) -> None:
    """As sumKL marks the class of smaller variance, whichever it is in a batch."""
    world, audit, count = World(4, 600), Audit(), [0]

    def send(clean: Tensor, labels: Tensor, known: LabelGradients) -> Tensor:
        count[0] += 1
        marked = labels == (count[0] % 2 if alternating else 1)
        sent = _along(clean, 50.0, world.random)
        sent[:, 1:] += torch.randn(len(clean), 2, generator=world.random).double() * (0.01 + marked[:, None].double())
        return sent

    for _ in range(6):
        world.epoch(audit, 60, send)
    assert audit.ratio.summary().accumulated_auc > 0.97


def test_a_silent_record_says_nothing_unless_one_class_is_silent() -> None:
    for chosen, least, most in (("random", 0.0, 0.01), ("positives", 3.0, MOST)):
        world = World(5, 400)
        ratios = LabelRatios()
        for _ in range(5):
            known = known_of(world.logits, world.labels)
            sent = _along(known.rows, 0.1, world.random)
            silent = torch.rand(400, generator=world.random) < 0.5
            if chosen == "positives":
                silent &= world.labels == 1
            sent[silent] = 0.0
            messages = read_message(sent, known)
            found = ratios(messages, world.labels.numpy() == 1)
        assert messages.silent.tolist() == silent.tolist()
        assert (np.abs(found[silent.numpy()]) <= most).all()
        assert (found[silent.numpy()] >= least).all() or chosen == "random"


def test_behind_a_label_defense_it_is_of_the_answers() -> None:
    labels = torch.tensor([0.0, 1.0, 1.0, 0.0])
    targets = torch.tensor([-0.5, 1.5, -0.5, -0.5])
    logits = torch.zeros(4, dtype=torch.float64)
    known = known_of(logits, targets.double(), values=(-0.5, 1.5))

    messages = read_message(known.rows, known)

    answers = answers_of(known)
    assert answers is not None
    assert answers.tolist() == [False, True, False, False]
    np.testing.assert_allclose(messages.shift, [0.0, 1.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(messages.centre, (0.5 + 0.5) / 2.0, atol=1e-12)
    assert answers_of(known_of(logits, targets.double(), values=None)) is None
    assert labels.sum() == 2


def test_a_batch_of_one_class_is_scored_once_others_were_met() -> None:
    world, audit = World(6, 300), Audit()
    for _ in range(2):
        world.epoch(audit, 50, lambda clean, _labels, _known: _along(clean, 0.3, world.random))
    before = audit.history._records["ratio"][:].copy()
    rows = (world.labels == 1).nonzero()[:20, 0]
    known = known_of(world.logits[rows], world.labels[rows])
    audit.see(known.rows, _along(known.rows, 0.3, world.random), world.labels[rows], rows, label_gradients=known)
    gained = audit.history._records["ratio"][rows.numpy()] - before[rows.numpy()]
    assert np.mean(gained) > 2.0
    assert audit.ratio.summary().undefined == 1


def test_what_is_remembered_goes_on_from_a_checkpoint_to_the_bit(tmp_path: Path) -> None:
    def send(clean: Tensor, labels: Tensor, known: LabelGradients) -> Tensor:
        return _along(clean, 1.0, world.random) + 0.01 * labels[:, None]

    found = []
    for broken in (False, True):
        world, audit = World(7, 200), Audit()
        world.epoch(audit, 40, send)
        if broken:
            state = checkpoint.load(checkpoint.save(tmp_path, 1, {"audit": audit.state_dict()}))["audit"]
            audit = Audit()
            audit.load_state_dict(state)
        world.epoch(audit, 40, send)
        found.append((audit.total, audit.worst, audit.detection_error, audit.late_detection_error, audit.told))
    assert found[0] == found[1]


def test_half_precision_and_messages_of_any_size_are_read() -> None:
    world = World(8, 200)
    for dtype, power in ((torch.bfloat16, 0), (torch.float32, -40), (torch.float64, 60)):
        audit = Audit()
        for _ in range(3):
            known = known_of(world.logits, world.labels)
            scaled = LabelGradients(
                outputs=world.logits[:, None],
                targets=world.labels,
                values=(0.0, 1.0),
                classes=2,
                loss=mean_cross_entropy,
                jacobian=torch.tensor([2.0**power, 0, 0]).double().expand(1, 200, WIDTH),
            )
            sent = (scaled.rows + 2.0**power * 0.3 / 200 * torch.randn(known.rows.shape, generator=world.random)).to(
                dtype
            )
            audit.see(scaled.rows, sent, world.labels, torch.arange(200), label_gradients=scaled)
        assert audit.ratio.summary().accumulated_auc > 0.97


def test_records_without_a_label_are_left_out() -> None:
    world, some, others = World(9, 120), Audit(), Audit()
    real = torch.arange(120) % 4 != 0
    for _ in range(4):
        noise = 0.01 * torch.randn(120, WIDTH, generator=world.random).double()
        known = known_of(world.logits, world.labels)
        # The mean loss of all rows: those that are left must be what they were.
        fewer = LabelGradients(
            outputs=world.logits[real][:, None],
            targets=world.labels[real],
            values=(0.0, 1.0),
            classes=2,
            loss=mean_cross_entropy,
            jacobian=torch.tensor([2.0 * 90 / 120, 0, 0]).double().expand(1, 90, WIDTH),
        )
        labels, ids = world.labels.masked_fill(~real, torch.nan), torch.arange(120)
        some.see(known.rows, known.rows + noise, labels, ids, label_gradients=known)
        others.see(known.rows[real], (known.rows + noise)[real], labels[real], ids[real], label_gradients=fewer)
    assert len(some.history) == len(others.history) == 90
    assert some.total == pytest.approx(others.total, abs=1e-9)
    torch.testing.assert_close(
        torch.from_numpy(some.history._records["ratio"][:]), torch.from_numpy(others.history._records["ratio"][:])
    )


def test_without_ids_nothing_is_put_together() -> None:
    world, audit = World(10, 100), Audit()
    for _ in range(3):
        known = known_of(world.logits, world.labels)
        audit.see(known.rows, known.rows, world.labels, None, label_gradients=known)
    assert audit.told is None
    assert audit.total == audit.worst == pytest.approx(1.0)
    assert np.isnan([audit.prediction_auc, audit.beyond_prediction]).all()


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitvfl.leakage.run_audit._MOST_RECORDS", 100)
    audit = Audit()
    for step in range(6):
        world = World(step, 60)
        known = known_of(world.logits, world.labels)
        ids = torch.arange(60) * 10**6 + step * 60
        audit.see(known.rows, known.rows, world.labels, ids, label_gradients=known)
    assert len(audit.history) == 120
    assert audit.told is not None
    assert audit.told.records == 120
