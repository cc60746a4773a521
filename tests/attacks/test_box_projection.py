"""RCC2 and constrained least squares: against general solvers, closed forms, and what is true of every projection."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from torch import Tensor

from splitvfl.attacks import RCC2Attack, constrained_least_squares, least_squares, rcc2, rcc2_within
from splitvfl.attacks.box_projection import nearest_solution
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations, View

SHAPES = [(1, 19), (3, 24), (9, 36), (4, 5), (9, 10), (2, 3)]


def random_equations(
    m: int, d: int, *, n: int = 6, seed: int = 0, spread: float = 1.0, corners: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """A, b and the truth; ``spread``: of the smallest weights to the largest; ``corners``: a third of all at each."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(0, np.log10(spread), d, dtype=torch.float64)
    left = torch.randn(m, d, generator=generator, dtype=torch.float64) * sizes
    truth = torch.rand(n, d, generator=generator, dtype=torch.float64)
    truth = (3 * truth - 1).clamp(0, 1) if corners else truth
    return left, truth @ left.T, truth


def by_cvxpy(left: Tensor, right: Tensor, centre: float) -> np.ndarray[Any, Any]:
    """The projections, one by one, by a solver that polishes: interior points stop 1e-4 short of bounds."""
    x = cvxpy.Variable(left.shape[1])
    target = cvxpy.Parameter(left.shape[0])
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - centre)), [left.numpy() @ x == target, x >= 0, x <= 1])
    found = []
    for row in right.numpy():
        target.value = row
        problem.solve(solver="OSQP", eps_abs=1e-11, eps_rel=1e-11, max_iter=200_000, polishing=True, adaptive_rho=True)
        found.append(np.asarray(x.value))
    return np.stack(found)


@pytest.mark.parametrize(("m", "d"), SHAPES)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("centre", [0.0, 0.5])
def test_it_is_the_projection_that_a_general_solver_finds(m: int, d: int, corners: bool, centre: float) -> None:
    left, right, _ = random_equations(m, d, corners=corners)

    found = nearest_solution(left, right, centre)

    assert found.feasible.all()
    assert found.certified.all()
    # The agreement that is asked for.
    np.testing.assert_allclose(found.points.numpy(), by_cvxpy(left, right, centre), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("m", "d"), SHAPES)
def test_where_no_point_fits_it_is_the_least_squares_solution_of_the_box(m: int, d: int) -> None:
    left, right, _ = random_equations(m, d, seed=1)
    right = right + 3 * d * torch.randn(right.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    found = nearest_solution(left, right, 0.0)
    cls, middle = constrained_least_squares(left, right), rcc2(left, right)

    assert not found.feasible.any()
    assert found.certified.all()
    for row, estimate, other in zip(right.numpy(), cls, middle, strict=True):
        best = lsq_linear(left.numpy(), row, (0, 1), method="bvls", tol=1e-15)
        fit = left.numpy() @ best.x
        np.testing.assert_allclose(left.numpy() @ estimate.numpy(), fit, rtol=0, atol=1e-8)
        np.testing.assert_allclose(left.numpy() @ other.numpy(), fit, rtol=0, atol=1e-8)


def system(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    return random_equations(
        draw(st.integers(1, 6)),
        draw(st.integers(1, 8)),
        seed=draw(st.integers(0, 10_000)),
        spread=draw(st.sampled_from([1.0, 1e-2, 1e-4])),
        corners=draw(st.booleans()),
    )


systems = st.composite(system)()


@settings(max_examples=40)
@given(systems)
def test_it_lies_in_the_box_and_fits_whatever_the_system(equations: tuple[Tensor, Tensor, Tensor]) -> None:
    left, right, _ = equations

    for centre in (0.0, 0.5):
        found = nearest_solution(left, right, centre)

        assert found.certified.all()
        assert found.feasible.all()
        assert ((found.points >= 0) & (found.points <= 1)).all()
        torch.testing.assert_close(found.points @ left.T, right, rtol=0, atol=1e-8)


@settings(max_examples=40)
@given(systems)
def test_no_record_is_nearer_to_half_star_than_to_rcc2_nor_to_half_than_to_half_star(
    equations: tuple[Tensor, Tensor, Tensor],
) -> None:
    left, right, truth = equations

    middle = torch.full_like(truth, 0.5)
    half_star = least_squares(left, right) + middle - least_squares(left, middle @ left.T)
    errors = [(estimate - truth).square().sum(dim=1) for estimate in (rcc2(left, right), half_star, middle)]

    # Least squares of weights between 1 and 1e-4 lose up to eight of sixteen digits.
    assert (errors[0] <= errors[1] + 1e-7).all()
    assert (errors[1] <= errors[2] + 1e-7).all()


@settings(max_examples=40)
@given(systems, st.integers(0, 10_000))
def test_every_other_solution_is_seen_from_the_projection_at_an_obtuse_angle(
    equations: tuple[Tensor, Tensor, Tensor], seed: int
) -> None:
    left, right, truth = equations

    for centre in (0.0, 0.5):
        points = nearest_solution(left, right, centre).points

        assert (((truth - points) * (centre - points)).sum(dim=1) <= 1e-7).all()


def test_with_as_many_equations_as_features_it_is_the_truth() -> None:
    left, right, truth = random_equations(5, 5, corners=True, n=50)

    # The condition number is 30 here.
    torch.testing.assert_close(rcc2(left, right), truth, rtol=0, atol=1e-10)
    torch.testing.assert_close(constrained_least_squares(left, right), truth, rtol=0, atol=1e-10)


def test_more_equations_than_features_are_solved_too() -> None:
    left, right, truth = random_equations(7, 3, corners=True)

    torch.testing.assert_close(rcc2(left, right), truth, rtol=0, atol=1e-10)


def test_repeated_equations_count_once() -> None:
    left, right, _ = random_equations(2, 6)

    repeated = rcc2(
        torch.cat([left, left[:1], 2 * left[1:]]), torch.cat([right, right[:, :1], 2 * right[:, 1:]], dim=1)
    )

    torch.testing.assert_close(repeated, rcc2(left, right), rtol=0, atol=1e-10)


def test_repeated_equations_that_contradict_each_other_have_no_solution() -> None:
    left = torch.tensor([[1.0, 2.0], [1.0, 2.0]], dtype=torch.float64)
    right = torch.tensor([[0.5, 0.9], [0.7, 0.7]], dtype=torch.float64)

    found = nearest_solution(left, right, 0.5)

    assert found.feasible.tolist() == [False, True]
    # Least squares of a contradiction is the mean.
    torch.testing.assert_close(found.points @ left[0], torch.tensor([0.7, 0.7], dtype=torch.float64))


@pytest.mark.parametrize("m", [0, 1, 3])
def test_equations_of_zeros_tell_nothing(m: int) -> None:
    left, right = torch.zeros(m, 4, dtype=torch.float64), torch.zeros(2, m, dtype=torch.float64)

    assert torch.equal(rcc2(left, right), torch.full((2, 4), 0.5, dtype=torch.float64))
    assert torch.equal(constrained_least_squares(left, right), torch.zeros(2, 4, dtype=torch.float64))


def test_zeros_with_a_right_side_have_no_solution() -> None:
    found = nearest_solution(torch.zeros(1, 2), torch.tensor([[0.0], [1.0]]), 0.5)

    assert found.feasible.tolist() == [True, False]


def test_no_predictions_have_no_estimates() -> None:
    assert rcc2(torch.ones(1, 3), torch.ones(0, 1)).shape == (0, 3)


def test_one_equation_in_closed_form() -> None:
    # x = clip(½ + λ (1, 2)): 2 · 1 + .6 for λ = .1, then the second is full.
    left = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    right = torch.tensor([[1.5], [2.0], [2.8], [3.0], [0.0], [-1.0]], dtype=torch.float64)

    expected = torch.tensor([[0.5, 0.5], [0.6, 0.7], [0.8, 1.0], [1, 1], [0, 0], [0, 0]], dtype=torch.float64)
    torch.testing.assert_close(rcc2(left, right), expected, rtol=0, atol=1e-12)


def test_the_rest_of_the_predictions_does_not_matter() -> None:
    left, right, _ = random_equations(3, 8, n=40_000, corners=True)

    together = rcc2(left, right)

    # 40 000 · 9 entries are three pieces of work.
    for place in (0, 14_563, 14_564, 39_999):
        alone = rcc2(left, right[place : place + 1])[0]
        torch.testing.assert_close(together[place], alone, rtol=0, atol=1e-10)


@pytest.mark.cuda
def test_on_a_gpu_it_is_the_same() -> None:
    left, right, _ = random_equations(9, 36, n=2000, corners=True)

    for estimate in (rcc2, constrained_least_squares):
        there = estimate(left.cuda(), right.cuda())
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), estimate(left, right), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (
            torch.ones(2, 3),
            torch.ones(4, 3),
            r"expected A \(m, d\) with d > 0 and b \(n, m\), got \(2, 3\) and \(4, 3\)",
        ),
        (torch.ones(2, 0), torch.ones(4, 2), "d > 0"),
        (torch.ones(3), torch.ones(4, 3), "expected A"),
        (torch.ones(1, 2), torch.tensor([[torch.nan]]), "b holds NaN or infinite values"),
        (torch.tensor([[torch.inf]]), torch.ones(1, 1), "A holds NaN or infinite values"),
        (
            torch.ones(1, 2, dtype=torch.int64),
            torch.ones(1, 1),
            "expected A of a floating-point dtype, got torch.int64",
        ),
    ],
)
def test_bad_equations_are_refused(left: Tensor, right: Tensor, message: str) -> None:
    for estimate in (rcc2, constrained_least_squares):
        with pytest.raises(ArgumentError, match=message):
            estimate(left, right)


@pytest.mark.parametrize(("m", "d"), [(1, 6), (3, 5), (5, 3), (9, 36)])
@pytest.mark.parametrize("corners", [False, True])
def test_within_intervals_it_is_what_a_general_solver_finds(m: int, d: int, corners: bool) -> None:
    left, right, truth = random_equations(m, d, corners=corners)
    noise = torch.rand(right.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    error = torch.full_like(right, 0.05)
    error[:, 0] = 0.0
    off = right + error * (2 * noise - 1)

    found = rcc2_within(left, off, error)

    x, target, width = cvxpy.Variable(d), cvxpy.Parameter(m), cvxpy.Parameter(m, nonneg=True)
    within = [cvxpy.abs(left.numpy() @ x - target) <= width, x >= 0, x <= 1]
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(x - 0.5)), within)
    for point, centre, wide in zip(found.numpy(), off.numpy(), error.numpy(), strict=True):
        target.value, width.value = centre, wide
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        # Of the distance, which is what the solver finds to 1e-12; points of a flat optimum are off by its root.
        assert float(((point - 0.5) ** 2).sum()) == pytest.approx(problem.value, abs=1e-6)
        np.testing.assert_allclose(point, x.value, rtol=0, atol=1e-4)
    assert ((found - truth).square().sum(dim=1) <= (0.5 - truth).square().sum(dim=1) + 1e-8).all()


def test_the_attack_takes_rounded_equations_as_intervals() -> None:
    left = torch.ones(1, 2, dtype=torch.float64)
    right = torch.tensor([[1.6], [1.6], [0.9], [5.0]], dtype=torch.float64)
    error = torch.tensor([[0.0], [0.2], [0.2], [0.2]], dtype=torch.float64)

    estimate = RCC2Attack()(View(party="bank", step=0, ids=torch.arange(4), equations=Equations(left, right, error)))

    # As it stands; the nearest of [1.4, 1.8]; ½ + ½ lies within; none lies within.
    torch.testing.assert_close(estimate[:, 0], torch.tensor([0.8, 0.7, 0.5, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("error", [torch.tensor([[-1.0]]), torch.tensor([[torch.nan]]), torch.zeros(1, 2)])
def test_bad_errors_are_refused(error: Tensor) -> None:
    with pytest.raises(ArgumentError, match="expected errors >= 0 and finite"):
        rcc2_within(torch.ones(1, 2), torch.ones(1, 1), error)
