"""What is left of what messages add to a model: a share of it with its interval, or the plain difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from scripts.reproduce.shared.claims import Interval, in_percent, interval, mean_of_all, shown, signed


@dataclass(frozen=True)
class Kept:
    """What a model keeps of what messages add.

    Attributes:
        difference: Defended less no message, the mean over seeds.
        difference_ends: Its 95 % interval; ``None`` with one seed.
        share: (defended − no message) / (undefended − no message), of means over seeds; ``None`` where undefended is
            not surely better than no message.
        share_ends: The share's 95 % interval, by Fieller's theorem; ``None`` where there is no share.
    """

    difference: float
    difference_ends: Interval | None
    share: float | None = None
    share_ends: Interval | None = None

    @property
    def shown(self) -> str:
        """For a table: ``76 % (60 to 92 %)``, or ``+.004 ± .002*`` of a plain difference."""
        if self.share is not None and self.share_ends is not None:
            low, high = (in_percent(end) for end in self.share_ends)
            # Of what is compared with itself there is nothing to be unsure of.
            ends = "" if low == high else f" ({low.removesuffix(' %')} to {high})"
            return f"{in_percent(self.share)}{ends}"
        if math.isnan(self.difference):
            return "–"
        ends = self.difference_ends
        half = "" if ends is None else f" ± {shown((ends[1] - ends[0]) / 2)}"
        return f"{signed(self.difference)}{half}\\*"


def kept(
    defended: Sequence[float], undefended: Sequence[float], nothing: Sequence[float], *, overlap: float = 0.0
) -> Kept:
    """Return what a model keeps of what messages add, of test AUCs of the same seeds.

    Where the 95 % interval of undefended − no message, paired by seed, is not above 0 there may be nothing of which a
    share could be kept: no share has a bounded interval then. It is the plain difference.

    Args:
        defended: One per seed.
        undefended: One per seed, of the model that has all that messages add.
        nothing: One per seed, where nothing is sent back.
        overlap: Test records for each training record, where each seed divides the same records anew; intervals are
            √(1 + n · overlap) times as wide then (Nadeau and Bengio, Machine Learning 2003).
    """
    left, gains = (
        [ours - theirs for ours, theirs in zip(values, nothing, strict=True)] for values in (defended, undefended)
    )
    difference, gain = mean_of_all(left), mean_of_all(gains)
    difference_ends = None if math.isnan(difference) else interval(left)
    if difference_ends is not None:
        half = math.sqrt(1.0 + len(left) * overlap) * (difference_ends[1] - difference)
        difference_ends = difference - half, difference + half
    ends = fieller(left, gains, overlap=overlap)
    if ends is None or gain <= 0.0:
        return Kept(difference, difference_ends)
    return Kept(difference, difference_ends, difference / gain, ends)


def fieller(above: Sequence[float], below: Sequence[float], *, overlap: float = 0.0) -> Interval | None:
    """Return the 95 % interval of the ratio of two means, of values that are paired by seed.

    All ratios r for which the mean of ``above − r · below`` is not told apart from 0 by Student's t with n − 1 degrees
    of freedom. It takes the numerator, the denominator and how they go together into account, and is exact where both
    are normal. They are an interval if the denominator's own interval does not hold 0, and else unbounded.

    Source: Fieller, Journal of the Royal Statistical Society B, 1954.

    Args:
        above: One per seed.
        below: One per seed.
        overlap: As for :func:`kept`.

    Returns:
        ``(low, high)``; ``None`` where it is unbounded, with fewer than two seeds, or where a seed has no figure.
    """
    first, second = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    if first.size < 2 or not np.isfinite([first, second]).all():
        return None
    squared = float(stats.t.ppf(0.975, first.size - 1)) ** 2 * (1.0 + first.size * overlap)
    (top, across), (_, bottom) = squared / first.size * np.cov(first, second)
    # (mean above − r · mean below)² ≤ t² · variance of that mean, as a polynomial in r: a r² − 2 b r + c ≤ 0.
    a = float(second.mean() ** 2 - bottom)
    b = float(first.mean() * second.mean() - across)
    c = float(first.mean() ** 2 - top)
    if a <= 0.0:
        return None
    root = math.sqrt(max(0.0, b * b - a * c))
    return (b - root) / a, (b + root) / a
