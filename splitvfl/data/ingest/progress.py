"""How far an ingest has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from splitvfl.data.chunks import Chunk, Source


@dataclass(frozen=True)
class IngestStatus:
    """How far an ingest has come.

    Attributes:
        phase: ``"reading"`` the first time, ``"merging"`` statistics of shards, ``"writing"`` the second time.
        rows: Rows done in this phase.
        done: Share of all work that is done, in [0, 1].
    """

    phase: str
    rows: int
    done: float


Progress = Callable[[IngestStatus], None]


def watched(
    progress: Progress | None, phase: str, sources: Sequence[Source], *, begun: float, ended: float
) -> Callable[[Chunk], None]:
    """Return what is to be called with every chunk of a look at all rows.

    Args:
        progress: Told of it.
        phase: What is done.
        sources: What is read.
        begun: Share of all work that is done before.
        ended: Share that is done after it.
    """
    rows, size = 0, max(sum(source.size for source in sources), 1)

    def watch(chunk: Chunk) -> None:
        nonlocal rows
        rows += chunk.rows
        if progress is not None:
            progress(IngestStatus(phase, rows, begun + (ended - begun) * chunk.done_bytes / size))

    return watch
