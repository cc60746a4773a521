"""Judging attacks on labels that are numbers: concordance, rank correlation, and how many are told nearly right."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.leakage.canaries import NO_IDS, Canaries, CanaryLeak
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.series import StepValues
from splitvfl.leakage.state import Stateful
from splitvfl.learning.records import Ids, RecordTable
from splitvfl.metrics import (
    centred,
    chance_concordance,
    in_the_middle,
    oriented,
    rank_concordance,
    scores_and_numbers,
)

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

TOLERANCE = 0.5
"""A label counts as told if the guess is so many standard deviations of all labels from it, or less."""

_MOST_RECORDS = 1 << 21
# Pairs are compared among so many records at most: their concordance has a standard error of .002.
_MOST_COMPARED = 20_000


class NumberKeeper(Stateful):
    """Leak of each step, and sums per record, as :class:`~splitvfl.leakage.judging.ScoreKeeper` for two classes.

    What stands where an AUC stands for two classes is the concordance: of two records, how often the one with the
    larger label has the larger score. Beside it are Spearman's rank correlation, and the share of labels that are
    within half a standard deviation of a guess by the sums, beside that of the best single guess.

    Args:
        canaries: Which records have labels that were drawn, if any have: judged apart.
        raw: Whether scores are added as they are.
        cumulative: Whether a score is of all that came of its record so far.
    """

    _kept = ("_concordances", "_tied", "_correlations", "_asked", "_answered", "_undefined", "_records", "_canaries")

    def __init__(self, *, canaries: Canaries | None = None, raw: bool = False, cumulative: bool = False) -> None:
        self.canaries = canaries
        self._as_is = raw or cumulative
        self._concordances = StepValues()
        self._tied: StepValues | None = None
        self._correlations = StepValues()
        self._asked = self._answered = self._undefined = 0
        self._records = _NumberSums(last=cumulative)
        self._canaries = None if canaries is None else _NumberSums(last=cumulative)

    def add(self, ids: Tensor | None, scores: Tensor, labels: Tensor) -> float:
        """Judge one step and return its concordance (NaN if undefined), of the records that are no canaries.

        Args:
            ids: Record ids, ``(n,)``; ``None`` when nobody knows them, and nothing can be added up.
            scores: ``(n,)``; NaN marks records that were not scored.
            labels: ``(n,)``; NaN marks records that are not judged.

        Raises:
            ArgumentError: If there is not one score for a label, or there are canaries and nobody knows which.
        """
        truth = labels.detach().reshape(-1).double().cpu()
        real = ~torch.isnan(truth)
        rows = scores.detach().cpu().double().reshape(-1)
        if len(rows) != len(truth):
            raise ArgumentError(f"expected one score for each of {len(truth)} records, got {tuple(scores.shape)}")
        rows = rows[real]
        scored = ~torch.isnan(rows).numpy()
        values, numbers = scores_and_numbers(torch.nan_to_num(rows), truth[real])
        own = None if ids is None else ids.detach().cpu().numpy().reshape(-1)[real.numpy()]
        kept = np.ones(numbers.size, np.bool_)
        if self.canaries is not None:
            if own is None:
                raise ArgumentError(NO_IDS)
            kept = ~self.canaries.among(own)
        found = self._judge(values[kept], numbers[kept], scored[kept])
        if own is not None:
            added = _to_add(values, scored, as_is=self._as_is)
            self._records.add(own[kept], added[kept], numbers[kept])
            if self._canaries is not None:
                self._canaries.add(own[~kept], added[~kept], numbers[~kept])
        return found

    def _judge(self, values: Floats, numbers: Floats, scored: Flags) -> float:
        self._asked += numbers.size
        self._answered += int(np.count_nonzero(scored))
        if not scored.all() and self._tied is None:
            self._tied = copy.deepcopy(self._concordances)
        found = rank_concordance(values[scored], numbers[scored])
        placed = values if scored.all() else in_the_middle(values, scored)
        if math.isnan(found):
            self._undefined += 1
        else:
            self._concordances.append(found)
            self._correlations.append(spearman(values[scored], numbers[scored]))
        if self._tied is not None and numbers.size > 1 and np.ptp(numbers) > 0:
            self._tied.append(rank_concordance(placed, numbers))
        return found

    @property
    def _all(self) -> StepValues:
        if not self._answered:
            return StepValues()
        return self._concordances if self._tied is None else self._tied

    @property
    def aucs(self) -> tuple[float, ...]:
        """Concordance of each step that had one, in order; evenly spaced ones of a long run."""
        return tuple(self._concordances.kept.tolist())

    @property
    def auc_sum(self) -> tuple[float, int]:
        """Sum of the concordances of all steps that had one, and how many these are."""
        return self._concordances.total, len(self._concordances)

    @property
    def recent_auc(self) -> float:
        """Mean concordance of the last ten steps that had one."""
        return self._concordances.recent_mean

    @property
    def recent_tied_auc(self) -> float:
        """The same of all records, those left out as ties."""
        return self._all.recent_mean

    @property
    def beside_auc(self) -> dict[str, float]:
        """For a log: mean rank correlation of the last ten steps."""
        return {"leak_correlation": self._correlations.recent_mean}

    @property
    def leaves_out(self) -> bool:
        """Whether any record that is judged was left out."""
        return self._tied is not None

    @property
    def scored(self) -> float:
        """Share of the judged records of a step that were scored, so far."""
        return self._answered / self._asked if self._asked else math.nan

    @property
    def records(self) -> int:
        """Number of records whose scores are added up."""
        return self._records.scored

    @property
    def accumulated_auc(self) -> float:
        """Concordance of the per-record sums or last scores, of records that were scored at all."""
        return rank_concordance(*_some(*self._records.of_scored()))

    @property
    def tied_accumulated_auc(self) -> float:
        """The same of all records, where one that was never scored is in the middle; NaN if no record ever was."""
        return rank_concordance(*_some(*self._records.of_all())) if self.records else math.nan

    def canary_leak(self, *, level: float = 0.95) -> CanaryLeak | None:
        """Return what the accumulated scores tell of the canaries' labels, one of two numbers each; ``None`` without.

        Args:
            level: Confidence of the interval, in (0, 1).
        """
        if self._canaries is None:
            return None
        sums, numbers = (torch.from_numpy(part) for part in self._canaries.of_all())
        larger = numbers > numbers.mean() if numbers.numel() else numbers
        return CanaryLeak.of(sums, larger.to(torch.int64), level=level)

    def summary(self) -> LeakSummary:
        """Return the run's figures so far."""
        everybody = self._all
        quantile = everybody.quantile(0.95) if everybody.mean >= 0.5 else 1.0 - everybody.quantile(0.05)
        accumulated = self.accumulated_auc
        tied = self.tied_accumulated_auc if self.leaves_out else accumulated
        sums, numbers = self._records.of_all()
        within, trivially = shares_within(sums, numbers)
        return LeakSummary(
            auc=self._concordances.mean,
            worst_auc=oriented(everybody.mean),
            quantile_95=quantile,
            accumulated_auc=accumulated,
            worst_accumulated_auc=oriented(tied),
            steps=len(self._concordances),
            undefined=self._undefined,
            tied_auc=everybody.mean,
            tied_accumulated_auc=tied,
            scored=self.scored,
            scored_accumulated=self.records / numbers.size if numbers.size else math.nan,
            positives=numbers.size,
            task="regression",
            correlation=self._correlations.mean,
            accumulated_correlation=spearman(sums, numbers) if self.records else math.nan,
            within=within,
            trivially_within=trivially,
            chance=chance_concordance(numbers.size),
        )

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If one has canaries and the other has none.
        """
        if (state["canaries"] is None) != (self._canaries is None):
            raise ValueError("one of the two runs has canaries, the other has none")
        self._tied = None if state["tied"] is None else StepValues()
        super().load_state_dict(state)


def spearman(scores: Floats, numbers: Floats) -> float:
    """Return the correlation of midranks; 0 where all scores are equal, NaN where all numbers are."""
    from scipy.stats import rankdata  # slow to import, and not needed for two classes

    if numbers.size < 2 or np.ptp(numbers) == 0.0:
        return math.nan
    if np.ptp(scores) == 0.0:
        return 0.0
    return float(np.corrcoef(rankdata(scores), rankdata(numbers))[0, 1])


def shares_within(scores: Floats, numbers: Floats) -> tuple[float, float]:
    """Return the share of numbers that a line of the scores tells within the tolerance, and that of the best constant.

    The line is that of least squares, two numbers that the judge grants: with ten records it reads something of
    nothing, with a hundred hardly anything. Ends of the tolerance count.

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


class _NumberSums:
    """Scores added up per record, and their labels.

    Args:
        last: Whether the last score of a record counts in place of a sum.
    """

    def __init__(self, *, last: bool) -> None:
        self._last = last
        self._table = RecordTable(total=np.float64, count=np.int64, label=np.float64, met=np.int8)

    def add(self, ids: Ids, scores: Floats, numbers: Floats) -> None:
        """Add scores; NaN was left out."""
        if not ids.size:
            return
        slots = self._table.slots(ids) if len(self._table) < _MOST_RECORDS else self._table.find(ids)
        known = slots >= 0
        slots, scores, numbers = slots[known], scores[known], numbers[known]
        self._table["label"][slots], self._table["met"][slots] = numbers, 1
        scored = ~np.isnan(scores)
        slots, scores = slots[scored], scores[scored]
        if self._last:
            self._table["total"][slots] = scores
        else:
            np.add.at(self._table["total"], slots, scores)
        np.add.at(self._table["count"], slots, 1)

    @property
    def scored(self) -> int:
        """Number of records that were scored at least once."""
        return int(np.count_nonzero(self._table["count"]))

    def of_scored(self) -> tuple[Floats, Floats]:
        """Return the sums and the labels of the records that were scored at least once."""
        return self._of(self._table["count"] > 0)

    def of_all(self) -> tuple[Floats, Floats]:
        """Return the same of all records that were met; those never scored are in the middle."""
        return self._of(self._table["met"] > 0)

    def _of(self, chosen: Flags) -> tuple[Floats, Floats]:
        totals = in_the_middle(self._table["total"][chosen], self._table["count"][chosen] > 0)
        return totals, self._table["label"][chosen]

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers, fit for a checkpoint."""
        return self._table.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._table.load_state_dict(state)


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
