"""Noise that can be neither computed nor read off: whole numbers of a grid, drawn exactly from a keystream.

**Which law.** The input is rounded to a grid of about 2^-20 of the scale of the noise, and to it a Gaussian or Laplace
number is added that was rounded to the same grid: ``P(k) = Φ((k + ½) / s) − Φ((k − ½) / s)`` for a Gaussian of s steps.
As the input lies on the grid, that is the continuous mechanism, rounded after the noise. So every theorem on it holds
as it is, with a sensitivity that is larger by ``grid · √coordinates`` (L2) or ``grid · coordinates`` (L1), for the
rounding before. The discrete Gaussian of Canonne, Kamath and Steinke has the weights ``exp(−k² / 2 s²)``: the same law
up to a factor that differs from 1 by 2^-37 at most, but its (ε, δ) is not quite that of a Gaussian. All outputs lie on
one grid, whatever the input was: nothing can be read from their last bits.

**How.** The right half of the law is cut into strips; a strip is found by 16 bits in a table, a place in it by 12 more,
a sign by one, and a place is kept with the probability that it has in units of its strip's height. That comparison is
made with 35 bits; where they do not decide, in decimal numbers of 60 digits and with as many bits as it takes. So the
law is exact but for one thing: numbers beyond 13 standard deviations, or 80 scales of a Laplace law, are never drawn.
:attr:`DiscreteNoise.distance` is what that changes, in total variation, for each number.

Who watches a clock can learn how many words a draw took, which depends on the noise a little and on the input not at
all.

Source: Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy*, NeurIPS 2020, arXiv:2004.00010,
for why noise has to be discrete; Mironov, CCS 2012, for what is read from noise that is not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import lru_cache, partial
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from splitvfl.errors import ArgumentError, PrivacyError, count, positive
from splitvfl.system.forks import forks

Words = npt.NDArray[np.uint64]
Whole = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

GRID_BITS = 20
"""The noise's scale is from 2^20 to 2^21 grid steps."""

MOST_SCALES = 2.0**30
"""Values of so many scales of the noise can be rounded to its grid, and exact sums be made."""

_KEY_BYTES = 32
_BLOCK_BYTES = 16
_POSITIONS = 2**128

_SLOT_BITS, _PLACE_BITS, _TEST_BITS = 16, 12, 35  # and one for the sign: 64 in all
_SLOTS, _PLACES = 2**_SLOT_BITS, 2**_PLACE_BITS
_BATCH = 2**15  # words that are worked on at a time: they stay in the cache
# What floating point may be wrong by in a probability: exponents up to 85 are rounded in their 52nd bit.
_MARGIN = 2.0**-43
_DIGITS = 60

# The law is cut where a table would be mostly empty; what is beyond gets a table of its own, up to the last one.
_SPAN: Mapping[str, float] = {"gaussian": 3.25, "laplace": 5.0}
_LEVELS: Mapping[str, int] = {"gaussian": 4, "laplace": 16}

Law = Literal["gaussian", "laplace"]


class Keystream:
    """A stream of random bits that follows from a secret key: AES-256 in counter mode.

    Nobody without the key can tell it from random bits, nor compute what was or will be drawn. The same key and
    position give the same bits, so that a step which is taken again repeats its noise: that state is as secret as the
    noise.

    One stream on two messages tells both. So nothing goes on with a stream whose key is from the operating system but
    the object itself, and :meth:`from_state`: a copy, an unpickled one and a forked child draw a key of their own. A
    stream under a key that was given stays what it is.

    Args:
        key: 32 bytes; default: from the operating system.
        position: Where in the stream, in blocks of 16 bytes.

    >>> stream = Keystream()
    >>> again = Keystream.from_state(stream.state())
    >>> bool((stream.words(5) == again.words(5)).all()), stream.position
    (True, 3)
    """

    def __init__(self, key: bytes | None = None, *, position: int = 0) -> None:
        self._key = os.urandom(_KEY_BYTES) if key is None else bytes(key)
        if len(self._key) != _KEY_BYTES:
            raise ArgumentError(f"expected a key of {_KEY_BYTES} bytes, got {len(self._key)}")
        if not 0 <= position < _POSITIONS:
            raise ArgumentError(f"expected a position from 0, below 2^128, got {position}")
        self.position = position
        self._own, self._forks = key is None, forks()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Return how a copy is made, and an unpickled one: of a key of the operating system, with a new one."""
        return (type(self) if self._own else partial(type(self), self._key, position=self.position)), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(position={self.position})"  # and not the key

    def words(self, number: int) -> Words:
        """Return so many words of 64 bits; the position moves on by whole blocks of two."""
        # Slow to import, and needed for calculated noise only.
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CTR

        self._leave_to_the_parent()
        blocks = -(-number * 8 // _BLOCK_BYTES)
        start = self.position.to_bytes(_BLOCK_BYTES, "big")
        stream = Cipher(AES(self._key), CTR(start)).encryptor().update(bytes(blocks * _BLOCK_BYTES))
        self.position += blocks
        return np.frombuffer(stream, dtype="<u8")[:number].astype(np.uint64, copy=False)

    def state(self) -> dict[str, Any]:
        """Return the key and the position, from which all noise can be computed: keep it to its owner."""
        self._leave_to_the_parent()
        return {"cipher": "AES-256-CTR", "key": self._key.hex(), "position": str(self.position)}

    def _leave_to_the_parent(self) -> None:
        """In a forked child, draw a new key in place of the parent's."""
        if self._own and self._forks != forks():
            self._key, self.position, self._forks = os.urandom(_KEY_BYTES), 0, forks()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Keystream:
        """Return a stream that goes on where :meth:`state` was taken, in this process; copies of it do not.

        Raises:
            PrivacyError: If it is no such state.
        """
        try:
            if state["cipher"] != "AES-256-CTR":
                raise ValueError(f"expected AES-256-CTR, got {state['cipher']!r}")
            found = cls(bytes.fromhex(state["key"]), position=int(state["position"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PrivacyError(f"this is no state of a keystream: {error}") from error
        found._own = True
        return found


class DiscreteNoise:
    """Gaussian or Laplace noise on a power-of-two grid; :func:`discrete_gaussian`, :func:`discrete_laplace` make it.

    Attributes:
        law: ``"gaussian"`` or ``"laplace"``.
        scale: Standard deviation σ, or the Laplace scale, in the unit of what it is added to.
        grid: A power of two; the scale is 2^20 to 2^21 of it.
        farthest: Beyond it nothing is drawn, in the unit of what it is added to.
        distance: By how much one number's law differs from the exact one, in total variation.
    """

    def __init__(self, law: Law, scale: float) -> None:
        self.law, self.scale = law, positive("scale", scale)
        exponent = math.frexp(self.scale)[1] - 1 - GRID_BITS
        if not -1000 <= exponent <= 900:
            raise ArgumentError(f"expected a scale of noise from 1e-290 to 1e270, got {scale!r}")
        self.grid = math.ldexp(1.0, exponent)
        self._steps = self.scale / self.grid  # exact: the grid is a power of two
        farthest = _SPAN[law] * _LEVELS[law]
        self.farthest = farthest * self.scale
        self.distance = math.erfc(farthest / math.sqrt(2)) if law == "gaussian" else math.exp(-farthest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.law!r}, {self.scale!r})"

    def draw(self, number: int, stream: Keystream) -> Whole:
        """Return so many independent numbers, in grid steps."""
        found = np.empty(number, dtype=np.int64)
        filled = 0
        while filled < number:
            wanted = min(_BATCH, int((number - filled) * 1.05) + 32)
            drawn = self._drawn(wanted, stream)[: number - filled]
            found[filled : filled + len(drawn)] = drawn
            filled += len(drawn)
        return found

    def add(self, values: npt.NDArray[np.floating[Any]], stream: Keystream) -> _Floats:
        """Return values rounded to the grid, plus noise: multiples of the grid, in float64 without further rounding.

        Args:
            values: Any shape.
            stream: Where the bits come from.

        Raises:
            ArgumentError: If a value is not finite, or 2^31 times larger than the noise.
        """
        steps = np.rint(np.asarray(values, dtype=np.float64) / self.grid)
        if not bool((np.abs(steps) < 2.0**52).all()):
            raise ArgumentError(
                f"expected finite values below 2^31 times the scale of the noise, {self.scale:g}: others cannot be "
                "rounded to its grid"
            )
        return np.asarray((steps + self.draw(steps.size, stream).reshape(steps.shape)) * self.grid)

    def widened(self, sensitivity: float, coordinates: int) -> float:
        """Return the sensitivity after rounding to the grid: L2 for a Gaussian, L1 for a Laplace law.

        Args:
            sensitivity: That of the values before, > 0.
            coordinates: In how many of them two neighbours may differ.
        """
        across = count("coordinates", coordinates)
        return positive("sensitivity", sensitivity) + self.grid * (
            math.sqrt(across) if self.law == "gaussian" else across
        )

    def unmatched(self, shift: float) -> float:
        """Return how likely noise is that, with another value, could not have led to the same number.

        No number beyond 13 standard deviations is ever drawn, so that what is near that end in one world cannot come
        from another one. Of many numbers, the sum over all is to be added to δ, and ε stays what it was: given that
        nothing lies beyond, the law is the exact one.

        Args:
            shift: How far apart the values may be, from 0, in the unit of what the noise is added to.
        """
        if not shift >= 0:
            raise ArgumentError(f"shift must be at least 0, got {shift!r}")
        left = _SPAN[self.law] * _LEVELS[self.law] - (shift + self.grid) / self.scale  # rounded to the grid before
        if left <= 0:
            return 1.0
        tail = math.erfc(left / math.sqrt(2)) if self.law == "gaussian" else math.exp(-left)
        # Probabilities are of what can be drawn at all: each is larger by one part in a thousand at most.
        return min(1.0, 1.001 * (tail + self.distance))

    def probability(self, numbers: npt.ArrayLike) -> _Floats:
        """Return the probability of numbers, in grid steps, to about 12 digits; what is never drawn included."""
        places = np.abs(np.asarray(numbers, dtype=np.float64))
        if self.law == "gaussian":
            scaled = places / self._steps
            density = np.exp(-0.5 * scaled**2) * (1.0 + (scaled**2 - 1.0) / (24.0 * self._steps**2))
            return np.asarray(density / (self._steps * math.sqrt(2.0 * math.pi)))
        step = 1.0 / (2.0 * self._steps)
        return np.asarray(np.where(places == 0, -math.expm1(-step), math.sinh(step) * np.exp(-2.0 * step * places)))

    def _drawn(self, number: int, stream: Keystream) -> Whole:
        """Return the numbers that so many words give: a few less."""
        words = stream.words(number)
        places, kept = _tried(_table(self.law, self._steps, 0), words, stream)
        minus = -((words >> np.uint64(_SLOT_BITS + _PLACE_BITS)) & np.uint64(1)).astype(np.int64)
        return ((places ^ minus) - minus)[kept]


def discrete_gaussian(sigma: float) -> DiscreteNoise:
    """Return Gaussian noise of a standard deviation, > 0, on its grid.

    >>> noise = discrete_gaussian(1.5)
    >>> noise.grid == 2.0**-20, noise.distance < 1e-37
    (True, True)
    """
    return DiscreteNoise("gaussian", sigma)


def discrete_laplace(scale: float) -> DiscreteNoise:
    """Return Laplace noise of a scale, > 0, on its grid."""
    return DiscreteNoise("laplace", scale)


@dataclass(frozen=True)
class _Table:
    """A piece of the right half of a law, under strips of equal width.

    A strip has the height ``slots · unit / places``, from its first place on at least that of the law; ``slots`` of the
    table's 2^16 slots belong to it.

    Attributes:
        law: As :class:`DiscreteNoise`.
        steps: The scale, in grid steps.
        level: Which piece, from 0 at the middle.
        start: Its first place.
        unit: Area of one slot; the law's height at 0 is 1.
        strips: Strip of each slot; of those that no strip has, one more than there are.
        slots: Slots of each strip.
        sure: Below what a test of 35 bits keeps every place of a strip.
        beyond: Slots of the next piece: the first of those that no strip has.
        outside: The first slot that no strip has.
    """

    law: Law
    steps: float
    level: int
    start: int
    unit: float
    strips: npt.NDArray[np.uint16]
    slots: Whole
    sure: Whole
    beyond: int
    outside: int


@lru_cache(maxsize=256)
def _table(law: Law, steps: float, level: int) -> _Table:
    """Return the table of one piece of a law."""
    whole = _starts(law, steps)
    start, stop = whole[level], whole[level + 1]
    edges = np.arange(start, stop + 1, _PLACES, dtype=np.float64)
    heights = _heights(law, steps, edges) * (1.0 + 1e-9)  # so that rounding leaves none too low
    areas = _PLACES * heights[:-1]
    last = level + 1 == _LEVELS[law]
    rest = 0.0 if last else _area(law, steps, stop) * 1.5  # room for strips that are higher than the law
    if level == 0:
        unit = _fitting_unit(areas, rest)
    else:
        before = _table(law, steps, level - 1)
        unit = before.beyond * before.unit / _SLOTS
    slots = np.ceil(areas / unit).astype(np.int64)
    beyond = _slots_beyond(rest, unit)
    used = int(slots.sum())
    assert used + beyond <= _SLOTS, "the piece before this one leaves room for it"
    strips = np.full(_SLOTS, len(slots), dtype=np.uint16)
    strips[:used] = np.repeat(np.arange(len(slots), dtype=np.uint16), slots)
    # The last place of a strip is the least likely one, but for half a place at 0.
    least = _heights(law, steps, np.maximum(edges[1:] - 1.0, 0.0)) * (1.0 - 1e-9)
    if level == 0:
        least[0] = 0.5 * least[0]
    sure = np.floor(least * _PLACES / (slots * unit) * 2.0**_TEST_BITS).astype(np.int64) - 1
    # The strip after the last one is that of the slots that no strip has: nothing is kept there.
    return _Table(law, steps, level, start, unit, strips, np.append(slots, 1), np.append(sure, -1), beyond, used)


def _starts(law: Law, steps: float) -> list[int]:
    """Return where the pieces of a law begin, and where the last one ends: whole numbers of strips."""
    each = math.ceil(_SPAN[law] * steps / _PLACES) * _PLACES
    return [each * level for level in range(_LEVELS[law] + 1)]


def _area(law: Law, steps: float, start: int) -> float:
    """Return the area of the law from a place on, for a height of 1 at 0."""
    if law == "laplace":
        return steps * math.exp(-start / steps)
    return steps * math.sqrt(math.pi / 2.0) * math.erfc(start / steps / math.sqrt(2.0))


def _fitting_unit(areas: _Floats, rest: float) -> float:
    """Return the smallest area of a slot, up to 2^-10, with which 2^16 slots are enough."""
    unit: float = (float(areas.sum()) + rest) / _SLOTS
    while np.ceil(areas / unit).sum() + _slots_beyond(rest, unit) > _SLOTS:
        unit *= 1.0 + 2.0**-10
    return unit


def _slots_beyond(rest: float, unit: float) -> int:
    """Return how many slots are left to the next piece: a power of two, so that its own unit is exact."""
    return 1 << math.ceil(math.log2(max(rest / unit, 1.0))) if rest else 0


def _heights(law: Law, steps: float, places: _Floats) -> _Floats:
    """Return the law at places from 0, each the middle of an interval of one; the density is 1 at 0."""
    scaled = places / steps
    if law == "laplace":
        return np.exp(-scaled) * (1.0 + 1.0 / (24.0 * steps**2))
    return np.exp(-0.5 * scaled**2) * (1.0 + (scaled**2 - 1.0) / (24.0 * steps**2))


def _tried(table: _Table, words: Words, stream: Keystream) -> tuple[Whole, npt.NDArray[np.bool_]]:
    """Return a place from 0 for every word, and whether it is kept."""
    # The lowest 16 bits of every word.
    slots = words.astype("<u8", copy=False).view("<u2")[::4]
    strips = table.strips[slots]
    inside = (words >> np.uint64(_SLOT_BITS)).astype(np.int64) & (_PLACES - 1)
    tests = (words >> np.uint64(64 - _TEST_BITS)).astype(np.int64)
    places = (strips.astype(np.int64) << _PLACE_BITS) + inside + table.start
    kept = tests < table.sure[strips]
    doubtful = np.flatnonzero(~kept)
    own = doubtful[slots[doubtful] < table.outside]
    kept[own] = _kept(table, places[own], strips[own], tests[own], stream)
    further = doubtful[slots[doubtful] >= table.outside]
    further = further[slots[further] < table.outside + table.beyond]
    if further.size:
        # With a new word each they are drawn from the next piece, and rejected where it rejects.
        following = _table(table.law, table.steps, table.level + 1)
        places[further], kept[further] = _tried(following, stream.words(further.size), stream)
    return places, kept


def _kept(
    table: _Table, places: Whole, strips: npt.NDArray[np.uint16], tests: Whole, stream: Keystream
) -> npt.NDArray[np.bool_]:
    """Return which places are kept, given the first 35 bits of a uniform number."""
    chances = _heights(table.law, table.steps, places.astype(np.float64)) * _PLACES / (table.slots[strips] * table.unit)
    chances[places == 0] *= 0.5 if table.law == "gaussian" else _half_of_laplace(table.steps)
    low, high = tests * 2.0**-_TEST_BITS, (tests + 1) * 2.0**-_TEST_BITS
    kept: npt.NDArray[np.bool_] = high <= chances - _MARGIN
    for each in np.flatnonzero(~kept & (low < chances + _MARGIN)):
        slots = int(table.slots[strips[each]])
        kept[each] = _decided(table, int(places[each]), slots, int(tests[each]), stream)
    return kept


def _half_of_laplace(steps: float) -> float:
    """Return what the interval from 0 to a half has, in units of what the formula says of the whole one."""
    return -math.expm1(-0.5 / steps) * steps / (1.0 + 1.0 / (24.0 * steps**2))


def _decided(table: _Table, place: int, slots: int, test: int, stream: Keystream) -> bool:
    """Return whether a uniform number is below a place's probability, from as many bits as it takes."""
    with localcontext(Context(prec=_DIGITS)):
        chance = _exact_height(table.law, Decimal(table.steps), place) * _PLACES / (slots * Decimal(table.unit))
        bits = _TEST_BITS
        while bits < 150:  # 60 digits have 199
            low = Decimal(test) / 2**bits
            if low >= chance:
                return False
            if low + Decimal(1) / 2**bits <= chance:
                return True
            test, bits = (test << 64) + int(stream.words(1)[0]), bits + 64
        return bool(low < chance)


def _exact_height(law: Law, steps: Decimal, place: int) -> Decimal:
    """Return the integral of the law over the interval around a place, at 0 over its right half, in 60 digits."""
    half = Decimal("0.5")
    if law == "laplace":
        first = Decimal(place) - half if place else Decimal(0)
        return steps * ((-first / steps).exp() - (-(Decimal(place) + half) / steps).exp())
    # exp(−(x + h)² / 2 s²) = exp(−x² / 2 s²) Σ c_n hⁿ, integrated term by term from −½ to ½.
    a, b = place / steps**2, 1 / (2 * steps**2)
    before, now, total = Decimal(0), Decimal(1), Decimal(0)
    for power in range(24):
        if power % 2 == 0:
            total += 2 * now * half ** (power + 1) / (power + 1)
        before, now = now, -(a * now + 2 * b * before) / (power + 1)
    return (-(Decimal(place) ** 2) / (2 * steps**2)).exp() * total * (1 if place else half)
