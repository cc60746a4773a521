"""What optimisers of embedding tables and bfloat16 save of a training step of Wide & Deep, split between two parties.

The model is 26 categorical fields of 50 000 rows by 12, 13 numeric columns and four layers of 128; categories follow
Zipf's law. Dense: one Adam for everything, fused. Sparse: row-wise Adagrad for the table, fused Adam for the rest.
Run ``python -m scripts.bench.training [--quick] [--json OUT]``.
"""

from __future__ import annotations

from statistics import median

import torch

from scripts.bench.measuring import Result, interleaved, main, ratio
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.learning.optimizers import PerParameter
from splitvfl.messaging.conversation import converse
from splitvfl.models import WideDeepBottom, WideDeepTop
from splitvfl.party.party import ActiveParty, PassiveParty

# Batch sizes, how many paired runs each is measured with, and the share of the dense step that is aimed at: the larger
# the batch, the more rows of the table it touches.
BATCHES = ((512, 31, 0.4), (4096, 15, 0.7), (65_536, 5, 1.0))
QUICK_BATCHES = ((512, 3, 0.4), (4096, 2, 0.7))
FIELDS, ROWS, DIM, NUMERIC, WIDTH = 26, 50_000, 12, 13, 128


def zipf(batch: int, fields: int, rows: int) -> torch.Tensor:
    """Return codes ``(batch, fields)`` below ``rows``, code c with probability about in proportion to 1/(c + 1)."""
    drawn = float(rows) ** torch.rand(batch, fields, generator=torch.Generator().manual_seed(0))
    return (drawn - 1).long().clamp_(max=rows - 1)


class _Parties:
    """Two parties, and one step of training between them on a batch that stays the same."""

    def __init__(self, batch: int, fields: int, *, sparse: bool, autocast: torch.dtype | None = None) -> None:
        torch.manual_seed(0)
        self.records = Records(
            torch.arange(batch),
            Columns(torch.randn(batch, NUMERIC), zipf(batch, fields, ROWS)),
            (torch.rand(batch) < 0.25).float(),
        )
        self.own = Records(self.records.ids, Columns.of(self.records.columns.numeric), self.records.labels)
        sizes, names = (ROWS,) * fields, tuple(map(str, range(NUMERIC)))
        bottom = WideDeepBottom(NUMERIC, sizes, embedding_dim=DIM, widths=(WIDTH,) * 4, sparse=sparse)
        top = WideDeepTop(WIDTH, NUMERIC)
        active = PartyData("active", names, names, (), self.own, self.own)
        passive = PartyData("passive", names, names, sizes, self.records, self.records)
        self.active = ActiveParty(active, top, optimizer=PerParameter())
        self.passive = PassiveParty(passive, bottom, optimizer=PerParameter())
        self.active.connect("passive")
        for party in (self.active, self.passive):
            party.prepare(seed=0, device=torch.device("cpu"), autocast=autocast)
        self._number = 0

    def step(self) -> None:
        halves = {
            "passive": passive_step(self.passive, self.records, self._number, active="active"),
            "active": active_step(self.active, self.own, self._number),
        }
        converse(halves, turns={"active": self.active.random, "passive": self.passive.random})
        self._number += 1


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes fewer fields and fewer runs."""
    fields = 2 if quick else FIELDS
    return [
        result
        for batch, runs, target in (QUICK_BATCHES if quick else BATCHES)
        for result in _batch_results(batch, runs, fields, target)
    ]


def _batch_results(batch: int, runs: int, fields: int, target: float) -> list[Result]:
    parties = [
        _Parties(batch, fields, sparse=False),
        _Parties(batch, fields, sparse=True),
        _Parties(batch, fields, sparse=True, autocast=torch.bfloat16),
    ]
    dense, sparse, half = interleaved([one.step for one in parties], runs=runs)
    saved, saved_note = ratio(sparse, dense)
    halved, half_note = ratio(half, sparse)
    per_step = median(sparse) * 1e3
    return [
        Result(f"sparse / dense optimiser, batch {batch}", saved, "of a step", target, note=saved_note),
        Result(f"bfloat16 / float32, batch {batch}", halved, "of a step", None, note=half_note),
        Result(f"step, sparse, float32, batch {batch}", per_step, "ms", None, note=f"{runs} runs, one thread"),
    ]


if __name__ == "__main__":
    raise SystemExit(main("Training: what optimisers of tables and bfloat16 save", measure))
