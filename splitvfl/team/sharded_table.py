"""A table whose rows are divided among the workers of a party: row r is at worker r mod W.

Each worker asks for every row that its records name once a step, whatever the number of records and fields that name
it; the others answer with rows. In the backward pass gradients are summed up row by row where the records are, go home
to who holds the row (:meth:`ShardedTable.bring_home`), and are summed up there: the optimiser of a worker sees the
gradient of its own rows, sparse, and no gradient has ever the size of the table. What a worker holds, weights and state
of the optimiser, is 1/W of what one process would; what a step takes besides is in proportion to its records.

A lookup is something that all workers do together: all call the same ones in the same order, those without records with
no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from splitvfl.learning.row_sums import NamedRows
from splitvfl.team.team import Team

# Rows that are drawn, or written, at a time. A multiple of 16: in so many numbers at once torch draws normal ones, and
# blocks have then the numbers of a table that is drawn as a whole.
_BLOCK: Final = 1 << 16


class ShardedTable(nn.Module):
    """One worker's rows of a table that the workers of a party hold together: w, w + W, w + 2W, … at worker w.

    It stands where a plain table, a parameter ``(count, dim)``, would stand in a layer, and :meth:`whole` is that one.

    Args:
        count: Number of rows of the whole table, at least 1.
        dim: Length of a row.
        team: The workers.
        initialise: Fills a block of rows in place, and returns it; called with blocks of neighbouring rows in their
            order. One that draws entry by entry, with a generator in the same state at all workers, gives the table
            that it would give at once.

    Attributes:
        rows: This worker's rows, ``(about count / W, dim)``.
        sparse: Always true: the gradient of ``rows`` names rows, as optimisers of tables expect it.
    """

    sparse: Final = True

    def __init__(self, count: int, dim: int, team: Team, *, initialise: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.count, self.team = count, team
        self.rows = nn.Parameter(self._drawn(dim, initialise))
        self._gradients: list[tuple[Tensor, Tensor]] = []

    def _drawn(self, dim: int, initialise: Callable[[Tensor], Tensor]) -> Tensor:
        rank, size = self.team.rank, self.team.size
        own = torch.empty(len(range(rank, self.count, size)), dim)
        # The last block is the longer one: of fewer than 16 numbers torch draws others.
        starts = range(0, max(self.count // _BLOCK, 1) * _BLOCK, _BLOCK)
        for start in starts:
            stop = self.count if start == starts[-1] else start + _BLOCK
            block = initialise(torch.empty(stop - start, dim))
            first = (rank - start) % size
            mine = block[first::size]
            own[(start + first) // size :][: len(mine)] = mine
        return own

    def extra_repr(self) -> str:
        """Return which rows it has."""
        return f"rows {self.team.rank} mod {self.team.size} of {self.count:,}, {self.rows.shape[1]} wide"

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows of the whole table, ``(…, dim)``: all workers together, each the ones that it names.

        Args:
            rows: Their numbers, ``(…)``, int64, each from 0 to ``count`` less one; there may be none.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """
        named = NamedRows.of(self._keys(rows.flatten()))
        with torch.no_grad():
            fetched = self._fetched(named.rows)
        found: Tensor = _Spread.apply(self.rows, fetched, self, named)  # type: ignore[no-untyped-call]
        return found.view(*rows.shape, self.rows.shape[1])

    # A row's key puts rows in the order of who holds them, and of where: w · (rows of worker 0) + place there.

    @property
    def _largest(self) -> int:
        return -(-self.count // self.team.size)

    def _keys(self, rows: Tensor) -> Tensor:
        size = self.team.size
        places = rows // size
        return (rows - places * size) * self._largest + places

    def _by_owner(self, keys: Tensor) -> tuple[Tensor, list[int]]:
        """Return places of rows where they are held, and how many are at each worker, given their keys in order."""
        bounds = torch.arange(self.team.size + 1, device=keys.device) * self._largest
        counts = torch.searchsorted(keys, bounds).diff().tolist()
        places = keys % self._largest
        return places.to(torch.int32 if self._largest < 2**31 else torch.int64), counts

    def _fetched(self, keys: Tensor) -> Tensor:
        places, counts = self._by_owner(keys)
        wanted, for_each = self.team.exchange(places, counts)
        fetched, _ = self.team.exchange(self.rows.index_select(0, wanted), for_each, counts)
        return fetched

    # --- gradients

    @property
    def gradients(self) -> list[Tensor]:
        """What this worker's records say of rows, wherever they are held, since it was last forgotten."""
        return [values for _, values in self._gradients]

    def take_gradient(self, keys: Tensor, values: Tensor) -> None:
        """Keep what a backward pass says of the rows of some keys, each named once."""
        self._gradients.append((keys, values))

    def forget_gradients(self) -> None:
        """Forget what backward passes have said."""
        self._gradients.clear()

    def bring_home(self) -> None:
        """Give ``rows`` the gradient that all workers' records have for them, and forget what was said: all together.

        It is sparse, and names each row once.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """
        places, counts, values = self._leaving()
        here, from_each = self.team.exchange(places, counts)
        values, _ = self.team.exchange(values, counts, from_each)
        named = NamedRows.of(here.long())
        self.rows.grad = torch.sparse_coo_tensor(
            named.rows[None], named.sums(values), self.rows.shape, check_invariants=False, is_coalesced=True
        )
        self.forget_gradients()

    def _leaving(self) -> tuple[Tensor, list[int], Tensor]:
        if not self._gradients:
            return (
                *self._by_owner(self.rows.new_empty(0, dtype=torch.int64)),
                self.rows.new_empty(0, self.rows.shape[1]),
            )
        if len(self._gradients) == 1:
            ((keys, values),) = self._gradients
            return (*self._by_owner(keys), values)
        keys, order = torch.cat([keys for keys, _ in self._gradients]).sort(stable=True)
        return (*self._by_owner(keys), torch.cat(self.gradients)[order])

    # --- the whole table

    def whole(self) -> Iterator[Tensor | None]:
        """Yield the whole table in blocks of rows at worker 0, and as many times ``None`` at the others: all together.

        Worker 0 takes memory for about 65 536 rows of every worker.

        Raises:
            TeamError: If a worker could not go on, or is gone.
        """
        for start in range(0, self._largest, _BLOCK):
            parts = self.team.gather(self.rows[start : start + _BLOCK].detach())
            if parts is None:
                yield None
                continue
            block = parts[0].new_empty(sum(map(len, parts)), self.rows.shape[1])
            for rank, part in enumerate(parts):
                block[rank :: self.team.size] = part
            yield block


class _Spread(torch.autograd.Function):
    """Rows that were fetched, each once, at all places that name them; their gradient is kept by the table."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, fetched: Tensor, table: ShardedTable, named: NamedRows) -> Tensor:
        ctx.table, ctx.named = table, named
        return functional.embedding(named.slots, fetched)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        ctx.table.take_gradient(ctx.named.rows, ctx.named.sums(gradient.contiguous()))
        return None, None, None, None
