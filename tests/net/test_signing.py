"""Signatures under certificates: whose are taken, and for what."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from splitvfl.errors import ConfigError, ProtocolError
from splitvfl.net import signing
from splitvfl.net.certs import make_certificates
from splitvfl.net.signing import CertificateSigner
from splitvfl.net.tls import Identity
from tests.net.authorities import BOTH_SIDES, YEAR, Issued, _signed, authority, new_key, place
from tests.net.test_tls import NOT_BANK, ROOT

NAMES = {"bank": "bank", "telecom": "telecom"}
A_DAY = timedelta(days=1)


def identity(
    folder: Path, party: str, issued: Issued | None = None, roots: bytes = ROOT.pem, chain: bytes = b""
) -> Any:
    return Identity.load(party, folder=place(folder / party, party, issued or ROOT.issue(party), roots, chain=chain))


def signer(own: Identity, run: str = "bank, training", names: Mapping[str, str] = NAMES) -> CertificateSigner:
    return CertificateSigner(own, names, run=run)


@pytest.fixture
def telecom(tmp_path: Path) -> CertificateSigner:
    return signer(identity(tmp_path, "telecom"))


def shown_by(issued: Issued, statement: bytes = b"keys", *, run: bytes = b"bank, training", chain: Any = ()) -> Any:
    """What the owner of any certificate would send: written down a second time."""
    content = b" " * 64 + b"splitvfl, keys that the active party passes on\x00"
    content += signing.PROTOCOL_VERSION.to_bytes(4, "big") + len(run).to_bytes(4, "big") + run + statement
    if isinstance(issued.key, rsa.RSAPrivateKey):
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
        signature = issued.key.sign(content, pss, hashes.SHA256())
    elif isinstance(issued.key, ed25519.Ed25519PrivateKey):
        signature = issued.key.sign(content)
    else:
        wide = issued.key.curve.key_size > 256
        signature = issued.key.sign(content, ec.ECDSA(hashes.SHA384() if wide else hashes.SHA256()))
    certificates = [one.certificate.public_bytes(Encoding.DER) for one in (issued, *chain)]
    return {
        "signature": base64.b64encode(signature).decode(),
        "chain": [base64.b64encode(one).decode() for one in certificates],
    }


# Made where they are used: every worker collects this module, and one runs the test.
KEYS = {
    "P-256": new_key,
    "P-384": partial(ec.generate_private_key, ec.SECP384R1()),
    "RSA": partial(rsa.generate_private_key, 65537, 2048),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_signature_is_taken_under_every_kind_of_key_that_links_take(
    kind: str, telecom: CertificateSigner, tmp_path: Path
) -> None:
    bank = ROOT.issue("bank", key=KEYS[kind]())
    telecom.check("bank", b"keys", signer(identity(tmp_path, "bank", bank)).sign(b"keys"))
    telecom.check("bank", b"keys", shown_by(bank))


def test_certificates_of_this_project_do(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["bank", "telecom"])
    bank, telecom = (signer(Identity.load(name, folder=tmp_path)) for name in NAMES)

    telecom.check("bank", b"keys", bank.sign(b"keys"))


def test_certificates_of_users_authorities_do_over_intermediate_ones(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 3072)
    root = Issued(_signed("root", key, None, (), (), -A_DAY, YEAR, True), key)
    between = root.issue("between", san=(), usages=(), is_authority=True)
    bank, telecom = (signer(identity(tmp_path, name, between.issue(name), root.pem, between.pem)) for name in NAMES)
    shown = bank.sign(b"keys")
    telecom.check("bank", b"keys", shown)
    with pytest.raises(ProtocolError, match="does not do"):
        telecom.check("bank", b"keys", shown | {"chain": shown["chain"][:1]})  # type: ignore[index]


def test_partners_certificates_may_be_listed_in_place_of_authorities(tmp_path: Path) -> None:
    issued = {name: ROOT.issue(name) for name in NAMES}
    roots = b"".join(one.pem for one in issued.values())
    bank, telecom = (signer(identity(tmp_path, name, one, roots)) for name, one in issued.items())

    telecom.check("bank", b"keys", bank.sign(b"keys"))
    with pytest.raises(ProtocolError, match="does not do"):  # another certificate of the same authority
        telecom.check("bank", b"keys", shown_by(ROOT.issue("bank")))


def test_a_certificate_that_no_root_covers_is_refused_with_what_to_do(tmp_path: Path) -> None:
    issued = ROOT.issue("telecom")
    telecom = signer(identity(tmp_path, "telecom", issued, issued.pem))  # knows itself only
    with pytest.raises(
        ProtocolError, match=r"ca\.pem here must hold its authority, or the certificate itself: get that from bank"
    ):
        telecom.check("bank", b"keys", shown_by(ROOT.issue("bank")))


def test_an_agreed_identity_stands_for_the_party_name(tmp_path: Path) -> None:
    names = {"bank": "vfl.bank.example", "telecom": "telecom"}
    telecom = signer(identity(tmp_path, "telecom"), names=names)

    telecom.check("bank", b"keys", shown_by(ROOT.issue("VFL.bank.example")))
    with pytest.raises(ProtocolError, match=r"it is signed by bank, and not by vfl\.bank\.example"):
        telecom.check("bank", b"keys", shown_by(ROOT.issue("bank")))


WRONG = {
    **NOT_BANK,
    "for servers only": ROOT.issue("bank", usages=BOTH_SIDES[:1]),
    "for clients only": ROOT.issue("bank", usages=BOTH_SIDES[1:]),
    "Ed25519": ROOT.issue("bank", key=ed25519.Ed25519PrivateKey.generate()),
    "P-521": ROOT.issue("bank", key=ec.generate_private_key(ec.SECP521R1())),
    "an authority": authority("bank"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_certificate_that_would_not_do_for_a_link_does_not_do(wrong: str, telecom: CertificateSigner) -> None:
    issued = WRONG[wrong]
    with pytest.raises(
        ProtocolError, match=r"what was passed on as the keys of bank is not vouched for by bank: .*: refused"
    ):
        telecom.check("bank", b"keys", shown_by(issued))


def with_usage(issued: Issued, usage: x509.KeyUsage) -> Issued:
    """The same certificate with a key usage in it."""
    own = issued.certificate
    builder = x509.CertificateBuilder(
        own.issuer, own.subject, issued.key.public_key(), own.serial_number, own.not_valid_before_utc,
        own.not_valid_after_utc, [*own.extensions],
    ).add_extension(usage, critical=True)  # fmt: skip
    return Issued(builder.sign(ROOT.key, hashes.SHA256()), issued.key)


ENCIPHERS = x509.KeyUsage(False, False, True, False, False, False, False, False, False)
SIGNS = x509.KeyUsage(True, False, False, False, False, False, False, False, False)


def test_a_key_that_may_not_sign_does_not_do(telecom: CertificateSigner) -> None:
    telecom.check("bank", b"keys", shown_by(with_usage(ROOT.issue("bank"), SIGNS)))
    with pytest.raises(ProtocolError, match="its key may not sign"):
        telecom.check("bank", b"keys", shown_by(with_usage(ROOT.issue("bank"), ENCIPHERS)))


def test_an_authority_that_may_not_issue_does_not_do(telecom: CertificateSigner) -> None:
    issuer = ROOT.issue("between", san=(), usages=(), is_authority=True)
    telecom.check("bank", b"keys", shown_by(issuer.issue("bank"), chain=[issuer]))
    limited = with_usage(issuer, SIGNS)
    with pytest.raises(ProtocolError, match="may not sign certificates"):
        telecom.check("bank", b"keys", shown_by(limited.issue("bank"), chain=[limited]))


def test_what_is_signed_counts_for_nothing_else(telecom: CertificateSigner) -> None:
    bank = ROOT.issue("bank")
    telecom.check("bank", b"keys", shown_by(bank))
    for shown in (
        shown_by(bank, b"other keys"),
        shown_by(bank, run=b"bank, prediction"),
        shown_by(bank, b"ngkeys", run=b"bank, traini"),  # what is signed is not just joined
        shown_by(Issued(bank.certificate, new_key())),
    ):
        with pytest.raises(ProtocolError, match="the signature is not one of these keys at this meeting"):
            telecom.check("bank", b"keys", shown)


def test_a_signature_of_another_version_counts_for_nothing(
    telecom: CertificateSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing, "PROTOCOL_VERSION", signing.PROTOCOL_VERSION + 1)
    with pytest.raises(ProtocolError, match="the signature is not one of these keys"):
        telecom.check("bank", b"keys", shown_by(ROOT.issue("bank")))


@pytest.mark.parametrize(
    "change",
    [
        {"signature": None},
        {"signature": 3},
        {"signature": "!"},
        {"signature": ""},
        {"chain": None},
        {"chain": []},
        {"chain": "bank"},
        {"chain": [3]},
        {"chain": ["!"]},
        {"chain": ["AAAA"]},
        {"chain": [""] * 9},
    ],
    ids=str,
)
def test_what_is_no_signature_is_refused(change: dict[str, Any], telecom: CertificateSigner) -> None:
    with pytest.raises(ProtocolError, match="is not vouched for by bank"):
        telecom.check("bank", b"keys", shown_by(ROOT.issue("bank")) | change)


def test_damaged_certificates_are_refused_and_nothing_else_happens(telecom: CertificateSigner) -> None:
    draw = random.Random(0)
    shown = shown_by(ROOT.issue("bank"))
    whole = base64.b64decode(shown["chain"][0])
    for _ in range(300):
        raw = bytearray(whole)
        for _ in range(draw.choice([1, 2, 20])):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        if raw == whole:
            continue
        with pytest.raises(ProtocolError, match="is not vouched for by bank"):
            telecom.check("bank", b"keys", shown | {"chain": [base64.b64encode(raw).decode()]})


def test_a_party_whose_signatures_nobody_would_take_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = identity(tmp_path, "bank")
    monkeypatch.setattr(signing, "_signed", lambda key, content: b"nothing")
    with pytest.raises(ConfigError, match="would not accept what it signs"):
        signer(own)


def test_an_active_party_whose_authority_is_trusted_signs_for_all(tmp_path: Path) -> None:
    """What is not promised: every root may vouch for every name."""
    its_own = authority("bank's")
    telecom = signer(identity(tmp_path, "telecom", roots=ROOT.pem + its_own.pem), names={"shop": "shop"})

    telecom.check("shop", b"keys", shown_by(its_own.issue("shop")))
