"""Mutual TLS: a party's identity, and checks of its peers' identities.

Every party has a certificate that carries its *identity* as a DNS subject alternative name: its own name in lower
case, or whatever else the parties have agreed on (``identity: vfl.telecom.example``). Both sides of a link show their
certificate, and each checks the other's before a byte of the conversation crosses:

- its chain leads to one of the roots in ``ca.pem``, nothing in it has expired, and it may be used for that side of TLS;
- it carries the identity that is expected of that peer, literally. A valid certificate of somebody else is refused, and
  neither wildcards nor common names count.

What is **not** checked:

- Revocation. A certificate is good until it expires: give certificates short lives, and replace the roots in need.
- Which root vouches. Every root in ``ca.pem`` may vouch for every identity, so a party whose own CA is among them can
  take the name of any other. With a public CA there, so can whoever owns a domain of that name.
- Who uses the key. Whoever can read a party's key file is that party.

TLS 1.3, or 1.2 if a peer has no better, is what gRPC offers, with its own choice of ciphers. Secrets are in no ``repr``
and in no message.

:class:`Plaintext` stands in for an :class:`Identity` on one machine only, proves nothing, and must be asked for by
name.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from splitvfl.errors import ConfigError, LinkError, ProtocolError, printable
from splitvfl.system.secret_files import readers_beyond_owner
from splitvfl.system.untrusted_files import UntrustedFile

ROOTS_FILE = "ca.pem"
DEVELOPMENT = "splitvfl, for development only"

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_LEAST_RSA_BITS = 2048
_MOST_BYTES = 1 << 24  # of certificates

# A certificate is taken apart when it is asked for its parts; any of these says that a part makes no sense.
UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class PeerContext(Protocol):
    """The part of a gRPC servicer context that is needed here, synchronous or not."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what gRPC knows of the peer's credentials."""
        ...

    def peer(self) -> str:
        """Return the peer's address, as gRPC writes it."""
        ...


def identity_of(party: str, identity: str | None = None) -> str:
    """Return the DNS name that a party's certificate must carry, in lower case: its own name, or one agreed on.

    Raises:
        ConfigError: If that cannot be a DNS name.

    >>> identity_of("Bank")
    'bank'
    >>> identity_of("telecom", "VFL.telecom.example")
    'vfl.telecom.example'
    """
    name = (identity if identity is not None else party).lower()
    labels = name.split(".")
    # All digits at the end would be taken for an IP address, which certificates carry elsewhere.
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        hint = "" if identity is not None else f"; give {party!r} one with `identity: vfl.partner.example`"
        raise ConfigError(
            f"party {party}: expected an identity that can stand as a DNS name in a certificate (letters, digits, "
            f"'-', '_' and dots; no IP address), got {name!r}{hint}"
        )
    return name


def identities(parties: Mapping[str, str | None]) -> dict[str, str]:
    """Return the identity of every party, all different: what a file gives it, or its own name for ``None``.

    Raises:
        ConfigError: If one cannot be a DNS name, or two parties would be the same.

    >>> identities({"bank": None, "telecom": "vfl.telecom.example"})
    {'bank': 'bank', 'telecom': 'vfl.telecom.example'}
    """
    found: dict[str, str] = {}
    for party, given in parties.items():
        name = identity_of(party, given)
        if name in found.values():
            other = next(known for known, value in found.items() if value == name)
            raise ConfigError(
                f"parties {other} and {party} would both be known as {name!r} (upper and lower case are one); "
                "give one of them another `identity`"
            )
        found[party] = name
    return found


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``192.0.2.1:port`` or ``[2001:db8::1]:port``.

    Raises:
        ConfigError: If it is written otherwise.

    >>> split_address("[::1]:7000")
    ('::1', 7000)
    """
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    plain = re.fullmatch(r"[0-9A-Fa-f:.]+(%\w+)?" if bracketed else r"[A-Za-z0-9._-]+", bare)
    if not plain or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"expected an address like telecom.example:7000 or [2001:db8::1]:7000, got {address!r}")
    return bare, int(port)


def peer_names(context: PeerContext) -> frozenset[str]:
    """Return the DNS names that the peer's certificate carries, in lower case; none if it showed no certificate.

    gRPC has checked the certificate before the call is served. Its common name counts for nothing.
    """
    found = context.auth_context()
    shown = [*found.get("x509_pem_cert", ())]
    if [*found.get("transport_security_type", ())] != [b"ssl"] or len(shown) != 1:
        return frozenset()
    # From the certificate, as at the end that dials: gRPC's own names end at a NUL.
    try:
        return frozenset(carried_names(x509.load_pem_x509_certificate(shown[0])))
    except UNREADABLE:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Identity:
    """A party's own certificate and key, and the roots that it trusts; made by :meth:`load`.

    Attributes:
        party: The party's name.
        name: The DNS name that its certificate carries for it.
        valid_until: When its certificate expires. A link that stands is not cut then; a new one is refused.
        is_for_development: Whether ``splitvfl certs`` made the certificate.
    """

    party: str
    name: str
    valid_until: datetime
    is_for_development: bool
    _chain: bytes = field(repr=False)
    _key: bytes = field(repr=False)
    _roots: bytes = field(repr=False)
    _as_client: ssl.SSLContext = field(repr=False, compare=False)

    @classmethod
    def load(
        cls,
        party: str,
        *,
        folder: Path | str | None = None,
        identity: str | None = None,
        certificate: Path | str | None = None,
        key: Path | str | None = None,
        roots: Path | str | None = None,
    ) -> Identity:
        """Return the identity that lies in PEM files, after every check that its peers would make, and more.

        Checked are: that the files are there and readable, and the key by its owner only, or, if root owns it, by its
        group too; that key and certificate belong together and are of a kind that gRPC can use; that the certificate is
        valid today and carries the identity; and, in a handshake of the certificate with itself in memory, that a peer
        with the same roots would accept it on both sides of a link.

        The folder and its files may be links: so Kubernetes mounts a Secret.

        Args:
            party: The party's name.
            folder: Holds ``ca.pem``, ``PARTY.pem`` (own certificate, then intermediate ones) and ``PARTY.key``.
            identity: What the certificate must carry. Default: the party's name.
            certificate: That file, if elsewhere.
            key: That file, if elsewhere.
            roots: That file, if elsewhere.

        Raises:
            ConfigError: If a check fails; it names the file and what to do.
        """
        name = identity_of(party, identity)
        files = _Files(
            certificate=_placed(certificate, folder, f"{party}.pem", "certificate"),
            key=_placed(key, folder, f"{party}.key", "key"),
            roots=_placed(roots, folder, ROOTS_FILE, "roots"),
        )
        trusted = _certificates(files.roots, "trusted roots")
        chain = _certificates(files.certificate, f"certificate of {party}")
        _check_readable(files.certificate, chain[0])
        secret = _private_key(files.key, party)
        _check_belong_together(files, chain[0], secret)
        _check_dates(files.certificate, chain[0])
        _check_carries(files.certificate, chain[0], name)
        as_client = _check_accepted(files, trusted, name)
        return cls(
            party=party,
            name=name,
            valid_until=chain[0].not_valid_after_utc,
            is_for_development=_is_for_development(chain[0]),
            _chain=_pem(chain),
            # Written anew, so that nothing else that the file may hold goes along.
            _key=unencrypted(secret),
            _roots=_pem(trusted),
            _as_client=as_client,
        )

    @property
    def chain(self) -> list[x509.Certificate]:
        """Its own certificate, and those of intermediate authorities."""
        return x509.load_pem_x509_certificates(self._chain)

    @property
    def roots(self) -> list[x509.Certificate]:
        """The certificates that it trusts."""
        return x509.load_pem_x509_certificates(self._roots)

    def private_key(self) -> CertificateKey:
        """Return its own key. A secret."""
        key = serialization.load_pem_private_key(self._key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey), "it was looked at when it was loaded"
        return key

    def server_credentials(self) -> Any:
        """Return gRPC's credentials for listening: whoever calls must show a certificate that the roots vouch for."""
        return grpc.ssl_server_credentials(
            [(self._key, self._chain)], root_certificates=self._roots, require_client_auth=True
        )

    def channel_credentials(self, address: str, expected: str, *, timeout_s: float) -> Any:
        """Return gRPC's credentials for dialling a peer: they accept the one certificate that it shows now.

        A connection of its own is made for that, on which the certificate is checked. gRPC alone would let a wildcard
        pass, and a common name, and would not say what was wrong. A connection that fails can be tried again with new
        credentials.

        Args:
            address: Where the peer listens, ``host:port``.
            expected: Its identity.
            timeout_s: Limit of each of the three waits: for a connection, a certificate, and an answer to ours.

        Raises:
            ConfigError: If the address is not written as ``host:port``.
            LinkError: If nobody answers there, or the link was closed when it saw this party's certificate.
            ProtocolError: If whoever answers does not prove to be the peer.
        """
        shown = _Dialled(address, expected, timeout_s).certificate_shown_to(self._as_client)
        return grpc.ssl_channel_credentials(
            root_certificates=_pem([shown]), private_key=self._key, certificate_chain=self._chain
        )

    def channel_options(self, expected: str) -> tuple[tuple[str, str | int], ...]:
        """Return gRPC's options for dialling a peer: its certificate must carry ``expected``, whatever its address.

        Never through a proxy from the environment: the certificate would be checked on another way than it is used.
        """
        return (("grpc.ssl_target_name_override", expected), ("grpc.enable_http_proxy", 0))

    def check_address(self, address: str) -> None:
        """Check that an address is one to listen at or to dial.

        Raises:
            ConfigError: If it is not written as ``host:port``.
        """
        split_address(address)

    def check_peer(self, context: PeerContext, expected: str) -> None:
        """Check, at the party that listens, that the caller is whom it says it is.

        A session that is resumed is refused: in it TLS checks no certificate again and asks for no proof of the key, so
        one of a day ago would still count when the certificate has expired.

        Raises:
            ProtocolError: If its certificate does not carry that name, or was not shown on this connection.
        """
        names = peer_names(context)
        if [*context.auth_context().get("ssl_session_reused", ())] != [b"false"]:
            raise ProtocolError(
                f"{context.peer()} says it is {expected}, but resumed a TLS session: expected its certificate and a "
                "proof of its key on every connection; refused"
            )
        if expected.lower() not in names:
            carried = ", ".join(sorted(names)) or "no name"
            raise ProtocolError(
                f"{context.peer()} says it is {expected}, but its certificate carries {carried}: refused"
            )


@dataclass(frozen=True, slots=True)
class Plaintext:
    """Links without secrecy and proof of identity, in place of an :class:`Identity`: for trials on one machine.

    Only loopback addresses are accepted, for listening and for dialling, by splitvfl when it starts and by gRPC on
    every connection. Every user and every program of that machine can still join in.

    Args:
        plaintext_on_loopback: Must be ``True``, so that nobody gets here by leaving something out.

    Raises:
        ConfigError: If it is not.
    """

    plaintext_on_loopback: bool

    def __post_init__(self) -> None:
        """Refuse anything but ``True``."""
        if self.plaintext_on_loopback is not True:
            raise ConfigError(
                "links without TLS must be asked for by name (`plaintext_on_loopback: true`); `splitvfl certs` makes "
                "certificates for trials"
            )

    def server_credentials(self) -> Any:
        """Return gRPC's credentials for listening; it refuses every connection that is not over loopback."""
        return grpc.local_server_credentials(grpc.LocalConnectionType.LOCAL_TCP)

    def channel_credentials(self, address: str, expected: str, *, timeout_s: float) -> Any:
        """Return gRPC's credentials for dialling; it refuses every connection that is not over loopback.

        Nobody is asked who listens there, so ``expected`` and ``timeout_s`` are of no use.

        Raises:
            ConfigError: If the address is not on this machine only.
        """
        self.check_address(address)
        return grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)

    def channel_options(self, expected: str) -> tuple[tuple[str, str | int], ...]:
        """Return gRPC's options for dialling a peer: never through a proxy. Nothing checks that it is ``expected``."""
        return (("grpc.enable_http_proxy", 0),)

    def check_address(self, address: str) -> None:
        """Check that an address is on this machine only.

        Raises:
            ConfigError: If it is not, or nobody knows the name in it.
        """
        host, port = split_address(address)
        try:
            found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        except OSError as error:
            raise ConfigError(f"plaintext_on_loopback: cannot find out where {address} is: {error}") from None
        outside = sorted(text for text in found if not is_loopback(text))
        if outside:
            raise ConfigError(
                f"plaintext_on_loopback: {address} is {', '.join(outside)}, which other machines can reach or which is "
                "another machine; use 127.0.0.1, or certificates (splitvfl certs)"
            )

    def check_peer(self, context: PeerContext, expected: str) -> None:
        """Check, at the party that listens, that the caller is on this machine. Who it is remains unproven.

        Raises:
            ProtocolError: If it is not.
        """
        local = [*context.auth_context().get("transport_security_type", ())] == [b"local"]
        address = re.fullmatch(r"ipv[46]:(.*):\d+", context.peer().replace("%5B", "[").replace("%5D", "]"))
        if not local or address is None or not is_loopback(address[1].strip("[]")):
            raise ProtocolError(
                f"{context.peer()} says it is {expected}, but plaintext is for this machine only: refused"
            )


Credentials: TypeAlias = Identity | Plaintext
"""A party's own credentials on a link."""


@dataclass(frozen=True, slots=True)
class _Files:
    certificate: Path
    key: Path
    roots: Path


CertificateKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def _placed(given: Path | str | None, folder: Path | str | None, name: str, what: str) -> Path:
    if given is not None:
        return Path(given)
    if folder is None:
        raise ConfigError(f"expected a folder of certificates, or the file of the {what}; got neither")
    if Path(name).name != name:
        raise ConfigError(f"{name!r} cannot be the name of a file in {folder}; name the file of the {what} itself")
    return Path(folder) / name


def _read(path: Path, what: str, *, secret: bool = False) -> bytes:
    # A link is followed: each file of a Secret that Kubernetes mounts is one.
    file = UntrustedFile(path=path, error=ConfigError, linked=True).open()
    if file is None:
        raise ConfigError(f"{path}: not there, expected the {what}; `splitvfl certs` makes some for development")
    with file:
        found = os.fstat(file.fileno())
        content = file.read(_MOST_BYTES)
    if secret and (wrong := readers_beyond_owner(found, path)):
        raise ConfigError(f"{path}: whoever has this key can pass for its party, and {wrong}")
    return content


def _certificates(path: Path, what: str) -> list[x509.Certificate]:
    content = _read(path, what)
    try:
        return x509.load_pem_x509_certificates(content)
    except UNREADABLE as error:
        raise ConfigError(f"{path}: expected the {what} in PEM, and cannot read one: {brief(error)}") from None


def _private_key(path: Path, party: str) -> CertificateKey:
    content = _read(path, f"key of {party}", secret=True)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise ConfigError(
            f"{path}: the key is encrypted with a password, and a party starts unattended; "
            "store it decrypted (openssl pkey), readable by its owner only"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        # What the library says may quote the file.
        raise ConfigError(f"{path}: expected the key of {party} in PEM, and cannot read one") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) or not is_usable(key):
        raise ConfigError(
            f"{path}: expected a key on curve P-256 or P-384, or an RSA key of {_LEAST_RSA_BITS} bits or more, got "
            f"{_kind(key)}"
        )
    return key


def is_usable(key: CertificateKey | rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> bool:
    """Return whether a key is of a size or on a curve that gRPC takes."""
    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return key.key_size >= _LEAST_RSA_BITS
    return isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)


def _kind(key: object) -> str:
    if isinstance(key, rsa.RSAPrivateKey):
        return f"RSA of {key.key_size} bits"
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return f"curve {key.curve.name}"
    return type(key).__name__.removesuffix("PrivateKey")


def _check_readable(path: Path, certificate: x509.Certificate) -> None:
    try:
        certificate.public_key()
        _is_for_development(certificate)
        carried_names(certificate)
    except UNREADABLE as error:
        raise ConfigError(f"{path}: the certificate is damaged: {brief(error)}") from None


def _check_belong_together(files: _Files, certificate: x509.Certificate, key: CertificateKey) -> None:
    if certificate.public_key() != key.public_key():
        raise ConfigError(
            f"{files.key} is not the key of the first certificate in {files.certificate}; own certificate first, then "
            "those of intermediate CAs"
        )


def _check_dates(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise ConfigError(f"{path}: expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; get a new one")
    if now < certificate.not_valid_before_utc:
        raise ConfigError(
            f"{path}: not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, and it is "
            f"{now:%Y-%m-%d %H:%M} here; is this machine's clock right?"
        )


def carried_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names that a certificate carries, in lower case."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [printable(name).lower() for name in names.get_values_for_type(x509.DNSName)]


def _check_carries(path: Path, certificate: x509.Certificate, name: str) -> None:
    carried = carried_names(certificate)
    if name not in carried:
        raise ConfigError(
            f"{path}: expected {name!r} among the certificate's DNS subject alternative names, got "
            f"{', '.join(carried) or 'none'}; have it issued for {name!r}, or name in `identity` what it carries"
        )


def _check_accepted(files: _Files, trusted: list[x509.Certificate], name: str) -> ssl.SSLContext:
    """Let the certificate shake hands with itself in memory, as the server of one end and the client of the other.

    Returns:
        What is needed to be a client with it.
    """
    try:
        server = _context(ssl.PROTOCOL_TLS_SERVER, files, trusted)
        client = _context(ssl.PROTOCOL_TLS_CLIENT, files, trusted)
        _shake_hands(server, client, name)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{files.certificate}: a peer with the roots of {files.roots} would refuse it: {error.verify_message}. It "
            "must be issued, through the intermediate CAs that follow it in its file, by one of those roots, and be "
            "allowed for both servers and clients"
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(
            f"{files.certificate}: TLS cannot use it with the roots of {files.roots}: {error.reason or error.strerror}"
        ) from None
    return client


def _context(side: int, files: _Files, trusted: list[x509.Certificate]) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    # As gRPC does: whatever is in the file of roots is trusted, whether or not it signed itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_TRUSTED_FIRST
    # A gRPC server talks to nobody who does not ask for HTTP/2.
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(cadata=_pem(trusted).decode("ascii"))
    return context


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    # TLS 1.3 needs two rounds and TLS 1.2 three.
    for _ in range(5):
        waiting = [end for end in ends if not _is_done(end)]
        if not waiting:
            return
    raise ssl.SSLError(0, "the handshake does not end")


def _is_done(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Dialled:
    """One connection to a peer, made to see its certificate."""

    address: str
    expected: str
    timeout_s: float

    def certificate_shown_to(self, client: ssl.SSLContext) -> x509.Certificate:
        with self._connection() as connection, self._handshake(client, connection) as link:
            shown, carried = self._certificate_of(link)
            if self.expected.lower() not in carried:
                raise ProtocolError(
                    f"{self.address} shows a certificate for {', '.join(carried) or 'no DNS name'}, which is not "
                    f"{self.expected}: refused"
                )
            self._check_we_are_accepted(link)
        return shown

    def _connection(self) -> socket.socket:
        try:
            return socket.create_connection(split_address(self.address), timeout=self.timeout_s)
        except OSError as error:
            raise LinkError(f"cannot reach {self.expected} at {self.address}: {error.strerror or error}") from None

    def _handshake(self, client: ssl.SSLContext, connection: socket.socket) -> ssl.SSLSocket:
        try:
            return client.wrap_socket(connection, server_hostname=self.expected)
        except ssl.SSLCertVerificationError as error:
            raise ProtocolError(
                f"{self.address} shows a certificate that does not prove it is {self.expected}: "
                f"{error.verify_message}: refused"
            ) from None
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
                raise self._broke_off(error) from None
            raise ProtocolError(
                f"{self.address} does not speak TLS as {self.expected} would: {error.strerror or error}: refused"
            ) from None
        except OSError as error:
            raise self._broke_off(error) from None

    def _broke_off(self, error: OSError) -> LinkError:
        return LinkError(f"{self.expected} at {self.address} broke off: {error.strerror or error}")

    def _certificate_of(self, link: ssl.SSLSocket) -> tuple[x509.Certificate, list[str]]:
        try:
            shown = x509.load_der_x509_certificate(link.getpeercert(binary_form=True) or b"")
            return shown, carried_names(shown)
        except UNREADABLE as error:
            raise ProtocolError(
                f"{self.address} shows a certificate that cannot be read: {brief(error)}: refused"
            ) from None
        except OSError as error:  # a connection that was gone before the handshake began has not had one
            raise self._broke_off(error) from None

    def _check_we_are_accepted(self, link: ssl.SSLSocket) -> None:
        """Wait for a first byte: a server that accepts its client's certificate greets it, any other hangs up."""
        try:
            greeting = link.recv(1)
        except TimeoutError:
            raise LinkError(
                f"{self.expected} at {self.address} was silent for {self.timeout_s:g} s after the certificates"
            ) from None
        except OSError:
            greeting = b""
        if not greeting:
            raise LinkError(
                f"{self.expected} at {self.address} hung up on this party's certificate: does the {ROOTS_FILE} there "
                "hold the root that issued it, and has it not expired? (Or it is stopping just now.)"
            )


def _is_for_development(certificate: x509.Certificate) -> bool:
    organisations = certificate.issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return any(attribute.value == DEVELOPMENT for attribute in organisations)


def is_loopback(address: str) -> bool:
    """Return whether no other machine can reach an IP address; a name is none."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def unencrypted(key: CertificateKey) -> bytes:
    """Return a private key in PEM. A secret."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def brief(error: Exception) -> str:
    """Return what an error says, on one line and not too long."""
    return " ".join(str(error).split())[:200]
