"""A TCP connection over which every byte takes a while, however many are under way: what distance does to a link."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import threading
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Final, Self

_PIECE: Final = 1 << 20


class DelayLine:
    """Passes bytes on between whoever connects and a port of this machine, each so long after it came.

    It runs in a process of its own, so that neither party's Python waits for it. A context manager.

    Args:
        target: The port that it passes on to.
        delay_s: How long each byte is under way, in either direction.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, target: int, delay_s: float) -> None:
        own, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(target, delay_s, theirs), daemon=True)
        self._process.start()
        self.port: int = own.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.join()


def _serve(target: int, delay_s: float, told: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        told.send(server.getsockname()[1])
        while True:
            near, _ = server.accept()
            far = socket.create_connection(("127.0.0.1", target))
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for ends in ((near, far), (far, near)):
                _Direction(*ends, delay_s=delay_s).start()


class _Direction:
    """One direction: what comes is taken at once, and leaves when it is due."""

    def __init__(self, near: socket.socket, far: socket.socket, *, delay_s: float) -> None:
        self._near, self._far, self._delay_s = near, far, delay_s
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._changed = threading.Condition()

    def start(self) -> None:
        for work in (self._take, self._pass_on):
            threading.Thread(target=work, daemon=True).start()

    def _take(self) -> None:
        data = b"-"
        while data:
            try:
                data = self._near.recv(_PIECE)
            except OSError:  # whoever it was is gone
                data = b""
            with self._changed:
                self._under_way.append((time.monotonic() + self._delay_s, data))
                self._changed.notify()

    def _pass_on(self) -> None:
        data = b"-"
        while data:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._under_way))
                due, data = self._under_way.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            with contextlib.suppress(OSError):
                self._far.sendall(data)
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_WR)
