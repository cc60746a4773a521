"""An ingest in words: settings as they are typed, and the report as it is printed."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from splitvfl.data.drift import drift_said
from splitvfl.data.encoding import Scale
from splitvfl.data.ingest.plan import Hashing
from splitvfl.data.ingest.run import IngestReport, PartyReport
from splitvfl.data.ingest.shards import Shard, StatisticsReport
from splitvfl.data.partition import REST, ColumnClaim
from splitvfl.data.schema import Role
from splitvfl.data.spec import PartyClaim
from splitvfl.data.tables import listed
from splitvfl.errors import ArgumentError, DataError
from splitvfl.system.untrusted_files import UntrustedFile

_MOST_UNKNOWN = 8


def claims_of(active: str | None, passive: Sequence[str], label: str | None = None) -> list[PartyClaim]:
    """Return the parties out of ``"shop=I[1-6]"``, ``"publisher=rest"``, ``"bank=0.5"`` and ``"shop"``.

    Args:
        active: The active party. Without one, whoever holds the label column is called so.
        passive: The passive parties.
        label: The label column.

    Raises:
        ArgumentError: If a passive party comes twice.

    >>> claims_of("shop=I1,I2", ["publisher=rest", "bank=0.5"])[0]
    PartyClaim(name='shop', role='active', columns='I1,I2')
    """
    if active is None and label is not None:
        active = "active"
    names = [party.partition("=")[0].strip() for party in passive]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ArgumentError(f"party {repeated[0]!r} was given more than once; list its columns by comma")
    found = [] if active is None else [_claim(active, "active")]
    return found + [_claim(party, "passive") for party in passive]


def _claim(party: str, role: Role) -> PartyClaim:
    name, _, columns = party.partition("=")
    return PartyClaim(name.strip(), role, _columns(columns.strip()))


def _columns(columns: str) -> ColumnClaim:
    if columns in ("", REST):
        return columns or ()
    try:
        return float(columns)
    except ValueError:
        return columns


def scales_of(**wanted: str) -> dict[Scale, str]:
    """Return the columns to be scaled otherwise, by scale."""
    return {scale: wanted[scale] for scale in get_args(Scale) if wanted.get(scale)}


def names_of(names: str | None) -> list[str] | None:
    """Return column names out of a text with commas.

    >>> names_of('label, I1, "a, b"')
    ['label', 'I1', 'a, b']
    """
    return None if names is None else next(csv.reader([names], skipinitialspace=True), [])


def hashing_of(buckets: int | None, fields: str | None, secret: bytes | None) -> Hashing | None:
    """Return how categories are hashed, if they are.

    Raises:
        ArgumentError: If something is said of it, and not how many codes there are.
    """
    if buckets is not None:
        return Hashing(buckets=buckets, fields=fields, secret=secret)
    if fields is not None or secret is not None:
        raise ArgumentError("fields to hash or a hash key were given, and no number of buckets")
    return None


def secret_in(path: Path) -> bytes:
    """Return the key in a file, without line ends after it.

    Raises:
        DataError: If there is no such file.
    """
    content = UntrustedFile(path=path, error=DataError, linked=True).read()
    if content is None:
        raise DataError(f"expected a file with the hash key at {path}, and there is none")
    return content.rstrip(b"\r\n")


def read_shard(text: str) -> Shard:
    """Return which shard ``"3/8"`` is: number 3, from 0, of 8.

    Raises:
        ArgumentError: If it is written otherwise.
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal()):
        raise ArgumentError(f"expected a shard as its number from 0 and how many there are, as in 3/8, got {text!r}")
    return Shard(int(number), int(of))


def described_statistics(report: StatisticsReport) -> Iterator[str]:
    """Yield the lines that say of what statistics were taken."""
    rows = sum(report.rows.values())
    split = ", ".join(f"{count:,} {part}" for part, count in report.rows.items())
    shard = f"shard {report.shard.number} of {report.shard.of}"
    yield f"{report.folder}: statistics of {shard}, {rows:,} rows ({split}), {rows / report.seconds:,.0f} rows/s"
    codes = f" of {sum(report.categories.values()):,} categories" if report.categories else ""
    yield f"{report.numeric} numeric columns, {len(report.categories)} listed fields{codes}"
    if report.blank:
        yield f"  no value in any row: {listed(list(report.blank))} (the other shards say what it holds)"


def described(report: IngestReport) -> Iterator[str]:
    """Yield the lines that say what was ingested."""
    rows = sum(report.rows.values())
    split = ", ".join(f"{count:,} {part}" for part, count in report.rows.items())
    megabytes = report.read_bytes / 1e6 / report.seconds
    yield f"{report.folder}: {rows:,} rows ({split}), {report.rows_per_s:,.0f} rows/s, {megabytes:,.1f} MB/s"
    if report.unlabelled:
        yield f"without a label, and left out: {report.unlabelled:,}"
    if report.positive_share is not None:
        yield f"positive: {report.positive_share:.2%}"
    for name, party in report.parties.items():
        role = "active" if name == report.active else "passive"
        codes = f" of {sum(party.fields.values()):,} codes" if party.fields else ""
        yield f"{name} ({role}): {party.numeric} numeric columns, {len(party.fields)} fields{codes}"
        yield from _unknown(party)
    yield from drift_said({name: party.drift for name, party in report.parties.items()})


def _unknown(party: PartyReport) -> Iterator[str]:
    found = sorted(((rows, field) for field, rows in party.unknown.items() if rows), reverse=True)
    if found:
        shown = ", ".join(f"{field} {rows:,}" for rows, field in found[:_MOST_UNKNOWN])
        more = f" and {len(found) - _MOST_UNKNOWN} more fields" if len(found) > _MOST_UNKNOWN else ""
        yield f"  test rows with an unknown or rare category (code 0): {shown}{more}"
