"""The folder of shards: what is written beside them and into each, so that one in the wrong place is told by name.

::

    sharded/sharding.json         ShardingSchema: by which rule, into how many, of which column, and how many records
    sharded/shard-0.parquet       the records of shard 0, in the order of the files that were divided
    sharded/shard-1.parquet       …

Every file says by itself which shard of which division it is (:class:`ShardNote`, among its metadata): files are copied
to other machines, one to each. They are the records, all of them; only their owner can read them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet

from splitvfl.data.arrow_source import PARQUET_SUFFIXES
from splitvfl.data.id_column import Case
from splitvfl.data.id_rules import FIRST_RULE, RuleVersion
from splitvfl.data.schema import has_format, read_schema
from splitvfl.data.sharding import RULE, HeldShards
from splitvfl.errors import DataError
from splitvfl.system.untrusted_files import decoded

FORMAT = "splitvfl shards"
VERSION = 1
SHARDING_FILE = "sharding.json"

_NOTE = b"splitvfl.shard"
_AGAIN = "divide the files again"


class ShardingSchema(msgspec.Struct, frozen=True, kw_only=True):
    """``sharding.json``: how records were divided.

    Attributes:
        format: Always :data:`FORMAT`.
        version: Version of the format.
        rule: Always :data:`splitvfl.data.sharding.RULE`.
        shards: Into how many.
        id_column: The column that decides.
        case: Whether letter case of ids counted.
        id_rule: Version of the rule by which ids are written (:mod:`splitvfl.data.id_column`).
        division: A random number, in hexadecimal: shards of one division have the same.
        records: Number of records of each shard.
        files: Names of the files that were divided.
    """

    format: str = FORMAT
    version: int = VERSION
    rule: str = RULE
    shards: int
    id_column: str
    case: Case
    id_rule: RuleVersion = FIRST_RULE
    division: str
    records: tuple[int, ...]
    files: tuple[str, ...]


class ShardNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard says of itself, in JSON, in the metadata of its file under ``splitvfl.shard``.

    Attributes:
        version: As in :class:`ShardingSchema`, like all but the next.
        shard: Which one it is.
        rule: By which rule.
        shards: One of how many.
        id_column: Divided by which column.
        case: Whether letter case counted.
        id_rule: By which version of the rule ids are written.
        division: Of which division.
        records: Number of its records.
    """

    version: int = VERSION
    shard: int
    rule: str = RULE
    shards: int
    id_column: str
    case: Case
    id_rule: RuleVersion = FIRST_RULE
    division: str
    records: int

    @classmethod
    def of(cls, sharding: ShardingSchema, shard: int) -> ShardNote:
        """Return the note of one shard of a division."""
        return cls(
            shard=shard,
            shards=sharding.shards,
            id_column=sharding.id_column,
            case=sharding.case,
            id_rule=sharding.id_rule,
            division=sharding.division,
            records=sharding.records[shard],
        )

    def added_to(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of a shard's file."""
        return schema.with_metadata({_NOTE: msgspec.json.encode(self)})


def shard_file(folder: Path, shard: int) -> Path:
    """Return where a shard lies in the folder."""
    return folder / f"shard-{shard}.parquet"


def is_sharded_folder(folder: Path) -> bool:
    """Return whether a folder holds shards, of any version."""
    return has_format(folder / SHARDING_FILE, FORMAT)


def check_noted(files: Sequence[Path], *, shard: int, shards: int) -> None:
    """Check that files which say of themselves which shard they are say what they are taken for.

    Args:
        files: The files; those that ``splitvfl shard`` did not write say nothing.
        shard: Which shard they are taken for.
        shards: Of how many.

    Raises:
        DataError: If one says otherwise.
    """
    for file in files:
        note = read_note(file)
        if note is not None and (note.shard, note.shards) != (shard, shards):
            raise DataError(
                f"{file.name} says that it is shard {note.shard}/{note.shards}, and was given as shard {shard}/{shards}"
            )


def read_note(path: Path) -> ShardNote | None:
    """Return what a file says of itself; ``None`` if it is no shard that was written by ``splitvfl shard``.

    Raises:
        DataError: If it cannot be read, or says what a shard of this version does not.
    """
    if path.suffix.lower() not in PARQUET_SUFFIXES:
        return None
    try:
        metadata = pyarrow.parquet.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path.name} could not be read: {error}") from error
    text = (metadata.metadata or {}).get(_NOTE)
    if text is None:
        return None
    try:
        note = msgspec.convert(decoded(text), ShardNote)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name} says of itself what no shard does: {error}; {_AGAIN}") from error
    if note.version != VERSION or note.rule != RULE:
        raise DataError(
            f"{path.name} was divided by another rule: {note.rule!r}, version {note.version}; expected {RULE!r}, "
            f"version {VERSION}; {_AGAIN}"
        )
    if note.records != metadata.num_rows:
        raise DataError(
            f"{path.name} holds {metadata.num_rows} records, and {note.records} when it was written; it is damaged: "
            f"{_AGAIN}"
        )
    return note


def read_sharding(folder: str | os.PathLike[str]) -> ShardingSchema:
    """Return how the records of a folder were divided, after a look at every shard: all are there, and not empty.

    Raises:
        DataError: If one is missing, empty, there twice, or of another rule or division; it is named.
    """
    path = Path(folder)
    what = "shards, as `splitvfl shard` writes them"
    sharding = read_schema(
        path / SHARDING_FILE, ShardingSchema, what=what, wanted=FORMAT, version=VERSION, again=_AGAIN
    )
    if sharding.rule != RULE or len(sharding.records) != sharding.shards:
        raise DataError(f"{path / SHARDING_FILE} tells of another rule, or is damaged; {_AGAIN}")
    for shard in range(sharding.shards):
        _check_one(shard_file(path, shard), sharding, shard)
    known = {shard_file(path, shard).name for shard in range(sharding.shards)}
    strange = sorted(file.name for file in path.glob("shard-*.parquet") if file.name not in known)
    if strange:
        raise DataError(f"{path / strange[0]} is none of the {sharding.shards} shards of its folder; take it out")
    return sharding


def _check_one(file: Path, sharding: ShardingSchema, shard: int) -> None:
    if not file.is_file():
        raise DataError(f"shard {shard} of {sharding.shards} is missing: there is no {file}")
    note = read_note(file)
    if note is None or note.division != sharding.division:
        raise DataError(f"{file} is no shard of this division, as {SHARDING_FILE} tells of it; {_AGAIN}")
    if note.shard != shard:
        raise DataError(f"{file} holds shard {note.shard}, which is there twice; {_AGAIN}")
    if note != ShardNote.of(sharding, shard):
        raise DataError(f"{file} and {SHARDING_FILE} tell of different records; one of them is damaged: {_AGAIN}")
    if not note.records:
        raise DataError(f"shard {shard} of {sharding.shards} is empty: {file}; {_fewer(sharding)}")


def _fewer(sharding: ShardingSchema) -> str:
    return f"{sum(sharding.records)} records may be too few for {sharding.shards} shards: divide into fewer"


def held_shards(files: Sequence[Path], *, id_column: str, case: Case) -> HeldShards | None:
    """Return which shards some files are, as they say of themselves; ``None`` if they are none, or all of them.

    Args:
        files: The files.
        id_column: The column by which their records are known now.
        case: Whether letter case of ids counts now.

    Raises:
        DataError: If some are shards and others none, or of another division; if one is there twice or empty; or if
            they were divided by another column, or with letter case counted otherwise.
    """
    notes = {file: read_note(file) for file in files}
    shards = {file: note for file, note in notes.items() if note is not None}
    if not shards:
        return None
    (first, of_first), *_ = shards.items()
    places: dict[int, Path] = {}
    for file, note in notes.items():
        if note is None or note.division != of_first.division:
            other = "no shard" if note is None else "a shard of another division"
            raise DataError(
                f"{first.name} is shard {of_first.shard} of {of_first.shards}, and {file.name} is {other}: what "
                "belongs together was divided together"
            )
        if note.shard in places:
            raise DataError(f"{places[note.shard].name} and {file.name} are both shard {note.shard}; leave one out")
        if not note.records:
            raise DataError(f"{file.name} is empty: shard {note.shard} of {note.shards} has no record")
        places[note.shard] = file
    if len(places) == of_first.shards:
        return None
    _check_used_alike(first, of_first, id_column, case)
    return HeldShards(tuple(sorted(places)), of_first.shards, of_first.id_rule)


def _check_used_alike(file: Path, note: ShardNote, id_column: str, case: Case) -> None:
    if note.id_column != id_column:
        raise DataError(
            f"{file.name} was divided by column {note.id_column!r}, got {id_column!r}: other parties have these "
            "records in other shards"
        )
    if note.case != case:
        words = {"kept": "with letter case counted", "folded": "with --fold-case"}
        raise DataError(
            f"{file.name} was divided {words[note.case]}, and is used {words[case]}: other parties have these records "
            "in other shards"
        )
