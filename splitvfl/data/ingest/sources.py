"""Rows out of many CSV and Parquet files, a chunk at a time, with the place of each row for messages.

CSV and TSV files may be compressed (``.gz``, ``.zst``). They are cut into blocks of whole lines, so that the line of a
cell that cannot be read is found by a second look at its block alone.
"""

from __future__ import annotations

import csv
import glob
import io
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from splitvfl.data.schema import Kind
from splitvfl.data.tables import CSV_SUFFIXES, PARQUET_SUFFIXES, did_you_mean, listed
from splitvfl.errors import DataError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

# Enough rows that the work per chunk hides the overhead, few enough that several chunks fit into memory.
BLOCK_BYTES = 16 << 20
BATCH_ROWS = 1 << 16
# A line that is longer than this is a file without line ends, or an unclosed quotation mark.
LONGEST_LINE = 64 << 20
# A column of text of which this share looks like numbers is taken for numbers with a mistake in them.
NUMBERS_IN_TEXT = 0.9

Types = Mapping[str, pa.DataType]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some consecutive rows of one file.

    Attributes:
        columns: Arrays by column name, of the types that were asked for.
        rows: Number of rows.
        file: The file.
        done_bytes: How much of the file has been read, in bytes on disk.
        place: Says where a row (from 0 in this chunk) stands: ``"clicks.csv, line 17"``.
    """

    columns: Mapping[str, pa.Array]
    rows: int
    file: Path
    done_bytes: int
    place: Callable[[int], str]


class Source(Protocol):
    """One file with rows."""

    path: Path
    names: tuple[str, ...]

    def infer(self, columns: Collection[str], text: Collection[str]) -> dict[str, Kind]:
        """Return what the cells of these columns hold, as far as the file shows it; ``text`` is taken as text."""
        ...

    def chunks(self, types: Types) -> Iterator[Chunk]:
        """Yield all rows, these columns only."""
        ...


def find_files(wanted: Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Return the files that names and shell-style patterns mean: patterns sorted, in the order given.

    Raises:
        DataError: If one of them means no file, or two of them the same.
    """
    found: list[Path] = []
    for file in wanted:
        name = os.fspath(file)
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


def open_sources(files: Sequence[Path], *, header: Sequence[str] | None = None) -> tuple[Source, ...]:
    """Return one source per file, all with the same columns.

    Args:
        files: CSV and Parquet files; the suffix decides.
        header: Names of the columns of CSV files that have no header line.

    Raises:
        DataError: If a file cannot be read, is empty, names a column twice, or has other columns than the first.
    """
    sources = tuple(_source(path, header) for path in files)
    for source in sources:
        _check_names(source, sources[0])
    return sources


def _source(path: Path, header: Sequence[str] | None) -> Source:
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSIONS else path.suffix
    if suffix.lower() in CSV_SUFFIXES:
        return CsvSource(path, header)
    if suffix.lower() in PARQUET_SUFFIXES and path.suffix not in COMPRESSIONS:
        return ParquetSource(path)
    expected = ", ".join(sorted(PARQUET_SUFFIXES | CSV_SUFFIXES))
    raise DataError(f"expected a file that ends in one of {expected} (.gz and .zst after CSV), got {path.name}")


def _check_names(source: Source, first: Source) -> None:
    repeated = sorted(name for name, times in Counter(source.names).items() if times > 1)
    if repeated:
        raise DataError(f"{source.path.name} names more than one column {listed(repeated)}")
    missing = [name for name in first.names if name not in source.names]
    extra = [name for name in source.names if name not in first.names]
    if missing:
        raise DataError(
            f"{source.path.name} has no column {missing[0]!r}, which {first.path.name} has"
            f"{did_you_mean(missing[0], extra) if extra else ''}; all files need the same columns"
        )
    if extra:
        raise DataError(
            f"{source.path.name} has a column {extra[0]!r}, which {first.path.name} has not; "
            "all files need the same columns"
        )


def chunks(sources: Sequence[Source], types: Types, *, kept: npt.NDArray[np.bool_] | None = None) -> Iterator[Chunk]:
    """Yield the rows of all files, in order: all, or those that are kept, by their number over all files."""
    start = 0
    for source in sources:
        for chunk in source.chunks(types):
            yield chunk if kept is None else _filtered(chunk, kept[start : start + chunk.rows])
            start += chunk.rows


def _filtered(chunk: Chunk, kept: npt.NDArray[np.bool_]) -> Chunk:
    if len(kept) < chunk.rows:
        raise DataError(f"{chunk.file.name} has more rows than when it was aligned; align again")
    rows = np.flatnonzero(kept)
    mask = pa.array(kept)
    columns = {name: column.filter(mask) for name, column in chunk.columns.items()}
    return Chunk(columns, len(rows), chunk.file, chunk.done_bytes, lambda row: chunk.place(int(rows[row])))


def cells_at(
    sources: Sequence[Source], column: str, kind: pa.DataType, rows: Sequence[int]
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
    """Return what columns hold: as the first file that shows it has it, and no other file contradicts.

    Whole numbers in one Parquet file and fractions in another are numbers. A column without any value counts as
    numbers. The cells of further CSV files are converted to what was found here, or are an error.

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
        # Parquet files say what they hold; CSV files are only looked at for what is not known yet.
        asked = columns if isinstance(source, ParquetSource) else [name for name in columns if name not in kinds]
        for name, kind in source.infer(asked, text).items():
            kinds[name] = _reconciled(name, kind, source, kinds.get(name, kind), shown_by.setdefault(name, source))
    if columns and not kinds:
        raise DataError(f"{sources[0].path.name} has a header and no rows, or no value in them")
    return {name: kinds.get(name, "number") for name in columns}


def check_kinds(sources: Sequence[Source], kinds: Mapping[str, Kind]) -> None:
    """Check that Parquet files hold these kinds, as far as text and numbers go; CSV cells are checked as they are read.

    Raises:
        DataError: If a column holds text where numbers are expected, the other way round, or something else.
    """
    for source in sources:
        if isinstance(source, ParquetSource):
            for name, kind in source.infer(list(kinds), ()).items():
                if (kind == "text") != (kinds[name] == "text") or (kinds[name] == "integer" and kind == "number"):
                    raise DataError(
                        f"column {name!r} of {source.path.name} holds {_word(kind)}, and {_word(kinds[name])} "
                        "in the files that were ingested before"
                    )


def _reconciled(name: str, kind: Kind, source: Source, before: Kind, first: Source) -> Kind:
    if kind == before:
        return kind
    if "text" in (kind, before):
        raise DataError(
            f"column {name!r} of {source.path.name} holds {_word(kind)}, and {_word(before)} in {first.path.name}"
        )
    return "number"


def _word(kind: Kind) -> str:
    return {"text": "text", "number": "numbers", "integer": "whole numbers", "truth": "truth values"}[kind]


def _kind_of(name: str, kind: pa.DataType, source: str) -> Kind:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return "truth"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    raise DataError(f"column {name!r} of {source} holds neither numbers nor text but {kind}; drop it")


class ParquetSource:
    """A Parquet file; rows are numbered from 0 in messages.

    Args:
        path: The file.

    Raises:
        DataError: If it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as file:
            self._schema = file.schema_arrow
        self.names: tuple[str, ...] = tuple(self._schema.names)

    def _open(self) -> pyarrow.parquet.ParquetFile:
        try:
            # Without pre-buffering, a row group larger than memory is read piece by piece.
            return pyarrow.parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=1 << 20)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path.name} could not be read: {error}") from error

    def infer(self, columns: Collection[str], text: Collection[str]) -> dict[str, Kind]:
        """Return the kinds that the file's schema states; columns of type null show nothing."""
        types = {name: self._schema.field(name).type for name in columns}
        return {
            name: _kind_of(name, kind, self.path.name) for name, kind in types.items() if not pa.types.is_null(kind)
        }

    def chunks(self, types: Types) -> Iterator[Chunk]:
        """Yield all rows, these columns only.

        Raises:
            DataError: If the file is damaged, or text in it is not UTF-8.
        """
        size = self.path.stat().st_size
        with self._open() as file:
            total, start = file.metadata.num_rows, 0
            batches = file.iter_batches(batch_size=BATCH_ROWS, columns=list(types))
            while (batch := self._next(batches)) is not None:
                yield Chunk(
                    {name: self._cast(batch.column(name), name, kind, start) for name, kind in types.items()},
                    batch.num_rows,
                    self.path,
                    size * (start + batch.num_rows) // max(total, 1),
                    self._placer(start),
                )
                start += batch.num_rows

    def _next(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        try:
            return next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path.name} could not be read: {error}") from error

    def _placer(self, start: int) -> Callable[[int], str]:
        return lambda row: f"{self.path.name}, row {start + row} (from 0)"

    def _cast(self, column: pa.Array, name: str, kind: pa.DataType, start: int) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            if pa.types.is_string(kind):
                column.validate(full=True)
            return column.cast(kind, safe=not pa.types.is_floating(kind))
        except pa.ArrowInvalid as error:
            place = self._placer(start)(_first_undecodable(column)) if pa.types.is_string(kind) else self.path.name
            what = "the text is not UTF-8" if pa.types.is_string(kind) else str(error)
            raise DataError(f"{place}, column {name!r}: {what}") from error


def _first_undecodable(column: pa.Array) -> int:
    cells = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()).to_pylist()
    return next((row for row, cell in enumerate(cells) if cell is not None and not _decodes(cell)), 0)


def _decodes(cell: bytes) -> bool:
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class _Block:
    """Whole lines of a CSV file, where the first of them stands, and how much of the file has been read."""

    data: bytes
    line: int
    done_bytes: int


class CsvSource:
    """A CSV or TSV file, compressed or not; lines are numbered from 1 in messages.

    The delimiter is whichever of comma, semicolon and tab the first line holds most. Empty cells, ``NA``, ``NaN`` and
    ``null`` are missing in a numeric column and text in a text column; empty lines are skipped.

    Args:
        path: The file.
        header: Names of its columns if it has no header line.

    Raises:
        DataError: If it is empty, cannot be read, is not UTF-8, or its first line does not fit ``header``.
    """

    def __init__(self, path: Path, header: Sequence[str] | None = None) -> None:
        self.path = path
        self._headless = header is not None
        first = self._first_line()
        self._delimiter = max(",;\t", key=first.count)
        cells = next(csv.reader([first], delimiter=self._delimiter))
        if header is not None and len(cells) != len(header):
            raise DataError(f"{path.name}, line 1: expected {len(header)} cells, as names were given, got {len(cells)}")
        self.names: tuple[str, ...] = tuple(cells if header is None else header)

    def _first_line(self) -> str:
        block = next(self._raw_blocks(1 << 16), None)
        if block is None:
            raise DataError(f"{self.path.name} is empty; expected a header line and rows")
        if block.data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{self.path.name} is UTF-16; expected UTF-8: convert it first")
        line = block.data.split(b"\n", 1)[0].removesuffix(b"\r")
        if b"\0" in line:
            raise DataError(f"{self.path.name}, line 1 holds zero bytes: UTF-16, or no text; expected UTF-8")
        if b"\r" in line:
            raise DataError(f"{self.path.name} ends its lines with carriage returns alone; expected line feeds")
        try:
            return line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path.name}, line 1: the text is not UTF-8 ({error.reason})") from error

    def infer(self, columns: Collection[str], text: Collection[str]) -> dict[str, Kind]:
        """Return the kinds that the first block with any value shows, column by column.

        Raises:
            DataError: If a column holds dates or the like, or nearly only numbers beside some text.
        """
        kinds: dict[str, Kind] = {name: "text" for name in columns if name in text}
        for block in self._blocks():
            unknown = [name for name in columns if name not in kinds]
            if not unknown:
                break
            table = self._table(block, dict.fromkeys(unknown))
            for name in unknown:
                column = table.column(name)
                if column.null_count == len(column):
                    continue
                if pa.types.is_binary(column.type):
                    self._table(block, {name: pa.string()})  # it is not UTF-8, and this says where
                kinds[name] = self._kind_of(name, column.type)
                if kinds[name] == "text":
                    self._check_text(name, column.combine_chunks(), block)
        return kinds

    def _kind_of(self, name: str, kind: pa.DataType) -> Kind:
        try:
            return _kind_of(name, kind, self.path.name)
        except DataError as error:
            raise DataError(f"{error}, or have it read as text") from None

    def _check_text(self, name: str, column: pa.Array, block: _Block) -> None:
        values = [value for value in pc.unique(column.slice(0, 10_000)).to_pylist() if value]
        odd = [value for value in values if not _is_number(value)]
        if 0 < len(odd) <= (1 - NUMBERS_IN_TEXT) * len(values):
            row = pc.index(column, odd[0]).as_py()
            raise DataError(
                f"{self._placer(block)(row)}, column {name!r}: {odd[0]!r} among numbers; correct it, leave the cell "
                "empty, drop the column, or have it read as text"
            )

    def chunks(self, types: Types) -> Iterator[Chunk]:
        """Yield all rows, these columns only.

        Raises:
            DataError: If a line is ragged, is not UTF-8, or holds a cell that is not of the type asked for.
        """
        for block in self._blocks():
            table = self._table(block, types)
            yield Chunk(
                {name: table.column(name).combine_chunks() for name in types},
                table.num_rows,
                self.path,
                block.done_bytes,
                self._placer(block),
            )

    def _raw_blocks(self, size: int) -> Iterator[_Block]:
        rest, line = b"", 1
        with pa.OSFile(os.fspath(self.path)) as raw, self._decompressed(raw) as stream:
            while data := self._read(stream, size):
                data = rest + data
                end = _end_of_lines(data)
                if end == 0 and len(data) > LONGEST_LINE:
                    end = data.rfind(b"\n") + 1
                if end == 0 and len(data) > LONGEST_LINE:
                    raise DataError(
                        f"{self.path.name}, line {line}: longer than {LONGEST_LINE >> 20} MiB; is a quotation mark "
                        "not closed, or is this no text file?"
                    )
                rest = data[end:]
                if end:
                    yield _Block(data[:end], line, raw.tell())
                    line += data.count(b"\n", 0, end)
            if rest:
                yield _Block(rest, line, raw.tell())

    def _blocks(self) -> Iterator[_Block]:
        """Yield the blocks without the header line and without those that are blank."""
        for block in self._raw_blocks(BLOCK_BYTES):
            if block.line == 1:
                block = self._without_header(block)
            if block.data and not block.data.isspace():
                yield block

    def _without_header(self, block: _Block) -> _Block:
        data = block.data.removeprefix(b"\xef\xbb\xbf")
        if self._headless:
            return _Block(data, 1, block.done_bytes)
        return _Block(data.partition(b"\n")[2], 2, block.done_bytes)

    def _decompressed(self, raw: pa.NativeFile) -> pa.NativeFile:
        compression = COMPRESSIONS.get(self.path.suffix)
        return raw if compression is None else pa.CompressedInputStream(raw, compression)

    def _read(self, stream: pa.NativeFile, size: int) -> bytes:
        try:
            return bytes(stream.read(size))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path.name} could not be read: {error}") from error

    def _table(self, block: _Block, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        self._check_quotes(block)
        try:
            return self._parsed(block.data, types)
        except pa.ArrowInvalid as error:
            raise self._mistake(block, types, error) from error

    def _check_quotes(self, block: _Block) -> None:
        """Refuse a quotation mark that is not closed: Arrow takes the lines that follow for one cell, and is silent."""
        if block.data.count(b'"') % 2 == 0:
            return
        text = io.StringIO(block.data.decode("utf-8", "replace"), newline="")
        reader = csv.reader(text, delimiter=self._delimiter, strict=True)
        before = 0
        try:
            for _ in reader:
                before = reader.line_num
        except csv.Error as error:
            raise DataError(
                f"{self.path.name}, line {block.line + before}: a quotation mark is not closed, or stands alone within "
                "others, where it must be doubled"
            ) from error

    def _parsed(self, data: bytes, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        return pyarrow.csv.read_csv(
            pa.BufferReader(_owned_by_arrow(data)),
            # One block, because a quoted line end must not fall between two.
            read_options=pyarrow.csv.ReadOptions(column_names=list(self.names), block_size=len(data) + 1),
            parse_options=pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=list(types),
                column_types={name: kind for name, kind in types.items() if kind is not None},
            ),
        )

    def _mistake(self, block: _Block, types: Mapping[str, pa.DataType | None], error: Exception) -> DataError:
        """Return what is wrong in a block that cannot be parsed: the first line with which it cannot."""
        ends = (np.flatnonzero(np.frombuffer(block.data, np.uint8) == ord("\n")) + 1).tolist()
        if not block.data.endswith(b"\n"):
            ends.append(len(block.data))
        good, bad = 0, len(ends)
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (good, middle) if self._fails(block.data[: ends[middle - 1]], types) else (middle, bad)
        line = block.data[ends[bad - 2] if bad > 1 else 0 : ends[bad - 1]]
        return self._mistake_in_line(line, f"{self.path.name}, line {block.line + bad - 1}", types, error)

    def _fails(self, data: bytes, types: Mapping[str, pa.DataType | None]) -> bool:
        try:
            if data.strip():
                self._parsed(data, types)
        except pa.ArrowInvalid:
            return True
        return False

    def _mistake_in_line(
        self, line: bytes, place: str, types: Mapping[str, pa.DataType | None], error: Exception
    ) -> DataError:
        cells = next(csv.reader([line.decode("utf-8", "replace")], delimiter=self._delimiter), [])
        if len(cells) != len(self.names):
            return DataError(f"{place}: expected {len(self.names)} cells as in the header, got {len(cells)}")
        for name, kind in types.items():
            if self._fails(line, {name: kind}):
                cell = cells[self.names.index(name)]
                if "\N{REPLACEMENT CHARACTER}" in cell and not _decodes(line):
                    return DataError(f"{place}, column {name!r}: the text is not UTF-8: {cell!r}")
                return DataError(f"{place}, column {name!r}: expected {_expected(kind)}, got {cell!r}")
        return DataError(f"{place}: {error}")

    def _placer(self, block: _Block) -> Callable[[int], str]:
        return lambda row: f"{self.path.name}, line {block.line + self._lines_before(block.data, row)}"

    def _lines_before(self, data: bytes, row: int) -> int:
        """Return how many lines of a block come before a row: empty lines, and line ends in quotation marks, count."""
        text = io.StringIO(data.decode("utf-8", "replace"), newline="")
        reader = csv.reader(text, delimiter=self._delimiter)
        before = 0
        try:
            for cells in reader:
                row -= bool(cells)
                if row < 0:
                    break
                before = reader.line_num
        except csv.Error:  # a quotation mark that Arrow takes more lightly
            return before
        return before


def _owned_by_arrow(data: bytes) -> pa.Buffer:
    """Return a copy that any thread of Arrow's may free: one that frees Python's bytes at exit aborts the process."""
    buffer = pa.allocate_buffer(len(data))
    np.frombuffer(buffer, np.uint8)[:] = np.frombuffer(data, np.uint8)
    return buffer


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _expected(kind: pa.DataType | None) -> str:
    if kind is None or pa.types.is_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "true or false, as in the first rows"
    number = "a whole number" if pa.types.is_integer(kind) else "a number"
    return f"{number}, as in the first rows (or have the column read as text)"


def _end_of_lines(data: bytes, tries: int = 1000) -> int:
    """Return where the last whole line ends: at a line end outside quotation marks, if one is near."""
    last = data.rfind(b"\n") + 1
    end, quotes = last, data.count(b'"', 0, last)
    for _ in range(tries if quotes % 2 else 0):
        before = data.rfind(b"\n", 0, end - 1) + 1 if end else 0
        quotes -= data.count(b'"', before, end)
        end = before
        if quotes % 2 == 0:
            return end
    # A quotation mark within a cell counts for nothing, and so there may be an odd number of them.
    return last
