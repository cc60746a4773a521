"""Feature attack: the relaxed Chebyshev centre of the solutions (RCC1), by a semidefinite program."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.box_projection import Nearest, in_pieces, nearest_solution, project, unit_box
from splitvfl.attacks.centre_program import STARTS, TINY, TOGETHER, BoundedCentre, CentreProgram
from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.attacks.rcc2 import check_error, nearest_within
from splitvfl.attacks.row_space import RowSpace, check_equations, row_space
from splitvfl.hooks import Equations

# A certificate's diagonal is met to this: it is of numbers up to ¼, and comes from two Cholesky factors.
_CERTIFIED = 1e-9
# Errors that move solutions by no more than this widen the box; others are slacks, of at least the second number.
_NARROW = 1e-3
_LEAST_ERROR = 1e-9


def rcc1(A: Tensor, b: Tensor) -> Tensor:
    """Return the relaxed Chebyshev centre of the solutions of ``A x = b`` in [0, 1]^d (RCC1), for every prediction.

    See :func:`rcc1_with_value`, which also tells how far from it the truth can be.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, or an entry is not finite.
    """
    return rcc1_with_value(A, b).points


def rcc1_with_value(A: Tensor, b: Tensor) -> BoundedCentre:
    """Return the relaxed Chebyshev centre for every prediction, and a bound on the distance of every solution from it.

    The Chebyshev centre is the centre of the smallest ball around the solutions in the box. Relaxed: maximise ``Tr V``
    over x and V with ``A x = b``, ``V ⪰ 0``, ``A V = 0`` and ``V_ii <= x_i (1 − x_i)``. The value is at least the
    squared radius of that ball, and at most ``Σ x_i (1 − x_i)`` at RCC2. The two are equal, and so are the points,
    where some V has all of ``x_i (1 − x_i)`` at RCC2 as its diagonal. So: RCC2; a search for such a V among ``P diag(γ)
    P`` with P the projector on the null space of A scaled by the roots of that diagonal (of one equation an
    exact condition: no scaled weight exceeds the sum of the others); and for the rest the dual, ``min f(α)`` over ``α
    >= 0`` with ``M = Σ α_i w_i w_iᵀ ⪰ I``, where rows w of W span the null space, ``f = gᵀ M⁻¹ g + Σ α_i q_i (1 −
    q_i)``, ``q = A⁺b``, ``g = Σ α_i (q_i − ½) w_i``, whose gradient is ``x_i (1 − x_i)`` at ``x = q − W M⁻¹ g``. Solved
    by a primal-dual interior point method, many at once.

    Where no point of the box satisfies the equations, b is replaced as in :func:`rcc2`.

    Memory: beside the result, about a hundred MiB whatever n is.

    Source: Eldar, Beck and Teboulle, *A Minimax Chebyshev Estimator for Bounded Error Estimation*, IEEE Trans. Signal
    Processing 56 (2008); *Privacy Against Inference Attacks in Vertical Federated Learning*, the RCC1 estimate. The
    search direction: Helmberg, Rendl, Vanderbei and Wolkowicz, SIAM J. Optim. 6 (1996).

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, or an entry is not finite.
    """
    check_equations(A, b)
    space = row_space(A)
    d = A.shape[1]
    middle = space.rows.new_empty(d)
    row = BoundedCentre(middle, middle.new_empty(()), middle.new_empty((), dtype=torch.bool))
    found = BoundedCentre(
        *in_pieces(
            lambda part: _certified(space, nearest_solution(A, part, 0.5)),
            b,
            entries=d**2,
            like=row,
        )
    )
    for start in STARTS:
        # Few are left of each piece, and steps of few take as long as those of many.
        for places in (~found.solved).nonzero().squeeze(1).split(TOGETHER):
            _of_equations(found, places, space, start)
    # A ball of one point may round to less than none.
    return found._replace(bound=found.bound.clamp(min=0.0))


def rcc1_within(A: Tensor, b: Tensor, error: Tensor) -> BoundedCentre:
    """Return the relaxed Chebyshev centre of the points of [0, 1]^d with ``|A x − b| <= error``, and its bound.

    What :func:`rcc1_with_value` is where right sides may be off, as those of rounded scores are: no point within the
    intervals is further from the estimate than the root of the bound, and the truth is one of them. Maximise ``Tr V``
    over x and V ⪰ 0 with ``V_ii <= x_i (1 − x_i)``, and for each equation a, of error e, ``aᵀ V a <= e² − (b − aᵀx)²``:
    the same program with a slack in [0, 1] for each equation, which does not count in the trace. For e = 0 that is
    ``a V = 0``. Where :func:`rcc2_within` and a V of the whole diagonal there with ``A V = 0`` meet it, nothing else is
    solved. Where errors move a solution by 1e-3 at most, the program of exact equations is solved in a box that is
    wider by that (:func:`widening`), as slacks of next to no size cost digits: bounds are larger by about as much, and
    hold.

    Of predictions without an error, and of those for which no point lies within the intervals, it is
    :func:`rcc1_with_value`.

    Source: this project's, after the papers that :func:`rcc1_with_value` names.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.
        error: How far each may be off, >= 0, ``(n, m)``.

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, an error is negative, or an entry is not finite.

    >>> import torch
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> found = rcc1_within(torch.ones(1, 2), 1.6 * one, 0.2 * one)
    >>> found.points.round(decimals=6).tolist(), found.bound.round(decimals=6).tolist()
    ([[0.7, 0.7]], [0.42])
    """
    check_equations(A, b)
    check_error(b, error)
    left, right, wide = A.double(), b.double(), error.double()
    space = row_space(left)
    nearest = nearest_within(left, right, wide)
    found = _certified_within(space, nearest)
    exact = ~(wide > 0).any(dim=1) | ~nearest.feasible
    if exact.any():
        for whole, part in zip(found, rcc1_with_value(A, b[exact]), strict=True):
            whole[exact] = part
    told = left.any(dim=1)
    moved = widening(space, wide)
    narrow = moved.amax(dim=1) <= _NARROW
    for start in STARTS:
        for places in (~found.solved & ~exact & narrow).nonzero().squeeze(1).split(TOGETHER):
            _improve(found, places, *_in_wider_box(space, right[places], moved[places], start))
        for places in (~found.solved & ~exact & ~narrow).nonzero().squeeze(1).split(TOGETHER):
            parts = found.points[places], right[places][:, told], wide[places][:, told].clamp(min=_LEAST_ERROR)
            _improve(found, places, *_with_slacks(left[told], *parts, start))
    return found


def widening(space: RowSpace, error: Tensor) -> Tensor:
    """Return by how much the solutions nearest to points within intervals lie outside the box, at most: ``|A⁺| error``.

    A point x with ``|A x − b| <= e`` is ``x' + A⁺r``, with ``A x' = A A⁺b`` and ``|r| <= e``. So x' is in a box that is
    wider by ``δ = |A⁺| e`` on every side, and, as A⁺r is orthogonal to all differences of solutions, x is no further
    from one of them than ``√(‖x' − y‖² + ‖δ‖²)``.

    Args:
        space: Of A, ``(m, d)``.
        error: ``(n, m)``, float64.

    Returns:
        δ, ``(n, d)``.
    """
    inverse = space.rows.T / space.sizes @ space.left.T
    return error @ inverse.abs().T


def farthest(nearest: Nearest) -> Tensor:
    """Return the squared distance of the points within intervals from the nearest one to ½, at most, ``(n,)``.

    At that point it is ``Σ x_i (1 − x_i)``; where the search for it was lost, what the box alone gives.
    """
    points = nearest.points
    anywhere = torch.maximum(points, 1.0 - points).square().sum(dim=1)
    return torch.where(nearest.certified, (points * (1.0 - points)).sum(dim=1), anywhere)


def _certified_within(space: RowSpace, nearest: Nearest) -> BoundedCentre:
    """Return the nearest points within intervals to ½ with their bound, and for which it is the value."""
    points = nearest.points
    row = points.new_empty((), dtype=torch.bool)
    spread = points * (1.0 - points)
    (tight,) = in_pieces(lambda part: [_is_tight(space.rows, part)], spread, entries=points.shape[1] ** 2, like=[row])
    return BoundedCentre(points.clone(), farthest(nearest), tight & nearest.certified)


def _in_wider_box(space: RowSpace, b: Tensor, moved: Tensor, start: tuple[float, float, float]) -> BoundedCentre:
    """Return what the programs of exact equations give in a wider box; see :func:`widening`."""
    base = space.targets(b) @ space.rows
    more = moved.square().sum(dim=1)
    if not space.null.shape[1]:
        return BoundedCentre(base.clamp(0.0, 1.0), more, torch.ones_like(more, dtype=torch.bool))
    width = 1.0 + 2.0 * moved
    found = CentreProgram(space.null / width.unsqueeze(2), (base + moved) / width, start).optimum()
    # The box holds all that is looked for, so a point outside gets nearer to it by being clamped.
    return BoundedCentre((found.points * width - moved).clamp(0.0, 1.0), found.bound + more, found.solved)


def _with_slacks(
    A: Tensor, points: Tensor, b: Tensor, wide: Tensor, start: tuple[float, float, float]
) -> BoundedCentre:
    """Return what the programs with a slack in [0, 1] for each equation give."""
    d = A.shape[1]
    slopes = -A / (2.0 * wide).unsqueeze(2)
    unit = torch.eye(d, dtype=torch.float64, device=A.device).expand(len(points), -1, -1)
    slacks = 0.5 + (b - points @ A.T) / (2.0 * wide)
    found = CentreProgram(torch.cat([unit, slopes], dim=1), torch.cat([points, slacks], dim=1), start).optimum()
    return found._replace(points=found.points[:, :d].clamp(0.0, 1.0))


def _certified(space: RowSpace, nearest: Nearest) -> BoundedCentre:
    """Return the nearest solutions to ½ with their bound, and for which it is the value of the relaxation."""
    points = nearest.points
    if not space.null.shape[1]:
        return BoundedCentre(points, torch.zeros_like(points[:, 0]), torch.ones_like(points[:, 0], dtype=torch.bool))
    tight = _is_tight(space.rows, points * (1.0 - points))
    return BoundedCentre(points, farthest(nearest), tight & nearest.certified)


def _improve(found: BoundedCentre, places: Tensor, points: Tensor, bound: Tensor, solved: Tensor) -> None:
    """Put in what the programs of some predictions gave, where its bound is smaller: a bound is of its own point."""
    better = bound < found.bound[places]
    found.points[places[better]], found.bound[places[better]] = points[better], bound[better]
    found.solved[places] |= solved


def _of_equations(found: BoundedCentre, places: Tensor, space: RowSpace, start: tuple[float, float, float]) -> None:
    """Put in what the programs of exact equations give."""
    centres = CentreProgram(space.null, found.points[places] @ space.rows.T @ space.rows, start).optimum()
    kept = centres.bound < found.bound[places]
    points = centres.points
    points[kept] = _within_box(space, points[kept])
    _improve(found, places, *centres._replace(points=points))


def _within_box(space: RowSpace, points: Tensor) -> Tensor:
    """Return points that round, or multipliers that were capped, put out of the box, as solutions in it."""
    inside = project(space.rows, points @ space.rows.T, points, unit_box(points.shape[1], points))
    return torch.where(inside.residual.isfinite().unsqueeze(1), inside.points, points.clamp(0.0, 1.0))


def _is_tight(rows: Tensor, spread: Tensor) -> Tensor:
    """Return where a V ⪰ 0 with ``rows · V = 0`` and the diagonal ``spread`` was found, ``(n,)``."""
    scaled = rows * spread.clamp(min=0.0).sqrt().unsqueeze(1)
    if len(rows) == 1:
        sizes = scaled.abs().squeeze(1)
        return 2.0 * sizes.amax(dim=1) <= sizes.sum(dim=1)
    few, many = (torch.eye(size, dtype=rows.dtype, device=rows.device) for size in rows.shape)
    factor, _ = torch.linalg.cholesky_ex(scaled @ scaled.mT + TINY * few)
    basis = torch.linalg.solve_triangular(factor, scaled, upper=False)
    outside = basis.mT @ basis
    projector = many - outside
    squares = projector.square()
    factor, failed = torch.linalg.cholesky_ex(squares + TINY * many)
    weights = torch.cholesky_solve(torch.ones_like(spread).unsqueeze(2), factor)
    met = ((squares @ weights).squeeze(2) - 1.0).abs().amax(dim=1) <= _CERTIFIED
    # Where all weights are positive, so is V; elsewhere it still may be.
    _, negative = torch.linalg.cholesky_ex((projector * weights.mT) @ projector + outside + _CERTIFIED * many)
    tight: Tensor = (failed == 0) & met & (negative == 0)
    return tight


class RCC1Attack(EquationAttack):
    """Estimate a party's features by the relaxed Chebyshev centre of the solutions in their range (RCC1).

    Promises, for records whose features lie in their range and equations that are off by no more than they say: the
    truth is no further from the estimate than the root of the bound of :func:`rcc1_within`, whatever it is. The truth
    where there are as many independent equations as features, without error. Not promised: a smaller error than RCC2,
    which it often equals.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, and the paper on the relaxation; see
    :func:`rcc1_with_value`.
    """

    name: ClassVar[str] = "rcc1"

    @staticmethod
    def bounded(A: Tensor, b: Tensor) -> BoundedCentre:
        """Return :func:`rcc1_with_value`, for who has the class by its name."""
        return rcc1_with_value(A, b)

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`rcc1_within` of them: those without error as equations, others as intervals."""
        return rcc1_within(*known).points
