"""Handling of Ctrl-C and SIGTERM while something is under way that must not be torn apart."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Training stopped at a signal, between two steps, after saving a checkpoint (if it has a folder)."""


class Signals:
    """Turns the first Ctrl-C or SIGTERM into a request to stop between two steps; the second one acts at once.

    Several may enter one block of it, as parties in one process do: it acts until the last of them has left.

    Args:
        grace_s: Seconds after which the first one acts at once too, for a run that may be waiting for somebody;
            ``None`` waits for the end of the step, however long it takes.

    Attributes:
        asked: Whether there was one.
    """

    def __init__(self, *, grace_s: float | None = None) -> None:
        self.asked = False
        self._grace_s = grace_s
        self._alarm: threading.Timer | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._inside = 0

    def __enter__(self) -> Self:
        self._inside += 1
        if self._inside > 1:
            return self
        try:
            self._before = {number: signal.signal(number, self._on_signal) for number in _STOPPING}
        except ValueError:  # not the main thread: signals are somebody else's
            self._before = {}
        if self.asked and self._before:
            self._wait_no_longer_than_the_grace(_STOPPING[0])  # it was asked before, in a block that an error ended
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside -= 1
        if self._inside:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._wait_no_longer_than_the_grace(number)

    def _wait_no_longer_than_the_grace(self, number: int) -> None:
        if self._grace_s is not None:
            # A signal, not a flag: it wakes a main thread that waits.
            self._alarm = threading.Timer(self._grace_s, os.kill, (os.getpid(), number))
            self._alarm.daemon = True
            self._alarm.start()


def wait_for_a_signal() -> NoReturn:
    """Do nothing until a signal raises something: :class:`KeyboardInterrupt`, say (see :func:`stoppable`)."""
    while True:
        signal.pause()


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM act as Ctrl-C within a block: it raises :class:`KeyboardInterrupt`."""
    try:
        before = signal.signal(signal.SIGTERM, _interrupt)
    except ValueError:  # not the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
