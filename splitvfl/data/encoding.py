"""Turn a party's columns into numbers. Whatever is estimated is estimated on training rows only.

:func:`fit_encoding` estimates, :meth:`FittedEncoding.apply` turns columns into numbers: those that were fitted on, or
new ones, years later. What was fitted is kept as JSON, in which numbers come back to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, assert_never, get_args

import msgspec
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
        unknown: Rows whose category is not one of the fitted ones, by column; of columns that have any.
    """

    numeric: npt.NDArray[np.float32]
    names: tuple[str, ...]
    codes: Codes
    field_sizes: tuple[int, ...]
    field_names: tuple[str, ...]
    unknown: Mapping[str, int] = field(default_factory=dict)


class FittedNumbers(msgspec.Struct, frozen=True, kw_only=True, tag="numbers", tag_field="fitted"):
    """What was learned of a numeric column.

    Attributes:
        column: Its name.
        scale: See :class:`Encoding`.
        offset: What is subtracted, after the logarithm under ``"log1p"``.
        spread: What that is divided by; 0 where the column does not vary: it becomes zero.
        median: What fills gaps; ``None`` where they raise.
        marked: Whether a second column is 1 where the value was missing.
    """

    column: str
    scale: Scale
    offset: float
    spread: float
    median: float | None
    marked: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that it gives."""
        return (self.column, f"{self.column} missing") if self.marked else (self.column,)

    def encode(self, values: Floats) -> npt.NDArray[np.float32]:
        """Return numbers filled, scaled and marked: ``(rows, 1)``, or ``(rows, 2)`` with marks.

        One that is too large for float32 becomes infinite or NaN.

        Args:
            values: Finite numbers, and NaN where a value is missing.
        """
        gaps = np.isnan(values)
        filled = _filled(values, gaps, self.median)
        with np.errstate(over="ignore", invalid="ignore"):
            logs = symmetric_log(filled) if self.scale == "log1p" else filled
            scaled = shift_and_scale(logs, self.offset, self.spread, self.scale).astype(np.float32)
        return np.stack([scaled, gaps.astype(np.float32)], axis=1) if self.marked else scaled[:, None]

    def block(self, column: pa.Array, where: str) -> npt.NDArray[np.float32]:
        """Return the column as numbers, ``(rows, 1)`` or, with marks, ``(rows, 2)``.

        Args:
            column: Its values.
            where: What to call it in messages.

        Raises:
            DataError: If it holds text, infinite or too large numbers, or none where they may not be missing.
        """
        if not is_number(column):
            raise DataError(f"{where} holds {column.type}, and held numbers when the encoding was fitted")
        values = numbers(column)
        gaps = _gaps(values, where, may_miss=self.median is not None)
        block = self.encode(values)
        if not np.isfinite(block).all():
            largest = np.abs(_filled(values, gaps, self.median)).max()
            raise DataError(f"{where} holds values too large for float32 (up to {largest:g}); try scale='log1p'")
        return block


class FittedCategories(msgspec.Struct, frozen=True, kw_only=True, tag="categories", tag_field="fitted"):
    """What was learned of a categorical column.

    Attributes:
        column: Its name.
        kind: What its cells hold; numbers with a fixed number of decimals are kept as text, and so is a column in
            which a number is infinite.
        values: The categories in the order of their codes, from 1; ``None`` stands for a missing value.
        onehot: Whether each category gets a column in {0, 1}, or all of them one column of codes.
    """

    column: str
    kind: Literal["text", "number", "decimal"]
    values: tuple[str | int | float | bool | None, ...]
    onehot: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its columns in {0, 1}."""
        labels = ("missing" if value is None else value for value in self.values)
        return tuple(f"{self.column}={label}" for label in labels) if self.onehot else ()

    @property
    def size(self) -> int:
        """Number of codes, 0 included."""
        return len(self.values) + 1

    def codes(self, column: pa.Array, where: str) -> Codes:
        """Return a code for each row, 0 for a category that is not listed.

        Args:
            column: Its values.
            where: What to call it in messages.

        Raises:
            DataError: If it holds text instead of numbers, or the other way round.
        """
        # Of nothing but missing values nobody can say what they would be.
        if not pa.types.is_null(column.type) and not (is_text if self.kind == "text" else is_number)(column):
            expected = "text" if self.kind == "text" else "numbers"
            raise DataError(f"{where} holds {column.type}, and held {expected} when the encoding was fitted")
        known = {self._key(value): code for code, value in enumerate(self.values, start=1)}
        indices, found = _distinct(column)
        code_of = np.array([known.get(self._key(value), 0) for value in found], np.int64)
        codes: Codes = code_of[indices]
        return codes

    def _key(self, value: Any) -> Any:
        return value if value is None or self.kind != "decimal" else Decimal(str(value))


class FittedEncoding(msgspec.Struct, frozen=True, kw_only=True):
    """What :func:`fit_encoding` learned; as JSON through ``msgspec.json``.

    Attributes:
        columns: One entry per column, in their order.
    """

    columns: tuple[FittedNumbers | FittedCategories, ...]

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns that hold text, whatever a new file's cells look like."""
        return tuple(one.column for one in self.columns if isinstance(one, FittedCategories) and one.kind == "text")

    def apply(self, table: pa.Table, *, source: str) -> Encoded:
        """Return the columns of a table as numbers, in the table's order; columns that were not fitted are left out.

        A category that was not listed gets zeros, or code 0, and is counted.

        Args:
            table: The table; at least the fitted columns.
            source: Where it comes from, for messages.

        Raises:
            DataError: If a column is missing, is of another kind, or holds what cannot be encoded.
        """
        blocks: list[npt.NDArray[np.float32]] = []
        codes: list[Codes] = []
        unknown: dict[str, int] = {}
        for fitted in self.columns:
            column, where = column_of(table, fitted.column, source=source), _where(fitted.column, source)
            if isinstance(fitted, FittedNumbers):
                blocks.append(fitted.block(column, where))
                continue
            found = fitted.codes(column, where)
            unknown[fitted.column] = int((found == 0).sum())
            if fitted.onehot:
                blocks += [(found == code).astype(np.float32)[:, None] for code in range(1, fitted.size)]
            else:
                codes.append(found)
        return Encoded(
            _joined(blocks, table.num_rows),
            tuple(name for fitted in self.columns for name in fitted.names),
            np.concatenate([np.zeros((table.num_rows, 0), np.int64), *(one[:, None] for one in codes)], axis=1),
            tuple(fitted.size for fitted in self._fields),
            tuple(fitted.column for fitted in self._fields),
            {name: rows for name, rows in unknown.items() if rows},
        )

    @property
    def _fields(self) -> list[FittedCategories]:
        return [one for one in self.columns if isinstance(one, FittedCategories) and not one.onehot]


def _joined(blocks: Sequence[npt.NDArray[np.float32]], rows: int) -> npt.NDArray[np.float32]:
    joined = np.empty((rows, sum(block.shape[1] for block in blocks)), np.float32)
    position = 0
    for block in blocks:
        joined[:, position : position + block.shape[1]] = block
        position += block.shape[1]
    return joined


def fit_encoding(
    table: pa.Table,
    columns: Sequence[str],
    *,
    train: Rows,
    encoding: Encoding,
    categories: Collection[str],
    scales: Mapping[str, Scale] | None = None,
    source: str,
) -> FittedEncoding:
    """Return what the training rows say of how to encode these columns.

    Args:
        table: The whole table.
        columns: Names of the columns to encode.
        train: Positions of the training rows.
        encoding: How.
        categories: Columns to take as categorical although they hold numbers.
        scales: Columns that are scaled otherwise.
        source: Where the table comes from, for messages.

    Raises:
        DataError: If numbers are missing and may not be, or are infinite, a column holds neither numbers nor text, has
            no training value at all, or has too many categories for one-hot.
    """
    fitted: list[FittedNumbers | FittedCategories] = []
    for name in columns:
        column, where = column_of(table, name, source=source), _where(name, source)
        if not is_text(column) and not is_number(column):
            raise DataError(f"{where} holds neither numbers nor text but {column.type}; drop it")
        if is_text(column) or name in categories:
            fitted.append(_fit_categories(name, column, train, encoding, where))
        else:
            own = replace(encoding, scale=(scales or {}).get(name, encoding.scale))
            fitted.append(_fit_numbers(name, numbers(column), train, own, where))
    return FittedEncoding(columns=tuple(fitted))


def _where(column: str, source: str) -> str:
    return f"column {column!r} of {source}"


def _fit_numbers(name: str, values: Floats, train: Rows, encoding: Encoding, where: str) -> FittedNumbers:
    gaps = _gaps(values, where, may_miss=encoding.missing == "indicator")
    if gaps[train].all():
        raise DataError(f"{where} has no value in any training row; drop it")
    median = float(np.median(values[train][~gaps[train]])) if encoding.missing == "indicator" else None
    filled = _filled(values[train], gaps[train], median)
    with np.errstate(over="ignore", invalid="ignore"):  # reported when it is applied
        offset, spread = _fit_scale(filled, encoding.scale)
    return FittedNumbers(
        column=name,
        scale=encoding.scale,
        offset=offset,
        spread=spread,
        median=median,
        marked=bool(gaps[train].any()),
    )


def _filled(values: Floats, gaps: npt.NDArray[np.bool_], median: float | None) -> Floats:
    return values if median is None else np.where(gaps, median, values)


def _gaps(values: Floats, where: str, *, may_miss: bool) -> npt.NDArray[np.bool_]:
    """Return where numbers are missing, after a check that they are finite, and there where they must be."""
    if np.isinf(values).any():
        count, first = np.isinf(values).sum(), np.isinf(values).argmax()
        raise DataError(f"{where} is infinite in {count} rows, first in row {first} (from 0)")
    gaps = np.isnan(values)
    if gaps.any() and not may_miss:
        raise DataError(
            f"{where} has no value in {gaps.sum()} of {gaps.size} rows, first in row {gaps.argmax()} (from 0); "
            f"missing='indicator' fills in the median and marks them"
        )
    return gaps


def scale_column(values: Floats, fitted_on: Floats, scale: Scale) -> Floats:
    """Return values scaled by what ``fitted_on`` holds; see :class:`Encoding`."""
    offset, spread = _fit_scale(fitted_on, scale)
    return shift_and_scale(symmetric_log(values) if scale == "log1p" else values, offset, spread, scale)


def _fit_scale(fitted_on: Floats, scale: Scale) -> tuple[float, float]:
    """Return offset and spread as :func:`shift_and_scale` takes them."""
    match scale:
        case "none":
            return 0.0, 1.0
        case "minmax":
            offset, spread = fitted_on.min(), fitted_on.max() - fitted_on.min()
        case "standard":
            offset, spread = fitted_on.mean(), fitted_on.std()
        case "log1p":
            fitted_on = symmetric_log(fitted_on)
            offset, spread = fitted_on.mean(), fitted_on.std()
        case _:
            assert_never(scale)
    # Rounding leaves constants a spread of 1e-17; the squares of denormal numbers leave others none.
    return float(offset), 0.0 if fitted_on.min() == fitted_on.max() else float(spread)


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
    match scale:
        case "minmax":
            return np.clip(scaled, 0.0, 1.0)
        case "standard" | "log1p":
            return scaled
        case _:
            assert_never(scale)


def symmetric_log(values: Floats) -> Floats:
    """Return ``sign(x)·log(1 + abs(x))``."""
    # Counts such as Criteo's I2 go down to -3, where log1p itself is undefined.
    logs: Floats = np.copysign(np.log1p(np.abs(values)), values)
    return logs


def _fit_categories(name: str, column: pa.Array, train: Rows, encoding: Encoding, where: str) -> FittedCategories:
    """Return the categories with enough training rows, sorted, a missing one last."""
    indices, found = _distinct(column)
    counts = np.bincount(indices[train], minlength=len(found))
    kept = [value for value, count in zip(found, counts, strict=True) if count >= encoding.min_count]
    kept.sort(key=lambda value: (value is None, value))
    onehot = encoding.categorical == "onehot"
    if onehot and len(kept) > ONEHOT_LIMIT:
        raise DataError(
            f"{where} has {len(kept)} categories, and one-hot takes {ONEHOT_LIMIT} at most; "
            f"drop it, raise min_count, or use categorical='index'"
        )
    # JSON has no infinite numbers: they would come back as missing.
    if pa.types.is_decimal(column.type) or any(isinstance(value, float) and math.isinf(value) for value in kept):
        texts = (None if value is None else str(value) for value in kept)
        return FittedCategories(column=name, kind="decimal", values=tuple(texts), onehot=onehot)
    kind: Literal["text", "number"] = "text" if is_text(column) else "number"
    return FittedCategories(column=name, kind=kind, values=tuple(kept), onehot=onehot)


def _distinct(column: pa.Array) -> tuple[Codes, list[Any]]:
    """Return each row's position in a list of the different values, and that list."""
    encoded = pc.dictionary_encode(as_categories(column), null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def as_categories(column: pa.Array) -> pa.Array:
    """Return a column whose equal numbers are one category: NaN is missing, and negative zero is zero."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.add(pc.if_else(pc.is_nan(column), None, column), 0.0)
