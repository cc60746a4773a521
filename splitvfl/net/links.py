"""Links between processes: one gRPC stream each, under mutual TLS. gRPC is used here and nowhere else.

One of two parties dials (:func:`dial`) and the other listens (:class:`Listener`); from then on both hold a
:class:`~splitvfl.net.link.Link`. A party that listens serves its partners only: it knows a caller by its certificate
before it hears a word, takes one link from each, and gives everything a limit. Whoever is refused is told why, and the
log ``splitvfl.net.links`` has it: of one caller the first sixteen times each, then ever more rarely.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc

from splitvfl.errors import ArgumentError, ConfigError, LinkError, ProtocolError, SplitVFLError
from splitvfl.net import frames
from splitvfl.net.frames import Bye, Hello, shown_text
from splitvfl.net.link import GONE, Link, Stream, check_fit, first_words, greeted, pair
from splitvfl.net.pipes import PipeEnded
from splitvfl.net.tls import Identity, Plaintext, split_address
from splitvfl.system.open_files import most_connections

__all__ = ["Link", "Listener", "Times", "dial", "pair"]

SERVICE: Final = "splitvfl.Exchange"
METHOD: Final = "Talk"

_LARGEST_FRAME: Final = 2 << 20
_UNCOMPRESSED: Final = grpc.Compression.NoCompression
# At the side that listens, gRPC does not say why a call broke.
_GONE_OR_TOO_LARGE: Final = f"{GONE}, or it sent more than 2 MiB in one gRPC message"
_MOST_CONNECTIONS: Final = 256
# Streams of one partner that have not said hello yet.
_ARRIVING: Final = 2
# Beyond those of partners: to refuse strangers in.
_SPARE_WORKERS: Final = 4
# Refusals of one caller that are logged each; after these, the one whose number is the next power of two.
_LOGGED: Final = 16
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0

# A name of its own: on the command line refusals are told without a log too.
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Limits that need no agreement, in seconds.

    Attributes:
        hello_s: For TLS to be set up, and as long again for the other side's hello.
        keepalive_s: Between two signs of life on a quiet link; both sides must have set about the same.
        keepalive_timeout_s: For the answer to one, before the link counts as broken. It may have to wait its turn
            behind what fills the buffers of a slow network.
        probe_s: For a sign of life from a link whose party has dialled again.
    """

    hello_s: float = 10.0
    keepalive_s: float = 10.0
    keepalive_timeout_s: float = 20.0
    probe_s: float = 2.0


_USUAL: Final = Times()


def _options(times: Times) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", _LARGEST_FRAME),
        ("grpc.max_send_message_length", _LARGEST_FRAME),
        ("grpc.keepalive_time_ms", _ms(times.keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(times.keepalive_timeout_s)),
        # Without this one, a minute passes whatever the other says.
        ("grpc.http2.ping_timeout_ms", _ms(times.keepalive_timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_http_proxy", 0),
        # Its own connection for every link: none shares another's failures.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        # Nothing is ever inflated: who compresses all the same is heard as it is, and refused as it makes no sense.
        # Before grpcio 1.84 a message of 2 MiB could become 2 GiB before its size was looked at.
        ("grpc.per_message_decompression", 0),
    ]


def _server_options(times: Times) -> list[tuple[str, int]]:
    return [
        *_options(times),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", _ms(times.hello_s)),
        # A connection on which nobody calls.
        ("grpc.max_connection_idle_ms", _ms(times.hello_s)),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(times.keepalive_s / 2)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _ms(times.keepalive_s / 2)),
        ("grpc.max_concurrent_streams", _ARRIVING),
        ("grpc.max_allowed_incoming_connections", most_connections(_MOST_CONNECTIONS, one_in=4)),
    ]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def dial(
    peer: str,
    address: str,
    credentials: Identity | Plaintext,
    *,
    hello: Hello,
    identity: str,
    timeout: float,
    times: Times = _USUAL,
    notify: Callable[[str], None] = lambda line: None,
) -> Link:
    """Return a link to a party that listens, as soon as it does.

    Tried again and again, after pauses of up to two seconds, as long as trying again may help.

    Args:
        peer: The party's name.
        address: Where it listens, ``host:port``.
        credentials: This party's.
        hello: What this party says of itself.
        identity: The DNS name that the peer's certificate must carry.
        timeout: Seconds after which to give up.
        times: Other limits.
        notify: Told why, whenever an attempt fails for another reason than the one before.

    Raises:
        LinkError: If there is no link in time; it says what happened last.
        RefusedError: If the other party refuses this one.
        ProtocolError: If whoever listens there is not that party.
        ConfigError: If that is no address.
    """
    deadline, pause, told = time.monotonic() + timeout, _FIRST_PAUSE_S, ""
    while True:
        try:
            return _dial_once(peer, address, credentials, hello, identity, times)
        except LinkError as error:
            if time.monotonic() + pause > deadline:
                raise LinkError(
                    f"no link with {peer} at {address} within {timeout:g} s: {error}. Has {peer} been started, and "
                    "does it listen there?"
                ) from error
            if str(error) != told:
                told = str(error)
                notify(told)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _dial_once(
    peer: str, address: str, credentials: Identity | Plaintext, hello: Hello, identity: str, times: Times
) -> Link:
    secured = credentials.channel_credentials(address, identity, timeout_s=times.hello_s)
    options = [*_options(times), *credentials.channel_options(identity)]
    channel = grpc.secure_channel(address, secured, options, compression=_UNCOMPRESSED)
    stream = Stream()
    stream.outgoing.put(frames.hello_frame(hello))
    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(stream.frames())
    if not call.add_callback(stream.finish):  # it is over already, as where nobody listens
        stream.finish()
    _read_in_thread(stream, call, f"splitvfl-from-{peer}")

    def hang_up() -> None:
        call.cancel()
        channel.close()

    try:
        theirs = greeted(stream, hello, peer, times.hello_s)
    except LinkError:
        stream.end("nobody was greeted")
        hang_up()
        # Whoever reads may hear of the end before the call itself is told over.
        if stream.over.wait(times.probe_s) and call.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise ProtocolError(f"whoever listens at {address} does not speak splitvfl's protocol") from None
        raise
    except BaseException as error:
        stream.end("refused", frames.bye_frame(str(error) if isinstance(error, ProtocolError) else "", final=True))
        stream.over.wait(times.probe_s)
        hang_up()
        raise
    return Link(stream, own=hello, theirs=theirs, hang_up=hang_up)


def _read_in_thread(stream: Stream, arriving: Any, name: str, *, silence: str = GONE) -> None:
    threading.Thread(
        target=stream.read, args=(arriving, _in_words), kwargs={"silence": silence}, name=name, daemon=True
    ).start()


def _in_words(error: Exception) -> str:
    code = getattr(error, "code", None)
    if code is None:
        return _GONE_OR_TOO_LARGE
    details = getattr(error, "details", str)() or ""
    text = shown_text(f"{code().name.lower().replace('_', ' ')}: {details}")
    return text + _exhausted(details) if code() is grpc.StatusCode.RESOURCE_EXHAUSTED else text


def _exhausted(details: str) -> str:
    """Return what gRPC's word for several things means here."""
    if "larger than max" in details:
        return (
            ". A gRPC message may have 2 MiB at either end, and a frame of this protocol little more than 1 MiB: one "
            "of the two does not speak the protocol, or something between them joins frames; compare versions, and see "
            "what is in between"
        )
    return (
        ". Who listens takes a few calls of each partner at a time, and pings at a certain pace: see whether this "
        "party runs twice, and whether both have the same version; it is tried again"
    )


class Listener:
    """Takes links from the parties that dial this one. A context manager: it listens inside its block.

    Callers without a partner's certificate cost little, each for seconds, and get nothing. But there are at most 256
    connections at a time, and no more than a quarter of the files that the process may open. Whoever reaches the port
    can keep them busy, and keep partners out that dial meanwhile; a link that stands does not suffer. Let partners
    through the firewall, and nobody else.

    Args:
        address: Where to listen, ``host:port``; port 0 for any that is free.
        credentials: This party's.
        hello: What this party says of itself.
        peers: The parties that may call, by name, with the DNS names that their certificates must carry.
        times: Limits.

    Attributes:
        port: Where it listens, inside its block.

    Raises:
        ConfigError: If that is no address.
    """

    def __init__(
        self,
        address: str,
        credentials: Identity | Plaintext,
        *,
        hello: Hello,
        peers: Mapping[str, str],
        times: Times = _USUAL,
    ) -> None:
        credentials.check_address(address)
        self.address = address
        self.port = 0
        self._credentials = credentials
        self._hello = hello
        self._peers = dict(peers)
        self._times = times
        self._changed = threading.Condition()
        self._fresh: dict[str, Link] = {}
        self._current: dict[str, Stream] = {}
        self._hang_ups: dict[str, Callable[[], object]] = {}
        self._arriving: Counter[str] = Counter()
        self._doors = {peer: threading.Lock() for peer in peers}
        self._refusals: dict[str, str] = {}
        self._refused: Counter[str] = Counter()
        self._going = False
        self._server: Any = None
        self._workers: Any = None

    def __enter__(self) -> Self:
        count = (_ARRIVING + 2) * len(self._peers) + _SPARE_WORKERS
        workers = ThreadPoolExecutor(count, thread_name_prefix="splitvfl-to")
        options = _server_options(self._times)
        server = grpc.server(workers, options=options, maximum_concurrent_rpcs=count, compression=_UNCOMPRESSED)
        talk = grpc.stream_stream_rpc_method_handler(self._talk)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: talk}),))
        try:
            self.port = server.add_secure_port(self.address, self._credentials.server_credentials())
        except RuntimeError:
            apart = "; several workers on one machine need a port each (network.listen: :7000+)"
            raise ConfigError(
                f"cannot listen at {self.address}: {_why_not(self.address)}{apart if self._hello.workers > 1 else ''}"
            ) from None
        server.start()
        self._server, self._workers = server, workers
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            streams = list(self._current.values())
        for stream in streams:
            stream.end("this party listens no longer")
        self._server.stop(self._times.probe_s).wait()
        self._workers.shutdown(wait=False)

    def greet_nobody(self) -> None:
        """Ask whoever dials from now on to try again later: this party is about to go."""
        self._going = True

    def accept(self, peer: str, *, timeout: float) -> Link:
        """Return a link with a party that has dialled, or as soon as it does, within ``timeout`` seconds.

        Raises:
            LinkError: If it does not dial in time.
        """
        if peer not in self._peers:
            raise ArgumentError(f"expected one of {', '.join(self._peers) or 'nobody'}, got {peer!r}")
        deadline = time.monotonic() + timeout
        with self._changed:
            while (link := self._take(peer)) is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise LinkError(self._nobody_came(peer, timeout))
                self._changed.wait(remaining)
        return link

    def _take(self, peer: str) -> Link | None:
        link = self._fresh.pop(peer, None)
        if link is None or link.ended is None or (isinstance(link.ended, Bye) and link.ended.final):
            return link
        return None  # it has gone again, and will come again

    def _nobody_came(self, peer: str, timeout: float) -> str:
        last = self._refusals.get(peer)
        return f"{peer} did not dial {self.address} within {timeout:g} s" + (f"; last refused: {last}" if last else "")

    # --- in the threads of gRPC

    def _talk(self, requests: Any, context: Any) -> Iterator[bytes]:
        """Serve one stream: its handler, and the frames that go back on it."""
        stream = Stream()
        if not context.add_callback(stream.finish):
            return
        candidates: dict[str, str] = {}
        try:
            candidates = self._candidates(context)
            with self._arrival(candidates):
                # gRPC ends requests with an error or without one, as the moment has it.
                _read_in_thread(stream, requests, "splitvfl-from", silence=_GONE_OR_TOO_LARGE)
                self._welcome(stream, context, candidates)
        except SplitVFLError as error:
            stream.end("refused")  # else what came along would keep its reader waiting for ever
            self._note_refusal(context, error, candidates)
            hang_up = _soon(context.cancel, self._times.probe_s)
            yield frames.bye_frame(str(error), final=not isinstance(error, LinkError))
            hang_up.cancel()
            return
        yield from stream.frames()

    def _candidates(self, context: Any) -> dict[str, str]:
        """Return the partners that the caller can be, going by its certificate."""
        fitting = {}
        for peer, identity in self._peers.items():
            try:
                self._credentials.check_peer(context, identity)
            except ProtocolError as error:
                why = error
            else:
                fitting[peer] = identity
        if not fitting:
            raise ProtocolError(f"{self._hello.party} knows nobody with this certificate") from why
        return fitting

    @contextmanager
    def _arrival(self, candidates: Mapping[str, str]) -> Iterator[None]:
        """Let few streams of a partner say hello at a time: none can take the room of another's."""
        key = "/".join(candidates)
        with self._changed:
            if self._arriving[key] >= _ARRIVING:
                raise LinkError(f"{key} is being greeted already")
            self._arriving[key] += 1
        try:
            yield
        finally:
            with self._changed:
                self._arriving[key] -= 1

    def _welcome(self, stream: Stream, context: Any, candidates: Mapping[str, str]) -> None:
        theirs = first_words(stream, "/".join(candidates), self._times.hello_s)
        peer = theirs.party
        if peer not in candidates:
            raise ProtocolError(
                f"expected {' or '.join(candidates)}, going by the certificate, got a party that calls itself "
                f"{shown_text(peer)}"
            )
        check_fit(self._hello, theirs, peer)
        if self._going:
            raise LinkError(f"{self._hello.party} is about to go; if it is started again, it listens again")
        with self._doors[peer]:
            self._replace(peer)
            self._reply(stream, peer)
            link = Link(stream, own=self._hello, theirs=theirs, hang_up=context.cancel)
            with self._changed:
                self._current[peer], self._fresh[peer] = stream, link
                self._hang_ups[peer] = context.cancel
                self._refusals.pop(peer, None)
                self._changed.notify_all()

    def _reply(self, stream: Stream, peer: str) -> None:
        try:
            stream.outgoing.put(frames.hello_frame(self._hello))
        except PipeEnded:
            raise LinkError(f"{peer} was gone before it was greeted") from None

    def _replace(self, peer: str) -> None:
        """Make room for a new link: an old one that is still alive keeps its place."""
        older = self._current.get(peer)
        if older is None:
            return
        if older.over.is_set():
            older.incoming.end(GONE)  # else what nobody took would keep its reader waiting for ever
            return
        # Its last word, or what a dying network still brings, is no sign of life; and as it may take a while until the
        # old link is known to be dead, whoever is refused may try again.
        if older.outgoing.cause is None and older.answers(self._times.probe_s) and older.outgoing.cause is None:
            raise LinkError(f"{peer} is linked already, and that link is alive; is it running twice?")
        older.end(f"{peer} dialled again", frames.bye_frame("replaced by a newer link", final=False))
        _soon(self._hang_ups[peer], self._times.probe_s)

    def _note_refusal(self, context: Any, error: SplitVFLError, candidates: Mapping[str, str]) -> None:
        with self._changed:
            self._refusals.update(dict.fromkeys(candidates, str(error)))
            self._refused["/".join(candidates)] += 1
            count = self._refused["/".join(candidates)]
        if count <= _LOGGED:
            _log.warning("refused a call from %s: %s", context.peer(), error)
        elif count.bit_count() == 1:  # ever more rarely: a caller that never tires is not to fill a disk
            _log.warning("refused a call from %s, number %d: %s", context.peer(), count, error)


def _soon(hang_up: Callable[[], object], after_s: float) -> threading.Timer:
    """End a call after a while: a caller that takes no bytes would keep the thread that has a last word for it."""
    timer = threading.Timer(after_s, hang_up)
    timer.daemon = True
    timer.start()
    return timer


def _why_not(address: str) -> str:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
            trial.listen()
    except OSError as error:
        return error.strerror or str(error)
    return "gRPC gives no reason"
