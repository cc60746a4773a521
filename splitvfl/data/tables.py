"""Read CSV and Parquet files, with errors that say what is wrong in them."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from splitvfl.errors import DataError

Rows = npt.NDArray[np.int64]

PARQUET_SUFFIXES = {".parquet", ".pq"}
CSV_SUFFIXES = {".csv", ".tsv", ".txt", ".data"}


def read_table(path: Path, *, text: Collection[str] = ()) -> pa.Table:
    """Return the table in a CSV or Parquet file, its columns in one chunk each.

    The suffix decides the format (``.csv.gz`` is fine too). A CSV file has a header line; its delimiter is whichever
    of comma, semicolon and tab the header holds most. Empty cells, ``NA``, ``NaN`` and ``null`` are missing in a
    numeric column and text in a text column. Dictionary columns become what they stand for.

    Args:
        path: The file.
        text: Columns of a CSV file to read as text, whatever their cells look like.

    Raises:
        DataError: If there is no such file, it cannot be read, has no rows, or names a column twice.
    """
    if not path.is_file():
        raise DataError(f"expected a CSV or Parquet file at {path}, and there is none")
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    try:
        if suffix.lower() in PARQUET_SUFFIXES:
            table = pyarrow.parquet.read_table(path)
        elif suffix.lower() in CSV_SUFFIXES:
            table = _read_csv(path, text)
        else:
            expected = ", ".join(sorted(PARQUET_SUFFIXES | CSV_SUFFIXES))
            raise DataError(f"expected a file that ends in one of {expected}, got {path.name}")
        repeated = sorted(name for name, times in Counter(table.column_names).items() if times > 1)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path.name} could not be read: {error}") from error
    if repeated:
        raise DataError(f"{path.name} names more than one column {listed(repeated)}")
    if table.num_rows == 0:
        raise DataError(f"{path.name} has a header and no rows")
    return _plain(table)


def _read_csv(path: Path, text: Collection[str]) -> pa.Table:
    ragged: list[Any] = []

    def note(row: Any) -> str:
        ragged.append(row)
        return "skip"

    table = pyarrow.csv.read_csv(
        path,
        # Rows are numbered on one thread only, and the number is what finds a broken line in a large file.
        read_options=pyarrow.csv.ReadOptions(use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(delimiter=_delimiter(path), invalid_row_handler=note),
        convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(text, pa.string())),
    )
    if ragged:
        first = ragged[0]
        raise DataError(
            f"{path.name}, line {first.number}: expected {first.expected_columns} cells as in the header, "
            f"got {first.actual_columns} ({len(ragged)} such lines)"
        )
    return table


def _delimiter(path: Path) -> str:
    with pa.input_stream(path, compression="detect") as stream:
        start = bytes(stream.read(1 << 16))
    header = start.splitlines()[0] if start else b""
    return max(",;\t", key=lambda mark: header.count(mark.encode()))


def _plain(table: pa.Table) -> pa.Table:
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(field.type.value_type))
    return table.combine_chunks()


def column_of(table: pa.Table, name: str, *, source: str) -> pa.Array:
    """Return a column as one array; ``DataError`` with the nearest name when the file has no such column."""
    if name not in table.column_names:
        raise DataError(f"no column {name!r} in {source}{did_you_mean(name, table.column_names)}")
    return table.column(name).chunk(0)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'AGE'?"``, or what there is when nothing comes near."""
    known = list(known)
    # Compared in lower case, because case is the commonest mistake and weighs as much as any other letter.
    by_lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    if near:
        return f"; did you mean {by_lower[near[0]]!r}?"
    return f"; there are {listed(known)}"


def is_text(column: pa.Array) -> bool:
    """Return whether a column holds text."""
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def is_number(column: pa.Array) -> bool:
    """Return whether a column holds numbers or truth values; a column without any value counts as numbers."""
    kind = column.type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def numbers(column: pa.Array) -> npt.NDArray[np.float64]:
    """Return a numeric column as float64 with NaN where a value is missing."""
    values: npt.NDArray[np.float64] = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def listed(names: list[str], limit: int = 12) -> str:
    """Return quoted names with commas, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
