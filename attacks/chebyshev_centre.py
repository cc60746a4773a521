"""Feature attack: the exact Chebyshev centre of the solutions, where few features remain unknown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from splitvfl.attacks.box_projection import FEASIBLE, in_pieces, nearest_solution
from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.attacks.rcc1 import farthest, widening
from splitvfl.attacks.rcc2 import nearest_within
from splitvfl.attacks.row_space import RowSpace, row_space
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
    """Balls around all solutions in the box: the smallest ones, where not said otherwise.

    Attributes:
        centres: ``(n, d)``, in [0, 1].
        radii: ``(n,)``: no solution is further; of the smallest, no estimate is nearer than this to every solution.
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
    space = _searchable(A)
    if not space.null.shape[1]:
        return Ball(nearest, torch.zeros_like(nearest[:, 0]))
    box = torch.zeros_like(nearest), torch.ones_like(nearest)
    centres, radii = _balls(_Corners(space.null), nearest, *box)
    return Ball((nearest + centres @ space.null.T).clamp(0.0, 1.0), radii)


def chebyshev_within(A: Tensor, b: Tensor, error: Tensor) -> Ball:
    """Return balls that hold all points of [0, 1]^d with ``|A x − b| <= error``, among them the truth.

    What :func:`chebyshev_centre` is where right sides may be off, as those of rounded scores are. Of up to 4 features
    it is the smallest such ball, around the vertices of the box and the intervals. Of more, intervals leave too many
    dimensions free to be searched: it is the smallest ball around the solutions of ``A x = b`` in a box that is wider
    by ``δ = |A⁺| error``, with a radius that is larger by so much (:func:`~splitvfl.attacks.rcc1.widening`): near to
    the smallest for small errors, and no smaller. Where that is larger than the bound of :func:`rcc2_within`, it is
    that point with that bound.

    Of predictions without an error, and of those for which no point lies within the intervals, it is
    :func:`chebyshev_centre`.

    Source: this project's, after the paper that :func:`chebyshev_centre` names.

    Args:
        A: Equations, ``(m, d)``, of rank d − 4 or more.
        b: Right-hand sides, ``(n, m)``.
        error: How far each may be off, >= 0, ``(n, m)``.

    Raises:
        ArgumentError: If the null space has more than 4 dimensions, shapes do not fit, there is no feature, an error is
            negative, or an entry is not finite.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> ball = chebyshev_within(torch.ones(1, 1), 0.5 * one, 0.2 * one)
    >>> ball.centres.round(decimals=9).tolist(), ball.radii.round(decimals=9).tolist()
    ([[0.5]], [0.2])
    """
    nearest = nearest_within(A, b, error)
    inside = nearest.points
    space, left, right, wide = _searchable(A), A.double(), b.double(), error.double()
    exact = ~(wide > 0).any(dim=1) | ~nearest.feasible
    found = Ball(inside.clone(), farthest(nearest).sqrt())
    if exact.any():
        for whole, part in zip(found, chebyshev_centre(A, b[exact]), strict=True):
            whole[exact] = part
    others = (~exact).nonzero().squeeze(1)
    if len(others):
        way = _among_all_corners if A.shape[1] <= MOST_UNKNOWN else _in_wider_box
        balls = way(space, left, inside[others], right[others], wide[others])
        smaller = balls.radii < found.radii[others]
        found.centres[others[smaller]], found.radii[others[smaller]] = (part[smaller] for part in balls)
    return found


def _searchable(A: Tensor) -> RowSpace:
    """Return A in orthonormal form, if its null space is small enough."""
    space = row_space(A)
    d, unknown = space.null.shape
    if unknown > MOST_UNKNOWN:
        raise ArgumentError(
            f"expected equations that leave at most {MOST_UNKNOWN} dimensions free, got rank {d - unknown} for {d} "
            "features; RCC1 approximates the centre, and rcc1_with_value bounds the radius"
        )
    return space


def _among_all_corners(_: RowSpace, A: Tensor, inside: Tensor, b: Tensor, wide: Tensor) -> Ball:
    """Return the smallest balls around what the box and the intervals have in common."""
    lengths = torch.linalg.vector_norm(A, dim=1)
    told = lengths > 0
    faces = A[told] / lengths[told].unsqueeze(1)
    middle, half = b[:, told] / lengths[told], wide[:, told] / lengths[told]
    lower = torch.cat([torch.zeros_like(inside), middle - half], dim=1)
    upper = torch.cat([torch.ones_like(inside), middle + half], dim=1)
    corners = _Corners(torch.cat([torch.eye(A.shape[1], dtype=A.dtype, device=A.device), faces]))
    centres, radii = _balls(corners, torch.cat([inside, inside @ faces.T], dim=1), lower, upper)
    return Ball((inside + centres).clamp(0.0, 1.0), radii)


def _in_wider_box(space: RowSpace, A: Tensor, inside: Tensor, b: Tensor, wide: Tensor) -> Ball:
    """Return balls around the solutions of exact equations in a wider box, larger by what intervals add."""
    moved = widening(space, wide)
    more = moved.square().sum(dim=1)
    solutions = inside - (inside @ space.rows.T - space.targets(b)) @ space.rows
    if not space.null.shape[1]:
        return Ball(solutions.clamp(0.0, 1.0), more.sqrt())
    centres, radii = _balls(_Corners(space.null), solutions, -moved, 1.0 + moved)
    # The box holds all that is looked for, so a point outside gets nearer to it by being clamped.
    return Ball((solutions + centres @ space.null.T).clamp(0.0, 1.0), (radii.square() + more).sqrt())


def _balls(corners: _Corners, inside: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest balls, centres ``(n, p)`` as seen from points inside and radii ``(n,)``, piece by piece."""
    width = inside.shape[1]
    row = (inside.new_empty(corners.dimensions), inside.new_empty(()))
    found = in_pieces(
        lambda part: corners.ball(*part.split(width, dim=1)),
        torch.cat([inside, lower, upper], dim=1),
        entries=corners.count * width,
        like=row,
    )
    return found[0], found[1]


class _Corners:
    """The points of a space of p dimensions where p of some linear functions are at an end of their range.

    Args:
        faces: The functions, one in each row, ``(D, p)``: the basis of a null space, whose rows are coordinates.
    """

    def __init__(self, faces: Tensor) -> None:
        self._faces = faces
        many, p = faces.shape
        chosen = torch.tensor(list(combinations(range(many), p)), device=faces.device)
        blocks = faces[chosen]
        meet = torch.linalg.svdvals(blocks)[:, -1] > _PARALLEL
        self._chosen = chosen[meet]
        self._inverses = torch.linalg.inv(blocks[meet])
        self._ends = torch.tensor(list(product((0.0, 1.0), repeat=p)), dtype=faces.dtype, device=faces.device)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._chosen) * len(self._ends)

    @property
    def dimensions(self) -> int:
        """Of the space, p."""
        return self._faces.shape[1]

    def ball(self, inside: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest balls around what has all functions in their range, ``(n, D)`` each.

        Args:
            inside: The functions at some point that has; centres are as seen from it.
            lower: Where their range begins.
            upper: Where it ends.
        """
        return _smallest_ball(*self._vertices(inside, lower, upper))

    def _vertices(self, inside: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vertices as seen from the points, and which of them are in all ranges."""
        low, high, here = (part[:, self._chosen].unsqueeze(2) for part in (lower, upper, inside))
        wanted = torch.lerp(low, high, self._ends) - here  # (n, choices, ends, p)
        points = torch.einsum("cij,ncej->ncei", self._inverses, wanted).flatten(1, 2)
        # A point of the solutions itself: where they are one point, rounding may leave no other.
        points = torch.cat([torch.zeros_like(points[:, :1]), points], dim=1)
        values = inside.unsqueeze(1) + points @ self._faces.T
        valid = ((values >= lower.unsqueeze(1) - FEASIBLE) & (values <= upper.unsqueeze(1) + FEASIBLE)).all(dim=2)
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
    error in the worst case. Where scores have few digits, the truth is in the ball of :func:`chebyshev_within`, which
    is the smallest for up to 4 features. Not promised: a smaller error on average than RCC2, or anything where the
    equations leave more than 4 dimensions free: refused.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*; see :func:`chebyshev_centre`.
    """

    name: ClassVar[str] = "chebyshev-centre"

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`chebyshev_within`'s centres: :func:`chebyshev_centre`'s where there is no error.

        Raises:
            AttackRefused: If the equations leave more than 4 dimensions free.
        """
        free = row_space(known.A).null.shape[1]
        if free > MOST_UNKNOWN:
            raise AttackRefused(f"the equations leave {free} dimensions free; at most {MOST_UNKNOWN} can be searched")
        return chebyshev_within(*known).centres
