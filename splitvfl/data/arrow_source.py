"""Rows of columns that have types: Parquet files, Arrow files, and tables in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from splitvfl.data.chunks import Chunk, Kind, Types, decodes, kind_of
from splitvfl.data.typed_cells import as_text, is_plain, names_records
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

    Raises:
        DataError: If it cannot be read.
    """

    typed = True

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
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
        """Return the kinds that the columns' types state; columns of type null show nothing."""
        types = {name: self._schema.field(name).type for name in columns}
        return {name: kind_of(name, kind, self.name) for name, kind in types.items() if not pa.types.is_null(kind)}

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

    def _cast(self, column: pa.Array, name: str, kind: pa.DataType | None, start: int) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        kind = column.type if kind is None else kind
        try:
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                column.validate(full=True)
            if pa.types.is_string(kind) and names_records(column.type):
                return as_text(column)
            return column if column.type == kind else column.cast(kind, safe=not pa.types.is_floating(kind))
        except pa.ArrowInvalid as error:
            text = is_plain(column.type) and not pa.types.is_integer(column.type)
            place = self._placer(start)(_first_undecodable(column)) if text else self.name
            what = "the text is not UTF-8" if text else str(error)
            raise DataError(f"{place}, column {name!r}: {what}") from error
        except DataError as error:  # a cell that is no id
            raise DataError(f"{self._placer(start)(error.row or 0)}, column {name!r}: {error}") from error


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
