"""Turn a party's columns into numbers, by what :mod:`splitvfl.data.fitting` has learned of them.

:class:`TableEncoder` does it a chunk at a time; a table in memory is one chunk. What was fitted in memory is kept as
JSON, in which numbers come back to the bit; what was fitted of ingested files, as :mod:`splitvfl.data.schema` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Final, Literal, Protocol, assert_never, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.cell_format import AS_USUAL, CellFormat, Origin, as_trained
from splitvfl.data.chunks import Chunk
from splitvfl.data.drift import ColumnDrift, Counts, Profile, compared, counted_codes, counted_numbers
from splitvfl.data.plain_columns import list_lengths, list_places
from splitvfl.data.ranges import Bounds
from splitvfl.data.spelling import setting
from splitvfl.data.tables import check_usable, is_number, is_text, numbers
from splitvfl.errors import ArgumentError, DataError

Scale = Literal["standard", "minmax", "log1p", "none"]
Missing = Literal["error", "indicator"]
Categorical = Literal["onehot", "index"]

Floats = npt.NDArray[np.float64]
Block = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64 | np.int32]

_FINITE: Final = "write a finite number, or nothing where it is not known"

_LONGEST_LIST: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How columns become numbers.

    Numeric columns (numbers and truth values) are filled, then scaled, by what training rows show unless there are
    public ranges (:mod:`splitvfl.data.ranges`); columns that do not vary over the training
    rows become zero under every scale but ``"none"``. Categorical columns are text, and those that ``load`` is told
    to take as such; a missing value is a category of its own.

    Attributes:
        scale: ``"standard"``: (x − mean) / standard deviation. ``"minmax"``: (x − min) / (max − min), other rows
            clipped to [0, 1]. ``"log1p"``: sign(x)·log(1 + abs(x)), then standard. ``"none"``: as it is.
        missing: ``"error"``: missing numbers raise. ``"indicator"``: the training median is filled in, and a column
            with missing training values is followed by one that is 1 where the value was missing.
        categorical: ``"onehot"``: one column in {0, 1} per training category, all zero for others.
            ``"index"``: a code from 1 in sorted order, 0 for others. Default: one-hot in memory, and codes where files
            are ingested.
        min_count: Categories with fewer training rows count as "others".

    Raises:
        ArgumentError: If a setting is not one of these.
    """

    scale: Scale = "standard"
    missing: Missing = "error"
    categorical: Categorical | None = None
    min_count: int = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        check_one_of("scale", self.scale, get_args(Scale))
        check_one_of("missing", self.missing, get_args(Missing))
        check_one_of("categorical", self.categorical or "onehot", get_args(Categorical))
        if self.min_count < 1:
            raise ArgumentError(f"expected min_count from 1, got {self.min_count}")


def check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Check that a setting is one of a few words.

    Raises:
        ArgumentError: If not.
    """
    if value not in allowed:
        raise ArgumentError(f"expected {name} one of {', '.join(allowed)}, got {value!r}")


@dataclass(frozen=True, eq=False)
class Encoded:
    """Columns as numbers, for all rows of a chunk.

    Attributes:
        numeric: ``(rows, d)``, float32.
        names: ``d`` names.
        codes: ``(rows, f)``, int64; int32 where files are ingested.
        field_sizes: Vocabulary sizes of the ``f`` fields, code 0 included.
        field_names: Names of the ``f`` fields.
        unknown: Rows whose category is not one of the fitted ones, by column; of columns that have any.
        counts: What was counted to find drift, by column; empty unless that was asked for.
    """

    numeric: Block
    names: tuple[str, ...]
    codes: Codes
    field_sizes: tuple[int, ...]
    field_names: tuple[str, ...]
    unknown: Mapping[str, int]
    counts: Mapping[str, Counts] = field(default_factory=dict)


class FittedNumbers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="numbers", tag_field="fitted"):
    """What was learned of a numeric column.

    Attributes:
        column: Its name.
        scale: See :class:`Encoding`.
        offset: What is subtracted, after the logarithm under ``"log1p"``.
        spread: What that is divided by; 0 where the column does not vary: it becomes zero.
        median: What fills gaps; ``None`` where they raise.
        marked: Whether a second column is 1 where the value was missing.
        bounds: Public bounds that values are clipped to before anything else, and that all of this follows from;
            ``None``: it was learned from training rows.
    """

    column: str
    scale: Scale
    offset: float
    spread: float
    median: float | None
    marked: bool
    bounds: Bounds | None = None
    size: ClassVar[int] = 0

    @property
    def is_learned(self) -> bool:
        """Whether what becomes of a value depends on training rows."""
        return self.bounds is None and (self.scale != "none" or self.median is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that it gives."""
        return (self.column, f"{self.column} missing") if self.marked else (self.column,)

    @property
    def known_profile(self) -> Profile:
        """What is known of the training values without a profile: maybe their range, and that none was missing."""
        gaps = 0 if self.bounds is None and not self.marked else None
        if self.bounds is not None:
            return Profile(low=self.bounds[0], high=self.bounds[1])
        if self.scale == "minmax":
            return Profile(gaps=gaps, low=self.offset, high=self.offset + self.spread)
        return Profile(gaps=gaps)

    def decoded(self, scaled: Block) -> Floats:
        """Return values that training saw from what :meth:`encode` made of them, up to rounding."""
        values = scaled.astype(np.float64)
        if self.scale != "none":
            values = values * self.spread + self.offset
        return np.copysign(np.expm1(np.abs(values)), values) if self.scale == "log1p" else values

    def encode(self, chunk: Chunk) -> Block:
        """Return the column filled, scaled and marked: ``(rows, 1)``, or ``(rows, 2)`` with marks.

        Raises:
            DataError: If it holds infinite or too large numbers, or none where they may not be missing.
        """
        values = numbers(chunk.columns[self.column])
        check_numbers(values, self.column, chunk, may_miss=self.median is not None)
        gaps = np.isnan(values)
        filled = values if self.median is None else np.where(gaps, self.median, values)
        filled = filled if self.bounds is None else np.clip(filled, *self.bounds)
        with np.errstate(over="ignore", invalid="ignore"):
            logs = symmetric_log(filled) if self.scale == "log1p" else filled
            scaled = shift_and_scale(logs, self.offset, self.spread, self.scale).astype(np.float32)
        beyond = ~np.isfinite(scaled)
        if beyond.any():
            first, log = int(beyond.argmax()), setting("scale", "log1p")
            raise chunk.mistake(
                self.column,
                first,
                of_all=f"holds values too large for float32 (up to {np.abs(filled).max():g}); try {log}",
                of_row=f"{values[first]:g} is too large for float32; try {log}",
            )
        return np.stack([scaled, gaps.astype(np.float32)], axis=1) if self.marked else scaled[:, None]


def check_numbers(values: Floats, column: str, chunk: Chunk, *, may_miss: bool) -> None:
    """Check that numbers are finite, and there where they may not be missing.

    Raises:
        DataError: If not.
    """
    infinite = np.isinf(values)
    if infinite.any():
        first = int(infinite.argmax())
        raise chunk.mistake(
            column,
            first,
            of_all=f"is infinite in {infinite.sum()} rows, first in row {first} (from 0); {_FINITE}",
            of_row=f"expected a finite number, got {values[first]}; {_FINITE}",
        )
    gaps = np.zeros(0, bool) if may_miss else np.isnan(values)
    if gaps.any():
        first, marked = int(gaps.argmax()), setting("missing", "indicator")
        raise chunk.mistake(
            column,
            first,
            of_all=f"has no value in {gaps.sum()} of {gaps.size} rows, first in row {first} (from 0); "
            f"{marked}, set before training, fills in the median and marks them",
            of_row=f"there is no value; {marked}, set before training, fills in the median of the training rows and "
            "marks the gap",
        )


class CategoryCoder(Protocol):
    """Gives the codes of a categorical column."""

    @property
    def column(self) -> str:
        """Its name."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its columns in {0, 1}, for the codes from 1; empty where codes stay codes."""

    @property
    def size(self) -> int:
        """Number of codes, 0 included; 0 where they do not stay codes."""

    def codes(self, column: pa.Array) -> Codes:
        """Return one code per row; 0 for an unknown value."""


class FittedCategories(msgspec.Struct, frozen=True, kw_only=True, tag="categories", tag_field="fitted"):
    """What was learned of a categorical column in memory.

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
        """Number of codes, 0 included; 0 where each has a column."""
        return 0 if self.onehot else len(self.values) + 1

    def codes(self, column: pa.Array) -> Codes:
        """Return a code for each row, 0 for a category that is not listed."""
        known = {self._key(value): code for code, value in enumerate(self.values, start=1)}
        found = pc.dictionary_encode(as_categories(column), null_encoding="encode")
        code_of = np.array([known.get(self._key(value), 0) for value in found.dictionary.to_pylist()], np.int64)
        codes: Codes = code_of[found.indices.to_numpy(zero_copy_only=False)]
        return codes

    def _key(self, value: Any) -> Any:
        return value if value is None or self.kind != "decimal" else Decimal(str(value))


class FittedEncoding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What :func:`splitvfl.data.fitting.fit_encoding` learned; as JSON through ``msgspec.json``.

    Attributes:
        columns: One entry per column, in their order.
        written: How the cells of the table were written, so that new records are read alike.
        lists: Columns of lists that some of them are places of, and how long the lists are.
        profiles: What the training values looked like, by column, to find drift in new ones. Empty where an earlier
            version fitted, and where public ranges stand in place of what training rows show.

    Raises:
        ArgumentError: If lists are longer than a table has columns: an encoding may come from somebody else's folder.
    """

    columns: tuple[FittedNumbers | FittedCategories, ...]
    written: CellFormat = AS_USUAL
    lists: dict[str, int] = {}
    profiles: dict[str, Profile] = {}

    def __post_init__(self) -> None:
        """Check the lengths of lists, before memory is taken for their places."""
        if not all(0 < length <= _LONGEST_LIST for length in self.lists.values()):
            raise ArgumentError(f"expected lists of 1 to {_LONGEST_LIST:,} numbers")

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns that hold text, whatever a new file's cells look like."""
        return tuple(one.column for one in self.columns if isinstance(one, FittedCategories) and one.kind == "text")

    @property
    def indicators(self) -> dict[str, tuple[str, ...]]:
        """Names of the columns in {0, 1} that a column of categories became, by its name; those of codes have none."""
        categories = (one for one in self.columns if isinstance(one, FittedCategories))
        return {one.column: one.names for one in categories if one.names}

    def read(self, table: pa.Table, origin: Origin) -> pa.Table:
        """Return new records whose cells are read as those of the training were; raises as :meth:`apply`."""
        text = self.text_columns
        numbers = {one.column for one in self.columns} - set(text)
        return as_trained(table, self.written, numbers=numbers, text=text, place=origin.place, typed=origin.typed)

    def encodes_like(self, other: FittedEncoding | None) -> bool:
        """Return whether another encoding gives the same numbers, whatever is known of the training values."""
        if other is None:
            return False
        return (self.columns, self.written, self.lists) == (other.columns, other.written, other.lists)

    def drift(self, counts: Mapping[str, Counts]) -> tuple[ColumnDrift, ...]:
        """Return how new records differ from those of the training, by what :meth:`apply` counted of them."""
        known = {one.column: one.known_profile for one in self.columns if isinstance(one, FittedNumbers)}
        return compared(counts, known | self.profiles)

    def apply(self, table: pa.Table, *, source: str, count: bool = False) -> Encoded:
        """Return the columns of a table as numbers, in the table's order; columns that were not fitted are left out.

        Text in columns of numbers is read as in training where settings said how it is written. A category that was not
        listed gets zeros, or code 0, and is counted.

        Args:
            table: The table; at least the fitted columns.
            source: Where it comes from, for messages.
            count: Whether to count what :meth:`drift` compares with the training.

        Raises:
            DataError: If a column is missing, is of another kind, or holds what cannot be encoded.
        """
        table = self.with_lists(table, source=source)
        table = self.read(table, Origin(source, lambda row: f"{source}, row {row} (from 0)", True, False))
        chunk = Chunk.of(table, [one.column for one in self.columns], source=source)
        texts = frozenset(self.text_columns)
        for name, column in chunk.columns.items():
            text = name in texts
            # Of nothing but missing values nobody can say what they would be.
            if not pa.types.is_null(column.type) and not (is_text if text else is_number)(column):
                expected = "text" if text else "numbers"
                raise DataError(
                    f"column {name!r} of {source} holds {column.type}, and held {expected} when the encoding was fitted"
                )
        return TableEncoder(self.columns).apply(chunk, profiles=self.profiles if count else None)

    def with_lists(self, table: pa.Table, *, source: str) -> pa.Table:
        """Return a table whose lists are as long as they were; where no row has one, with their places all the same.

        Args:
            table: A plain table.
            source: Where it comes from, for messages.

        Raises:
            DataError: If lists have another length.
        """
        if not self.lists:
            return table
        found = list_lengths(table.schema)
        for name, length in self.lists.items():
            if found.get(name, length) != length:
                raise DataError(
                    f"column {name!r} of {source} holds lists of {found[name]}, and held lists of {length} when the "
                    "encoding was fitted"
                )
            place = table.schema.get_field_index(name)
            if place >= 0 and pa.types.is_null(table.schema.field(place).type):  # no row has one
                check_usable(table.schema.field(place), source=source)
                fields = [pa.field(one, pa.null()) for one in list_places(name, length)]
                schema = pa.schema([*table.schema.remove(place), *fields])
                table = pa.table([*table.drop_columns([name]).columns, *[pa.nulls(table.num_rows)] * length], schema)
        return table


def same_numbers(one: FittedEncoding | None, other: FittedEncoding | None) -> bool:
    """Return whether two encodings give the same numbers, or there is none of either."""
    return other is None if one is None else one.encodes_like(other)


@dataclass(frozen=True)
class TableEncoder:
    """Turns chunks of a table into numbers, column by column.

    Attributes:
        columns: What was learned of each, in their order.
    """

    columns: Sequence[FittedNumbers | CategoryCoder]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of numbers."""
        return tuple(name for one in self.columns for name in one.names)

    @property
    def fields(self) -> Mapping[str, int]:
        """Columns that stay codes, and their numbers of codes."""
        return {one.column: one.size for one in self.columns if one.size}

    def apply(self, chunk: Chunk, *, profiles: Mapping[str, Profile] | None = None) -> Encoded:
        """Return some rows as numbers.

        Args:
            chunk: The rows.
            profiles: What training values looked like, by column, to count what :mod:`splitvfl.data.drift` compares;
                ``None``: nothing is counted.

        Raises:
            DataError: If a number is infinite, too large for float32, or missing where it may not be.
        """
        blocks: list[Block] = [np.zeros((chunk.rows, 0), np.float32)]
        codes: list[Codes] = []
        unknown: dict[str, int] = {}
        counts: dict[str, Counts] = {}
        for one in self.columns:
            column = chunk.columns[one.column]
            if isinstance(one, FittedNumbers):
                blocks.append(one.encode(chunk))
                if profiles is not None:
                    counts[one.column] = counted_numbers(numbers(column), profiles.get(one.column, one.known_profile))
                continue
            found = one.codes(column)
            if profiles is not None:
                counts[one.column] = counted_codes(found, gaps_of(column), profiles.get(one.column, Profile()))
            if rows := int((found == 0).sum()):
                unknown[one.column] = rows
            blocks += [(found == code).astype(np.float32)[:, None] for code in range(1, len(one.names) + 1)]
            codes += [found[:, None]] if one.size else []
        return Encoded(
            np.concatenate(blocks, axis=1),
            self.names,
            np.concatenate(codes or [np.zeros((chunk.rows, 0), np.int64)], axis=1),
            tuple(self.fields.values()),
            tuple(self.fields),
            unknown,
            counts,
        )


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


def as_categories(column: pa.Array) -> pa.Array:
    """Return a column whose equal numbers are one category: NaN is missing, and negative zero is zero."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.add(pc.if_else(pc.is_nan(column), None, column), 0.0)


def gaps_of(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return in which rows of a categorical column there is no value; ``None``: all rows have one."""
    found = as_categories(column)
    if not found.null_count:
        return None
    gaps: npt.NDArray[np.bool_] = found.is_null().to_numpy(zero_copy_only=False)
    return gaps
