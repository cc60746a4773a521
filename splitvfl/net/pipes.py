"""A short queue that can end, between a link and the thread that moves its frames."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from splitvfl.net.frames import Bye

_T = TypeVar("_T")

# Python waits no longer than this at a time; forever, to a party.
_LONG: Final = 3600.0

Cause = Bye | str


class PipeEnded(Exception):
    """The pipe has ended: nothing comes, or goes, any more.

    Attributes:
        cause: The other party's last word, or what happened.
    """

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


class PipeTimeout(Exception):
    """The time was up before there was anything, or room for it."""


class Pipe(Generic[_T]):
    """A queue of bounded length between two threads.

    Who puts waits while it is full: that is how a slow reader holds back a fast writer. What is in it when it ends can
    still be taken out. Deadlines are on the clock of :func:`time.monotonic`; without one the wait has no limit.

    Args:
        length: How many things it holds.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._more = 0
        self._things: deque[_T] = deque()
        self._changed = threading.Condition()
        self._cause: Cause | None = None

    def make_room(self, more: int) -> None:
        """Let it hold so many things beyond its length, until told otherwise; what is in it already stays.

        Args:
            more: How many, from 0.
        """
        with self._changed:
            self._more = more
            self._changed.notify_all()

    @property
    def cause(self) -> Cause | None:
        """The reason of its end; ``None`` while it has not ended."""
        return self._cause

    def why_ended(self, within_s: float) -> Cause | None:
        """Return the reason of its end, for which this waits a while; ``None`` if it has not ended by then."""
        with self._changed:
            self._changed.wait_for(lambda: self._cause is not None, within_s)
            return self._cause

    def put(self, thing: _T, deadline: float | None = None) -> None:
        """Put something in at the end, once there is room.

        Raises:
            PipeEnded: If it has ended, or ends meanwhile.
            PipeTimeout: If there is no room in time.
        """
        with self._changed:
            self._wait(lambda: len(self._things) < self._length + self._more, deadline)
            if self._cause is not None:
                raise PipeEnded(self._cause)
            self._things.append(thing)
            self._changed.notify_all()

    def offer(self, thing: _T) -> None:
        """Put something in if there is room, and forget about it otherwise."""
        with self._changed:
            if self._cause is None and len(self._things) < self._length + self._more:
                self._things.append(thing)
                self._changed.notify_all()

    def get(self, deadline: float | None = None) -> _T:
        """Take out what has been in longest.

        Raises:
            PipeEnded: If it has ended and is empty.
            PipeTimeout: If nothing comes in time.
        """
        with self._changed:
            self._wait(lambda: len(self._things) > 0, deadline)
            if not self._things:
                assert self._cause is not None, "nothing else ends the wait"
                raise PipeEnded(self._cause)
            thing = self._things.popleft()
            self._changed.notify_all()
            return thing

    def end(self, cause: Cause, *, last: _T | None = None, drop: bool = False) -> None:
        """End it; only the first time counts.

        With ``drop``, what is in it is dropped; ``last`` is put in at the end, full or not.
        """
        with self._changed:
            if drop:
                self._things.clear()
            if self._cause is None:
                self._cause = cause
                if last is not None:
                    self._things.append(last)
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], deadline: float | None) -> None:
        while not ready() and self._cause is None:
            remaining = _LONG if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                raise PipeTimeout
            self._changed.wait(min(remaining, _LONG))
