"""Who may ask for scores over HTTP: where the service listens, under which names, with which token and certificate.

How many connections it takes, and for how long, stands here too.

On a loopback address every program of the machine may ask, and nothing else is needed; a web page that the user of the
machine looks at may not (:meth:`Access.refusal`). Anywhere else it takes a token, and TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509

from splitvfl.errors import ConfigError
from splitvfl.net.tls import is_loopback, split_address
from splitvfl.system.open_files import most_connections
from splitvfl.system.secret_files import readers_beyond_owner
from splitvfl.system.untrusted_files import UntrustedFile

_MOST_CONNECTIONS: Final = 512
_SHORTEST_TOKEN: Final = 20
_LONGEST_TOKEN: Final = 4096
_HOST: Final = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where a service listens for requests.

    Attributes:
        address: ``host:port``; port 0 takes any that is free.
        token: File with the token that every request must carry; its owner alone may read it. ``None``: no token.
        certificate: Certificate of the service and of intermediate authorities, PEM; ``None``: no TLS.
        key: Its key, PEM, not encrypted; its owner alone may read it.
    """

    address: str
    token: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What a service bears of its clients.

    Attributes:
        connections: At a time: 512, and half of the files that the process may open at most.
        patience_s: Seconds for the TLS handshake and the head of a request together, and for an answer to be taken.
        idle_s: Seconds between two requests on one connection.
        told_every_s: Seconds between two entries of a kind in the log.
    """

    connections: int = field(default_factory=lambda: most_connections(_MOST_CONNECTIONS, one_in=2))
    patience_s: float = 10.0
    idle_s: int = 30
    told_every_s: float = 60.0


@dataclass(frozen=True)
class Access:
    """Who may ask, checked; made by :func:`access`.

    Attributes:
        host: Where to listen.
        port: Likewise.
        names: Hosts that a request may name, in lower case; ``*.`` stands for one label.
        certificate: As in :class:`HttpSettings`.
        key: As in :class:`HttpSettings`.
    """

    host: str
    port: int
    names: frozenset[str]
    certificate: Path | None = None
    key: Path | None = None
    _token: bytes | None = field(default=None, repr=False)

    @property
    def has_token(self) -> bool:
        """Whether requests must carry a token."""
        return self._token is not None

    def knows_host(self, header: str | None) -> bool:
        """Return whether a ``Host`` header names this service.

        A page whose name was made to lead to a loopback address (DNS rebinding) names itself there.
        """
        host = _host_of(header or "")
        wildcard = f"*.{host.partition('.')[2]}"
        return host in self.names or wildcard in self.names

    def knows_token(self, header: str | None) -> bool:
        """Return whether an ``Authorization`` header carries the token; always where there is none."""
        if self._token is None:
            return True
        kind, _, given = (header or "").partition(" ")
        # Digests have one length, so that not even the token's can be timed.
        return hmac.compare_digest(_digest(given.strip()), self._token) and kind.lower() == "bearer"


def access(settings: HttpSettings) -> Access:
    """Return who may ask, after a check of all files.

    Raises:
        ConfigError: If an address other than loopback has no token or no TLS, or a file is not as it must be.
    """
    host, port = _checked_address(settings.address)
    local = is_loopback(host) or host.lower() == "localhost"
    if (settings.certificate is None) != (settings.key is None):
        raise ConfigError("--tls-certificate and --tls-key go together: give both, or none on a loopback address")
    if not local and (settings.token is None or settings.certificate is None):
        raise ConfigError(
            f"--http: {settings.address} can be reached from other machines: give --token-file, --tls-certificate and "
            "--tls-key, or listen at 127.0.0.1"
        )
    names = set(_LOCAL_NAMES) if local else {host.lower()}
    if settings.certificate is not None and settings.key is not None:
        _check_private(settings.key, "--tls-key")
        names |= _names_in(settings.certificate)
    return Access(
        host,
        port,
        frozenset(names),
        settings.certificate,
        settings.key,
        None if settings.token is None else _digest(_read_token(settings.token)),
    )


def _checked_address(address: str) -> tuple[str, int]:
    try:
        return split_address(f"0.0.0.0{address}" if address.startswith(":") else address)
    except ConfigError as error:
        raise ConfigError(f"--http: {error}") from error


def _host_of(header: str) -> str:
    """Return the host of a ``Host`` header, without port and brackets, in lower case; of one that is none, nothing."""
    found = _HOST.fullmatch(header)
    return "" if found is None else (found["address"] or found["name"].rstrip(".")).lower()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _check_private(path: Path, option: str) -> os.stat_result:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror}") from error
    _check_regular(found, path, option)
    if wrong := readers_beyond_owner(found, path):
        raise ConfigError(f"{option}: {path}: {wrong}")
    return found


def _check_regular(found: os.stat_result, path: Path, option: str) -> None:
    """Refuse what is no file: a pipe, say, that nobody may ever write to."""
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{option}: expected {path} to be a regular file, got a pipe, a folder or a device")


def _read_token(path: Path) -> str:
    if _check_private(path, "--token-file").st_size > _LONGEST_TOKEN:
        raise ConfigError(f"--token-file: {path} holds more than {_LONGEST_TOKEN} bytes; expected a token")
    content = UntrustedFile(path=path, most=_LONGEST_TOKEN, error=ConfigError, linked=True).read() or b""
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"--token-file: cannot read {path}: {error}") from error
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token-file: expected {path} to hold one token of {_SHORTEST_TOKEN} letters and digits or more, got "
            f"{len(token)} characters; make one with: openssl rand -hex 32 > {path}"
        )
    return token


def _names_in(path: Path) -> set[str]:
    """Return the names and addresses that a certificate is for."""
    try:
        _check_regular(path.stat(), path, "--tls-certificate")
        content = UntrustedFile(path=path, error=ConfigError, linked=True).read() or b""
        (first, *_) = x509.load_pem_x509_certificates(content)
        found = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise ConfigError(f"--tls-certificate: cannot read {path}: {error.strerror}") from error
    except (ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(f"--tls-certificate: {path} is no certificate with names in PEM: {error}") from error
    names = [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
    return {name.lower() for name in names}


def headers_of(scope: Mapping[str, object]) -> dict[str, str]:
    """Return the headers of a request by name; of one that comes twice nothing is believed, and it is empty."""
    found: dict[str, str] = {}
    given: list[tuple[bytes, bytes]] = scope["headers"]  # type: ignore[assignment]
    for name, value in given:
        key = name.decode("latin-1").lower()
        found[key] = "" if key in found else value.decode("latin-1")
    return found
