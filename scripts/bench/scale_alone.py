"""What a party that is one process pays for that it could be several: next to nothing, of every step.

The operations of a team of one (:class:`~splitvfl.team.team.Alone`), and the questions for its size and for a stop, are
counted in a run, and timed one by one, each many times; their sum is compared with the time of a step.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor

from scripts.bench.cut import FIELDS, ROWS, Bench
from scripts.bench.measuring import Result, interleaved
from splitvfl.app.trainer import Trainer
from splitvfl.team.team import Alone

BATCHES: Final = ((512, 31), (4096, 11))
QUICK_BATCHES: Final = ((512, 5),)
_REPEATS: Final = 20_000
_STEPS: Final = 8


class CountingAlone(Alone):
    """A team of one that counts what it is asked.

    Attributes:
        asked: How often, by the name of the operation or of the attribute.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        super().__init__()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "asked":
            self.asked[name] += 1
        return super().__getattribute__(name)


OPERATIONS: Final[dict[str, Callable[[Alone, Sequence[Tensor]], object]]] = {
    "size": lambda team, tensors: team.size,
    "rank": lambda team, tensors: team.rank,
    "lost": lambda team, tensors: team.lost,
    "stopping": lambda team, tensors: team.stopping,
    "stop_asked": lambda team, tensors: team.stop_asked,
    "add_up": lambda team, tensors: team.add_up(tensors),
    "gather": lambda team, tensors: team.gather(tensors[0]),
    "scatter": lambda team, tensors: team.scatter(tensors[:1], 1),
    "whole": lambda team, tensors: team.whole(tensors[0]),
    "share": lambda team, tensors: team.share(tensors),
    "collect": lambda team, tensors: team.collect(b""),
    "refuse": lambda team, tensors: team.refuse(""),
}


def counted(steps: int = _STEPS) -> dict[str, float]:
    """Return how often a team of one is asked for what in a step, of all parties in one process, and of the run."""
    bench = Bench(16 * steps, 2, ROWS + 1)
    team = CountingAlone()
    trainer = Trainer(bench.active, {"passive": bench.passive}, batch_size=16, audit=False)
    trainer.training.team = team
    for party in (bench.active, bench.passive):
        party.join(team)
    trainer.fit(1)
    return {name: count / steps for name, count in sorted(team.asked.items())}


def alone(quick: bool) -> list[Result]:
    """Return the time of a step with a team of one over that without."""
    asked = counted()
    each = {name: _time_of(OPERATIONS[name]) for name in asked}
    seconds = sum(count * each[name] for name, count in asked.items())
    fields = 2 if quick else FIELDS
    rows = []
    for batch, runs in QUICK_BATCHES if quick else BATCHES:
        (steps,) = interleaved([Bench(batch, fields, ROWS + 1).split_step], runs=runs)
        note = (
            f"{1e6 * seconds:.1f} us of {1e3 * median(steps):.1f} ms; asked in a step: "
            f"{', '.join(f'{name} {count:.3g}' for name, count in asked.items())}"
        )
        share = seconds / median(steps)
        rows.append(Result(f"a step with Alone / without, batch {batch}", 1.0 + share, "ratio", 1.005, note=note))
    return rows


def _time_of(operation: Callable[[Alone, Sequence[Tensor]], object]) -> float:
    """Return the seconds of one operation, the call of a function around it included."""
    team, tensors = Alone(), [torch.ones(1)]
    started = time.process_time()
    for _ in range(_REPEATS):
        operation(team, tensors)
    return (time.process_time() - started) / _REPEATS
