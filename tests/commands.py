"""Commands of ``splitvfl`` in processes of their own, forked from one that has imported what takes most of the time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tests.run.forked import FORKS


class Command:
    """A command that runs; what tests ask of it is what :class:`subprocess.Popen` offers.

    Args:
        arguments: What follows ``splitvfl``.
        folder: Where it runs.
        environment: Variables that it has besides those of this process.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, **environment: str) -> None:
        (said, saying), (complained, complaining) = FORKS.Pipe(duplex=False), FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(
            target=_run, args=(list(arguments), folder, environment, saying, complaining), daemon=True
        )
        self._process.start()
        for end in (saying, complaining):
            end.close()
        self.stdout, self.stderr = _lines(said), _lines(complained)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("splitvfl", timeout or 0.0)
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what it wrote to standard output and to standard error, when it has ended."""
        texts = ["", ""]

        def read(number: int, lines: Iterator[str]) -> None:
            texts[number] = "".join(lines)

        readers = [
            threading.Thread(target=read, args=one, daemon=True) for one in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
        self.wait(timeout)
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _lines(end: Connection) -> Iterator[str]:
    with end, open(end.fileno(), closefd=False) as lines:
        yield from lines


def _run(arguments: list[str], folder: Path, environment: dict[str, str], *pipes: Connection) -> None:
    os.environ.update(environment)
    os.chdir(folder)
    for number, pipe in enumerate(pipes, start=1):
        os.dup2(pipe.fileno(), number)
    torch.set_num_threads(1)
    from splitvfl.cli import main

    sys.exit(main(arguments))
