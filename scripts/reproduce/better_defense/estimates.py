"""Figures over seeds: a family's curve at a leak, differences of two rows, and intervals by the jackknife."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from scripts.reproduce.shared.claims import DIFFERENCE, Interval, clipped, mean_of_all, shown, signed

Seeds = Sequence[int]
"""Positions among the results: which runs are used."""


@dataclass(frozen=True)
class Estimate:
    """What was found of all seeds, a difference of two AUCs, and how far it may be off.

    Attributes:
        value: Of all seeds; NaN where there is none, or where a seed has no figure.
        error: Standard error by the jackknife; NaN where it is not known.
        seeds: How many there are.
    """

    value: float
    error: float
    seeds: int

    @property
    def known(self) -> bool:
        """Whether there are both, of two seeds at least."""
        return math.isfinite(self.value) and math.isfinite(self.error)

    def half(self, comparisons: int = 1) -> float:
        """Return half the width of the 95 % interval for so many comparisons at once; NaN where it is not known.

        By Student's t with n − 1 degrees of freedom, and Bonferroni's correction: each comparison has its part of the
        five per cent that may be wrong.
        """
        return float(stats.t.ppf(1.0 - 0.025 / comparisons, self.seeds - 1)) * self.error

    def interval(self, comparisons: int = 1) -> Interval:
        """Return the 95 % interval for so many comparisons at once, as far as a difference of two AUCs can lie."""
        half = self.half(comparisons)
        ends = clipped((self.value - half, self.value + half), DIFFERENCE)
        assert ends is not None
        return ends

    def shown(self, comparisons: int = 1) -> str:
        """Return value and half the width of its interval, with a sign: ``+.012 ± .004``.

        Args:
            comparisons: If there are several, half the corrected width stands in brackets after it:
                ``+.012 ± .004 (± .021)``.
        """
        if not math.isfinite(self.value):
            return "–"
        if not self.known:
            return signed(self.value)
        corrected = f" (± {half_shown(self.half(comparisons))})" if comparisons > 1 else ""
        return f"{signed(self.value)} ± {half_shown(self.half())}{corrected}"


def half_shown(half: float) -> str:
    """Return half the width of an interval of a difference of two AUCs: one of more than 1 tells nothing.

    >>> half_shown(0.0213), half_shown(2.934)
    ('.021', '1 or more')
    """
    return "1 or more" if half >= 1.0 else shown(half)


def jackknife(found: Callable[[Seeds], float], seeds: int, *, overlap: float = 0.0) -> Estimate:
    """Return a figure of all seeds, and its standard error by leaving out one after the other.

    ``√((n − 1)/n Σ (θ₋ᵢ − mean θ₋)²)``. The whole procedure is made anew without each seed, whatever it consists of, so
    that errors of all that it is made of count. Of a mean it is the usual standard error. Where each seed divides the
    same records anew, runs train on most of the same ones, and the mean varies more than independent runs would have
    it: the error is √(1 + n · overlap) times that.

    Source: Quenouille 1956; Tukey 1958; Efron and Stein, Annals of Statistics 1981; of the overlap Nadeau and Bengio,
    Machine Learning 2003.

    Args:
        found: The figure of some seeds, by position; NaN where it is not defined.
        seeds: How many there are.
        overlap: Test records for each training record, where each seed has its own division; 0: all have one.
    """
    everything = list(range(seeds))
    value = found(everything)
    if seeds < 2:
        return Estimate(value, math.nan, seeds)
    without = np.array([found([one for one in everything if one != left_out]) for left_out in everything])
    squares = float(((without - without.mean()) ** 2).sum())
    error = math.sqrt((seeds - 1) / seeds * squares * (1.0 + seeds * overlap))
    return Estimate(value, error, seeds)


def curve_at(leaks: Sequence[float], tests: Sequence[float], level: float) -> float:
    """Return what is kept at a leak of at most so much, by straight lines between strengths; NaN outside of them.

    A strength that leaks less and keeps more takes the place of one that leaks more and keeps less: nobody would use
    that one, and a gain over it is none.

    Args:
        leaks: Mean leak AUC of each strength, in any order.
        tests: Mean test AUC of each.
        level: The leak AUC.
    """
    if not leaks or np.isnan([*leaks, *tests]).any() or not min(leaks) <= level <= max(leaks):
        return math.nan
    order = np.argsort(leaks, kind="stable")
    best = np.maximum.accumulate(np.asarray(tests)[order])
    return float(np.interp(level, np.asarray(leaks)[order], best))


def next_weaker(leaks: Sequence[float], tests: Sequence[float], level: float) -> float:
    """Return what is kept at the nearest strength that leaks as much or more; NaN outside of the strengths.

    A curve that rises lies below it at the leak, however it bends between strengths.
    """
    if math.isnan(curve_at(leaks, tests, level)):
        return math.nan
    order = np.argsort(leaks, kind="stable")
    best = np.maximum.accumulate(np.asarray(tests)[order])
    return float(best[np.searchsorted(np.asarray(leaks)[order], level)])


def paired(first: Sequence[float], second: Sequence[float], *, overlap: float = 0.0) -> Estimate:
    """Return the mean difference of two rows, seed by seed, and its standard error; NaN if one has no figure."""
    gains = [one - other for one, other in zip(first, second, strict=True)]
    return jackknife(lambda seeds: mean_of_all(gains[seed] for seed in seeds), len(gains), overlap=overlap)
