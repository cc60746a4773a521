"""Certificates for development: an authority of one's own, and a key and a certificate for each party.

All keys are made in one place, which no two organisations that distrust each other have. The certificates say so in
their names (``O=splitvfl, for development only``). In production each party makes its own key and has a certificate
issued for it.

The authority's key is thrown away once it has signed, unless it is kept on purpose: whoever has it can pass for any
party.
"""

from __future__ import annotations

import inspect
import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.net.tls import DEVELOPMENT, ROOTS_FILE, identities, identity_of, unencrypted
from splitvfl.system.private_folder import private_folder
from splitvfl.system.untrusted_files import UntrustedFile, replacing

AUTHORITY_KEY_FILE = "ca.key"
LONGEST_DAYS = 365

# Clocks of the parties may differ by as much.
_BACKDATED = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class PartyFiles:
    """The two files of one party."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class MadeCertificates:
    """The files that :func:`make_certificates` wrote.

    Attributes:
        roots: The authority's certificate, which every party needs.
        parties: By name, what that party needs besides, and no other party.
        valid_until: When all of it expires.
        authority_key: The authority's key, where it was kept.
    """

    roots: Path
    parties: Mapping[str, PartyFiles]
    valid_until: datetime
    authority_key: Path | None


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(
    folder: Path | str,
    names: Sequence[str],
    *,
    hosts: Mapping[str, Sequence[str]] | None = None,
    days: int = 30,
    keep_ca_key: bool = False,
    overwrite: bool = False,
) -> MadeCertificates:
    """Write ``ca.pem``, and ``NAME.pem`` and ``NAME.key`` for each party, and return where they are.

    Keys are on curve P-256, and key files are their owner's only (mode 0600). A certificate carries its party's name,
    and what ``hosts`` adds, and may be used by servers and by clients. Where the folder holds an authority whose key
    was kept, that one signs.

    Not for production: this process sees the key of every party.

    Args:
        folder: Where the files go; made if it is not there.
        names: The parties.
        hosts: By party, further names for its certificate: the ``identity`` of its file, DNS names, IP addresses.
        days: How long the certificates are valid, from 1 to 365; no longer than the authority.
        keep_ca_key: Also write ``ca.key``, to issue more certificates later.
        overwrite: Replace what is there, with a new authority.

    Raises:
        ArgumentError: If ``names``, ``hosts`` or ``days`` cannot be.
        ConfigError: If a name cannot stand in a certificate, or a file is there that may not be replaced. Nothing is
            written then.
    """
    _check_arguments(names, hosts or {}, days)
    target = Path(folder)
    carried = _carried_names(names, hosts or {})
    _check_free(target, names, overwrite=overwrite)
    now = datetime.now(UTC)
    authority = (None if overwrite else _kept_authority(target)) or _new_authority(now, days)
    valid_until = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    files: dict[Path, bytes] = {target / ROOTS_FILE: authority.certificate.public_bytes(serialization.Encoding.PEM)}
    parties = {name: PartyFiles(target / f"{name}.pem", target / f"{name}.key") for name in names}
    for name, paths in parties.items():
        files[paths.key], files[paths.certificate] = _issue(authority, name, carried[name], now, valid_until)
    authority_key = target / AUTHORITY_KEY_FILE
    if keep_ca_key:
        files[authority_key] = unencrypted(authority.key)
    _write(target, files)
    if overwrite and not keep_ca_key:
        # It belonged to the authority that was replaced.
        authority_key.unlink(missing_ok=True)
    return MadeCertificates(
        roots=target / ROOTS_FILE,
        parties=parties,
        valid_until=valid_until,
        authority_key=authority_key if authority_key.exists() else None,
    )


def _check_arguments(names: Sequence[str], hosts: Mapping[str, Sequence[str]], days: int) -> None:
    if not names:
        raise ArgumentError("expected the names of the parties, got none")
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise ArgumentError(f"expected every party once, got {', '.join(repeated)} more often")
    unknown = sorted(set(hosts) - set(names))
    if unknown:
        raise ArgumentError(
            f"hosts are given for {', '.join(unknown)}, which is none of the parties {', '.join(names)}"
        )
    if not 1 <= days <= LONGEST_DAYS:
        raise ArgumentError(f"expected 1 to {LONGEST_DAYS} days for certificates for development, got {days}")


def _carried_names(names: Sequence[str], hosts: Mapping[str, Sequence[str]]) -> dict[str, list[x509.GeneralName]]:
    """Return what each party's certificate carries, its identity first; nobody's carries a name of another party."""
    own = identities(dict.fromkeys(names))
    if Path(ROOTS_FILE).stem in own.values():
        raise ConfigError(f"party ca: its files would be {ROOTS_FILE} and {AUTHORITY_KEY_FILE}, the authority's")
    owners: dict[x509.GeneralName, str] = {x509.DNSName(name): party for party, name in own.items()}
    carried: dict[str, list[x509.GeneralName]] = {party: [x509.DNSName(name)] for party, name in own.items()}
    for party, others in hosts.items():
        for other in map(_general_name, others):
            # Machines may be shared, names of parties may not.
            if owners.get(other, party) != party:
                raise ConfigError(f"party {party} would carry {other.value!r}, and could pass for {owners[other]}")
            if other not in carried[party]:
                carried[party].append(other)
    return carried


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(identity_of(host, host))


def _check_free(folder: Path, names: Iterable[str], *, overwrite: bool) -> None:
    wanted = {f"{name}{ending}" for name in names for ending in (".pem", ".key")}
    has_authority = (folder / ROOTS_FILE).exists()
    if overwrite:
        stale = sorted(path.name for path in folder.glob("*.pem") if path.name not in {*wanted, ROOTS_FILE})
        if has_authority and stale:
            raise ConfigError(
                f"{folder} also holds {', '.join(stale)}, of no use under a new authority: name those parties too, or "
                "choose another folder"
            )
        return
    there = sorted(name for name in wanted if (folder / name).exists())
    if there:
        raise ConfigError(f"{folder} already holds {', '.join(there)}; choose another folder, or --overwrite")
    if has_authority and not (folder / AUTHORITY_KEY_FILE).exists():
        raise ConfigError(
            f"{folder / ROOTS_FILE} is there, and the key that belongs to it was not kept: make the certificates of "
            "all parties anew with --overwrite, or choose another folder"
        )


def _kept_authority(folder: Path) -> _Authority | None:
    key_file, roots = folder / AUTHORITY_KEY_FILE, folder / ROOTS_FILE
    if not roots.exists():
        return None
    try:
        key = serialization.load_pem_private_key(_pem(key_file), password=None)
        certificate = x509.load_pem_x509_certificate(_pem(roots))
    except (TypeError, ValueError):
        raise ConfigError(f"{roots} and {key_file}: expected an authority's certificate and key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(f"{key_file} is not the key of {roots}")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise ConfigError(
            f"{roots}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}; make all anew with --overwrite"
        )
    return _Authority(certificate, key)


def _pem(path: Path) -> bytes:
    """Return what a file of the authority holds; its folder may be a Secret, whose files are links."""
    content = UntrustedFile(path=path, error=ConfigError, linked=True).read()
    if content is None:
        raise ConfigError(f"{path}: not there, expected the authority's certificate and key; choose another folder")
    return content


def _new_authority(now: datetime, days: int) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("CA")
    usage = _key_usage("key_cert_sign", "crl_sign")
    builder = (
        _builder(name, name, key.public_key(), now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _Authority(builder.sign(key, hashes.SHA256()), key)


def _issue(
    authority: _Authority, party: str, carried: Sequence[x509.GeneralName], now: datetime, valid_until: datetime
) -> tuple[bytes, bytes]:
    """Return a new key and its certificate, both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = (
        _builder(_subject(party), authority.certificate.subject, key.public_key(), now, valid_until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(x509.SubjectAlternativeName(carried), critical=False)
        .add_extension(signer, critical=False)
    )
    certificate = builder.sign(authority.key, hashes.SHA256())
    return unencrypted(key), certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    # X.509 has room for 64 characters here; what counts is the alternative name.
    attributes = {NameOID.ORGANIZATION_NAME: DEVELOPMENT, NameOID.COMMON_NAME: name[:64]}
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes.items()])


def _key_usage(*granted: str) -> x509.KeyUsage:
    no_use = dict.fromkeys(inspect.signature(x509.KeyUsage).parameters, False)
    return x509.KeyUsage(**no_use | dict.fromkeys(granted, True))


def _write(folder: Path, files: Mapping[Path, bytes]) -> None:
    """Write all files under other names first, then rename them."""
    private_folder(folder)
    with ExitStack() as drafts:
        for path, content in reversed([*files.items()]):  # the first that is opened is renamed last
            mode = 0o600 if path.suffix == ".key" else 0o644
            file = drafts.enter_context(replacing(path, mode=mode, flush=False, alone=False))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
