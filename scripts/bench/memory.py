"""How much the memory of processes grows with the steps that they take, as the operating system sees it."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

# Beyond so many points of one process, every second is left out, and so on: all pairs of them are compared.
_MOST_POINTS: Final = 400
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """What was seen of one process at one moment.

    Attributes:
        party: Whose process it is.
        pid: Its number: a party that is killed goes on in another one, which begins small again.
        steps: Steps that the party has taken.
        resident: Bytes of its memory.
    """

    party: str
    pid: int
    steps: int
    resident: int


class Sampler:
    """Looks at processes again and again, in a thread of its own. A context manager.

    Args:
        look: Gives party, process and steps of those that run.
        every_s: Seconds between two looks.

    Attributes:
        samples: What was seen; nothing where there is no ``/proc``.
    """

    def __init__(self, look: Callable[[], Iterable[tuple[str, int, int]]], *, every_s: float = 1.0) -> None:
        self.samples: list[Sample] = []
        self._look, self._every_s = look, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            for party, pid, steps in self._look():
                if (resident := resident_bytes(pid)) is not None:
                    self.samples.append(Sample(party, pid, steps, resident))


def resident_bytes(pid: int) -> int | None:
    """Return the memory of a process; ``None`` if it has ended, or there is no ``/proc``."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE or None
    except (OSError, IndexError):
        return None


def growth(samples: Sequence[Sample], *, warm_up: int) -> tuple[float, int]:
    """Return by how many bytes memory grows with a step, and over how many steps that was seen.

    The median of the slopes between all pairs of points of one process (Theil and Sen): neither a checkpoint that is
    being written nor a process that ends moves it. NaN if no process took two different numbers of steps.

    Args:
        samples: Of one party.
        warm_up: First steps of each process that do not count: caches are filled, and allocators take what they keep.
    """
    lives: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        lives[sample.pid].append(sample)
    slopes, steps = [np.zeros(0)], 0
    for life in lives.values():
        points = np.array([(one.steps, one.resident) for one in life if one.steps - life[0].steps >= warm_up], float)
        if len(points) < 2:
            continue
        steps += int(points[-1, 0] - points[0, 0])
        points = points[:: -(-len(points) // _MOST_POINTS)]
        first, second = np.triu_indices(len(points), 1)
        taken, grown = (points[second] - points[first]).T
        slopes.append(grown[taken > 0] / taken[taken > 0])
    found = np.concatenate(slopes)
    return (float(np.median(found)) if found.size else float("nan")), steps
