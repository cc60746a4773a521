"""Turn a party's columns into numbers. Whatever is estimated is estimated on training rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.tables import Rows, column_of, is_number, is_text, numbers
from splitvfl.errors import ArgumentError, DataError

Scale = Literal["standard", "minmax", "log1p", "none"]
Missing = Literal["error", "indicator"]
Categorical = Literal["onehot", "index"]

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

# Wider one-hot blocks are nearly always an identifier taken for a category, and fill the memory first.
ONEHOT_LIMIT = 1000


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How columns become numbers.

    Numeric columns (numbers and truth values) are filled, then scaled; columns that do not vary over the training
    rows become zero under every scale but ``"none"``. Categorical columns are text, and those that ``load`` is told
    to take as such; a missing value is a category of its own.

    Attributes:
        scale: ``"standard"``: (x − mean) / standard deviation. ``"minmax"``: (x − min) / (max − min), other rows
            clipped to [0, 1]. ``"log1p"``: sign(x)·log(1 + abs(x)), then standard. ``"none"``: as it is.
        missing: ``"error"``: missing numbers raise. ``"indicator"``: the training median is filled in, and a column
            with missing training values is followed by one that is 1 where the value was missing.
        categorical: ``"onehot"``: one column in {0, 1} per training category, all zero for others.
            ``"index"``: a code from 1 in sorted order, 0 for others.
        min_count: Categories with fewer training rows count as "others".

    Raises:
        ArgumentError: If a setting is not one of these.
    """

    scale: Scale = "standard"
    missing: Missing = "error"
    categorical: Categorical = "onehot"
    min_count: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, allowed in (("scale", Scale), ("missing", Missing), ("categorical", Categorical)):
            if getattr(self, name) not in get_args(allowed):
                raise ArgumentError(
                    f"expected {name} one of {', '.join(get_args(allowed))}, got {getattr(self, name)!r}"
                )
        if self.min_count < 1:
            raise ArgumentError(f"expected min_count from 1, got {self.min_count}")


@dataclass(frozen=True, eq=False)
class Encoded:
    """Columns as numbers, for all rows of the table.

    Attributes:
        numeric: ``(rows, d)``, float32.
        names: ``d`` names.
        codes: ``(rows, f)``, int64.
        field_sizes: Vocabulary sizes of the ``f`` fields, code 0 included.
        field_names: Names of the ``f`` fields.
    """

    numeric: npt.NDArray[np.float32]
    names: tuple[str, ...]
    codes: Codes
    field_sizes: tuple[int, ...]
    field_names: tuple[str, ...]


def encode(
    table: pa.Table, columns: Sequence[str], *, train: Rows, encoding: Encoding, categories: frozenset[str], source: str
) -> Encoded:
    """Return these columns as numbers, in the table's order.

    Args:
        table: The whole table.
        columns: Names of the columns to encode.
        train: Positions of the training rows.
        encoding: How.
        categories: Columns to take as categorical although they hold numbers.
        source: Where the table comes from, for messages.

    Raises:
        DataError: If numbers are missing and may not be, are infinite or too large for float32, a column holds
            neither numbers nor text, has no training value at all, or has too many categories for one-hot.
    """
    blocks: list[tuple[str, npt.NDArray[np.float32]]] = []
    fields: list[Codes] = []
    sizes: dict[str, int] = {}
    for name in columns:
        column = column_of(table, name, source=source)
        if not is_text(column) and not is_number(column):
            raise DataError(f"column {name!r} of {source} holds neither numbers nor text but {column.type}; drop it")
        if not is_text(column) and name not in categories:
            blocks += _numeric(name, numbers(column), train, encoding, source)
            continue
        codes, values = _vocabulary(column, train, encoding.min_count)
        if encoding.categorical == "index":
            fields.append(codes)
            sizes[name] = len(values) + 1
        else:
            blocks += _onehot(name, codes, values, source)
    numeric = np.empty((table.num_rows, len(blocks)), np.float32)
    for position, (_, block) in enumerate(blocks):
        numeric[:, position] = block
    stacked = np.stack(fields, axis=1) if fields else np.zeros((table.num_rows, 0), np.int64)
    return Encoded(numeric, tuple(name for name, _ in blocks), stacked, tuple(sizes.values()), tuple(sizes))


def _numeric(
    name: str, values: Floats, train: Rows, encoding: Encoding, source: str
) -> list[tuple[str, npt.NDArray[np.float32]]]:
    where = f"column {name!r} of {source}"
    if np.isinf(values).any():
        count, first = np.isinf(values).sum(), np.isinf(values).argmax()
        raise DataError(f"{where} is infinite in {count} rows, first in row {first} (from 0)")
    gaps = np.isnan(values)
    if gaps.any() and encoding.missing == "error":
        raise DataError(
            f"{where} has no value in {gaps.sum()} of {gaps.size} rows, first in row {gaps.argmax()} (from 0); "
            f"missing='indicator' fills in the median and marks them"
        )
    if gaps[train].all():
        raise DataError(f"{where} has no value in any training row; drop it")
    filled = np.where(gaps, np.median(values[train][~gaps[train]]), values) if gaps.any() else values
    # Overflow is reported below, by name.
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = scale_column(filled, filled[train], encoding.scale).astype(np.float32)
    if not np.isfinite(scaled).all():
        raise DataError(
            f"{where} holds values too large for float32 (up to {np.abs(filled).max():g}); try scale='log1p'"
        )
    marks = [(f"{name} missing", gaps.astype(np.float32))] if gaps[train].any() else []
    return [(name, scaled), *marks]


def scale_column(values: Floats, fitted_on: Floats, scale: Scale) -> Floats:
    """Return values scaled by what ``fitted_on`` holds; see :class:`Encoding`."""
    if scale == "log1p":
        return scale_column(symmetric_log(values), symmetric_log(fitted_on), "standard")
    low, high = fitted_on.min(), fitted_on.max()
    offset, spread = (low, high - low) if scale == "minmax" else (fitted_on.mean(), fitted_on.std())
    # Rounding leaves constants a spread of 1e-17; the squares of denormal numbers leave others none.
    return shift_and_scale(values, offset, 0.0 if low == high else spread, scale)


def shift_and_scale(values: Floats, offset: float, spread: float, scale: Scale) -> Floats:
    """Return ``(values − offset) / spread``, zeros for a spread of 0, clipped under ``"minmax"``.

    Under ``"log1p"`` the values are logarithms already; under ``"none"`` they stay as they are.
    """
    if scale == "none":
        return values
    if spread == 0:
        return np.zeros_like(values)
    # Divided by an infinite spread, values would silently become zero.
    scaled: Floats = (values - offset) / (spread if np.isfinite(spread) else np.nan)
    return np.clip(scaled, 0.0, 1.0) if scale == "minmax" else scaled


def symmetric_log(values: Floats) -> Floats:
    """Return ``sign(x)·log(1 + abs(x))``."""
    # Counts such as Criteo's I2 go down to -3, where log1p itself is undefined.
    logs: Floats = np.copysign(np.log1p(np.abs(values)), values)
    return logs


def _vocabulary(column: pa.Array, train: Rows, min_count: int) -> tuple[Codes, list[Any]]:
    """Return codes (1 for the first category, 0 for others) and the categories, sorted, a missing one last."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    values = encoded.dictionary.to_pylist()
    counts = np.bincount(indices[train], minlength=len(values))
    kept = [index for index in range(len(values)) if counts[index] >= min_count]
    kept.sort(key=lambda index: (values[index] is None, values[index]))
    code_of = np.zeros(len(values), np.int64)
    code_of[kept] = np.arange(1, len(kept) + 1)
    return code_of[indices], [values[index] for index in kept]


def _onehot(name: str, codes: Codes, values: list[Any], source: str) -> list[tuple[str, npt.NDArray[np.float32]]]:
    if len(values) > ONEHOT_LIMIT:
        raise DataError(
            f"column {name!r} of {source} has {len(values)} categories, and one-hot takes {ONEHOT_LIMIT} at most; "
            f"drop it, raise min_count, or use categorical='index'"
        )
    labels = ["missing" if value is None else value for value in values]
    return [(f"{name}={label}", (codes == code).astype(np.float32)) for code, label in enumerate(labels, start=1)]
