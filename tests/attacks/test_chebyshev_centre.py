"""The exact Chebyshev centre: by hand, against a general solver, and between what bounds it."""

from __future__ import annotations

from itertools import product

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import HalfspaceIntersection
from torch import Tensor

from splitvfl.attacks import ChebyshevCentreAttack, chebyshev_centre, chebyshev_within, rcc1_with_value, rcc1_within
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Equations, View


def random_equations(m: int, d: int, *, n: int, seed: int = 0, corners: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(m, d, generator=generator, dtype=torch.float64)
    truth = torch.rand(n, d, generator=generator, dtype=torch.float64)
    truth = (3 * truth - 1).clamp(0, 1) if corners else truth
    return left, truth @ left.T, truth


@pytest.mark.parametrize(("m", "d"), [(1, 2), (1, 3), (2, 4), (1, 5), (9, 12), (3, 7)])
def test_it_is_the_smallest_ball_around_the_vertices(m: int, d: int) -> None:
    left, right, truth = random_equations(m, d, n=3)

    found = chebyshev_centre(left, right)

    null = torch.linalg.svd(left).Vh[m:].T.numpy()
    for point, centre, radius in zip(truth.numpy(), found.centres.numpy(), found.radii, strict=True):
        if d - m == 1:
            vertices = _ends(null[:, 0], point)
        else:
            # Halfspaces as Qhull has them: a · y + c <= 0 for 0 <= point + null · y <= 1, with y = 0 inside.
            faces = np.concatenate([np.c_[-null, -point], np.c_[null, point - 1.0]])
            vertices = point + HalfspaceIntersection(faces, np.zeros(d - m)).intersections @ null.T
        middle, length = cvxpy.Variable(d), cvxpy.Variable()
        holds = [cvxpy.norm(middle - vertex) <= length for vertex in vertices]
        problem = cvxpy.Problem(cvxpy.Minimize(length), holds)
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10)
        # What the solver leaves where the ball is flat around its centre.
        np.testing.assert_allclose(centre, middle.value, rtol=0, atol=5e-5)
        assert float(radius) == pytest.approx(problem.value, abs=1e-7)


def _ends(direction: np.ndarray, point: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    lengths = np.sort(np.stack([-point / direction, (1.0 - point) / direction]), axis=0)
    return np.stack([point + lengths[0].max() * direction, point + lengths[1].min() * direction])


@settings(max_examples=10)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000), st.booleans())
def test_it_holds_all_solutions_and_the_relaxation_bounds_it(m: int, free: int, seed: int, corners: bool) -> None:
    left, right, truth = random_equations(m, m + free, n=4, seed=seed, corners=corners)

    found = chebyshev_centre(left, right)

    assert ((found.centres >= 0) & (found.centres <= 1)).all()
    # The box is widened by 1e-9, which a flat angle between faces can make larger.
    torch.testing.assert_close(found.centres @ left.T, right, rtol=0, atol=1e-6)
    assert (torch.linalg.vector_norm(truth - found.centres, dim=1) <= found.radii + 1e-6).all()
    assert (found.radii.square() <= rcc1_with_value(left, right).bound + 1e-5).all()


def test_without_equations_it_is_the_box() -> None:
    found = chebyshev_centre(torch.zeros(1, 3), torch.zeros(2, 1))

    torch.testing.assert_close(found.centres, torch.full((2, 3), 0.5, dtype=torch.float64))
    torch.testing.assert_close(found.radii, torch.full((2,), 0.75**0.5, dtype=torch.float64))


def test_with_as_many_equations_as_features_it_is_the_truth() -> None:
    left, right, truth = random_equations(4, 3, n=5, corners=True)

    found = chebyshev_centre(left, right)

    torch.testing.assert_close(found.centres, truth, rtol=0, atol=1e-9)
    assert (found.radii == 0).all()


def test_a_corner_is_a_ball_of_one_point() -> None:
    corners = torch.tensor(list(product((0.0, 1.0), repeat=3)), dtype=torch.float64)
    weights = torch.ones(1, 3, dtype=torch.float64)

    found = chebyshev_centre(weights, corners[[0, -1]] @ weights.T)

    torch.testing.assert_close(found.centres, corners[[0, -1]], rtol=0, atol=1e-8)
    torch.testing.assert_close(found.radii, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-8)


def test_more_than_four_free_dimensions_are_refused() -> None:
    left, right, _ = random_equations(1, 6, n=2)
    seen = Equations(left, right, torch.zeros_like(right))

    with pytest.raises(ArgumentError, match="at most 4 dimensions free, got rank 1 for 6"):
        chebyshev_centre(left, right)
    with pytest.raises(AttackRefused, match="leave 5 dimensions free"):
        ChebyshevCentreAttack()(View(party="bank", step=0, ids=torch.arange(2), equations=seen))


# --- equations that are off


@pytest.mark.parametrize(("m", "d", "error"), [(1, 2, 0.1), (2, 3, 0.05), (3, 4, 0.3), (5, 3, 0.02), (2, 4, 2.0)])
def test_within_errors_it_is_the_smallest_ball_around_the_vertices(m: int, d: int, error: float) -> None:
    left, right, truth = random_equations(m, d, n=3)
    right = right + 0.5 * error

    found = chebyshev_within(left, right, torch.full_like(right, error))

    rows = left.numpy()
    for point, target, centre, radius in zip(
        truth.numpy(), right.numpy(), found.centres.numpy(), found.radii, strict=True
    ):
        # As above, with the truth inside: 0 <= x <= 1 and |rows · x − target| <= error.
        sides = [np.c_[-np.eye(d), np.zeros(d)], np.c_[np.eye(d), -np.ones(d)]]
        intervals = [np.c_[rows, -target - error], np.c_[-rows, target - error]]
        vertices = HalfspaceIntersection(np.concatenate([*sides, *intervals]), point).intersections
        middle, length = cvxpy.Variable(d), cvxpy.Variable()
        holds = [cvxpy.norm(middle - vertex) <= length for vertex in vertices]
        problem = cvxpy.Problem(cvxpy.Minimize(length), holds)
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10)
        # What the solver leaves where the ball is flat around its centre.
        np.testing.assert_allclose(centre, middle.value, rtol=0, atol=5e-5)
        assert float(radius) == pytest.approx(problem.value, abs=1e-7)


@settings(max_examples=10)
@given(
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from([1e-7, 1e-3, 0.03, 0.3, 3.0]),
)
def test_the_truth_is_in_the_ball_whatever_the_error(m: int, free: int, seed: int, corners: bool, error: float) -> None:
    left, right, truth = random_equations(m, m + free, n=4, seed=seed, corners=corners)
    off = 2 * torch.rand(right.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    right = right + error * torch.where(off.abs() > 0.7, off.sign(), off)

    found = chebyshev_within(left, right, torch.full_like(right, error))

    assert ((found.centres >= 0) & (found.centres <= 1)).all()
    assert (torch.linalg.vector_norm(truth - found.centres, dim=1) <= found.radii + 1e-6).all()
    assert (found.radii <= (m + free) ** 0.5).all()  # the diameter of the box
    if m + free <= 4:
        assert (found.radii.square() <= rcc1_within(left, right, torch.full_like(right, error)).bound + 1e-5).all()


def test_without_error_it_is_the_answer_of_exact_equations_and_near_to_it_with_a_small_one() -> None:
    left, right, _ = random_equations(5, 8, n=10)
    right[0] = 100.0  # no point of the box
    none, small = torch.zeros_like(right), torch.full_like(right, 1e-7)

    exact, within = chebyshev_centre(left, right), chebyshev_within(left, right, none)
    nearly = chebyshev_within(left, right, small)

    assert torch.equal(within.centres, exact.centres)
    assert torch.equal(within.radii, exact.radii)
    torch.testing.assert_close(nearly.centres, exact.centres, rtol=0, atol=1e-4)
    torch.testing.assert_close(nearly.radii, exact.radii, rtol=0, atol=1e-4)
    seen = View(party="bank", step=0, ids=torch.arange(10), equations=Equations(left, right, small))
    assert torch.equal(ChebyshevCentreAttack()(seen), nearly.centres)
