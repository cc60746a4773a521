"""What estimates of columns are off by, added up, and the worst epoch of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 1e-12
"""Of a mean square, in float64: a smaller variance is none."""


class ColumnErrors:
    """What estimates are off by, squared and added up by column, beside the spread of what was estimated.

    Attributes:
        sums: Squares, ``(columns,)``.
        right: How many categories of each group were right, ``(groups,)``.
        exact: Of how many records every column was right; NaN: a checkpoint is older than this.
        count: Number of records.
    """

    def __init__(self, columns: int, groups: int = 0) -> None:
        self.sums, self._first, self._second = (torch.zeros(columns, dtype=torch.float64) for _ in range(3))
        self.right = torch.zeros(groups, dtype=torch.float64)
        self.count, self.exact = 0, 0.0

    @classmethod
    def of(
        cls,
        sums: Tensor,
        first: Tensor,
        second: Tensor,
        count: int,
        right: Tensor | None = None,
        exact: float = math.nan,
    ) -> ColumnErrors:
        """Return what :meth:`state` returned."""
        errors = cls(0)
        errors.sums, errors._first, errors._second, errors.count = sums.clone(), first.clone(), second.clone(), count
        errors.right, errors.exact = errors.right if right is None else right.clone(), exact
        return errors

    def add(self, off: Tensor, truth: Tensor, right: Tensor | None = None, exact: float = 0.0) -> None:
        """Add records.

        Args:
            off: What their estimates are off by.
            truth: Their columns less a number that is near their mean.
            right: How many of their categories are right, by group.
            exact: Of how many of them every column is right.
        """
        self.sums = self.sums + off.square().sum(dim=0)
        self._first, self._second = self._first + truth.sum(dim=0), self._second + truth.square().sum(dim=0)
        self.right = self.right if right is None else self.right + right
        self.exact += exact
        self.count += len(off)

    @property
    def mean(self) -> Tensor:
        """Mean of each column less that number, ``(columns,)``."""
        return self._first / self.count

    @property
    def variance(self) -> Tensor:
        """Variance of each column among these records, ``(d,)``; 0 where they are alike but for rounding."""
        second = self._second / self.count
        variance = second - (self._first / self.count).square()
        # Of numbers that are all the same rounding leaves a variance, of which any estimate would recover all.
        return torch.where(variance > ROUNDING * second, variance, 0.0)

    @property
    def shares(self) -> Tensor:
        """Share of each column's variance that is recovered, ``(d,)``; NaN where nothing was judged."""
        if not self.count:
            return torch.full_like(self.sums, math.nan)
        # A column that does not vary among these records has nothing to recover.
        variance = self.variance
        shares = 1 - self.sums / self.count / variance.clamp_min(torch.finfo(torch.float64).tiny)
        return torch.where(variance > 0, shares, 0.0).clamp_min(0.0)

    @property
    def exact_share(self) -> float:
        """Share of records of which every column was right; NaN where nothing was judged, or nobody counted."""
        return self.exact / self.count if self.count else math.nan

    def state(self) -> tuple[Tensor, Tensor, Tensor, int, Tensor, float]:
        """Return the sums."""
        return self.sums, self._first, self._second, self.count, self.right, self.exact


@dataclass(frozen=True, slots=True)
class WorstEpoch:
    """The worst epoch of a run so far.

    Attributes:
        shares: The largest share of each column in any epoch, ``(columns,)``.
        share: The largest mean over columns.
        epoch: In which epoch that was, from 1; 0: nobody counted.
        epochs: Number of epochs that have ended.
        judged: Whether anything was judged in one of them.
        exact: The largest share of records of which every column was right.
    """

    shares: Tensor
    share: float = 0.0
    epoch: int = 0
    epochs: int = 0
    judged: bool = False
    exact: float = 0.0

    def with_epoch(self, shares: Tensor, share: float, epoch: int, exact: float = 0.0) -> WorstEpoch:
        """Return the worst of these epochs and another one."""
        share, epoch = (share, epoch) if share > self.share or not self.judged else (self.share, self.epoch)
        most = self.exact if math.isnan(exact) else max(self.exact, exact)
        return WorstEpoch(torch.maximum(self.shares, shares), share, epoch, self.epochs, judged=True, exact=most)

    def state(self) -> tuple[Tensor, float, int, int, bool, float]:
        """Return what it is made of."""
        return self.shares, self.share, self.epoch, self.epochs, self.judged, self.exact


def shares_recovered(estimate: Tensor, truth: Tensor) -> Tensor:
    """Return which share of each column's variance estimates recover, ``(d,)``, float64, in [0, 1].

    Args:
        estimate: ``(n, d)``.
        truth: The same records' columns, ``(n, d)``.

    >>> truth = torch.tensor([[0.0, 1.0], [2.0, 1.0]])
    >>> shares_recovered(torch.tensor([[0.5, 1.0], [1.5, 1.0]]), truth).tolist()
    [0.75, 0.0]
    """
    errors, true = ColumnErrors(truth.shape[1]), truth.double()
    errors.add(estimate.double() - true, true - true.mean(dim=0))
    return errors.shares
