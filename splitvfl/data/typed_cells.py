"""Cells of columns that have types as text, where they name records: the same text that a CSV file would hold."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.errors import DataError

# Numbers below are exact in a column of fractions; from there on, two ids may have become one.
_EXACT: Final = {16: 1 << 11, 32: 1 << 24, 64: 1 << 53}
_TEXTS: Final = (pa.string(), pa.large_string(), pa.string_view())
_WHOLE: Final = "ids are whole numbers or text"


def names_records(kind: pa.DataType) -> bool:
    """Return whether cells of a type can be ids: numbers without a fraction, text, bytes that are text, or UUIDs."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    return kind in _TEXTS or _is_bytes(kind) or _is_uuid(kind) or any(test(kind) for test in tests)


def is_plain(kind: pa.DataType) -> bool:
    """Return whether cells of a type name records as they stand: text, and whole numbers."""
    return kind in _TEXTS or pa.types.is_integer(kind)


def as_text(column: pa.Array) -> pa.Array:
    """Return cells as text, null where one is missing.

    Whole numbers are decimal digits, of whatever type: 7, 7.0 and ``Decimal("7.00")`` are ``7``. UUIDs are in their
    canonical form in small letters, and bytes are what they are in UTF-8. Text is as it stands.

    Args:
        column: Of a type that :func:`names_records` takes.

    Raises:
        DataError: If a cell is a fraction, too large to be exact, or no UTF-8; its ``row`` says which.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_text(column.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return as_text(pc.run_end_decode(column))
    if kind in _TEXTS or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        return _of_floats(column)
    if pa.types.is_decimal(kind):
        return pa.array([_of_decimal(cell, row) for row, cell in enumerate(column.to_pylist())], pa.string())
    cells = column.storage.to_pylist() if _is_uuid(kind) else column.to_pylist()
    one = _of_uuid if _is_uuid(kind) else _of_bytes
    return pa.array([None if cell is None else one(cell, row) for row, cell in enumerate(cells)], pa.string())


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return kind == pa.binary_view() or any(test(kind) for test in tests)


def _of_floats(column: pa.Array) -> pa.Array:
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    missing = np.isnan(values)
    odd = np.flatnonzero(~missing & (values != np.floor(values)))
    large = np.flatnonzero(~missing & ~(np.abs(values) < _EXACT[column.type.bit_width]))
    for row in odd[:1].tolist():
        raise _no_id(row, f"{values[row]:g} is a fraction, and {_WHOLE}")
    for row in large[:1].tolist():
        raise _no_id(
            row,
            f"{values[row]:g} is too large to be exact as {column.type}, and two ids may have become one; write the "
            "column anew as whole numbers or text",
        )
    whole = np.where(missing, 0, values).astype(np.int64)
    return pa.array(whole, mask=missing).cast(pa.string())


def _of_decimal(cell: Decimal | None, row: int) -> str | None:
    if cell is None:
        return None
    if cell != cell.to_integral_value():
        raise _no_id(row, f"{cell} is a fraction, and {_WHOLE}")
    return str(int(cell))


def _of_uuid(cell: bytes, row: int) -> str:
    return str(uuid.UUID(bytes=cell))


def _no_id(row: int, what: str) -> DataError:
    error = DataError(what)
    error.row = row
    return error


def _of_bytes(cell: bytes, row: int) -> str:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        raise _no_id(
            row,
            f"the bytes {cell[:16].hex()} are no text in UTF-8; write ids as text, or as Arrow's type uuid if that is "
            "what they are",
        ) from None
