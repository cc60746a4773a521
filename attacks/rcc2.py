"""Feature attack: the solution within the features' range that is nearest to the middle (RCC2)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.box_projection import Bounds, Nearest, in_pieces, nearest_solution, project, unit_box
from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.attacks.row_space import check_equations
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations
from splitvfl.leakage.unit_box import unsolvable

# What an error of one costs beside a feature that is off by one, before the root; and how often it is taken back.
_SLACK_WEIGHT = 1e-2
_ROUNDS = 20
_REST = 1e-10
# Near enough to the nearest point that a bound on distances from it holds to the same.
_AT_REST = 1e-8


def rcc2(A: Tensor, b: Tensor) -> Tensor:
    """Return the nearest point to ½ in all coordinates among those of [0, 1]^d with ``A x = b``, for every prediction.

    It is the maximiser of ``Σ x_i (1 − x_i)`` over the solutions: the centre that a relaxation of the Chebyshev centre
    gives when the constraints of each coordinate are used alone. For every truth in the box its error is at most that
    of Half*, and that at most the error of Half. ``Σ x_i (1 − x_i)`` at it bounds the squared distance from the
    Chebyshev centre of the solutions to any of them.

    Where no point of the box satisfies the equations, ``A x`` of the constrained least-squares solution takes the place
    of b; :func:`~splitvfl.attacks.box_projection.nearest_solution` says where.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the RCC2 estimate.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, or an entry is not finite.

    >>> import torch
    >>> rcc2(torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0], [3.8], [9.0]])).round(decimals=9)
    tensor([[0.5000, 0.5000],
            [1.0000, 0.8000],
            [1.0000, 1.0000]], dtype=torch.float64)
    """
    return nearest_solution(A, b, 0.5).points


def rcc2_within(A: Tensor, b: Tensor, error: Tensor) -> Tensor:
    """Return the nearest point to ½ among those of [0, 1]^d with ``|A x − b| <= error``, for every prediction.

    What RCC2 is where scores were rounded: the truth need not satisfy the equations, but it lies in these intervals,
    and for every truth that does the error is at most that of Half. Where the error is 0 the equation holds as it
    stands. Where no point of the box lies within the intervals: :func:`rcc2` of b.

    Source: this project's; the projection of :func:`rcc2` with a bounded slack for each equation.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.
        error: How far each may be off, >= 0, ``(n, m)``.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, an error is negative, or an entry is not finite.

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> rcc2_within(torch.tensor([[1.0, 1.0]]), 1.6 * one, 0.2 * one).round(decimals=9)
    tensor([[0.7000, 0.7000]], dtype=torch.float64)
    """
    return nearest_within(A, b, error).points


def nearest_within(A: Tensor, b: Tensor, error: Tensor) -> Nearest:
    """Return :func:`rcc2_within`'s points, and what they are.

    ``feasible``: there is a point of the box within the intervals (:func:`~splitvfl.leakage.unit_box.unsolvable`).
    ``certified``: it is that; without, the search for it was lost, or the point is :func:`rcc2` of b. With, no point of
    the box within the intervals is further from it than the root of ``Σ x_i (1 − x_i)``.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.
        error: How far each may be off, >= 0, ``(n, m)``.

    Raises:
        ArgumentError: As :func:`rcc2_within`.
    """
    check_equations(A, b)
    check_error(b, error)
    d, m = A.shape[1], A.shape[0]
    flag = torch.empty((), dtype=torch.bool, device=A.device)
    like = Nearest(torch.empty(d, dtype=torch.float64, device=A.device), flag, flag)
    both = torch.cat([b.double(), error.double()], dim=1)
    return Nearest(
        *in_pieces(lambda part: _within(A.double(), *part.split(m, dim=1)), both, entries=d + m**2, like=like)
    )


def check_error(b: Tensor, error: Tensor) -> None:
    """Refuse errors that are not one finite number of at least 0 for each right side.

    Raises:
        ArgumentError: In these cases, with what came.
    """
    if error.shape != b.shape or not torch.isfinite(error).all() or bool((error < 0).any()):
        raise ArgumentError(
            f"expected errors >= 0 and finite, one for each entry of b {tuple(b.shape)}, got {tuple(error.shape)}"
            f"{f' from {error.min().item():g} to {error.max().item():g}' if error.numel() else ''}"
        )


def _within(A: Tensor, b: Tensor, error: Tensor) -> Nearest:
    """Return the points for some right sides: by projections of x and slack, in which slack weighs next to nothing."""
    d = A.shape[1]
    # Rows of unit length; those of zeros tell nothing and stay out.
    lengths = torch.linalg.vector_norm(A, dim=1)
    told = lengths > 0
    rows, lengths = A[told] / lengths[told].unsqueeze(1), lengths[told]
    targets, wide = b[:, told] / lengths, error[:, told] / lengths
    points = torch.full((len(b), d), 0.5, dtype=torch.float64, device=b.device)
    slack = torch.zeros_like(targets)
    # Each projection pulls the slack, scaled, towards where it was: the proximal point method again.
    unit = torch.eye(len(rows), dtype=torch.float64, device=b.device) / _SLACK_WEIGHT
    both = torch.cat([rows, unit], dim=1)
    box = unit_box(d, A)
    zero, one = box.lower.expand(len(b), -1), box.upper.expand(len(b), -1)
    limits = _SLACK_WEIGHT * wide
    bounds = Bounds(torch.cat([zero, -limits], dim=1), torch.cat([one, limits], dim=1))
    middle = torch.full_like(points, 0.5)
    met = torch.zeros(len(b), dtype=torch.bool, device=b.device)
    moved = torch.full_like(points[:, 0], torch.inf)
    for _ in range(_ROUNDS):
        found = project(both, targets, torch.cat([middle, slack], dim=1), bounds, edges=False)
        # A search that is lost on the way leaves the point before, which lies within the intervals too.
        kept = found.residual.isfinite()
        moved[kept] = (found.points[:, :d] - points).abs().amax(dim=1)[kept]
        points[kept], slack[kept] = found.points[kept, :d], found.points[kept, d:]
        met |= kept
        if bool((~kept | (moved <= _REST)).all()):
            break
    certified = met & (moved <= _AT_REST)
    if not met.all():
        points[~met] = nearest_solution(A, b[~met], 0.5).points
        met[~met] = ~unsolvable(Equations(A, b[~met], error[~met]))
    return Nearest(points, met, certified)


class RCC2Attack(EquationAttack):
    """Estimate a party's features by the solution in their range that is nearest to its middle (RCC2).

    Promises, for every record whose features lie in their range and equations without error: a squared error of at
    most that of guessing ½ for every feature, and of at most that of Half*. The truth where there are as many
    independent equations as features. Not promised: anything of records outside the range.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*; see :func:`rcc2`.
    """

    name: ClassVar[str] = "rcc2"

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`rcc2` of them; where their error is above 0, they are taken as intervals."""
        A, b, error = known
        rounded = (error > 0).any(dim=1)
        points = rcc2(A, b)
        points[rounded] = rcc2_within(A, b[rounded], error[rounded])
        return points
