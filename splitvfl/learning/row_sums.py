"""Sums row by row: of what several records say of one row of a table."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class NamedRows(NamedTuple):
    """Which rows a list of numbers names, and where it names each.

    Attributes:
        rows: Each row that is named, once, in ascending order, ``(k,)``.
        slots: For each place of the list, where its row is among ``rows``, ``(n,)``.
        order: The places of the list, those of the first row first, each row's in the order of the list, ``(n,)``.
        starts: Where in ``order`` the places of each row begin, ``(k,)``.
    """

    rows: Tensor
    slots: Tensor
    order: Tensor
    starts: Tensor

    @classmethod
    def of(cls, numbers: Tensor) -> NamedRows:
        """Return what a list names.

        Args:
            numbers: ``(n,)``, integers; there may be none.
        """
        ordered, order = numbers.sort(stable=True)
        rows, of_ordered, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
        slots = torch.empty_like(of_ordered).scatter_(0, order, of_ordered)
        return cls(rows, slots, order, counts.cumsum(0) - counts)

    def sums(self, values: Tensor) -> Tensor:
        """Return for each row the sum of what is said at the places that name it, ``(k, d)``.

        Each sum is taken in the order of the list, whatever the number of threads.

        Args:
            values: What is said at each place, ``(n, d)``, floating-point.
        """
        # Eight times as fast as index_add_, which goes from row to row, and on a GPU in no fixed order.
        return functional.embedding_bag(self.order, values, self.starts, mode="sum")
