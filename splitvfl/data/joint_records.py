"""New records of all parties at once, encoded by what was learned from their training records.

They come in one table with the columns of all parties, or in one for each party: these are joined by their id columns,
in the order of the label party's table, and may hold more records than it. Columns that nobody was trained on are not
looked at, a label among them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from splitvfl.data.cell_format import AS_USUAL, CellFormat
from splitvfl.data.columns import PartyData, Provenance, Records
from splitvfl.data.drift import ColumnDrift
from splitvfl.data.encoding import Encoded, FittedEncoding
from splitvfl.data.id_column import ids_in_table
from splitvfl.data.id_hints import would_match
from splitvfl.data.load import records_of
from splitvfl.data.named_rows import rows_called
from splitvfl.data.new_records import ROW_COLUMN, NamedBy, ids_from, named_by, named_in_tables, names_of
from splitvfl.data.schema import SCHEMA_FILE, VOCABULARY_FILE, read_party_schema
from splitvfl.data.sources import open_one, origin_of, read_whole
from splitvfl.data.store import open_party
from splitvfl.data.tables import Rows, did_you_mean, listed
from splitvfl.errors import ArgumentError, DataError
from splitvfl.system.untrusted_files import MOST_LARGE, UntrustedFile

ID_COLUMN = "id"
"""What records are called that came with numbers only."""

_LIKE = "; encode the files anew: splitvfl ingest FILES --like TABLES, the tables of the training"


@dataclass(frozen=True, eq=False)
class JointRecords:
    """Records that are scored, as all parties hold them.

    Attributes:
        records: Those of each party by name, without labels: the same ones in the same order.
        name_column: What the column is called that names them.
        names: What it holds.
        unknown: How many of them have a category that training did not know, by party and column.
        named_by: What these names are.
        drift: How columns differ from the training, by party, those that differ most first.
    """

    records: Mapping[str, Records]
    name_column: str
    names: pa.Array
    unknown: Mapping[str, Mapping[str, int]]
    named_by: NamedBy = "ids"
    drift: Mapping[str, tuple[ColumnDrift, ...]] = field(default_factory=dict)


def read_joint_records(source: Any, parties: Sequence[PartyData], *, id_column: str | None = None) -> JointRecords:
    """Return new records with the numbers that they would have had in training.

    Args:
        source: A CSV or Parquet file, or a table in memory (:func:`splitvfl.data.arrow_table.as_arrow`), with the
            columns of all parties; or a mapping from names of parties to one for each; or, where parties were trained
            on tables, the folder that ``splitvfl ingest FILES --like TABLES`` wrote.
        parties: What the parties were trained on, the label party first; of it, only columns and provenance count.
        id_column: Column that names the records. Default: that of the training; without one, they are numbered.

    Raises:
        ArgumentError: If a party's columns came as numbers, so that nobody knows how to encode others.
        DataError: If a file, a column or a record is missing, or not as in training.
    """
    unknown = [party.name for party in parties if party.provenance is None]
    if unknown:
        raise ArgumentError(
            f"the columns of {' and '.join(unknown)} came as numbers, so that nobody knows how to encode others; build "
            "the data with splitvfl.load, or encode the records yourself and call splitvfl.exchange.prediction."
            "predict_records"
        )
    if any(_provenance(party).tables is not None for party in parties):
        return _of_tables(source, parties)
    holders = [party for party in parties if party.column_names]
    if _is_for_each(source, parties):
        return _joined(source, parties, holders, id_column)
    return _of_one(source, parties, holders, id_column)


def _provenance(party: PartyData) -> Provenance:
    assert party.provenance is not None, "it was asked before"
    return party.provenance


def _is_for_each(source: Any, parties: Sequence[PartyData]) -> bool:
    return isinstance(source, Mapping) and bool(source) and set(source) <= {party.name for party in parties}


# --- files and tables in memory


class _Table(NamedTuple):
    """A table, and what its records are called."""

    table: pa.Table
    source: str
    name_column: str
    names: pa.Array
    ids: Rows
    named_by: NamedBy


def _read(source: Any, parties: Sequence[PartyData], id_column: str | None) -> _Table:
    opened = open_one(source, written=_written(parties))
    own = [] if id_column is None else [id_column]
    if id_column is not None and id_column not in opened.names:
        raise DataError(
            f"no column {id_column!r} in {opened.name}, which names the records"
            f"{did_you_mean(id_column, opened.names)}; another one can be named (--id, or id_column=)"
        )
    text = {column for party in parties for column in _encoding(party).text_columns}
    table = read_whole(opened, text={*text, *own})
    for party in parties:
        table = _encoding(party).read(table, origin_of(opened))
    names = names_of(table, id_column, opened.name)
    ids = ids_from(names, id_column, opened.name)
    return _Table(table, opened.name, id_column or ROW_COLUMN, names, ids, named_by(id_column))


def _encoding(party: PartyData) -> FittedEncoding:
    return _provenance(party).encoding or FittedEncoding(columns=())


def _written(parties: Sequence[PartyData]) -> CellFormat:
    """Return how cells were written: alike in the tables of all parties that say so."""
    return next((found for party in parties if (found := _encoding(party).written).is_given), AS_USUAL)


def _encoded(read: _Table, party: PartyData, *, others: bool) -> Encoded:
    encoding = _encoding(party)
    table = encoding.with_lists(read.table, source=read.source)
    there, used = table.column_names, [one.column for one in encoding.columns]
    known = frozenset(there)
    missing = [column for column in used if column not in known]
    if missing:
        own = "; if each party has a table, give each party its own (--records PARTY=FILE, or {party: table})"
        alone = own if others else ""
        raise DataError(
            f"{read.source} lacks columns that {party.name} was trained on: {listed(missing)}"
            f"{did_you_mean(missing[0], there, used=used) if len(missing) == 1 else ''}{alone}"
        )
    return encoding.apply(table, source=read.source, count=True)


def _drift(encoded: Mapping[str, Encoded], parties: Sequence[PartyData]) -> dict[str, tuple[ColumnDrift, ...]]:
    found = {one.name: _encoding(one).drift(encoded[one.name].counts) for one in parties if one.name in encoded}
    return {name: drift for name, drift in found.items() if drift}


def _records(encoded: Encoded, ids: Rows, rows: Rows, party: PartyData) -> Records:
    return records_of(encoded, ids, rows, None).taken_like(party.test)


def _of_one(
    source: Any, parties: Sequence[PartyData], holders: Sequence[PartyData], id_column: str | None
) -> JointRecords:
    read = _read(source, holders, id_column or _id_column(parties))
    encoded = {party.name: _encoded(read, party, others=len(parties) > 1) for party in parties}
    rows = np.arange(read.table.num_rows)
    return JointRecords(
        {party.name: _records(encoded[party.name], read.ids, rows, party) for party in parties},
        read.name_column,
        read.names,
        {name: one.unknown for name, one in encoded.items() if one.unknown},
        read.named_by,
        _drift(encoded, parties),
    )


def _id_column(parties: Sequence[PartyData]) -> str | None:
    return next(filter(None, (_provenance(party).id_column for party in parties)), None)


def _joined(
    sources: Mapping[str, Any], parties: Sequence[PartyData], holders: Sequence[PartyData], id_column: str | None
) -> JointRecords:
    missing = [party.name for party in holders if party.name not in sources]
    if missing:
        raise DataError(f"there are no records of {' and '.join(missing)}, whose columns are needed")
    read = {}
    for party in (party for party in parties if party.name in sources):
        own = id_column or _provenance(party).id_column or _id_column(parties)
        if own is None:
            raise DataError(
                f"records of {' and '.join(sources)} are joined by an id column, and none is known of the training; "
                "name it (--id, or id_column=), or give one table with the columns of all parties"
            )
        read[party.name] = _read(sources[party.name], [party], own)
    first = next(iter(read.values()))
    # Only what is scored is encoded, and counted: a partner's file may hold many more records.
    encoded = {}
    with rows_called(first.name_column, first.names):
        for name, one, party in _with_party(read, parties):
            encoded[name] = _encoded(_of_these(first, one), party, others=False)
    count = len(first.ids)
    records = {
        party.name: _records(encoded.get(party.name) or _nothing(count), first.ids, np.arange(count), party)
        for party in parties
    }
    unknown = {name: one.unknown for name, one in encoded.items() if one.unknown}
    drift = _drift(encoded, parties)
    return JointRecords(records, first.name_column, first.names, unknown, first.named_by, drift)


def _with_party(read: Mapping[str, _Table], parties: Sequence[PartyData]) -> list[tuple[str, _Table, PartyData]]:
    return [(party.name, read[party.name], party) for party in parties if party.name in read]


def _of_these(first: _Table, other: _Table) -> _Table:
    """Return another table with the first one's records alone, in their order."""
    if other is first:
        return first
    rows = _rows_of(first, other)
    source = f"{other.source} (rows counted as in {first.source})"
    return other._replace(table=other.table.take(pa.array(rows)), source=source)


def _nothing(rows: int) -> Encoded:
    return Encoded(np.zeros((rows, 0), np.float32), (), np.zeros((rows, 0), np.int64), (), (), {})


def _rows_of(first: _Table, other: _Table) -> Rows:
    """Return where the first table's records are in the other one.

    Raises:
        DataError: If one of them is not there.
    """
    order = np.argsort(other.ids, kind="stable")
    places = np.minimum(np.searchsorted(other.ids, first.ids, sorter=order), len(order) - 1)
    rows: Rows = order[places]
    absent = np.flatnonzero(other.ids[rows] != first.ids)
    if absent.size:
        shown = [str(first.names[int(row)].as_py()) for row in absent[:5]]
        hint = would_match(*(ids_in_table(one.names, one.name_column, one.source) for one in (first, other)))
        raise DataError(
            f"{other.source} lacks {absent.size} of the {len(first.ids)} records of {first.source}, such as "
            f"{listed(shown)}: leave them out there, or add them here{hint and '; ' + hint}"
        )
    return rows


# --- tables that were ingested


def _of_tables(source: Any, parties: Sequence[PartyData]) -> JointRecords:
    if not isinstance(source, str | os.PathLike) or not Path(source).is_dir():
        raise DataError(
            "the parties were trained on tables: expected the folder of new ones, as `splitvfl ingest FILES --like "
            f"TABLES` writes it, got {source if isinstance(source, str | os.PathLike) else type(source).__name__}"
        )
    records: dict[str, Records] = {}
    named: set[NamedBy] = set()
    drift: dict[str, tuple[ColumnDrift, ...]] = {}
    for party in parties:
        own = own_tables(Path(source), party.name)
        trained = _provenance(party).tables
        assert trained is not None, "all parties' tables were ingested together, or none"
        check_like(trained, own)
        records[party.name] = replace(open_party(own).test, labels=None).taken_like(party.test)
        named.add(named_in_tables(own))
        drift[party.name] = read_party_schema(own).drift
    ids = records[parties[0].name].ids
    # One rule for all: they were ingested together.
    return JointRecords(records, ID_COLUMN, pa.array(ids.numpy()), {}, next(iter(named)), drift)


def own_tables(folder: Path, name: str) -> Path:
    """Return a party's folder among those of a data set that was ingested, or the folder itself if it is that."""
    return folder / name if (folder / name / SCHEMA_FILE).exists() else folder


def check_like(trained: Path, new: Path) -> None:
    """Check that new tables of a party were encoded as those that it was trained on.

    Args:
        trained: A folder with the schema of these, and their vocabulary if they have one.
        new: The folder of the new ones.

    Raises:
        DataError: If they are of another party, or were encoded by something else.
    """
    before, given = read_party_schema(trained), read_party_schema(new)
    for what in ("name", "role", "encoders"):
        if getattr(given, what) != getattr(before, what):
            raise DataError(f"{new} has other {what} than the tables that {before.name} was trained on{_LIKE}")
    if not _same_file(new / VOCABULARY_FILE, trained / VOCABULARY_FILE):
        raise DataError(
            f"{new / VOCABULARY_FILE} lists other categories than the tables that {before.name} was trained on{_LIKE}"
        )


def _same_file(one: Path, other: Path) -> bool:
    if not one.exists() or not other.exists():
        return one.exists() == other.exists()
    first, second = (UntrustedFile(path=path, most=MOST_LARGE, error=DataError).digest() for path in (one, other))
    return first == second
