"""The auditor's attack, against explicit numpy and scipy, on messages whose leak is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor, nn
from torch.nn import functional

from splitvfl.cut.split_model import SplitModel
from splitvfl.defenses import MemoisedResponse
from splitvfl.leakage.auditing import Audit, Auditor, AuditScores, class_axis
from splitvfl.leakage.label_ratios import expected_axis
from splitvfl.learning.label_gradients import LabelGradients, mean_cross_entropy
from splitvfl.learning.randomness import PartyRandom
from splitvfl.metrics import leak_auc
from splitvfl.run import checkpoint

Batch = tuple[Tensor, Tensor, Tensor]  # clean, sent, labels

WIDTH = 4
ROWS = 64


def batch_maker(
    defend: Callable[[Tensor, Tensor, torch.Generator], Tensor], *, seed: int = 0, spread: float = 0.3
) -> Iterator[Batch]:
    """Gradients as at a linear top: one line, positives on one side of it."""
    random = torch.Generator().manual_seed(seed)
    line = torch.randn(WIDTH, generator=random)
    while True:
        labels = (torch.rand(ROWS, generator=random) < 0.4).float()
        size = (0.5 - labels) + spread * torch.randn(ROWS, generator=random)
        clean = size[:, None] * line / ROWS
        yield clean, defend(clean, labels, random), labels


def noise_everywhere(clean: Tensor, labels: Tensor, random: torch.Generator) -> Tensor:
    return clean + clean.std() * torch.randn(clean.shape, generator=random)


def nothing_but_noise(clean: Tensor, labels: Tensor, random: torch.Generator) -> Tensor:
    return torch.randn(clean.shape, generator=random)


def marked_by_variance(clean: Tensor, labels: Tensor, random: torch.Generator) -> Tensor:
    """Drowns the line for both classes, and sends ten times the noise off it for the positives."""
    noise = torch.randn(clean.shape, generator=random)
    line = clean[0] / clean[0].norm()
    along = (noise @ line)[:, None] * line
    off = noise - along
    return 30 * clean.norm() * (along + off * (0.05 + 0.45 * labels[:, None]))


def take(maker: Iterator[Batch], count: int) -> list[Batch]:
    return [next(maker) for _ in range(count)]


def features(clean: Tensor, sent: Tensor, labels: Tensor) -> tuple[Any, Any]:
    """Projection and log energy off the axis, in units of the batch's root mean square norm, in numpy."""
    x, y, positive = clean.double().numpy(), sent.double().numpy(), labels.numpy() == 1
    axis = x[positive].mean(axis=0) - x[~positive].mean(axis=0)
    axis /= np.linalg.norm(axis)
    y = y / np.sqrt((y**2).sum(axis=1).mean())
    along = y @ axis
    off = ((y - np.outer(along, axis)) ** 2).sum(axis=1)
    return np.stack([along, np.log(off + 1e-9)], axis=1), positive


def gaussian(rows: Any, weights: Any, pooled: Any) -> Any:
    mean = np.average(rows, axis=0, weights=weights)
    covariance = np.cov(rows.T, aweights=weights, ddof=0) + np.diag(1e-3 * pooled + 1e-6)
    return multivariate_normal(mean, covariance)


def oracle(earlier: list[Batch], now: Batch) -> Any:
    """Log likelihood ratio of two Gaussians fitted to all earlier rows, a step back weighing 0.95 of the next one."""
    known = [features(*batch) for batch in earlier]
    rows = np.concatenate([some for some, _ in known])
    truth = np.concatenate([positive for _, positive in known])
    weights = np.repeat([0.95 ** (len(earlier) - 1 - age) for age in range(len(earlier))], ROWS)
    pooled = np.cov(rows.T, aweights=weights, ddof=0).diagonal()
    fits = [gaussian(rows[truth == label], weights[truth == label], pooled) for label in (False, True)]
    present, _ = features(*now)
    return fits[1].logpdf(present) - fits[0].logpdf(present)


def scores_of(auditor: Auditor, batch: Batch) -> AuditScores:
    scores = auditor(*batch)
    assert scores is not None
    return scores


@pytest.mark.parametrize("defend", [noise_everywhere, marked_by_variance, nothing_but_noise])
@pytest.mark.parametrize("steps", [1, 2, 30])
def test_both_scores_are_those_of_numpy_and_scipy(defend: Any, steps: int) -> None:
    *earlier, now = take(batch_maker(defend, seed=steps), steps + 1)
    auditor = Auditor()
    for batch in earlier:
        auditor(*batch)
    scores = scores_of(auditor, now)
    assert scores.fitted
    assert scores.linear.dtype == scores.likelihood.dtype == torch.float64
    # Both in float64, but the clean batch is divided by its peak in float32 first: 2⁻²⁴ per entry of the axis, which
    # the off-axis energy of rows near the axis and the inverse covariance enlarge.
    np.testing.assert_allclose(scores.linear, features(*now)[0][:, 0], atol=1e-5)
    np.testing.assert_allclose(scores.likelihood, oracle(earlier, now), rtol=1e-3, atol=1e-3)


def test_the_likelihood_of_a_step_knows_nothing_of_its_labels() -> None:
    """Clean gradients on one line have one axis under two labellings: only a fit on this very step could differ."""
    maker = batch_maker(noise_everywhere)
    earlier = take(maker, 5)
    clean, sent, labels = next(maker)
    size = clean @ clean[0]
    upper = (size * (clean[labels == 1] @ clean[0]).mean().sign()).argsort(descending=True)
    other = torch.zeros(ROWS)
    other[upper[: ROWS // 4]] = 1.0
    other[upper[-3:]] = 1.0
    assert not torch.equal(other, labels)
    found = []
    for truth in (labels, other):
        auditor = Auditor()
        for batch in earlier:
            auditor(*batch)
        found.append((scores_of(auditor, (clean, sent, truth)), auditor.state_dict()))
    # The axis is a float32 mean of other rows of one line: equal to a few 2⁻²⁴.
    torch.testing.assert_close(found[0][0].likelihood, found[1][0].likelihood, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found[0][1]["sum"], found[1][1]["sum"])  # and afterwards it has learnt them


def test_until_it_has_met_four_of_each_class_the_likelihood_is_the_projection() -> None:
    auditor = Auditor()
    clean, sent, _ = next(batch_maker(noise_everywhere))
    few = torch.zeros(ROWS)
    few[:2] = 1.0
    fitted = []
    for _ in range(4):
        scores = scores_of(auditor, (clean, sent, few))
        fitted.append(scores.fitted)
        assert torch.equal(scores.linear, scores.likelihood) != scores.fitted
    # Weights of the positives before each step: 0, 2, 3.9, 5.7.
    assert fitted == [False, False, False, True]


def mean_auc(batches: list[Batch], which: str) -> float:
    auditor = Auditor()
    aucs = []
    for clean, sent, labels in batches:
        scores = scores_of(auditor, (clean, sent, labels))
        if scores.fitted:
            aucs.append(leak_auc(getattr(scores, which), labels))
    return float(np.mean(aucs))


def test_a_class_that_is_marked_by_its_variance_is_found_by_the_likelihood_alone() -> None:
    batches = take(batch_maker(marked_by_variance), 60)
    assert mean_auc(batches, "likelihood") > 0.95
    # One step's AUC of about 26 against 38 blind scores has deviation sqrt(65 / (12·26·38)) = 0.074; of 60: 0.01.
    assert mean_auc(batches, "linear") == pytest.approx(0.5, abs=0.06)


def test_a_message_of_noise_tells_neither_attack_anything() -> None:
    batches = take(batch_maker(nothing_but_noise), 80)
    for which in ("linear", "likelihood"):  # 0.074 / sqrt(80) = 0.008
        assert mean_auc(batches, which) == pytest.approx(0.5, abs=0.025)


def test_a_clean_message_is_read_by_both() -> None:
    batches = take(batch_maker(lambda clean, labels, random: clean, spread=0.05), 10)
    assert mean_auc(batches, "linear") == 1.0
    assert mean_auc(batches, "likelihood") == 1.0


@pytest.mark.parametrize("power", [-60, 40])
def test_the_unit_of_the_gradients_does_not_matter(power: int) -> None:
    """Powers of two scale exactly, so nothing may change at all, also where squares leave float32's range."""
    plain, scaled = Auditor(), Auditor()
    for clean, sent, labels in take(batch_maker(noise_everywhere), 4):
        expected = scores_of(plain, (clean, sent, labels))
        found = scores_of(scaled, (clean * 2.0**power, sent * 2.0**power, labels))
        assert torch.equal(found.linear, expected.linear)
        assert torch.equal(found.likelihood, expected.likelihood)


@pytest.mark.parametrize("width", [1, 3])
def test_messages_without_anything_off_the_axis_or_at_all_have_finite_scores(width: int) -> None:
    auditor = Auditor()
    labels = torch.arange(8) % 2
    clean = (labels[:, None] - 0.4) * torch.ones(width)
    for sent in (clean, torch.zeros_like(clean), clean, clean.to(torch.bfloat16)):
        scores = scores_of(auditor, (clean, sent, labels))
        assert torch.isfinite(scores.linear).all()
        assert torch.isfinite(scores.likelihood).all()


def test_the_axis_is_the_unit_difference_of_class_means() -> None:
    clean, _, labels = next(batch_maker(noise_everywhere))
    x, positive = clean.double().numpy(), labels.numpy() == 1
    expected = x[positive].mean(axis=0) - x[~positive].mean(axis=0)
    axis = class_axis(clean, labels == 1)
    assert axis is not None
    np.testing.assert_allclose(axis, expected / np.linalg.norm(expected), atol=1e-6)  # of float32 entries


@pytest.mark.parametrize(
    ("clean", "labels"),
    [
        (torch.eye(3), torch.zeros(3)),
        (torch.eye(3), torch.ones(3)),
        (torch.zeros(3, 2), torch.tensor([0.0, 1.0, 1.0])),
        (torch.ones(4, 2), torch.tensor([0.0, 1.0, 1.0, 0.0])),
    ],
)
def test_where_there_is_no_difference_of_means_the_step_is_undefined_and_teaches_nothing(
    clean: Tensor, labels: Tensor
) -> None:
    audit = Audit()
    before = audit.auditor.state_dict()
    audit.see(clean, clean, labels, torch.arange(clean.shape[0]) - 7)
    for summary in audit.summaries.values():
        assert (summary.steps, summary.undefined) == (0, 1)
        assert math.isnan(summary.accumulated_auc)
    assert math.isnan(audit.detection_error)
    assert math.isnan(audit.worst)
    after = audit.auditor.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def wrong(scores: Tensor, labels: Tensor) -> float:
    called, positive = scores.numpy() > 0, labels.numpy() == 1
    return float((called[~positive].mean() + (1 - called[positive].mean())) / 2)


def test_detection_error_is_the_smaller_of_both_means_over_the_steps_with_a_fit() -> None:
    batches = take(batch_maker(noise_everywhere, seed=3), 12)
    audit, auditor = Audit(), Auditor()
    errors = []
    for number, (clean, sent, labels) in enumerate(batches):
        audit.see(clean, sent, labels, None)
        scores = scores_of(auditor, (clean, sent, labels))
        assert scores.fitted == (number > 0)
        if scores.fitted:
            errors.append([wrong(scores.linear, labels), wrong(scores.likelihood, labels)])
            assert audit.detection_error == pytest.approx(min(np.mean(errors, axis=0)), abs=1e-12)
        else:
            assert math.isnan(audit.detection_error)
    assert 0.0 < audit.detection_error < 0.4


def test_which_attack_counts_is_decided_for_the_run_and_never_per_batch() -> None:
    """Each attack is right in every other step: the smaller error of each step would make a perfect attacker."""
    labels = torch.tensor([0.0, 1.0])
    right, turned = torch.tensor([-1.0, 1.0]), torch.tensor([1.0, -1.0])
    script = iter(
        [
            AuditScores(right, right, fitted=False),  # does not count
            AuditScores(right, turned, fitted=True),
            AuditScores(turned, right, fitted=True),
            AuditScores(right, turned, fitted=True),
            AuditScores(turned, right, fitted=True),
        ]
    )
    audit = Audit()
    audit.auditor = lambda *_, **__: next(script)  # type: ignore[assignment]
    for _ in range(5):
        audit.see(torch.eye(2), torch.eye(2), labels, None)
    assert audit.detection_error == 0.5


def test_scores_at_the_threshold_are_called_negative() -> None:
    audit = Audit()
    audit.auditor = lambda *_, **__: AuditScores(torch.zeros(3), torch.zeros(3), fitted=True)  # type: ignore[assignment]
    audit.see(torch.eye(3), torch.eye(3), torch.tensor([0, 1, 1]), None)
    assert audit.detection_error == 0.5


def test_the_worst_is_the_largest_figure_of_both_attacks() -> None:
    audit = Audit()
    for clean, sent, labels in take(batch_maker(marked_by_variance), 30):
        audit.see(clean, sent, labels, torch.arange(ROWS) * -3)
    linear, likelihood = (audit.summaries[f"auditor-{name}"] for name in ("linear", "likelihood"))
    assert audit.worst == max(
        linear.worst_auc, linear.worst_accumulated_auc, likelihood.worst_auc, likelihood.worst_accumulated_auc
    )
    assert likelihood.auc > 0.9 > linear.worst_auc
    assert audit.seconds > 0.0


@pytest.mark.parametrize("at", [0, 1, 6])
def test_an_audit_from_a_checkpoint_goes_on_alike(tmp_path: Path, at: int) -> None:
    batches = take(batch_maker(noise_everywhere), 14)
    ids = torch.arange(ROWS) * 2**40 - 5

    def show(audit: Audit, some: list[Batch]) -> None:
        for batch in some:
            audit.see(*batch, ids)

    straight, first, second = Audit(), Audit(), Audit()
    show(straight, batches)
    show(first, batches[:at])
    state = checkpoint.load(checkpoint.save(tmp_path, at, {"audit": first.state_dict()}))["audit"]
    show(first, batches[:3])  # the state must not follow what it was taken from
    second.load_state_dict(state)
    show(second, batches[at:])
    # Without predictions there are no log ratios to judge, and their figures are NaN.
    assert repr(second.summaries) == repr(straight.summaries)
    assert second.detection_error == straight.detection_error
    assert all(
        torch.equal(left, right)
        for left, right in zip(
            second.auditor.state_dict().values(), straight.auditor.state_dict().values(), strict=True
        )
    )


def test_a_state_that_was_taken_or_given_is_not_changed_by_later_steps() -> None:
    generator = torch.Generator().manual_seed(7)
    labels = (torch.arange(16) % 2).float()
    gradient = torch.randn(16, 3, generator=generator)
    first, second = Auditor(), Auditor()
    first(gradient, gradient, labels)
    state = first.state_dict()
    kept = {name: value.clone() for name, value in state.items()}
    second.load_state_dict(state)
    for auditor in (first, second):
        auditor(gradient, gradient, labels)
    assert all(torch.equal(state[name], kept[name]) for name in kept)


def test_behind_a_label_defense_the_auditor_reads_the_answers_and_no_label_of_its_own_axis() -> None:
    """Labels that nothing tells: what is found above the answers' AUC, 1 − π, the auditor brought along itself."""
    random = torch.Generator().manual_seed(0)
    labels, columns = (torch.rand(1024, generator=random) < 0.1).float(), torch.randn(1024, 16, generator=random)
    with PartyRandom(0):
        model = SplitModel(nn.Identity(), nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)))
    columns.requires_grad_()
    model.defend(MemoisedResponse(flip=0.4), noise_seed_for_experiments=0)
    with model.cut.audit() as audit:
        for _ in range(4):
            for rows in torch.randperm(1024, generator=random).split(64):
                truth = labels[rows]
                outputs = model(columns[rows], labels=truth, ids=rows).squeeze(1)
                targets = model.targets(truth, ids=rows)
                functional.binary_cross_entropy_with_logits(outputs, targets).backward()

    found = audit.judge(torch.arange(1024), labels, torch.rand(1024, generator=random))

    # Over 102 positives an AUC has a standard error of .03; with axes between the true classes .75 was found.
    assert audit.worst < 0.6 + 3 * 0.03
    assert found.auc < 0.6 + 3 * 0.03
    assert audit.linear.summary().accumulated_auc > 0.6 - 3 * 0.03


@pytest.mark.parametrize("batch", [8, 64])
@pytest.mark.parametrize(
    "common", [pytest.param(0.0, marks=pytest.mark.slow(reason="rows without a common part")), 0.3]
)
def test_a_label_is_not_found_where_only_the_auditor_has_brought_it(batch: int, common: float) -> None:
    """Each record's row is its own and knows no label: an axis to which its own has contributed would read .9."""
    random = torch.Generator().manual_seed(0)
    rows = functional.normalize(torch.randn(480, 32, generator=random), dim=1) + common
    labels = (torch.rand(480, generator=random) < 0.2).float()
    audit = Audit()
    for _ in range(3):
        for ids in torch.randperm(480, generator=random).split(batch):
            known = LabelGradients(
                outputs=torch.full((len(ids), 1), 0.2).logit(),
                targets=labels[ids],
                values=(0.0, 1.0),
                classes=2,
                loss=mean_cross_entropy,
                jacobian=rows[None, ids],
            )
            audit.see(
                (0.2 - labels)[ids, None] * rows[ids] / len(ids), rows[ids], labels[ids], ids, label_gradients=known
            )
    positives = int(labels.sum())
    error = math.sqrt(481 / (12 * positives * (480 - positives)))  # of Mann and Whitney's statistic
    for keeper in audit.keepers.values():
        assert abs(keeper.accumulated_auc - 0.5) < 4.5 * error
    assert audit.detection_error > 0.5 - 4.5 * 0.5 / math.sqrt(3 * positives)


class ByColumns:
    """Sends each record what follows from its id alone."""

    crossing = "gradient"

    def __call__(self, gradient: Tensor, secrets: Any, /) -> Tensor:
        directions = torch.randn(400, gradient.shape[1], generator=torch.Generator().manual_seed(5))
        return directions[secrets.ids].to(gradient)


@pytest.mark.parametrize("batch", [pytest.param(8, marks=pytest.mark.slow(reason="a hundred small batches")), 64])
def test_nor_below_a_deep_top_whose_clean_rows_point_anywhere(batch: int) -> None:
    torch.manual_seed(0)
    columns, labels = torch.randn(400, 6), (torch.rand(400) < 0.3).float()
    model = SplitModel(nn.Linear(6, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    model.bottoms["passive"].requires_grad_(False)
    with model.cut.defend(ByColumns()), model.cut.audit() as audit:
        for _ in range(2):
            for ids in torch.randperm(400).split(batch):
                outputs = model(columns[ids].requires_grad_(), labels=labels[ids], ids=ids)
                mean_cross_entropy(outputs, labels[ids]).backward()
    for keeper in audit.keepers.values():
        assert abs(keeper.accumulated_auc - 0.5) < 4.5 * math.sqrt(401 / (12 * 120 * 280))


def test_the_expected_axis_is_that_of_means_weighted_by_predictions() -> None:
    random = torch.Generator().manual_seed(1)
    outputs, jacobian = torch.randn(30, 1, generator=random), torch.randn(1, 30, 5, generator=random)
    labels = (torch.rand(30, generator=random) < 0.5).float()
    known = LabelGradients(
        outputs=outputs, targets=labels, values=(0.0, 1.0), classes=2, loss=mean_cross_entropy, jacobian=jacobian
    )
    chosen = torch.arange(30) % 3 > 0
    p, rows = torch.sigmoid(outputs.double())[:, 0].numpy(), jacobian[0].double().numpy()
    p, rows = p[chosen.numpy()], rows[chosen.numpy()]
    means = [np.average((p - y)[:, None] * rows, axis=0, weights=w) for y, w in ((0, 1 - p), (1, p))]
    expected = means[1] - means[0]
    found = expected_axis(known, chosen)
    assert found is not None
    # The Jacobian is float32: 2⁻²⁴ for each of some twenty products.
    np.testing.assert_allclose(found.numpy(), expected / np.linalg.norm(expected), atol=1e-5)
    assert expected_axis(known, torch.zeros(30, dtype=torch.bool)) is None
    flat = LabelGradients(
        outputs=outputs, targets=labels, values=(0.0, 1.0), classes=2, loss=mean_cross_entropy, jacobian=0 * jacobian
    )
    assert expected_axis(flat) is None
