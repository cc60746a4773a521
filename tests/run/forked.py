"""Parties as processes that are forked from one that has imported everything: imports would take most of the time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch

from scripts.bench.faults import Scenario
from scripts.bench.faulty import run_party
from scripts.bench.processes import Pace
from tests.boosting import boosting_as_here

PACE = Pace(message_s=1.5, long_s=1.8, short_s=0.2, start_s=0.3)

T = TypeVar("T")

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.run.imported"])


def begin_as_a_program() -> None:
    """Take what a program has of its own when a person starts it, whatever this one was started with.

    One that was started in the background ignores Ctrl-C, and whoever it starts inherits that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # What is written outlives a kill without it, and no test cuts the power.
    mock.patch.object(os, "fsync", return_value=None).start()
    torch.set_num_threads(1)


def in_a_fork(server: Any, found: Callable[[], T]) -> T:
    """Return what a function returns in a fork of this process, or in a process of a fork server, with one thread.

    A process in which torch has threads is not forked: its child could wait for one of them for ever. No tensors are
    returned: torch would share their memory with a process that has ended.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    if server is not None:
        process = server.Process(target=_answer, args=(sender, found))
        process.start()
    elif (child := os.fork()) == 0:
        try:
            sender.send(found())
        finally:  # nothing of the parent's runs on in it, whatever happens
            os._exit(0)
    sender.close()
    with receiver:
        answer: T = receiver.recv()
    if server is None:
        os.waitpid(child, 0)
    else:
        process.join()
    return answer


def _answer(sender: Any, found: Callable[[], Any]) -> None:
    torch.set_num_threads(1)
    sender.send(found())


def unaudited(scenario: Scenario) -> Scenario:
    """Return a scenario in which no leak is measured: half of a short run's time, where nothing is asked about it."""
    return replace(scenario, settings=f"{scenario.settings}audit: false\n")


class Forked:
    """A party that is forked; otherwise as :class:`scripts.bench.processes.Command`."""

    def __init__(self, folder: Path, arguments: Sequence[str], **variables: str) -> None:
        # What it says goes through a pipe with a name: a file would be too large where its disk is full.
        said = folder / "said"
        said.unlink(missing_ok=True)
        os.mkfifo(said)
        self._process = FORKS.Process(
            target=_party, args=(folder, list(arguments), said, boosting_as_here(), variables)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._lines: deque[str] = deque(maxlen=100)  # a run that ends well says half a page
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


def _party(
    folder: Path,
    arguments: list[str],
    said: Path,
    boosting: Callable[[], contextlib.AbstractContextManager[None]],
    variables: dict[str, str],
) -> None:
    begin_as_a_program()
    os.chdir(folder)
    os.environ.update(variables)
    os.environ["COLUMNS"] = "1000"  # a line that wraps where a number grew could not be looked for
    pipe = os.open(said, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(pipe, number)
    with boosting():
        raise SystemExit(run_party(folder, arguments))
