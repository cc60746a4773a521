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
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from splitvfl.data.chunks import Chunk, Kind, Types, decodes, kind_of
from splitvfl.data.spelling import setting
from splitvfl.errors import DataError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

# Enough rows that the work per block hides the overhead, few enough that several blocks fit into memory.
BLOCK_BYTES = 16 << 20
# A line that is longer than this is a file without line ends, or an unclosed quotation mark.
LONGEST_LINE = 64 << 20
# A column of text of which this share looks like numbers is taken for numbers with a mistake in them.
NUMBERS_IN_TEXT = 0.9


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

    Attributes:
        name: Name of the file.
        size: Its size, in bytes on disk.
        names: Names of its columns.
        typed: ``False``: cells are text, and are looked at.

    Raises:
        DataError: If it is empty, cannot be read, is not UTF-8, or its first line does not fit ``header``.
    """

    typed = False

    def __init__(self, path: Path, header: Sequence[str] | None = None) -> None:
        self._path = path
        self.name = path.name
        self.size = path.stat().st_size
        self._header_lines = 0
        self._line_ends = b"\n"
        first = self._first_line()
        self._delimiter = max(",;\t", key=first.count)
        # A quoted line end is part of a cell for Arrow too.
        self._form = pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        cells, lines = self._first_row()
        if header is None:
            self.names: tuple[str, ...] = tuple(cells)
            self._header_lines = lines
            return
        if len(cells) != len(header):
            raise DataError(f"{path.name}, line 1: expected {len(header)} cells, as names were given, got {len(cells)}")
        self.names = tuple(header)

    def _first_line(self) -> str:
        """Return the first line that is not blank; on the way it is seen how lines end."""
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
            return line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.name}, line 1: the text is not UTF-8 ({error.reason}){_if_latin(self.name)}"
            ) from error

    def _first_row(self) -> tuple[list[str], int]:
        """Return the cells of the first row, and the number of lines to its end."""
        text = io.StringIO(self._first_block().decode("utf-8-sig", "replace"), newline="")
        reader = csv.reader(text, delimiter=self._delimiter)
        return next((cells for cells in reader if cells), []), reader.line_num

    def _first_block(self) -> bytes:
        block = next(self._raw_blocks(1 << 16), None)
        if block is None:
            raise DataError(f"{self.name} is empty; expected a header line and rows")
        return block.data

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
                kinds[name] = kind_of(
                    name, column.type, self.name, hint=f", or have it read as text ({setting('text_columns')})"
                )
                if kinds[name] == "text":
                    self._check_text(name, column.combine_chunks(), block)
        return kinds

    def _check_text(self, name: str, column: pa.Array, block: _Block) -> None:
        values = [value for value in pc.unique(column.slice(0, 10_000)).to_pylist() if value]
        odd = [value for value in values if not _is_number(value)]
        if 0 < len(odd) <= (1 - NUMBERS_IN_TEXT) * len(values):
            row = pc.index(column, odd[0]).as_py()
            raise DataError(
                f"{self._place(block, row)}, column {name!r}: {odd[0]!r} among numbers; correct it, leave the cell "
                f"empty, leave the column out ({setting('drop')}), or have it read as text ({setting('text_columns')})"
            )

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
                        column_names=list(self.names), skip_rows=self._header_lines, use_threads=False
                    ),
                    parse_options=self._form,
                    convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(text, pa.string())),
                )
        except (pa.ArrowException, OSError) as error:
            for block in self._blocks():  # one of them says where it is
                self._table(block, {})
            raise DataError(f"{self.name} could not be read: {error}") from error
        for field in table.schema:
            if pa.types.is_binary(field.type):
                for block in self._blocks():  # it is not UTF-8, and this says where
                    self._table(block, {field.name: pa.string()})
        return table

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
                f"{self.name}, line {block.line + before}: a quotation mark is not closed, or stands alone within "
                "others, where it must be doubled"
            ) from error

    def _parsed(self, data: bytes, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        return pyarrow.csv.read_csv(
            pa.BufferReader(_owned_by_arrow(data)),
            # One block, because a quoted line end must not fall between two.
            read_options=pyarrow.csv.ReadOptions(column_names=list(self.names), block_size=len(data) + 1),
            parse_options=self._form,
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
        return self._mistake_in_line(line, f"{self.name}, line {block.line + bad - 1}", types, error)

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
                if "\N{REPLACEMENT CHARACTER}" in cell and not decodes(line):
                    return DataError(f"{place}, column {name!r}: the text is not UTF-8: {cell!r}{_if_latin(self.name)}")
                return DataError(f"{place}, column {name!r}: expected {_expected(kind)}, got {cell!r}")
        return DataError(f"{place}: {error}")

    def _place(self, block: _Block, row: int) -> str:
        """Return where a row of a block stands: empty lines, and line ends in quotation marks, count as lines."""
        text = io.StringIO(block.data.decode("utf-8", "replace"), newline="")
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
