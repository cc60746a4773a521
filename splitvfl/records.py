"""Numbers kept per record id, for as long as a run lasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Ids = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int64]

# Ids below this are their own slot (row numbers, the common case): at most 128 MiB per column of doubles.
DENSE_LIMIT = 1 << 24


class RecordTable:
    """Maps record ids to slots of growing columns.

    Ids that are small and not negative index the columns directly; as soon as one is not, ids are looked up in a
    sorted list. Memory grows with the number of records (or the largest id, while ids are small), never with time.

    Args:
        columns: Column names and their dtypes; new records start at zero.
    """

    def __init__(self, **columns: type[np.generic]) -> None:
        self._dtypes = {name: np.dtype(dtype) for name, dtype in columns.items()}
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.zeros(0, dtype) for name, dtype in self._dtypes.items()}
        self._sorted_ids: Ids | None = None
        self._sorted_slots: Slots = np.zeros(0, np.int64)
        self._size = 0

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """Return one column, indexed by slot; a view that may be written to until the next new id."""
        return self._columns[column][: self._size]

    def slots(self, ids: Ids) -> Slots:
        """Return the slot of each id, making room for new ones."""
        if ids.size == 0:
            return ids
        if self._sorted_ids is None:
            if ids.min() >= 0 and ids.max() < DENSE_LIMIT:
                self._grow(int(ids.max()) + 1)
                return ids
            self._sorted_ids = np.arange(self._size, dtype=np.int64)
            self._sorted_slots = self._sorted_ids.copy()
        return self._look_up(ids)

    def _look_up(self, ids: Ids) -> Slots:
        assert self._sorted_ids is not None
        new = np.setdiff1d(ids, self._sorted_ids)
        if new.size:
            merged = np.concatenate([self._sorted_ids, new])
            slots = np.concatenate([self._sorted_slots, np.arange(self._size, self._size + new.size)])
            order = np.argsort(merged, kind="stable")
            self._sorted_ids, self._sorted_slots = merged[order], slots[order]
            self._grow(self._size + new.size)
        return self._sorted_slots[np.searchsorted(self._sorted_ids, ids)]

    def _grow(self, size: int) -> None:
        if size <= self._size:
            return
        for name, column in self._columns.items():
            if size > column.size:
                wider = np.zeros(max(size, 2 * column.size), self._dtypes[name])
                wider[: self._size] = column[: self._size]
                self._columns[name] = wider
        self._size = size

    def state_dict(self) -> dict[str, Any]:
        """Return tensors only, fit for a checkpoint."""
        return {
            "columns": {name: torch.from_numpy(self[name].copy()) for name in self._columns},
            "ids": None if self._sorted_ids is None else torch.from_numpy(self._sorted_ids),
            "slots": torch.from_numpy(self._sorted_slots),
            "size": self._size,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._columns = {name: column.numpy().copy() for name, column in state["columns"].items()}
        self._sorted_ids = None if state["ids"] is None else state["ids"].numpy().copy()
        self._sorted_slots = state["slots"].numpy().copy()
        self._size = state["size"]
