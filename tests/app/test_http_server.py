"""Clients that take their time, or come in numbers, at the web server itself."""

from __future__ import annotations

import errno
import http.client
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from splitvfl.app.http_access import HttpLimits, HttpSettings
from splitvfl.app.http_server import LimitedServer, Seldom, Stage, _Connections, _origin
from splitvfl.app.online import HttpService
from splitvfl.exchange.online import Scored
from splitvfl.net.certs import make_certificates
from tests.app.test_http_service import RECORD, TOKEN, Client

LIMIT_S = 0.3
# Longer than anything here takes.
ENOUGH_S = 20.0
REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n"
BODY = json.dumps(RECORD).encode()
SCORE = (
    b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    % len(BODY)
)


class Served:
    """A server in a thread, and where it listens."""

    def __init__(self, server: LimitedServer, address: tuple[str, int], trusted: Path | None) -> None:
        self.server, self.address = server, address
        self.context = None if trusted is None else ssl.create_default_context(cafile=str(trusted))

    def connect(self) -> socket.socket:
        plain = socket.create_connection(self.address, timeout=ENOUGH_S)
        return plain if self.context is None else self.context.wrap_socket(plain, server_hostname="bank")

    def ask(self) -> int:
        """Ask as a client that does as it should, and return the status."""
        connection = http.client.HTTPConnection(*self.address)
        with self.connect() as connection.sock:
            connection.request("GET", "/health", headers={"Host": "127.0.0.1"})
            return connection.getresponse().status

    def taken(self, count: int) -> None:
        """Wait until so many connections are taken."""
        self._wait(lambda: len(self.server._connections), count)

    def stands(self, stage: Stage, count: int) -> None:
        """Wait until so many connections are at this stage."""
        of_stage = self.server._connections._closable[stage]
        self._wait(lambda: sum(map(len, of_stage.copy().values())), count)

    def _wait(self, count: Callable[[], int], expected: int) -> None:
        for _ in range(int(ENOUGH_S / 0.01)):
            if count() == expected:
                return
            time.sleep(0.01)
        raise AssertionError(f"expected {expected} connections, got {count()}")


@contextmanager
def serving(
    limits: HttpLimits, certificates: Path | None = None, client: Client | None = None, *, buffer: int = 0
) -> Iterator[Served]:
    files = (None, None) if certificates is None else (certificates / "bank.pem", certificates / "bank.key")
    access = SimpleNamespace(certificate=files[0], key=files[1])
    service: Any = SimpleNamespace(application=(client or Client()).application, access=access, limits=limits)
    server = HttpService.server(service)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        if buffer:  # what the kernel keeps for a client that does not take it
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            trusted = None if certificates is None else certificates / "ca.pem"
            yield Served(server, listening.getsockname(), trusted)
        finally:
            server.should_exit = True
            thread.join(ENOUGH_S)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["bank"])
    return folder


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """Where the service listens; its partners are there."""
    with serving(HttpLimits(patience_s=LIMIT_S)) as served:
        yield served.address


def to_the_end(client: socket.socket) -> bytes:
    """What comes until the other end closes."""
    found = b""
    while piece := client.recv(4096):
        found += piece
    return found


def answer(client: socket.socket) -> bytes:
    """The answer to one request, of a connection that stays open."""
    found = b""
    while b'"ready"' not in found:
        piece = client.recv(4096)
        assert piece, f"the connection was closed after {found!r}"
        found += piece
    return found


@pytest.mark.parametrize("first", [b"", REQUEST[:1], REQUEST[:-1]], ids=["nothing", "a byte", "all but a byte"])
def test_a_head_that_does_not_come_ends_the_connection(address: tuple[str, int], first: bytes) -> None:
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(first)
        assert to_the_end(client).startswith(b"HTTP/1.1 408 ")


def test_bytes_that_come_buy_no_time(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(REQUEST[:-2])
        ended = threading.Event()

        def go_on() -> None:
            # Each piece comes well within the limit; as long as they come, the head goes on.
            with suppress(OSError):  # it is closed
                while not ended.wait(LIMIT_S / 4):
                    client.sendall(b"a: b\r\n")

        sender = threading.Thread(target=go_on)
        sender.start()
        try:
            # What is sent to who has closed is answered with a reset, which may overtake the answer.
            with suppress(ConnectionResetError):
                assert to_the_end(client).startswith(b"HTTP/1.1 408 ")
        finally:
            ended.set()
            sender.join()


def test_a_connection_that_is_kept_may_rest_and_then_has_as_long_for_its_next_head(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(REQUEST)
        assert answer(client).startswith(b"HTTP/1.1 200 ")
        time.sleep(1.5 * LIMIT_S)  # it rests for longer than a head may take
        client.sendall(REQUEST)
        assert answer(client).startswith(b"HTTP/1.1 200 ")
        client.sendall(REQUEST[:5])
        assert to_the_end(client).startswith(b"HTTP/1.1 408 ")


# --- many connections

FEW = HttpLimits(connections=30, patience_s=ENOUGH_S)
OVER_TLS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


@contextmanager
def connections(address: tuple[str, int], count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(address, timeout=ENOUGH_S)) for _ in range(count)]
        for one in opened:
            with suppress(OSError):  # closed already
                one.sendall(first)
        yield opened


@OVER_TLS
@pytest.mark.parametrize("first", [b"", b"G", b"\x16"], ids=["silent", "a byte", "a byte of TLS"])
def test_a_request_is_answered_whatever_others_hold(
    tls: bool, first: bytes, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(FEW, certificates if tls else None) as served:
        assert served.ask() == 200
        served.taken(0)
        before = open_files()
        with connections(served.address, 200, first):
            for _ in range(3):
                assert served.ask() == 200
            # At both ends: of 200 that were opened here, 30 are left there, and the last that is about to be closed.
            assert open_files() <= before + 200 + 30 + 2
        served.taken(0)
        assert open_files() <= before
        assert served.ask() == 200
    assert "closed" in caplog.text
    assert len(caplog.text) < 10_000


@OVER_TLS
def test_a_request_is_answered_while_others_go_on_to_connect(tls: bool, certificates: Path) -> None:
    with serving(FEW, certificates if tls else None) as served, connections(served.address, 60), ExitStack() as stack:
        for _ in range(10):
            client = stack.enter_context(socket.create_connection(served.address, timeout=ENOUGH_S))
            stack.enter_context(connections(served.address, 20))
            if served.context is not None:
                client = stack.enter_context(served.context.wrap_socket(client, server_hostname="bank"))
            client.sendall(REQUEST)
            assert answer(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("first", [b"", REQUEST[:1]], ids=["silent", "a byte"])
def test_who_has_begun_is_not_pushed_out_by_who_is_silent_nor_by_few_others(first: bytes) -> None:
    with serving(FEW) as served, connections(served.address, 1, REQUEST[:-2]) as (client,):
        served.taken(1)
        with connections(served.address, 200 if not first else 20, first):
            client.sendall(REQUEST[-2:])
            assert answer(client).startswith(b"HTTP/1.1 200 ")


def test_many_that_have_begun_do_not_push_out_who_is_about_to() -> None:
    with serving(FEW) as served, connections(served.address, 60, REQUEST[:1]):
        served.stands(Stage.BEGUN, 30)
        with connections(served.address, 1) as (newcomer,):
            served.stands(Stage.SILENT, 1)
            with connections(served.address, 10, REQUEST[:1]):
                served.stands(Stage.BEGUN, 29)
                newcomer.sendall(REQUEST)
                assert answer(newcomer).startswith(b"HTTP/1.1 200 ")


@OVER_TLS
def test_silence_ends_a_connection_in_time_tls_handshake_included(tls: bool, certificates: Path) -> None:
    limits = HttpLimits(connections=30, patience_s=LIMIT_S)
    with serving(limits, certificates if tls else None) as served:
        for first in (b"", b"\x16\x03\x01"):  # the second begins a TLS handshake
            with socket.create_connection(served.address, timeout=ENOUGH_S) as client:
                client.sendall(first)
                # It ends, with 408 where it is plain.
                assert to_the_end(client).startswith(b"" if tls else b"HTTP/1.1 4")
        served.taken(0)


class Slow(Client):
    """A service that answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = threading.Semaphore(0), threading.Event()
        answers = self.service.submit

        def submit(question: Any) -> Future[Scored]:
            self.asked.release()
            future: Future[Scored] = Future()
            future.set_running_or_notify_cancel()

            def answered() -> None:
                self.let.wait(ENOUGH_S)
                future.set_result(answers(question).result())

            threading.Thread(target=answered).start()
            return future

        self.service.submit = submit  # type: ignore[method-assign]


def status_of(client: socket.socket) -> bytes:
    found = b""
    while b"\r\n" not in found:
        piece = client.recv(4096)
        assert piece, "the connection was closed"
        found += piece
    return found.split()[1]


@OVER_TLS
def test_whose_request_is_being_answered_is_not_closed_and_newcomers_wait(tls: bool, certificates: Path) -> None:
    client = Slow()
    with serving(HttpLimits(connections=4), certificates if tls else None, client) as served, ExitStack() as stack:
        asking = [stack.enter_context(served.connect()) for _ in range(3)]
        for one in asking:
            one.sendall(SCORE + BODY)
            assert client.asked.acquire(timeout=ENOUGH_S)
        with connections(served.address, 100):
            assert served.ask() == 200
        last = stack.enter_context(served.connect())
        last.sendall(SCORE + BODY)
        assert client.asked.acquire(timeout=ENOUGH_S)
        newcomer = stack.enter_context(socket.create_connection(served.address, timeout=ENOUGH_S))
        newcomer.sendall(REQUEST)
        client.let.set()
        assert [status_of(one) for one in (*asking, last)] == 4 * [b"200"]
        if not tls:
            assert answer(newcomer).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_does_not_come_makes_room_too(certificates: Path) -> None:
    with serving(FEW) as served, connections(served.address, 60, SCORE) as opened:
        served.taken(30)
        assert served.ask() == 200
        # Those that wait for a head go first.
        silent = socket.create_connection(served.address, timeout=ENOUGH_S)
        with silent:
            served.taken(30)
            opened[-1].sendall(BODY)
            assert status_of(opened[-1]) == b"200"


def test_a_connection_that_rests_makes_room_and_ends_in_time() -> None:
    with serving(HttpLimits(connections=4)) as served, connections(served.address, 4, REQUEST) as opened:
        for one in opened:
            answer(one)
        assert served.ask() == 200
        assert to_the_end(opened[0]) == b""
        opened[1].sendall(REQUEST)
        assert answer(opened[1]).startswith(b"HTTP/1.1 200 ")
    with serving(HttpLimits(idle_s=0)) as served, connections(served.address, 1, REQUEST) as opened:
        assert to_the_end(opened[0]).startswith(b"HTTP/1.1 200 ")


def test_who_takes_no_answers_is_cut_off() -> None:
    limits = HttpLimits(connections=4, patience_s=LIMIT_S)
    with serving(limits, buffer=4096) as served, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(ENOUGH_S)
        client.connect(served.address)
        # Answers fill what the kernel takes, and then the server's own buffer; it stops to read, and cuts it off.
        with suppress(BrokenPipeError, ConnectionResetError):
            while True:
                client.sendall(1000 * REQUEST)
        served.taken(0)


@pytest.fixture
def guarded_client(tmp_path: Path) -> Client:
    """A service that asks for a token."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return Client(door=HttpSettings("127.0.0.1:8080", file))


@pytest.mark.parametrize("path", [b"/health", b"/score", b"/", b"/metrics"])
def test_a_connection_without_the_token_gets_one_answer(path: bytes, guarded_client: Client) -> None:
    # Requests without end on one connection would hold it, and nobody could be taken in its place.
    request = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path
    with serving(HttpLimits(connections=8), client=guarded_client) as served, served.connect() as client:
        client.sendall(50 * request)
        assert to_the_end(client).count(b"HTTP/1.1 ") == 1
        served.taken(0)


def test_with_the_token_a_connection_is_kept(guarded_client: Client) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    with serving(HttpLimits(connections=8), client=guarded_client) as served, served.connect() as client:
        for _ in range(3):
            client.sendall(head)
            assert answer(client).startswith(b"HTTP/1.1 200 ")


class Begun:
    """What the places ask of a connection."""

    stage = Stage.BEGUN

    def __init__(self, origin: str) -> None:
        self.origin = origin


def test_where_every_address_has_few_the_oldest_makes_room() -> None:
    placed: Any = _Connections()
    many = [Begun(f"192.0.2.{number}") for number in range(40)]
    several = [Begun("198.51.100.1") for _ in range(2)]
    for one in (*many, *several):
        placed.add(one)
    assert placed.oldest() is many[0]  # and none of the address that has two

    for _ in range(10):  # more than a sixteenth
        placed.add(Begun("198.51.100.1"))
    assert placed.oldest() is several[0]


def test_addresses_do_not_push_each_other_out() -> None:
    with serving(HttpLimits(connections=8)) as served, ExitStack() as stack:
        others = [stack.enter_context(socket.socket()) for _ in range(3)]
        for number, one in enumerate(others):  # loopback has a whole net of addresses
            one.settimeout(ENOUGH_S)
            try:
                one.bind((f"127.0.0.{number + 2}", 0))
            except OSError:
                pytest.skip("this machine has one loopback address")
            one.connect(served.address)
            one.sendall(REQUEST[:-2])
        served.stands(Stage.BEGUN, 3)
        with connections(served.address, 50, REQUEST[:1]):
            served.stands(Stage.BEGUN, 8)
            with connections(served.address, 50, REQUEST[:1]):
                served.stands(Stage.BEGUN, 8)
                for one in others:
                    one.sendall(REQUEST[-2:])
                    assert answer(one).startswith(b"HTTP/1.1 200 ")


def test_of_ipv6_one_network_counts_as_one_address() -> None:
    assert _origin("2001:db8::1") == _origin("2001:db8::ffff:2") != _origin("2001:db8:0:1::1")
    assert _origin("fe80::1%eth0") == _origin("fe80::2")
    assert _origin("192.0.2.1") != _origin("192.0.2.2")


def test_when_nothing_can_be_opened_it_is_told_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = socket.socket.accept, threading.Event()

    def fails(listening: socket.socket) -> Any:
        if failures.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", fails)
    with serving(HttpLimits()) as served:
        failures.set()
        timer = threading.Timer(0.3, failures.clear)
        timer.start()
        assert served.ask() == 200
        timer.join()
    told = [one for one in caplog.records if "Too many open files" in one.getMessage()]
    assert 1 <= len(told) <= 2  # the second is the count of the rest
    assert all(one.exc_info is None for one in told)


def test_what_is_no_http_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving(HttpLimits()) as served:
        for _ in range(50):
            with socket.create_connection(served.address, timeout=ENOUGH_S) as client:
                client.sendall(b"no HTTP\r\n\r\n")
                assert to_the_end(client).startswith(b"HTTP/1.1 400 ")
    told = [
        one.getMessage() for one in caplog.records if one.name == "uvicorn.error" and one.levelno >= logging.WARNING
    ]
    assert len(told) == 2
    assert told[1].endswith("(49 more times since the last entry)")


# --- the log


def entries(seldom: Seldom, *messages: tuple[str, Any]) -> list[str]:
    logger, found = logging.getLogger("test of entries"), []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Kept()
    logger.addHandler(handler)
    try:
        with seldom.over("test of entries"):
            for message, value in messages:
                logger.warning(message, value)
    finally:
        logger.removeHandler(handler)
    return found


def test_entries_of_a_kind_are_counted_and_told_in_the_end() -> None:
    found = entries(Seldom(1e9), ("took %s", 1), ("took %s", 2), ("gave %s", 3), ("took %s", 4))
    assert found == ["took 1", "gave 3", "took 4 (2 more times since the last entry)"]
    assert entries(Seldom(0), ("took %s", 1), ("took %s", 2)) == ["took 1", "took 2"]


def test_kinds_without_end_are_one_kind() -> None:
    found = entries(Seldom(1e9), *((f"kind {number} %s", 0) for number in range(1000)))
    assert len(found) <= 102
