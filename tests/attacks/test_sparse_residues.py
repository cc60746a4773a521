from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from splitvfl.attacks import solve_residues, sparse_residues
from splitvfl.errors import ArgumentError


def batch(rows: int, columns: int, used: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Columns, residues of which so many are not zero, and their sum."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    residues = torch.zeros(rows, dtype=torch.float64)
    chosen = torch.randperm(rows, generator=generator)[:used]
    residues[chosen] = 2 * torch.rand(used, generator=generator, dtype=torch.float64) - 1
    return features, residues, features.T @ residues


def test_few_residues_among_more_records_than_columns_are_found_exactly() -> None:
    features, residues, total = batch(40, 30, 12)

    # HiGHS keeps equations to 1e-7, and the inverse of 30 rows of normal numbers enlarges that about tenfold.
    assert torch.allclose(sparse_residues(features, total), residues, atol=1e-5)
    assert not torch.allclose(solve_residues(features, total, underdetermined=True), residues, atol=0.1)


def test_weighted_rounds_find_what_the_first_does_not() -> None:
    batches = [batch(40, 30, 16, seed=seed) for seed in range(8)]
    errors = [
        sum((sparse_residues(x, total, rounds=rounds) - r).abs().mean().item() for x, r, total in batches)
        for rounds in (1, 4)
    ]

    assert errors[1] < 0.95 * errors[0]


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(3, 8), st.integers(2, 5))
def test_the_first_round_is_the_least_sum_of_sizes(seed: int, rows: int, columns: int) -> None:
    features, _, total = batch(rows, columns, min(rows, 3), seed=seed)
    found = sparse_residues(features, total, rounds=1).numpy()
    # The same problem put another way: sizes t >= |r| as unknowns of their own, by another entry to the solver.
    eye, x = np.eye(rows), features.numpy()
    rules = [
        LinearConstraint(np.hstack([x.T, np.zeros((columns, rows))]), total.numpy(), total.numpy()),
        LinearConstraint(np.hstack([eye, -eye]), -np.inf, 0),
        LinearConstraint(np.hstack([-eye, -eye]), -np.inf, 0),
    ]
    least = milp(
        np.r_[np.zeros(rows), np.ones(rows)], constraints=rules, bounds=Bounds([-1.0] * rows + [0.0] * rows, 1.0)
    )

    assert np.allclose(x.T @ found, total.numpy(), atol=1e-6)  # HiGHS's feasibility tolerance is 1e-7
    assert np.abs(found).max() <= 1 + 1e-9
    assert np.abs(found).sum() == pytest.approx(least.fun, abs=1e-6)


def test_as_many_columns_as_records_leave_one_solution() -> None:
    features, residues, total = batch(8, 12, 8)

    assert torch.allclose(sparse_residues(features, total), residues, atol=1e-6)


def test_the_unit_of_the_residues_is_that_of_the_gradient() -> None:
    features, residues, total = batch(20, 15, 5)

    small = sparse_residues(features, 1e-4 * total, bound=1e-4)

    assert torch.allclose(small, 1e-4 * residues, atol=1e-9)


def test_identical_rows_share_their_sum_and_zero_rows_get_nothing() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])

    found = sparse_residues(features, torch.tensor([1.5, -0.5]))

    assert found.tolist() == pytest.approx([0.75, -0.5, 0.75, 0.0], abs=1e-6)


def test_a_residue_beyond_the_bound_has_no_solution() -> None:
    with pytest.raises(ArgumentError, match="no residues of size at most 1 give this sum"):
        sparse_residues(torch.eye(3), torch.tensor([0.5, 1.5, 0.0]))


@pytest.mark.parametrize(
    ("features", "gradient", "bound", "said"),
    [
        (torch.ones(2, 2), torch.ones(3), 1.0, r"got \(2, 2\) and \(3,\)"),
        (torch.ones(2, 2), torch.tensor([math.nan, 0.0]), 1.0, "NaN"),
        (torch.zeros(2, 2), torch.zeros(2), 1.0, "every row of the features is zero"),
        (torch.ones(2, 2), torch.ones(2), 0.0, "bound above 0"),
        (torch.ones(2, 2), torch.ones(2), math.nan, "bound above 0"),
        (torch.ones(0, 2), torch.ones(2), 1.0, r"got \(0, 2\)"),
    ],
)
def test_what_is_no_sum_of_rows_is_refused(features: Tensor, gradient: Tensor, bound: float, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        sparse_residues(features, gradient, bound)


def test_no_round_at_all_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one round, got 0"):
        sparse_residues(torch.ones(2, 2), torch.ones(2), rounds=0)
