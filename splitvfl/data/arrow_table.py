"""Tables in memory of any kind as Arrow tables: Arrow, pandas, polars, arrays and tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from splitvfl.errors import ArgumentError, DataError

_KINDS = (
    "a file, an Arrow, pandas or polars table, a mapping from column names to arrays or tensors, or an array or tensor "
    "of two dimensions"
)


def as_arrow(source: object, *, called: str = "source") -> pa.Table:
    """Return a table in memory as an Arrow table.

    Other libraries are known by the interface that they offer, Arrow's streams (``__arrow_c_stream__``), and need not
    be installed. What pandas calls an index is no column. In a mapping, an array ``x`` of two dimensions becomes the
    columns ``x0``, ``x1``, and so on; an array alone is called ``x``.

    Args:
        source: The table.
        called: What it was given as, for messages.

    Raises:
        ArgumentError: If it is no table.
        DataError: If a column cannot be one, or columns have different lengths.
    """
    try:
        return _in_plain_types(_converted(source, called))
    except (pa.ArrowException, TypeError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise DataError(f"the {type(source).__name__} given as {called} is no table: {error}") from error


def _converted(source: Any, called: str) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, np.ndarray | Tensor):
        source = {"x": source}
    if isinstance(source, Mapping):
        columns = [column for name, values in source.items() for column in _columns(str(name), values)]
        return pa.Table.from_arrays([pa.array(values) for _, values in columns], [name for name, _ in columns])
    if hasattr(source, "reset_index"):
        return pa.table(source.reset_index(drop=True))
    if hasattr(source, "__arrow_c_stream__"):
        return pa.table(source)
    if hasattr(source, "to_arrow"):
        return source.to_arrow()
    hint = "; call .collect() on it" if hasattr(source, "collect") else ""
    raise ArgumentError(f"expected {_KINDS} as {called}, got {type(source).__name__}{hint}")


def _columns(name: str, values: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim == 2:
        yield from ((f"{name}{number}", column) for number, column in enumerate(values.T))
    else:
        yield name, values


def _in_plain_types(table: pa.Table) -> pa.Table:
    """Return a table in one piece, its text in the layout that all of Arrow's functions take; polars has another."""
    for index, field in enumerate(table.schema):
        column = table.column(index)
        if pa.types.is_dictionary(column.type):
            column = _decoded(column)
        column = _in_plain_layout(column)
        table = table.set_column(index, field.name, column)
    # How a table happens to be cut must not change the order in which means are added up.
    return table.combine_chunks()


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    values = [_in_plain_layout(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(values) if values else column.cast(column.type.value_type)


def _in_plain_layout(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return values.cast(pa.string()) if str(values.type) == "string_view" else values
