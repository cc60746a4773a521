"""Signatures under the keys of TLS certificates, for public keys that a third party passes on.

A signature comes with its signer's chain, and counts for a party if it would do for that party in a handshake: the
chain leads to a root in this party's own ``ca.pem``, nothing in it has expired, it may be used on both sides of TLS,
and its certificate carries the identity that this party's file gives the other, literally. All that
:mod:`splitvfl.net.tls` says it does not check is not checked here either. In particular every root may vouch for every
name: **an active party whose own authority is among the roots can sign in everybody's name**, as it can take anybody's
part on a link. Where that matters, list the partners' own certificates in ``ca.pem`` in the place of roots.

What is signed begins as TLS 1.3 begins what it signs, with 64 spaces and a text that tells what it is for, so that no
signature of either serves as one of the other (RFC 8446, section 4.4.3), nor one of TLS 1.2, which begins with a number
that both sides have drawn. Then follow the version of the protocol and what the parties meet for.

Signatures are ECDSA with SHA-256 or SHA-384, after the curve, and RSA-PSS with SHA-256: of the kinds of key that
certificates of links can have.

Chains are checked by :mod:`cryptography.x509.verification` with extension policies of our own: its default asks, as the
browsers' rules do, for extensions that private authorities leave out and that TLS does not need.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import Criticality, ExtensionPolicy, Policy, PolicyBuilder, Store, VerificationError

from splitvfl.errors import ConfigError, ProtocolError
from splitvfl.net.frames import PROTOCOL_VERSION
from splitvfl.net.tls import UNREADABLE, CertificateKey, Identity, brief, carried_names, is_usable

_CONTEXT: Final = b" " * 64 + b"splitvfl, keys that the active party passes on\x00"
# A leaf, and more authorities than anybody puts between it and a root.
_MOST_CERTIFICATES: Final = 8
_BOTH_SIDES: Final = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH})
_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


class CertificateSigner:
    """Signs with the key of a party's certificate, and checks what others have signed.

    Args:
        identity: The party's own.
        identities: By party's name, the DNS name that its certificate must carry, of all who sign.
        run: What the parties meet for, as they say to each other in their hello.

    Raises:
        ConfigError: If the others would not accept what this party signs.
    """

    def __init__(self, identity: Identity, identities: Mapping[str, str], *, run: str) -> None:
        self._own, self._identities = identity, dict(identities)
        self._roots = Store(identity.roots)
        self._start = b"".join([_CONTEXT, PROTOCOL_VERSION.to_bytes(4, "big"), len(run.encode()).to_bytes(4, "big")])
        self._start += run.encode()
        try:
            self._checked(identity.name, b"", self.sign(b""))
        except ProtocolError as error:
            raise ConfigError(
                f"the certificate of {identity.party} serves for links, but others who trust the same roots would not "
                f"accept what it signs: {error}"
            ) from error

    def sign(self, statement: bytes) -> dict[str, object]:
        """Return a signature of a statement, and the own chain, in base 64."""
        chain = [certificate.public_bytes(Encoding.DER) for certificate in self._own.chain]
        signature = _signed(self._own.private_key(), self._start + statement)
        return {"signature": base64.b64encode(signature).decode(), "chain": [*map(_text, chain)]}

    def check(self, member: str, statement: bytes, shown: Mapping[str, object]) -> None:
        """Check what a party's :meth:`sign` returned; the party must be one of those that this one's file names.

        Raises:
            ProtocolError: If it does not prove that this party has signed this statement.
        """
        try:
            self._checked(self._identities[member], statement, shown)
        except ProtocolError as error:
            raise ProtocolError(
                f"what was passed on as the keys of {member} is not vouched for by {member}: {error}: refused"
            ) from error

    def _checked(self, name: str, statement: bytes, shown: Mapping[str, object]) -> None:
        signature, chain = _read(shown)
        leaf, *others = chain
        policy = PolicyBuilder().store(self._roots).time(datetime.now(UTC)).max_chain_depth(_MOST_CERTIFICATES)
        policy = policy.extension_policies(ca_policy=_AUTHORITIES, ee_policy=_PARTIES)
        try:
            policy.build_client_verifier().verify(leaf, others)
        except (VerificationError, *UNREADABLE) as error:
            raise ProtocolError(
                f"the certificate with the signature does not do: {brief(error)}. It must be valid today, and ca.pem "
                f"here must hold its authority, or the certificate itself: get that from {name}, not from who passes "
                "keys on"
            ) from None
        carried = carried_names(leaf)
        if name not in carried:
            raise ProtocolError(f"it is signed by {', '.join(carried) or 'nobody with a name'}, and not by {name}")
        if not _is_signed(leaf, signature, self._start + statement):
            raise ProtocolError(
                "the signature is not one of these keys at this meeting of these parties, in this run and this version"
            )


def _read(shown: Mapping[str, object]) -> tuple[bytes, list[x509.Certificate]]:
    signature, chain = shown.get("signature"), shown.get("chain")
    if not isinstance(signature, str) or not isinstance(chain, list) or not 1 <= len(chain) <= _MOST_CERTIFICATES:
        raise ProtocolError(f"expected a signature and a chain of 1 to {_MOST_CERTIFICATES} certificates")
    if not all(isinstance(one, str) for one in chain):
        raise ProtocolError("expected certificates in base 64")
    try:
        read = [x509.load_der_x509_certificate(base64.b64decode(one, validate=True)) for one in chain]
        for certificate in read:
            carried_names(certificate)
        return base64.b64decode(signature, validate=True), read
    except UNREADABLE as error:
        raise ProtocolError(f"a certificate or the signature cannot be read: {brief(error)}") from None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _signed(key: CertificateKey, content: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(content, _PSS, hashes.SHA256())
    return key.sign(content, ec.ECDSA(_hash_of(key.curve)))


def _is_signed(leaf: x509.Certificate, signature: bytes, content: bytes) -> bool:
    key = leaf.public_key()
    if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey) or not is_usable(key):
        return False
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, content, _PSS, hashes.SHA256())
        else:
            key.verify(signature, content, ec.ECDSA(_hash_of(key.curve)))
    except InvalidSignature:
        return False
    return True


def _hash_of(curve: ec.EllipticCurve) -> hashes.HashAlgorithm:
    # As TLS 1.3 pairs them.
    return hashes.SHA384() if curve.key_size > 256 else hashes.SHA256()


# --- what certificates must be good for


def _check_sides(policy: Policy, certificate: x509.Certificate, found: x509.ExtendedKeyUsage | None) -> None:
    """Check as OpenSSL does: where uses are named, those of both sides of TLS are among them."""
    if found is not None and not {*found} >= _BOTH_SIDES:
        raise ValueError("it may not be used on both sides of TLS")


def _check_may_sign(policy: Policy, certificate: x509.Certificate, found: x509.KeyUsage | None) -> None:
    if found is not None and not found.digital_signature:
        raise ValueError("its key may not sign")


def _check_may_issue(policy: Policy, certificate: x509.Certificate, found: x509.KeyUsage | None) -> None:
    if found is not None and not found.key_cert_sign:
        raise ValueError("an authority's key may not sign certificates")


_EITHER: Final = Criticality.AGNOSTIC
_PARTIES: Final = (
    ExtensionPolicy.permit_all()
    .require_present(x509.SubjectAlternativeName, _EITHER, None)
    .may_be_present(x509.ExtendedKeyUsage, _EITHER, _check_sides)
    .may_be_present(x509.KeyUsage, _EITHER, _check_may_sign)
)
_AUTHORITIES: Final = (
    ExtensionPolicy.permit_all()
    .require_present(x509.BasicConstraints, _EITHER, None)
    .may_be_present(x509.ExtendedKeyUsage, _EITHER, _check_sides)
    .may_be_present(x509.KeyUsage, _EITHER, _check_may_issue)
)
