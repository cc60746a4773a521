"""Parties as processes that are forked from one that has imported everything: imports would take most of the time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch

from scripts.bench.faults import Pace
from scripts.bench.faulty import run_party

PACE = Pace(message_s=2.0, long_s=2.5, short_s=0.3, start_s=0.5)

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "splitvfl.app.deployment",
        "splitvfl.attacks",
        "splitvfl.defenses",
        "splitvfl.report.findings",
        "splitvfl.report.tables",
        "sklearn.datasets",
        "tensorboard.compat.proto.event_pb2",
        "tensorboard.summary.writer.record_writer",
    ]
)


class Forked:
    """A party that is forked; otherwise as :class:`scripts.bench.faults.Command`."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        # What it says goes through a pipe with a name: a file would be too large where its disk is full.
        said = folder / "said"
        said.unlink(missing_ok=True)
        os.mkfifo(said)
        self._process = FORKS.Process(target=_party, args=(folder, list(arguments), said))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._lines: deque[str] = deque(maxlen=12)
        self._held = os.open(said, os.O_RDWR)  # so that reading begins without waiting for a writer
        self._reader = threading.Thread(target=self._read, args=(said,), daemon=True)
        self._reader.start()

    def _read(self, said: Path) -> None:
        with said.open() as lines:
            self._lines.extend(lines)

    def code(self) -> int | None:
        return self._process.exitcode

    def words(self) -> str:
        with contextlib.suppress(OSError):
            os.close(self._held)
        self._reader.join(5)
        return "".join(self._lines)


def _party(folder: Path, arguments: list[str], said: Path) -> None:
    torch.set_num_threads(1)
    os.chdir(folder)
    os.environ["COLUMNS"] = "200"
    pipe = os.open(said, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(pipe, number)
    raise SystemExit(run_party(folder, arguments))
