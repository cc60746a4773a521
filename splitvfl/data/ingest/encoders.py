"""Cells into numbers, by what was learned from the training rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.data.encoding import Floats, as_categories
from splitvfl.data.ingest.hashing import bucket_codes
from splitvfl.data.ingest.records import first_true
from splitvfl.data.ingest.vocabulary import NarrowCodes
from splitvfl.data.schema import HashEncoder, Kind, NumericEncoder
from splitvfl.errors import DataError

RowPlace = Callable[[int], str]


class FieldCoder(Protocol):
    """Gives the codes of a categorical field."""

    def codes(self, column: pa.Array) -> NarrowCodes:
        """Return one code per row; 0 for an unknown value."""
        ...


class BucketCoder:
    """Hashes the values of a field.

    Args:
        encoder: What was chosen.
        key: The key, see :func:`splitvfl.data.ingest.hashing.hash_key`.
    """

    def __init__(self, encoder: HashEncoder, key: bytes) -> None:
        self._encoder = encoder
        self._key = key

    def codes(self, column: pa.Array) -> NarrowCodes:
        """Return one code per row, from 1; the last one for a missing value."""
        buckets = self._encoder.buckets
        encoded = column.dictionary_encode()
        texts = as_texts(encoded.dictionary)
        found = bucket_codes(texts, column=self._encoder.column, key=self._key, buckets=buckets)
        found = np.append(found, np.int32(buckets + 1))
        codes: NarrowCodes = found[encoded.indices.fill_null(len(texts)).to_numpy()]
        return codes


def as_texts(values: pa.Array) -> list[str]:
    """Return values as texts alike in every version: whole numbers in digits, others as Python writes them."""
    cells = values.to_pylist()
    return cells if pa.types.is_string(values.type) else [repr(cell) for cell in cells]


def read_type(kind: Kind, *, numeric: bool) -> pa.DataType:
    """Return the type that a column is read with; numeric columns are wanted as float64."""
    match kind:
        case "text":
            return pa.string()
        case "truth":
            return pa.bool_()
        case "integer":
            return pa.float64() if numeric else pa.int64()
        case "number":
            return pa.float64()
        case _:
            assert_never(kind)


def category_type(kind: Kind) -> pa.DataType:
    """Return the type that the categories of a field have."""
    return {"text": pa.string(), "number": pa.float64(), "integer": pa.int64(), "truth": pa.int64()}[kind]


def categories(column: pa.Array) -> pa.Array:
    """Return a column as categories: truth values as 0 and 1, NaN as missing, negative zero as zero."""
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int64())
    return as_categories(column)


def check_numbers(values: Floats, column: str, *, missing: str, place: RowPlace) -> None:
    """Check that numbers are finite, and there where they may not be missing.

    Raises:
        DataError: If not; it names the first such row.
    """
    row = first_true(np.isinf(values))
    if row is not None:
        raise DataError(f"{place(row)}, column {column!r}: expected a finite number, got {values[row]}")
    row = first_true(np.isnan(values)) if missing == "error" else None
    if row is not None:
        raise DataError(
            f"{place(row)}, column {column!r}: there is no value; missing='indicator' fills in the median of the "
            "training rows and marks the gap"
        )


def encode_numbers(values: Floats, encoder: NumericEncoder, *, place: RowPlace) -> npt.NDArray[np.float32]:
    """Return a column filled, scaled and, if so learned, with its marks: ``(rows, 1)`` or ``(rows, 2)``.

    Raises:
        DataError: If a value is infinite, missing where it may not be, or too large for float32.
    """
    check_numbers(values, encoder.column, missing=encoder.missing, place=place)
    block = encoder.fitted.encode(values)
    row = first_true(~np.isfinite(block[:, 0]))
    if row is not None:
        raise DataError(
            f"{place(row)}, column {encoder.column!r}: {values[row]:g} is too large for float32; try scale log1p"
        )
    return block
