"""How far new records differ, column by column, from the records that a model was trained on.

Training keeps a :class:`Profile` of each column beside its encoding, in the party's own folder. Scoring counts new
records against it (:class:`Counts`), and :func:`compared` says what the counts mean. Nothing of this is ever sent.

The stability index of a column with ``B`` bins is ``Σ (q − p) · ln(q / p)`` over the bins' fractions ``p`` in training
and ``q`` now: 0 for equal distributions. Bins are the deciles of the training values. Listed categories are dealt out
to ten bins by the order of their names, whatever their counts: bins that are chosen by the counts that they are
compared with differ by more than chance. Missing values have a bin of their own. Half a record is added to each bin,
so that empty ones give a finite index; bins that are empty on both sides are left out, and so are categories that are
not listed, which have a figure of their own.

A flag is beyond chance: of all comparisons of one call without any change, at most one in 1,000 flags any column. So
each of a column's three figures may do so in ``α = 0.001 / (3 · columns)`` cases. The tests are

- of missing values: the hypergeometric one (Fisher's) of two samples of one distribution;
- of values outside the training range: the same of the places of training records in both samples together, sorted;
- of unknown categories: a bet on the counts of categories in training (:func:`_is_unknown_by_chance`);
- of the index: with n training records and m new ones it is about ``χ² · (1/n + 1/m)`` with ``B − 1`` degrees of
  freedom, at most. What chance explains is the ``1 − α / 10`` quantile of this, as its tail is longer where bins stay
  empty. A flag is an index beyond a threshold plus that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from splitvfl.errors import ArgumentError, DataError, DriftError

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
# How often a comparison of a party's columns flags any of them by chance, and the figures of a column.
_CHANCE: Final = 0.001
_FIGURES: Final = 3
# The index has a longer tail than χ² where a bin may stay empty by chance: a tenth of the probability covers it.
_TAIL: Final = 10
# Counts of a category beyond the smallest one listed that are told apart.
_TOLD_APART: Final = 100
_MOST_RECORDS: Final = 1 << 53
_BETS: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95)


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a column's training values looked like.

    Attributes:
        rows: Training records, or of large tables a sample of them; 0 where nobody knows.
        gaps: Those without a value; ``None`` where nobody knows.
        low: Smallest value; ``None`` of categories, and where nobody knows.
        high: Largest value, likewise.
        edges: Where one bin ends and the next begins, between two training values, ascending.
        counts: Training records of each bin; empty: there are no bins.
        unlisted: Of categories: training records of categories that are not listed.
        listed: How many listed categories have so many training records: pairs of records and categories, ascending.
            The last one stands for more records as well. They say how many categories training can have missed.
        cut: Training records of a category that were too few to list it, at most.

    Raises:
        ArgumentError: If numbers do not fit together: a profile may come from somebody else's folder.
    """

    rows: int = 0
    gaps: int | None = None
    low: float | None = None
    high: float | None = None
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    unlisted: int = 0
    listed: tuple[tuple[int, int], ...] = ()
    cut: int = 0

    def __post_init__(self) -> None:
        """Check that the numbers fit together."""
        pairs = [number for pair in self.listed for number in pair]
        whole = (self.rows, self.gaps or 0, self.unlisted, self.cut, *self.counts, *pairs)
        of_numbers = self.low is not None or bool(self.edges)
        if (
            not all(0 <= number <= _MOST_RECORDS for number in whole)
            or (self.rows and (self.gaps or 0) > self.rows)
            or any(one > other for one, other in pairwise(self.edges))
            or (of_numbers and self.counts and len(self.counts) != len(self.edges) + 1)
        ):
            raise ArgumentError("expected the profile of a column, whose numbers fit together")


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


def profile_of_codes(codes: Codes, gaps: Mask, *, min_count: int = 1) -> Profile:
    """Return what the codes of training records look like, 0 for a category that is not listed.

    Args:
        codes: One for each record.
        gaps: Which of them have no value, whatever their code.
        min_count: Training records that a category needs to be listed.

    >>> profile_of_codes(np.array([1, 1, 2, 0]), np.zeros(4, bool)).listed
    ((1, 1), (2, 1))
    """
    there = np.bincount(codes[~gaps], minlength=1)
    listed = there[1:]
    records, categories = np.unique(np.minimum(listed[listed > 0], min_count + _TOLD_APART), return_counts=True)
    return Profile(
        rows=len(codes),
        gaps=int(gaps.sum()),
        counts=tuple(_dealt_out(listed, min(len(listed), _BINS))),
        unlisted=int(there[0]),
        listed=tuple(zip(records.tolist(), categories.tolist(), strict=True)),
        cut=min_count - 1,
    )


def _dealt_out(listed: Codes, bins: int) -> list[int]:
    """Return the records of each bin from those of each listed category, which go to one bin after another."""
    return [int(listed[number::bins].sum()) for number in range(bins)]


class Counts(msgspec.Struct, kw_only=True):
    """What was counted of one column of new records.

    Attributes:
        rows: The records.
        missing: Those without a value.
        outside: Those with a value outside the training range.
        unknown: Those of a category that is not listed.
        bins: Those of each bin.

    Raises:
        ArgumentError: If there are more of some kind than records.
    """

    rows: int = 0
    missing: int = 0
    outside: int = 0
    unknown: int = 0
    bins: list[int] = []

    def __post_init__(self) -> None:
        """Check that the numbers fit together: they may come from somebody else's folder."""
        parts = (self.missing, self.outside, self.unknown, sum(self.bins), *self.bins)
        if not all(0 <= number <= self.rows <= _MOST_RECORDS for number in parts):
            raise ArgumentError("expected what was counted of a column, no part of it more than its records")

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
    there = np.bincount(known, minlength=1)
    bins = _dealt_out(there[1:], len(profile.counts))
    return Counts(rows=len(codes), missing=len(codes) - len(known), unknown=int(there[0]), bins=bins)


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
        by_chance: What chance explains of it, so that at most one of 1,000 comparisons flags any of its columns.
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
    there = {name: own for name, own in counts.items() if own.rows}
    chance = _CHANCE / (_FIGURES * max(len(there), 1))
    found = [_compared(name, own, profiles.get(name, Profile()), chance) for name, own in there.items()]
    order: Mapping[Level, int] = {"drift": 0, "shift": 1, "none": 2}
    return tuple(sorted(found, key=lambda one: (order[one.level], -one.excess, -(one.index or 0.0))))


def _compared(column: str, counts: Counts, profile: Profile, chance: float) -> ColumnDrift:
    trained, rows = profile.rows, counts.rows
    # Those with a value, then and now; of none nothing is known.
    learned, known = max(trained - (profile.gaps or 0), 1), rows - counts.missing
    index, by_chance = stability_index(counts, profile, chance=chance)
    # Where nobody knows how many training records there were, they are taken for many.
    excess = [0.0]
    if profile.low is not None and (not trained or _outside_by_chance(counts.outside, known, learned) <= chance):
        excess.append(counts.outside / rows)
    if profile.gaps is not None and (
        not trained or _missing_by_chance(counts.missing, rows, profile.gaps, trained) <= chance
    ):
        excess.append(counts.missing / rows - profile.gaps / max(trained, 1))
    if not trained or not _is_unknown_by_chance(counts.unknown, known, profile, chance):
        excess.append((counts.unknown - known * _expected_unknown(profile) / learned) / rows)
    return ColumnDrift(
        column=column,
        records=rows,
        trained=trained,
        outside=None if profile.low is None else counts.outside / rows,
        missing=counts.missing / rows,
        missing_in_training=None if profile.gaps is None else profile.gaps / max(trained, 1),
        unknown=counts.unknown / rows,
        unknown_in_training=profile.unlisted / max(trained, 1),
        index=index,
        by_chance=by_chance,
        excess=max(excess),
    )


def stability_index(counts: Counts, profile: Profile, *, chance: float = _CHANCE) -> tuple[float | None, float]:
    """Return the stability index, and what chance explains of it; ``None`` where there are no bins.

    Args:
        counts: What was counted.
        profile: What was counted against.
        chance: In which fraction of cases chance may explain more.

    Raises:
        DataError: If they have other bins.

    >>> profile = profile_of_numbers(np.arange(1000.0))
    >>> index, by_chance = stability_index(counted_numbers(np.full(500, 2000.0), profile), profile)
    >>> round(index, 1), round(by_chance, 2)
    (6.2, 0.1)
    """
    from scipy.special import chdtri  # slow to import, and needed for new records only

    sample, rows = sum(profile.counts) + (profile.gaps or 0), counts.rows - counts.unknown
    if not profile.counts or not rows:
        return None, 0.0
    if len(counts.bins) != len(profile.counts):
        raise DataError(f"expected the counts of {len(profile.counts)} bins as in training, got {len(counts.bins)}")
    before = np.array([*profile.counts, profile.gaps or 0], float)
    now = np.array([*counts.bins, counts.missing], float)
    used = (before + now) > 0
    before, now = before[used] + 0.5, now[used] + 0.5
    p, q = before / before.sum(), now / now.sum()
    degrees = int(used.sum()) - 1
    by_chance = float(chdtri(degrees, chance / _TAIL)) * (1 / sample + 1 / rows) if degrees else 0.0
    return float(np.sum((q - p) * np.log(q / p))), by_chance


def _outside_by_chance(outside: int, rows: int, trained: int) -> float:
    """Return how probable so many new values outside the training range are, or more, if nothing has changed.

    Sorted together, n training records cut m new ones into n + 1 stretches, all of one distribution; outside are two of
    these, or as well the first two. So many are outside if at most one of the first ``outside + 1`` records is of the
    training. Equal values make it less probable.
    """
    return _at_least(outside, outside + 1, rows, trained)


def _missing_by_chance(missing: int, rows: int, before: int, trained: int) -> float:
    """Return how probable so many new records without a value are, or more, given those of both samples together."""
    return _at_least(missing, missing + before, rows, trained)


def _at_least(found: int, drawn: int, rows: int, trained: int) -> float:
    """Return how probable it is that ``found`` or more of ``drawn`` records, of all alike, are new: at most.

    The hypergeometric probabilities fall by an ever smaller factor, so that a geometric sum bounds them from above.

    >>> round(_at_least(1, 1, 5, 1000) * 1005, 6)
    5.0
    """
    if found * (rows + trained) <= drawn * rows:
        return 1.0
    exact = _log_choose(rows, found) + _log_choose(trained, drawn - found) - _log_choose(rows + trained, drawn)
    falls = (rows - found) * (drawn - found) / ((found + 1) * (trained - drawn + found + 1))
    return min(math.exp(exact) / (1 - falls), 1.0) if falls < 1 else 1.0


def _log_choose(all_: int, some: int) -> float:
    return math.lgamma(all_ + 1) - math.lgamma(some + 1) - math.lgamma(all_ - some + 1)


def _is_unknown_by_chance(unknown: int, rows: int, profile: Profile, chance: float) -> bool:
    """Return whether chance explains the new records of categories that training did not list.

    A category that training has missed may be frequent among many new records, so that these do not come one by one.
    With Poisson counts ``K`` in training and ``C`` now, of any mean that is as many times larger as there are records,
    a bet ``0 < b < 1`` is worth ``(1 + b · n/m)^C · (1 − b)^K`` for a category that is not listed, and ``1 − b^K`` for
    one that is; where more than ``cut`` records list it, ``P(Bin(K, 1 − b) > cut)``. That is 1 on average, whatever the
    mean. So are the product over categories, and the mean over bets. It is above ``1/α`` in fewer than ``α`` cases
    (Markov).
    """
    from scipy.special import betainc  # slow to import, and needed for new records only

    if not unknown:
        return True
    records, categories = np.array(profile.listed or ((profile.cut + 1, 0),), float).T
    cut = min(profile.cut, records[0] - 1)  # of a sample of the training records, it is lower
    worth = [
        unknown * math.log1p(bet * (profile.rows - (profile.gaps or 0)) / rows)
        + profile.unlisted * math.log1p(-bet)
        + float(np.dot(categories, np.log(betainc(cut + 1, records - cut, 1 - bet))))
        for bet in _BETS
    ]
    return float(np.logaddexp.reduce(worth)) - math.log(len(_BETS)) < -math.log(chance)


def _expected_unknown(profile: Profile) -> int:
    """Return how many of as many new records are of categories that are not listed, on average (Good and Turing)."""
    return profile.unlisted + (profile.cut + 1) * dict(profile.listed).get(profile.cut + 1, 0)


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


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """How many scores are exactly 0 or 1.

    Attributes:
        fraction: See :func:`splitvfl.metrics.saturated`.
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
