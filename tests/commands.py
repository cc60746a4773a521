"""Commands of ``splitvfl`` in processes of their own, forked from one that has imported what takes most of the time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path

from tests.boosting import boosting_as_here
from tests.run.forked import FORKS, begin_as_a_program

Program = Callable[[Sequence[str]], int]
Within = Callable[[], AbstractContextManager[object]]


class Command:
    """A command of ``splitvfl`` that runs, or another program; tests ask of it what :class:`subprocess.Popen` offers.

    Args:
        arguments: What follows its name.
        folder: Where it runs.
        within: Makes what is entered around the command, in its process: what is otherwise there than in a real one.
        program: Another program, which is called with the arguments and returns its exit code.
        environment: Variables that it has besides those of this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        within: Within = nullcontext,
        program: Program | None = None,
        **environment: str,
    ) -> None:
        (said, saying), (complained, complaining) = FORKS.Pipe(duplex=False), FORKS.Pipe(duplex=False)
        what = (program, list(arguments), folder, boosting_as_here(), within, environment)
        self._process = FORKS.Process(target=_run, args=(*what, saying, complaining), daemon=True)
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


def _run(
    program: Program | None,
    arguments: list[str],
    folder: Path,
    boosting: Within,
    within: Within,
    environment: dict[str, str],
    *pipes: Connection,
) -> None:
    os.environ.update(environment)
    os.chdir(folder)
    for number, pipe in enumerate(pipes, start=1):
        os.dup2(pipe.fileno(), number)
    begin_as_a_program()
    from splitvfl.cli import main

    with boosting(), within():
        sys.exit((program or main)(arguments))
