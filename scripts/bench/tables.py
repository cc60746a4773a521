"""Tables of two workers, replicated and divided: what looking up, the sum of gradients and the optimiser's step take.

Two processes on one machine, each on one core and one thread, joined by gloo over loopback. The table is that of
``scripts.bench.cut``: 26 fields of 50 000 categories by 12, under Zipf's law or all alike; its optimiser is row-wise
Adagrad. A step is what training does with the table: vectors for the records, gradients back, the sum over workers, the
rows' step. With replicas every worker gets the gradients of all records and moves all rows that they name; divided, it
asks for each row that its records name once, and moves its own. Beside them, one process with all records. Steps of all
three ways are timed in turn. Run ``python -m scripts.bench.tables [--quick] [--json OUT]``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Final

import torch
from torch import Tensor, nn

from scripts.bench.cut import DIM, FIELDS, ROWS
from scripts.bench.measuring import Result, main
from scripts.bench.team import done_by_workers
from scripts.bench.training import zipf
from splitvfl.learning.optimizers import RowWiseAdagrad
from splitvfl.models.wide_deep import FieldTable
from splitvfl.team.sharded_table import ShardedTable
from splitvfl.team.team import Team

CASES: Final = ((4096, "Zipf", 21), (4096, "uniform", 21), (65_536, "Zipf", 9), (65_536, "uniform", 9))
QUICK_CASES: Final = ((256, "Zipf", 2),)

# A replicated step, a divided one, and one of a single process.
Times = tuple[list[float], list[float], list[float]]


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes few fields, records and runs."""
    cases, fields = (QUICK_CASES, 2) if quick else (CASES, FIELDS)
    found = done_by_workers(partial(_timed, cases=cases, fields=fields))
    return [row for case, times in zip(cases, found, strict=True) for row in _rows(case, times)]


def _timed(team: Team, *, cases: tuple[tuple[int, str, int], ...], fields: int) -> list[Times]:
    ways = _Ways(team, fields)
    return [ways.times(batch, kind, runs) for batch, kind, runs in cases]


def _rows(case: tuple[int, str, int], times: Times) -> list[Result]:
    batch, kind, runs = case
    replicated, divided, alone = (1000 * median(one) for one in times)
    ratios = sorted(one / other for one, other in zip(times[1], times[0], strict=True))
    name, note = f"tables, batch {batch}, {kind}", f"{runs} runs"
    return [
        Result(f"{name}: replicated", replicated, "ms", None, note=note),
        Result(f"{name}: divided", divided, "ms", None, note=note),
        Result(f"{name}: one process with all records", alone, "ms", None, note=note),
        Result(
            f"{name}: divided / replicated",
            median(ratios),
            "ratio",
            1.0,
            note=f"{note}, {ratios[0]:.2f} to {ratios[-1]:.2f}",
        ),
    ]


class _Ways:
    """One table in each of the ways in which it can be held."""

    def __init__(self, team: Team, fields: int) -> None:
        self._team, self._fields = team, fields
        sizes = (ROWS,) * fields
        self._replica, self._alone = (_table(sizes, None) for _ in range(2))
        self._divided = _table(sizes, team)
        self._optimizers = {
            id(table): RowWiseAdagrad(table.parameters()) for table in (self._replica, self._alone, self._divided)
        }

    def times(self, batch: int, kind: str, runs: int) -> Times:
        """Return the seconds of each run of each way."""
        codes = _codes(batch, self._fields, kind)
        share = codes[self._team.rank :: self._team.size]
        works: list[Callable[[], None]] = [
            lambda: self._step(self._replica, share, self._add_up),
            lambda: self._step(self._divided, share, self._bring_home),
            lambda: self._step(self._alone, codes, lambda table: None),
        ]
        times: Times = ([], [], [])
        for run in range(runs + 1):
            for work, taken in zip(works, times, strict=True):
                self._team.collect(b"")  # all begin together
                started = time.perf_counter()
                if taken is not times[2] or self._team.rank == 0:
                    work()
                if run:
                    taken.append(time.perf_counter() - started)
        return times

    def _step(self, table: FieldTable, codes: Tensor, bring_together: Callable[[FieldTable], None]) -> None:
        vectors = table(codes)
        vectors.backward(torch.full_like(vectors, 1e-3))
        bring_together(table)
        self._optimizers[id(table)].step()
        self._optimizers[id(table)].zero_grad()

    def _add_up(self, table: FieldTable) -> None:
        assert isinstance(table.table, nn.Parameter)
        (table.table.grad,) = self._team.add_up([table.table.grad])

    def _bring_home(self, table: FieldTable) -> None:
        assert isinstance(table.table, ShardedTable)
        table.table.bring_home()


def _table(sizes: tuple[int, ...], team: Team | None) -> FieldTable:
    return FieldTable(sizes, DIM, sparse=True, initialise=nn.init.zeros_, team=team)


def _codes(batch: int, fields: int, kind: str) -> Tensor:
    if kind == "Zipf":
        return zipf(batch, fields, ROWS)
    return torch.randint(ROWS, (batch, fields), generator=torch.Generator().manual_seed(0))


if __name__ == "__main__":
    raise SystemExit(main("Tables of two workers: replicated, and divided", measure))
