"""The law by which synthetic clicks are drawn: what every column holds, and how likely a click is.

Every random number is a pure function of the seed, a purpose and the row's number: element ``row`` of a SplitMix64
stream (Steele, Lea and Flood, OOPSLA 2014) whose key is hashed from the rest. Nothing is drawn in sequence, so a row is
the same whichever rows are drawn with it, and a property of a category (its effect on clicks, say) is hashed from its
number instead of being stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from splitvfl.data.hashing import Words, mix64
from splitvfl.learning.randomness import derive_seed

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

# Who takes part in an impression: a user's tastes and activity, an ad and its advertiser, the place where it is shown.
_ENTITIES = 5
_USER, _AD = (0, 1), (2, 3)

# Median, spread of the logarithm, and share of missing values of 13 counts, about as in Criteo's samples.
_COUNTS = (
    (1.2, 1.7, 0.45),
    (3.0, 2.2, 0.0),
    (6.0, 1.6, 0.21),
    (4.5, 1.2, 0.22),
    (2800.0, 2.0, 0.03),
    (32.0, 1.8, 0.23),
    (3.0, 1.7, 0.04),
    (7.0, 1.4, 0.0),
    (38.0, 1.4, 0.04),
    (1.1, 0.8, 0.45),
    (1.5, 1.3, 0.04),
    (0.5, 1.3, 0.77),
    (4.5, 1.3, 0.22),
)
# Shares of missing categories, by the field's number.
_ABSENT = (0.0, 0.0, 0.03, 0.0, 0.12, 0.0, 0.0, 0.4)
# How often a field shows its entity's own category, rather than a chance one.
_LOYALTY = (0.8, 0.5, 0.65)

_FEWEST, _MOST = 3, 1_000_000
# Categories of a lower rank than this deviate less from the mean, as the inverse root of their rank.
_COMMON = 50
# Fields of each kind in the pairwise interactions.
_INTERACTING = 4
_CROSSES = ((0, 2), (1, 3), (2, 4))
# Largest vocabulary of a field that interacts.
_SMALL = 5000

# Share of the logit's variance that each kind of signal has.
SIGNALS = {"counts": 0.35, "missing": 0.07, "categories": 0.33, "interactions": 0.15, "crosses": 0.10}


def words(key: int, counters: Words) -> Words:
    """Return 64 random bits for every counter.

    >>> [hex(word) for word in words(0, np.arange(1, 3, dtype=np.uint64)).tolist()]
    ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
    """
    return mix64(counters * _GOLDEN + np.uint64(key))


def uniforms(bits: Words) -> Floats:
    """Return uniform numbers in [0, 1) made of the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _parts(bits: Words) -> list[Words]:
    low = np.uint64(0xFFFF)
    return [bits & low, (bits >> np.uint64(16)) & low, (bits >> np.uint64(32)) & low, bits >> np.uint64(48)]


def bells(bits: Words) -> Floats:
    """Return nearly normal numbers of mean 0 and variance 1: the sum of four uniform ones, at most 3.47.

    Sums and products are rounded alike everywhere, which a normal quantile function is not.
    """
    first, second, third, fourth = _parts(bits)
    return ((first + second + third + fourth).astype(np.float64) - 2 * 0xFFFF) * (math.sqrt(3) / 0x10000)


def _chosen(bits: Words, share: float) -> Flags:
    """Return true in this share of rows, by the 11 bits that :func:`uniforms` leaves."""
    chosen: Flags = (bits & np.uint64(0x7FF)) < np.uint64(round(share * 0x800))
    return chosen


@dataclass(frozen=True)
class CountColumn:
    """A count with a heavy tail, and how it bears on clicks.

    ``floor(median · exp(spread · z))`` with z of variance 1, partly shared with two of the row's entities. It is
    missing where an entity is rare, mostly, so that its absence tells something.
    """

    name: str
    key: int
    number: int
    median: float
    spread: float
    absent: float
    weight: float
    absent_weight: float

    def draw(self, rows: Words, entities: Sequence[Floats]) -> tuple[Floats, Flags]:
        """Return the counts, and whether each is missing; its count is to be ignored then."""
        number = self.number
        latent = 0.63**0.5 * bells(words(self.key, rows))
        for entity, loading in ((number, 0.5), (number + 2, 0.35)):
            latent += (entities[entity % _ENTITIES] - 0.5) * (12**0.5 * loading)
        latent *= self.spread
        counts = np.floor(self.median * np.exp(latent))
        if not self.absent:
            return counts, np.zeros(len(rows), bool)
        bits = words(self.key ^ 1, rows)
        rarity = np.where(_chosen(bits, 0.6), entities[(number + 1) % _ENTITIES], uniforms(bits))
        return counts, rarity >= 1 - self.absent

    def effect(self, counts: Floats, missing: Flags) -> Floats:
        """Return what the counts add to the logit: a line, a curve that levels off, or a bump; 0 where missing."""
        level = (np.log1p(counts) - math.log1p(self.median)) / self.spread
        if self.number % 3 == 1:
            level = 2 * level / (1 + np.abs(level))
        elif self.number % 3 == 2:
            level = 2 / (1 + level * level)
        return np.where(missing, 0.0, self.weight * level)

    def absence(self, missing: Flags) -> Floats:
        """Return what the lack of a count adds to the logit."""
        return np.where(missing, self.absent_weight, 0.0)


@dataclass(frozen=True)
class Field:
    """A categorical column. Categories are numbered from 1, the commonest first; 0 is "missing".

    The share of category k is ``ln(1 + 1/k) / ln(1 + size)``: Zipf's law with exponent 1.
    """

    name: str
    key: int
    number: int
    size: int
    absent: float
    loyalty: float

    def draw(self, rows: Words, entities: Sequence[Floats]) -> Words:
        """Return the numbers of the categories."""
        bits = words(self.key, rows)
        place = np.where(_chosen(bits, self.loyalty), entities[self.number % _ENTITIES], uniforms(bits))
        place *= math.log(self.size + 1) / (1 - self.absent)
        ranks = np.minimum(np.exp(place), self.size).astype(np.uint64)
        if self.absent:
            ranks[place >= math.log(self.size + 1)] = 0
        return ranks

    def damping(self, ranks: Words) -> Floats:
        """Return how far each category's effects may deviate: 1 for the common ones."""
        return np.sqrt(_COMMON / np.maximum(ranks, np.uint64(_COMMON)).astype(np.float64))

    def effect(self, ranks: Words) -> Floats:
        """Return what each category adds to the logit: nearly normal, hashed from field and category."""
        return bells(words(self.key ^ 1, ranks)) * self.damping(ranks)

    def vector(self, ranks: Words) -> Floats:
        """Return each category's vector for interactions, ``(4, n)``, entries uniform in [-1, 1) before damping."""
        parts = np.stack(_parts(words(self.key ^ 2, ranks))).astype(np.float64)
        return (parts / 0x8000 - 1) * self.damping(ranks)

    def names(self, ranks: Words) -> pa.Array:
        """Return eight hexadecimal digits for every category, no two alike; null for 0."""
        digits = _HEX[_scrambled(self.key, ranks).astype(">u4").view(np.uint8)]
        offsets = np.arange(0, 8 * len(ranks) + 1, 8, dtype=np.int32)
        valid = np.packbits(ranks != 0, bitorder="little") if self.absent else None
        return pa.Array.from_buffers(
            pa.string(),
            len(ranks),
            [None if valid is None else pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(digits)],
        )


_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)


def _scrambled(key: int, ranks: Words) -> npt.NDArray[np.uint32]:
    """Return other numbers of 32 bits, one for each: the finaliser of MurmurHash3, which is one-to-one."""
    mixed = ranks.astype(np.uint32) ^ np.uint32(key & 0xFFFFFFFF)
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed


class DrawnColumns(NamedTuple):
    """Columns of some rows, and their signals by kind, each not yet brought to its share of the logit."""

    counts: list[tuple[Floats, Flags]]
    ranks: list[Words]
    signals: dict[str, Floats]


def _total(terms: Iterable[Floats]) -> Floats:
    # Added one by one: a sum over an axis may add in another order on another machine.
    total: Floats = np.zeros(1)
    for term in terms:
        total = total + term
    return total


def _cross(key: int, first: Words, second: Words) -> Floats:
    """Return what each pair of categories adds to the logit: nearly normal, hashed from both."""
    return bells(words(key, (first << np.uint64(32)) | second))


class World:
    """All columns of one seed, and what they tell about clicks.

    Args:
        seed: Decides everything.
        numbers: Number of counts, ``I1`` and so on.
        fields: Number of categorical fields, ``C1`` and so on; sizes grow from 3 to 10⁶ in even ratios.
    """

    def __init__(self, seed: int, *, numbers: int, fields: int) -> None:
        self._seed = seed
        self.numbers = [self._count(number) for number in range(numbers)]
        self.fields = [self._field(number, fields) for number in range(fields)]
        self._entity_keys = [self._key("entity", number) for number in range(_ENTITIES)]
        self._label_key = self._key("label")
        self._cross_keys = [(self._key("cross", *pair), pair) for pair in _CROSSES if max(pair) < fields]

    def _key(self, *purpose: object) -> int:
        # The two lowest bits are left to a column's own purposes.
        return derive_seed(self._seed, "clicks", *purpose) << 2 & 0xFFFFFFFFFFFFFFFF

    def _count(self, number: int) -> CountColumn:
        key = self._key("count", number)
        median, spread, absent = _COUNTS[number % len(_COUNTS)]
        weight, absent_weight = (self._weight("weight", number, purpose) for purpose in ("count", "missing"))
        return CountColumn(f"I{number + 1}", key, number, median, spread, absent, weight, absent_weight)

    def _weight(self, *purpose: object) -> float:
        """Return a weight of either sign whose size lies in [0.6, 1.4), so that no column is without signal."""
        unit = self._key(*purpose) / 2**64
        return math.copysign(0.6 + 0.8 * (2 * unit % 1), unit - 0.5)

    def _field(self, number: int, fields: int) -> Field:
        size = round(_FEWEST * (_MOST / _FEWEST) ** (number / max(1, fields - 1)))
        absent, loyalty = _ABSENT[number % len(_ABSENT)], _LOYALTY[number % len(_LOYALTY)]
        return Field(f"C{number + 1}", self._key("field", number), number, size, absent, loyalty)

    def draw(self, rows: Words) -> DrawnColumns:
        """Return the columns of the rows with these numbers, and their signals."""
        entities = [uniforms(words(key, rows)) for key in self._entity_keys]
        counts = [column.draw(rows, entities) for column in self.numbers]
        ranks = [field.draw(rows, entities) for field in self.fields]
        signals = {
            "counts": _total(column.effect(*drawn) for column, drawn in zip(self.numbers, counts, strict=True)),
            "missing": _total(column.absence(gap) for column, (_, gap) in zip(self.numbers, counts, strict=True)),
            "categories": _total(field.effect(drawn) for field, drawn in zip(self.fields, ranks, strict=True)),
            "interactions": self._interactions(ranks),
            "crosses": _total(_cross(key, ranks[first], ranks[second]) for key, (first, second) in self._cross_keys),
        }
        return DrawnColumns(
            counts, ranks, {kind: np.broadcast_to(signal, len(rows)) for kind, signal in signals.items()}
        )

    def _interactions(self, ranks: Sequence[Words]) -> Floats:
        """Return the inner product of the user's and the ad's summed vectors, as in a factorisation machine."""
        kinds = [self._interacting(kind) for kind in (_USER, _AD)]
        if not all(kinds):
            return _total([])
        user, ad = (_total(field.vector(ranks[field.number]) for field in kind) for kind in kinds)
        products: Floats = user * ad
        return _total(products)

    def _interacting(self, kind: Sequence[int]) -> list[Field]:
        small = [field for field in self.fields if field.number % _ENTITIES in kind and field.size <= _SMALL]
        return small[:_INTERACTING]

    def clicked(self, rows: Words, probabilities: Floats) -> Flags:
        """Return the labels: one independent draw per row."""
        labels: Flags = uniforms(words(self._label_key, rows)) < probabilities
        return labels
