"""Nearest point of a box that satisfies linear equations, for many right-hand sides at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from splitvfl.attacks.row_space import RowSpace, check_equations, row_space

# Equations are met to this, in units of the features: what sums of a hundred products round to.
_MET = 1e-13
# An equation that cannot be met nearer than this has no solution in the box. Below it is what rounding makes of a true
# point in a corner of the box, where logits have the digits of float64.
FEASIBLE = 1e-9
# Pieces of the dual are quadratic, so steps are exact and few: 3 to 15 for true points of the box. The rest is for
# targets on the border of what the box can reach.
_STEPS = 100
# Added to the Hessian, so that it can be inverted.
_FLAT = 1e-12
# Where a pivot of the Hessian's Cholesky factor is below the first, it is nearly singular, and the second's share of
# what is missing is added: where nearly all of x is clipped the dual has corners instead of curves, and pure Newton
# steps go far astray. For targets on the border of what the box can reach, .1 takes 50 steps, and 0, 1e-4 or 1e-2 more
# than 100.
_WEAK_PIVOT = 0.1
_DAMPING = 0.1
# A full step is taken where it leaves at most this share of the slope along it, of either sign.
_SLOPE_LEFT = 0.9
# Weights of the proximal term, one after another, of the search for the closest fit.
_PROXIMAL = (1e-2, 1e-4, 1e-6, *[1e-8] * 4, *[1e-10] * 4, *[1e-12] * 4)
# Its points have come to rest when none moves further than this.
_REST = 1e-10
# Entries of the largest tensor of one piece of work: 1 MiB of float64 stays in a core's cache; a GPU wants more.
_CPU_ENTRIES, _GPU_ENTRIES = 1 << 17, 1 << 24


class Projection(NamedTuple):
    """Points of a box, and how well they satisfy their equations.

    Attributes:
        points: ``(n, d)``, in the box; zeros where none was found.
        residual: ``(n,)``, the largest ``|rows · x − target|`` of each, in units of the features, at most ``FEASIBLE``;
            infinite where no point was found. Each point is the projection for the right side that it meets exactly;
            so a residual near 0 certifies it.
        separated: ``(n,)``, bool: a direction was found along which the whole box lies on one side of the target, by
            more than ``FEASIBLE``: there is no such point.
    """

    points: Tensor
    residual: Tensor
    separated: Tensor


class Nearest(NamedTuple):
    """Points of the unit box, and what they are.

    Attributes:
        points: ``(n, d)``, in [0, 1].
        feasible: ``(n,)``, bool: some point of the unit box satisfies the equations, to ``1e-9`` in units of the
            features. Elsewhere the point is the nearest of those that fit best.
        certified: ``(n,)``, bool: the conditions of optimality hold, to ``1e-9``. Elsewhere the search was lost, and
            the point is some point that fits, not the nearest.
    """

    points: Tensor
    feasible: Tensor
    certified: Tensor


class Bounds(NamedTuple):
    """Bounds of each coordinate, each ``(d,)`` or ``(n, d)``; infinite where there are none."""

    lower: Tensor
    upper: Tensor

    def of(self, chosen: Tensor) -> Bounds:
        """Return the bounds of some right-hand sides; those that all share stay as they are."""
        return Bounds(*(bound if bound.dim() == 1 else bound[chosen] for bound in self))


def unit_box(d: int, like: Tensor) -> Bounds:
    """Return the box [0, 1]^d, float64, on the device of ``like``."""
    lower = torch.zeros(d, dtype=torch.float64, device=like.device)
    return Bounds(lower, torch.ones_like(lower))


def nearest_solution(A: Tensor, b: Tensor, centre: float) -> Nearest:
    """Return the nearest point to ``centre · 1`` among those of the unit box with ``A x = b``, for every right side.

    Where no point of the box satisfies the equations (scores were rounded, a record lies outside the known range, or
    repeated rows contradict each other), ``A x`` of the box's least-squares solutions takes the place of b: it is the
    same for all of them.

    Bounded memory: beside the result, a few MiB whatever n is (128 MiB on a GPU). Right sides are solved by themselves;
    which others there are changes rounding only.

    Args:
        A: Equations, ``(m, d)``; repeated rows, rank 0 and m = 0 are equations like others.
        b: Right-hand sides, ``(n, m)``.
        centre: In [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, or an entry is not finite.
    """
    check_equations(A, b)
    space = row_space(A)
    middle = torch.full((A.shape[1],), centre, dtype=torch.float64, device=A.device)
    d, rank = A.shape[1], len(space.sizes)
    return Nearest(
        *in_pieces(
            lambda part: _nearest(space, part, middle),
            b,
            entries=max(d, rank**2),
            like=Nearest(middle, *torch.empty(2, dtype=torch.bool, device=A.device)),
        )
    )


def _nearest(space: RowSpace, b: Tensor, centre: Tensor) -> Nearest:
    box = unit_box(len(centre), centre)
    targets = space.targets(b)
    points, residual, _ = project(space.rows, targets, _unbounded(space, targets, centre), box)
    feasible = (residual <= FEASIBLE) & (space.contradiction(b) <= FEASIBLE)
    lost = residual > FEASIBLE
    if lost.any():
        fit = closest_fit(space, targets[lost])
        reached = fit @ space.rows.T
        found, residual[lost], _ = project(space.rows, reached, _unbounded(space, reached, centre), box)
        # Where this search is lost too, a point that fits is known all the same, if not the nearest one.
        points[lost] = torch.where(residual[lost].isfinite().unsqueeze(1), found, fit)
        # A search that ended too early has lost a target that can be met.
        feasible[lost] = ((reached - targets[lost]).abs().amax(dim=1) <= FEASIBLE) & (
            space.contradiction(b[lost]) <= FEASIBLE
        )
    return Nearest(points, feasible, residual <= FEASIBLE)


def _unbounded(space: RowSpace, targets: Tensor, centre: Tensor) -> Tensor:
    """Return the solutions nearest to the centre, box aside, from where a search has its first step behind it."""
    return centre + (targets - space.rows @ centre) @ space.rows


def closest_fit(space: RowSpace, targets: Tensor) -> Tensor:
    """Return points of the unit box that fit equations best, ``(n, d)``: minimisers of ``‖A x − b‖``, one of each.

    By the proximal point method: each of its problems, ``‖A x − b‖² / (2 δ) + ½ ‖x − previous‖²``, is a projection
    where the equations have a free slack each.

    Args:
        space: Of A.
        targets: ``space.targets(b)``.
    """
    rank, d = space.rows.shape
    scale = space.sizes / space.sizes[:1]
    rows = scale.unsqueeze(1) * space.rows
    targets = scale * targets
    slack = torch.full((rank,), torch.inf, dtype=torch.float64, device=rows.device)
    inside = unit_box(d, rows)
    box = Bounds(torch.cat([inside.lower, -slack]), torch.cat([inside.upper, slack]))
    points = torch.full((len(targets), d), 0.5, dtype=torch.float64, device=rows.device)
    left = torch.arange(len(targets), device=rows.device)
    for weight in _PROXIMAL:
        with_slack = torch.cat([rows, weight**0.5 * torch.eye(rank, dtype=torch.float64, device=rows.device)], dim=1)
        centre = torch.cat([points[left], torch.zeros_like(targets[left])], dim=1)
        solved = project(with_slack, targets[left], centre, box, edges=False)
        found = torch.where(solved.residual.isfinite().unsqueeze(1), solved.points[:, :d], points[left])
        moved = (found - points[left]).abs().amax(dim=1)
        points[left] = found
        left = left[moved > _REST]
        if not len(left):
            break
    return points


def in_pieces(
    solve: Callable[[Tensor], Sequence[Tensor]], b: Tensor, *, entries: int, like: Sequence[Tensor]
) -> list[Tensor]:
    """Return what ``solve`` gives for all right-hand sides, asked for piece by piece.

    Args:
        solve: From some of ``b`` to results with one row each.
        b: Right-hand sides, ``(n, m)``.
        entries: How many numbers the largest tensor has for each.
        like: One row of each result.
    """
    size = max(1, (_GPU_ENTRIES if b.is_cuda else _CPU_ENTRIES) // max(entries, 1))
    found = [torch.empty((len(b), *row.shape), dtype=row.dtype, device=row.device) for row in like]
    for first in range(0, len(b), size):
        for whole, part in zip(found, solve(b[first : first + size]), strict=True):
            whole[first : first + size] = part
    return found


def project(rows: Tensor, targets: Tensor, centre: Tensor, box: Bounds, *, edges: bool = True) -> Projection:
    """Return the nearest point to a centre among those of the box with ``rows · x = target``, for every target.

    The point is ``x(λ) = clip(centre + rowsᵀ λ)`` for the λ with ``rows · x(λ) = target``, a maximum of the dual,
    which is concave and piecewise quadratic. Found by a semismooth Newton method: Hessian ``rows · diag(inside) ·
    rowsᵀ``, with the exact maximum along the direction where a full step would gain little or go too far. All targets
    go at once, and those that are met leave.

    Where a target is out of reach the dual is unbounded: a direction that proves it ends the search.

    Args:
        rows: Equations, ``(m, d)``, float64; rows of about unit length.
        targets: Right-hand sides, ``(n, m)``, float64.
        centre: ``(d,)`` or ``(n, d)``, float64; or what differs from it by multiples of the rows, to begin there.
        box: What points lie in.
        edges: Whether coordinates that are exactly at a bound count as inside in the Hessian: either is right there.
            From a centre in a corner they must, or it is zero; from the points of the search for the closest fit they
            must not, or steps of it go astray.
    """
    return _Search(rows, targets, centre, box, edges=edges).solved()


class _Search:
    """Newton's method on the duals of a piece of the targets."""

    def __init__(self, rows: Tensor, targets: Tensor, centre: Tensor, box: Bounds, *, edges: bool) -> None:
        self._edges = edges
        self._rows = rows
        self._products = (rows.T.unsqueeze(2) * rows.T.unsqueeze(1)).reshape(rows.shape[1], -1)
        self._targets = targets
        self._box = box
        self._places = torch.arange(len(targets), device=targets.device)
        # Coordinates before clipping, by adding up steps: multipliers may become large, and those that are inside the
        # box stay near it.
        self._free = centre.expand(len(targets), -1)
        self._points = self._clipped(self._free)
        self._missing = targets - self._points @ rows.T
        shape = (len(targets), rows.shape[1])
        self._found = Projection(
            torch.zeros(shape, dtype=targets.dtype, device=targets.device),
            torch.full((len(targets),), torch.inf, dtype=targets.dtype, device=targets.device),
            torch.zeros(len(targets), dtype=torch.bool, device=targets.device),
        )

    def solved(self) -> Projection:
        """Return the best point found for every target; where it is not met the residual says so."""
        for _ in range(_STEPS):
            self._write_down()
            if not len(self._places):
                break
            proved = self._step()
            self._found.separated[self._places[proved]] = True
            self._keep(~proved)
        return self._found

    def _clipped(self, free: Tensor) -> Tensor:
        return torch.clamp(free, self._box.lower, self._box.upper)

    def _residual(self) -> Tensor:
        if not self._missing.shape[1]:
            return self._missing.sum(dim=1)  # no equation, nothing missing
        return self._missing.abs().amax(dim=1)

    def _write_down(self) -> None:
        """Keep the points that are better than those before, and go on with those that are not good enough."""
        residual = self._residual()
        # Those that round to just out of reach are met nearly, and then left again.
        worth = ((residual < self._found.residual[self._places]) & (residual <= FEASIBLE)).nonzero().squeeze(1)
        places = self._places[worth]
        self._found.points.index_copy_(0, places, self._points.index_select(0, worth))
        self._found.residual.index_copy_(0, places, residual[worth])
        self._keep(residual > _MET)

    def _keep(self, kept: Tensor) -> None:
        if kept.all():
            return
        # Found once for all: a mask would be searched for each.
        left = kept.nonzero().squeeze(1)
        self._box = self._box.of(left)
        for name in ("_places", "_targets", "_free", "_points", "_missing"):
            setattr(self, name, getattr(self, name).index_select(0, left))

    def _step(self) -> Tensor:
        """Take one step; return for which targets it proved that there is no solution."""
        direction = self._newton()
        along = direction @ self._rows
        free = self._free + along
        points, missing = self._evaluated(free)
        before = (direction * self._missing).sum(dim=1)
        after = (direction * missing).sum(dim=1)
        bad = ~(after.abs() <= _SLOPE_LEFT * before)
        proved = torch.zeros_like(bad)
        if bad.any():
            length, proved[bad] = self._line_search(bad, along[bad], before[bad], direction[bad])
            free[bad] = self._free[bad] + length.unsqueeze(1) * along[bad]
            points, missing = self._evaluated(free)
        self._free, self._points, self._missing = free, points, missing
        return proved

    def _evaluated(self, free: Tensor) -> tuple[Tensor, Tensor]:
        points = self._clipped(free)
        return points, self._targets - points @ self._rows.T

    def _newton(self) -> Tensor:
        inside = self._points == self._free
        if not self._edges:
            inside &= (self._free != self._box.lower) & (self._free != self._box.upper)
        count, m = self._missing.shape
        curvature = inside.to(self._rows.dtype) @ self._products
        if m == 1:
            damping = _DAMPING * self._missing.abs() * (curvature <= _WEAK_PIVOT**2)
            return self._missing / (curvature + damping + _FLAT)
        curvature = curvature.reshape(count, m, m)
        diagonal = curvature.diagonal(dim1=1, dim2=2)
        diagonal += _FLAT
        factor, _ = torch.linalg.cholesky_ex(curvature)
        weak = ~(factor.diagonal(dim1=1, dim2=2).amin(dim=1) > _WEAK_PIVOT)
        if weak.any():
            diagonal += (_DAMPING * self._residual() * weak).unsqueeze(1)
            factor[weak], _ = torch.linalg.cholesky_ex(curvature[weak])
        return torch.cholesky_solve(self._missing.unsqueeze(2), factor).squeeze(2)

    def _line_search(self, bad: Tensor, along: Tensor, slope: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best length of the step, and where the dual rises forever.

        The slope along the direction falls by ``along_i²`` per length while coordinate i is inside.
        """
        free = self._free[bad]
        box = self._box.of(bad)
        speed = along.square()
        still = along == 0
        ends = torch.stack([(bound - free) / along.masked_fill(still, 1.0) for bound in box])
        ends = ends.masked_fill(still, 0.0).clamp(min=0.0)
        events, order = torch.cat([ends.amin(dim=0), ends.amax(dim=0)], dim=1).sort(dim=1)
        changes = torch.cat([speed, -speed], dim=1).gather(1, order)
        falling = changes.cumsum(dim=1)[:, :-1].clamp(min=0.0)
        gaps = events.diff(dim=1).nan_to_num(nan=0.0, posinf=torch.finfo(events.dtype).max)
        falls = torch.cat([torch.zeros_like(slope).unsqueeze(1), (falling * gaps).cumsum(dim=1)], dim=1)
        # The last event before which the slope is still positive.
        reached = falls < slope.unsqueeze(1)
        last = reached.sum(dim=1) - 1
        piece = last.clamp(max=falling.shape[1] - 1).unsqueeze(1)
        left = slope - falls.gather(1, last.unsqueeze(1)).squeeze(1)
        rate = falling.gather(1, piece).squeeze(1)
        within = (last < falling.shape[1]) & (rate > 0)
        start = events.gather(1, last.unsqueeze(1)).squeeze(1)
        length = torch.where(within, start + left / torch.where(within, rate, 1.0), start)
        proved = ~within & (left > FEASIBLE * torch.linalg.vector_norm(direction, dim=1))
        return length, proved
