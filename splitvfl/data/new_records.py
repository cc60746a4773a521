"""New records of one party, to be scored: encoded by what was learned from the training records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch

from splitvfl.data.alignment import fill_dummies, read_alignment
from splitvfl.data.columns import PartyData
from splitvfl.data.drift import ColumnDrift
from splitvfl.data.encoding import FittedEncoding
from splitvfl.data.id_column import names_kept, numbers_of
from splitvfl.data.load import party_of, records_of
from splitvfl.data.named_rows import rows_called
from splitvfl.data.party_file import RecordOrder, own_alignment
from splitvfl.data.schema import FORMAT, SCHEMA_FILE, Role, has_format, read_data_schema
from splitvfl.data.sources import open_one, origin_of, read_whole
from splitvfl.data.tables import Rows, column_of
from splitvfl.errors import DataError

ROW_COLUMN = "row"

NamedBy = Literal["ids", "rows", "alignment", "unknown"]
"""What names of records are: ids, the same for one record in every file; its row in a file; a number that one alignment
drew for it, and another one draws anew; or nobody knows which of these."""


@dataclass(frozen=True, eq=False)
class NewRecords:
    """Records that are scored, as one party holds them.

    Attributes:
        data: All of them as test records, in the order in which the parties go through them; without labels.
        name_column: What the party calls the column that names its records.
        names: What that column holds, of the records that the party has: those that are no dummies.
        unknown: Records with a category that training did not know, by column.
        named_by: What these names are.
        drift: How its columns differ from the training, those that differ most first; empty where nobody knows.
    """

    data: PartyData
    name_column: str
    names: pa.Array
    unknown: Mapping[str, int]
    named_by: NamedBy = "ids"
    drift: tuple[ColumnDrift, ...] = ()


def read_new_records(
    path: str | os.PathLike[str],
    *,
    name: str,
    role: Role,
    encoding: FittedEncoding,
    id_column: str | None = None,
    aligned: str | os.PathLike[str] | None = None,
) -> NewRecords:
    """Return a file's records, encoded as the training records were.

    Records are ordered and called as by :func:`splitvfl.data.party_file.load_party`: as aligned, or in the file's order
    by the id column, or numbered from 0 without one. A label column, like any that was not trained on, is not looked
    at. Columns that held text are read as text, so that a file whose codes all happen to be digits is read alike.

    Args:
        path: The party's CSV or Parquet file.
        name: The party's name.
        role: Its role.
        encoding: What was learned from its training records.
        id_column: Column that names the records. Default: that of the alignment.
        aligned: The folder that ``splitvfl align`` wrote of these records.

    Raises:
        DataError: If the file, a column or the alignment is missing or not as it must be, or there is no record.
    """
    alignment = None if aligned is None else own_alignment(read_alignment(aligned), name, role, id_column)
    id_column = id_column if alignment is None else alignment.schema.id_column
    file, source = Path(path), Path(path).name
    texts = {*encoding.text_columns, *([] if id_column is None else [id_column])}
    opened = open_one(file, written=encoding.written)
    table = encoding.read(read_whole(opened, text=texts), origin_of(opened))
    names = names_of(table, id_column, source)
    if alignment is None:
        order = RecordOrder(ids_from(names, id_column, source), np.arange(table.num_rows))
    else:
        alignment.check_source(file)
        order = RecordOrder.of(alignment)
        if not order.real.any():
            raise DataError(f"{alignment.folder}: {name} has none of the aligned records; there is nothing to score")
        table, names = order.taken(table), names.take(pa.array(order.rows[order.real]))
        source = f"{source} (rows counted as they are aligned)"
    with rows_called(id_column, names):
        encoded = encoding.apply(table, source=source, count=True)
    places = fill_dummies(np.arange(table.num_rows), order.real, seed=order.seed, part="test")
    test = records_of(encoded, order.ids, places, None, real=order.real)
    columns = tuple(fitted.column for fitted in encoding.columns)
    data = party_of(name, columns, encoded, test.rows(torch.zeros(0, dtype=torch.int64)), test)
    drift = encoding.drift(encoded.counts)
    return NewRecords(data, id_column or ROW_COLUMN, names, encoded.unknown, named_by(id_column), drift)


def named_by(id_column: str | None) -> NamedBy:
    """Return what the rows of a file are named by."""
    return "rows" if id_column is None else "ids"


def named_in_tables(folder: Path) -> NamedBy:
    """Return what the records of a party's tables are named by, as the folder around them says.

    Raises:
        DataError: If that says nothing that can be read.
    """
    if not has_format(folder.parent / SCHEMA_FILE, FORMAT):
        return "unknown"
    by_rule: dict[str, NamedBy] = {"row": "rows", "aligned": "alignment"}
    return by_rule.get(read_data_schema(folder.parent).ids.rule, "ids")


def names_of(table: pa.Table, id_column: str | None, source: str) -> pa.Array:
    """Return what names the rows of a table: its id column, or numbers from 0.

    Raises:
        DataError: If an id is no id.
    """
    if id_column is None:
        return pa.array(np.arange(table.num_rows))
    return names_kept(column_of(table, id_column, source=source), id_column, source)


def ids_from(names: pa.Array, id_column: str | None, source: str) -> Rows:
    """Return the number by which each row is known: of its id, or from 0.

    Raises:
        DataError: If an id is missing or there twice.
    """
    return np.asarray(names.to_numpy(), np.int64) if id_column is None else numbers_of(names, id_column, source)
