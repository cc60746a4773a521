"""The web server in front of the scores: uvicorn, with limits on how many connections there are, and for how long.

uvicorn takes every connection that comes, waits for the head of a request as long as it takes, and for a TLS handshake
for a minute: a thousand silent connections use up what a process may open, before anybody has shown a token. Here

- at most :attr:`~splitvfl.app.http_access.HttpLimits.connections` are taken, counted before the TLS handshake. One more
  takes the place of the oldest from which no whole request has come, of the address (of IPv6: the /64) that has most of
  these: a client that sends its request is answered, whatever others hold. Those from which nothing has come go first,
  as long as they are at least as many as the others. A connection whose request is being answered is not closed; where
  all are, newcomers wait for their turn;
- one from which nothing has come is a socket and nothing else, so that thousands a second can come and be closed;
- handshake and head together have to be there in time, and an answer has to be taken in time;
- the log has one entry a minute of each kind, with a count.
"""

from __future__ import annotations

import asyncio
import copy
import ipaddress
import logging
import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from splitvfl.app.http_access import HttpLimits

_TEXT: Final = b"expected the head of a request sooner\n"
_TOO_SLOW: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    % (len(_TEXT), _TEXT)
)
# No connection can be taken: until it is tried again.
_PAUSE_S: Final = 0.05
# Connections that are taken before others have their turn.
_AT_ONCE: Final = 16
# The part of all connections that an origin may have without being taken for the one that has too many.
_FEW: Final = 16
# Loggers in which a stranger can have entries written, this module's among them.
_LOGS: Final = (__name__, "uvicorn.error", "asyncio")
_MOST_KINDS: Final = 100
_COUNTED: Final = "counted"

_log = logging.getLogger(__name__)


class Seldom(logging.Filter):
    """Lets an entry of each kind through at a time, counts those that come too soon after it, and tells how many.

    Args:
        every_s: Seconds between two entries of a kind: of one logger, with the same first line but for values.
    """

    def __init__(self, every_s: float) -> None:
        super().__init__()
        self._every_s = every_s
        self._told: dict[tuple[str, str], float] = {}
        self._untold: dict[tuple[str, str], tuple[int, logging.LogRecord]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether an entry is written now."""
        if getattr(record, _COUNTED, False):
            return True
        kind = record.name, str(record.msg).partition("\n")[0]
        if kind not in self._told and len(self._told) >= _MOST_KINDS:
            kind = record.name, ""
        if kind in self._told and time.monotonic() < self._told[kind] + self._every_s:
            self._untold[kind] = self._untold.get(kind, (0, record))[0] + 1, record
            return False
        self._told[kind] = time.monotonic()
        return True

    def tell(self, *, all_of_them: bool = False) -> None:
        """Write how many entries were left out: of the kinds whose time has come, or of all."""
        for kind, (count, record) in [*self._untold.items()]:
            if all_of_them or time.monotonic() >= self._told[kind] + self._every_s:
                del self._untold[kind]
                self._told[kind] = time.monotonic()
                summary = copy.copy(record)
                first = record.getMessage().partition("\n")[0]
                summary.msg, summary.args = f"{first} ({count} more times since the last entry)", None
                summary.exc_info = summary.exc_text = summary.stack_info = None
                setattr(summary, _COUNTED, True)
                logging.getLogger(record.name).handle(summary)

    @contextmanager
    def over(self, *names: str) -> Iterator[None]:
        """Filter the loggers of these names as long as the block lasts."""
        loggers = [logging.getLogger(name) for name in names]
        for logger in loggers:
            logger.addFilter(self)
        try:
            yield
        finally:
            self.tell(all_of_them=True)
            for logger in loggers:
                logger.removeFilter(self)


class LimitedServer(uvicorn.Server):
    """uvicorn's server, which takes connections itself.

    Args:
        config: As uvicorn takes it; HTTP is read by h11.
        limits: How many connections, and how long they may take.
    """

    def __init__(self, config: uvicorn.Config, limits: HttpLimits) -> None:
        super().__init__(config)
        self.limits = limits
        self._connections = _Connections()
        self._listening: list[socket.socket] = []
        self._seldom = Seldom(limits.told_every_s)
        self._told_at = -math.inf

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is stopped, at sockets that listen."""
        with self._seldom.over(*_LOGS):
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        await super().startup(sockets=[])
        self._listening = sockets or []
        for one in self._listening:
            one.setblocking(False)
        self._listen()

    async def on_tick(self, counter: int) -> bool:
        """Do what is to be done ten times a second, and return whether to end."""
        self._seldom.tell()
        if time.monotonic() >= self._told_at + self.limits.told_every_s:
            self._tell_of_closed()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and let requests that have come be answered."""
        for one in self._listening:
            asyncio.get_running_loop().remove_reader(one)
        self._listening = []
        await self._connections.close_new_ones()
        self._tell_of_closed()
        await super().shutdown(sockets)

    def _tell_of_closed(self) -> None:
        if self._connections.closed:
            _log.warning(
                "too many connections: closed %d without a request to answer, the last from %s; limit %d at a time",
                self._connections.closed,
                self._connections.closed_last,
                self.limits.connections,
                extra={_COUNTED: True},
            )
            self._connections.closed, self._told_at = 0, time.monotonic()

    def _listen(self) -> None:
        for one in self._listening:
            asyncio.get_running_loop().add_reader(one, self._accept, one)

    def _listen_later(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(_PAUSE_S, self._listen)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            full = len(self._connections) >= self.limits.connections
            oldest = self._connections.oldest() if full else None
            if full and oldest is None:
                _log.warning("all %d connections are being answered: new ones wait", self.limits.connections)
                self._listen_later(listening)
                return
            try:
                taken, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # nothing is left to open, or the network has an error
                _log.warning("cannot take a connection: %s", error.strerror or error)
                self._connections.close(self._connections.oldest())
                self._listen_later(listening)
                return
            self._connections.close(oldest)
            taken.setblocking(False)
            self._connections.add(_Connection(self, self._connections, taken, _origin(address[0])))


class Stage(Enum):
    """What a connection does."""

    SILENT = "nothing has come"
    BEGUN = "no whole head has come, or all requests that came are answered"
    HANGS = "a body has not come, or an answer is not taken"
    ANSWERED = "a request is being answered"


class _Connections:
    """Connections that were taken, and which of them may be closed for others.

    Attributes:
        closed: How many were, since this was last told.
        closed_last: Where the last of them came from.
    """

    def __init__(self) -> None:
        self._all: dict[_Connection, Stage] = {}
        closable = [stage for stage in Stage if stage is not Stage.ANSWERED]
        # By stage, and by stage and origin; the oldest first.
        self._oldest: dict[Stage, dict[_Connection, None]] = {stage: {} for stage in closable}
        self._closable: dict[Stage, dict[str, dict[_Connection, None]]] = {stage: {} for stage in closable}
        self.closed = 0
        self.closed_last = ""

    def __len__(self) -> int:
        return len(self._all)

    def add(self, one: _Connection) -> None:
        self._all[one] = Stage.ANSWERED
        self.place(one)

    def remove(self, one: _Connection) -> None:
        self._move(one, Stage.ANSWERED)
        self._all.pop(one, None)

    def place(self, one: _Connection) -> None:
        """Note what a connection does now."""
        self._move(one, one.stage)

    def _move(self, one: _Connection, to: Stage) -> None:
        before = self._all.get(one, to)
        if before is to:
            return
        self._all[one] = to
        if before is not Stage.ANSWERED:
            here = self._closable[before][one.origin]
            del here[one], self._oldest[before][one]
            if not here:
                del self._closable[before][one.origin]
        if to is not Stage.ANSWERED:
            self._oldest[to][one] = self._closable[to].setdefault(one.origin, {})[one] = None

    def oldest(self) -> _Connection | None:
        """Return the connection to close for a new one; ``None`` where all are being answered."""
        silent, begun = (sum(len(of) for of in self._closable[one].values()) for one in (Stage.SILENT, Stage.BEGUN))
        # Neither many that say nothing nor many that go on for ever take more than half from the others.
        order = (Stage.SILENT, Stage.BEGUN) if silent >= begun else (Stage.BEGUN, Stage.SILENT)
        for stage in (*order, Stage.HANGS):
            if by_origin := self._closable[stage]:
                most = max(by_origin.values(), key=lambda of: len(of))
                # Where every origin has few, one with two is no worse than the others.
                few = len(most) <= max(1, len(self._all) // _FEW)
                return next(iter(self._oldest[stage] if few else most))
        return None

    def close(self, one: _Connection | None) -> None:
        """Close a connection for another, if there is one to be closed."""
        if one is not None:
            self.remove(one)
            one.close()
            self.closed, self.closed_last = self.closed + 1, one.origin

    async def close_new_ones(self) -> None:
        """Close all those that uvicorn has not seen yet."""
        beginning = [one.beginning for one in self._all if one.beginning is not None]
        for one in [*self._all]:
            if one.is_new:
                self.remove(one)
                one.close()
        await asyncio.gather(*beginning, return_exceptions=True)


class _Connection:
    """A connection, which is uvicorn's business as soon as its client says something, after the TLS handshake if any.

    Args:
        server: Who took it.
        connections: Where it stands with all others.
        taken: The socket; this closes it.
        origin: Where it comes from.

    Attributes:
        origin: As above.
        beginning: The TLS handshake, and what else is to be done until uvicorn has it.
    """

    def __init__(self, server: LimitedServer, connections: _Connections, taken: socket.socket, origin: str) -> None:
        self.origin, self.beginning = origin, None
        self._server, self._connections, self._taken = server, connections, taken
        self._protocol: _Protocol | None = None
        self._loop = asyncio.get_running_loop()
        self._limit = self._loop.call_later(server.limits.patience_s, self._give_up)
        self._loop.add_reader(taken.fileno(), self._begin)

    beginning: asyncio.Task[None] | None

    @property
    def is_new(self) -> bool:
        """Whether uvicorn has not seen it yet."""
        return self._protocol is None or self._protocol.transport is None

    @property
    def stage(self) -> Stage:
        """What it does now."""
        if self._protocol is not None:
            return self._protocol.stage
        return Stage.SILENT if self.beginning is None else Stage.BEGUN

    def noted(self) -> None:
        """Note that the protocol is at another point."""
        self._connections.place(self)

    def lost(self) -> None:
        """Note that there is no connection any more."""
        self._connections.remove(self)

    def close(self) -> None:
        """Close it, whatever is on its way."""
        self._limit.cancel()
        if self._protocol is not None and self._protocol.transport is not None:
            self._protocol.transport.abort()
            return
        if self.beginning is not None:
            self.beginning.cancel()
        if self._protocol is None:  # nobody else has seen the socket
            self._loop.remove_reader(self._taken.fileno())
            self._taken.close()

    def _give_up(self) -> None:
        """End the connection of a client that has said nothing."""
        if self._server.config.ssl is None:
            with suppress(OSError):  # it has gone, or there is no room for a few bytes
                self._taken.send(_TOO_SLOW)
        self.close()
        self.lost()

    def _begin(self) -> None:
        if self._has_gone():
            self.close()
            self.lost()
        else:
            self._loop.remove_reader(self._taken.fileno())
            self.beginning = self._loop.create_task(self._handshake())
            self.noted()

    def _has_gone(self) -> bool:
        try:
            return not self._taken.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def _handshake(self) -> None:
        self._limit.cancel()
        tls, until = self._server.config.ssl, self._limit.when()
        self._protocol = protocol = _Protocol(self._server, self, until)
        handshake_s = None if tls is None else max(until - self._loop.time(), 0.001)
        shutdown_s = None if tls is None else self._server.limits.patience_s
        try:
            # Of TLS too: a stranger's handshake that comes to nothing is its own affair.
            with suppress(OSError):
                await self._loop.connect_accepted_socket(
                    lambda: protocol,
                    self._taken,
                    ssl=tls,
                    ssl_handshake_timeout=handshake_s,
                    ssl_shutdown_timeout=shutdown_s,
                )
        finally:
            if protocol.transport is None:
                self.lost()


class _Protocol(H11Protocol):
    """uvicorn's protocol with limits.

    The time for a head runs from when the connection was taken, TLS handshake included, and on one that is kept alive
    from the first byte of the next request, to the head's last byte; it is not started anew by bytes that come. Then
    408 is answered, and the connection closed. A client that does not take its answer in that time, or the end of its
    connection, is cut off.

    Args:
        server: Whose it is.
        connection: Told where it is.
        until: When the first head has to be there, in the loop's time.
    """

    def __init__(self, server: LimitedServer, connection: _Connection, until: float) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state, asyncio.get_running_loop())
        self._patience_s, self._connection, self._until = server.limits.patience_s, connection, until
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    @property
    def stage(self) -> Stage:
        """What its connection does now."""
        if self.cycle is None or self.cycle.response_complete:
            return Stage.BEGUN
        return Stage.HANGS if self.cycle.more_body or self._blocked else Stage.ANSWERED

    @property
    def _blocked(self) -> bool:
        return self.flow.write_paused or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its own base
        super().connection_made(transport)
        self._timers[self._give_up] = self.loop.call_at(self._until, self._give_up)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        between = before is not None and before.response_complete
        super().data_received(data)
        if self.cycle is not before:
            self._not_after_all(self._give_up)
        elif between:
            self._after_patience(self._give_up)
        self._note()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._note()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._note()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers.values():
            timer.cancel()
        super().connection_lost(exc)
        self._connection.lost()

    def _note(self) -> None:
        if self._blocked:
            self._after_patience(self.transport.abort)
        else:
            self._not_after_all(self.transport.abort)
        self._connection.noted()

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
            self.transport.close()
        self._note()

    def _after_patience(self, act: Callable[[], None]) -> None:
        """Act when the time is over that began when this was first said."""
        if act not in self._timers:
            self._timers[act] = self.loop.call_later(self._patience_s, act)

    def _not_after_all(self, act: Callable[[], None]) -> None:
        if act in self._timers:
            self._timers.pop(act).cancel()


def _origin(host: str) -> str:
    """Return where a connection comes from: an address, or of IPv6 the /64, of which one machine can have every one."""
    if ":" not in host:
        return host
    return str(ipaddress.IPv6Network((host.partition("%")[0], 64), strict=False))
