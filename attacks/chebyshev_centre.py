"""Feature attack: the exact Chebyshev centre of the solutions, where few features remain unknown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from splitvfl.attacks.box_projection import FEASIBLE, in_pieces, nearest_solution
from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.attacks.row_space import row_space
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Equations

# The number of vertices grows with the power of it.
MOST_UNKNOWN = 4
# Faces closer to parallel than this meet in no vertex that others do not give too.
_PARALLEL = 1e-9
# How far outside the ball a vertex may be, in units of the features.
_ON_THE_BALL = 1e-10
_ROUNDS = 200


class Ball(NamedTuple):
    """The smallest balls around all solutions in the box.

    Attributes:
        centres: ``(n, d)``, in [0, 1].
        radii: ``(n,)``: no estimate is nearer than this to every solution.
    """

    centres: Tensor
    radii: Tensor


def chebyshev_centre(A: Tensor, b: Tensor) -> Ball:
    """Return the centre and the radius of the smallest ball around the solutions of ``A x = b`` in [0, 1]^d.

    The estimate with the smallest error in the worst case, and that error. Exact: the ball around the vertices, of
    which each lies where as many coordinates as A leaves free are at an end of their range. All such choices are tried,
    so their number bounds what can be done: null spaces of at most 4 dimensions. :func:`rcc1_with_value` bounds radii
    elsewhere.

    Where no point of the box satisfies the equations, b is replaced as in :func:`rcc2`.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the Chebyshev centre, which it relaxes.

    Args:
        A: Equations, ``(m, d)``, of rank d − 4 or more.
        b: Right-hand sides, ``(n, m)``.

    Raises:
        ArgumentError: If the null space has more than 4 dimensions, shapes do not fit, there is no feature, or an entry
            is not finite.

    >>> chebyshev_centre(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5]])).centres.round(decimals=9)
    tensor([[0.2500, 0.2500]], dtype=torch.float64)
    """
    nearest = nearest_solution(A, b, 0.5).points
    space = row_space(A)
    d, unknown = space.null.shape
    if unknown > MOST_UNKNOWN:
        raise ArgumentError(
            f"expected equations that leave at most {MOST_UNKNOWN} dimensions free, got rank {d - unknown} for {d} "
            "features; RCC1 approximates the centre, and rcc1_with_value bounds the radius"
        )
    if not unknown:
        return Ball(nearest, torch.zeros_like(nearest[:, 0]))
    corners = _Corners(space.null)
    row = Ball(nearest.new_empty(d), nearest.new_empty(()))
    return Ball(*in_pieces(corners.ball, nearest, entries=corners.count * d, like=row))


class _Corners:
    """The points of an affine space where some coordinates are at an end of [0, 1].

    Args:
        null: Orthonormal columns that span the space's directions, ``(d, p)``.
    """

    def __init__(self, null: Tensor) -> None:
        self._null = null
        d, p = null.shape
        chosen = torch.tensor(list(combinations(range(d), p)), device=null.device)
        blocks = null[chosen]
        meet = torch.linalg.svdvals(blocks)[:, -1] > _PARALLEL
        self._chosen = chosen[meet]
        self._inverses = torch.linalg.inv(blocks[meet])
        self._ends = torch.tensor(list(product((0.0, 1.0), repeat=p)), dtype=null.dtype, device=null.device)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._chosen) * len(self._ends)

    def ball(self, inside: Tensor) -> Ball:
        """Return the smallest balls around the solutions to which these points, one of each, belong."""
        points, valid = self._vertices(inside)
        centres, radii = _smallest_ball(points, valid)
        return Ball((inside + centres @ self._null.T).clamp(0.0, 1.0), radii)

    def _vertices(self, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vertices as seen from the points, in the space's coordinates, and which of them are in the box."""
        wanted = self._ends - inside[:, self._chosen].unsqueeze(2)  # (n, choices, ends, p)
        points = torch.einsum("cij,ncej->ncei", self._inverses, wanted).flatten(1, 2)
        # A point of the solutions itself: where they are one point, rounding may leave no other.
        points = torch.cat([torch.zeros_like(points[:, :1]), points], dim=1)
        features = inside.unsqueeze(1) + points @ self._null.T
        valid = ((features >= -FEASIBLE) & (features <= 1.0 + FEASIBLE)).all(dim=2)
        return points, valid


def _smallest_ball(points: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return centres ``(n, p)`` and radii ``(n,)`` of the smallest balls around the valid ones of ``points (n, v, p)``.

    A ball is held by at most p + 1 points on it. Begins with one point, and takes the furthest point outside to those
    that hold the ball, of which a new p + 1 hold a larger one; so it ends.
    """
    count, _, p = points.shape
    holding = points[:, :1].expand(-1, p + 1, -1)
    centre, squared = points[:, 0], torch.zeros_like(points[:, 0, 0])
    rows = torch.arange(count, device=points.device)
    for _ in range(_ROUNDS):
        distances = (points - centre.unsqueeze(1)).square().sum(dim=2).masked_fill(~valid, -1.0)
        furthest, place = distances.max(dim=1)
        outside = furthest.sqrt() > squared.sqrt() + _ON_THE_BALL
        if not outside.any():
            break
        found = _ball_of_few(torch.cat([holding, points[rows, place].unsqueeze(1)], dim=1)[outside])
        holding = holding.index_put((rows[outside],), found[0])
        centre = centre.index_put((rows[outside],), found[1])
        squared = squared.index_put((rows[outside],), found[2])
    return centre, squared.sqrt()


def _ball_of_few(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the p + 1 points that hold the smallest ball around ``points (n, p + 2, p)``, its centre and r²."""
    _, many, p = points.shape
    held = points[:, : p + 1]
    centre = points[:, 0]
    squared = torch.full_like(points[:, 0, 0], torch.inf)
    for chosen in _choices(many, p + 1):
        few = points[:, chosen]
        middle, radius = _through(few)
        furthest = (points - middle.unsqueeze(1)).square().sum(dim=2).amax(dim=1)
        around = furthest.sqrt() <= radius.sqrt() + _ON_THE_BALL
        better = around & (radius < squared)
        filled = few[:, [*range(len(chosen)), *[0] * (p + 1 - len(chosen))]]
        held = torch.where(better.unsqueeze(1).unsqueeze(2), filled, held)
        centre = torch.where(better.unsqueeze(1), middle, centre)
        squared = torch.where(better, radius, squared)
    return held, centre, squared


def _choices(many: int, most: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, most + 1):
        yield from combinations(range(many), size)


def _through(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return centre and r² of the smallest ball with all of ``points (n, s, p)`` on it; of repeated ones, something.

    What is returned of points that lie in too small a space is smaller than what goes through them, or does not hold
    them; fewer of them give their ball.
    """
    first = points[:, 0]
    if points.shape[1] == 1:
        return first, torch.zeros_like(first[:, 0])
    sides = points[:, 1:] - first.unsqueeze(1)
    lengths = sides.square().sum(dim=2)
    # The centre is first + sidesᵀ u with sides · sidesᵀ u = lengths / 2.
    away = (torch.linalg.pinv(sides, rtol=_PARALLEL) @ (lengths / 2.0).unsqueeze(2)).squeeze(2)
    return first + away, away.square().sum(dim=1)


class ChebyshevCentreAttack(EquationAttack):
    """Estimate a party's features by the centre of the smallest ball around all that the equations allow.

    Promises, for records whose features lie in their range and equations without error: no estimate has a smaller
    error in the worst case. Not promised: a smaller error on average than RCC2, or anything where the equations leave
    more than 4 dimensions free: refused.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*; see :func:`chebyshev_centre`.
    """

    name: ClassVar[str] = "chebyshev-centre"

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`chebyshev_centre`'s centres.

        Raises:
            AttackRefused: If the equations leave more than 4 dimensions free.
        """
        A, b, _ = known
        free = row_space(A).null.shape[1]
        if free > MOST_UNKNOWN:
            raise AttackRefused(f"the equations leave {free} dimensions free; at most {MOST_UNKNOWN} can be searched")
        return chebyshev_centre(A, b).centres
