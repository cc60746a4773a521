"""The box in which a partner's columns lie, and the unit box in which attacks look for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations
from splitvfl.leakage.score_equations import RANK_TOLERANCE

# How often points are projected by turns before a linear program is asked.
_ROUNDS = 200
# What such a program may miss equations by, over their length: its own tolerance.
_PROGRAM_WITHIN = 1e-7


@dataclass(frozen=True, eq=False)
class Box:
    """The known range of every column: maps equations, columns and estimates to the unit box [0, 1]^d and back.

    ``x = lower + (upper − lower) t`` with t in the unit box. A column with ``lower = upper`` is known: it becomes a
    column of zeros of A, its share of b is taken off, and its t is x − lower, 0 unless a record lies beyond the range.
    A record beyond the range has entries of t outside [0, 1]: its equations need not have a solution in the box.

    Args:
        lower: Smallest value of each column, ``(d,)``.
        upper: Largest value.

    Raises:
        ArgumentError: If shapes differ, there is no column, a range is empty, or an end is NaN or infinite: attacks
            need a range, and a column that has none has to be scaled first.
    """

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        """Check the ranges, and keep them in float64."""
        lower, upper = (torch.as_tensor(end, dtype=torch.float64) for end in (self.lower, self.upper))
        if lower.dim() != 1 or lower.shape != upper.shape or not lower.numel():
            raise ArgumentError(
                f"expected a lower and an upper end of each column, (d,), got {tuple(lower.shape)} and "
                f"{tuple(upper.shape)}"
            )
        endless = ~(torch.isfinite(lower) & torch.isfinite(upper))
        if bool(endless.any()):
            raise ArgumentError(
                f"column {int(endless.nonzero()[0, 0])} has no finite range: estimates are sought in a box, so give "
                "it the smallest and the largest value that it can take, or scale it to a range first"
            )
        if bool((lower > upper).any()):
            place = int((lower > upper).nonzero()[0, 0])
            raise ArgumentError(
                f"the range of column {place} is empty: expected lower <= upper, got {lower[place].item()} and "
                f"{upper[place].item()}"
            )
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @classmethod
    def of(cls, columns: Tensor) -> Box:
        """Return the ranges of these columns, ``(n, d)`` with n >= 1.

        Raises:
            ArgumentError: If there is no record, or an entry is not finite.
        """
        if columns.dim() != 2 or not columns.shape[0]:
            raise ArgumentError(f"expected columns (n, d) of at least one record, got {tuple(columns.shape)}")
        return cls(columns.amin(dim=0), columns.amax(dim=0))

    @classmethod
    def joined(cls, boxes: Sequence[Box]) -> Box:
        """Return the box of several parties' columns side by side."""
        return cls(torch.cat([box.lower for box in boxes]), torch.cat([box.upper for box in boxes]))

    @property
    def width(self) -> Tensor:
        """``upper − lower``, ``(d,)``."""
        return self.upper - self.lower

    @property
    def varying(self) -> Tensor:
        """Which columns have more than one value, ``(d,)`` bool."""
        return self.upper > self.lower

    @property
    def largest(self) -> Tensor:
        """Largest absolute value of each column, ``(d,)``."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def to_unit(self, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(A, b)`` in the unit box: ``A diag(width) t = b − A lower``.

        Args:
            A: ``(m, d)``.
            b: ``(n, m)``.

        Returns:
            The same shapes, float64.

        Raises:
            ArgumentError: If shapes do not fit.
        """
        if A.dim() != 2 or A.shape[1] != self.lower.numel() or b.dim() != 2 or b.shape[1] != A.shape[0]:
            raise ArgumentError(
                f"expected A (m, {self.lower.numel()}) and b (n, m), got {tuple(A.shape)} and {tuple(b.shape)}"
            )
        left = A.double()
        return left * self.width.to(left.device), b.double() - left @ self.lower.to(left.device)

    def equations(self, known: Equations) -> Equations:
        """Return equations in the unit box, all errors finite.

        An infinite error becomes the distance to what the box allows: it holds for every record in the box.
        """
        left, right = self.to_unit(known.A, known.b)
        low, high = left.clamp(max=0.0).sum(dim=1), left.clamp(min=0.0).sum(dim=1)
        allowed = torch.maximum((right - low).abs(), (high - right).abs())
        return Equations(left, right, torch.where(known.error.isinf(), allowed, known.error))

    def unit(self, columns: Tensor) -> Tensor:
        """Return columns ``(n, d)`` as points of the unit box, float64; outside [0, 1] where they exceed the range."""
        self._check(columns)
        width = self.width.to(columns.device)
        return (columns.double() - self.lower.to(columns.device)) / torch.where(width > 0, width, 1.0)

    def columns(self, estimate: Tensor) -> Tensor:
        """Return points of the unit box, ``(n, d)``, as columns, float64; a column without a range has its value."""
        self._check(estimate)
        return self.lower.to(estimate.device) + estimate.double() * self.width.to(estimate.device)

    def outside(self, columns: Tensor) -> Tensor:
        """Return which records lie beyond the range in some column, ``(n,)`` bool; roundings do not count."""
        points = self.unit(columns)
        largest = self.varying.to(points.device).double()  # 0 where there is one value
        return ((points < -1e-9) | (points > largest + 1e-9)).any(dim=1)

    def _check(self, columns: Tensor) -> None:
        if columns.dim() != 2 or columns.shape[1] != self.lower.numel():
            raise ArgumentError(f"expected (n, {self.lower.numel()}), got {tuple(columns.shape)}")


def unsolvable(known: Equations) -> Tensor:
    """Return for which predictions no point of the unit box solves every equation within its error, ``(n,)``, bool.

    Decided to 1e-7 of each equation's length. Points are projected on the equations and on the box
    by turns: either one is found that is in both, or a direction in which they lie apart. What neither is found for
    soon, on the border, a linear program decides.

    Args:
        known: Equations in the unit box.

    Raises:
        ArgumentError: If an entry is not finite.

    >>> known = Equations(torch.ones(1, 2), torch.tensor([[2.0], [2.2], [2.4]]), torch.tensor([[0.0], [0.3], [0.3]]))
    >>> unsolvable(known).tolist()
    [False, False, True]
    """
    A, b, error = (part.double() for part in known)
    if not all(bool(torch.isfinite(part).all()) for part in (A, b, error)):
        raise ArgumentError("expected finite equations, got NaN or infinite values; Box.equations bounds the errors")
    slack = error + 1e-9 * A.abs().sum(dim=1)
    found = torch.zeros(len(b), dtype=torch.bool, device=b.device)
    left = torch.arange(len(b), device=b.device)
    points = torch.full((len(b), A.shape[1]), 0.5, dtype=torch.float64, device=b.device)
    inverse: Tensor = torch.linalg.pinv(A, rtol=RANK_TOLERANCE)
    for _ in range(_ROUNDS):
        if not len(left):
            return found
        reached = points @ A.T
        missing = torch.clamp(reached, b[left] - slack[left], b[left] + slack[left]) - reached
        way = missing @ inverse.T
        apart = _apart(A, b[left], slack[left], way @ inverse)
        found[left] = apart
        kept = ~apart & (missing != 0).any(dim=1)
        left, points = left[kept], (points + way)[kept].clamp(0.0, 1.0)
    for place in left.tolist():
        found[place] = _has_no_point(A, b[place], slack[place])
    return found


def _apart(A: Tensor, b: Tensor, slack: Tensor, weights: Tensor) -> Tensor:
    """Return where all of the box lies on one side of what a sum of the equations, so weighted, allows."""
    least = (weights * b - weights.abs() * slack).sum(dim=1)
    return (weights @ A).clamp(min=0.0).sum(dim=1) < least


def _has_no_point(A: Tensor, b: Tensor, slack: Tensor) -> bool:
    """Return whether all points miss the equations of one prediction; a linear program says by how much at least."""
    rows, low, high = A.cpu().numpy(), (b - slack).cpu().numpy(), (b + slack).cpu().numpy()
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    limits = np.vstack([np.hstack([rows, -sizes]), np.hstack([-rows, -sizes])])
    costs = np.eye(rows.shape[1] + 1)[-1]
    box = [(0.0, 1.0)] * rows.shape[1] + [(0.0, None)]
    solved = scipy.optimize.linprog(costs, A_ub=limits, b_ub=np.concatenate([high, -low]), bounds=box, method="highs")
    return not (solved.status == 0 and solved.fun <= _PROGRAM_WITHIN)
