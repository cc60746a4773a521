"""Rows as they come out of a source: whole, or a chunk at a time, with the place of each row for messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.data.cell_format import CellFormat
from splitvfl.data.tables import column_of, what_else
from splitvfl.errors import DataError

# A column without a type is read as it stands: of the type that it has, and as text where none is stated.
Types = Mapping[str, pa.DataType | None]
Mask = npt.NDArray[np.bool_]
# What cells hold. "integer" and "truth" are numbers too; the difference matters for categories, ids and labels.
Kind = Literal["integer", "number", "truth", "text"]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some consecutive rows of one source, or all of them.

    Attributes:
        columns: Arrays by column name, of the types that were asked for.
        rows: Number of rows.
        source: Name of the source.
        done_bytes: How much of the source has been read, in bytes as it is kept; where there are several, of all of
            them.
        place: Says where a row (from 0 in this chunk) stands: ``"clicks.csv, line 17"``.
        whole: Whether these are all rows: then messages count what is wrong, and else name the first row of it.
    """

    columns: Mapping[str, pa.Array]
    rows: int
    source: str
    done_bytes: int
    place: Callable[[int], str]
    whole: bool = False

    @classmethod
    def of(cls, table: pa.Table, columns: Collection[str], *, source: str) -> Chunk:
        """Return columns of a table in memory.

        Raises:
            DataError: If the table has no such column.
        """
        held = {name: column_of(table, name, source=source) for name in columns}
        return cls(held, table.num_rows, source, table.nbytes, lambda row: f"{source}, row {row} (from 0)", whole=True)

    def mistake(self, column: str, row: int, *, of_all: str, of_row: str) -> DataError:
        """Return what is wrong with a column, first in this row: said of all rows, or of this one."""
        if self.whole:
            error = DataError(f"column {column!r} of {self.source} {of_all}")
            error.row = row
            return error
        return DataError(f"{self.place(row)}, column {column!r}: {of_row}")


class Source(Protocol):
    """Rows in one form, read whole or a chunk at a time.

    Attributes:
        name: What it is called in messages.
        size: Its size, in bytes as it is kept.
        names: Names of its columns.
        categories: Columns whose types say that they hold categories.
        typed: Whether it says by itself what its columns hold; cells of text files are looked at.
        written: How cells are written.
        declared: Columns that are no numbers though their text may look so.
    """

    name: str
    size: int
    names: tuple[str, ...]
    categories: frozenset[str]
    typed: bool
    written: CellFormat
    declared: frozenset[str]

    def infer(self, columns: Collection[str], text: Collection[str]) -> dict[str, Kind]:
        """Return what the cells of these columns hold, as far as the source shows it; ``text`` is taken as text."""
        ...

    def chunks(self, types: Types) -> Iterator[Chunk]:
        """Yield all rows, these columns only."""
        ...

    def table(self, text: Collection[str]) -> pa.Table:
        """Return all rows and columns, of the types that they have there; ``text`` is taken as text."""
        ...

    def place(self, row: int) -> str:
        """Return where a row stands, by its number among all."""
        ...


def kind_of(name: str, kind: pa.DataType, source: str, *, hint: str = "") -> Kind:
    """Return what a column holds, by its type.

    Args:
        name: Its name.
        kind: The type.
        source: Where it comes from, for messages.
        hint: What else may be done than drop it.

    Raises:
        DataError: If it holds neither numbers nor text.
    """
    if pa.types.is_boolean(kind):
        return "truth"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    raise DataError(f"column {name!r} of {source} {what_else(kind)}{hint}")


def decodes(cell: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True
