"""What numeric columns are scaled and filled with: estimated on training rows, in one pass and bounded memory."""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np
import numpy.typing as npt

from splitvfl.data.encoding import Floats, Scale, symmetric_log
from splitvfl.data.schema import Kind, NumericEncoder
from splitvfl.errors import DataError

# Different values up to which the median is exact.
EXACT_VALUES = 1 << 16
# Bits of the significand that are kept beyond that, in turn, without the leading one: errors of 2^-24 to 2^-8.
_PRECISIONS = (52, 23, 16, 12, 9, 7)


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

    def add(self, values: Floats) -> None:
        """Take in finite numbers."""
        found, counts = np.unique(_truncated(values, _PRECISIONS[self._level]), return_counts=True)
        self._values, self._counts = _added(self._values, self._counts, found, counts)
        while self._values.size > EXACT_VALUES and self._level + 1 < len(_PRECISIONS):
            self._level += 1
            coarser = _truncated(self._values, _PRECISIONS[self._level])
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


class Moments:
    """Mean and sum of squared deviations of a stream of numbers.

    Source: Chan, Golub and LeVeque, COMPSTAT 1982, equation 2.1.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, values: Floats) -> None:
        """Take in some numbers."""
        if values.size:
            mean = float(values.mean())
            self._merge(values.size, mean, float(np.square(values - mean).sum()))

    def add_constant(self, value: float, count: int) -> None:
        """Take in one number ``count`` times."""
        if count:
            self._merge(count, value, 0.0)

    def _merge(self, count: int, mean: float, squares: float) -> None:
        total = self.count + count
        delta = mean - self.mean
        self.mean += delta * (count / total)
        self.squares += squares + delta * delta * (self.count * (count / total))
        self.count = total

    @property
    def deviation(self) -> float:
        """Standard deviation, divided by the count."""
        return float(np.sqrt(self.squares / self.count))


class NumericStatistics:
    """What the training rows say of one numeric column.

    Args:
        column: Its name.
        kind: What its cells hold.
        scale: How it will be scaled.
        fill: Whether gaps will be filled with the median.
    """

    def __init__(self, column: str, kind: Kind, *, scale: Scale, fill: bool) -> None:
        self._column = column
        self._kind = kind
        self._scale = scale
        self._median = MedianSketch() if fill else None
        self._moments = Moments()
        self._rows = 0
        self._low, self._high = np.inf, -np.inf

    def add(self, values: Floats) -> None:
        """Take in training rows: finite numbers, and NaN where a value is missing."""
        self._rows += values.size
        known = values[~np.isnan(values)]
        if known.size == 0:
            return
        self._low, self._high = min(self._low, float(known.min())), max(self._high, float(known.max()))
        # Overflow is noticed when the column is scaled, with its row.
        with np.errstate(over="ignore", invalid="ignore"):
            self._moments.add(symmetric_log(known) if self._scale == "log1p" else known)
        if self._median is not None:
            self._median.add(known)

    def encoder(self) -> NumericEncoder:
        """Return how the column becomes numbers.

        Raises:
            DataError: If no training row has a value.
        """
        gaps = self._rows - self._moments.count
        if self._moments.count == 0:
            raise DataError(f"column {self._column!r} has no value in any of {self._rows} training rows; drop it")
        median = None if self._median is None else self._median.median()
        if median is not None:
            filled = symmetric_log(np.array([median]))[0] if self._scale == "log1p" else median
            with np.errstate(over="ignore", invalid="ignore"):
                self._moments.add_constant(float(filled), gaps)
        offset, spread = self._shift()
        if not np.isfinite([offset, spread]).all():
            raise DataError(
                f"column {self._column!r} holds values too large to be scaled "
                f"({self._low:g} to {self._high:g}); try scale log1p"
            )
        return NumericEncoder(
            column=self._column,
            kind=self._kind,
            scale=self._scale,
            offset=offset,
            spread=spread,
            missing="error" if self._median is None else "indicator",
            median=median,
            median_error=0.0 if self._median is None else self._median.error,
            marked=gaps > 0,
            rows=self._rows,
            gaps=gaps,
            low=self._low,
            high=self._high,
        )

    def _shift(self) -> tuple[float, float]:
        """Return offset and spread; a spread of 0 for what does not vary, as rounding might leave it 1e-17."""
        if self._scale == "none":
            return 0.0, 1.0
        low, high = self._low, self._high
        if self._scale == "log1p":
            low, high = symmetric_log(np.array([low, high]))
        if low == high:
            return float(low), 0.0
        match self._scale:
            case "minmax":
                return low, high - low
            case "standard" | "log1p":
                return self._moments.mean, self._moments.deviation
            case _:
                assert_never(self._scale)
