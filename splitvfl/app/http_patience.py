"""A limit on how long a client may take over the head of a request: the web server itself has none.

Whoever opens many connections and sends a byte now and then would take all of them otherwise (slowloris); the limit on
bodies is the application's.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

_TEXT: Final = b"expected the head of a request sooner\n"
_TOO_SLOW: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    % (len(_TEXT), _TEXT)
)


def impatient(head_s: float) -> type[H11Protocol]:
    """Return the web server's protocol with a limit on heads, as ``uvicorn.Config(http=...)`` takes it.

    The time runs from the opening of a connection, and on one that is kept alive from the first byte of the next
    request, to the head's last byte; it is not started anew by bytes that come. Then 408 is answered, and the
    connection closed.

    Args:
        head_s: Seconds, above 0.
    """

    class Impatient(H11Protocol):
        _limit: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its own base
            super().connection_made(transport)
            self._limit = self.loop.call_later(head_s, self._give_up)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            between = before is not None and before.response_complete
            super().data_received(data)
            if self.cycle is not before:
                self._drop_limit()
            elif between and self._limit is None:
                self._limit = self.loop.call_later(head_s, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._drop_limit()
            super().connection_lost(exc)

        def _drop_limit(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.write(_TOO_SLOW)
                self.transport.close()

    return Impatient
