"""How much better one score is than another on the same records, with a confidence interval."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from splitvfl.metrics import mean_known

Floats = npt.NDArray[np.float64]

# Pairs of so many records with all others are compared at a time.
_PIECE = 256


class Judged(NamedTuple):
    """A figure, and how far each record moves it.

    Attributes:
        value: AUC of two classes, macro AUC of k, concordance of numbers; NaN where all labels are equal.
        influence: ``(n,)``, of sum zero; the figure's variance is that of their mean.
    """

    value: float
    influence: Floats


def judged(scores: Floats, labels: Floats, classes: int | None) -> Judged:
    """Return how well scores tell labels.

    Args:
        scores: ``(n, 1)``, of k classes ``(n, k)``.
        labels: ``(n,)``.
        classes: k; ``None`` for numbers.
    """
    if classes is None:
        return _concordance(scores[:, 0], labels)
    if classes == 2:
        return _auc(scores[:, 0], labels == 1)
    each = [_auc(scores[:, label], labels == label) for label in range(classes)]
    there = [one for one in each if not np.isnan(one.value)]
    influence = np.mean([one.influence for one in there], axis=0) if there else np.zeros(labels.size)
    return Judged(mean_known(np.array([one.value for one in each])), influence)


def difference(first: Judged, second: Judged, *, level: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of how much larger the first of two figures is, on the same records.

    Of two classes it is DeLong's of the difference of two AUCs; of k classes and of numbers it is by the same
    reasoning: figures are means over pairs of records, and what a record adds to its pairs is what it moves them.

    Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988); Hoeffding, Annals of Mathematical Statistics 19
    (1948), for such means in general.

    Args:
        first: Of some records.
        second: Of the same.
        level: Confidence, in (0, 1).
    """
    moved = first.influence - second.influence
    half = NormalDist().inv_cdf(0.5 + 0.5 * level) * float(np.sqrt(np.square(moved).sum())) / max(moved.size, 1)
    apart = first.value - second.value
    return apart - half, apart + half


def _auc(scores: Floats, positive: npt.NDArray[np.bool_]) -> Judged:
    influence = np.zeros(scores.size)
    if positive.all() or not positive.any():
        return Judged(float("nan"), influence)
    above = _share_below(scores[positive], scores[~positive])
    value = float(above.mean())
    below = 1.0 - _share_below(scores[~positive], scores[positive])
    for chosen, placed in ((positive, above), (~positive, below)):
        # So that the variance of each class has one record less in its denominator.
        influence[chosen] = (placed - value) * scores.size / np.sqrt(placed.size * max(placed.size - 1, 1))
    return Judged(value, influence)


def _share_below(scores: Floats, others: Floats) -> Floats:
    """Return for each score the share of others below it, ties counting one half."""
    ranked = np.sort(others)
    counts = np.searchsorted(ranked, scores, side="left") + np.searchsorted(ranked, scores, side="right")
    found: Floats = counts / (2.0 * others.size)
    return found


def _concordance(scores: Floats, labels: Floats) -> Judged:
    won, apart = np.zeros(scores.size), np.zeros(scores.size)
    for start in range(0, scores.size, _PIECE):
        own = slice(start, start + _PIECE)
        truth = _order(labels, own)
        apart[own] = np.abs(truth).sum(axis=1)
        won[own] = 0.5 * (apart[own] + (truth * _order(scores, own)).sum(axis=1, dtype=np.int64))
    if not apart.any():
        return Judged(float("nan"), np.zeros(scores.size))
    value = float(won.sum() / apart.sum())
    return Judged(value, 2.0 * (won - value * apart) / apart.mean())


def _order(values: Floats, own: slice) -> npt.NDArray[np.int8]:
    """Return for some of the values which of all are smaller, 1, equal, 0, or larger, −1."""
    found: npt.NDArray[np.int8] = np.sign(values[own, None] - values[None]).astype(np.int8)
    return found
