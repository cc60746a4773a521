"""Judging attacks on labels that are numbers: concordance, rank correlation, and how many are told nearly right."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from splitvfl.data.coin_labels import Canaries
from splitvfl.errors import ArgumentError
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.keeping import Keeper, apart, judged_rows
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.record_sums import RecordSums
from splitvfl.leakage.series import StepValues
from splitvfl.learning.records import Slots
from splitvfl.metrics import (
    centred,
    chance_concordance,
    in_the_middle,
    pairs_apart,
    rank_concordance,
    scores_and_numbers,
)

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

TOLERANCE = 0.5
"""A label counts as told if the guess is so many standard deviations of all labels from it, or less."""

# Pairs are compared among so many records at most: their concordance has a standard error of .002.
_MOST_COMPARED = 20_000


class NumberKeeper(Keeper):
    """The judge of scores of numbers.

    What stands where an AUC stands for two classes is the concordance: of two records, how often the one with the
    larger label has the larger score. Beside it are Spearman's rank correlation, and the share of labels that are
    within half a standard deviation of a guess by the sums, beside that of the best single guess.

    Args:
        canaries: Which records have labels that were drawn, if any have.
        raw: Whether scores are added as they are.
        cumulative: Whether a score is of all that came of its record so far.
    """

    _kept = (*Keeper._kept, "_correlations")

    def __init__(self, *, canaries: Canaries | None = None, raw: bool = False, cumulative: bool = False) -> None:
        super().__init__(StepValues, partial(_NumberSums, last=cumulative), canaries=canaries)
        self._as_is = raw or cumulative
        self._correlations = StepValues()

    def add(self, ids: Tensor | None, scores: Tensor, labels: Tensor) -> float:
        """Judge one step and return its concordance (NaN if undefined), of the records that are no canaries.

        Args:
            ids: Record ids, ``(n,)``; ``None`` when nobody knows them, and nothing can be added up.
            scores: ``(n,)``; NaN marks records that were not scored.
            labels: ``(n,)``; NaN marks records that are not judged.

        Raises:
            ArgumentError: If there is not one score for a label, or there are canaries and nobody knows which.
        """
        if scores.numel() != labels.numel():
            raise ArgumentError(f"expected one score for each of {labels.numel()} records, got {tuple(scores.shape)}")
        own, rows, truth = judged_rows(ids, scores, labels)
        scored = ~torch.isnan(rows[:, 0]).numpy()
        values, numbers = scores_and_numbers(torch.nan_to_num(rows[:, 0]), truth)
        kept, canary = apart(own, self.canaries)
        found = self._judge(values[kept], numbers[kept], scored[kept])
        if own is not None:
            self._sum(own, _to_add(values, scored, as_is=self._as_is), numbers, kept, canary)
        return found

    def _judge(self, values: Floats, numbers: Floats, scored: Flags) -> float:
        self._count(numbers.size, int(np.count_nonzero(scored)))
        found = rank_concordance(values[scored], numbers[scored])
        if math.isnan(found):
            self._undefined += 1
        else:
            self._aucs.append(found)
            self._correlations.append(spearman(values[scored], numbers[scored]))
        if self._tied is not None and numbers.size > 1 and np.ptp(numbers) > 0:
            placed = values if scored.all() else in_the_middle(values, scored)
            self._tied.append(rank_concordance(placed, numbers))
        return found

    @property
    def beside_auc(self) -> dict[str, float]:
        """For a log: mean rank correlation of the last ten steps."""
        return {"leak_correlation": self._correlations.recent_mean}

    def _auc_of(self, sums: Floats, labels: Floats) -> float:
        return rank_concordance(*_some(sums, labels))

    def canary_leak(self, *, level: float = 0.95) -> CanaryLeak | None:
        """Return what the accumulated scores tell of the canaries' labels, one of two numbers each; ``None`` without.

        Args:
            level: Confidence of the interval, in (0, 1).
        """
        if self._canaries is None:
            return None
        sums, numbers = (torch.from_numpy(part) for part in self._canaries.of_all())
        larger = numbers > numbers.mean() if numbers.numel() else numbers
        return CanaryLeak.of(self.orientation * sums, larger.to(torch.int64), level=level)

    def summary(self) -> LeakSummary:
        """Return the run's figures so far."""
        sums, numbers = self._records.of_all()
        within, trivially = shares_within(sums, numbers)
        return self._oriented_summary(
            numbers.size,
            positives=numbers.size,
            task="regression",
            correlation=self._correlations.mean,
            accumulated_correlation=spearman(sums, numbers) if self.records else math.nan,
            within=within,
            trivially_within=trivially,
            chance=chance_concordance(numbers.size),
        )


def spearman(scores: Floats, numbers: Floats) -> float:
    """Return the correlation of midranks; 0 where all scores are equal, NaN where all numbers are."""
    if numbers.size < 2 or np.ptp(numbers) == 0.0:
        return math.nan
    if np.ptp(scores) == 0.0:
        return 0.0
    return float(np.corrcoef(scipy.stats.rankdata(scores), scipy.stats.rankdata(numbers))[0, 1])


def held_out_concordance(scores: Floats, numbers: Floats, folds: npt.NDArray[np.int64]) -> float:
    """Return the concordance of out-of-fold scores: over pairs of records in the same fold, each pair counting once.

    Pairs across folds are left out, as their scores come from different fits. A fold of large numbers leaves a small
    mean to the fit that scores it: where scores know nothing, they are ordered against the numbers, and all pairs
    together read .43 of 60 records, .47 of 240, in place of one half.

    Source: Forman and Scholz, SIGKDD Explorations 12 (2010).

    Args:
        scores: ``(n,)``; of each record by a model that was not fitted to its fold.
        numbers: ``(n,)``.
        folds: ``(n,)``, the fold of each.

    Returns:
        A float in [0, 1]; NaN where no fold holds different numbers.
    """
    total = weight = 0.0
    for fold in np.unique(folds):
        inside = folds == fold
        found, pairs = rank_concordance(scores[inside], numbers[inside]), pairs_apart(numbers[inside])
        if pairs:
            total, weight = total + pairs * found, weight + pairs
    return total / weight if weight else math.nan


def shares_within(scores: Floats, numbers: Floats) -> tuple[float, float]:
    """Return the share of numbers that a line of the scores tells within the tolerance, and that of the best constant.

    The line is that of least squares, two numbers that the judge grants: with ten records it reads something of
    nothing, with a hundred hardly anything. It goes through the mean, and where labels are skewed the best constant
    holds more than that: a share below the constant's tells nothing. Ends of the tolerance count.

    Args:
        scores: ``(n,)``.
        numbers: ``(n,)``.

    Returns:
        Two floats in [0, 1]; NaN where all numbers are equal.
    """
    spread = float(numbers.std()) if numbers.size else 0.0
    if spread == 0.0:
        return math.nan, math.nan
    shifted, wanted = centred(scores), centred(numbers)
    square = float(shifted @ shifted)
    slope = float(shifted @ wanted) / square if square > 0.0 else 0.0
    told = np.abs(wanted - slope * shifted) <= TOLERANCE * spread
    ordered = np.sort(numbers)
    # The best constant is the middle of the window that holds most of them.
    held = np.searchsorted(ordered, ordered + 2.0 * TOLERANCE * spread, side="right") - np.arange(ordered.size)
    return float(told.mean()), float(held.max() / ordered.size)


class _NumberSums(RecordSums):
    """Sums of records whose labels are numbers."""

    def __init__(self, *, last: bool) -> None:
        super().__init__(last=last, total=np.float64, label=np.float64, met=np.int8)

    def _meet(self, slots: Slots, labels: Floats) -> None:
        self._records["label"][slots], self._records["met"][slots] = labels, 1

    def _met(self) -> Flags:
        return self._records["met"] > 0

    def _labels(self, chosen: Flags) -> Floats:
        return self._records["label"][chosen]


def _some(scores: Floats, numbers: Floats) -> tuple[Floats, Floats]:
    """Return at most so many of the records as pairs can be compared of, drawn evenly."""
    if numbers.size <= _MOST_COMPARED:
        return scores, numbers
    chosen = np.random.default_rng(0).choice(numbers.size, _MOST_COMPARED, replace=False)
    return scores[chosen], numbers[chosen]


def _to_add(values: Floats, scored: Flags, *, as_is: bool) -> Floats:
    """Return what a step adds to the sums, NaN where a record was left out."""
    added = np.full(values.shape, math.nan)
    shifted = values[scored] if as_is else centred(values[scored])
    if not as_is and shifted.size:
        largest = float(np.abs(shifted).max())
        shifted = shifted / largest if largest > 0.0 else shifted
        deviation = math.sqrt(float(np.square(shifted).mean()))
        shifted = shifted / deviation if deviation > 0.0 else shifted
    added[scored] = shifted
    return added
