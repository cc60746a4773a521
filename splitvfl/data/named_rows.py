"""Rows of tables that were joined or aligned: no file has them at these numbers, so messages say whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from splitvfl.errors import DataError, shown


@contextmanager
def rows_called(column: str | None, names: pa.Array | pa.ChunkedArray | None) -> Iterator[None]:
    """For the length of a block, have an error that is about a row say which record that is.

    Args:
        column: The column that names the records; ``None``: none does, and errors pass as they are.
        names: What it holds, a name for each row.

    Raises:
        DataError: If the block does, with the record's name behind it.
    """
    try:
        yield
    except DataError as error:
        if error.row is None or column is None or names is None:
            raise
        told = DataError(f"{error}; row {error.row} is {column} {shown(names[error.row].as_py())}")
        told.row = error.row
        raise told from error
