"""Equations of several models as one system, against numpy's own least squares, ranks and linear programs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from splitvfl.attacks import (
    RCC2Attack,
    estimate_weights,
    least_squares,
    rcc1_within,
    score_equations,
    stack_models,
)
from splitvfl.attacks.error_bounds import equation_count, models_for_exactness
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations
from splitvfl.leakage.unit_box import Box, unsolvable


def models(count: int, k: int, d: int, n: int, *, seed: int = 0) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return weights of models of k classes, and the columns of n records."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(k, d, generator=generator, dtype=torch.float64) for _ in range(count)]
    return weights, torch.rand(n, d, generator=generator, dtype=torch.float64)


def scored(weights: list[torch.Tensor], x: torch.Tensor, *, decimals: int | None = None) -> list[Equations]:
    """Return what each model's scores tell, with other parts of the logits for each; rounded if asked for."""
    found = []
    for number, weight in enumerate(weights):
        own = torch.randn(len(x), len(weight), generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        scores = torch.softmax(own + x @ weight.T, dim=1)
        resolution = 0.0 if decimals is None else 10.0**-decimals
        shown = scores if decimals is None else scores.round(decimals=decimals)
        raw = score_equations(shown, own, weight, resolution=resolution)
        found.append(Box(torch.zeros(x.shape[1]), torch.ones(x.shape[1])).equations(raw))
    return found


@given(count=st.integers(1, 5), k=st.integers(2, 5), d=st.integers(1, 12), seed=st.integers(0, 100))
def test_ranks_and_estimates_are_those_of_numpy(count: int, k: int, d: int, seed: int) -> None:
    weights, x = models(count, k, d, 3, seed=seed)
    found = stack_models(scored(weights, x))

    rows = np.concatenate([np.diff(weight.numpy(), axis=0) for weight in weights])
    right = x.numpy() @ rows.T
    assert found.ranks == tuple(np.linalg.matrix_rank(rows[: (k - 1) * (t + 1)]) for t in range(count))
    expected = np.linalg.lstsq(rows, right.T, rcond=None)[0].T
    # Logits of scores are off by the roundings of float64, and estimates by that over the least singular value.
    least = np.linalg.svd(rows, compute_uv=False)[found.ranks[-1] - 1]
    np.testing.assert_allclose(least_squares(*found.known[:2]).numpy(), expected, atol=1e-11 / least)
    if found.ranks[-1] == d:
        assert bool(found.determined.all())
        np.testing.assert_allclose(expected, x, atol=1e-11 / least)


def test_four_models_of_four_classes_tell_twelve_columns_and_three_do_not() -> None:
    weights, x = models(4, 4, 12, 20)
    missed = [
        (least_squares(*stack_models(scored(weights[:count], x)).known[:2]) - x).square().mean().item()
        for count in range(1, 5)
    ]

    assert stack_models(scored(weights, x)).ranks == (3, 6, 9, 12)
    assert missed == sorted(missed, reverse=True)
    assert missed[2] > 0.01
    assert missed[3] < 1e-20
    assert models_for_exactness(12, equation_count(4, seen="scores")) == 4


def test_a_model_again_adds_nothing_nor_does_one_that_moves_all_classes_together() -> None:
    weights, x = models(2, 4, 12, 5)
    moved = weights[0] + torch.ones(4, 1, dtype=torch.float64) * torch.arange(12.0, dtype=torch.float64)
    combined = 2 * weights[0] - 0.5 * weights[1]

    assert stack_models(scored([weights[0]] * 5, x)).ranks == (3,) * 5
    assert stack_models(scored([weights[0], moved, weights[1], combined], x)).ranks == (3, 3, 6, 6)


def test_columns_can_be_determined_before_all_are() -> None:
    """Two models that read nothing but the first two columns tell these, and of others nothing."""
    first = torch.zeros(2, 5, dtype=torch.float64)
    second = first.clone()
    first[1, 0], first[1, 1], second[1, 1] = 1.0, 1.0, 2.0
    x = models(1, 2, 5, 4)[1]
    found = stack_models(scored([first, second], x))

    assert found.determined.tolist() == [True, True, False, False, False]
    assert torch.isinf(found.bound[:, 2:]).all()
    torch.testing.assert_close(least_squares(*found.known[:2])[:, :2], x[:, :2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("decimals", [2, 3, 4])
def test_of_rounded_scores_the_truth_stays_feasible_and_within_the_bound(decimals: int) -> None:
    weights, x = models(4, 3, 4, 12, seed=3)
    systems = scored(weights, x, decimals=decimals)
    found = stack_models(systems)
    A, b, error = found.known

    assert bool(((x @ A.T - b).abs() <= error).all()), "every interval holds the true value"
    assert not bool(unsolvable(found.known).any())
    assert bool(((least_squares(A, b) - x).abs() <= found.bound).all())
    # A linear program of its own: in which range each column can lie, by all intervals together.
    for record in range(3):
        for column in range(4):
            ends = [sign * _end(A, b[record], error[record], column, sign).fun for sign in (1, -1)]
            assert ends[0] - 1e-7 <= x[record, column].item() <= ends[1] + 1e-7
            # The bound is one of a single estimate, and no less than half of that range.
            assert found.bound[record, column].item() * 2 >= min(1.0, ends[1] - ends[0]) - 1e-7
    nearest = RCC2Attack().estimate(found.known)
    assert bool(((nearest @ A.T - b).abs() <= error + 1e-6).all()), "what is answered is in the intervals too"
    centre = rcc1_within(A, b, error)
    assert bool(((centre.points - x).square().sum(dim=1) <= centre.bound + 1e-7).all())


def test_no_model_makes_what_is_feasible_larger() -> None:
    """By linear programs: each column's range over all points that fit shrinks, whatever least squares do."""
    weights, x = models(5, 3, 4, 2, seed=6)
    systems = scored(weights, x, decimals=2)
    for column in range(4):
        sizes = []
        for count in range(1, 6):
            A, b, error = stack_models(systems[:count]).known
            low, high = (sign * _end(A, b[0], error[0], column, sign).fun for sign in (1, -1))
            sizes.append(high - low)
        assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(sizes))
        assert sizes[-1] < sizes[0]


def _end(A: torch.Tensor, b: torch.Tensor, error: torch.Tensor, column: int, sign: int):  # type: ignore[no-untyped-def]
    costs = np.zeros(A.shape[1])
    costs[column] = sign
    limits = np.vstack([A.numpy(), -A.numpy()])
    right = np.concatenate([(b + error).numpy(), (error - b).numpy()])
    return linprog(costs, A_ub=limits, b_ub=right, bounds=[(0, 1)] * A.shape[1], method="highs")


def test_the_bound_grows_with_the_rounding_and_where_models_are_alike() -> None:
    weights, x = models(4, 4, 12, 6)
    bounds = [stack_models(scored(weights, x, decimals=decimals)).bound.mean().item() for decimals in (6, 4, 2)]
    assert bounds == sorted(bounds)
    alike = [weights[0] + 1e-3 * (one - weights[0]) for one in weights]
    near = stack_models(scored(alike, x, decimals=6))
    assert near.ranks == (3, 6, 9, 12)
    assert near.bound.mean().item() > 100 * bounds[0]


def test_what_does_not_belong_together_is_refused_with_the_models_number() -> None:
    good = Equations(torch.ones(1, 2), torch.ones(3, 1), torch.zeros(3, 1))
    for bad, message in (
        (Equations(torch.ones(1, 3), torch.ones(3, 1), torch.zeros(3, 1)), "2 columns of 3 records, 3 columns"),
        (Equations(torch.ones(1, 2), torch.ones(4, 1), torch.zeros(4, 1)), "2 columns of 4 records"),
        (good._replace(A=torch.full((1, 2), torch.nan)), "model 2 of 2: A holds NaN"),
        (good._replace(b=torch.full((3, 1), torch.inf)), "model 2 of 2: b holds NaN"),
        (good._replace(error=torch.full((3, 1), -1.0)), "model 2 of 2: expected finite errors"),
        (good._replace(error=torch.full((3, 1), math.inf)), "model 2 of 2: expected finite errors"),
        (good._replace(error=torch.zeros(3, 2)), "model 2 of 2: expected finite errors"),
    ):
        with pytest.raises(ArgumentError, match=message):
            stack_models([good, bad])
    with pytest.raises(ArgumentError, match="got none"):
        stack_models([])


def test_how_many_models_it_takes() -> None:
    for columns in range(1, 40):
        for equations in range(1, 12):
            count = models_for_exactness(columns, equations)
            assert count is not None
            assert (count - 1) * equations < columns <= count * equations
    assert models_for_exactness(3, 0) is None
    with pytest.raises(ArgumentError, match="at least one column"):
        models_for_exactness(0, 1)


def test_without_weights_as_many_known_records_as_columns_and_one_more_take_their_place() -> None:
    """Over months: the same known records, scored by each model, tell every model's weights."""
    weights, x = models(4, 4, 12, 40, seed=1)
    b = stack_models(scored(weights, x)).known.b
    found = estimate_weights(x[:13], b[:13], intercept=True)
    torch.testing.assert_close(least_squares(found.A, b - found.intercept), x, rtol=0, atol=1e-6)
    with pytest.raises(ArgumentError, match="auxiliary records determine"):
        estimate_weights(x[:12], b[:12], intercept=True)


def test_without_weights_and_one_known_record_less_other_columns_show_the_same() -> None:
    """Columns under one map of all records, which leaves the known ones as they are, have the same right sides."""
    weights, x = models(4, 4, 12, 40, seed=2)
    A = np.concatenate([np.diff(weight.numpy(), axis=0) for weight in weights])
    b = x.numpy() @ A.T
    # A plane lies through 12 points; moving all records by their distance from it leaves these.
    normal = np.linalg.solve(x.numpy()[:12], np.ones(12))
    moved = x.numpy() + np.outer(x.numpy() @ normal - 1, 0.3 * np.ones(12))
    slope = np.eye(12) + np.outer(normal, 0.3 * np.ones(12))
    others = A @ np.linalg.inv(slope).T

    np.testing.assert_allclose(moved[:12], x[:12], atol=1e-9)
    assert np.abs(moved - x.numpy()).max() > 0.01
    # The same but for a constant of each equation, which no attacker without weights knows.
    np.testing.assert_allclose(np.ptp(moved @ others.T - b, axis=0), 0, atol=1e-8)
    assert np.linalg.matrix_rank(b - b.mean(axis=0)) == 12, "all records are known up to one linear map and a shift"
