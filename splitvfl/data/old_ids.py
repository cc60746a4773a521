"""The first rule for ids: only for what earlier versions wrote, which keeps it.

Numbers of records depended on the type that a column was read with, and on where: ``007`` in a CSV file was 7. Whoever
goes on with a run, tables or statistics that were made so gets the same numbers, and so the same split and the same
digests. New ones follow :mod:`splitvfl.data.id_column`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.hashing import text_ids
from splitvfl.data.spelling import setting
from splitvfl.data.tables import Rows, is_text
from splitvfl.errors import DataError


def as_typed(column: pa.Array) -> Rows:
    """Return one number per row: whole numbers as they are, text by :func:`splitvfl.data.hashing.text_ids`."""
    if pa.types.is_string(column.type):
        return text_ids(column.to_pylist())
    ids: Rows = column.to_numpy().astype(np.int64, copy=False)
    return ids


def of_file(column: pa.Array, *, source: str) -> Rows:
    """Return the numbers of records of a party's own file.

    Raises:
        DataError: As :func:`record_ids`.
    """
    record_ids(column, source=source)
    ids = as_typed(column.cast(pa.string() if pa.types.is_large_string(column.type) else column.type))
    if len(np.unique(ids)) < len(ids):
        raise DataError(f"{source}: two texts have the same 63-bit hash; number the records")
    return ids


def of_names(names: pa.Array, *, source: str) -> Rows:
    """Return the numbers of records whose names stand beside scores: all whole numbers if all can be taken for such.

    Raises:
        DataError: As :func:`record_ids`.
    """
    record_ids(names, source=source)
    if is_text(names):
        try:
            names = names.cast(pa.string()).cast(pa.int64())
        except pa.ArrowInvalid:  # text it is
            names = names.cast(pa.string())
    ids = as_typed(names)
    if len(np.unique(ids)) < len(ids):
        raise DataError(f"{source}: two ids are the same number, or the same 63-bit hash; ids must differ")
    return ids


def record_ids(column: pa.Array, *, source: str) -> Rows:
    """Return one id per row: whole numbers as they are; for text, once no two are alike, the row's number from 0.

    Raises:
        DataError: If an id is missing or occurs twice, or ids are neither whole numbers nor text.
    """
    if column.null_count:
        raise DataError(f"{source} has no id in {column.null_count} rows")
    if not is_text(column) and not pa.types.is_integer(column.type):
        raise DataError(
            f"{source} must hold whole numbers or text, got {column.type}; have ids beyond 64 bits read as text: "
            f"{setting('text_columns')}"
        )
    seen: dict[object, int] = {}
    for row, value in enumerate(column.to_pylist()):
        if seen.setdefault(value, row) != row:
            raise DataError(
                f"{source} holds {value!r} in rows {seen[value]} and {row} (from 0); ids must differ: take "
                "all but one out"
            )
    if is_text(column):
        return np.arange(len(column), dtype=np.int64)
    try:
        ids: Rows = pc.cast(column, pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{source} holds numbers beyond 64 bits; have it read as text: {setting('text_columns')}"
        ) from error
    return ids
