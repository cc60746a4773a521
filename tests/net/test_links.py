"""Links over gRPC and mutual TLS on loopback: who gets one, what ends one, and what a hostile caller achieves."""

from __future__ import annotations

import signal
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest
import torch
from grpc._channel import _MultiThreadedRendezvous

from splitvfl.errors import ArgumentError, ConfigError, LinkError, ProtocolError, RefusedError
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message
from splitvfl.net import frames, links
from splitvfl.net.certs import make_certificates
from splitvfl.net.frames import Hello, hello_frame, pack
from splitvfl.net.link import Stream
from splitvfl.net.links import Link, Listener, Times, dial
from splitvfl.net.tls import Identity, Plaintext
from tests.commands import Command
from tests.net.link_process import talk, talk_to_nobody
from tests.run.parties import neighbouring_ports

BANK = Hello("bank", "credit", "active")
TELECOM = Hello("telecom", "credit", "passive")
PEERS = {"telecom": "telecom", "shop": "shop"}
# Longer than anything here takes, shorter than a test may.
ENOUGH = 10.0
SOON = Times(hello_s=1.0, keepalive_s=0.3, keepalive_timeout_s=0.3, probe_s=0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("certificates")
    make_certificates(place, ["bank", "telecom", "shop", "stranger"])
    return place


@pytest.fixture(scope="module")
def identities(folder: Path) -> dict[str, Identity]:
    return {name: Identity.load(name, folder=folder) for name in ("bank", "telecom", "shop", "stranger")}


@pytest.fixture
def listener(identities: dict[str, Identity]) -> Iterator[Listener]:
    with Listener("127.0.0.1:0", identities["bank"], hello=BANK, peers=PEERS, times=SOON) as listening:
        yield listening


Dialler = Callable[..., Link]


@pytest.fixture
def dial_bank(identities: dict[str, Identity], listener: Listener) -> Iterator[Dialler]:
    made: list[Link] = []

    def dial_as(name: str = "telecom", *, port: int | None = None, hello: Hello | None = None, **more: Any) -> Link:
        settings: dict[str, Any] = {"timeout": ENOUGH, "times": SOON, **more}
        hello = Hello(name, "credit", "passive") if hello is None else hello
        address = f"127.0.0.1:{listener.port if port is None else port}"
        made.append(dial("bank", address, identities[name], hello=hello, identity="bank", **settings))
        return made[-1]

    yield dial_as
    for link in made:
        link.close()


def is_turned_away(caller: socket.socket) -> bool:
    try:
        return not caller.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def activation(sender: str = "telecom", step: int = 0, count: int = 3) -> Message:
    return Message(sender, "bank", "activation", step, torch.arange(count, dtype=torch.float32))


def awaited(sender: str = "telecom", step: int = 0, count: int = 3) -> Expected:
    return Expected(sender, "activation", step, (torch.float32,), (count,))


def settled(condition: Callable[[], bool], within_s: float = ENOUGH) -> bool:
    """Wait until a condition holds."""
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


# --- who gets a link


def test_messages_of_every_size_cross_both_ways_to_the_bit(listener: Listener, dial_bank: Dialler) -> None:
    far = {name: dial_bank(name) for name in PEERS}
    near = {name: listener.accept(name, timeout=ENOUGH) for name in PEERS}
    for step, count in enumerate((0, 1, 1 << 18, (1 << 19) + 1)):
        for name in PEERS:
            far[name].send(activation(name, step, count), timeout=ENOUGH)
        for name in PEERS:
            message = near[name].receive(awaited(name, step, count), timeout=ENOUGH)
            assert torch.equal(message.payload, torch.arange(count, dtype=torch.float32))
            near[name].send(Message("bank", name, "gradient", step, -message.payload), timeout=ENOUGH)
            answer = Expected("bank", "gradient", step, (torch.float32,), (count,))
            assert torch.equal(far[name].receive(answer, timeout=ENOUGH).payload, -message.payload)


@pytest.mark.parametrize(
    ("name", "hello", "complaint"),
    [
        ("stranger", Hello("telecom", "credit", "passive"), "bank knows nobody with this certificate"),
        (
            "telecom",
            Hello("shop", "credit", "passive"),
            "expected telecom, going by .* got a party that calls itself shop",
        ),
        ("telecom", Hello("telecom", "alignment", "passive"), "telecom is here for alignment, bank for credit"),
        ("telecom", Hello("telecom", "credit", "active"), "both telecom and bank say they are the active party"),
    ],
    ids=["stranger", "another's name", "another run", "same role"],
)
def test_who_does_not_belong_is_refused_at_once_told_why_and_logged(
    listener: Listener,
    dial_bank: Dialler,
    name: str,
    hello: Hello,
    complaint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(RefusedError, match=f"bank ended the link for good: {complaint}"):
        dial_bank(name, hello=hello)
    assert [record.name for record in caplog.records] == ["splitvfl.net.links"]
    assert "refused a call from ipv4:127.0.0.1:" in caplog.text
    dial_bank("telecom")  # and the others are served


def test_another_version_is_refused_with_both_versions_named(
    dial_bank: Dialler, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = hello_frame(TELECOM, version=9)
    monkeypatch.setattr(links.frames, "hello_frame", lambda hello: later if hello == TELECOM else hello_frame(hello))
    with pytest.raises(RefusedError, match="telecom speaks version 9 of the protocol, and this party version 3"):
        dial_bank()


def test_a_listener_that_is_another_party_or_another_program_is_refused(
    identities: dict[str, Identity], dial_bank: Dialler
) -> None:
    with (
        Listener("127.0.0.1:0", identities["shop"], hello=BANK, peers=PEERS) as other,
        pytest.raises(ProtocolError, match="bank"),
    ):
        dial_bank(port=other.port)
    server = grpc.server(links.ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", identities["bank"].server_credentials())
    server.start()
    with pytest.raises(ProtocolError, match=f"whoever listens at 127.0.0.1:{port} does not speak splitvfl's protocol"):
        dial_bank(port=port)
    server.stop(None).wait()


def test_who_dials_waits_for_a_listener_and_is_told_once_why(
    identities: dict[str, Identity], dial_bank: Dialler
) -> None:
    port = neighbouring_ports(1)
    told: list[str] = []
    with pytest.raises(LinkError, match=rf"no link with bank at 127.0.0.1:{port} within 0.5 s: .*refused"):
        dial_bank(port=port, timeout=0.5, notify=told.append)
    assert len(told) == 1
    made: list[Link] = []
    waiting = threading.Thread(target=lambda: made.append(dial_bank(port=port)))
    waiting.start()
    time.sleep(0.2)
    with Listener(f"127.0.0.1:{port}", identities["bank"], hello=BANK, peers=PEERS, times=SOON) as late:
        late.accept("telecom", timeout=ENOUGH)
        waiting.join(ENOUGH)
        assert made[0].peer == "bank"


def test_a_call_that_is_over_at_once_is_known_to_be_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever dials would wait for its end each time, before a party listens."""
    add_callback = _MultiThreadedRendezvous.add_callback
    told: list[bool] = []

    def late(call: _MultiThreadedRendezvous, callback: Callable[[], None]) -> bool:
        call.code()  # returns when it is over
        told.append(add_callback(call, callback))
        return told[-1]

    monkeypatch.setattr(_MultiThreadedRendezvous, "add_callback", late)
    address = f"127.0.0.1:{neighbouring_ports(1)}"
    with (
        mock.patch.object(Stream, "finish", autospec=True, side_effect=Stream.finish) as finish,
        pytest.raises(LinkError, match="refused"),
    ):
        dial("bank", address, Plaintext(True), hello=TELECOM, identity="bank", timeout=0.0, times=SOON)
    assert told == [False]
    assert finish.call_count == 1


def test_who_listens_says_who_did_not_come_and_why_it_was_refused(listener: Listener, dial_bank: Dialler) -> None:
    with pytest.raises(LinkError, match=r"^telecom did not dial 127.0.0.1:0 within 0.05 s$"):
        listener.accept("telecom", timeout=0.05)
    with pytest.raises(RefusedError):
        dial_bank(hello=Hello("telecom", "other", "passive"))
    with pytest.raises(LinkError, match=r"within 0\.05 s; last refused: telecom is here for other, bank for credit"):
        listener.accept("telecom", timeout=0.05)
    with pytest.raises(ArgumentError, match="expected one of telecom, shop, got 'stranger'"):
        listener.accept("stranger", timeout=0.05)


def test_an_address_that_cannot_be_had_is_a_mistake_in_the_settings(
    listener: Listener, identities: dict[str, Identity]
) -> None:
    for address, complaint in (
        (f"127.0.0.1:{listener.port}", "cannot listen at .*: Address already in use"),
        ("192.0.2.1:0", "cannot listen at 192.0.2.1:0: "),
        ("nowhere", "expected an address"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            Listener(address, identities["bank"], hello=BANK, peers=PEERS).__enter__()


def test_plaintext_on_loopback_works_like_any_link() -> None:
    plain = Plaintext(plaintext_on_loopback=True)
    with Listener("127.0.0.1:0", plain, hello=BANK, peers=PEERS, times=SOON) as listening:
        address = f"127.0.0.1:{listening.port}"
        with dial("bank", address, plain, hello=TELECOM, identity="bank", timeout=ENOUGH, times=SOON) as link:
            link.send(activation(), timeout=ENOUGH)
            with listening.accept("telecom", timeout=ENOUGH) as near:
                assert near.receive(awaited(), timeout=ENOUGH).payload.tolist() == [0.0, 1.0, 2.0]


# --- coming back


def test_a_party_that_took_its_leave_can_come_back(listener: Listener, dial_bank: Dialler) -> None:
    for _ in range(3):
        far = dial_bank()
        near = listener.accept("telecom", timeout=ENOUGH)
        far.close("back soon")
        with pytest.raises(LinkError, match="telecom took its leave: back soon"):
            near.receive(awaited(), timeout=ENOUGH)
        near.close()


def test_a_link_that_ended_before_it_was_taken_is_not_handed_out(listener: Listener, dial_bank: Dialler) -> None:
    dial_bank().close()
    far = dial_bank()
    far.send(activation(), timeout=ENOUGH)
    listener.accept("telecom", timeout=ENOUGH).receive(awaited(), timeout=ENOUGH)
    with pytest.raises(LinkError, match="did not dial"):
        listener.accept("telecom", timeout=0.05)


def test_a_second_link_of_a_party_is_refused_while_the_first_is_alive(listener: Listener, dial_bank: Dialler) -> None:
    first = dial_bank()
    near = listener.accept("telecom", timeout=ENOUGH)
    with pytest.raises(LinkError, match="telecom is linked already, and that link is alive; is it running twice"):
        dial_bank(timeout=0.5)
    first.send(activation(), timeout=ENOUGH)
    near.receive(awaited(), timeout=ENOUGH)


# --- broken links


class Proxy:
    """A TCP relay to a port, which can stop forwarding without closing anything: a network that is cut."""

    def __init__(self, port: int) -> None:
        self._target, self._cut = port, threading.Event()
        self.passed = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._open = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut.set()

    def mend(self) -> None:
        """Forward what comes on new connections; what was lost stays lost."""
        self._cut = threading.Event()

    def close(self) -> None:
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=(source, sink, self._cut), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, cut: threading.Event) -> None:
        try:
            while data := source.recv(1 << 16):
                if not cut.is_set():
                    self.passed += len(data)
                    sink.sendall(data)
            if not cut.is_set():
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


@pytest.fixture
def proxy(listener: Listener) -> Iterator[Proxy]:
    relay = Proxy(listener.port)
    yield relay
    relay.close()


def test_a_cut_network_is_noticed_by_both_without_a_word_being_sent(
    listener: Listener, dial_bank: Dialler, proxy: Proxy
) -> None:
    far = dial_bank(port=proxy.port)
    near = listener.accept("telecom", timeout=ENOUGH)
    far.send(activation(), timeout=ENOUGH)
    near.receive(awaited(), timeout=ENOUGH)
    proxy.cut()
    began = time.monotonic()
    with pytest.raises(LinkError, match="waiting for activation of step 1 from telecom: the link with telecom broke"):
        near.receive(awaited(step=1), timeout=60)
    with pytest.raises(LinkError, match="the link with bank broke: unavailable"):
        far.receive(Expected("bank", "gradient", 0, (torch.float32,), (3,)), timeout=60)
    assert time.monotonic() - began < ENOUGH
    proxy.mend()
    dial_bank(port=proxy.port).send(activation(), timeout=ENOUGH)
    listener.accept("telecom", timeout=ENOUGH).receive(awaited(), timeout=ENOUGH)


def test_who_comes_back_before_its_old_link_was_seen_to_be_dead_takes_its_place(
    identities: dict[str, Identity], dial_bank: Dialler
) -> None:
    patient = Times(keepalive_s=30.0, keepalive_timeout_s=30.0, probe_s=0.3)
    with Listener("127.0.0.1:0", identities["bank"], hello=BANK, peers=PEERS, times=patient) as listening:
        relay = Proxy(listening.port)
        dial_bank(port=relay.port, times=patient)
        old = listening.accept("telecom", timeout=ENOUGH)
        relay.cut()
        back = dial_bank(port=listening.port, times=patient)
        with pytest.raises(LinkError, match="telecom dialled again"):
            old.receive(awaited(), timeout=ENOUGH)
        back.send(activation(), timeout=ENOUGH)
        listening.accept("telecom", timeout=ENOUGH).receive(awaited(), timeout=ENOUGH)
        relay.close()
        back.close()


def test_who_says_hello_and_bye_at_once_is_not_greeted(
    listener: Listener,
    identities: dict[str, Identity],
    dial_bank: Dialler,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dial_bank(port=proxy.port)
    proxy.cut()
    # While the old link is tried, the caller goes again.
    said = iter([hello_frame(TELECOM), frames.bye_frame("never mind", final=False)])
    with raw_call(identities["telecom"], listener.port, said) as call:
        frames.read_bye(next(call), "bank")
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "telecom was gone before it was greeted"
    ]


@contextmanager
def party_process(folder: Path, port: int, what: str) -> Iterator[Command]:
    process = Command(["telecom", str(folder), f"127.0.0.1:{port}", what], folder, program=talk)
    try:
        assert next(process.stdout) == "linked\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_killed_party_is_missed_at_once_and_can_come_back_at_once(
    folder: Path, listener: Listener, dial_bank: Dialler
) -> None:
    with party_process(folder, listener.port, "sleep") as process:
        near = listener.accept("telecom", timeout=ENOUGH)
        near.receive(awaited(), timeout=ENOUGH)
        process.send_signal(signal.SIGKILL)
        dial_bank()
        with pytest.raises(LinkError, match="waiting for activation of step 1 from telecom"):
            near.receive(awaited(step=1), timeout=60)


def test_ctrl_c_gets_through_while_a_message_is_awaited(folder: Path, listener: Listener) -> None:
    with party_process(folder, listener.port, "wait") as process:
        process.send_signal(signal.SIGINT)
        said = process.communicate(ENOUGH)[1]
        assert process.returncode != 0
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "grpc" not in said.split("Traceback")[0].lower()


def test_a_failed_call_writes_nothing_to_the_terminal(folder: Path) -> None:
    port = neighbouring_ports(1)
    process = Command(["telecom", str(folder), f"127.0.0.1:{port}"], folder, program=talk_to_nobody)
    assert process.communicate(timeout=60) == ("not there\n", "")


# --- hostile callers, with a valid certificate


@contextmanager
def raw_call(identity: Identity, port: int, said: Iterator[bytes], *more_options: tuple[str, int]) -> Iterator[Any]:
    """Call as a program might that follows rules of its own."""
    secured = identity.channel_credentials(f"127.0.0.1:{port}", "bank", timeout_s=ENOUGH)
    options = [*identity.channel_options("bank"), ("grpc.use_local_subchannel_pool", 1), *more_options]
    with grpc.secure_channel(f"127.0.0.1:{port}", secured, options) as channel:
        yield channel.stream_stream("/splitvfl.Exchange/Talk")(said)


def silent(until: threading.Event) -> Iterator[bytes]:
    until.wait(ENOUGH)
    yield from ()


def test_who_never_says_hello_is_sent_away_and_leaves_nothing_behind(
    listener: Listener, identities: dict[str, Identity], dial_bank: Dialler
) -> None:
    before = threading.active_count()
    done = threading.Event()
    began = time.monotonic()
    with raw_call(identities["telecom"], listener.port, silent(done)) as call:
        last = frames.read_bye(next(call), "bank")
        done.set()
    assert last.final is False
    assert "waiting for the hello of telecom: none came within 1 s" in last.reason
    assert SOON.hello_s * 0.9 <= time.monotonic() - began < ENOUGH
    # The listener's workers stay, ready for the next one.
    assert settled(lambda: threading.active_count() <= before + 1)
    dial_bank()


def test_many_silent_calls_of_one_party_keep_none_of_the_others_out(
    identities: dict[str, Identity], dial_bank: Dialler
) -> None:
    done = threading.Event()
    # The first two are not to be sent away for their silence before the third has called, however slow the machine is.
    patient = replace(SOON, hello_s=2 * ENOUGH)
    with (
        Listener("127.0.0.1:0", identities["bank"], hello=BANK, peers=PEERS, times=patient) as listener,
        raw_call(identities["shop"], listener.port, silent(done)) as first,
        raw_call(identities["shop"], listener.port, silent(done)) as second,
    ):
        assert first is not second  # held: a call that nobody refers to is cancelled
        # Both have arrived: else the third may take the place of one of them.
        assert settled(lambda: listener._arriving["shop"] == 2)
        for _ in range(5):
            with raw_call(identities["shop"], listener.port, silent(done)) as call:
                # Two may be silent at a time; from the third on each is turned away.
                if "is being greeted already" in frames.read_bye(next(call), "bank").reason:
                    break
        else:
            pytest.fail("nobody was turned away")
        dial_bank("telecom", port=listener.port).send(activation(), timeout=ENOUGH)
        listener.accept("telecom", timeout=ENOUGH).receive(awaited(), timeout=ENOUGH)
        done.set()


def test_connections_without_a_handshake_are_closed(listener: Listener, dial_bank: Dialler) -> None:
    callers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(20)]
    for caller in callers:
        caller.settimeout(ENOUGH)
        assert caller.recv(1) == b""
        caller.close()
    dial_bank()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_silent_connections_are_few_and_end_no_link_that_stands(
    tls: bool, identities: dict[str, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitvfl.net.links.most_connections", lambda at_most, one_in: 8)
    plain = Plaintext(plaintext_on_loopback=True)
    own, others = (identities["bank"], identities["telecom"]) if tls else (plain, plain)
    with Listener("127.0.0.1:0", own, hello=BANK, peers=PEERS, times=SOON) as listener, ExitStack() as stack:

        def link() -> tuple[Link, Link]:
            dialled = dial(
                "bank", f"127.0.0.1:{listener.port}", others, hello=TELECOM, identity="bank", timeout=ENOUGH, times=SOON
            )
            stack.callback(dialled.close)
            return dialled, listener.accept("telecom", timeout=ENOUGH)

        dialled, accepted = link()
        address = ("127.0.0.1", listener.port)
        callers = [stack.enter_context(socket.create_connection(address, timeout=ENOUGH)) for _ in range(100)]
        assert settled(lambda: sum(map(is_turned_away, callers)) >= 100 - 8)
        dialled.send(activation(), timeout=ENOUGH)
        accepted.receive(awaited(), timeout=ENOUGH)
        dialled.close()
        link()  # when the time of the silent ones is over


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (b"", "got an empty frame"),
        (b"\x01" + b"GET / HT", "expected a hello"),
        (bytes(1 << 20), "got a frame of unknown type 0 of 1048576 bytes"),
        (next(pack(activation(), 0).frames()), "got a message of"),
    ],
    ids=["nothing", "another protocol", "a mebibyte", "a message"],
)
def test_who_says_something_else_first_is_sent_away_for_good(
    listener: Listener, identities: dict[str, Identity], words: bytes, complaint: str
) -> None:
    with raw_call(identities["telecom"], listener.port, iter([words])) as call:
        last = frames.read_bye(next(call), "bank")
    assert last.final
    assert complaint in last.reason


@pytest.mark.parametrize("word", [b"x", hello_frame(Hello("shop", "credit", "passive"))], ids=["refused", "welcomed"])
def test_who_takes_no_bytes_keeps_none_of_the_others_out(
    listener: Listener, identities: dict[str, Identity], dial_bank: Dialler, word: bytes
) -> None:
    # A window of no bytes: whatever the listener wants to say waits for ever.
    deaf = ("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0)
    with ExitStack() as calls:
        held = [calls.enter_context(raw_call(identities["shop"], listener.port, iter([word]), *deaf))]
        for _ in range(15):
            time.sleep(0.1)
            held.append(calls.enter_context(raw_call(identities["shop"], listener.port, iter([word]), *deaf)))
        dial_bank("telecom").send(activation(), timeout=ENOUGH)
        came = listener.accept("telecom", timeout=ENOUGH).receive(awaited(), timeout=ENOUGH)
        assert came.payload.tolist() == [0.0, 1.0, 2.0]


def test_who_is_refused_again_and_again_does_not_fill_the_log(
    listener: Listener, identities: dict[str, Identity], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(70):
        with raw_call(identities["telecom"], listener.port, iter([b"x"])) as call:
            assert frames.read_bye(next(call), "bank").final
    assert len(caplog.records) == 16 + 2
    assert ", number 32: " in caplog.records[-2].message
    with raw_call(identities["shop"], listener.port, iter([b"x"])) as call:
        next(call)
    assert len(caplog.records) == 16 + 3


def test_a_frame_that_is_too_large_breaks_the_link_and_nothing_else(
    listener: Listener, identities: dict[str, Identity], dial_bank: Dialler
) -> None:
    greeted = threading.Event()

    def words() -> Iterator[bytes]:
        yield hello_frame(TELECOM)
        greeted.wait(ENOUGH)
        yield bytes(3 << 20)

    with raw_call(identities["telecom"], listener.port, words()) as call:
        frames.read_hello(next(call), "bank")
        greeted.set()
        near = listener.accept("telecom", timeout=ENOUGH)
        with pytest.raises(LinkError, match=r"the link with telecom broke: .* or it sent more than 2 MiB in one gRPC"):
            near.receive(awaited(), timeout=ENOUGH)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    dial_bank()


@contextmanager
def raw_listener(identity: Identity, answers: Callable[[Iterator[bytes]], Iterator[bytes]]) -> Iterator[int]:
    """Listen as a program might that follows rules of its own, and give the port."""
    # It takes signs of life as often as a caller with short times sends them.
    lenient = [("grpc.http2.min_ping_interval_without_data_ms", 1), ("grpc.http2.max_ping_strikes", 0)]
    server = grpc.server(
        ThreadPoolExecutor(4), compression=grpc.Compression.Gzip, options=[("grpc.so_reuseport", 0), *lenient]
    )
    talk = grpc.stream_stream_rpc_method_handler(lambda requests, context: answers(requests))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("splitvfl.Exchange", {"Talk": talk}),))
    port = server.add_secure_port("127.0.0.1:0", identity.server_credentials())
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()


def noise(count: int) -> bytes:
    """Bytes that do not become fewer when they are compressed."""
    return (
        torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy().tobytes()
    )


def test_who_dials_is_told_that_a_message_was_too_large(identities: dict[str, Identity]) -> None:
    def answers(requests: Iterator[bytes]) -> Iterator[bytes]:
        next(requests)
        yield hello_frame(BANK)
        yield noise(3 << 20)

    with raw_listener(identities["bank"], answers) as port:
        settings: dict[str, Any] = {"hello": TELECOM, "identity": "bank", "timeout": ENOUGH, "times": SOON}
        link = dial("bank", f"127.0.0.1:{port}", identities["telecom"], **settings)
        with pytest.raises(LinkError) as caught:
            link.receive(Expected("bank", "gradient", 0, (torch.float32,), (3,)), timeout=ENOUGH)
        link.close()
    said = str(caught.value)
    assert said.startswith("waiting for gradient of step 0 from bank: the link with bank broke: resource exhausted: ")
    assert "3145728 vs. 2097152" in said
    assert "A gRPC message may have 2 MiB at either end, and a frame of this protocol little more than 1 MiB" in said
    assert "compare versions, and see what is in between" in said


def test_another_exhaustion_is_not_called_one_of_size() -> None:
    class Refused(Exception):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        def details(self) -> str:
            return "Concurrent RPC limit exceeded!"

    said = links._in_words(Refused())
    assert said.startswith("resource exhausted: Concurrent RPC limit exceeded!. Who listens takes a few calls")
    assert "2 MiB" not in said


# --- nothing is compressed, and nothing inflated

BOMB = bytes(64 << 20)  # 64 KiB on the wire


def test_what_a_caller_compresses_is_not_inflated(listener: Listener, identities: dict[str, Identity]) -> None:
    """It arrives as it was sent, 64 KiB of gzip: neither 64 MiB of zeros, nor an error about their size."""
    heard: list[bytes] = []
    accepted = threading.Event()
    arrive = Stream._arrive

    def listening(stream: Stream, frame: bytes) -> None:
        heard.append(frame)
        arrive(stream, frame)

    def said() -> Iterator[bytes]:
        yield hello_frame(TELECOM)
        accepted.wait(ENOUGH)  # a caller that is refused sooner has never been one
        yield BOMB

    identity = identities["telecom"]
    secured = identity.channel_credentials(f"127.0.0.1:{listener.port}", "bank", timeout_s=ENOUGH)
    options = [*identity.channel_options("bank"), ("grpc.max_send_message_length", -1)]
    gzip = grpc.Compression.Gzip
    with (
        mock.patch.object(Stream, "_arrive", listening),
        grpc.secure_channel(f"127.0.0.1:{listener.port}", secured, options, compression=gzip) as channel,
    ):
        call = channel.stream_stream("/splitvfl.Exchange/Talk")(said())
        frames.read_hello(next(call), "bank")
        near = listener.accept("telecom", timeout=ENOUGH)
        accepted.set()
        with pytest.raises(ProtocolError):
            near.receive(awaited(), timeout=ENOUGH)
        near.close()
    assert heard[1][:2] == b"\x1f\x8b"
    assert len(heard[1]) < 1 << 17
    assert zlib.decompress(heard[1], wbits=31) == BOMB


def test_what_a_listener_compresses_is_not_inflated(identities: dict[str, Identity]) -> None:
    def answers(requests: Iterator[bytes]) -> Iterator[bytes]:
        next(requests)
        yield hello_frame(BANK)
        yield BOMB

    with raw_listener(identities["bank"], answers) as port:
        settings: dict[str, Any] = {"hello": TELECOM, "identity": "bank", "timeout": ENOUGH, "times": SOON}
        link = dial("bank", f"127.0.0.1:{port}", identities["telecom"], **settings)
        with pytest.raises(ProtocolError, match="frame"):
            link.receive(Expected("bank", "gradient", 0, (torch.float32,), (3,)), timeout=ENOUGH)
        link.close()


def test_nothing_that_is_sent_is_compressed(listener: Listener, dial_bank: Dialler, proxy: Proxy) -> None:
    """A mebibyte of zeros is a mebibyte between the two, in both directions."""
    far = dial_bank("telecom", port=proxy.port)
    near = listener.accept("telecom", timeout=ENOUGH)
    for sender, end, other in (("telecom", far, near), ("bank", near, far)):
        before = proxy.passed
        receiver = "bank" if sender == "telecom" else "telecom"
        end.send(Message(sender, receiver, "activation", 0, torch.zeros(1 << 18)), timeout=ENOUGH)
        other.receive(Expected(sender, "activation", 0, (torch.float32,), (1 << 18,)), timeout=ENOUGH)
        assert proxy.passed - before > 1 << 20


def test_a_flood_that_nobody_reads_is_held_back_by_the_network(
    listener: Listener, identities: dict[str, Identity]
) -> None:
    taken = 0

    def flood() -> Iterator[bytes]:
        nonlocal taken
        yield hello_frame(TELECOM)
        for _ in range(1000):
            taken += 1
            yield bytes([frames.REST]) + bytes(1 << 20)

    with raw_call(identities["telecom"], listener.port, flood()) as call:
        frames.read_hello(next(call), "bank")
        listener.accept("telecom", timeout=ENOUGH)
        assert settled(lambda: taken > 4)
        time.sleep(0.5)
        # Four frames wait here; the rest is in the windows of HTTP/2 and in the buffers of both sockets, which grow.
        assert taken < 100


def readers() -> int:
    """How many threads read what callers send."""
    return sum(thread.name == "splitvfl-from" for thread in threading.enumerate())


@pytest.mark.parametrize("linked", [False, True], ids=["nobody accepts it", "its other link is alive"])
def test_who_floods_and_hangs_up_again_and_again_leaves_no_threads_and_no_frames_behind(
    listener: Listener,
    identities: dict[str, Identity],
    dial_bank: Dialler,
    linked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if linked:
        dial_bank()

        def slow_to_answer(stream: Stream, within_s: float) -> bool:
            time.sleep(0.2)  # meanwhile the flood comes
            return True

        monkeypatch.setattr(Stream, "answers", slow_to_answer)
    before, sent = readers(), threading.Event()

    def flood() -> Iterator[bytes]:
        yield hello_frame(TELECOM)
        for _ in range(20):
            yield bytes([frames.REST]) + bytes(1 << 16)
        sent.set()

    for _ in range(4):
        sent.clear()
        with raw_call(identities["telecom"], listener.port, flood()) as call:
            next(call)
            assert sent.wait(ENOUGH)
    # The last one may stay until somebody dials again.
    assert settled(lambda: readers() <= before + 1)


def test_a_message_that_is_not_awaited_is_refused_over_the_network_too(listener: Listener, dial_bank: Dialler) -> None:
    far, near = dial_bank(), listener.accept("telecom", timeout=ENOUGH)
    far.send(activation(step=4), timeout=ENOUGH)
    with pytest.raises(ProtocolError, match="expected activation of step 0 from telecom, got activation of step 4"):
        near.receive(awaited(), timeout=ENOUGH)
    near.close("that was not the step", final=True)
    with pytest.raises(RefusedError, match="bank ended the link for good: that was not the step"):
        far.receive(Expected("bank", "gradient", 0, (torch.float32,), (3,)), timeout=ENOUGH)


def test_links_and_listeners_leave_no_threads_behind(identities: dict[str, Identity]) -> None:
    def once() -> None:
        with Listener("127.0.0.1:0", identities["bank"], hello=BANK, peers=PEERS, times=SOON) as listening:
            address = f"127.0.0.1:{listening.port}"
            with dial("bank", address, identities["telecom"], hello=TELECOM, identity="bank", timeout=ENOUGH):
                listening.accept("telecom", timeout=ENOUGH).close()

    once()
    before = threading.active_count()
    for _ in range(5):
        once()
    assert settled(lambda: threading.active_count() <= before)
