from __future__ import annotations

import os
import shutil
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.verification import PolicyBuilder, Store

from splitvfl.cli import main
from splitvfl.errors import ArgumentError, ConfigError, SplitVFLError
from splitvfl.net.certs import MadeCertificates, make_certificates
from splitvfl.net.tls import Identity
from tests.net.authorities import authority, pem_of_key


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "certs"


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def context(side: int, made: MadeCertificates, party: str) -> ssl.SSLContext:
    """Return the strictest that Python's TLS offers."""
    found = ssl.SSLContext(side)
    found.verify_mode = ssl.CERT_REQUIRED
    found.verify_flags |= ssl.VERIFY_X509_STRICT
    found.load_verify_locations(made.roots)
    found.load_cert_chain(made.parties[party].certificate, made.parties[party].key)
    return found


def shake_hands(made: MadeCertificates, *, server: str, client: str, host: str) -> None:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = context(ssl.PROTOCOL_TLS_CLIENT, made, client).wrap_bio(down, up, server_hostname=host)
    answering = context(ssl.PROTOCOL_TLS_SERVER, made, server).wrap_bio(up, down, server_side=True)
    for end in (asking, answering, asking):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    answering.do_handshake()


def test_parties_verify_each_other_by_pythons_tls(folder: Path) -> None:
    made = make_certificates(folder, ["bank", "party_2"], hosts={"bank": ["VFL.bank.example", "127.0.0.1", "::1"]})

    for host in ("bank", "vfl.bank.example", "127.0.0.1", "::1"):
        shake_hands(made, server="bank", client="party_2", host=host)
    shake_hands(made, server="party_2", client="bank", host="party_2")
    for other in ("party_2", "bank.example", "localhost", "127.0.0.2"):
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            shake_hands(made, server="bank", client="party_2", host=other)


def test_certificates_satisfy_the_rules_of_the_web(folder: Path) -> None:
    made = make_certificates(folder, ["bank", "telecom"])

    policy = PolicyBuilder().store(Store([certificate(made.roots)]))
    for name, files in made.parties.items():
        shown = certificate(files.certificate)
        assert policy.build_server_verifier(x509.DNSName(name)).verify(shown, [])
        names = policy.build_client_verifier().verify(shown, []).subjects
        assert names == [x509.DNSName(name)]


def test_each_party_can_start_with_its_three_files_alone(folder: Path, tmp_path: Path) -> None:
    make_certificates(folder, ["Bank", "telecom"])

    for name in ("Bank", "telecom"):
        own = tmp_path / name
        own.mkdir()
        for file in ("ca.pem", f"{name}.pem", f"{name}.key"):
            shutil.copy(folder / file, own)
        identity = Identity.load(name, folder=own)
        assert identity.name == name.lower()
        assert identity.is_for_development


def test_only_what_is_needed_is_written_and_keys_are_their_owners(folder: Path) -> None:
    made = make_certificates(folder, ["bank", "telecom"])

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes.keys() == {"ca.pem", "bank.pem", "bank.key", "telecom.pem", "telecom.key"}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"bank.key", "telecom.key"}
    assert made.authority_key is None
    assert not any(b"PRIVATE" in path.read_bytes() for path in folder.glob("*.pem"))
    # No file holds the authority's key beside its own.
    issuer = certificate(folder / "ca.pem").public_key()
    for path in folder.glob("*.key"):
        assert path.read_bytes().count(b"BEGIN") == 1
        assert serialization.load_pem_private_key(path.read_bytes(), None).public_key() != issuer


def test_certificates_say_that_they_are_for_development(folder: Path) -> None:
    make_certificates(folder, ["bank"])

    for path in folder.glob("*.pem"):
        assert "development only" in certificate(path).subject.rfc4514_string()
        assert "development only" in certificate(path).issuer.rfc4514_string()


def test_days_are_counted_from_now(folder: Path) -> None:
    made = make_certificates(folder, ["bank"], days=3)

    for path in folder.glob("*.pem"):
        shown = certificate(path)
        assert shown.not_valid_after_utc == made.valid_until.replace(microsecond=0)
        assert abs(shown.not_valid_after_utc - datetime.now(UTC) - timedelta(days=3)) < timedelta(minutes=1)
        # Clocks that are a little behind must not refuse it.
        assert shown.not_valid_before_utc < datetime.now(UTC) - timedelta(minutes=4)


def test_no_certificate_can_issue_others(folder: Path) -> None:
    made = make_certificates(folder, ["bank"])

    basic = certificate(made.parties["bank"].certificate).extensions.get_extension_for_class(x509.BasicConstraints)
    root = certificate(made.roots).extensions.get_extension_for_class(x509.BasicConstraints)
    assert not basic.value.ca
    assert (root.value.ca, root.value.path_length) == (True, 0)


def test_nothing_is_replaced_unless_asked(folder: Path) -> None:
    make_certificates(folder, ["bank", "telecom"])
    before = contents(folder)

    for names in (["bank", "telecom"], ["bank"], ["shop"]):
        with pytest.raises(ConfigError, match="--overwrite"):
            make_certificates(folder, names)
    assert contents(folder) == before

    make_certificates(folder, ["bank", "telecom"], overwrite=True)
    assert contents(folder).keys() == before.keys()
    assert all(contents(folder)[name] != before[name] for name in before)
    assert Identity.load("bank", folder=folder).party == "bank"


def test_a_new_authority_leaves_no_party_behind(folder: Path) -> None:
    make_certificates(folder, ["bank", "telecom"])
    before = contents(folder)

    with pytest.raises(ConfigError, match=r"telecom\.pem"):
        make_certificates(folder, ["bank"], overwrite=True)
    assert contents(folder) == before


def test_a_kept_authority_adds_a_party(folder: Path) -> None:
    first = make_certificates(folder, ["bank"], days=2, keep_ca_key=True)
    before = contents(folder)
    assert first.authority_key == folder / "ca.key"
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600

    second = make_certificates(folder, ["telecom"], days=30)

    after = contents(folder)
    assert {name: after[name] for name in before} == before
    with pytest.raises(ConfigError, match=r"already holds bank\.key, bank\.pem"):
        make_certificates(folder, ["bank", "shop"])
    assert contents(folder) == after
    # Not longer than the authority, to the second that certificates have.
    assert second.valid_until == first.valid_until.replace(microsecond=0)
    both = MadeCertificates(first.roots, {**first.parties, **second.parties}, first.valid_until, None)
    shake_hands(both, server="bank", client="telecom", host="bank")
    shake_hands(both, server="telecom", client="bank", host="telecom")


def test_an_authority_that_is_replaced_takes_its_key_along(folder: Path) -> None:
    make_certificates(folder, ["bank"], keep_ca_key=True)

    made = make_certificates(folder, ["bank"], overwrite=True)

    assert made.authority_key is None
    assert not (folder / "ca.key").exists()


@pytest.mark.parametrize("spoil", [b"nonsense", pem_of_key(authority().key)])
def test_a_spoilt_authority_signs_nothing(folder: Path, spoil: bytes) -> None:
    make_certificates(folder, ["bank"], keep_ca_key=True)
    (folder / "ca.key").write_bytes(spoil)
    before = contents(folder)

    with pytest.raises(ConfigError, match=r"ca\.key"):
        make_certificates(folder, ["telecom"])
    assert contents(folder) == before


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, flushed = os.fsync, []

    def full(descriptor: int) -> None:
        flushed.append(descriptor)
        if len(flushed) == 3:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        make_certificates(folder, ["bank", "telecom"])

    assert contents(folder) == {}


@pytest.mark.parametrize(
    ("names", "settings", "said"),
    [
        ([], {}, "names of the parties"),
        (["bank", "bank"], {}, "bank more often"),
        (["bank", "Bank"], {}, "Bank"),
        (["ca"], {}, "authority's"),
        (["bank", "CA"], {}, "authority's"),
        (["../bank"], {}, "DNS name"),
        (["b nk"], {}, "DNS name"),
        (["bank"], {"days": 0}, "1 to 365 days"),
        (["bank"], {"days": 366}, "1 to 365 days"),
        (["bank"], {"hosts": {"shop": ["x"]}}, "shop"),
        (["bank"], {"hosts": {"bank": ["*.bank"]}}, "DNS name"),
        (["bank", "shop"], {"hosts": {"bank": ["SHOP"]}}, "could pass for shop"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    folder: Path, names: list[str], settings: dict[str, object], said: str
) -> None:
    with pytest.raises((ArgumentError, ConfigError), match=said) as error:
        make_certificates(folder, names, **settings)  # type: ignore[arg-type]

    assert isinstance(error.value, SplitVFLError)
    assert not folder.exists()


def test_the_command_says_what_goes_to_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["certs", "bank", "telecom", "--host", "telecom=vfl.telecom.example", "--days", "2"]) == 0

    said = capsys.readouterr().out.splitlines()
    assert "bank gets certs/ca.pem certs/bank.pem certs/bank.key" in said
    assert "telecom gets certs/ca.pem certs/telecom.pem certs/telecom.key" in said
    assert any("development only" in line for line in said)
    assert Identity.load("telecom", folder="certs", identity="vfl.telecom.example").party == "telecom"
    assert Identity.load("bank", folder="certs").valid_until < datetime.now(UTC) + timedelta(days=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bank", "--host", "telecom"], "PARTY=NAME"),
        (["bank", "--host", "=x"], "PARTY=NAME"),
        (["bank", "--days", "0"], "1 to 365"),
        (["b nk"], "DNS name"),
    ],
)
def test_mistakes_on_the_command_line_are_told(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["certs", *arguments]) == 2

    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_the_command_keeps_the_authoritys_key_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["certs", "bank", "--out", "kept", "--keep-ca-key"]) == 0

    assert "kept/ca.key" in capsys.readouterr().out
    assert main(["certs", "shop", "--out", "kept"]) == 0
    assert Identity.load("shop", folder="kept").party == "shop"
