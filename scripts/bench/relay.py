"""A TCP relay that can be told to behave as bad networks do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Final, Self

MANGLED: Final = ("truncate", "duplicate", "reorder", "half-open")

_CHUNK: Final = 1 << 14
_POLL_S: Final = 0.01


class Relay:
    """Passes bytes on between whoever connects and a port of this machine. A context manager.

    Args:
        target: The port that it passes on to.
        port: Where it listens; 0: where nobody else does.

    Attributes:
        port: Where it listens.
        silent: While set, nothing passes, and nothing is closed either.
        delay_s: How long every piece is held back.
    """

    def __init__(self, target: int, port: int = 0) -> None:
        self.silent = False
        self.delay_s = 0.0
        self._target = target
        self._refusing = False
        self._order = ""
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._gone: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", port))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        """Break all connections, and every new one, until :meth:`mend`."""
        self._refusing = True
        with self._lock:
            for end in self._open:
                _reset(end)
            self._open.clear()

    def mend(self) -> None:
        """Behave again."""
        self._refusing, self.silent, self.delay_s = False, False, 0.0

    def mangle(self, order: str) -> None:
        """Do something to the next bytes that come by: one of :data:`MANGLED`."""
        self._order = order

    @property
    def mangled(self) -> bool:
        """Whether that has happened."""
        return not self._order

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            if self._refusing:
                _reset(caller)
                continue
            try:
                called = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # nobody listens there now
                _reset(caller)
                continue
            with self._lock:
                self._open += [caller, called]
            for near, far in ((caller, called), (called, caller)):
                threading.Thread(target=self._pump, args=(near, far), daemon=True).start()

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(_CHUNK):
                while self.silent:
                    time.sleep(_POLL_S)
                time.sleep(self.delay_s)
                if not self._pass_on(data, near, far):
                    return
        if near not in self._gone:
            self._close(near, far)

    def _pass_on(self, data: bytes, near: socket.socket, far: socket.socket) -> bool:
        """Pass a piece on, and return whether more may come."""
        if far in self._gone:
            return True
        with self._lock:
            order, self._order = self._order, ""
        if order == "duplicate":
            data += data
        elif order == "reorder":
            half = len(data) // 2
            data = data[half:] + data[:half]
        elif order == "truncate":
            far.sendall(data[: len(data) // 2])
            self._close(near, far)
            return False
        elif order == "half-open":  # one side is gone, and the other is not told
            with self._lock:
                self._open.remove(near)
                self._gone.add(near)
            _reset(near)
            return False
        far.sendall(data)
        return True

    def _close(self, *ends: socket.socket) -> None:
        with self._lock:
            for end in ends:
                if end in self._open:
                    self._open.remove(end)
                    _reset(end)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    end.close()
