"""Records in shards that lie apart: each in a table folder of its own, where the worker is that trains on it.

The number of a shard takes the place of ``{worker}`` in the path. All shards must be encoded alike, as ingesting them
with the statistics of all makes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

import msgspec
import torch

from splitvfl.data.columns import Columns, PartyData, Records, Shards, VerticalData
from splitvfl.data.schema import VOCABULARY_FILE, read_party_schema
from splitvfl.data.store import open_party
from splitvfl.errors import DataError
from splitvfl.system.untrusted_files import MOST_LARGE, UntrustedFile

PLACEHOLDER = "{worker}"
"""What the number of a shard takes the place of in a path."""

# What shards of one table have alike in their schemas. Partners compare the rest, shard by shard.
_ALIKE = (
    *("format", "version", "name", "role", "task", "classes", "label"),
    *("column_names", "numeric_names", "field_names", "field_sizes", "encoders"),
)


def lie_apart(path: str | None) -> TypeGuard[str]:
    """Return whether a path is that of shards."""
    return path is not None and PLACEHOLDER in path


def shard_path(path: str, shard: int) -> Path:
    """Return where a shard lies."""
    return Path(path.replace(PLACEHOLDER, str(shard)))


@dataclass(frozen=True)
class ShardFacts:
    """What is to be known of a shard before anybody trains on it.

    Attributes:
        path: Where it lies.
        rows: Number of its training records.
        tests: Number of its test records.
        encoding: SHA-256, in hexadecimal, of how its columns became numbers, its list of categories included.
        records: Fingerprint of the ids of its training records.
        numbered: Whether its records are called 0, 1, 2 and so on.
    """

    path: str
    rows: int
    tests: int
    encoding: str
    records: str
    numbered: bool


def facts_of(folder: Path) -> ShardFacts:
    """Return what is to be known of a shard, as its schema says it.

    Args:
        folder: One party's table folder.

    Raises:
        DataError: If it is not there, or is damaged.
    """
    schema = read_party_schema(folder)
    digest = hashlib.sha256(msgspec.json.encode({name: getattr(schema, name) for name in _ALIKE}))
    if (folder / VOCABULARY_FILE).exists():
        vocabulary = UntrustedFile(path=folder / VOCABULARY_FILE, most=MOST_LARGE, error=DataError)
        digest.update(bytes.fromhex(vocabulary.digest()))
    return ShardFacts(
        path=str(folder),
        rows=schema.rows.get("train", 0),
        tests=schema.rows.get("test", 0),
        encoding=digest.hexdigest(),
        records=schema.id_fingerprints.get("train", ""),
        numbered=_numbered(open_party(folder)),
    )


def _numbered(data: PartyData) -> bool:
    parts = [part.ids for part in (data.train, data.test) if part.count]
    count = sum(map(len, parts))
    # All ids differ: so many between 0 and their number are all of these.
    return all(int(ids.min()) >= 0 and int(ids.max()) < count for ids in parts)


def checked_sizes(shards: Sequence[ShardFacts]) -> Shards:
    """Return the sizes of all shards of a party, after a check that they are parts of one table.

    Raises:
        DataError: If one has no training records, is encoded otherwise, or is there twice; it is named.
    """
    first = shards[0]
    for number, shard in enumerate(shards):
        if not shard.rows:
            raise DataError(
                f"shard {number} ({shard.path}) has no training records; divide the records into fewer shards"
            )
        if shard.encoding != first.encoding:
            raise DataError(
                f"shards 0 ({first.path}) and {number} ({shard.path}) are encoded otherwise: a shard that was ingested "
                "by itself has scales and categories of its own. Ingest all shards with the statistics of all of them "
                "(splitvfl ingest --statistics)"
            )
        twin = next(one for one, other in enumerate(shards) if other.records == shard.records)
        if twin != number:
            raise DataError(
                f"shards {twin} ({shards[twin].path}) and {number} ({shard.path}) hold the same records: one is there "
                "twice"
            )
    numbered = [f"{number} ({shard.path})" for number, shard in enumerate(shards) if shard.numbered]
    if len(numbered) > 1:
        raise DataError(
            f"the records of shards {' and '.join(numbered)} are called by their numbers, so that different records "
            "have one name; ingest all shards with an id column (--id)"
        )
    return Shards(tuple(shard.rows for shard in shards), tuple(shard.tests for shard in shards))


def joined(shards: Sequence[PartyData]) -> PartyData:
    """Return the records of all shards of a party, one behind the other, in memory.

    Args:
        shards: Those of which sizes were checked (:func:`checked_sizes`).
    """
    return replace(
        shards[0],
        train=_behind([shard.train for shard in shards]),
        test=_behind([shard.test for shard in shards]),
        shards=Shards(tuple(shard.train.count for shard in shards), tuple(shard.test.count for shard in shards)),
    )


def joined_parties(shards: Sequence[VerticalData]) -> VerticalData:
    """Return the records of all shards of all parties, as :func:`joined`."""
    passives = {name: joined([shard.passives[name] for shard in shards]) for name in shards[0].passives}
    return replace(shards[0], active=joined([shard.active for shard in shards]), passives=passives)


def _behind(parts: Sequence[Records]) -> Records:
    columns = Columns(*(torch.cat(kind) for kind in zip(*(part.columns for part in parts), strict=True)))
    held = [torch.ones(part.count, dtype=torch.bool) if part.real is None else part.real for part in parts]
    labels = [part.labels for part in parts if part.labels is not None]
    return Records(
        torch.cat([part.ids for part in parts]),
        columns,
        torch.cat(labels) if labels else None,
        real=None if all(part.real is None for part in parts) else torch.cat(held),
    )
