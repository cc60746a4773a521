"""Ranges of columns, and the unit box in which attacks look for them."""

from __future__ import annotations

import math

import cvxpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations
from splitvfl.leakage.unit_box import Box, unsolvable
from tests.builders import random


@given(n=st.integers(1, 6), d=st.integers(1, 6), m=st.integers(1, 4), seed=st.integers(0, 1000))
def test_a_columns_equations_hold_for_its_point_of_the_unit_box(n: int, d: int, m: int, seed: int) -> None:
    columns = 5 * torch.randn(n, d, generator=random(seed), dtype=torch.float64) + 3
    left = torch.randn(m, d, generator=random(seed + 1), dtype=torch.float64)
    box = Box.of(columns)

    inside, right = box.to_unit(left, columns @ left.T)
    points = box.unit(columns)

    assert points.min() >= 0
    assert points.max() <= 1
    # Sums of at most six numbers of size 20.
    torch.testing.assert_close(points @ inside.T, right, rtol=0, atol=1e-12)
    torch.testing.assert_close(box.columns(points), columns, rtol=0, atol=1e-12)
    assert not box.outside(columns).any()


def test_a_column_without_a_range_is_known() -> None:
    box = Box(torch.tensor([0.0, 7.0]), torch.tensor([4.0, 7.0]))
    left, right = box.to_unit(torch.tensor([[2.0, 3.0]]), torch.tensor([[25.0]]))
    assert left.tolist() == [[8.0, 0.0]]
    assert right.tolist() == [[4.0]]
    assert box.varying.tolist() == [True, False]
    assert box.unit(torch.tensor([[2.0, 7.0]])).tolist() == [[0.5, 0.0]]
    assert box.columns(torch.tensor([[0.5, 0.9]])).tolist() == [[2.0, 7.0]]
    assert box.outside(torch.tensor([[2.0, 7.0], [2.0, 7.5], [4.5, 7.0]])).tolist() == [False, True, True]


def test_what_leaves_the_range_leaves_the_box() -> None:
    box = Box(torch.tensor([-1.0]), torch.tensor([1.0]))
    points = box.unit(torch.tensor([[-2.0], [0.0], [3.0]]))
    assert points.tolist() == [[-0.5], [0.5], [2.0]]
    assert box.outside(torch.tensor([[1.0 + 1e-12], [1.0 + 1e-6]])).tolist() == [False, True]


def test_boxes_stand_side_by_side() -> None:
    joined = Box.joined([Box(torch.zeros(1), torch.ones(1)), Box(-torch.ones(2), torch.tensor([0.5, 0.25]))])
    assert joined.lower.tolist() == [0.0, -1.0, -1.0]
    assert joined.width.tolist() == [1.0, 1.5, 1.25]
    assert joined.largest.tolist() == [1.0, 1.0, 1.0]


def test_an_endless_error_becomes_what_the_box_allows() -> None:
    box = Box(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0]))
    # A t = (2 t1 − t2) within [−1, 2]; b − A lower = 4 − 1 = 3.
    known = Equations(torch.tensor([[1.0, -1.0]]), torch.tensor([[4.0], [4.0]]), torch.tensor([[math.inf], [0.25]]))
    found = box.equations(known)
    assert found.A.tolist() == [[2.0, -1.0]]
    assert found.b.tolist() == [[3.0], [3.0]]
    assert found.error.tolist() == [[4.0], [0.25]]


@given(d=st.integers(1, 4), seed=st.integers(0, 1000), error=st.floats(0, 1))
def test_a_single_equation_is_unsolvable_where_no_corner_reaches_beyond_it(d: int, seed: int, error: float) -> None:
    left = torch.randn(1, d, generator=random(seed), dtype=torch.float64)
    right = 3 * torch.randn(20, 1, generator=random(seed + 1), dtype=torch.float64)
    known = Equations(left, right, torch.full_like(right, error))

    found = unsolvable(known)

    sides = [torch.tensor([0.0, 1.0], dtype=torch.float64) for _ in range(d)]
    corners = torch.cartesian_prod(*sides).reshape(-1, d) @ left[0]
    # The box is convex: its values fill what lies between those of two corners.
    expected = (right[:, 0] + error < corners.min() - 1e-6) | (right[:, 0] - error > corners.max() + 1e-6)
    near = (
        torch.minimum((right[:, 0] + error - corners.min()).abs(), (right[:, 0] - error - corners.max()).abs()) < 1e-5
    )
    assert torch.equal(found[~near], expected[~near])


@pytest.mark.parametrize(("m", "d"), [(2, 3), (3, 2), (3, 5)])
@pytest.mark.parametrize("error", [0.0, 0.2])
def test_several_equations_are_unsolvable_where_a_general_solver_finds_no_point(m: int, d: int, error: float) -> None:
    left = torch.randn(m, d, generator=random(0), dtype=torch.float64)
    near = torch.rand(30, d, generator=random(1), dtype=torch.float64) @ left.T
    right = near + 0.5 * torch.randn(30, m, generator=random(2), dtype=torch.float64)
    right[:10] = near[:10]  # more equations than columns have a solution only then

    found = unsolvable(Equations(left, right, torch.full_like(right, error)))

    x, target = cvxpy.Variable(d), cvxpy.Parameter(m)
    missed = cvxpy.max(cvxpy.abs(left.numpy() @ x - target))
    problem = cvxpy.Problem(cvxpy.Minimize(missed), [x >= 0, x <= 1])
    for place, row in enumerate(right.numpy()):
        target.value = row
        least = problem.solve(solver="CLARABEL")
        assert abs(least - error) > 1e-6 or least < 1e-6  # not on the border, but for what is solved exactly
        assert bool(found[place]) == (least > error + 1e-6)
    assert 0 < int(found.sum()) < 30


def test_true_points_of_the_box_and_its_corners_are_solvable_and_no_equation_is() -> None:
    left = torch.randn(9, 12, generator=random(0), dtype=torch.float64)
    truth = (1.4 * torch.rand(60, 12, generator=random(1), dtype=torch.float64) - 0.2).clamp(0.0, 1.0)
    right = truth @ left.T
    beyond = torch.full((2, 12), 1.5, dtype=torch.float64) @ left.T

    found = unsolvable(Equations(left, torch.cat([right, beyond]), torch.zeros(62, 9, dtype=torch.float64)))

    assert not found[:60].any()
    assert unsolvable(Equations(left[:0], right[:, :0], right[:, :0])).tolist() == [False] * 60
    contradiction = Equations(
        torch.zeros(1, 2), torch.tensor([[0.0], [0.1], [0.1]]), torch.tensor([[0.0], [0.0], [0.2]])
    )
    assert unsolvable(contradiction).tolist() == [False, True, False]
    with pytest.raises(ArgumentError, match="finite"):
        unsolvable(Equations(left, right, torch.full_like(right, math.inf)))


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        ([0.0], [math.inf], "column 0 has no finite range.*scale it"),
        ([0.0, -math.inf], [1.0, 0.0], "column 1 has no finite range"),
        ([0.0, math.nan], [1.0, 0.0], "column 1 has no finite range"),
        ([0.0, 2.0], [1.0, 1.5], "range of column 1 is empty.*2.0 and 1.5"),
        ([0.0], [1.0, 2.0], r"got \(1,\) and \(2,\)"),
        ([], [], r"got \(0,\)"),
    ],
)
def test_a_range_that_is_none_is_refused(lower: list[float], upper: list[float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Box(torch.tensor(lower), torch.tensor(upper))


def test_shapes_that_do_not_fit_are_refused() -> None:
    box = Box(torch.zeros(2), torch.ones(2))
    with pytest.raises(ArgumentError, match=r"A \(m, 2\) and b \(n, m\), got \(1, 3\) and \(4, 1\)"):
        box.to_unit(torch.ones(1, 3), torch.ones(4, 1))
    with pytest.raises(ArgumentError, match=r"expected \(n, 2\), got \(4, 3\)"):
        box.unit(torch.ones(4, 3))
    with pytest.raises(ArgumentError, match=r"at least one record, got \(0, 2\)"):
        Box.of(torch.zeros(0, 2))
