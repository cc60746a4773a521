"""Authorities and certificates of every kind, good and bad, for the tests of links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BOTH_SIDES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
YEAR = timedelta(days=365)


def pem_of_key(key: Any, password: bytes | None = None) -> bytes:
    protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        protection = serialization.BestAvailableEncryption(password)
    return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection))


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class Issued:
    """A key and its certificate; where it is an authority's, it can issue others."""

    certificate: x509.Certificate
    key: Any

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        name: str,
        *,
        san: Sequence[x509.GeneralName] | None = None,
        key: Any = None,
        usages: Sequence[x509.ObjectIdentifier] = BOTH_SIDES,
        start: timedelta = -timedelta(hours=1),
        end: timedelta = YEAR,
        is_authority: bool = False,
    ) -> Issued:
        """Issue a certificate; ``san`` is the party's name as a DNS name by default."""
        key = new_key() if key is None else key
        names = [x509.DNSName(name)] if san is None else san
        return Issued(_signed(name, key, self, names, usages, start, end, is_authority), key)


def authority(name: str = "root") -> Issued:
    key = new_key()
    return Issued(_signed(name, key, None, (), (), -timedelta(hours=1), YEAR, True), key)


def _signed(
    name: str,
    key: Any,
    issuer: Issued | None,
    san: Sequence[x509.GeneralName],
    usages: Sequence[x509.ObjectIdentifier],
    start: timedelta,
    end: timedelta,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start)
        .not_valid_after(now + end)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if san:
        builder = builder.add_extension(x509.SubjectAlternativeName(san), critical=False)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    signer = key if issuer is None else issuer.key
    return builder.sign(signer, None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def place(folder: Path, party: str, issued: Issued, roots: bytes, *, chain: bytes = b"") -> Path:
    """Write the three files of a party, as :meth:`splitvfl.net.tls.Identity.load` finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.pem").write_bytes(roots)
    (folder / f"{party}.pem").write_bytes(issued.pem + chain)
    secret = folder / f"{party}.key"
    secret.write_bytes(pem_of_key(issued.key))
    secret.chmod(0o600)
    return folder
