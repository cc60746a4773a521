"""Rows of columns that have types: Parquet files, Arrow files, and tables in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
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
from splitvfl.data.number_text import counted, style_of
from splitvfl.data.plain_columns import (
    Lists,
    declared_categories,
    list_lengths,
    plain,
    plain_columns,
    plain_table,
    said_uneven,
)
from splitvfl.data.tables import check_usable, is_text, unusable
from splitvfl.data.typed_cells import as_text, is_plain, names_records
from splitvfl.errors import DataError

PARQUET_SUFFIXES = (".parquet", ".pq")

# Enough rows that the work per chunk hides the overhead, few enough that several chunks fit into memory.
BATCH_ROWS = 1 << 16


class TypedSource(ABC):
    """Rows of columns that have types; they are numbered from 0 in messages.

    Columns are those that its columns become (:mod:`splitvfl.data.plain_columns`).

    Args:
        name: What to call it in messages.
        size: Its size, in bytes as it is kept.
        nested: Whether lists and other nested values stay as they are.

    Attributes:
        name: As given.
        size: As given.
        names: Names of its columns.
        categories: Columns whose types say that they hold categories.
        typed: ``True``.
        written: How text is written that is read as numbers.
        declared: Columns that are no numbers though their text may look so.

    Raises:
        DataError: If it cannot be read.
    """

    typed = True

    def __init__(self, name: str, size: int, *, nested: bool = False) -> None:
        self._nested = nested
        self.name = name
        self.size = size
        self.written: CellFormat = AS_USUAL
        self.declared: frozenset[str] = frozenset()
        with self._explained():
            self._given, self._rows = self._look()
            self._given_names = self._given.names
            columns = plain_columns(self._given, self._first_length, nested=nested)
        self._columns = {one.field.name: one for one in columns}
        self._schema = pa.schema([one.field for one in columns])
        self._lengths = list_lengths(self._schema)
        self.names: tuple[str, ...] = tuple(self._schema.names)
        self.categories = declared_categories(self._schema)

    @abstractmethod
    def _look(self) -> tuple[pa.Schema, int]:
        """Return names and types of the columns, and the number of rows."""

    @abstractmethod
    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, these columns only, :data:`BATCH_ROWS` at a time."""

    @abstractmethod
    def _whole(self) -> pa.Table:
        """Return all rows and columns."""

    def _first_length(self, position: int) -> int | None:
        """Return the length of the lists in a column: see :attr:`Lists.first_length`."""
        kind, name = self._given.field(position).type, self._given_names[position]
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        found: int | None = None
        for batch in self._batches([name]):
            length = Lists(batch.column(0)).first_length
            found = length if found is None else found
            if length:
                return length
        return found

    def infer(self, columns: Collection[str], text: Collection[str]) -> dict[str, Kind]:
        """Return the kinds that the columns' types state; columns of type null show nothing.

        Text is looked at where it is said how numbers are written: it may be numbers.

        Raises:
            DataError: If a column is of another type than numbers and text.
        """
        self.check(columns)
        types = {name: kind for name in columns if not pa.types.is_null(kind := self._schema.field(name).type)}
        kinds = {name: kind_of(name, kind, self.name) for name, kind in types.items()}
        if self.written.is_given:
            known = {*text, *self.declared, *self.categories}
            asked = [name for name, kind in kinds.items() if kind == "text" and name not in known]
            kinds |= dict.fromkeys(self._numbers_in(asked), "number")
        return kinds

    def _numbers_in(self, columns: list[str]) -> set[str]:
        """Return the columns of text that are numbers as :attr:`written` says, by their first rows with any value."""
        found: set[str] = set()
        asked = list(columns)
        for batch in self._batches(columns) if columns else ():
            for name in list(asked):
                values, rows = counted(plain(batch.column(name)))
                if len(values) == 0:
                    continue
                asked.remove(name)
                if style_of(values, rows, self.written.style) == self.written.style:
                    found.add(name)
            if not asked:
                break
        return found

    def check(self, columns: Collection[str]) -> None:
        """Check that columns can be used.

        Raises:
            DataError: If one cannot.
        """
        for name in columns:
            check_usable(self._schema.field(name), source=self.name)

    def type_of(self, column: str) -> pa.DataType:
        """Return the type of a column; of a dictionary's that of what it stands for."""
        return self._schema.field(column).type

    def table(self, text: Collection[str]) -> pa.Table:
        """Return all rows and columns, of the types that they have there.

        Raises:
            DataError: If the file is damaged.
        """
        with self._explained():
            return plain_table(self._whole(), nested=self._nested)

    def chunks(self, types: Types) -> Iterator[Chunk]:
        """Yield all rows, these columns only.

        Raises:
            DataError: If the file is damaged, or text in it is not UTF-8.
        """
        start = 0
        origins = {name: self._given_names[self._columns[name].origin] for name in types}
        batches = self._batches(list(dict.fromkeys(origins.values())))
        while (batch := self._next(batches)) is not None:
            lists = {name: Lists(batch.column(name)) for name in self._lengths if name in batch.schema.names}
            self._check_lengths(lists, start)
            columns = {}
            for name, kind in types.items():
                origin, place = origins[name], self._columns[name].place
                column = plain(batch.column(origin)) if place is None else lists[origin].at(place)
                columns[name] = self._cast(column, name, kind, start)
            yield Chunk(
                columns,
                batch.num_rows,
                self.name,
                self.size * (start + batch.num_rows) // max(self._rows, 1),
                self._placer(start),
            )
            start += batch.num_rows

    def _check_lengths(self, lists: Mapping[str, Lists], start: int) -> None:
        for name, found in lists.items():
            length = self._lengths[name]
            if (other := found.other_length(length)) is not None:
                why = said_uneven(length, start + other[0], other[1])
                raise unusable(name, why, source=self.name)

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

    def _cast(self, column: pa.Array, name: str, kind: pa.DataType | None, start: int) -> pa.Array:
        try:
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                column.validate(full=True)
            if kind is None:
                return column
            if pa.types.is_string(kind):
                text = as_text(column) if names_records(column.type) else column.cast(kind)
                return self._without_gaps(text, name)
            if self.written.is_given:
                column = self._as_numbers(column, name, start)
            return column if column.type == kind else column.cast(kind, safe=not pa.types.is_floating(kind))
        except pa.ArrowInvalid as error:
            text = is_plain(column.type) and not pa.types.is_integer(column.type)
            place = self._placer(start)(_first_undecodable(column)) if text else self.name
            what = "the text is not UTF-8" if text else str(error)
            raise DataError(f"{place}, column {name!r}: {what}") from error
        except DataError as error:  # a cell that is no id
            raise DataError(f"{self._placer(start)(error.row or 0)}, column {name!r}: {error}") from error

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
        nested: Whether lists and other nested values stay as they are.
    """

    def __init__(self, path: Path, *, nested: bool = False) -> None:
        self._path = path
        super().__init__(path.name, path.stat().st_size, nested=nested)


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
        table: The table, as :func:`splitvfl.data.arrow_table.as_arrow` returns it.
        name: What to call it in messages.
        nested: Whether lists and other nested values stay as they are.
    """

    def __init__(self, table: pa.Table, name: str, *, nested: bool = False) -> None:
        self._table = table
        super().__init__(name, table.nbytes, nested=nested)

    def _look(self) -> tuple[pa.Schema, int]:
        return self._table.schema, self._table.num_rows

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        yield from self._table.select(names).to_batches(max_chunksize=BATCH_ROWS)

    def table(self, text: Collection[str]) -> pa.Table:
        """Return the table, whose columns are plain already."""
        return self._table

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
