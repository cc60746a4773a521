"""What it costs to read batches from a table on disk, against a training step of Wide & Deep.

A million records with 13 numbers and 26 categories, as :mod:`splitvfl.data.store` maps them, in blocks that are
shuffled. The model is that of :mod:`scripts.bench.cut`, with the default optimisers. The loader makes the order,
and gathers the columns of both parties, ids and labels. A run goes through as many batches as come out of one pool of
blocks, so that each pays for one pool's order. CPU time is counted and files are in the page cache: waiting for a
disk is not in these figures. Run ``python -m scripts.bench.loading [--quick] [--json OUT]``.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scripts.bench.cut import DIM, FIELDS, NUMERIC, ROWS, WIDTH
from scripts.bench.measuring import Result, interleaved, main, ratio
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.learning.batches import BLOCK_ROWS, Batches
from splitvfl.learning.optimizers import PerParameter
from splitvfl.messaging.conversation import converse
from splitvfl.models import WideDeepBottom, WideDeepTop
from splitvfl.party.party import ActiveParty, PassiveParty

RECORDS, QUICK_RECORDS = 1 << 20, 1 << 17
# Batch sizes, the batches of a run (a pool holds 262,144 records), and how many paired runs each is measured with.
BATCHES = ((4096, 64, 9), (65_536, 4, 9))
QUICK_BATCHES = ((4096, 4, 2), (65_536, 1, 1))
# Batches that training goes through in turn, so that it does not find the rows of its tables in the caches.
_READY = 4


class _Bench:
    """The same records in files and in memory, and two parties that train on them."""

    def __init__(self, folder: Path, records: int, fields: int) -> None:
        self.stored = _written(folder, records, fields)
        self.memory = [Records(own.ids.clone(), _copied(own.columns), _cloned(own.labels)) for own in self.stored]
        torch.manual_seed(0)
        sizes = (ROWS,) * fields
        bottom = WideDeepBottom(NUMERIC, sizes, embedding_dim=DIM, widths=(WIDTH,) * 4, sparse=True)
        names = tuple(map(str, range(NUMERIC)))
        active, passive = self.stored
        optimizer = PerParameter()
        top = WideDeepTop(WIDTH, NUMERIC)
        self._active = ActiveParty(PartyData("active", names, names, (), active, active), top, optimizer=optimizer)
        self._passive = PassiveParty(
            PartyData("passive", names, names, sizes, passive, passive), bottom, optimizer=optimizer
        )
        self._active.connect("passive")
        self._number = itertools.count()

    def step(self, active: Records, passive: Records) -> None:
        """Train on one batch that is there already."""
        number = next(self._number)
        halves = {
            "passive": passive_step(self._passive, passive, number, active="active"),
            "active": active_step(self._active, active, number),
        }
        converse(halves, turns={"active": self._active.random, "passive": self._passive.random})

    def training(self, batch: int) -> Callable[[], object]:
        ready = itertools.cycle([self._gathered(rows) for rows in itertools.islice(self.order(batch), _READY)])
        return lambda: self.step(*next(ready))

    def loading(self, batch: int, *, from_disk: bool) -> Callable[[], object]:
        order = self.order(batch)
        source = self.stored if from_disk else self.memory
        return lambda: _rows_of(source, next(order))

    def _gathered(self, rows: Tensor) -> list[Records]:
        return _rows_of(self.memory, rows)

    def order(self, batch: int) -> Iterator[Tensor]:
        """Yield the batches of one epoch after the other."""
        batches = Batches(self.stored[0].count, batch, seed=0, block_rows=BLOCK_ROWS, drop_last=True)
        return itertools.chain.from_iterable(map(batches.epoch, itertools.count()))


def _rows_of(parties: list[Records], rows: Tensor) -> list[Records]:
    return [own.rows(rows) for own in parties]


def _copied(columns: Columns) -> Columns:
    return Columns(columns.numeric.clone(), columns.categorical.clone())


def _cloned(labels: Tensor | None) -> Tensor | None:
    return None if labels is None else labels.clone()


def _written(folder: Path, records: int, fields: int) -> list[Records]:
    """Write random columns of both parties, and return them mapped: the active party's first."""
    generator = np.random.default_rng(0)
    ids = _mapped(folder / "ids.npy", np.arange(records))
    labels = _mapped(folder / "labels.npy", (generator.random(records) < 0.25).astype(np.float32))
    numeric = [
        _mapped(folder / f"{name}.npy", generator.standard_normal((records, NUMERIC), dtype=np.float32))
        for name in ("active", "passive")
    ]
    codes = [
        _mapped(folder / f"codes-{count}.npy", generator.integers(ROWS, size=(records, count), dtype=np.int32))
        for count in (0, fields)
    ]
    return [
        Records(ids, Columns(numbers, own), truth)
        for numbers, own, truth in zip(numeric, codes, (labels, None), strict=True)
    ]


def _mapped(file: Path, values: np.ndarray) -> Tensor:
    np.save(file, values, allow_pickle=False)
    # Nothing can be mapped of a party without categories.
    return torch.from_numpy(np.load(file, mmap_mode="c") if values.size else values)


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes fewer records, smaller tables and fewer runs."""
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder), *((QUICK_RECORDS, 2) if quick else (RECORDS, FIELDS)))
        return [result for sizes in (QUICK_BATCHES if quick else BATCHES) for result in _batch_results(bench, *sizes)]


def _batch_results(bench: _Bench, batch: int, often: int, runs: int) -> list[Result]:
    works = [bench.training(batch), bench.loading(batch, from_disk=True), bench.loading(batch, from_disk=False)]
    # Training is slow, and the same whichever batch: two steps of a run are enough.
    step, disk, memory = interleaved(works, runs=runs, repeats=[min(often, 2), often, often])
    share, share_note = ratio(disk, step)
    against, against_note = ratio(disk, memory)
    speed = batch / float(np.median(disk)) / 1e6
    return [
        Result(f"loading from disk, batch {batch}", share, "of a step", 0.03, note=share_note),
        Result(f"loading from disk / from memory, batch {batch}", against, "ratio", None, note=against_note),
        Result(f"loading from disk, batch {batch}", speed, "Mrows/s", None, better="higher", note=f"{runs} runs"),
    ]


if __name__ == "__main__":
    raise SystemExit(main("Reading batches from a table on disk", measure))
