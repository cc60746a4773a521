"""Scores added up per record, whatever the labels are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from splitvfl.learning.records import Ids, RecordTable, Slots
from splitvfl.metrics import in_the_middle

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Labels = npt.NDArray[Any]

_MOST_PENDING = 1 << 16
_MOST_PENDING_STEPS = 1 << 10
# Over so many records the AUC of sums has a standard error of .001 even with one positive in thirty; a table of them
# takes 100 MiB for every attack.
MOST_RECORDS = 1 << 21
"""About so many records have sums; in a shuffled order they are a random sample."""


class RecordSums(ABC):
    """Scores added up per record; of about the first two million that are met.

    Args:
        last: Whether the last score of a record counts in place of a sum.
        columns: What a record has beside its number of scores, and their dtypes.
    """

    def __init__(self, *, last: bool, **columns: type[np.generic]) -> None:
        self._last = last
        self._pending: list[tuple[Ids, npt.NDArray[Any], Labels]] = []
        self._pending_numbers = 0
        self._records = RecordTable(count=np.int64, **columns)

    def add(self, ids: Ids, scores: npt.NDArray[Any], labels: Labels) -> None:
        """Add scores to their records' sums, or keep them in their place; NaN where a record was left out.

        Args:
            ids: ``(n,)``.
            scores: ``(n,)``, or ``(n, m)``.
            labels: ``(n,)``.
        """
        if not ids.size:
            return
        self._pending.append((ids, scores, labels))
        self._pending_numbers += scores.size
        # Of canaries a batch may hold one: many steps are few rows, and each is three arrays.
        if self._pending_numbers >= _MOST_PENDING or len(self._pending) >= _MOST_PENDING_STEPS:
            self._settle()

    def replace(self, ids: Ids, scores: Floats) -> None:
        """Put scores in place of those of records that were met; of others nothing is kept.

        Args:
            ids: ``(n,)``, each once.
            scores: ``(n,)``, or ``(n, m)``; NaN where a record is left out.
        """
        self._settle()
        slots = self._records.find(ids)
        known = slots >= 0
        known[known] = self._met()[slots[known]]
        slots, scores = slots[known], scores[known]
        scored = ~(np.isnan(scores) if scores.ndim == 1 else np.isnan(scores).any(axis=1))
        self._totals(scores)[slots[scored]] = scores[scored]
        self._records["count"][slots] = scored

    def _settle(self) -> None:
        """Add what is pending to the records; many steps at once cost far less than one by one."""
        if not self._pending:
            return
        ids, scores, labels = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._pending_numbers = [], 0
        if len(self._records) < self._most(scores):
            slots = self._records.slots(ids)
        else:
            slots = self._records.find(ids)
            kept = slots >= 0
            slots, scores, labels = slots[kept], scores[kept], labels[kept]
        self._meet(slots, labels)
        left_out = np.isnan(scores) if scores.ndim == 1 else np.isnan(scores).any(axis=1)
        if left_out.any():
            slots, scores = slots[~left_out], scores[~left_out]
        totals = self._totals(scores)
        if self._last:
            totals[slots] = scores  # of several of one record the last counts: numpy assigns in order
        else:
            # In the sums' own dtype: numpy adds thirty times slower where it has to convert.
            np.add.at(totals, slots, scores.astype(np.float64))
        np.add.at(self._records["count"], slots, 1)

    def _most(self, scores: npt.NDArray[Any], /) -> int:
        """Return how many records may have sums of such scores."""
        return MOST_RECORDS

    def _totals(self, scores: npt.NDArray[Any], /) -> Floats:
        """Return the sums by slot, to be written to: room for such scores in every slot there is."""
        return self._records["total"]

    @abstractmethod
    def _meet(self, slots: Slots, labels: Labels, /) -> None:
        """Note the labels of records that are met."""

    @abstractmethod
    def _met(self) -> Flags:
        """Return which slots are of records that were met, scored or not."""

    @abstractmethod
    def _labels(self, chosen: Flags, /) -> Labels:
        """Return the labels of these slots."""

    def _sums(self, chosen: Flags, /) -> Floats:
        """Return the sums of these slots; those of records that were never scored are in the middle."""
        return in_the_middle(self._records["total"][chosen], self._records["count"][chosen] > 0)

    @property
    def scored(self) -> int:
        """Number of records that were scored at least once."""
        self._settle()
        return int(np.count_nonzero(self._records["count"]))

    def of_scored(self) -> tuple[Floats, Labels]:
        """Return the sums and the labels of the records that were scored at least once."""
        self._settle()
        chosen = self._records["count"] > 0
        return self._sums(chosen), self._labels(chosen)

    def of_all(self) -> tuple[Floats, Labels]:
        """Return the same of all records that were met."""
        self._settle()
        chosen = self._met()
        return self._sums(chosen), self._labels(chosen)

    def of(self, ids: Ids) -> Floats:
        """Return the sums of these records, ``(n,)``; those of records that were never scored are in the middle."""
        self._settle()
        slots = self._records.find(ids)
        scored = slots >= 0
        scored[scored] = self._records["count"][slots[scored]] > 0
        found = np.zeros(ids.size)
        found[scored] = self._records["total"][slots[scored]]
        return in_the_middle(found, scored)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers, fit for a checkpoint."""
        self._settle()
        return self._records.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._pending, self._pending_numbers = [], 0
        self._records.load_state_dict(state)
