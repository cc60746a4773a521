from __future__ import annotations

import os
import random
import re
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from grpc.experimental import session_cache

from splitvfl.errors import ConfigError, LinkError, ProtocolError
from splitvfl.net.tls import Credentials, Identity, Plaintext, identities, identity_of, peer_names, split_address
from tests.net.authorities import BOTH_SIDES, YEAR, Issued, authority, new_key, pem_of_key, place

ROOT = authority()
OTHER_ROOT = authority("other")
SERVERS, CLIENTS = BOTH_SIDES[:1], BOTH_SIDES[1:]
A_DAY = timedelta(days=1)

# Certificates that nobody may take for the party "bank", by what is wrong; those are made once, keys take time.
NOT_BANK: dict[str, Issued] = {
    "another root": OTHER_ROOT.issue("bank"),
    "expired": ROOT.issue("bank", start=-YEAR, end=-A_DAY),
    "not yet valid": ROOT.issue("bank", start=A_DAY),
    "somebody else's": ROOT.issue("mallory"),
    "wildcard": ROOT.issue("x", san=[x509.DNSName("*"), x509.DNSName("*.bank")]),
    "common name only": ROOT.issue("bank", san=[]),
    "name of another kind": ROOT.issue(
        "x", san=[x509.UniformResourceIdentifier("bank"), x509.RFC822Name("bank"), x509.DirectoryName(x509.Name([]))]
    ),
    "signed by a party": ROOT.issue("mallory").issue("bank"),
}


@pytest.fixture
def bank(tmp_path: Path) -> Identity:
    return Identity.load("bank", folder=place(tmp_path / "bank", "bank", ROOT.issue("bank"), ROOT.pem))


@pytest.fixture
def telecom(tmp_path: Path) -> Identity:
    return Identity.load("telecom", folder=place(tmp_path / "telecom", "telecom", ROOT.issue("telecom"), ROOT.pem))


class Answering(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no annotations
    """Answers with what a look at the caller's context finds."""

    def __init__(self, look: Callable[[Any], object]) -> None:
        self.look = look
        self.calls = 0

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: Any) -> bytes:
            self.calls += 1
            return repr(self.look(context)).encode()

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def serving(credentials: Any, handler: Answering, address: str = "127.0.0.1:0") -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1), handlers=[handler])
    port = server.add_secure_port(address, credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def raw_server(issued: Issued, chain: bytes = b"") -> Any:
    return grpc.ssl_server_credentials([(pem_of_key(issued.key), issued.pem + chain)], ROOT.pem, True)


def raw_client(issued: Issued) -> Any:
    return grpc.ssl_channel_credentials(ROOT.pem, pem_of_key(issued.key), issued.pem)


def call(address: str, credentials: Any, options: Any) -> str:
    with grpc.secure_channel(address, credentials, options) as channel:
        return str(channel.unary_unary("/test/call")(b"", timeout=10).decode())


def dial(by: Credentials, address: str, expected: str) -> str:
    credentials = by.channel_credentials(address, expected, timeout_s=5)
    return call(address, credentials, by.channel_options(expected))


def refused(credentials: Any, handler: Answering, client: Any, options: Any = ()) -> None:
    """Check that a call fails and never reaches the handler."""
    with serving(credentials, handler) as address, pytest.raises(grpc.RpcError) as failure:
        call(address, client, options)
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    assert handler.calls == 0


# Two parties that trust each other.


def test_two_parties_meet_and_each_knows_the_other(bank: Identity, telecom: Identity) -> None:
    def look(context: Any) -> object:
        bank.check_peer(context, "telecom")
        return sorted(peer_names(context))

    with serving(bank.server_credentials(), Answering(look)) as address:
        assert dial(telecom, address, "bank") == "['telecom']"


@contextmanager
def overheard(address: str) -> Iterator[tuple[str, list[bytes]]]:
    """Pass connections on to a server; the first bytes that come on each are what anybody on the way sees."""
    heard: list[bytes] = []

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 14):
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def pass_on(caller: socket.socket) -> None:
        with caller, socket.create_connection(split_address(address)) as server:
            heard.append(caller.recv(1 << 14, socket.MSG_PEEK))
            back = threading.Thread(target=carry, args=(server, caller))
            back.start()
            carry(caller, server)
            back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                threads.submit(pass_on, listener.accept()[0])

    with ThreadPoolExecutor(4) as threads, socket.create_server(("127.0.0.1", 0)) as listener:
        threads.submit(accept)
        yield f"localhost:{listener.getsockname()[1]}", heard
        listener.shutdown(socket.SHUT_RDWR)  # or it would go on accepting


def test_what_is_sent_in_the_clear_names_the_party_and_not_the_address(telecom: Identity, tmp_path: Path) -> None:
    """So nothing on the way can tell by the name which of a party's workers is meant: all have its certificate."""
    bank = Identity.load(
        "bank", folder=place(tmp_path / "b", "bank", ROOT.issue("a-bank"), ROOT.pem), identity="a-bank"
    )
    with serving(bank.server_credentials(), Answering(peer_names)) as served, overheard(served) as (address, heard):
        dial(telecom, address, "a-bank")
    assert len(heard) == 2  # to see the certificate, and to talk
    assert [b"a-bank" in hello for hello in heard] == [True, True]
    assert not any(b"localhost" in hello for hello in heard)


def test_an_agreed_identity_stands_for_the_party_name(bank: Identity, tmp_path: Path) -> None:
    issued = ROOT.issue("x", san=[x509.DNSName("VFL.Telecom.example")])
    folder = place(tmp_path / "t", "telecom", issued, ROOT.pem)

    telecom = Identity.load("telecom", folder=folder, identity="vfl.telecom.EXAMPLE")

    assert telecom.name == "vfl.telecom.example"
    with serving(telecom.server_credentials(), Answering(peer_names)) as address:
        assert "bank" in dial(bank, address, telecom.name)


# Keys are made where they are used: every worker collects this module, and one runs the test.
@pytest.mark.parametrize(
    "make",
    [partial(ec.generate_private_key, ec.SECP384R1()), partial(rsa.generate_private_key, 65537, 2048)],
    ids=["P-384", "RSA"],
)
def test_other_kinds_of_key_that_are_accepted_also_work(
    make: Callable[[], Any], telecom: Identity, tmp_path: Path
) -> None:
    bank = Identity.load("bank", folder=place(tmp_path / "b", "bank", ROOT.issue("bank", key=make()), ROOT.pem))

    with serving(bank.server_credentials(), Answering(peer_names)) as address:
        assert "telecom" in dial(telecom, address, "bank")
    with serving(telecom.server_credentials(), Answering(peer_names)) as address:
        assert "bank" in dial(bank, address, "telecom")


def test_a_chain_over_an_intermediate_authority_works(telecom: Identity, tmp_path: Path) -> None:
    between = ROOT.issue("between", san=[], usages=(), is_authority=True)
    folder = place(tmp_path / "b", "bank", between.issue("bank"), ROOT.pem, chain=between.pem)
    bank = Identity.load("bank", folder=folder)

    with serving(bank.server_credentials(), Answering(peer_names)) as address:
        assert "telecom" in dial(telecom, address, "bank")
    with serving(telecom.server_credentials(), Answering(peer_names)) as address:
        assert "bank" in dial(bank, address, "telecom")


def test_partners_certificates_may_be_listed_in_place_of_authorities(tmp_path: Path) -> None:
    own, theirs = ROOT.issue("bank"), OTHER_ROOT.issue("telecom")
    listed = own.pem + theirs.pem
    bank = Identity.load("bank", folder=place(tmp_path / "b", "bank", own, listed))
    telecom = Identity.load("telecom", folder=place(tmp_path / "t", "telecom", theirs, listed))

    with serving(bank.server_credentials(), Answering(peer_names)) as address:
        assert "telecom" in dial(telecom, address, "bank")
    impostor = raw_client(OTHER_ROOT.issue("telecom"))
    refused(bank.server_credentials(), Answering(peer_names), impostor, bank.channel_options("bank"))


# A party that dials.


@pytest.mark.parametrize("wrong", [*NOT_BANK, "for clients only"])
def test_who_dials_refuses_a_server_that_does_not_prove_to_be_the_peer(wrong: str, telecom: Identity) -> None:
    shown = NOT_BANK.get(wrong) or ROOT.issue("bank", usages=CLIENTS)
    chain = b"" if wrong != "signed by a party" else ROOT.issue("mallory").pem

    with (
        serving(raw_server(shown, chain), Answering(peer_names)) as address,
        pytest.raises(ProtocolError, match=rf"{address}.*bank.*refused"),
    ):
        telecom.channel_credentials(address, "bank", timeout_s=5)


def test_who_dials_takes_no_wildcard(telecom: Identity) -> None:
    shown = ROOT.issue("x", san=[x509.DNSName("*.bank.example")])

    with serving(raw_server(shown), Answering(peer_names)) as address:
        with pytest.raises(ProtocolError, match=r"for \*\.bank\.example, which is not vfl\.bank\.example"):
            telecom.channel_credentials(address, "vfl.bank.example", timeout_s=5)
        # That is more than gRPC asks for.
        assert call(address, raw_client(ROOT.issue("telecom")), telecom.channel_options("vfl.bank.example"))


def test_grpc_connects_to_no_other_certificate_than_the_one_that_was_checked(telecom: Identity) -> None:
    with serving(raw_server(ROOT.issue("bank")), Answering(peer_names)) as address:
        checked = telecom.channel_credentials(address, "bank", timeout_s=5)

    # Valid, and of the same name.
    refused(raw_server(ROOT.issue("bank")), Answering(peer_names), checked, telecom.channel_options("bank"))


def test_who_listens_reads_a_name_past_a_nul(bank: Identity) -> None:
    shown = ROOT.issue("telecom", san=[x509.DNSName("telecom\0.evil.example")])

    with serving(bank.server_credentials(), Answering(lambda context: sorted(peer_names(context)))) as address:
        assert call(address, raw_client(shown), bank.channel_options("bank")) == str(["telecom\\x00.evil.example"])


def test_no_name_writes_a_line_of_its_own(telecom: Identity) -> None:
    shown = ROOT.issue("x", san=[x509.DNSName("bank\nserving: linked with bank")])

    with serving(raw_server(shown), Answering(peer_names)) as address, pytest.raises(ProtocolError) as refusal:
        telecom.channel_credentials(address, "bank", timeout_s=5)
    assert "\n" not in str(refusal.value)


def test_nobody_there_is_worth_trying_again(telecom: Identity) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    with pytest.raises(LinkError, match=rf"cannot reach bank at 127.0.0.1:{port}"):
        telecom.channel_credentials(f"127.0.0.1:{port}", "bank", timeout_s=5)


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Hand one connection to a function in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with listener.accept()[0] as connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(timeout=10)


def until_closed(connection: socket.socket) -> None:
    # Whoever has seen enough need not say good-bye.
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass


def test_a_silent_server_is_given_up(telecom: Identity) -> None:
    with listening(until_closed) as address, pytest.raises(LinkError, match=r"bank.*timed out"):
        telecom.channel_credentials(address, "bank", timeout_s=0.2)


def test_a_server_that_is_silent_after_the_handshake_is_given_up(telecom: Identity, tmp_path: Path) -> None:
    folder = place(tmp_path / "b", "bank", ROOT.issue("bank"), ROOT.pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "bank.pem", folder / "bank.key")

    def serve(connection: socket.socket) -> None:
        with server.wrap_socket(connection, server_side=True) as link:
            until_closed(link)

    with listening(serve) as address, pytest.raises(LinkError, match=r"bank.*silent for 0\.2 s"):
        telecom.channel_credentials(address, "bank", timeout_s=0.2)


def test_a_server_that_hangs_up_is_worth_trying_again(telecom: Identity) -> None:
    with listening(lambda connection: None) as address, pytest.raises(LinkError, match=r"bank.*broke off"):
        telecom.channel_credentials(address, "bank", timeout_s=5)


def test_a_connection_that_breaks_before_the_handshake_is_worth_trying_again(
    telecom: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(until_closed) as address:
        connect = socket.create_connection

        def broken(*arguments: Any, **options: Any) -> socket.socket:
            connection = connect(*arguments, **options)
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()
            return socket.socket()  # as one that the other side has reset: it is not connected any more

        monkeypatch.setattr(socket, "create_connection", broken)
        with pytest.raises(LinkError, match=r"bank.*broke off"):
            telecom.channel_credentials(address, "bank", timeout_s=5)


def test_a_server_of_something_else_is_refused(telecom: Identity) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(b"220 mail.example ESMTP\r\n")
        until_closed(connection)

    with listening(serve) as address, pytest.raises(ProtocolError, match="does not speak TLS"):
        telecom.channel_credentials(address, "bank", timeout_s=5)


# A party that listens.


@pytest.mark.parametrize("wrong", ["another root", "expired", "not yet valid", "signed by a party"])
def test_who_listens_serves_no_call_under_a_certificate_that_is_not_valid(wrong: str, bank: Identity) -> None:
    refused(bank.server_credentials(), Answering(peer_names), raw_client(NOT_BANK[wrong]), bank.channel_options("bank"))


def test_who_listens_serves_no_call_under_a_certificate_for_servers_only(bank: Identity) -> None:
    client = raw_client(ROOT.issue("telecom", usages=SERVERS))

    refused(bank.server_credentials(), Answering(peer_names), client, bank.channel_options("bank"))


def test_who_listens_serves_no_call_without_a_certificate(bank: Identity) -> None:
    client = grpc.ssl_channel_credentials(ROOT.pem)

    refused(bank.server_credentials(), Answering(peer_names), client, bank.channel_options("bank"))


def test_who_listens_serves_no_call_in_plaintext(bank: Identity) -> None:
    handler = Answering(peer_names)
    with (
        serving(bank.server_credentials(), handler) as address,
        grpc.insecure_channel(address) as channel,
        pytest.raises(grpc.RpcError),
    ):
        channel.unary_unary("/test/call")(b"", timeout=10)
    assert handler.calls == 0


def test_who_is_not_accepted_hears_why_that_may_be(bank: Identity, tmp_path: Path) -> None:
    theirs = OTHER_ROOT.issue("telecom")
    telecom = Identity.load("telecom", folder=place(tmp_path / "t", "telecom", theirs, ROOT.pem + OTHER_ROOT.pem))

    with (
        serving(bank.server_credentials(), Answering(peer_names)) as address,
        pytest.raises(LinkError, match=r"bank.*hung up on this party's certificate.*ca\.pem"),
    ):
        telecom.channel_credentials(address, "bank", timeout_s=5)


@pytest.mark.parametrize("wrong", ["somebody else's", "wildcard", "common name only", "name of another kind"])
def test_who_listens_refuses_a_name_that_a_valid_certificate_does_not_carry(wrong: str, bank: Identity) -> None:
    def look(context: Any) -> str:
        with pytest.raises(ProtocolError, match=r"127\.0\.0\.1.*says it is bank"):
            bank.check_peer(context, "bank")
        return "refused"

    with serving(bank.server_credentials(), Answering(look)) as address:
        assert call(address, raw_client(NOT_BANK[wrong]), bank.channel_options("bank")) == "'refused'"


def test_who_listens_takes_no_session_that_is_resumed(bank: Identity, telecom: Identity) -> None:
    """gRPC would: by the certificate of the first connection, which may have expired since."""
    resumed: list[bool] = []

    def look(context: Any) -> str:
        resumed.append([*context.auth_context()["ssl_session_reused"]] == [b"true"])
        try:
            bank.check_peer(context, "telecom")
        except ProtocolError as error:
            return str(error)
        return "taken"

    cache = ("grpc.ssl_session_cache", session_cache.ssl_session_cache_lru(1))
    with serving(bank.server_credentials(), Answering(look)) as address:
        credentials = telecom.channel_credentials(address, "bank", timeout_s=5)
        answers = [call(address, credentials, (*telecom.channel_options("bank"), cache)) for _ in range(2)]
    assert resumed == [False, True]
    assert answers[0] == "'taken'"
    assert re.search(r"127\.0\.0\.1.*says it is telecom, but resumed a TLS session", answers[1])


class Context:
    """A call's context, as gRPC would describe it."""

    def __init__(self, address: str, **found: list[bytes]) -> None:
        self._address, self._found = address, found

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._found

    def peer(self) -> str:
        return self._address


def test_names_count_only_where_tls_has_proved_them() -> None:
    shown = {"x509_pem_cert": [ROOT.issue("bank", san=[x509.DNSName("Bank")]).pem]}
    assert peer_names(Context("ipv4:10.0.0.1:1", transport_security_type=[b"ssl"], **shown)) == {"bank"}
    assert peer_names(Context("ipv4:10.0.0.1:1", transport_security_type=[b"local"], **shown)) == set()
    assert peer_names(Context("ipv4:10.0.0.1:1", **shown)) == set()
    assert peer_names(Context("ipv4:10.0.0.1:1", transport_security_type=[b"ssl"], x509_pem_cert=[b"?"])) == set()


# A party's own files.


def rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return place(tmp_path / "certs", "bank", ROOT.issue("bank"), ROOT.pem)


def mistake(folder: Path, **settings: Any) -> str:
    with pytest.raises(ConfigError) as error:
        Identity.load("bank", folder=folder, **settings)
    return str(error.value)


@pytest.mark.parametrize("name", ["ca.pem", "bank.pem", "bank.key"])
def test_a_missing_or_unreadable_file_is_named(folder: Path, name: str) -> None:
    path = folder / name
    content = path.read_bytes()
    for spoil in (b"", b"nonsense", content[: len(content) // 2], content.replace(b"BEGIN ", b"BEGIN X")):
        rewrite(path, spoil)
        assert mistake(folder).startswith(f"{path}: ")

    path.unlink()
    said = mistake(folder)
    assert said.startswith(f"{path}: ")
    assert "splitvfl certs" in said
    path.mkdir()
    assert mistake(folder).startswith(f"{path} is no file")


def test_files_that_kubernetes_mounts_are_read(tmp_path: Path, folder: Path) -> None:
    """Each file of a Secret is a link into a folder that is a link."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    folder.rename(mounted / "..2026")
    (mounted / "..data").symlink_to("..2026")
    for name in ("ca.pem", "bank.pem", "bank.key"):
        (mounted / name).symlink_to(f"..data/{name}")
    assert Identity.load("bank", folder=mounted).party == "bank"


def test_a_file_in_the_place_of_another_is_named(folder: Path) -> None:
    secret = (folder / "bank.key").read_bytes()

    rewrite(folder / "bank.pem", secret)
    assert str(folder / "bank.pem") in mistake(folder)
    rewrite(folder / "bank.key", ROOT.pem)
    rewrite(folder / "bank.pem", ROOT.issue("bank").pem)
    assert str(folder / "bank.key") in mistake(folder)


@pytest.mark.parametrize(
    ("owner", "user", "mode", "taken"),
    [
        (0, 10001, 0o440, True),  # a Secret that is mounted for a group
        (0, 10001, 0o640, True),
        (0, 10001, 0o444, False),
        (0, 10001, 0o644, False),  # as it is mounted if nothing else is said
        (0, 10001, 0o660, False),
        (0, 10001, 0o450, False),
        (0, 0, 0o440, False),
        (10002, 10001, 0o440, False),
        (10001, 10001, 0o440, False),
    ],
)
def test_a_key_that_root_owns_may_reach_a_party_through_a_group(
    folder: Path, owner: int, user: int, mode: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda number: os.stat_result([*real(number)[:4], owner, user, *real(number)[6:]]))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    (folder / "bank.key").chmod(mode)
    if taken:
        assert Identity.load("bank", folder=folder).name == "bank"
        return
    said = mistake(folder)
    assert ("another user" if owner > user else f"others than its owner may use this file (mode {mode:04o})") in said
    assert ("defaultMode: 0400" in said) == (owner == 0 != user)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620])
def test_a_key_that_others_may_use_is_refused(folder: Path, mode: int) -> None:
    (folder / "bank.key").chmod(mode)

    said = mistake(folder)

    assert f"chmod 600 {folder / 'bank.key'}" in said
    (folder / "bank.key").chmod(0o400)
    assert Identity.load("bank", folder=folder).party == "bank"


def test_a_key_of_another_certificate_is_refused(folder: Path) -> None:
    rewrite(folder / "bank.key", pem_of_key(new_key()))

    assert f"{folder / 'bank.key'} is not the key of" in mistake(folder)


def test_a_key_with_a_password_is_refused(folder: Path) -> None:
    rewrite(folder / "bank.key", pem_of_key(ROOT.issue("bank").key, password=b"secret"))

    assert "password" in mistake(folder)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (ed25519.Ed25519PrivateKey.generate, "Ed25519"),
        (partial(ec.generate_private_key, ec.SECP521R1()), "secp521r1"),
        (partial(rsa.generate_private_key, 65537, 1024), "1024"),  # shorter than may be, hence quick
    ],
)
def test_a_key_of_a_kind_that_does_not_do_is_refused(tmp_path: Path, make: Callable[[], Any], kind: str) -> None:
    folder = place(tmp_path, "bank", ROOT.issue("bank", key=make()), ROOT.pem)

    said = mistake(folder)

    assert kind in said
    assert "P-256" in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("another root", "unable to get local issuer certificate"),
        ("expired", "expired on"),
        ("not yet valid", "clock"),
        ("somebody else's", "got mallory"),
        ("wildcard", r"got \*, \*\.bank"),
        ("common name only", "got none"),
        ("name of another kind", "got none"),
        ("signed by a party", "unable to get local issuer certificate"),
    ],
)
def test_a_party_does_not_start_with_a_certificate_that_its_peers_would_refuse(
    tmp_path: Path, wrong: str, said: str
) -> None:
    folder = place(tmp_path, "bank", NOT_BANK[wrong], ROOT.pem)

    assert re.search(rf"^{folder}/bank\.pem: .*{said}", mistake(folder))


@pytest.mark.parametrize("usages", [SERVERS, CLIENTS], ids=["servers", "clients"])
def test_a_party_needs_a_certificate_for_both_sides(tmp_path: Path, usages: Any) -> None:
    folder = place(tmp_path, "bank", ROOT.issue("bank", usages=usages), ROOT.pem)

    assert "both servers and clients" in mistake(folder)


def test_an_intermediate_certificate_that_is_left_out_is_missed(tmp_path: Path) -> None:
    between = ROOT.issue("between", san=[], usages=(), is_authority=True)
    folder = place(tmp_path, "bank", between.issue("bank"), ROOT.pem)

    assert "intermediate" in mistake(folder)


def test_files_may_lie_anywhere(folder: Path, tmp_path: Path) -> None:
    moved = {name: Path(shutil.move(folder / name, tmp_path / f"moved-{name}")) for name in os.listdir(folder)}

    found = Identity.load("bank", certificate=moved["bank.pem"], key=moved["bank.key"], roots=moved["ca.pem"])

    assert found.name == "bank"
    with pytest.raises(ConfigError, match="folder of certificates, or the file of the key"):
        Identity.load("bank", certificate=moved["bank.pem"])
    with pytest.raises(ConfigError, match="name of a file"):
        Identity.load("../bank", folder=folder, identity="bank")


def test_secrets_are_in_no_repr_and_no_message(folder: Path) -> None:
    secret = (folder / "bank.key").read_text().splitlines()[1]

    assert secret not in repr(Identity.load("bank", folder=folder))
    rewrite(folder / "bank.key", (folder / "bank.key").read_bytes()[:-40])
    assert not any(part in mistake(folder) for part in (secret, secret[:16]))


def test_a_key_in_the_file_of_the_certificate_is_not_sent_along(folder: Path) -> None:
    with (folder / "bank.pem").open("ab") as file:
        file.write((folder / "bank.key").read_bytes())

    assert b"PRIVATE" not in Identity.load("bank", folder=folder)._chain


@pytest.mark.parametrize("name", ["ca.pem", "bank.pem", "bank.key"])
def test_no_damage_to_a_file_is_anything_but_a_clear_error(folder: Path, name: str) -> None:
    path, draws = folder / name, random.Random(0)
    content = path.read_bytes()
    loaded, said = 0, list[str]()
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(draws.choice([1, 1, 1, 3, 20])):
            damaged[draws.randrange(len(damaged))] = draws.randrange(256)
        rewrite(path, bytes(damaged[: draws.choice([None, None, draws.randrange(len(damaged))])]))
        try:
            Identity.load("bank", folder=folder)
            loaded += 1
        except ConfigError as error:
            said.append(str(error))
    assert all(str(folder) in text for text in said)
    # What is left whole: line ends, and what the lines in front of a PEM block say.
    assert loaded < 20


# Without TLS.


def test_plaintext_must_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="plaintext_on_loopback"):
        Plaintext(plaintext_on_loopback=False)
    with pytest.raises(ConfigError, match="plaintext_on_loopback"):
        Plaintext(plaintext_on_loopback="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["127.0.0.1:7000", "127.9.9.9:7000", "[::1]:7000", "localhost:0"])
def test_plaintext_takes_loopback_addresses(address: str) -> None:
    Plaintext(plaintext_on_loopback=True).check_address(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:7000", "[::]:7000", "192.0.2.1:7000", "[2001:db8::1]:7000", "[::ffff:192.0.2.1]:7000"]
)
def test_plaintext_takes_no_other_address(address: str) -> None:
    plaintext = Plaintext(plaintext_on_loopback=True)

    with pytest.raises(ConfigError, match="plaintext_on_loopback"):
        plaintext.check_address(address)
    with pytest.raises(ConfigError, match="plaintext_on_loopback"):
        plaintext.channel_credentials(address, "bank", timeout_s=1)


def test_plaintext_asks_where_a_name_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    plaintext = Plaintext(plaintext_on_loopback=True)

    def found(*addresses: str) -> Callable[..., list[tuple[int, int, int, str, tuple[str, int]]]]:
        return lambda host, port, **_: [(2, 1, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found("127.0.0.1", "192.0.2.7"))
    with pytest.raises(ConfigError, match=r"192\.0\.2\.7"):
        plaintext.check_address("bank.example:7000")
    monkeypatch.setattr(socket, "getaddrinfo", found("127.0.0.1", "::1"))
    plaintext.check_address("bank.example:7000")


def test_plaintext_meets_over_loopback() -> None:
    plaintext = Plaintext(plaintext_on_loopback=True)

    def look(context: Any) -> str:
        plaintext.check_peer(context, "telecom")
        assert peer_names(context) == set()
        return "met"

    with serving(plaintext.server_credentials(), Answering(look)) as address:
        assert dial(plaintext, address, "bank") == "'met'"


def outside_address() -> str | None:
    """Return an address of this machine that is not loopback, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def test_grpc_itself_refuses_plaintext_from_outside() -> None:
    outside = outside_address()
    if outside is None or outside.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    plaintext, handler = Plaintext(plaintext_on_loopback=True), Answering(peer_names)

    with serving(plaintext.server_credentials(), handler, "0.0.0.0:0") as address:
        elsewhere = f"{outside}:{address.split(':')[1]}"
        channel = grpc.insecure_channel(elsewhere, plaintext.channel_options("bank"))
        with channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/test/call")(b"", timeout=10)
    assert handler.calls == 0


@pytest.mark.parametrize("address", ["ipv4:192.0.2.1:5", "ipv6:%5B2001:db8::1%5D:5", "unix:/tmp/x", "nonsense"])
def test_plaintext_refuses_a_caller_from_elsewhere(address: str) -> None:
    with pytest.raises(ProtocolError, match="this machine only"):
        Plaintext(plaintext_on_loopback=True).check_peer(
            Context(address, transport_security_type=[b"local"]), "telecom"
        )


def test_plaintext_knows_loopback_of_both_kinds() -> None:
    plaintext = Plaintext(plaintext_on_loopback=True)
    for address in ("ipv4:127.0.0.1:5", "ipv6:%5B::1%5D:5", "ipv6:[::1]:5"):
        plaintext.check_peer(Context(address, transport_security_type=[b"local"]), "telecom")
        with pytest.raises(ProtocolError):
            plaintext.check_peer(Context(address, transport_security_type=[b"insecure"]), "telecom")


def test_tls_and_plaintext_do_not_meet(bank: Identity) -> None:
    plaintext = Plaintext(plaintext_on_loopback=True)

    refused(bank.server_credentials(), Answering(peer_names), grpc.local_channel_credentials())
    with (
        serving(plaintext.server_credentials(), Answering(peer_names)) as address,
        pytest.raises((LinkError, ProtocolError), match="bank"),
    ):
        bank.channel_credentials(address, "bank", timeout_s=5)


# Names and addresses.


@pytest.mark.parametrize("name", ["bank", "party_b", "b-2", "7even", "vfl.bank.example"])
def test_names_that_can_stand_in_a_certificate(name: str) -> None:
    assert identity_of(name.upper()) == name


@pytest.mark.parametrize("name", ["", "bank.", "a..b", "-a", "a-", "b nk", "bänk", "*", "*.bank", "10.0.0.1", "a/b"])
def test_names_that_cannot(name: str) -> None:
    with pytest.raises(ConfigError, match="DNS name"):
        identity_of(name)
    with pytest.raises(ConfigError, match="DNS name"):
        identity_of("bank", name)


def test_labels_and_names_have_the_lengths_of_dns() -> None:
    label = "a" * 63
    longest = ".".join([label] * 3 + ["a" * 61])

    assert identity_of(longest) == longest
    for too_long in ("a" * 64, f"{longest}a"):
        with pytest.raises(ConfigError, match="DNS name"):
            identity_of(too_long)


def test_no_two_parties_are_the_same() -> None:
    with pytest.raises(ConfigError, match="Bank and bank"):
        identities({"Bank": None, "bank": None})
    with pytest.raises(ConfigError, match="bank and telecom"):
        identities({"bank": None, "telecom": "BANK"})


@pytest.mark.parametrize(
    ("address", "parts"),
    [("bank.example:7000", ("bank.example", 7000)), ("10.0.0.1:0", ("10.0.0.1", 0)), ("[::1]:65535", ("::1", 65535))],
)
def test_addresses_are_split(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    ["bank", "bank:", ":7000", "bank:port", "bank:70000", "::1:7000", "[::1]", "unix:/tmp/x", "dns:///bank:7", "[x]:7"],
)
def test_other_addresses_are_refused(address: str, bank: Identity) -> None:
    with pytest.raises(ConfigError, match="expected an address like"):
        bank.check_address(address)


def test_a_link_takes_no_way_around(bank: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    # A proxy that is not there: whoever asks it cannot connect.
    monkeypatch.setitem(os.environ, "no_proxy", "")
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
    for credentials in (bank, Plaintext(plaintext_on_loopback=True)):
        with serving(credentials.server_credentials(), Answering(lambda context: "met")) as address:
            assert dial(credentials, address, "bank") == "'met'"
