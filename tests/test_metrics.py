"""Rank statistics and errors against scikit-learn, brute force and numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from sklearn.metrics import roc_auc_score
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.metrics import (
    auc_interval,
    chance_auc,
    chance_of_largest,
    detection_error,
    leak_auc,
    limit_of_largest,
    macro_auc,
    matched_auc,
    oriented,
    reconstruction_mse,
    tied_leak_auc,
)

# Few distinct values make many ties.
few_values = st.integers(-3, 3).map(float)
any_values = st.floats(-(2.0**100), 2.0**100, width=32)


def rows_of(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[float, int]]]:
    """Scores with labels, both classes present."""
    rows = st.lists(st.tuples(values, st.integers(0, 1)), min_size=2, max_size=40)
    return rows.filter(lambda pairs: len({label for _, label in pairs}) == 2)


def tensors(rows: list[tuple[float, int]]) -> tuple[Tensor, Tensor]:
    scores, labels = zip(*rows, strict=True)
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(labels)


@given(st.one_of(rows_of(few_values), rows_of(any_values)))
def test_leak_auc_is_scikit_learns(rows: list[tuple[float, int]]) -> None:
    scores, labels = tensors(rows)
    # Both are ratios of counts below 40²: only the last division rounds.
    assert leak_auc(scores, labels) == pytest.approx(roc_auc_score(labels.numpy(), scores.numpy()), abs=1e-12)


@given(rows_of(few_values))
def test_leak_auc_is_the_share_of_pairs_won_with_ties_counting_half(rows: list[tuple[float, int]]) -> None:
    scores, labels = tensors(rows)
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels == 1].tolist() for n in scores[labels == 0].tolist()]
    assert leak_auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


@given(rows_of(few_values), st.randoms(use_true_random=False))
def test_leak_auc_depends_on_ranks_only_and_turns_with_the_sign(rows: list[tuple[float, int]], random: object) -> None:
    scores, labels = tensors(rows)
    auc = leak_auc(scores, labels)
    assert leak_auc(torch.exp(5 * scores), labels) == auc
    assert leak_auc(-scores, labels) == pytest.approx(1 - auc, abs=1e-12)
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert leak_auc(scores[order], labels[order]) == auc


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("truth", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16], ids=str)
def test_leak_auc_takes_every_dtype(dtype: torch.dtype, truth: torch.dtype) -> None:
    random = torch.Generator().manual_seed(1)
    scores = torch.randint(0, 9, (80,), generator=random)
    if dtype.is_floating_point:
        scores = scores / 8  # exact in each of them
    labels = torch.randint(0, 2, (80,), generator=random)
    expected = roc_auc_score(labels.numpy(), scores.numpy())
    assert leak_auc(scores.to(dtype)[:, None], labels.to(truth)) == pytest.approx(expected, abs=1e-12)


def test_leak_auc_ranks_norms_far_above_one_and_next_to_each_other() -> None:
    """A library that squashes scores would find ties here."""
    labels = torch.tensor([0, 1, 0, 1])
    big = torch.tensor([1e30, 1.1e30, 1.05e30, 1.2e30])
    assert leak_auc(big, labels) == 1.0
    close = torch.tensor([1.0, 1.0 + 2**-52, 1.0, 1.0 + 2**-51], dtype=torch.float64)
    assert leak_auc(close, labels) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_whose_sum_overflows_or_cancels_are_ranked_without_a_warning(dtype: torch.dtype) -> None:
    peak = torch.finfo(dtype).max
    labels = torch.tensor([0, 1, 0, 1])
    assert leak_auc(torch.tensor([1.0, peak, 2.0, peak], dtype=dtype), labels) == 1.0
    assert leak_auc(torch.tensor([-math.inf, math.inf, 0.0, 1.0], dtype=dtype), labels) == 1.0


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_no_auc_and_no_detection_error(label: int) -> None:
    labels = torch.full((3,), label)
    assert math.isnan(leak_auc(torch.arange(3.0), labels))
    assert math.isnan(detection_error(torch.arange(3.0), labels, threshold=0.5))
    assert math.isnan(leak_auc(torch.zeros(0), torch.zeros(0)))


@pytest.mark.parametrize("measure", [leak_auc, lambda scores, labels: detection_error(scores, labels, threshold=0.0)])
@pytest.mark.parametrize(
    ("scores", "labels", "says"),
    [
        ([0.0, math.nan, 1.0], [0, 1, 1], "1 of 3 scores are NaN"),
        ([0.0, 1.0], [0, 1, 1], "2 scores and 3 labels"),
        ([0.0, 1.0], [-1, 1], "labels must be 0 or 1"),
        ([0.0, 1.0], [0.0, 0.5], "labels must be 0 or 1"),
        ([0.0, 1.0, 2.0], [0.0, 1.0, math.nan], "labels must be 0 or 1"),
    ],
)
def test_nonsense_is_refused(
    measure: Callable[[Tensor, Tensor], float], scores: list[float], labels: list[float], says: str
) -> None:
    with pytest.raises(ArgumentError, match=says):
        measure(torch.tensor(scores), torch.tensor(labels))


@given(rows_of(few_values), st.sampled_from([-3.5, -1.0, 0.0, 0.5, 3.0]))
def test_detection_error_is_half_of_both_error_rates_by_counting(rows: list[tuple[float, int]], at: float) -> None:
    scores, labels = tensors(rows)
    false_alarms = sum(score > at and label == 0 for score, label in rows) / sum(label == 0 for _, label in rows)
    misses = sum(not score > at and label == 1 for score, label in rows) / sum(label == 1 for _, label in rows)
    # A sum of two ratios of small counts: a few roundings.
    assert detection_error(scores, labels, threshold=at) == pytest.approx((false_alarms + misses) / 2, abs=1e-12)


def test_detection_error_calls_positive_strictly_above_the_threshold() -> None:
    labels = torch.tensor([0, 1])
    assert detection_error(torch.tensor([0.0, 1.0]), labels, threshold=0.0) == 0.0
    assert detection_error(torch.tensor([0.0, 1.0]), labels, threshold=1.0) == 0.5
    assert detection_error(torch.tensor([1.0, 0.0]), labels, threshold=0.0) == 1.0


def test_reconstruction_mse_is_the_mean_over_all_entries_in_float64() -> None:
    random = np.random.default_rng(3)
    estimate, truth = random.normal(size=(2, 7, 3))
    found = reconstruction_mse(torch.from_numpy(estimate).float(), torch.from_numpy(truth))
    assert found == pytest.approx(np.mean((estimate.astype(np.float32).astype(np.float64) - truth) ** 2), rel=1e-12)
    # In float32 the squares would overflow.
    assert reconstruction_mse(torch.full((2,), 1e30), torch.zeros(2)) == pytest.approx(1e60, rel=1e-6)


@pytest.mark.parametrize(
    ("estimate", "truth"),
    [
        (torch.zeros(3, 1), torch.zeros(3)),  # would broadcast to (3, 3)
        (torch.zeros(0, 2), torch.zeros(0, 2)),
        (torch.tensor([math.nan]), torch.zeros(1)),
        (torch.zeros(1), torch.tensor([math.inf])),
    ],
)
def test_reconstruction_mse_refuses_what_has_none(estimate: Tensor, truth: Tensor) -> None:
    with pytest.raises(ArgumentError):
        reconstruction_mse(estimate, truth)


def _matched_by_loop(scores: np.ndarray, labels: np.ndarray, predictions: np.ndarray, groups: int) -> float:
    borders = [np.quantile(predictions, k / groups) for k in range(1, groups)]
    won = pairs = 0.0
    for i, j in itertools.product(np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)):
        if sum(predictions[i] >= b for b in borders) == sum(predictions[j] >= b for b in borders):
            won += (scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j])
            pairs += 1
    return won / pairs


@pytest.mark.parametrize("groups", [1, 4, 10])
def test_matched_auc_counts_pairs_within_groups(groups: int) -> None:
    generator = np.random.default_rng(groups)
    labels = (generator.random(120) < 0.4).astype(float)
    predictions = np.round(generator.normal(size=120) + labels, 1)  # with ties
    scores = np.round(generator.normal(size=120) + labels, 1)

    found = matched_auc(*map(torch.from_numpy, (scores, labels, predictions)), groups=groups)

    assert found == pytest.approx(_matched_by_loop(scores, labels, predictions, groups), abs=1e-12)


def test_matched_auc_counts_pairs_that_are_alike_in_two_predictions() -> None:
    generator = np.random.default_rng(3)
    labels = (generator.random(120) < 0.4).astype(float)
    both = np.round(generator.normal(size=(120, 2)) + labels[:, None], 1)
    scores = np.round(generator.normal(size=120) + labels, 1)

    def group(values: np.ndarray, value: float) -> int:
        return sum(value >= np.quantile(values, k / 3) for k in (1, 2))

    first = np.array([group(both[:, 0], value) for value in both[:, 0]])
    second = np.array([group(both[first == first[i], 1], both[i, 1]) for i in range(120)])
    cells = 3 * first + second
    alike = [(i, j) for i in np.flatnonzero(labels == 1) for j in np.flatnonzero(labels == 0) if cells[i] == cells[j]]
    won = [(scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]) for i, j in alike]

    found = matched_auc(*map(torch.from_numpy, (scores, labels, both)), groups=9)

    assert found == pytest.approx(np.mean(won), abs=1e-12)


def test_matched_auc_of_the_prediction_itself_is_near_one_half() -> None:
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randn(20_000, generator=generator)
    labels = (torch.rand(20_000, generator=generator) < torch.sigmoid(2 * prediction)).float()

    assert leak_auc(prediction, labels) > 0.8
    assert matched_auc(prediction, labels, prediction) == pytest.approx(0.5, abs=0.03)
    assert matched_auc(labels, labels, prediction) == 1.0
    assert math.isnan(matched_auc(prediction, torch.ones(20_000), prediction))


@pytest.mark.parametrize("groups", [0, -1])
def test_matched_auc_needs_a_group(groups: int) -> None:
    with pytest.raises(ArgumentError, match="groups must be at least 1"):
        matched_auc(torch.zeros(2), torch.tensor([0.0, 1.0]), torch.zeros(2), groups=groups)


def test_matched_auc_needs_a_prediction_per_score() -> None:
    with pytest.raises(ArgumentError, match="expected one score per label"):
        matched_auc(torch.zeros(2), torch.tensor([0.0, 1.0]), torch.zeros(3))


# --- records that are left out, and orientation


def by_pairs(scores: list[float], labels: list[int]) -> float:
    """The definition: left-out records answer the others' mean, and every pair is looked at."""
    known = [score for score in scores if not math.isnan(score)]
    mean = math.fsum(known) / len(known) if known else 0.0
    given = [mean if math.isnan(score) else score for score in scores]
    pairs = [
        (p, n) for p, a in zip(given, labels, strict=True) if a for n, b in zip(given, labels, strict=True) if not b
    ]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


@given(rows_of(few_values), st.integers(0, 2**40 - 1))
def test_the_tied_auc_is_that_of_all_pairs(rows: list[tuple[float, int]], pattern: int) -> None:
    scores, labels = tensors(rows)
    # Powers of two as numbers of scored records: their mean is exact, so that ties are ties in both.
    scored = [row for row in range(len(rows)) if pattern >> row & 1]
    scored = scored[: 1 << (len(scored).bit_length() - 1)] if scored else []
    some = torch.full_like(scores, math.nan)
    some[scored] = scores[scored]
    assert tied_leak_auc(some, labels) == pytest.approx(by_pairs(some.tolist(), labels.tolist()), abs=1e-12)
    if len(scored) == len(rows):
        assert tied_leak_auc(some, labels) == leak_auc(some, labels)


def test_leaving_out_the_hard_records_gains_nothing_and_hides_nothing() -> None:
    """A score that is sure of some records and blind on others: whether it abstains on those or not is all one."""
    random = torch.Generator().manual_seed(3)
    labels = (torch.rand(20_000, generator=random) < 0.5).long()
    sure = torch.rand(20_000, generator=random) < 0.24
    scores = torch.where(sure, 3.0 * (2 * labels - 1), 0.0) + torch.randn(20_000, generator=random)
    abstaining = scores.masked_fill(~sure, math.nan)
    assert leak_auc(scores, labels) == pytest.approx(0.71, abs=0.01)
    assert leak_auc(abstaining[sure], labels[sure]) > 0.98  # the figure that abstaining moves
    # .02 is three standard errors; what the others' noise costs the one who does not abstain is .0-.02 too.
    assert tied_leak_auc(abstaining, labels) == pytest.approx(leak_auc(scores, labels), abs=0.02)
    # Every pair with a left-out record as one half would make a leak of .71 look harmless.
    assert 0.5 + 0.24**2 * 0.48 < 0.53


def test_who_reads_a_tenth_of_the_labels_and_no_others_has_595() -> None:
    labels = torch.tensor([0, 1] * 100)
    scores = torch.full((200,), math.nan)
    scores[:20] = labels[:20].float()
    assert tied_leak_auc(scores, labels) == pytest.approx(0.5 + 0.5 * (0.1 + 0.1 - 0.01), abs=1e-12)


def test_left_out_records_tie_with_scores_that_are_all_equal() -> None:
    """The rounded mean of .1, .1, .1 is another number: it must not rank them."""
    scores = torch.tensor([0.1, 0.1, 0.1, math.nan, math.nan, math.nan], dtype=torch.float64)
    assert tied_leak_auc(scores, torch.tensor([1, 1, 1, 0, 0, 0])) == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("huge", [1e30, 3e38])
def test_one_huge_score_and_one_left_out_do_not_make_the_others_equal(
    dtype: torch.dtype, sign: int, huge: float
) -> None:
    """In float64 all of 1 to 40 are the same number, relative to a mean of 10^28: they would tie, at one half."""
    scores = torch.cat([torch.arange(1, 41), torch.tensor([huge, math.nan])]).to(dtype)
    labels = torch.tensor([0] * 20 + [1] * 20 + [1, 0])
    # 21 positives above 20 negatives each; the left-out negative lies below the huge score only.
    exact = (21 * 20 + 1) / (21 * 21)
    assert tied_leak_auc(sign * scores, labels) == pytest.approx(exact if sign > 0 else 1 - exact, abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.7e308, 1.0, 1.7e308, -2.0, math.nan], 3.5 / 6),  # the sum overflows: the mean is 8.5e307
        ([math.inf, -1.0, -math.inf, -2.0, math.nan], 5 / 6),  # infinities cancel: the mean is -3/4
        ([math.inf, 3.0, 1.0, -2.0, math.nan], 5 / 6),
    ],
)
def test_the_mean_of_the_largest_numbers_is_one_too(scores: list[float], expected: float) -> None:
    found = tied_leak_auc(torch.tensor(scores, dtype=torch.float64), torch.tensor([1, 1, 0, 0, 0]))
    assert found == pytest.approx(expected, abs=1e-12)


def test_nothing_scored_is_one_half_and_one_class_is_undefined() -> None:
    nothing = torch.full((4,), math.nan)
    assert tied_leak_auc(nothing, torch.tensor([0, 1, 0, 1])) == 0.5
    assert math.isnan(tied_leak_auc(nothing, torch.ones(4)))
    with pytest.raises(ArgumentError, match="labels must be 0 or 1"):
        tied_leak_auc(torch.zeros(2), torch.tensor([0, 2]))


@pytest.mark.parametrize("sizes", [(56, 57), (5, 5), (5, 200), (10, 300), (400, 40)])
def test_what_orientation_alone_gives_is_what_simulation_finds(sizes: tuple[int, int]) -> None:
    positives, negatives = sizes
    random = np.random.default_rng(sum(sizes))
    draws = min(20_000, 2_000_000 // sum(sizes))
    ranks = np.argsort(np.argsort(random.random((draws, positives + negatives)), axis=1), axis=1)
    sums = ranks[:, :positives].sum(axis=1) - positives * (positives - 1) / 2
    aucs = sums / (positives * negatives)
    # The mean's standard error is .0008 at most (5 of 5: a spread of .11 over √20 000); .005 is the promise.
    assert chance_auc(positives, negatives) == pytest.approx(np.maximum(aucs, 1 - aucs).mean(), abs=0.005)
    assert chance_auc(positives, negatives) == chance_auc(negatives, positives)


def test_ties_leave_less_to_chance() -> None:
    random = np.random.default_rng(0)
    # Of two values, 25 records each, the AUC follows from how many positives have the larger one.
    upper = random.hypergeometric(20, 30, 25, size=2000)
    aucs = 0.5 + (upper / 20 - (25 - upper) / 30) / 2
    assert np.maximum(aucs, 1 - aucs).mean() < chance_auc(20, 30)


def test_chance_where_there_is_little_or_nothing() -> None:
    assert round(chance_auc(56, 57), 2) == 0.54
    assert chance_auc(1, 1) <= 1.0
    assert math.isnan(chance_auc(0, 9))
    assert math.isnan(chance_auc(9, 0))


def test_an_auc_is_turned_round_where_that_reads_better() -> None:
    assert (oriented(0.3), oriented(0.5), oriented(1.0)) == (0.7, 0.5, 1.0)
    assert math.isnan(oriented(math.nan))


def delong_by_pairs(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """AUC and DeLong's variance from the whole matrix of pairs."""
    positives, negatives = scores[labels == 1][:, None], scores[labels == 0][None]
    won = (positives > negatives).double() + 0.5 * (positives == negatives).double()
    of_positives, of_negatives = won.mean(dim=1), won.mean(dim=0)
    variance = of_positives.var() / of_positives.numel() + of_negatives.var() / of_negatives.numel()
    return won.mean().item(), variance.item()


@pytest.mark.parametrize("ties", [False, True])
def test_the_interval_is_delongs_on_the_logit_scale(ties: bool) -> None:
    random = torch.Generator().manual_seed(3)
    scores = torch.randn(90, generator=random, dtype=torch.float64)
    labels = torch.randint(0, 2, (90,), generator=random)
    scores = scores + 0.8 * labels
    scores = scores.round() if ties else scores
    auc, variance = delong_by_pairs(scores, labels)
    half = 1.959963984540054 * math.sqrt(variance) / (auc * (1 - auc))
    expected = [1 / (1 + math.exp(-(math.log(auc / (1 - auc)) + side * half))) for side in (-1, 1)]
    assert auc_interval(scores, labels) == pytest.approx(expected, abs=1e-12)
    assert auc_interval(-scores, labels) == pytest.approx([1 - expected[1], 1 - expected[0]], abs=1e-12)
    assert auc_interval(torch.exp(scores), labels) == auc_interval(scores, labels)


def test_the_interval_is_about_that_of_a_bootstrap() -> None:
    random = np.random.default_rng(5)
    labels = np.arange(400) % 2
    scores = random.normal(size=400) + 0.5 * labels
    aucs = []
    for _ in range(1000):
        rows = random.integers(0, 400, 400)
        aucs.append(leak_auc(torch.from_numpy(scores[rows]), torch.from_numpy(labels[rows])))
    low, high = auc_interval(torch.from_numpy(scores), torch.from_numpy(labels))
    # Ends of a percentile bootstrap of 1000 have a standard error of about a tenth of the half width, .055.
    assert np.quantile(aucs, [0.025, 0.975]) == pytest.approx([low, high], abs=0.015)


SHAPES: dict[str, tuple[Callable[..., np.ndarray], float]] = {
    # Normal, .5 and Phi(.358 / sqrt 2); answers, one half and a half of the difference of their rates; and positives
    # on both sides of all negatives, where the variance of Hanley and McNeil would be a third too small.
    "nothing": (lambda random, labels: random.normal(size=labels.size), 0.5),
    "normal": (lambda random, labels: random.normal(size=labels.size) + 0.358 * labels, 0.59994),
    "answers": (lambda random, labels: (random.random(labels.size) < 0.05 + 0.2 * labels).astype(float), 0.6),
    "two-sided": (lambda random, labels: np.where(labels, random.choice([-9.0, 9.0], labels.size), 0.0), 0.5),
}


@pytest.mark.parametrize("records", [60, 300])
@pytest.mark.parametrize(("draw", "auc"), SHAPES.values(), ids=SHAPES)
def test_the_interval_covers_the_auc_as_often_as_it_says(
    draw: Callable[..., np.ndarray], auc: float, records: int
) -> None:
    random = np.random.default_rng(records)
    covered = 0
    for _ in range(800):
        labels = random.integers(0, 2, records)
        low, high = auc_interval(torch.from_numpy(draw(random, labels)), torch.from_numpy(labels))
        covered += low <= auc <= high
    # Three standard errors of a share of .95 in 800 draws, and what a normal limit is off by at 60 records.
    assert abs(covered / 800 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 800) + 0.01


def test_where_classes_do_not_overlap_or_all_scores_tie_the_interval_is_no_point() -> None:
    labels = torch.arange(40) % 2
    low, high = auc_interval(labels.double(), labels)
    assert high == 1.0
    # Root of (1 - A)^2 = z^2 v(A): solved by scipy, with Newcombe's formula written out once more.
    z2, pairs, others = 3.841458820694124, 400, 19

    def gap(true: float) -> float:
        spread = 1 + others * (1 - true) / (2 - true) + others * true / (1 + true)
        return (1 - true) ** 2 - z2 * true * (1 - true) * spread / pairs

    assert low == pytest.approx(optimize.brentq(gap, 0.5, 1 - 1e-9), abs=1e-9)
    assert auc_interval(-labels.double(), labels) == pytest.approx((0.0, 1 - low), abs=1e-12)
    low, high = auc_interval(torch.ones(40), labels)
    assert 0.3 < low < 0.5 < high < 0.7
    assert low == pytest.approx(1 - high, abs=1e-12)
    one = auc_interval(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 0]))
    assert 0.0 <= one[0] < 0.5 < one[1] <= 1.0
    assert all(map(math.isnan, auc_interval(torch.ones(3), torch.ones(3))))


@given(rows_of(few_values))
def test_the_interval_holds_its_estimate_and_grows_with_the_level(rows: list[tuple[float, int]]) -> None:
    scores, labels = tensors(rows)
    auc = leak_auc(scores, labels)
    inner, outer = auc_interval(scores, labels, level=0.5), auc_interval(scores, labels, level=0.99)
    tiny = 1e-12
    assert 0.0 <= outer[0] <= inner[0] + tiny <= auc + 2 * tiny
    assert auc - 2 * tiny <= inner[1] - tiny <= outer[1] <= 1.0


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, math.nan])
def test_a_level_that_is_none_is_refused(level: float) -> None:
    with pytest.raises(ArgumentError, match="level must be in"):
        auc_interval(torch.ones(4), torch.tensor([0, 1, 0, 1]), level=level)


def test_macro_auc_is_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    labels = generator.choice(5, 400, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    scores = generator.integers(1, 9, (400, 5)) + 3.0 * np.eye(5)[labels]  # whole numbers: many ties
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    expected = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert macro_auc(torch.from_numpy(probabilities), torch.from_numpy(labels)) == pytest.approx(expected, abs=1e-12)


def test_macro_auc_of_two_classes_is_the_auc_and_of_one_is_none() -> None:
    scores, labels = torch.rand(50), torch.arange(50) % 2
    both = torch.stack([-scores, scores], dim=1)
    assert macro_auc(both, labels) == pytest.approx(leak_auc(scores, labels), abs=1e-12)
    assert math.isnan(macro_auc(both, torch.zeros(50)))
    with pytest.raises(ArgumentError, match="classes from 0 to 1"):
        macro_auc(both, labels + 1)
    with pytest.raises(ArgumentError, match="a score for each of k classes"):
        macro_auc(scores, torch.zeros(50))


def test_the_largest_of_figures_that_know_nothing() -> None:
    """10,000 draws of twelve independent AUCs of 40 and 60 records, normal as chance_auc takes them."""
    chance = chance_auc(40, 60)
    drawn = np.abs(np.random.default_rng(0).normal(0.0, math.sqrt(101 / (12 * 40 * 60)), (10_000, 12))).max(axis=1)
    assert chance_of_largest(chance, 1) == pytest.approx(chance, abs=1e-6)
    assert chance_of_largest(chance, 12) == pytest.approx(0.5 + drawn.mean(), abs=0.002)


@pytest.mark.parametrize("figures", [1, 7])
def test_the_largest_of_several_that_know_nothing_stays_below_its_limit_in_95_of_100_runs(figures: int) -> None:
    """By drawing: 2 000 runs, whose share has a standard error of .005."""
    generator = np.random.default_rng(0)
    positive = np.arange(100) < 40
    ranks = generator.random((2000, figures, 100)).argsort(axis=2).argsort(axis=2) + 1
    aucs = (ranks[:, :, positive].sum(axis=2) - 40 * 41 / 2) / (40 * 60)
    limit = limit_of_largest(chance_auc(40, 60), figures)
    assert np.mean(np.maximum(aucs, 1.0 - aucs).max(axis=1) < limit) == pytest.approx(0.95, abs=0.02)
