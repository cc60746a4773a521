"""RCC1: against a general solver of semidefinite programs, by hand, and what its bound promises."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.attacks import RCC1Attack, rcc1, rcc1_with_value, rcc1_within, rcc2, rcc2_within
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations


def random_equations(
    m: int, d: int, *, n: int, seed: int = 0, dominant: float = 1.0, corners: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """A, b and the truth; ``dominant``: factor of the first weight of each row; ``corners``: a third of all at each."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(m, d, generator=generator, dtype=torch.float64)
    left[:, 0] *= dominant
    truth = torch.rand(n, d, generator=generator, dtype=torch.float64)
    truth = (3 * truth - 1).clamp(0, 1) if corners else truth
    return left, truth @ left.T, truth


def by_cvxpy(left: Tensor, right: Tensor) -> list[tuple[np.ndarray[Any, Any], float]]:
    """Points and values of the program as its definition has it, V on the null space."""
    rank = int(torch.linalg.matrix_rank(left))
    null = torch.linalg.svd(left).Vh[rank:].T.numpy()
    x, spread = cvxpy.Variable(left.shape[1]), cvxpy.Variable((null.shape[1], null.shape[1]), PSD=True)
    target = cvxpy.Parameter(left.shape[0])
    bounded = cvxpy.diag(null @ spread @ null.T) <= x - cvxpy.square(x)
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.trace(spread)), [left.numpy() @ x == target, bounded])
    found = []
    for row in right.numpy():
        target.value = row
        # Tighter than its default, which leaves points 1e-3 away: the value is flat around the optimum.
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
        found.append((np.asarray(x.value), float(problem.value)))
    return found


@pytest.mark.parametrize(
    ("m", "d", "dominant"),
    [(1, 6, 20.0), (2, 5, 1.0), (9, 12, 1.0), (3, 12, 10.0), (0, 3, 1.0)],
)
def test_it_is_what_a_general_solver_finds(m: int, d: int, dominant: float) -> None:
    left, right, _ = random_equations(m, d, n=3, dominant=dominant)

    found = rcc1_with_value(left, right)

    assert found.solved.all()
    for point, bound, (expected, value) in zip(found.points, found.bound, by_cvxpy(left, right), strict=True):
        # The agreement that is asked for.
        np.testing.assert_allclose(point.numpy(), expected, rtol=0, atol=1e-4)
        assert float(bound) == pytest.approx(value, abs=1e-5)


def test_two_features_and_one_equation_by_hand() -> None:
    # x + y = 1 is the diagonal, and its middle the centre. 2 x + y = 2 from (1, 0) to (½, 1): x = ¾, y = ½, and half
    # its length, √1.25 / 2, is the radius: in one dimension the relaxation is V = v (1, −2)(1, −2)ᵀ with v <= x (1 − x)
    # and 4 v <= y (1 − y), y = 2 − 2 x; both hold equal at x = ⅔, where Tr V = 5 · ¼ · ⅔ (1 − ⅔).
    left = torch.tensor([[2.0, 1.0]], dtype=torch.float64)

    found = rcc1_with_value(left, torch.tensor([[2.0]], dtype=torch.float64))
    middle = rcc1_with_value(torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))

    grid = torch.linspace(0.5, 1.0, 100_001, dtype=torch.float64)
    other = 2.0 - 2.0 * grid
    trace = 5.0 * torch.minimum(grid * (1 - grid), other * (1 - other) / 4.0)
    best = int(trace.argmax())
    # The grid's spacing, and the slope of the trace there.
    assert float(found.points[0, 0]) == pytest.approx(float(grid[best]), abs=1e-5)
    assert float(found.bound[0]) == pytest.approx(float(trace[best]), abs=3e-5)
    torch.testing.assert_close(middle.points, torch.full((1, 2), 0.5, dtype=torch.float64))
    assert float(middle.bound[0]) == pytest.approx(0.5, abs=1e-9)


def system(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    return random_equations(
        draw(st.integers(1, 5)),
        draw(st.integers(1, 7)),
        n=4,
        seed=draw(st.integers(0, 10_000)),
        dominant=draw(st.sampled_from([1.0, 10.0])),
        corners=draw(st.booleans()),
    )


@settings(max_examples=25)
@given(st.composite(system)())
def test_no_record_is_further_from_it_than_its_bound(equations: tuple[Tensor, Tensor, Tensor]) -> None:
    left, right, truth = equations

    found = rcc1_with_value(left, right)
    nearest = rcc2(left, right)

    assert ((found.points >= 0) & (found.points <= 1)).all()
    torch.testing.assert_close(found.points @ left.T, right, rtol=0, atol=1e-7)
    # Bounds hold to the solver's 1e-6.
    assert ((found.points - truth).square().sum(dim=1) <= found.bound + 1e-6).all()
    assert (found.bound <= (nearest * (1 - nearest)).sum(dim=1) + 1e-9).all()


def test_where_the_solutions_are_one_point_the_bound_is_zero() -> None:
    # The third feature is known, the first two are 0 as nothing else adds up to 0.
    left = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    right = torch.tensor([[0.0, 0.3]], dtype=torch.float64)

    found = rcc1_with_value(left, right)

    # Capped multipliers: the roots of 1 / 1e8.
    torch.testing.assert_close(found.points, torch.tensor([[0.0, 0.0, 0.3]], dtype=torch.float64), rtol=0, atol=1e-4)
    assert 0 <= float(found.bound[0]) <= 1e-3


def test_with_as_many_equations_as_features_it_is_the_truth() -> None:
    left, right, truth = random_equations(4, 4, n=5, corners=True)

    found = rcc1_with_value(left, right)

    torch.testing.assert_close(found.points, truth, rtol=0, atol=1e-9)
    assert (found.bound == 0).all()
    assert found.solved.all()


def test_repeated_equations_count_once() -> None:
    left, right, _ = random_equations(2, 5, n=5, dominant=8.0)

    twice = rcc1(torch.cat([left, left]), torch.cat([right, right], dim=1))

    torch.testing.assert_close(twice, rcc1(left, right), rtol=0, atol=1e-6)


def test_without_a_solution_it_is_that_of_the_closest_right_side() -> None:
    left, right, _ = random_equations(2, 5, n=5)
    far = right + 20.0

    torch.testing.assert_close(rcc1(left, far), rcc2(left, far), rtol=0, atol=1e-4)


def test_no_equation_leaves_the_middle() -> None:
    found = rcc1_with_value(torch.zeros(2, 3), torch.zeros(4, 2))

    assert torch.equal(found.points, torch.full((4, 3), 0.5, dtype=torch.float64))
    torch.testing.assert_close(found.bound, torch.full((4,), 0.75, dtype=torch.float64))
    assert rcc1(torch.ones(1, 3), torch.ones(0, 1)).shape == (0, 3)


@pytest.mark.slow(reason="more predictions than are solved at once")
def test_the_rest_of_the_predictions_does_not_matter() -> None:
    left, right, _ = random_equations(2, 4, n=10_000, corners=True)

    together = rcc1_with_value(left, right)

    for place in (0, 8191, 8192, 9999):
        alone = rcc1_with_value(left, right[place : place + 1])
        torch.testing.assert_close(together.points[place], alone.points[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(together.bound[place], alone.bound[0], rtol=0, atol=1e-8)


@pytest.mark.cuda
def test_on_a_gpu_it_is_the_same() -> None:
    left, right, _ = random_equations(1, 8, n=200, dominant=10.0)

    there, here = rcc1_with_value(left.cuda(), right.cuda()), rcc1_with_value(left, right)

    torch.testing.assert_close(there.points.cpu(), here.points, rtol=0, atol=1e-6)
    torch.testing.assert_close(there.bound.cpu(), here.bound, rtol=0, atol=1e-8)


def test_bad_equations_are_refused() -> None:
    with pytest.raises(ArgumentError, match="got \\(1, 2\\) and \\(1, 3\\)"):
        rcc1(torch.ones(1, 2), torch.ones(1, 3))


# --- equations that are off


def by_cvxpy_within(left: Tensor, right: Tensor, error: float) -> list[tuple[np.ndarray[Any, Any], float]]:
    """Points and values of the program of intervals as its definition has it."""
    m, d = left.shape
    x, spread, target = cvxpy.Variable(d), cvxpy.Variable((d, d), PSD=True), cvxpy.Parameter(m)
    rows = left.numpy() / error
    holds = [
        cvxpy.diag(spread) <= x - cvxpy.square(x),
        cvxpy.diag(rows @ spread @ rows.T) <= 1 - cvxpy.square(target - rows @ x),
    ]
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.trace(spread)), holds)
    found = []
    for row in right.numpy():
        target.value = row / error
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
        found.append((np.asarray(x.value), float(problem.value)))
    return found


@pytest.mark.parametrize(
    ("m", "d", "dominant", "error"),
    [(1, 6, 20.0, 0.3), (2, 5, 1.0, 0.01), (3, 4, 1.0, 0.01), (5, 4, 1.0, 0.1), (3, 12, 10.0, 0.3)],
)
def test_within_errors_it_is_what_a_general_solver_finds(m: int, d: int, dominant: float, error: float) -> None:
    left, right, _ = random_equations(m, d, n=3, dominant=dominant)
    right = right + error * (2 * torch.rand(right.shape, generator=torch.Generator().manual_seed(1)) - 1)

    found = rcc1_within(left, right, torch.full_like(right, error))

    assert found.solved.all()
    for point, bound, (expected, value) in zip(
        found.points, found.bound, by_cvxpy_within(left, right, error), strict=True
    ):
        np.testing.assert_allclose(point.numpy(), expected, rtol=0, atol=1e-4)
        assert float(bound) == pytest.approx(value, abs=1e-5)


@settings(max_examples=20)
@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from([0.0, 1e-7, 1e-4, 3e-3, 0.03, 0.3, 3.0]),
)
def test_the_truth_is_within_the_bound_whatever_the_error(
    m: int, d: int, seed: int, corners: bool, error: float
) -> None:
    left, right, truth = random_equations(m, d, n=4, seed=seed, dominant=5.0, corners=corners)
    off = 2 * torch.rand(right.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    # Errors at their ends, and within.
    right = right + error * torch.where(off.abs() > 0.7, off.sign(), off)

    found = rcc1_within(left, right, torch.full_like(right, error))

    assert ((found.points >= 0) & (found.points <= 1)).all()
    distances = (truth - found.points).square().sum(dim=1)
    # The box is widened by 1e-9, which a flat angle between faces can make larger.
    assert (distances <= found.bound + 1e-6).all()
    assert (found.bound <= d).all()  # the squared diameter of the box


def test_a_point_comes_with_its_own_bound() -> None:
    # Near a corner RCC2's bound is below that of the program in a wider box, whose point lies elsewhere.
    left = torch.tensor([[0.101, 0.709, 9.689, 5.689, -1.210], [0.087, -0.250, -13.391, -2.203, 0.428]]).double()
    truth = torch.tensor([[1.0, 1.0, 0.0, 0.0, 1.0]]).double()
    error = torch.tensor([[0.0, 0.0041]]).double()

    found = rcc1_within(left, truth @ left.T + 0.99 * error, error)

    assert float((truth - found.points).square().sum()) <= float(found.bound) + 1e-9
    nearest = rcc2_within(left, truth @ left.T + 0.99 * error, error)
    assert float(found.bound) <= float((nearest * (1 - nearest)).sum()) + 1e-9


def test_where_the_search_for_the_nearest_solution_is_lost_the_answer_still_fits_and_the_bound_holds() -> None:
    # Weights of seven orders of size, and a corner: neither search of RCC2 comes to rest.
    left = torch.tensor(
        [
            [0.549, -0.095, -0.185, 0.001, 37.308, -0.176, -3158.294],
            [0.168, -0.324, -0.040, 0.0001, 98.810, 0.031, 2190.015],
            [-0.547, -0.516, -0.023, 0.0009, 31.331, -0.012, -2755.378],
        ]
    ).double()
    truth = torch.tensor([[1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]]).double()

    found = rcc1_with_value(left, truth @ left.T)

    assert float((truth - found.points).square().sum()) <= float(found.bound) + 1e-6
    for point in (found.points, rcc2(left, truth @ left.T)):
        # Of the largest weight, what equations that fit to 1e-6 leave; zeros missed by all of it.
        assert float((point @ left.T - truth @ left.T).abs().max()) <= 1e-6 * 3158


def test_without_error_it_is_the_answer_of_exact_equations_and_near_to_it_with_a_small_one() -> None:
    left, right, _ = random_equations(3, 5, n=20, dominant=3.0)
    right[0] = 100.0  # no point of the box
    none, small = torch.zeros_like(right), torch.full_like(right, 1e-7)

    exact, within = rcc1_with_value(left, right), rcc1_within(left, right, none)
    nearly = rcc1_within(left, right, small)

    assert torch.equal(within.points, exact.points)
    assert torch.equal(within.bound, exact.bound)
    # A bound's slope in the error is a multiplier, of order 10 here, or grows as its root where the dual has none.
    torch.testing.assert_close(nearly.bound, exact.bound, rtol=0, atol=2e-3)
    assert torch.equal(nearly.points[0], exact.points[0])
    half = [none[:1], torch.full_like(right[:1], 0.1)]
    mixed = rcc1_within(left, torch.cat([right[1:2], right[1:2]]), torch.cat(half))
    torch.testing.assert_close(mixed.points[0], exact.points[1], rtol=0, atol=1e-9)
    assert mixed.bound[1] > mixed.bound[0]


def test_the_attack_takes_rounded_scores_for_intervals() -> None:
    left, right, _ = random_equations(2, 4, n=10, dominant=5.0)
    rounded = torch.round(right, decimals=1)
    error = torch.full_like(right, 0.05)

    found = RCC1Attack().estimate(Equations(left, rounded, error))

    assert torch.equal(found, rcc1_within(left, rounded, error).points)
    assert not torch.allclose(found, rcc1(left, rounded), atol=1e-3)
    # No nearer to ½ than the nearest: by definition of that.
    nearest = (rcc2_within(left, rounded, error) - 0.5).square().sum(dim=1)
    missed = ((found @ left.T - rounded).abs() - error).amax(dim=1)
    assert ((found - 0.5).square().sum(dim=1) >= nearest - 1e-6)[missed <= 1e-9].all()


@pytest.mark.parametrize("error", [-0.1, np.nan, np.inf])
def test_an_error_that_is_none_is_refused(error: float) -> None:
    left, right, _ = random_equations(2, 4, n=2)
    with pytest.raises(ArgumentError, match="errors >= 0 and finite"):
        rcc1_within(left, right, torch.full_like(right, error))
