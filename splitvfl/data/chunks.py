"""Rows as they come out of a source: whole, or a chunk at a time, with the place of each row for messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from splitvfl.data.schema import Kind
from splitvfl.errors import DataError

Types = Mapping[str, pa.DataType]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some consecutive rows of one source.

    Attributes:
        columns: Arrays by column name, of the types that were asked for.
        rows: Number of rows.
        source: Name of the source.
        done_bytes: How much of the source has been read, in bytes as it is kept; where there are several, of all of
            them.
        place: Says where a row (from 0 in this chunk) stands: ``"clicks.csv, line 17"``.
    """

    columns: Mapping[str, pa.Array]
    rows: int
    source: str
    done_bytes: int
    place: Callable[[int], str]


class Source(Protocol):
    """Rows in one form, read whole or a chunk at a time.

    Attributes:
        name: What it is called in messages.
        size: Its size, in bytes as it is kept.
        names: Names of its columns.
        typed: Whether it says by itself what its columns hold; cells of text files are looked at.
    """

    name: str
    size: int
    names: tuple[str, ...]
    typed: bool

    def infer(self, columns: Collection[str], text: Collection[str]) -> dict[str, Kind]:
        """Return what the cells of these columns hold, as far as the source shows it; ``text`` is taken as text."""
        ...

    def chunks(self, types: Types) -> Iterator[Chunk]:
        """Yield all rows, these columns only."""
        ...

    def table(self, text: Collection[str]) -> pa.Table:
        """Return all rows and columns, of the types that they have there; ``text`` is taken as text."""
        ...


def kind_of(name: str, kind: pa.DataType, source: str) -> Kind:
    """Return what a column holds, by its type.

    Args:
        name: Its name.
        kind: The type.
        source: Where it comes from, for messages.

    Raises:
        DataError: If it holds neither numbers nor text.
    """
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


def decodes(cell: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True
