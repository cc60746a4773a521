"""Rows of CSV and TSV files, which may be compressed (``.gz``, ``.zst``).

Files are cut into blocks of whole lines, so that the line of a cell that cannot be read is found by a second look at
its block alone.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from splitvfl.data.cell_format import (
    AS_USUAL,
    CellFormat,
    Mistake,
    is_readable,
    no_number,
    numbers_in_text,
    read_numbers,
    refused,
    without_gaps,
    without_sentinels,
)
from splitvfl.data.chunks import Chunk, Kind, Types, decodes, kind_of
from splitvfl.data.csv_layout import in_words, layout_of
from splitvfl.data.spelling import setting
from splitvfl.data.tables import is_number
from splitvfl.errors import DataError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

# Enough rows that the work per block hides the overhead, few enough that several blocks fit into memory.
BLOCK_BYTES = 16 << 20
# A line that is longer than this is a file without line ends, or an unclosed quotation mark.
LONGEST_LINE = 64 << 20


@dataclass(frozen=True)
class _Block:
    """Whole lines of a CSV file, where the first of them stands, and how much of the file has been read."""

    data: bytes
    line: int
    done_bytes: int


class _Row(NamedTuple):
    """A row of a block: the line that it begins in, from 0, and its bytes."""

    line: int
    start: int
    end: int


class CsvSource:
    """A CSV or TSV file, compressed or not; lines are numbered from 1 in messages.

    Delimiter and header are found by :func:`splitvfl.data.csv_layout.layout_of`; columns at the end without a name and
    without any value are none. What cells mean is said in :mod:`splitvfl.data.cell_format`; empty lines are skipped.

    Args:
        path: The file.
        header: Names of its columns if it has no header line.

    Attributes:
        name: Name of the file.
        size: Its size, in bytes on disk.
        names: Names of its columns.
        categories: None: nothing in such a file says so.
        typed: ``False``: cells are text, and are looked at.
        written: How cells are written.
        declared: Columns that are no numbers though their text may look so.

    Raises:
        DataError: If it is empty, cannot be read, is not UTF-8, or its first line does not fit ``header`` or others.
    """

    typed = False
    categories: frozenset[str] = frozenset()

    def __init__(self, path: Path, header: Sequence[str] | None = None) -> None:
        self._path = path
        self.written: CellFormat = AS_USUAL
        self.declared: frozenset[str] = frozenset()
        self.name = path.name
        self.size = path.stat().st_size
        self._header_lines = 0
        self._line_ends = b"\n"
        self._check_first_line()
        text = self._first_block().decode("utf-8-sig", "replace")
        layout = layout_of(text, name=self.name, header=header)
        self._delimiter = layout.delimiter
        # A quoted line end is part of a cell for Arrow too.
        self._form = pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        cells, lines = self._first_row(text, layout.skipped)
        # Columns that are read only to see that nothing is in them.
        self._unnamed = tuple(f"\0{place}" for place in range(layout.trailing))
        if header is None:
            self.names: tuple[str, ...] = tuple(cells[: len(cells) - len(self._unnamed)])
            self._header_lines = lines
            return
        if len(cells) != len(header):
            raise DataError(
                f"{path.name}, line {layout.skipped + 1}: expected {len(header)} cells, as names were given, got "
                f"{len(cells)}"
            )
        self.names = tuple(header)
        self._header_lines = layout.skipped

    @property
    def delimiter(self) -> str:
        """What separates cells."""
        return self._delimiter

    @property
    def _all_names(self) -> list[str]:
        """Names of the columns, and of those that have none."""
        return [*self.names, *self._unnamed]

    def _check_first_line(self) -> None:
        """Check the first line that is not blank; on the way it is seen how lines end."""
        data = self._first_block()
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{self.name} is UTF-16; expected UTF-8: convert it first")
        if b"\n" not in data:
            self._line_ends = b"\r"
        lines = (line.removesuffix(b"\r") for line in data.split(self._line_ends))
        line = next(filter(None, lines), b"")
        if b"\0" in line:
            raise DataError(f"{self.name}, line 1 holds zero bytes: UTF-16, or no text; expected UTF-8")
        if b"\r" in line:
            raise DataError(f"{self.name} ends some lines with carriage returns alone; expected line feeds")
        try:
            line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.name}, line 1: the text is not UTF-8 ({error.reason}){_if_latin(self.name)}"
            ) from error

    def _first_row(self, text: str, skipped: int) -> tuple[list[str], int]:
        """Return the cells of the first row behind so many lines, and the number of lines to its end."""
        lines = io.StringIO(text, newline="\n")
        for _ in range(skipped):
            lines.readline()
        reader = csv.reader(lines, delimiter=self._delimiter)
        return next((cells for cells in reader if cells), []), skipped + reader.line_num

    def _first_block(self) -> bytes:
        block = next(self._raw_blocks(1 << 16), None)
        if block is None:
            raise DataError(f"{self.name} is empty; expected a header line and rows")
        return block.data

    def infer(self, columns: Collection[str], text: Collection[str]) -> dict[str, Kind]:
        """Return the kinds that the first block with any value shows, column by column.

        Raises:
            DataError: If a column holds dates or the like, or numbers beside some text.
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
                kinds[name] = kind_of(
                    name, column.type, self.name, hint=f", or have it read as text ({setting('text_columns')})"
                )
                if kinds[name] == "text" and name not in self.declared:
                    kinds[name] = self._kind_of_text(name, column.combine_chunks(), block)
        return kinds

    def _kind_of_text(self, name: str, column: pa.Array, block: _Block) -> Kind:
        found = numbers_in_text(column, self.written)
        if found is None:
            return "text"
        place = partial(self._place, block)
        if not is_readable(found, self.written, typed=False):
            raise refused(name, found, place, self.written, self.name)
        numbers = read_numbers(column, self.written)
        if isinstance(numbers, Mistake):
            raise no_number(name, numbers, place, self.written)
        return "integer" if pa.types.is_integer(numbers.type) else "number"

    def chunks(self, types: Types) -> Iterator[Chunk]:
        """Yield all rows, these columns only.

        Raises:
            DataError: If a line is ragged, is not UTF-8, or holds a cell that is not of the type asked for.
        """
        yield from self.as_they_look({name: pa.string() if kind is None else kind for name, kind in types.items()})

    def as_they_look(self, types: Mapping[str, pa.DataType | None]) -> Iterator[Chunk]:
        """Yield the same; a column without a type has in every chunk the one that its cells there look like."""
        for block in self._blocks():
            table = self._table(block, types)
            yield Chunk(
                {name: table.column(name).combine_chunks() for name in types},
                table.num_rows,
                self.name,
                block.done_bytes,
                partial(self._place, block),
            )

    def table(self, text: Collection[str]) -> pa.Table:
        """Return all rows and columns, each of the type that all of its cells have.

        Args:
            text: Columns to read as text, whatever their cells look like.

        Raises:
            DataError: If a line is ragged.
        """
        try:
            with pa.OSFile(os.fspath(self._path)) as raw, self._decompressed(raw) as stream:
                table = pyarrow.csv.read_csv(
                    stream,
                    # A thread of Arrow's that frees what Python read aborts a process that ends meanwhile.
                    read_options=pyarrow.csv.ReadOptions(
                        column_names=self._all_names, skip_rows=self._header_lines, use_threads=False
                    ),
                    parse_options=self._form,
                    convert_options=self._conversion(
                        dict.fromkeys(text, pa.string()) | dict.fromkeys(self._unnamed, pa.null())
                    ),
                ).drop_columns(list(self._unnamed))
        except (pa.ArrowException, OSError) as error:
            for block in self._blocks():  # one of them says where it is
                self._table(block, {})
            raise DataError(f"{self.name} could not be read: {error}") from error
        for field in table.schema:
            if pa.types.is_binary(field.type):
                for block in self._blocks():  # it is not UTF-8, and this says where
                    self._table(block, {field.name: pa.string()})
        return table

    def place(self, row: int) -> str:
        """Return where a row of the whole file stands."""
        for block in self._blocks():
            rows = self._table(block, {self.names[0]: pa.string()}).num_rows
            if row < rows:
                return self._place(block, row)
            row -= rows
        return self.name

    def _conversion(
        self, types: Mapping[str, pa.DataType], *, columns: Sequence[str] | None = None
    ) -> pyarrow.csv.ConvertOptions:
        return pyarrow.csv.ConvertOptions(
            include_columns=columns,
            column_types=types,
            null_values=list(self.written.gaps),
            decimal_point=self.written.style.decimal,
        )

    def _raw_blocks(self, size: int) -> Iterator[_Block]:
        rest, line = b"", 1
        with pa.OSFile(os.fspath(self._path)) as raw, self._decompressed(raw) as stream:
            while data := self._read(stream, size):
                data = rest + (data if self._line_ends == b"\n" else data.replace(b"\r", b"\n"))
                end = _end_of_lines(data)
                if end == 0 and len(data) > LONGEST_LINE:
                    end = data.rfind(b"\n") + 1
                if end == 0 and len(data) > LONGEST_LINE:
                    raise DataError(
                        f"{self.name}, line {line}: longer than {LONGEST_LINE >> 20} MiB; is a quotation mark "
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
        for _ in range(self._header_lines):
            data = data.partition(b"\n")[2]
        return _Block(data, 1 + self._header_lines, block.done_bytes)

    def _decompressed(self, raw: pa.NativeFile) -> pa.NativeFile:
        compression = COMPRESSIONS.get(self._path.suffix)
        return raw if compression is None else pa.CompressedInputStream(raw, compression)

    def _read(self, stream: pa.NativeFile, size: int) -> bytes:
        try:
            return bytes(stream.read(size))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.name} could not be read: {error}") from error

    def _table(self, block: _Block, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        self._check_quotes(block)
        try:
            table = self._parsed(block.data, types)
        except pa.ArrowInvalid as error:
            return self._read_strictly(block, types, error)
        return self._with_gaps(table, types)

    def _read_strictly(self, block: _Block, types: Mapping[str, pa.DataType | None], error: Exception) -> pa.Table:
        """Return a block in which Arrow does not find the numbers that are asked for: they are read from its text."""
        numbers = {name: kind for name, kind in types.items() if kind is not None and _is_number_type(kind)}
        looked: dict[str, pa.DataType | None] = {**types, **dict.fromkeys(numbers)}
        try:
            table = self._parsed(block.data, looked)
        except pa.ArrowInvalid as other:
            raise self._mistake(block, looked, other) from other
        columns = {}
        for name in types:
            column = table.column(name).combine_chunks()
            if name in numbers and column.type != numbers[name]:
                if pa.types.is_binary(column.type):
                    raise self._mistake(block, {name: pa.string()}, error) from error
                column = self._as_number(name, column, numbers[name], block)
            columns[name] = column
        return self._with_gaps(pa.table(columns), types)

    def _as_number(self, name: str, column: pa.Array, kind: pa.DataType, block: _Block) -> pa.Array:
        """Return a column of another type than is wanted as numbers."""
        found = column
        if pa.types.is_boolean(column.type) or not is_number(column):
            cells = column if pa.types.is_string(column.type) else self._cells(block, name)
            read = read_numbers(cells, self.written)
            if isinstance(read, Mistake):
                raise self._no_number(name, read, kind, block)
            found = read
        try:
            return found.cast(kind, safe=not pa.types.is_floating(kind))
        except pa.ArrowInvalid as error:
            values = found.to_numpy(zero_copy_only=False)
            row = int((np.isfinite(values) & ((values != np.trunc(values)) | (np.abs(values) >= 2.0**63))).argmax())
            mistake = Mistake(row, self._cells(block, name)[row].as_py(), "")
            raise self._no_number(name, mistake, kind, block) from error

    def _cells(self, block: _Block, name: str) -> pa.Array:
        """Return the text of a column's cells."""
        return self._parsed(block.data, {name: pa.string()}).column(name).combine_chunks()

    def _no_number(self, name: str, mistake: Mistake, kind: pa.DataType, block: _Block) -> DataError:
        place = f"{self._place(block, mistake.row)}, column {name!r}"
        return DataError(f"{place}: expected {_expected(kind)}, got {mistake.cell!r}{mistake.advice(self.written)}")

    def _with_gaps(self, table: pa.Table, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        """Return a block without what says that nothing is known, in columns that hold something else too."""
        if not self.written.missing_values:
            return table
        columns = {}
        for name in types:
            column = table.column(name).combine_chunks()
            if pa.types.is_string(column.type):
                column = column if name in self.written.text else without_gaps(column, self.written)
            else:
                column = without_sentinels(column, self.written)
            columns[name] = column
        return pa.table(columns)

    def _check_quotes(self, block: _Block) -> None:
        """Refuse a quotation mark that is not closed: Arrow takes the lines that follow for one cell, and is silent."""
        if block.data.count(b'"') % 2 == 0:
            return
        text = io.StringIO(block.data.decode("utf-8", "replace"), newline="\n")
        reader = csv.reader(text, delimiter=self._delimiter, strict=True)
        before = 0
        try:
            for _ in reader:
                before = reader.line_num
        except csv.Error as error:
            raise DataError(
                f"{self.name}, line {block.line + before}: a quotation mark is not closed, or stands alone within "
                "others, where it must be doubled"
            ) from error

    def _parsed(self, data: bytes, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(_owned_by_arrow(data)),
            # One block, because a quoted line end must not fall between two.
            read_options=pyarrow.csv.ReadOptions(column_names=self._all_names, block_size=len(data) + 1),
            parse_options=self._form,
            convert_options=self._conversion(
                {name: kind for name, kind in types.items() if kind is not None}
                | dict.fromkeys(self._unnamed, pa.null()),
                columns=[*types, *self._unnamed] if types else [],
            ),
        )
        return table.drop_columns(list(self._unnamed))

    def _mistake(self, block: _Block, types: Mapping[str, pa.DataType | None], error: Exception) -> DataError:
        """Return what is wrong in a block that cannot be parsed: the first line with which it cannot."""
        rows = self._rows_of(block)
        good, bad = 0, len(rows)
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (good, middle) if self._fails(block.data[: rows[middle - 1].end], types) else (middle, bad)
        row = rows[bad - 1]
        place = f"{self.name}, line {block.line + row.line}"
        return self._mistake_in_row(block.data[row.start : row.end], place, types, error)

    def _rows_of(self, block: _Block) -> list[_Row]:
        """Return the rows of a block; one with line ends in quotation marks has several lines."""
        ends = [0, *(np.flatnonzero(np.frombuffer(block.data, np.uint8) == ord("\n")) + 1).tolist()]
        if ends[-1] < len(block.data):
            ends.append(len(block.data))
        lines = (block.data[start:end].decode("utf-8", "replace") for start, end in pairwise(ends))
        reader = csv.reader(lines, delimiter=self._delimiter)
        rows, before = [], 0
        with suppress(csv.Error):  # Arrow takes it more lightly
            for _ in reader:
                rows.append(_Row(before, ends[before], ends[reader.line_num]))
                before = reader.line_num
        if before < len(ends) - 1:
            rows += [_Row(line, ends[line], ends[line + 1]) for line in range(before, len(ends) - 1)]
        return rows

    def _fails(self, data: bytes, types: Mapping[str, pa.DataType | None]) -> bool:
        try:
            if data.strip():
                self._parsed(data, types)
        except pa.ArrowInvalid:
            return True
        return False

    def _mistake_in_row(
        self, row: bytes, place: str, types: Mapping[str, pa.DataType | None], error: Exception
    ) -> DataError:
        text = io.StringIO(row.decode("utf-8", "replace"), newline="\n")
        cells = next(csv.reader(text, delimiter=self._delimiter), [])
        expected = len(self._all_names)
        if len(cells) != expected:
            return DataError(f"{place}: expected {expected} cells as in the header, got {len(cells)}")
        if any(cells[len(self.names) :]):
            return DataError(
                f"{place}: expected nothing behind the last {in_words(self._delimiter)}, as in the first lines, got "
                f"{cells[-1]!r}; give that column a name in the header"
            )
        suspects = list(types)
        while len(suspects) > 1:  # halved: a line may have many cells
            half = suspects[: len(suspects) // 2]
            suspects = half if self._fails(row, {name: types[name] for name in half}) else suspects[len(half) :]
        for name in suspects:
            kind = types[name]
            if self._fails(row, {name: kind}):
                cell = cells[self.names.index(name)]
                if "\N{REPLACEMENT CHARACTER}" in cell and not decodes(row):
                    return DataError(f"{place}, column {name!r}: the text is not UTF-8: {cell!r}{_if_latin(self.name)}")
                return DataError(f"{place}, column {name!r}: expected {_expected(kind)}, got {cell!r}")
        return DataError(f"{place}: {error}")

    def _place(self, block: _Block, row: int) -> str:
        """Return where a row of a block stands: empty lines, and line ends in quotation marks, count as lines."""
        text = io.StringIO(block.data.decode("utf-8", "replace"), newline="\n")
        reader = csv.reader(text, delimiter=self._delimiter)
        before = 0
        with suppress(csv.Error):  # a quotation mark that Arrow takes more lightly
            for cells in reader:
                row -= bool(cells)
                if row < 0:
                    break
                before = reader.line_num
        return f"{self.name}, line {block.line + before}"


def _if_latin(name: str) -> str:
    """Return what to do about a file that is not UTF-8: nearly always it comes from Windows."""
    return f"; if it is Latin-1, convert it: iconv -f WINDOWS-1252 -t UTF-8 {name} > utf8-{name}"


def _owned_by_arrow(data: bytes) -> pa.Buffer:
    """Return a copy that any thread of Arrow's may free: one that frees Python's bytes at exit aborts the process."""
    buffer = pa.allocate_buffer(len(data))
    np.frombuffer(buffer, np.uint8)[:] = np.frombuffer(data, np.uint8)
    return buffer


def _is_number_type(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _expected(kind: pa.DataType | None) -> str:
    if kind is None or pa.types.is_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "true or false, as in the first rows"
    number = "a whole number" if pa.types.is_integer(kind) else "a number"
    return f"{number}, as in the first rows (or have the column read as text: {setting('text_columns')})"


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
