from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.attacks import LabelSumAttack, label_sum, recover_labels
from splitvfl.attacks.recover_labels import (
    Whole,
    _boxed,
    _lattice,
    _least_squares,
    _met_in_the_middle,
    _problem,
    _SumProblem,
)
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View
from splitvfl.learning.losses import Approximation
from splitvfl.learning.sigmoid_coefficients import APPROXIMATIONS
from splitvfl.models import gradient_scale, sigmoid_coefficients

Method = Callable[[_SumProblem], Iterator[Whole]]


def random_case(records: int, columns: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(records, columns, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, 2, (records,), generator=generator, dtype=torch.float64) * 2 - 1
    return features, labels


def all_solutions(features: Tensor, total: Tensor, tolerance: float) -> list[tuple[int, ...]]:
    """Try all 2^s labels, one by one."""
    rows, wanted = features.tolist(), total.tolist()
    return [
        signs
        for signs in itertools.product((-1, 1), repeat=len(rows))
        if all(
            abs(math.fsum(sign * row[column] for sign, row in zip(signs, rows, strict=True)) - wanted[column])
            <= tolerance
            for column in range(len(wanted))
        )
    ]


@pytest.mark.parametrize(
    ("records", "columns"),
    # One by each method: least squares, the box, the lattice, two halves; then the sizes that are promised.
    [
        (8, 8),
        (5, 9),
        (20, 12),
        (200, 150),
        (12, 2),
        (30, 1),
        (40, 1),
        (60, 4),
        (60, 8),
        pytest.param(128, 16, marks=pytest.mark.slow(reason="the largest size that is promised")),
    ],
)
def test_labels_follow_from_their_sum(records: int, columns: int) -> None:
    features, labels = random_case(records, columns)
    assert torch.equal(recover_labels(features, features.T @ labels), labels)


@pytest.mark.parametrize(("records", "columns"), [(12, 2), (40, 6), (64, 16)])
def test_labels_follow_in_single_precision(records: int, columns: int) -> None:
    features, labels = random_case(records, columns, 1, torch.float32)
    assert torch.equal(recover_labels(features, features.T @ labels.float()), labels)


@pytest.mark.parametrize(("records", "columns"), [(12, 2), (30, 4), (64, 16)])
def test_labels_follow_from_sums_in_fixed_point(records: int, columns: int) -> None:
    features, labels = random_case(records, columns, 2)
    step = 2.0**-24
    rounded = torch.round(features.T @ labels / step) * step
    assert torch.equal(recover_labels(features, rounded, tolerance=step / 2), labels)
    assert torch.equal(recover_labels(features, rounded, tolerance=torch.full((columns,), step)), labels)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10), st.integers(1, 4), st.integers(0, 10**6), st.booleans())
def test_it_finds_labels_exactly_where_trying_all_does(records: int, columns: int, seed: int, possible: bool) -> None:
    generator = np.random.default_rng(seed)
    # Few distinct values: identical rows, rows of zeros and several solutions come up.
    features = torch.from_numpy(generator.integers(-2, 3, (records, columns)).astype(float))
    labels = torch.from_numpy(generator.choice([-1.0, 1.0], records))
    total = features.T @ labels + (0 if possible else torch.from_numpy(generator.integers(-2, 3, columns)))
    solutions = all_solutions(features, total, 1e-9)
    if not solutions:
        with pytest.raises(ArgumentError, match="no labels"):
            recover_labels(features, total)
        return
    found = recover_labels(features, total)
    assert torch.equal(features.T @ found, total)
    decided = features.any(dim=1)
    assert torch.equal(found[decided].abs(), torch.ones(int(decided.sum())).double())
    assert not found[~decided].any()
    if len(solutions) == 1:
        assert tuple(found.tolist()) == solutions[0]


def often_repeated(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows that come up to five times, their labels, and each group's sum of labels."""
    counts = [1, 2, 1, 5, 1, 1, 3, 1, 1, 1, 2, 1, 1, 1]
    positives = [number % (count + 1) for number, count in enumerate(counts)]
    labels = [[1.0] * up + [-1.0] * (count - up) for up, count in zip(positives, counts, strict=True)]
    sums = torch.tensor([2 * up - count for up, count in zip(positives, counts, strict=True)])
    together = torch.tensor(list(itertools.chain(*labels)), dtype=torch.float64)
    return features.repeat_interleave(torch.tensor(counts), dim=0), together, sums


@pytest.mark.parametrize(
    ("method", "columns"), [(_least_squares, 14), (_boxed, 11), (_lattice, 2), (_met_in_the_middle, 2)]
)
def test_each_method_finds_them_alone_and_with_rows_that_come_often(method: Method, columns: int) -> None:
    features, labels = random_case(14, columns)
    repeated, theirs, sums = often_repeated(features)
    # Groups are in the order of their rows' values.
    order = np.lexsort(features.numpy().T[::-1])
    for rows, signs, expected in ((features, labels, labels), (repeated, theirs, sums)):
        problem = _problem(rows, rows.T @ signs, None)
        found = [each for each in method(problem) if problem.met_by(each)]
        assert len(found) >= 1
        assert found[0].tolist() == expected[order].tolist()


def test_identical_rows_share_their_positives_and_the_first_ones_get_them() -> None:
    features = torch.tensor([[1.5, 0.1], [0.3, -2.0], [1.5, 0.1], [0.0, 0.0], [1.5, 0.1]], dtype=torch.float64)
    labels = torch.tensor([-1.0, 1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    assert recover_labels(features, features.T @ labels).tolist() == [1.0, 1.0, -1.0, 0.0, -1.0]


def test_wide_ranges_of_columns_do_not_matter() -> None:
    features, labels = random_case(40, 4)
    scaled = features * torch.tensor([1e-9, 1.0, 1e9, 1e-3], dtype=torch.float64)
    assert torch.equal(recover_labels(scaled, scaled.T @ labels), labels)


@pytest.mark.parametrize("records", [6, 30, 50, 300])
def test_a_sum_of_no_labels_is_refused(records: int) -> None:
    features, labels = random_case(records, 4 if records < 300 else 250)
    with pytest.raises(ArgumentError, match=f"no labels of {records} records.*not all of one"):
        recover_labels(features, features.T @ (labels * torch.linspace(0.9, 1.1, records)))


def test_a_sum_that_is_too_coarse_is_refused() -> None:
    features, labels = random_case(30, 1)
    with pytest.raises(ArgumentError, match="carries about 10 bits, and 30 labels are 30: other labels give"):
        recover_labels(features, features.T @ labels, tolerance=0.01)


def test_the_refusal_of_coarse_sums_is_where_other_labels_give_them_too() -> None:
    features, labels = random_case(12, 2)
    for tolerance in (1e-6, 1e-3, 1.0):
        total = features.T @ labels
        many = len(all_solutions(features, total, tolerance))
        if tolerance == 1e-6:
            assert many == 1
            assert torch.equal(recover_labels(features, total, tolerance=tolerance), labels)
        elif tolerance == 1.0:
            assert many > 10
            with pytest.raises(ArgumentError, match="other labels give the same sum"):
                recover_labels(features, total, tolerance=tolerance)


@pytest.mark.parametrize(
    ("features", "total", "expected"),
    [
        (torch.ones(3), torch.ones(3), r"features \(s, d\)"),
        (torch.ones(3, 2), torch.ones(3), r"\(3, 2\) and \(3,\)"),
        (torch.ones(0, 2), torch.ones(2), r"\(0, 2\)"),
        (torch.ones(3, 2, dtype=torch.int64), torch.ones(2), "floating-point"),
        (torch.tensor([[math.nan]]), torch.ones(1), "features holds NaN"),
        (torch.ones(1, 1), torch.tensor([math.inf]), "sum holds NaN or infinite"),
        (torch.zeros(2, 2), torch.ones(2), "no labels give the sum 1 of column 0: .* at most 0"),
    ],
)
def test_bad_input_is_refused(features: Tensor, total: Tensor, expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        recover_labels(features, total)


def test_a_wrong_tolerance_is_refused() -> None:
    for tolerance in (0.0, -1.0, math.nan, torch.ones(3)):
        with pytest.raises(ArgumentError, match="tolerance above 0"):
            recover_labels(torch.ones(2, 1), torch.ones(1), tolerance=tolerance)


def test_rows_of_zeros_alone_are_undecided() -> None:
    assert recover_labels(torch.zeros(3, 2), torch.zeros(2)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_the_label_sum_of_a_gradient(approximation: Approximation) -> None:
    features, labels = random_case(20, 3)
    logits = torch.linspace(-2, 2, 20, dtype=torch.float64)
    for z in (torch.zeros_like(logits), logits):
        f = sigmoid_coefficients(z, labels, approximation=approximation)
        gradient = features.T @ f / (20 * gradient_scale(approximation))
        total = label_sum(features, gradient, approximation=approximation, logits=z)
        # Sums of 20 numbers up to 5, in double precision.
        torch.testing.assert_close(total, features.T @ labels, rtol=0, atol=1e-12)
    with pytest.raises(ArgumentError, match=r"logits \(20,\), one per row, got \(3,\)"):
        label_sum(features, gradient, approximation=approximation, logits=torch.zeros(3))


def batch_view(step: int, approximation: Approximation, *, own: float = 0.0, other: float = 0.0) -> tuple[View, Tensor]:
    """What a passive party sees, and the labels: its own weights at ``own``, another party's logit at ``other``."""
    features, labels = random_case(24, 3)
    activation = (features @ torch.full((3, 1), own, dtype=torch.float64))[:, 0]
    f = sigmoid_coefficients(activation + other, labels, approximation=approximation)
    gradient = features.T @ f[:, None] / (24 * gradient_scale(approximation))
    view = View(
        party="telecom",
        step=step,
        ids=torch.arange(24),
        columns=features,
        aggregated_gradient=gradient,
        activation=activation[:, None],
    )
    return view, labels


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_the_first_batch_tells_its_labels_after_zero_initialisation(approximation: Approximation) -> None:
    view, labels = batch_view(0, approximation)
    assert torch.equal(LabelSumAttack(approximation=approximation)(view), labels)
    assert torch.equal(LabelSumAttack(gradient_error=1e-9)(view), labels)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_every_batch_does_where_the_active_party_has_no_columns(approximation: Approximation) -> None:
    view, labels = batch_view(7, approximation, own=0.3)
    assert torch.equal(LabelSumAttack(every_step=True, approximation=approximation)(view), labels)


def test_later_batches_are_not_scored_and_impossible_ones_refused() -> None:
    later, _ = batch_view(1, "taylor", own=0.3)
    assert LabelSumAttack()(later).isnan().all()
    for attack, view in (
        (LabelSumAttack(), batch_view(0, "taylor", own=0.3)[0]),
        (LabelSumAttack(every_step=True, approximation="taylor"), batch_view(3, "taylor", own=0.3, other=0.1)[0]),
    ):
        with pytest.raises(HookError, match=rf"label-sum at step {view.step}: no labels of 24 records"):
            attack(view)
        # The minimum-norm residues instead.
        assert torch.isfinite(LabelSumAttack(every_step=True, fallback=True)(view)).all()


def test_identical_rows_are_scored_by_their_mean_label() -> None:
    features = torch.tensor([[1.0], [1.0], [0.25], [0.0]])
    labels = torch.tensor([1.0, -1.0, -1.0, 1.0])
    view = View(
        party="p",
        step=0,
        ids=torch.arange(4),
        columns=features,
        aggregated_gradient=-(features.T @ labels)[:, None] / 8,
    )
    scores = LabelSumAttack()(view)
    assert scores[:3].tolist() == [0.0, 0.0, -1.0]
    assert scores[3].isnan()


def test_views_that_it_cannot_read_are_refused() -> None:
    view, _ = batch_view(0, "taylor")
    with pytest.raises(HookError, match="numeric columns"):
        LabelSumAttack()(view.granting(columns=("a", "b")))
    with pytest.raises(HookError, match="width 1"):
        LabelSumAttack()(view.granting(aggregated_gradient=torch.zeros(3, 2)))
    with pytest.raises(ArgumentError, match="gradient_error above 0"):
        LabelSumAttack(gradient_error=0.0)
    with pytest.raises(ArgumentError, match="approximation must be one of"):
        LabelSumAttack(approximation="tailor")  # type: ignore[arg-type]  # what a user may type
