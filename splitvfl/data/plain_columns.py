"""Columns of any Arrow type as columns of numbers and of text, and what their types said beyond that.

- A **dictionary** becomes what its indices stand for. That it was declared as categories is kept with the column: codes
  of branches are categories then, although they are whole numbers. pandas' ``category`` and polars' ``Enum`` and
  ``Categorical`` arrive as dictionaries; of a ``category`` of numbers in a Parquet file, only pandas' metadata tells.
- A column ``emb`` of **lists** of numbers becomes the columns ``emb_0``, ``emb_1``, and so on, before any name or
  pattern is looked up. A row without a list has a gap in all of them.

What cannot become such columns is refused when it is used (:func:`splitvfl.data.tables.column_of`), and not before: a
setting may leave it out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.tables import LIST, REFUSED, neither
from splitvfl.errors import DEEPER

_CATEGORIES, _LENGTH = b"splitvfl.categories", b"splitvfl.length"


@dataclass(frozen=True)
class PlainColumn:
    """One column, as it is made from a column of a table.

    Attributes:
        field: Its name, its type, and what else is known of it.
        origin: Position of the column that it is made from.
        place: Place in that column's lists; ``None`` where there are none.
    """

    field: pa.Field
    origin: int
    place: int | None = None


class Lists:
    """Lists of numbers, a row each.

    Args:
        column: The lists, in one chunk.
    """

    def __init__(self, column: pa.Array) -> None:
        self._column = column.storage if isinstance(column, pa.ExtensionArray) else column

    @cached_property
    def lengths(self) -> pa.Array:
        """Length of each row's list; null where there is none."""
        return pc.list_value_length(self._column)

    @property
    def first_length(self) -> int | None:
        """Length of the first list that is not empty; 0 if all are, and ``None`` if no row has one."""
        known = self.lengths.drop_null()
        filled = known.filter(pc.greater(known, 0))
        length: int | None = filled[0].as_py() if len(filled) else 0 if len(known) else None
        return length

    def other_length(self, length: int) -> tuple[int, int] | None:
        """Return the first row whose list has another length, and that length; ``None`` if there is none."""
        row = pc.index(pc.not_equal(self.lengths, length), True).as_py()
        return None if row < 0 else (row, self.lengths[row].as_py())

    @property
    def uneven(self) -> str:
        """What is said of lists of different lengths; nothing if they are equally long."""
        length = self.first_length
        other = None if length is None else self.other_length(length)
        if other is None or length is None:
            return ""
        return said_uneven(length, *other)

    def at(self, place: int) -> pa.Array:
        """Return what stands at a place of each list; a gap where there is no list, or a shorter one."""
        starts, sizes = self._extents
        return self._values.take(pa.array(starts + place, pa.int64(), mask=sizes <= place))

    @cached_property
    def _values(self) -> pa.Array:
        return self._column.flatten()

    @cached_property
    def _extents(self) -> tuple[np.ndarray, np.ndarray]:
        sizes = self.lengths.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.cumsum(sizes) - sizes, sizes


def said_uneven(length: int, row: int, other: int) -> str:
    """Return what is said of lists of different lengths: the length of one, and the first row with another."""
    return (
        f"holds lists of different lengths: {other} in row {row} (from 0), and {length} in another; each place of a "
        "list becomes a column: make all equally long"
    )


def plain_columns(schema: pa.Schema, length: Callable[[int], int | None], *, nested: bool = False) -> list[PlainColumn]:
    """Return the columns that a table's columns become.

    Args:
        schema: Of the table.
        length: Returns the length of the lists in the column at a position: see :attr:`Lists.first_length`.
        nested: Whether lists and other nested values stay as they are.
    """
    categorical, names = _pandas_categories(schema), set(schema.names)
    found: list[PlainColumn] = []
    for position, field in enumerate(schema):
        if nested or not pa.types.is_nested(_storage(field.type)):
            declared = pa.types.is_dictionary(field.type) or field.name in categorical
            more = {**(field.metadata or {}), **({_CATEGORIES: b""} if declared else {})}
            found.append(PlainColumn(pa.field(field.name, _plain_type(field.type), metadata=more or None), position))
            continue
        why = _why_no_columns(field.type)
        count = None if why else length(position)
        parts = list_places(field.name, count or 0)
        if clash := next((part for part in parts if part in names), None):
            why = f"holds lists, whose numbers would become column {clash!r}, which is there already: rename it"
            parts = []
        elif count == 0:
            why = "holds empty lists: fill them"
        if not parts:
            refused = {REFUSED: why} if why else None  # without any list it is a column without any value
            found.append(PlainColumn(pa.field(field.name, pa.null(), metadata=refused), position))
        said = {LIST: field.name, _LENGTH: str(count)}
        item = None if why else _storage(field.type).value_type
        found += [PlainColumn(pa.field(part, item, metadata=said), position, place) for place, part in enumerate(parts)]
    return found


def plain_table(table: pa.Table, *, nested: bool = False) -> pa.Table:
    """Return a table of numbers and text, its columns in one chunk each.

    Args:
        table: Any table.
        nested: Whether lists and other nested values stay as they are.
    """
    columns = [_in_one(column) for column in table.columns]
    lists = {number: Lists(one) for number, one in enumerate(columns) if is_list(one.type)}
    uneven = {number: one.uneven for number, one in lists.items()}
    arrays, fields = [], []
    for one in plain_columns(table.schema, lambda position: lists[position].first_length, nested=nested):
        field = one.field
        if one.place is not None and uneven[one.origin]:
            field = field.with_metadata({**field.metadata, REFUSED: uneven[one.origin]})
        fields.append(field)
        if one.place is not None:
            arrays.append(lists[one.origin].at(one.place))
        else:
            is_null = pa.types.is_null(field.type)
            arrays.append(pa.nulls(table.num_rows) if is_null else columns[one.origin])
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields)) if fields else table


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column holds a list in each row, of one dimension or more."""
    kind = _storage(kind)
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def declared_categories(schema: pa.Schema) -> frozenset[str]:
    """Return the columns of a plain table whose types say that they hold categories."""
    return frozenset(field.name for field in schema if _CATEGORIES in (field.metadata or {}))


def declared(name: str, kind: pa.DataType) -> pa.Field:
    """Return a column that is declared to hold categories."""
    return pa.field(name, kind, metadata={_CATEGORIES: b""})


def list_lengths(schema: pa.Schema) -> dict[str, int]:
    """Return the columns of lists that columns of a plain table were made from, and how long their lists are."""
    said = (field.metadata for field in schema if LIST in (field.metadata or {}))
    return {metadata[LIST].decode(): int(metadata[_LENGTH]) for metadata in said}


def list_places(name: str, length: int) -> list[str]:
    """Return what the columns are called that a column of lists becomes."""
    return [f"{name}_{place}" for place in range(length)]


def list_groups(schema: pa.Schema) -> list[list[str]]:
    """Return the columns of a plain table by the column that they were made from, in order."""
    groups: dict[bytes | str, list[str]] = {}
    for field in schema:
        groups.setdefault((field.metadata or {}).get(LIST, field.name), []).append(field.name)
    return list(groups.values())


def plain(column: pa.Array) -> pa.Array:
    """Return a column decoded, and its text in the layout that all of Arrow's functions take; polars has another."""
    if pa.types.is_dictionary(column.type):
        column = plain(column.dictionary).take(column.indices)
    return column.cast(pa.string()) if column.type == pa.string_view() else column


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one chunk: how a table happens to be cut must not change the order in which it is added up."""
    if pa.types.is_dictionary(column.type):
        # Chunks may have dictionaries of their own.
        column = pa.chunked_array([plain(chunk) for chunk in column.chunks], _plain_type(column.type))
    found = column.combine_chunks()
    return plain(found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.string() if kind == pa.string_view() else kind


def _storage(kind: pa.DataType) -> pa.DataType:
    """Return what an array of tensors of one shape is kept as: lists; and any other type itself."""
    return kind.storage_type if isinstance(kind, pa.FixedShapeTensorType) else kind


def _why_no_columns(kind: pa.DataType) -> str:
    """Return why nested values cannot become columns; nothing for lists of numbers."""
    dimensions = 1 + len(kind.shape) if isinstance(kind, pa.FixedShapeTensorType) else 1
    item = _storage(kind)
    while is_list(item):
        item, dimensions = item.value_type, dimensions + (not isinstance(kind, pa.FixedShapeTensorType))
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    if dimensions == 1 or not any(test(item) for test in numbers):
        return f"{neither(kind)}: make columns of numbers or text of it"
    return "" if dimensions == 2 else f"holds lists of lists: {DEEPER.format(dimensions)}"


def _pandas_categories(schema: pa.Schema) -> frozenset[str]:
    """Return the columns that pandas says were of type ``category``: Parquet keeps only those of text as such."""
    said = (schema.metadata or {}).get(b"pandas")
    if said is None:
        return frozenset()
    try:
        columns = json.loads(said)["columns"]
        return frozenset(one["field_name"] for one in columns if one["pandas_type"] == "categorical")
    except (ValueError, KeyError, TypeError, RecursionError):  # somebody else's: then the types alone count
        return frozenset()
