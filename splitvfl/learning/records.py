"""Numbers kept per record id, for as long as a run lasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Ids = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int64]

# Ids below this are their own slot (row numbers, the common case): at most 16 MiB per column of doubles.
DENSE_LIMIT = 1 << 21

# The share of cells that are in use at most: beyond it, neighbours are searched for long.
_LOAD = 0.6


class RecordTable:
    """Maps record ids to slots of growing columns.

    Ids that are small and not negative index the columns directly; as soon as one is not, ids are looked up in a hash
    table. Both take time in proportion to the ids asked for, however many records there are. Memory grows with the
    number of records (or the largest id, while ids are small), never with time; a hashed record takes 8 bytes and 20
    to 40 more, beside its columns.

    Args:
        columns: Column names and their dtypes; new records start at zero.
    """

    def __init__(self, **columns: type[np.generic]) -> None:
        self._dtypes = {name: np.dtype(dtype) for name, dtype in columns.items()}
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.zeros(0, dtype) for name, dtype in self._dtypes.items()}
        self._index: _HashTable | None = None
        self._size = 0

    def __len__(self) -> int:
        """Number of slots: of records that were met, or the largest id and one more."""
        return self._size

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """Return one column, indexed by slot; a view that may be written to until the next new id."""
        return self._columns[column][: self._size]

    def slots(self, ids: Ids) -> Slots:
        """Return the slot of each id, making room for new ones."""
        if ids.size == 0:
            return ids
        if self._index is None:
            if ids.min() >= 0 and ids.max() < DENSE_LIMIT:
                self._grow(int(ids.max()) + 1)
                return ids
            self._index = _HashTable()
            self._index.add(np.arange(self._size, dtype=np.int64), np.arange(self._size, dtype=np.int64))
        return self._look_up(self._index, ids)

    def find(self, ids: Ids) -> Slots:
        """Return the slot of each id, and −1 for ids that have none; no room is made."""
        if self._index is not None:
            return self._index.find(ids)
        return np.where((ids >= 0) & (ids < self._size), ids, -1)

    def ids(self, slots: Slots) -> Ids:
        """Return the ids of records by their slots."""
        if self._index is None:
            return slots
        ids, places = self._index.pairs()
        found = np.zeros(self._size, np.int64)
        found[places] = ids
        return found[slots]

    def _look_up(self, index: _HashTable, ids: Ids) -> Slots:
        found = index.find(ids)
        new = np.unique(ids[found < 0])
        if new.size == 0:
            return found
        index.add(new, np.arange(self._size, self._size + new.size))
        self._grow(self._size + new.size)
        return index.find(ids)

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
        ids, slots = (None, np.zeros(0, np.int64)) if self._index is None else self._index.pairs()
        return {
            "columns": {name: torch.from_numpy(self[name].copy()) for name in self._columns},
            "ids": None if ids is None else torch.from_numpy(ids),
            "slots": torch.from_numpy(slots),
            "size": self._size,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        saved, self._size = state["columns"], state["size"]
        # A column that an earlier version did not keep starts at zero.
        self._columns = {
            name: saved[name].numpy().copy() if name in saved else np.zeros(self._size, dtype)
            for name, dtype in self._dtypes.items()
        }
        self._index = None
        if state["ids"] is not None:
            self._index = _HashTable()
            self._index.add(state["ids"].numpy(), state["slots"].numpy())


class _HashTable:
    """A hash table from ids to slots, asked for whole arrays at a time: open addressing, linear probing."""

    def __init__(self) -> None:
        self._used = 0
        self._clear(1 << 10)

    def _clear(self, cells: int) -> None:
        self._ids = np.zeros(cells, np.int64)
        self._slots = np.full(cells, -1, np.int64)  # every number may be an id: it is the slot that says "empty"

    def find(self, ids: Ids) -> Slots:
        """Return the slot of each id, −1 for unknown ones."""
        found = np.full(ids.size, -1, np.int64)
        cells, pending = self._first_cells(ids), np.arange(ids.size)
        while pending.size:
            slots = self._slots[cells]
            met = self._ids[cells] == ids[pending]
            found[pending[met]] = slots[met]
            # An empty cell has slot -1, so that an id equal to its content is rightly unknown.
            going = ~met & (slots >= 0)
            pending, cells = pending[going], (cells[going] + 1) & (self._ids.size - 1)
        return found

    def add(self, ids: Ids, slots: Slots) -> None:
        """Put in ids that are unknown, each once."""
        self._reserve(self._used + ids.size)
        self._place(ids, slots)
        self._used += ids.size

    def pairs(self) -> tuple[Ids, Slots]:
        """Return all ids and their slots."""
        taken = self._slots >= 0
        return self._ids[taken], self._slots[taken]

    def _reserve(self, count: int) -> None:
        cells = self._ids.size
        while count > _LOAD * cells:
            cells *= 2
        if cells > self._ids.size:
            pairs = self.pairs()
            self._clear(cells)
            self._place(*pairs)

    def _place(self, ids: Ids, slots: Slots) -> None:
        cells = self._first_cells(ids)
        while ids.size:
            free = self._slots[cells] < 0
            # Of several that want one cell the last gets it, for both arrays alike; the others go on.
            self._ids[cells[free]], self._slots[cells[free]] = ids[free], slots[free]
            going = self._slots[cells] != slots
            ids, slots, cells = ids[going], slots[going], (cells[going] + 1) & (self._ids.size - 1)

    def _first_cells(self, ids: Ids) -> Slots:
        """Return where the search for each id starts: its low bits after the last mixing step of SplitMix64."""
        mixed = ids.astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        return (mixed & np.uint64(self._ids.size - 1)).astype(np.int64)
