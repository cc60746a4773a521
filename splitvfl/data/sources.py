"""Files of several forms as one table: found, opened, compared, and read whole or a chunk at a time."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.data.arrow_source import (
    PARQUET_SUFFIXES,
    ArrowSource,
    FileSource,
    ParquetSource,
    TableSource,
)
from splitvfl.data.arrow_table import as_arrow
from splitvfl.data.cell_format import AS_USUAL, CellFormat, Origin
from splitvfl.data.chunks import Chunk, Kind, Source, Types
from splitvfl.data.csv_source import COMPRESSIONS, CsvSource
from splitvfl.data.tables import did_you_mean, listed
from splitvfl.errors import DataError

CSV_SUFFIXES = {".csv", ".tsv", ".txt", ".data"}
# What a table in memory is called in messages.
TABLE_NAME = "the table"
TYPED_SUFFIXES: Mapping[str, type[FileSource]] = {
    **dict.fromkeys(PARQUET_SUFFIXES, ParquetSource),
    ".arrow": ArrowSource,
    ".feather": ArrowSource,
}


def open_all(
    source: object,
    *,
    header: Sequence[str] | None = None,
    called: str | None = None,
    nested: bool = False,
    written: CellFormat = AS_USUAL,
) -> tuple[Source, ...]:
    """Return the sources of rows that a :class:`splitvfl.data.spec.TableSpec` names: files, or a table in memory.

    Args:
        source: A file; several, or patterns of them, with the same columns; or a table, see
            :func:`splitvfl.data.arrow_table.as_arrow`.
        header: Names of the columns of CSV files that have no header line.
        called: What to call a table in memory in messages; default :data:`TABLE_NAME`.
        nested: Whether lists and other nested values stay as they are.
        written: How cells are written.

    Raises:
        ArgumentError: If it is neither.
        DataError: If a file or a column cannot be read; a file is empty, names a column twice, or has other columns
            than the first.
    """
    if isinstance(source, str | os.PathLike):
        source = [source]
    if isinstance(source, list | tuple):
        sources = [_source(path, header, nested) for path in find_files(source)]
    else:
        table = as_arrow(source, called=called or "source", nested=nested)
        sources = [TableSource(table, called or TABLE_NAME, nested=nested)]
    for one in sources:
        one.written = written
        _check_names(one, sources[0])
    return tuple(sources)


def find_files(wanted: Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Return the files that names and shell-style patterns mean: patterns sorted, in the order given.

    Raises:
        DataError: If one of them means no file, or two of them the same.
    """
    found: list[Path] = []
    for file in wanted:
        name = os.path.expanduser(file)
        hits = [name] if os.path.isfile(name) else sorted(filter(os.path.isfile, glob.glob(name)))
        if not hits:
            raise DataError(f"expected a CSV or Parquet file at {name}, and there is none")
        found += map(Path, hits)
    if not found:
        raise DataError("expected one file at least, got none")
    repeated = [path.name for path, times in Counter(path.resolve() for path in found).items() if times > 1]
    if repeated:
        raise DataError(f"{listed(repeated)} was given more than once; its records would be counted twice")
    return tuple(found)


def _source(path: Path, header: Sequence[str] | None, nested: bool) -> Source:
    bare = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    if bare.suffix.lower() in CSV_SUFFIXES:
        return CsvSource(path, header)
    if path.suffix.lower() in TYPED_SUFFIXES:
        return TYPED_SUFFIXES[path.suffix.lower()](path, nested=nested)
    expected = ", ".join(sorted({*TYPED_SUFFIXES, *CSV_SUFFIXES}))
    raise DataError(f"expected a file that ends in one of {expected} (.gz and .zst after CSV), got {path.name}")


def _check_names(source: Source, first: Source) -> None:
    repeated = sorted(name for name, times in Counter(source.names).items() if times > 1)
    if repeated:
        raise DataError(f"{source.name} names more than one column {listed(repeated)}")
    ours, theirs = frozenset(source.names), frozenset(first.names)
    missing = [name for name in first.names if name not in ours]
    extra = [name for name in source.names if name not in theirs]
    if missing:
        raise DataError(
            f"{source.name} has no column {missing[0]!r}, which {first.name} has"
            f"{did_you_mean(missing[0], extra) if extra else ''}; all files need the same columns"
        )
    if extra:
        raise DataError(
            f"{source.name} has a column {extra[0]!r}, which {first.name} has not; all files need the same columns"
        )


def read_table(path: Path, *, text: Collection[str] = ()) -> pa.Table:
    """Return the table in one file; see :func:`read_whole`.

    Raises:
        DataError: If there is no such file, or it cannot be read.
    """
    return read_whole(open_one(path), text=text)


def open_one(
    source: object,
    *,
    header: Sequence[str] | None = None,
    called: str | None = None,
    written: CellFormat = AS_USUAL,
) -> Source:
    """Return a source that is one file, or a table in memory; arguments and errors as of :func:`open_all`."""
    sources = open_all(source, header=header, called=called, written=written)
    if len(sources) > 1:
        raise DataError(f"expected one file, got {listed([one.name for one in sources])}")
    return sources[0]


def read_whole(source: Source, *, text: Collection[str] = ()) -> pa.Table:
    """Return all of a source as a table, its columns in one chunk each.

    Columns of a CSV file have the type that all their cells have, others the one that
    :mod:`splitvfl.data.plain_columns` says.

    Args:
        source: The source.
        text: Columns of a CSV file to read as text, whatever their cells look like.

    Raises:
        DataError: If it cannot be read, or has no rows.
    """
    table = source.table(text)
    if table.num_rows == 0:
        raise DataError(f"{source.name} has a header and no rows")
    return table.combine_chunks()


def origin_of(source: Source) -> Origin:
    """Return where a table comes from that was read as a whole."""
    return Origin(source.name, source.place, source.typed, not isinstance(source, TableSource))


def chunks(sources: Sequence[Source], types: Types, *, kept: npt.NDArray[np.bool_] | None = None) -> Iterator[Chunk]:
    """Yield the rows of all files, in order: all, or those that are kept, by their number over all files."""
    start = done = 0
    for source in sources:
        for chunk in source.chunks(types):
            chunk = replace(chunk, done_bytes=done + chunk.done_bytes)
            yield chunk if kept is None else _filtered(chunk, kept[start : start + chunk.rows])
            start += chunk.rows
        done += source.size


def _filtered(chunk: Chunk, kept: npt.NDArray[np.bool_]) -> Chunk:
    if len(kept) < chunk.rows:
        raise DataError(f"{chunk.source} has more rows than when it was aligned; align again")
    rows = np.flatnonzero(kept)
    mask = pa.array(kept)
    columns = {name: column.filter(mask) for name, column in chunk.columns.items()}
    return replace(chunk, columns=columns, rows=len(rows), place=lambda row: chunk.place(int(rows[row])))


def cells_at(
    sources: Sequence[Source], column: str, kind: pa.DataType | None, rows: Sequence[int]
) -> list[tuple[str, object]]:
    """Return place and value of a column in some rows, ascending and counted over all files, by a look at all."""
    found: list[tuple[str, object]] = []
    start = 0
    for chunk in chunks(sources, {column: kind}):
        inside = [row - start for row in rows if start <= row < start + chunk.rows]
        found += [(chunk.place(row), chunk.columns[column][row].as_py()) for row in inside]
        start += chunk.rows
    return found


def infer_kinds(sources: Sequence[Source], columns: Sequence[str], *, text: Collection[str]) -> dict[str, Kind]:
    """Return what columns hold: see :func:`known_kinds`. A column without any value counts as numbers."""
    kinds = known_kinds(sources, columns, text=text)
    return {name: kinds.get(name, "number") for name in columns}


def known_kinds(sources: Sequence[Source], columns: Sequence[str], *, text: Collection[str]) -> dict[str, Kind]:
    """Return what columns hold: as the first file that shows it has it, and no other file contradicts.

    Whole numbers in one Parquet file and fractions in another are numbers. A column without any value is left out. The
    cells of further CSV files are converted to what was found here, or are an error.

    Args:
        sources: The files.
        columns: Columns that are needed.
        text: Columns of CSV files to take as text whatever they look like.

    Raises:
        DataError: If a column holds neither numbers nor text, or text in one file and numbers in another; or if there
            are no rows.
    """
    kinds: dict[str, Kind] = {}
    shown_by: dict[str, Source] = {}
    for source in sources:
        # Typed columns say what they hold; cells of text are only looked at for what is not known yet.
        asked = columns if source.typed else [name for name in columns if name not in kinds]
        for name, kind in source.infer(asked, text).items():
            kinds[name] = _reconciled(name, kind, source, kinds.get(name, kind), shown_by.setdefault(name, source))
    if columns and not kinds:
        raise DataError(f"{sources[0].name} has a header and no rows, or no value in them")
    return kinds


def check_kinds(sources: Sequence[Source], kinds: Mapping[str, Kind]) -> None:
    """Check that typed columns hold these kinds, as far as text and numbers go; CSV cells are checked as they are read.

    Raises:
        DataError: If a column holds text where numbers are expected, the other way round, or something else.
    """
    for source in sources:
        if source.typed:
            text = [name for name, kind in kinds.items() if kind == "text"]
            for name, kind in source.infer(list(kinds), text).items():
                if (kind == "text") != (kinds[name] == "text") or (kinds[name] == "integer" and kind == "number"):
                    raise DataError(
                        f"column {name!r} of {source.name} holds {kind_in_words(kind)}, and "
                        f"{kind_in_words(kinds[name])} "
                        "in the files that were ingested before"
                    )


def _reconciled(name: str, kind: Kind, source: Source, before: Kind, first: Source) -> Kind:
    common = common_kind(kind, before)
    if common is None:
        raise DataError(
            f"column {name!r} of {source.name} holds {kind_in_words(kind)}, and {kind_in_words(before)} in {first.name}"
        )
    return common


def common_kind(one: Kind, other: Kind) -> Kind | None:
    """Return what a column holds that holds these in two places; ``None`` where one is text and the other is not."""
    if one == other:
        return one
    return None if "text" in (one, other) else "number"


def kind_in_words(kind: Kind) -> str:
    """Return what a column holds, in words."""
    return {"text": "text", "number": "numbers", "integer": "whole numbers", "truth": "truth values"}[kind]
