"""Tables in memory of any kind as Arrow tables: Arrow, pandas, polars, arrays and tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from splitvfl.data.plain_columns import plain_table
from splitvfl.errors import DEEPER, ArgumentError, DataError

_KINDS = (
    "a file, an Arrow, pandas or polars table, a mapping from column names to arrays or tensors, or an array or tensor "
    "of two dimensions"
)


def as_arrow(source: object, *, called: str = "source", nested: bool = False) -> pa.Table:
    """Return a table in memory as an Arrow table.

    Other libraries are known by the interface that they offer, Arrow's streams (``__arrow_c_stream__``), and need not
    be installed. What pandas calls an index is no column. In a mapping, an array ``x`` of two dimensions becomes the
    columns ``x0``, ``x1``, and so on; an array alone is called ``x``. A column ``emb`` of lists becomes ``emb_0``,
    ``emb_1``, and so on, see :mod:`splitvfl.data.plain_columns`.

    Args:
        source: The table.
        called: What it was given as, for messages.
        nested: Whether lists and other nested values stay as they are.

    Raises:
        ArgumentError: If it is no table.
        DataError: If a column cannot be one, or columns have different lengths.
    """
    try:
        return plain_table(_converted(source, called), nested=nested)
    except (pa.ArrowException, TypeError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        why = _deeper_cells(source) or error
        raise DataError(f"the {type(source).__name__} given as {called} is no table: {why}") from error


def _converted(source: Any, called: str) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, np.ndarray | Tensor):
        source = {"x": source}
    if isinstance(source, Mapping):
        columns = [column for name, values in source.items() for column in _columns(str(name), values)]
        return pa.Table.from_arrays([_array(values) for _, values in columns], [name for name, _ in columns])
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
    if isinstance(values, np.ndarray) and values.ndim > 2:
        raise ValueError(f"{name}: {DEEPER.format(values.ndim)}")
    if isinstance(values, np.ndarray) and values.ndim == 2:
        yield from ((f"{name}{number}", column) for number, column in enumerate(values.T))
    else:
        yield name, values


def _array(values: Any) -> pa.Array | pa.ChunkedArray:
    return values.to_arrow() if hasattr(values, "to_arrow") else pa.array(values)


def _deeper_cells(source: Any) -> str:
    """Return what is said of the first column whose cells are arrays of two dimensions or more, if there is one."""
    names = source if isinstance(source, Mapping) else getattr(source, "columns", ())
    for name in names:
        deepest = max((np.ndim(cell) for cell in source[name] if isinstance(cell, np.ndarray | Tensor)), default=0)
        if deepest > 1:
            return f"{name}: {DEEPER.format(1 + deepest)}"
    return ""
