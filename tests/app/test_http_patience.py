"""Clients that take their time over the head of a request, at the web server itself."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from splitvfl.app.online import HttpService
from tests.app.test_http_service import Client

LIMIT_S = 0.3
REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n"


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """Where the service listens; its partners are there."""
    access = SimpleNamespace(certificate=None, key=None)
    service: Any = SimpleNamespace(application=Client().application, access=access, head_s=LIMIT_S)
    server = HttpService.server(service)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()
        server.should_exit = True
        thread.join(10)


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
