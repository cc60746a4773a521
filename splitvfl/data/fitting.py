"""Learn how columns become numbers, from their training rows and chunk by chunk; a table in memory is one chunk.

There is one way to fit a column, and two ways to add up its numbers. A table in memory is kept until it is fitted;
gaps are filled where they are, and NumPy adds up the whole (:class:`WholeSums`). Files of any size are added up in one
pass and bounded memory (:class:`RunningSums`): the median that fills gaps is known when that pass is over, may be an
estimate, and enters as so many equal numbers. Such sums are rounded once, in the end, and do not depend on the order of
the rows, nor on how they are divided among chunks, files and machines. NumPy's are rounded on the way; the two differ
by that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.data.chunks import Chunk, Mask
from splitvfl.data.drift import Profile, profile_of_codes, profile_of_numbers
from splitvfl.data.encoding import (
    Encoding,
    FittedCategories,
    FittedEncoding,
    FittedNumbers,
    Floats,
    Scale,
    check_numbers,
    gaps_of,
    symmetric_log,
)
from splitvfl.data.exact_moments import ExactMoments
from splitvfl.data.plain_columns import list_lengths
from splitvfl.data.ranges import Bounds, Ranges
from splitvfl.data.spelling import setting
from splitvfl.data.tables import Rows, is_number, is_text, numbers, what_else
from splitvfl.data.vocabulary import CategoryCounter
from splitvfl.errors import DataError

# Wider one-hot blocks are nearly always an identifier taken for a category, and fill the memory first.
ONEHOT_LIMIT = 1000

# Different values up to which the median is exact.
EXACT_VALUES = 1 << 16
# Bits of the significand that are kept beyond that, in turn, without the leading one: errors of 2^-24 to 2^-8.
_PRECISIONS = (52, 23, 16, 12, 9, 7)
COARSEST = len(_PRECISIONS) - 1


class SketchCounts(NamedTuple):
    """What a :class:`MedianSketch` keeps.

    Attributes:
        level: How coarse it has become, from 0, where it is exact, to :data:`COARSEST`.
        values: Different values, ascending, cut off after as many bits as the level says, ``(n,)``.
        counts: How often each occurred, ``(n,)``.
    """

    level: int
    values: Floats
    counts: npt.NDArray[np.int64]

    @property
    def is_sound(self) -> bool:
        """Whether a sketch may keep this: finite values, ascending, not too many nor of too many bits; and counts."""
        if not 0 <= self.level <= COARSEST or self.values.shape != self.counts.shape:
            return False
        cut = _truncated(self.values, _PRECISIONS[self.level])
        return bool(
            np.isfinite(self.values).all()
            and (np.diff(self.values) > 0).all()
            and (cut == self.values).all()
            and (self.counts > 0).all()
            and (self.values.size <= EXACT_VALUES or self.level == COARSEST)
        )


class MedianSketch:
    """The median of a stream of numbers.

    Exact while there are no more than 65 536 different values. Beyond, values that agree in their first 24 significant
    bits are taken for one, then those that agree in 17, 13, 10 and 8, as far as it takes; the median is the middle of
    such an interval. It does not depend on the order of the stream, nor on how it is cut.
    """

    def __init__(self) -> None:
        self._values: Floats = np.zeros(0)
        self._counts: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._level = 0

    @property
    def error(self) -> float:
        """Bound of the relative error."""
        return 0.0 if self._level == 0 else 2.0 ** -(_PRECISIONS[self._level] + 1)

    @property
    def counts(self) -> SketchCounts:
        """What it keeps."""
        return SketchCounts(self._level, self._values, self._counts)

    def add(self, values: Floats) -> None:
        """Take in finite numbers."""
        found, counts = np.unique(_truncated(values, _PRECISIONS[self._level]), return_counts=True)
        self._add(found, counts)

    def merge(self, other: SketchCounts) -> None:
        """Take in what another sketch kept: the result is that of one sketch of both streams."""
        self._coarsen(max(self._level, other.level))
        self._add(_truncated(other.values, _PRECISIONS[self._level]), other.counts)

    def _add(self, values: Floats, counts: npt.NDArray[np.int64]) -> None:
        self._values, self._counts = _added(self._values, self._counts, values, counts)
        while self._values.size > EXACT_VALUES and self._level < COARSEST:
            self._coarsen(self._level + 1)

    def _coarsen(self, level: int) -> None:
        self._level = level
        coarser = _truncated(self._values, _PRECISIONS[level])
        self._values, self._counts = _added(np.zeros(0), np.zeros(0, np.int64), coarser, self._counts)

    def median(self) -> float:
        """Return the median; the mean of the two middle values where their number is even."""
        ends = np.cumsum(self._counts)
        middle = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
        low, high = (self._centre(float(value)) for value in self._values[middle])
        return 0.5 * low + 0.5 * high

    def _centre(self, value: float) -> float:
        if self._level == 0 or value == 0:
            return value
        return value * (1 + self.error / _significand(value))


def _significand(value: float) -> float:
    """Return the significand, in [1, 2)."""
    return 2 * abs(math.frexp(value)[0])


def _added(
    values: Floats, counts: npt.NDArray[np.int64], more: Floats, their_counts: npt.NDArray[np.int64]
) -> tuple[Floats, npt.NDArray[np.int64]]:
    together, positions = np.unique(np.concatenate([values, more]), return_inverse=True)
    sums = np.zeros(together.size, np.int64)
    np.add.at(sums, positions, np.concatenate([counts, their_counts]))
    return together, sums


def _truncated(values: Floats, bits: int) -> Floats:
    """Return values with all but so many bits of the significand zero: twice in a row is as good as once."""
    cut = np.uint64(52 - bits)
    truncated: Floats = ((np.ascontiguousarray(values).view(np.uint64) >> cut) << cut).view(np.float64)
    return truncated


class Extent(NamedTuple):
    """What a column's training values come to, once gaps are filled; after the logarithm where that is taken."""

    low: float
    high: float
    mean: float
    deviation: float


class Sums(ABC):
    """Adds up the training values of one column.

    Args:
        log: Whether logarithms are added up.

    Attributes:
        known: Number of values.
        gaps: Number of gaps.
    """

    def __init__(self, *, log: bool) -> None:
        self._log = log
        self.known = 0
        self.gaps = 0

    @abstractmethod
    def add(self, values: Floats) -> None:
        """Take in training rows: finite numbers, and NaN where a value is missing."""

    @abstractmethod
    def median(self) -> float:
        """Return the median of the values."""

    @abstractmethod
    def extent(self, fill: float | None) -> Extent:
        """Return what the values come to, with this one in each gap."""

    def _count(self, values: Floats) -> Floats:
        known: Floats = values[~np.isnan(values)]
        self.known += known.size
        self.gaps += values.size - known.size
        return known


class WholeSums(Sums):
    """Sums over a table in memory, as NumPy adds them up in the order of the rows."""

    def __init__(self, *, log: bool) -> None:
        super().__init__(log=log)
        self._values: Floats = np.zeros(0)

    def add(self, values: Floats) -> None:
        """Take in training rows."""
        self._count(values)
        self._values = np.concatenate([self._values, values])

    @property
    def values(self) -> Floats:
        """All of them, NaN where one is missing."""
        return self._values

    def median(self) -> float:
        """Return the median, exactly."""
        return float(np.median(self._values[~np.isnan(self._values)]))

    def extent(self, fill: float | None) -> Extent:
        """Return what the values come to once gaps are filled."""
        values = self._values if fill is None else np.where(np.isnan(self._values), fill, self._values)
        values = symmetric_log(values) if self._log else values
        return Extent(float(values.min()), float(values.max()), float(values.mean()), float(values.std()))


@dataclass(frozen=True, eq=False, kw_only=True)
class KeptSums:
    """What :class:`RunningSums` keep of a stream of numbers.

    Attributes:
        known: Number of values.
        gaps: Number of gaps.
        low: Smallest value, as in the file; infinite where there is none.
        high: Largest value, likewise.
        moments: Count and sums of the values, or of their logarithms; ``None`` where neither was asked for.
        sketch: What is kept for the median; ``None`` where it was not asked for.
    """

    known: int
    gaps: int
    low: float
    high: float
    moments: ExactMoments | None
    sketch: SketchCounts | None


class RunningSums(Sums):
    """Sums over a stream of numbers, in bounded memory.

    They do not depend on the order of the numbers, nor on how the stream is cut or divided.

    Args:
        log: Whether logarithms are added up.
        fill: Whether the median will be asked for.
        scaled: Whether mean and deviation will be asked for.

    Attributes:
        low: Smallest value, as in the file.
        high: Largest value, as in the file.
    """

    def __init__(self, *, log: bool, fill: bool, scaled: bool = True) -> None:
        super().__init__(log=log)
        self._sketch = MedianSketch() if fill else None
        self._moments = ExactMoments() if scaled else None
        self.low, self.high = np.inf, -np.inf

    def add(self, values: Floats) -> None:
        """Take in training rows."""
        known = self._count(values)
        if known.size == 0:
            return
        # Of two zeros it would depend on the order which of them is the smallest value, or the median.
        known = known + 0.0
        self.low, self.high = min(self.low, float(known.min())), max(self.high, float(known.max()))
        if self._moments is not None:
            self._moments.add(symmetric_log(known) if self._log else known)
        if self._sketch is not None:
            self._sketch.add(known)

    def add_gaps(self, rows: int) -> None:
        """Take in training rows without a value."""
        self.gaps += rows

    @property
    def kept(self) -> KeptSums:
        """What is kept of all this."""
        return KeptSums(
            known=self.known,
            gaps=self.gaps,
            low=self.low,
            high=self.high,
            moments=self._moments,
            sketch=None if self._sketch is None else self._sketch.counts,
        )

    def merge(self, other: KeptSums) -> None:
        """Take in what sums of the same settings kept: the result is that of one stream."""
        self.known += other.known
        self.gaps += other.gaps
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        if self._moments is not None and other.moments is not None:
            self._moments.merge(other.moments)
        if self._sketch is not None and other.sketch is not None:
            self._sketch.merge(other.sketch)

    def median(self) -> float:
        """Return the median, within :attr:`median_error`."""
        assert self._sketch is not None, "the median was not asked for"
        return self._sketch.median()

    @property
    def median_error(self) -> float:
        """Bound of the median's relative error."""
        return 0.0 if self._sketch is None else self._sketch.error

    def extent(self, fill: float | None) -> Extent:
        """Return what the values come to with as many more of this one as there are gaps.

        Mean and deviation are NaN where they were not asked for.
        """
        low, high = self.low, self.high
        if self._log:
            low, high = symmetric_log(np.array([low, high])).tolist()
            fill = None if fill is None else float(symmetric_log(np.array([fill]))[0])
        if self._moments is None:
            return Extent(low, high, math.nan, math.nan)
        moments = self._moments.copy()
        if fill is not None:
            moments.add_constant(fill, self.gaps)
        return Extent(low, high, moments.mean, moments.deviation)


class NumericFit:
    """What is learned of one numeric column.

    Args:
        column: Its name.
        scale: How it will be scaled.
        fill: Whether gaps will be filled with the median.
        sums: What adds up its values.
        bounds: Public bounds, from which everything follows in place of the values; ``None``: there are none.
    """

    def __init__(self, column: str, *, scale: Scale, fill: bool, sums: Sums, bounds: Bounds | None = None) -> None:
        self._column = column
        self._bounds = bounds
        self._scale = scale
        self._fill = fill
        self._sums = sums

    def add(self, chunk: Chunk, training: Mask) -> None:
        """Take in the training rows among some rows.

        Raises:
            DataError: If a number is infinite, or missing where it may not be, in any row.
        """
        values = numbers(chunk.columns[self._column])
        check_numbers(values, self._column, chunk, may_miss=self._fill)
        self._sums.add(values[training])

    def fitted(self) -> FittedNumbers:
        """Return how the column becomes numbers; there must be a value."""
        if self._bounds is not None:
            return self._public(self._bounds)
        median = self._sums.median() if self._fill else None
        with np.errstate(over="ignore", invalid="ignore"):  # reported when it is applied
            offset, spread = self._shift(median)
        return FittedNumbers(
            column=self._column,
            scale=self._scale,
            offset=offset,
            spread=spread,
            median=median,
            marked=self._sums.gaps > 0,
        )

    def _public(self, bounds: Bounds) -> FittedNumbers:
        """Return how the column becomes numbers without a look at it: a gap is the middle, and marked if it may be."""
        offset, spread = public_shift(self._scale, bounds)
        return FittedNumbers(
            column=self._column,
            scale=self._scale,
            offset=offset,
            spread=spread,
            median=0.5 * bounds[0] + 0.5 * bounds[1] if self._fill else None,
            # Also where no training row has a gap: whether one has is no public matter.
            marked=self._fill,
            bounds=bounds,
        )

    def _shift(self, median: float | None) -> tuple[float, float]:
        """Return offset and spread; a spread of 0 for what does not vary, as rounding might leave it 1e-17."""
        if self._scale == "none":
            return 0.0, 1.0
        low, high, mean, deviation = self._sums.extent(median)
        match self._scale:
            case "minmax":
                return low, high - low
            case "standard" | "log1p":
                return mean, 0.0 if low == high else deviation
            case _:
                assert_never(self._scale)


def public_shift(scale: Scale, bounds: Bounds) -> tuple[float, float]:
    """Return offset and spread of a column with public bounds: to [0, 1] under ``"minmax"``, else to [−1, 1]."""
    if scale == "none":
        return 0.0, 1.0
    low, high = symmetric_log(np.array(bounds)).tolist() if scale == "log1p" else bounds
    match scale:
        case "minmax":
            return low, high - low
        case "standard" | "log1p":
            return 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low
        case _:
            assert_never(scale)


def fit_encoding(
    table: pa.Table,
    columns: Sequence[str],
    *,
    train: Rows,
    encoding: Encoding,
    categories: Collection[str],
    scales: Mapping[str, Scale] | None = None,
    ranges: Ranges | None = None,
    source: str,
) -> FittedEncoding:
    """Return what the training rows of a table in memory say of how to encode these columns.

    Args:
        table: The whole table.
        columns: Names of the columns to encode.
        train: Positions of the training rows, ascending.
        encoding: How.
        categories: Columns to take as categorical although they hold numbers.
        scales: Columns that are scaled otherwise.
        ranges: Public bounds of every numeric one of these columns; ``None``: what training rows show.
        source: Where the table comes from, for messages.

    Raises:
        DataError: If numbers are missing and may not be, or are infinite, a column holds neither numbers nor text, has
            no training value at all, no range where there are ranges, or too many categories for one-hot.
    """
    chunk = Chunk.of(table, columns, source=source)
    training = np.isin(np.arange(table.num_rows), train)
    fitted: list[FittedNumbers | FittedCategories] = []
    numeric = [name for name, column in chunk.columns.items() if is_number(column) and name not in categories]
    bounds = {} if ranges is None else ranges.of(numeric)
    # With public ranges no record may move anything that others could learn of: then nothing is kept of their values.
    profiles: dict[str, Profile] = {}
    for name, column in chunk.columns.items():
        where = f"column {name!r} of {source}"
        if not is_text(column) and not is_number(column):
            raise DataError(f"{where} {what_else(column.type)}")
        if is_text(column) or name in categories:
            counter = CategoryCounter(column.type)
            rows = column.filter(pa.array(training))
            counter.add(rows)
            fitted.append(listed := _listed(name, counter, encoding, where))
            if ranges is None:
                gaps = gaps_of(rows)
                codes = listed.codes(rows)
                profiles[name] = profile_of_codes(
                    codes, np.zeros(len(codes), bool) if gaps is None else gaps, min_count=encoding.min_count
                )
            continue
        scale = (scales or {}).get(name, encoding.scale)
        sums = WholeSums(log=scale == "log1p")
        fit = NumericFit(name, scale=scale, fill=encoding.missing == "indicator", sums=sums, bounds=bounds.get(name))
        fit.add(chunk, training)
        if sums.known == 0:
            raise DataError(f"{where} has no value in any training row; leave it out ({setting('drop')})")
        fitted.append(fit.fitted())
        if ranges is None:
            profiles[name] = profile_of_numbers(sums.values)
    places = pa.schema([table.schema.field(name) for name in columns])
    return FittedEncoding(columns=tuple(fitted), lists=list_lengths(places), profiles=profiles)


def _listed(name: str, counter: CategoryCounter, encoding: Encoding, where: str) -> FittedCategories:
    """Return the categories with enough training rows, sorted, a missing one last."""
    found = counter.vocabulary(encoding.min_count)
    kept = [*found.values.to_pylist(), *([None] if found.missing_code else [])]
    onehot = encoding.categorical != "index"
    if onehot and len(kept) > ONEHOT_LIMIT:
        raise DataError(
            f"{where} has {len(kept)} categories, and one-hot takes {ONEHOT_LIMIT} at most; "
            f"leave it out ({setting('drop')}), raise {setting('min_count')}, or take {setting('categorical', 'index')}"
        )
    kind: Literal["text", "number", "decimal"] = "text" if is_text(found.values) else "number"
    # JSON has no infinite numbers: they would come back as missing.
    if pa.types.is_decimal(found.values.type) or any(isinstance(value, float) and math.isinf(value) for value in kept):
        kind, kept = "decimal", [None if value is None else str(value) for value in kept]
    return FittedCategories(column=name, kind=kind, values=tuple(kept), onehot=onehot)
