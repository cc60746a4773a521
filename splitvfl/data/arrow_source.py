"""Rows of columns that have types: Parquet files, Arrow files, and tables in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from splitvfl.data.cell_format import (
    AS_USUAL,
    CellFormat,
    Mistake,
    no_number,
    read_numbers,
    without_gaps,
    without_sentinels,
)
from splitvfl.data.chunks import Chunk, Kind, Types, decodes, kind_of
from splitvfl.data.number_text import different, style_of
from splitvfl.data.tables import is_text
from splitvfl.errors import DataError

PARQUET_SUFFIXES = (".parquet", ".pq")

# Enough rows that the work per chunk hides the overhead, few enough that several chunks fit into memory.
BATCH_ROWS = 1 << 16


class TypedSource(ABC):
    """Rows of columns that have types; they are numbered from 0 in messages.

    Args:
        name: What to call it in messages.
        size: Its size, in bytes as it is kept.

    Attributes:
        name: As given.
        size: As given.
        names: Names of its columns.
        typed: ``True``.
        written: How text is written that is read as numbers.
        declared: Columns that are no numbers though their text may look so.

    Raises:
        DataError: If it cannot be read.
    """

    typed = True

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.written: CellFormat = AS_USUAL
        self.declared: frozenset[str] = frozenset()
        with self._explained():
            self._schema, self._rows = self._look()
        self.names: tuple[str, ...] = tuple(self._schema.names)

    @abstractmethod
    def _look(self) -> tuple[pa.Schema, int]:
        """Return names and types of the columns, and the number of rows."""

    @abstractmethod
    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, these columns only, :data:`BATCH_ROWS` at a time."""

    @abstractmethod
    def _whole(self) -> pa.Table:
        """Return all rows and columns."""

    def infer(self, columns: Collection[str], text: Collection[str]) -> dict[str, Kind]:
        """Return the kinds that the columns' types state; columns of type null show nothing.

        Text is looked at where it is said how numbers are written: it may be numbers.
        """
        types = {name: self._schema.field(name).type for name in columns}
        kinds = {name: kind_of(name, kind, self.name) for name, kind in types.items() if not pa.types.is_null(kind)}
        if self.written.is_given:
            asked = [name for name, kind in kinds.items() if kind == "text" and name not in {*text, *self.declared}]
            kinds |= dict.fromkeys(self._numbers_in(asked), "number")
        return kinds

    def _numbers_in(self, columns: list[str]) -> set[str]:
        """Return the columns of text that are numbers as :attr:`written` says, by their first rows with any value."""
        found: set[str] = set()
        asked = list(columns)
        for batch in self._batches(columns) if columns else ():
            for name in list(asked):
                cells = batch.column(name)
                cells = cells.cast(cells.type.value_type) if pa.types.is_dictionary(cells.type) else cells
                if len(values := different(cells)) == 0:
                    continue
                asked.remove(name)
                if style_of(values, self.written.style) == self.written.style:
                    found.add(name)
            if not asked:
                break
        return found

    @property
    def categories(self) -> frozenset[str]:
        """Columns whose type says that they are categories: dictionaries."""
        return frozenset(field.name for field in self._schema if pa.types.is_dictionary(field.type))

    def type_of(self, column: str) -> pa.DataType:
        """Return the type of a column; of a dictionary's that of what it stands for."""
        kind = self._schema.field(column).type
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def table(self, text: Collection[str]) -> pa.Table:
        """Return all rows and columns, of the types that they have there.

        Raises:
            DataError: If the file is damaged.
        """
        with self._explained():
            return self._whole()

    def chunks(self, types: Types) -> Iterator[Chunk]:
        """Yield all rows, these columns only.

        Raises:
            DataError: If the file is damaged, or text in it is not UTF-8.
        """
        start = 0
        batches = self._batches(list(types))
        while (batch := self._next(batches)) is not None:
            yield Chunk(
                {name: self._cast(batch.column(name), name, kind, start) for name, kind in types.items()},
                batch.num_rows,
                self.name,
                self.size * (start + batch.num_rows) // max(self._rows, 1),
                self._placer(start),
            )
            start += batch.num_rows

    def _next(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        with self._explained():
            return next(batches, None)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.name} could not be read: {error}") from error

    def _placer(self, start: int) -> Callable[[int], str]:
        return lambda row: f"{self.name}, row {start + row} (from 0)"

    def _cast(self, column: pa.Array, name: str, kind: pa.DataType, start: int) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            if pa.types.is_string(kind):
                column.validate(full=True)
                return self._without_gaps(column.cast(kind), name)
            if self.written.is_given:
                column = self._as_numbers(column, name, start)
            return column.cast(kind, safe=not pa.types.is_floating(kind))
        except pa.ArrowInvalid as error:
            place = self._placer(start)(_first_undecodable(column)) if pa.types.is_string(kind) else self.name
            what = "the text is not UTF-8" if pa.types.is_string(kind) else str(error)
            raise DataError(f"{place}, column {name!r}: {what}") from error

    def _without_gaps(self, column: pa.Array, name: str) -> pa.Array:
        return column if name in self.written.text else without_gaps(column, self.written)

    def _as_numbers(self, column: pa.Array, name: str, start: int) -> pa.Array:
        if not is_text(column):
            return without_sentinels(column, self.written)
        found = read_numbers(column, self.written)
        if isinstance(found, Mistake):
            raise no_number(name, found, self._placer(start), self.written)
        return found

    def place(self, row: int) -> str:
        """Return where a row stands."""
        return self._placer(0)(row)


class FileSource(TypedSource):
    """A file with types.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(path.name, path.stat().st_size)


class ParquetSource(FileSource):
    """A Parquet file."""

    def _open(self) -> pyarrow.parquet.ParquetFile:
        # Without pre-buffering, a row group larger than memory is read piece by piece.
        return pyarrow.parquet.ParquetFile(self._path, pre_buffer=False, buffer_size=1 << 20)

    def _look(self) -> tuple[pa.Schema, int]:
        with self._open() as file:
            return file.schema_arrow, file.metadata.num_rows

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        with self._open() as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=names)

    def _whole(self) -> pa.Table:
        return pyarrow.parquet.read_table(self._path)


class TableSource(TypedSource):
    """A table in memory.

    Text of it that looks like numbers is doubted, and no error.

    Args:
        table: The table.
        name: What to call it in messages.
    """

    def __init__(self, table: pa.Table, name: str) -> None:
        self._table = table
        super().__init__(name, table.nbytes)

    def _look(self) -> tuple[pa.Schema, int]:
        return self._table.schema, self._table.num_rows

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        yield from self._table.select(names).to_batches(max_chunksize=BATCH_ROWS)

    def _whole(self) -> pa.Table:
        return self._table


class ArrowSource(FileSource):
    """An Arrow file (IPC, also called Feather 2), of which only what is looked at is read into memory."""

    def _look(self) -> tuple[pa.Schema, int]:
        with pa.memory_map(str(self._path)) as file, pa.ipc.open_file(file) as reader:
            return reader.schema, sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self._path)) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number).select(names)
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)

    def _whole(self) -> pa.Table:
        with pa.memory_map(str(self._path)) as file, pa.ipc.open_file(file) as reader:
            return reader.read_all()


def _first_undecodable(column: pa.Array) -> int:
    cells = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()).to_pylist()
    return next((row for row, cell in enumerate(cells) if cell is not None and not decodes(cell)), 0)
