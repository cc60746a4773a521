"""Mean and deviation of a stream of numbers, added up without rounding.

Sums of float64 that are rounded on the way depend on the order of the numbers and on how the stream is cut; sums of
whole numbers do not. So each number is cut into whole numbers of 20 bits and a common power of two, whose sums and
sums of products are exact in float64 and go on as Python's integers.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# So many numbers at once, in pieces of so many bits: sums of products stay below (2^19)² · 2^14 = 2^52.
_PIECE = 1 << 14
_BITS = 20
# Numbers whose exponents lie further apart are added up apart: scaled together, the small ones would vanish.
_MOST_SPREAD = 900
# The smallest float64 is 2^-1074, and its piece may end up to 19 bits lower.
_UNIT = 1126


class ExactMoments:
    """Count, sum and sum of squares of finite numbers, exactly.

    Two streams that hold the same numbers give the same, in whatever order, and however many streams are merged.

    Args:
        count: How many numbers there are so far.
        total: Their sum, in units of 2⁻¹¹²⁶.
        squares: The sum of their squares, in units of 2⁻²²⁵².

    Attributes:
        count: As above.
        total: As above.
        squares: As above.
    """

    def __init__(self, count: int = 0, total: int = 0, squares: int = 0) -> None:
        self.count = count
        self.total = total
        self.squares = squares

    def add(self, values: Floats) -> None:
        """Take in some finite numbers, ``(n,)``."""
        self.count += values.size
        for start in range(0, values.size, _PIECE):
            self._add(values[start : start + _PIECE])

    def _add(self, values: Floats) -> None:
        sizes = np.abs(values)
        highest = math.frexp(float(sizes.max(initial=0.0)))[1]
        lowest = math.frexp(float(sizes.min(where=sizes > 0, initial=np.inf)))[1]
        if highest - lowest > _MOST_SPREAD:
            large = sizes >= math.ldexp(1.0, (highest + lowest) // 2)
            self._add(values[large])
            self._add(values[~large])
            return
        pieces = _pieces(np.ldexp(values, _BITS - 1 - highest))
        ones = np.ones((1, values.size))
        sums = np.concatenate([pieces, ones]) @ pieces.T
        shifts = [_UNIT + highest - (_BITS - 1) - _BITS * place for place in range(len(pieces))]
        for row, shift in enumerate(shifts):
            self.total += int(sums[-1, row]) << shift
            for column, other in enumerate(shifts):
                self.squares += int(sums[row, column]) << (shift + other)

    def add_constant(self, value: float, count: int) -> None:
        """Take in one finite number ``count`` times."""
        one = ExactMoments()
        one.add(np.array([value]))
        self.merge(ExactMoments(count, one.total * count, one.squares * count))

    def merge(self, other: ExactMoments) -> None:
        """Take in the numbers of another stream."""
        self.count += other.count
        self.total += other.total
        self.squares += other.squares

    def copy(self) -> Self:
        """Return moments of the same numbers."""
        return type(self)(self.count, self.total, self.squares)

    @property
    def mean(self) -> float:
        """The mean, rounded once."""
        return self.total / (self.count << _UNIT)

    @property
    def deviation(self) -> float:
        """The standard deviation, divided by the count: the root of the variance, which is rounded once.

        Infinite where the variance is beyond float64.
        """
        try:
            variance = (self.count * self.squares - self.total**2) / (self.count**2 << 2 * _UNIT)
        except OverflowError:
            return math.inf
        return math.sqrt(variance)


def _pieces(values: Floats) -> Floats:
    """Return whole numbers of up to 2^19, ``(pieces, n)``, that make up the values, of up to 2^19 as well.

    ``values = Σ pieces[i] · 2^(-20 i)``; no step is rounded.
    """
    found: list[Floats] = []
    while not found or values.any():
        whole = np.rint(values)
        found.append(whole)
        values = (values - whole) * 2.0**_BITS
    return np.stack(found)
