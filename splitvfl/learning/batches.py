"""The order in which records are visited, agreed without a message."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, DataError

Rows = npt.NDArray[np.int64]

MOST_SHARDS = 4096
"""Into how many shards records are divided at most."""

BLOCK_ROWS = 4096
"""Rows in a block where data are read from disk: long enough to be read at one go, the same at every party."""

PIECE_ROWS = 4096
"""Records of a message where all of them are sent once, before the first batch."""

# Blocks that are mixed with one another, at least: as many different places of a file meet in a batch.
_POOL_BLOCKS = 64
# Batches that come out of one pool, at least.
_POOL_BATCHES = 4


class Batches:
    """Shuffled batches that every party computes alike from five numbers.

    Batch ``k`` of epoch ``e`` is a pure function of ``(count, batch_size, seed, block_rows, e, k)``: nothing is
    exchanged, and a run resumes at any place by asking for it. Orders are made by sorting 64-bit keys drawn from
    PCG64, whose stream NumPy promises to keep, so that two organisations agree even with different versions of torch
    and NumPy. The order is public to the parties; it hides nothing.

    With ``block_rows=1`` all records are sorted at once, and every order is equally likely. Larger blocks are for
    tables that lie on a disk: the records are cut into blocks of neighbours; the blocks are shuffled and taken into
    pools of 64 blocks or 4 batches, whichever is more; the records of a pool are shuffled among themselves and cut
    into batches (one may reach from a pool into the next). At any time only the blocks of one or two pools are read,
    and only a pool's order is in memory. It does not make every order equally likely: most batches hold records of one
    pool only. A table that fits into one pool is shuffled as well as with ``block_rows=1``.

    With ``shards=W`` the records are cut into W runs of neighbours, each of which one worker of a party holds: as equal
    as can be, or of the sizes that shards have which lie apart. An epoch has as many batches as without, and every
    shard's records are spread evenly over them, in an order of the shard's own: a batch is what its shards contribute,
    in their order. Each shard's part is of one record more or less in every batch, so that a batch's size differs by at
    most W from any other's, and none is empty. A record is always in the same shard. One shard is no division: it has
    the order of old.

    Args:
        count: Number of records.
        batch_size: Records in a batch, 1 to ``count``.
        seed: Any whole number.
        drop_last: Leave out the records of an epoch that do not fill a batch.
        block_rows: Neighbouring records that stay together until they are in a pool, from 1.
        held_out_every: Of so many neighbours the last one is in no batch: ``position % k == k - 1``, k from 2. Which
            they are is told by arithmetic, and takes no memory. ``None`` holds nothing out.
        shards: Into how many shards the records are divided, from 1.
        sizes: How many records each shard has, where they lie apart. ``None``: one table is cut, as equally as can be.

    Attributes:
        shard: Whose part of each batch these batches are (:meth:`of_shard`); ``None``: all of them.
        held_out: Positions of the records that are in no batch, to validate on; of one shard those in it.
        all_held_out: How many these are in all shards.
        most_held_out: How many these are in the shard that has most of them.

    Raises:
        ArgumentError: If ``block_rows`` or ``shards`` is below 1, ``held_out_every`` below 2, or sizes are not those of
            so many shards and records.
        DataError: If the batch size is below 1 or above the number of records that are not held out, or below the
            number of shards.

    >>> [batch.tolist() for batch in Batches(5, 2, seed=0).epoch(0)]
    [[3, 0], [1, 4], [2]]
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        seed: int,
        drop_last: bool = False,
        block_rows: int = 1,
        held_out_every: int | None = None,
        shards: int = 1,
        sizes: Sequence[int] | None = None,
    ) -> None:
        if held_out_every is not None and held_out_every < 2:
            raise ArgumentError(f"expected held_out_every from 2, got {held_out_every}")
        if shards < 1:
            raise ArgumentError(f"expected shards from 1, got {shards}")
        if sizes is not None and (len(sizes) != shards or sum(sizes) != count or min(sizes) < 0):
            raise ArgumentError(f"expected sizes of {shards} shards that add up to {count}, got {list(sizes)}")
        self._every = held_out_every
        self._bounds = (
            [number * count // shards for number in range(shards + 1)] if sizes is None else [0, *accumulate(sizes)]
        )
        held_out = range(0) if held_out_every is None else range(held_out_every - 1, count, held_out_every)
        self.all_held_out = len(held_out)
        self.most_held_out = max(len(_between(held_out, first, last)) for first, last in pairwise(self._bounds))
        self._apart, self._origin = sizes is not None, 0
        self.held_out = held_out
        self.shards = shards
        self.shard: int | None = None
        count -= len(held_out)
        if not 1 <= batch_size <= count:
            raise DataError(f"expected a batch size from 1 to the {count} records there are, got {batch_size}")
        if batch_size < shards:
            raise DataError(f"expected batches of {shards} records at least, one of each shard, got {batch_size}")
        if block_rows < 1:
            raise ArgumentError(f"expected block_rows from 1, got {block_rows}")
        self.count = count
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.block_rows = block_rows

    def of_shard(self, number: int) -> Batches:
        """Return one shard's part of each of these batches.

        Positions are among all records nevertheless; of a shard that lies apart they are counted from its own first
        record, as who has it has no other.

        Args:
            number: The shard's, from 0.

        Raises:
            ArgumentError: If no shard has this number.
        """
        if not 0 <= number < self.shards:
            raise ArgumentError(f"expected one of {self.shards} shards, got number {number}")
        part = copy.copy(self)
        first, last = self._bounds[number : number + 2]
        part.shard, part._origin = number, first if self._apart else 0
        held_out = _between(self.held_out, first, last)
        part.held_out = range(held_out.start - part._origin, held_out.stop - part._origin, held_out.step)
        return part

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self.count // self.batch_size if self.drop_last else -(-self.count // self.batch_size)

    def epoch(self, number: int) -> Sequence[Tensor]:
        """Return the batches of an epoch: positions of records, int64, each position at most once.

        With ``block_rows=1`` they are there at once, 8 bytes a record. With larger blocks each is made when it is
        asked for, and a slice costs nothing: ``epoch(3)[20_000:]`` goes on in the middle of 10⁸ records.

        Args:
            number: The epoch, from 0.

        Raises:
            ArgumentError: If the number is negative.
        """
        if number < 0:
            raise ArgumentError(f"expected an epoch from 0, got {number}")
        if self.shards > 1:
            chosen = range(self.shards) if self.shard is None else (self.shard,)
            shards = [_Shard(self, one, number) for one in chosen]
            return _Made(lambda place: torch.cat([shard.rows(place) for shard in shards]), range(len(self)))
        if self.block_rows > 1:
            pools = _Pools(self.count, self.batch_size, self.block_rows, f"{self.seed} {number}")
            return _Made(lambda place: self._in_pools(pools, place), range(len(self)))
        order = torch.from_numpy(self.positions(_shuffled(self.count, f"{self.seed} {number}")))
        size = self.batch_size
        return tuple(order[start : start + size] for start in range(0, len(self) * size, size))

    def _in_pools(self, pools: _Pools, place: int) -> Tensor:
        start = place * self.batch_size
        return torch.from_numpy(self.positions(pools.rows(start, min(start + self.batch_size, self.count))))

    def positions(self, places: Rows) -> Rows:
        """Return the positions of records, given their places among those that are not held out."""
        return (places if self._every is None else places + places // (self._every - 1)) - self._origin

    def whole(self, place: int) -> int:
        """Return how many records all shards together have in a batch, by its place in the epoch."""
        if self.shards == 1:
            return min(self.batch_size, self.count - place * self.batch_size)
        return sum(stop - start for start, stop in (self.part(shard, place) for shard in range(self.shards)))

    def part(self, shard: int, place: int) -> tuple[int, int]:
        """Return from where to where in a shard's order its part of a batch reaches."""
        first, last = self.places(shard)
        taken = len(self) * self.batch_size if self.drop_last else self.count
        count = (last - first) * taken // self.count
        # Shifted from shard to shard, so that not all of them have their larger parts in the same batches.
        steps, shift = len(self), len(self) * shard // self.shards
        return (place * count + shift) // steps, ((place + 1) * count + shift) // steps

    @property
    def own_count(self) -> int:
        """How many records are in these batches: those of its shard, or all."""
        first, last = self._own
        return last - first

    def own_positions(self, places: Rows) -> Rows:
        """Return the positions of records, given their places among those that are in these batches."""
        return self.positions(self._own[0] + places)

    @property
    def _own(self) -> tuple[int, int]:
        return (0, self.count) if self.shard is None else self.places(self.shard)

    def places(self, shard: int) -> tuple[int, int]:
        """Return from where to where a shard reaches among the records that are not held out."""
        first, last = self._bounds[shard : shard + 2]
        return (first, last) if self._every is None else (first - first // self._every, last - last // self._every)


class _Pools:
    """The records of one epoch in their order, made pool by pool.

    Every pool has as many blocks, and every block as many records, but for the last ones: the last pool, and the
    block at the end of the table, which may come anywhere.
    """

    def __init__(self, count: int, batch_size: int, block_rows: int, purpose: str) -> None:
        self._count, self._size = count, block_rows
        self._purpose = f"{purpose} blocks of {self._size}"
        self._blocks = _shuffled(-(-self._count // self._size), self._purpose)
        self._in_pool = max(_POOL_BLOCKS, -(-_POOL_BATCHES * batch_size // self._size))
        self._missing = self._blocks.size * self._size - self._count
        self._short = int(np.flatnonzero(self._blocks == self._blocks.size - 1)[0]) // self._in_pool
        # A batch lies in two pools at most; whoever goes through an epoch makes each pool once.
        self._pool = lru_cache(maxsize=2)(self._make)

    def rows(self, start: int, stop: int) -> Rows:
        """Return the records from one place in the order to another."""
        # After a pool with the short block this is one too low, and the first part empty.
        number = start // (self._in_pool * self._size)
        parts = []
        while start < stop:
            first = self._start(number)
            part = self._pool(number)[start - first : stop - first]
            parts.append(part)
            start, number = start + part.size, number + 1
        return np.concatenate(parts)

    def _start(self, pool: int) -> int:
        return pool * self._in_pool * self._size - (self._missing if pool > self._short else 0)

    def _make(self, pool: int) -> Rows:
        blocks = self._blocks[pool * self._in_pool : (pool + 1) * self._in_pool]
        rows = (blocks[:, None] * self._size + np.arange(self._size)).reshape(-1)
        rows = rows[rows < self._count]
        return rows[_shuffled(rows.size, f"{self._purpose} pool {pool}")]


class _Shard:
    """One shard's part of every batch of an epoch, in an order of its own."""

    def __init__(self, batches: Batches, shard: int, epoch: int) -> None:
        self._batches, self._shard = batches, shard
        self._first, last = batches.places(shard)
        count, purpose = last - self._first, f"{batches.seed} {epoch} shard {shard} of {batches.shards}"
        if batches.block_rows > 1 and count > 0:
            largest = max(1, -(-count // len(batches)))
            self._rows = _Pools(count, largest, batches.block_rows, purpose).rows
        else:
            order = _shuffled(count, purpose)
            self._rows = lambda start, stop: order[start:stop]

    def rows(self, place: int) -> Tensor:
        """Return the positions of its records in a batch; there may be none."""
        start, stop = self._batches.part(self._shard, place)
        places = self._rows(start, stop) if stop > start else np.empty(0, np.int64)
        return torch.from_numpy(self._batches.positions(self._first + places))


class _Made(Sequence[Tensor]):
    """The batches of one epoch, each made when it is asked for.

    Args:
        make: Makes the batch of a number.
        numbers: Those of the batches.
    """

    def __init__(self, make: Callable[[int], Tensor], numbers: range) -> None:
        self._make, self._numbers = make, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> Tensor: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Tensor]: ...

    def __getitem__(self, place: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(place, slice):
            return _Made(self._make, self._numbers[place])
        return self._make(self._numbers[place])


def _between(positions: range, first: int, last: int) -> range:
    """Return those of evenly spaced positions that lie from one to below another."""
    step = positions.step
    return positions[max(0, -(-(first - positions.start) // step)) : max(0, -(-(last - positions.start) // step))]


def _shuffled(count: int, purpose: str) -> Rows:
    """Return 0 … count−1 in an order that follows from the purpose."""
    # Hashed together: with seed + epoch, epoch 1 of seed 0 would be epoch 0 of seed 1.
    digest = hashlib.blake2b(f"splitvfl batches {purpose}".encode(), digest_size=16).digest()
    keys = np.random.PCG64(int.from_bytes(digest, "little")).random_raw(count)
    return _sorting(keys)


def _sorting(keys: npt.NDArray[np.uint64]) -> Rows:
    """Return the positions that sort the keys, equal ones in their order: the same at every version of NumPy."""
    # Five times faster than a stable sort, and the same wherever no two keys are equal: nearly always.
    order = np.argsort(keys)
    ordered = keys[order]
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order
