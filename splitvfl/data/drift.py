"""How far new records differ, column by column, from the records that a model was trained on.

Training keeps a :class:`Profile` of each column beside its encoding, in the party's own folder. Scoring counts new
records against it (:class:`Counts`), and :func:`compared` says what the counts mean. Nothing of this is ever sent.

The stability index of a column with ``B`` bins is ``Σ (q − p) · ln(q / p)`` over the bins' fractions ``p`` in training
and ``q`` now: 0 for equal distributions. Bins are the deciles of the training values, or the nine most frequent
categories and the rest, unlisted ones among it; missing values have a bin of their own. Half a record is added to each
bin, so that empty ones give a finite index; bins that are empty on both sides are left out.

A small sample makes the index large by chance: for equal distributions, n training records and m new ones it is about
``χ² · (1/n + 1/m)`` with ``B − 1`` degrees of freedom, on average ``(B − 1)(1/n + 1/m)``. So a column has drifted only
where its index is beyond the threshold *and* what chance explains in 999 of 1,000 cases. Fractions are treated alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from splitvfl.errors import ArgumentError, DriftError

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64 | np.int32]
Mask = npt.NDArray[np.bool_]
Level = Literal["none", "shift", "drift"]

SHIFT: Final = 0.1
DRIFT: Final = 0.25
"""The usual thresholds of the stability index: below the first nothing, beyond the second drift."""

# Fractions of records outside the range, without a value or of unknown categories, beyond those in training.
_SHIFTED, _DRIFTED = 0.01, 0.05
_BINS: Final = 10
_NAMED: Final = 5
_WIDEST: Final = 40
_MOST_SATURATED: Final = 0.5
_CATEGORIES: Final = 9
# Normal and, for the two ends of a range together, gamma quantile of 0.999.
_Z: Final = 3.0902
_TWO_ENDS: Final = 9.2334


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a column's training values looked like.

    Attributes:
        rows: Training records, or of large tables a sample of them; 0 where nobody knows.
        gaps: Those without a value; ``None`` where nobody knows.
        low: Smallest value; ``None`` of categories, and where nobody knows.
        high: Largest value, likewise.
        edges: Where one bin ends and the next begins, between two training values, ascending.
        codes: Of categories: the codes that have a bin each.
        counts: Training records of each bin, one more than edges or codes; empty: there are no bins.
        unlisted: Of categories: training records of categories that are not listed.
        once: Listed categories of one training record. So many records of as many as there are in training can be
            expected to be of categories that nobody has seen (Good and Turing).
    """

    rows: int = 0
    gaps: int | None = None
    low: float | None = None
    high: float | None = None
    edges: tuple[float, ...] = ()
    codes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    unlisted: int = 0
    once: int = 0


def profile_of_numbers(values: Floats, *, low: float | None = None, high: float | None = None) -> Profile:
    """Return what training values look like, NaN where one is missing.

    Args:
        values: Those of all training records with one value at least, or of a sample.
        low: The smallest value of all, where these are a sample.
        high: The largest value, likewise.

    >>> profile_of_numbers(np.array([1.0, 1.0, 2.0, np.nan])).counts
    (2, 1)
    """
    known = np.sort(values[~np.isnan(values)])
    gaps = len(values) - len(known)
    if not known.size:
        return Profile(rows=len(values), gaps=gaps, low=low, high=high)
    deciles = [known[-(-len(known) * number // _BINS) - 1] for number in range(1, _BINS)]
    # Behind every value that is equal to a decile: those of a count stand together in one bin, then and now.
    behind = np.unique(np.searchsorted(known, deciles, side="right"))
    behind = behind[behind < len(known)]
    ends = 0.5 * known[behind - 1] + 0.5 * known[behind]
    counts = np.diff(behind, prepend=0, append=len(known))
    return Profile(
        rows=len(values),
        gaps=gaps,
        low=float(known[0]) if low is None else low,
        high=float(known[-1]) if high is None else high,
        edges=tuple(ends.tolist()),
        counts=tuple(counts.tolist()),
    )


def profile_of_codes(codes: Codes, gaps: Mask) -> Profile:
    """Return what the codes of training records look like, 0 for a category that is not listed.

    Args:
        codes: One for each record.
        gaps: Which of them have no value, whatever their code.
    """
    there = np.bincount(codes[~gaps]) if len(codes) else np.zeros(0, np.int64)
    listed = there[1:]
    most = np.sort(np.argsort(-listed, kind="stable")[:_CATEGORIES])
    own = tuple((most + 1).tolist())
    rest = int(listed.sum() - listed[most].sum())
    return Profile(
        rows=len(codes),
        gaps=int(gaps.sum()),
        codes=own,
        counts=(*listed[most].tolist(), rest),
        unlisted=int(there[0]) if there.size else 0,
        once=int((listed == 1).sum()),
    )


class Counts(msgspec.Struct, kw_only=True):
    """What was counted of one column of new records.

    Attributes:
        rows: The records.
        missing: Those without a value.
        outside: Those with a value outside the training range.
        unknown: Those of a category that is not listed.
        bins: Those of each bin.
    """

    rows: int = 0
    missing: int = 0
    outside: int = 0
    unknown: int = 0
    bins: list[int] = []

    def add(self, other: Counts) -> None:
        """Add what was counted of further records."""
        self.rows += other.rows
        self.missing += other.missing
        self.outside += other.outside
        self.unknown += other.unknown
        longest = max(len(self.bins), len(other.bins))
        mine, theirs = (one + [0] * (longest - len(one)) for one in (self.bins, other.bins))
        self.bins = [own + more for own, more in zip(mine, theirs, strict=True)]


def counted_numbers(values: Floats, profile: Profile) -> Counts:
    """Return what is counted of numbers, NaN where one is missing."""
    missing = int(np.count_nonzero(np.isnan(values)))
    low, high = profile.low, profile.high
    outside = 0 if low is None or high is None else int(np.count_nonzero((values < low) | (values > high)))
    bins: list[int] = []
    if profile.counts:
        # Nine comparisons are several times faster than a search for each value.
        above = [len(values) - missing, *(int(np.count_nonzero(values > edge)) for edge in profile.edges), 0]
        bins = [one - more for one, more in pairwise(above)]
    return Counts(rows=len(values), missing=missing, outside=outside, bins=bins)


def counted_codes(codes: Codes, gaps: Mask | None, profile: Profile) -> Counts:
    """Return what is counted of codes; ``gaps``: which records have no value, ``None``: all have."""
    known = codes if gaps is None else codes[~gaps]
    there = np.bincount(known, minlength=max(profile.codes, default=0) + 1)
    unknown = int(there[0])
    bins: list[int] = []
    if profile.counts:
        own = there[list(profile.codes)].tolist()
        bins = [*own, len(known) - unknown - sum(own)]
    return Counts(rows=len(codes), missing=len(codes) - len(known), unknown=unknown, bins=bins)


def added(counts: dict[str, Counts], more: Mapping[str, Counts]) -> None:
    """Add what was counted of further records, by column."""
    for column, own in more.items():
        counts.setdefault(column, Counts()).add(own)


# --- what the counts mean


@dataclass(frozen=True, kw_only=True)
class ColumnDrift:
    """How one column of new records differs from its training records.

    Attributes:
        column: Its name.
        records: How many records were counted.
        trained: How many training records they are compared with; 0 where nobody knows.
        outside: Fraction with a value outside the training range, or the public one; ``None``: no range is known.
        missing: Fraction without a value.
        missing_in_training: The same of the training records; ``None`` where nobody knows.
        unknown: Fraction of a category that training did not list.
        unknown_in_training: The same of the training records.
        index: The stability index; ``None`` where there are no bins.
        by_chance: What chance explains of it in 999 of 1,000 cases.
        excess: The largest of the fractions outside, missing and unknown, beyond that in training, as far as it is
            beyond chance; else 0.
    """

    column: str
    records: int
    trained: int
    outside: float | None
    missing: float
    missing_in_training: float | None
    unknown: float
    unknown_in_training: float
    index: float | None
    by_chance: float
    excess: float

    @property
    def level(self) -> Level:
        """``"drift"``: an index beyond 0.25 and chance, or a fraction beyond 5 %; ``"shift"``: beyond 0.1, or 1 %."""
        if self.is_beyond(DRIFT):
            return "drift"
        return "shift" if self.excess >= _SHIFTED or self._index_is_beyond(SHIFT) else "none"

    @property
    def has_new_values(self) -> bool:
        """Whether more than 5 % of the values are outside the range, missing or unknown, beyond training and chance."""
        return self.excess >= _DRIFTED

    def is_beyond(self, threshold: float) -> bool:
        """Return whether the index is beyond a threshold and what chance explains, or a fraction has drifted."""
        return self.has_new_values or self._index_is_beyond(threshold)

    def _index_is_beyond(self, threshold: float) -> bool:
        return self.index is not None and self.index > threshold + self.by_chance

    def __str__(self) -> str:
        """Return what is beyond chance, in words."""
        found = [f"{self.outside:.1%} outside the training range"] if self.outside else []
        if self.missing > (self.missing_in_training or 0.0):
            before = "" if self.missing_in_training is None else f" ({self.missing_in_training:.1%} in training)"
            found.append(f"{self.missing:.1%} missing{before}")
        found += [f"{self.unknown:.1%} of unknown categories"] if self.unknown > self.unknown_in_training else []
        found += [] if self.index is None else [f"stability index {self.index:.2f}"]
        return f"{self.column}: {', '.join(found) or 'as in training'}"


def compared(counts: Mapping[str, Counts], profiles: Mapping[str, Profile]) -> tuple[ColumnDrift, ...]:
    """Return how columns differ from training, those that differ most first.

    Args:
        counts: What was counted, by column.
        profiles: What was counted against.
    """
    found = [_compared(name, own, profiles.get(name, Profile())) for name, own in counts.items() if own.rows]
    order: Mapping[Level, int] = {"drift": 0, "shift": 1, "none": 2}
    return tuple(sorted(found, key=lambda one: (order[one.level], -one.excess, -(one.index or 0.0))))


def _compared(column: str, counts: Counts, profile: Profile) -> ColumnDrift:
    trained = profile.rows
    ranged = profile.low is not None
    index, chance = stability_index(counts, profile)
    excess = [
        _beyond_range(counts.outside, counts.rows, trained) if ranged else 0.0,
        0.0 if profile.gaps is None else _beyond_share(counts.missing, counts.rows, profile.gaps, trained),
        _beyond_share(counts.unknown, counts.rows, profile.unlisted + profile.once, trained),
    ]
    return ColumnDrift(
        column=column,
        records=counts.rows,
        trained=trained,
        outside=counts.outside / counts.rows if ranged else None,
        missing=counts.missing / counts.rows,
        missing_in_training=None if profile.gaps is None else profile.gaps / max(trained, 1),
        unknown=counts.unknown / counts.rows,
        unknown_in_training=profile.unlisted / max(trained, 1),
        index=index,
        by_chance=chance,
        excess=max(excess),
    )


def stability_index(counts: Counts, profile: Profile) -> tuple[float | None, float]:
    """Return the stability index, and what chance explains of it; ``None`` where there are no bins.

    >>> profile = profile_of_numbers(np.arange(1000.0))
    >>> index, by_chance = stability_index(counted_numbers(np.full(500, 2000.0), profile), profile)
    >>> round(index, 1), round(by_chance, 2)
    (6.2, 0.08)
    """
    if not profile.counts or not counts.rows:
        return None, 0.0
    before = np.array([*profile.counts, profile.gaps or 0], float)
    now = np.array([*counts.bins, counts.missing], float)
    # An unlisted category counts with the rest: in the training there are none of them, which is no coincidence.
    before[-2] += profile.unlisted
    now[-2] += counts.unknown
    used = (before + now) > 0
    before, now = before[used] + 0.5, now[used] + 0.5
    p, q = before / before.sum(), now / now.sum()
    degrees = int(used.sum()) - 1
    sample = sum(profile.counts) + (profile.gaps or 0) + profile.unlisted
    chance = _chi_squared(degrees) * (1 / sample + 1 / counts.rows)
    return float(np.sum((q - p) * np.log(q / p))), chance


def _chi_squared(degrees: int) -> float:
    """Return the 0.999 quantile of χ², as Wilson and Hilferty approximate it."""
    part = 2 / (9 * degrees) if degrees else 0.0
    return degrees * (1 - part + _Z * math.sqrt(part)) ** 3


def _beyond_range(outside: int, rows: int, trained: int) -> float:
    """Return the fraction outside a range, if chance does not explain it.

    Of n training records, the part of the distribution outside of their range has the density of a gamma variable of
    shape 2 over n, whatever the distribution.
    """
    share = min(_TWO_ENDS / trained, 1.0) if trained else 0.0
    limit = rows * share + _Z * math.sqrt(rows * share * (1 - share)) + (1 if trained else 0)
    return outside / rows if outside > limit else 0.0


def _beyond_share(now: int, rows: int, before: int, trained: int) -> float:
    """Return by how much a fraction is larger than in training, if chance does not explain it."""
    if not trained:  # nobody knows how many there were: they are taken for many
        return now / rows
    excess = now / rows - before / trained
    both = (now + before + 1) / (rows + trained + 2)
    limit = _Z * math.sqrt(both * (1 - both) * (1 / rows + 1 / trained))
    return excess if excess > limit else 0.0


# --- said


def check_drift(drift: Mapping[str, Sequence[ColumnDrift]], threshold: float) -> None:
    """Refuse records that have drifted, before they are scored.

    Args:
        drift: By party.
        threshold: Of the stability index.

    Raises:
        ArgumentError: If the threshold is no number above 0.
        DriftError: If a column is beyond it and chance, or more than 5 % of its values are new.
    """
    if not 0 < threshold < math.inf:
        raise ArgumentError(f"expected a threshold of the stability index above 0, such as {DRIFT}, got {threshold}")
    beyond = [f"{name}: {one}" for name, own in drift.items() for one in own if one.is_beyond(threshold)]
    if beyond:
        more = f"; and {len(beyond) - _NAMED} more columns" if len(beyond) > _NAMED else ""
        raise DriftError(
            f"the records differ from those of the training (stability index beyond {threshold:g} and chance, or more "
            f"than {_DRIFTED:.0%} of new values): {'; '.join(beyond[:_NAMED])}{more}. Nothing was scored: look for "
            "another unit or a lost column, or score without failing on drift"
        )


def saturated(scores: Any) -> float:
    """Return the fraction of scores of which a probability is exactly 1, or exactly 0: ``(n,)`` or ``(n, k)``.

    >>> saturated(np.array([1.0, 1.0, 0.5, 0.0]))
    0.75
    """
    found = np.asarray(scores)
    ends = (found == 0) | (found == 1) if found.ndim == 1 else (found == 1).any(axis=1)
    return float(ends.mean()) if len(found) else 0.0


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """How many scores are exactly 0 or 1.

    Attributes:
        fraction: See :func:`saturated`.
        records: How many scores there are.
        in_training: The same fraction of the test records after the training; ``None`` where nobody knows.
        drifted: Whether a column of the records has drifted.
    """

    fraction: float
    records: int
    in_training: float | None
    drifted: bool

    def __str__(self) -> str:
        """Return a sentence where more than half are, and were not after the training; else nothing."""
        news = self.drifted if self.in_training is None else self.in_training <= _MOST_SATURATED
        if self.fraction <= _MOST_SATURATED or not news:
            return ""
        then = "" if self.in_training is None else f" ({self.in_training:.1%} of the test records after the training)"
        return (
            f"{round(self.fraction * self.records):,} of {self.records:,} scores are exactly 0 or 1{then}: look for "
            "another unit in a column"
        )

    def check(self) -> None:
        """Refuse the scores, if there is something to say.

        Raises:
            DriftError: If so.
        """
        if str(self):
            raise DriftError(f"{self}. No score was kept; score without failing on drift to see them")


def drift_said(drift: Mapping[str, Sequence[ColumnDrift]], *, most: int = 8) -> list[str]:
    """Return lines that say which columns differ from the training, the worst first; one line where none does.

    Args:
        drift: By party.
        most: Columns in the table.
    """
    columns = [(name, one) for name, own in drift.items() for one in own]
    if not columns:
        return []
    records = max(one.records for _, one in columns)
    binned = [one for _, one in columns if one.index is not None]
    old = "" if binned else "; no bins: trained by an earlier version, or with public ranges"
    beyond = sorted(
        (pair for pair in columns if pair[1].level != "none"),
        key=lambda pair: (pair[1].level != "drift", -pair[1].excess, -(pair[1].index or 0.0)),
    )
    if not beyond:
        return [f"drift: none beyond chance in {len(columns)} columns of {records:,} records{old}"]
    wide = max(len("column"), *(len(f"{name}: {one.column}") for name, one in beyond[:most]))
    wide = min(wide, _WIDEST)
    lines = [
        f"drift: {len(beyond)} of {len(columns)} columns of {records:,} records differ from the training{old}",
        f"  {'column':<{wide}}  outside  missing  (trained)  unknown  stability index",
    ]
    for name, one in beyond[:most]:
        outside, trained = (_percent(value) for value in (one.outside, one.missing_in_training))
        index = "-" if one.index is None else f"{one.index:.2f} ({one.level}; by chance up to {one.by_chance:.2f})"
        lines.append(
            f"  {f'{name}: {one.column}'[:wide]:<{wide}}  {outside:>7}  {_percent(one.missing):>7}  {trained:>9}  "
            f"{_percent(one.unknown):>7}  {index}"
        )
    return [*lines, f"  and {len(beyond) - most} more"] if len(beyond) > most else lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
