"""What judges of scores have in common: the figures of each step, and sums per record.

What stands where an AUC stands for two classes is, of k classes, a mean over classes of one against the rest, and of
numbers a concordance: each judge says which. Figures are read alike, whatever the labels are.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.data.coin_labels import NO_IDS, Canaries
from splitvfl.errors import ArgumentError
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.record_sums import RecordSums
from splitvfl.leakage.series import StepValues
from splitvfl.leakage.state import Stateful
from splitvfl.learning.records import Ids
from splitvfl.metrics import oriented

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_] | slice


class Keeper(Stateful, ABC):
    """A judge of one attack's scores: leak AUC of each step, and of sums per record over the run.

    Memory does not grow with the steps: see :class:`~splitvfl.leakage.series.StepValues`. What it keeps are numbers of
    its own: scores that change after they were judged change nothing.

    Canaries are judged apart, :meth:`canary_leak`: all other figures are of the other records.

    Args:
        steps: Makes an empty series of steps.
        sums: Makes empty sums.
        canaries: Which records have labels that were drawn, if any have.

    Attributes:
        canaries: Those records.
        knows_labels: Whether who scores knows the labels of other records, as the auditor does: its scores are the
            right way round.
    """

    _kept: ClassVar[tuple[str, ...]] = ("_aucs", "_tied", "_asked", "_answered", "_undefined", "_records", "_canaries")

    def __init__(
        self, steps: Callable[[], StepValues], sums: Callable[[], RecordSums], *, canaries: Canaries | None
    ) -> None:
        self.canaries = canaries
        self.knows_labels = False
        self._new_steps = steps
        self._aucs = steps()
        # AUCs with those left out as ties; ``None`` as long as nobody was, and they are the others.
        self._tied: StepValues | None = None
        self._asked = self._answered = self._undefined = 0
        self._records = sums()
        self._canaries = None if canaries is None else sums()

    @abstractmethod
    def add(self, ids: Tensor | None, scores: Tensor, labels: Tensor) -> float:
        """Judge one step and return its leak AUC (NaN if undefined), of the records that are no canaries.

        Args:
            ids: Record ids, ``(n,)``; ``None`` when nobody knows them, and nothing can be added up.
            scores: One row for each record; one with NaN was not scored.
            labels: ``(n,)``; NaN marks records that are not judged.

        Raises:
            ArgumentError: If scores or labels are not of the form that is judged, or there are canaries and nobody
                knows which these are.
        """

    def _count(self, asked: int, answered: int) -> None:
        """Count the records of a step that are judged, and those of them that were scored, before the step is added."""
        self._asked += asked
        self._answered += answered
        if answered < asked and self._tied is None:
            self._tied = copy.deepcopy(self._aucs)

    def _sum(self, ids: Ids, added: Floats, labels: npt.NDArray[Any], kept: Rows, canary: Rows) -> None:
        """Add scores to their records' sums, those of canaries apart."""
        self._records.add(ids[kept], added[kept], labels[kept])
        if self._canaries is not None:
            self._canaries.add(ids[canary], added[canary], labels[canary])

    def revise(self, ids: Ids, scores: Floats) -> None:
        """Put scores of all that has come in place of records' last ones, canaries' too.

        Args:
            ids: ``(n,)``, each once; of those that were never judged nothing is kept.
            scores: ``(n,)``, or ``(n, m)``; NaN where a record is not scored.
        """
        for sums in (self._records, self._canaries):
            if sums is not None:
                sums.replace(ids, scores)

    @property
    def aucs(self) -> tuple[float, ...]:
        """Leak AUC of each step that had one, in order and in the attack's own orientation.

        Of a run of more than 8192 such steps, evenly spaced ones: :class:`~splitvfl.leakage.series.Thinned`.
        """
        return tuple(self._aucs.kept.tolist())

    @property
    def auc_sum(self) -> tuple[float, int]:
        """Sum of the leak AUCs of all steps that had one, and how many these are: for means over part of a run."""
        return self._aucs.total, len(self._aucs)

    @property
    def _tied_aucs(self) -> StepValues:
        if not self._answered:
            return self._new_steps()  # who scores nothing at all is not judged, which is not the same as found blind
        return self._aucs if self._tied is None else self._tied

    @property
    def recent_auc(self) -> float:
        """Mean leak AUC of the last ten steps that had one: a curve of it shows the course of a run."""
        return self._aucs.recent_mean

    @property
    def recent_tied_auc(self) -> float:
        """The same of all records, those left out as ties."""
        return self._tied_aucs.recent_mean

    @property
    def beside_auc(self) -> dict[str, float]:
        """Further figures of recent steps for a log, by name: none where the AUC says all."""
        return {}

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
        """Number of records whose scores are added up; the accumulated AUC takes time in proportion."""
        return self._records.scored

    @property
    def accumulated_auc(self) -> float:
        """AUC of the per-record sums or last scores, of records that were scored at all; O(records · log records)."""
        return self._auc_of(*self._records.of_scored())

    @property
    def tied_accumulated_auc(self) -> float:
        """The same of all records, where one that was never scored is in the middle; NaN if no record ever was."""
        return self._auc_of(*self._records.of_all()) if self.records else math.nan

    @property
    def orientation(self) -> float:
        """Which way scores point by the records that are no canaries: −1 where they are higher for lower labels.

        Who knows labels is never turned round: its scores of other records may point the other way by what is predicted
        of them. Behind ``asymmetric-response`` on credit default the auditor's axis read 0.44 of these, and 0.60 of the
        canaries.
        """
        return -1.0 if not self.knows_labels and self.accumulated_auc < 0.5 else 1.0

    @abstractmethod
    def _auc_of(self, sums: Floats, labels: npt.NDArray[Any], /) -> float:
        """Return the AUC of sums of records, in the attack's own orientation."""

    @abstractmethod
    def canary_leak(self, *, level: float = 0.95) -> CanaryLeak | None:
        """Return what the accumulated scores tell of the canaries' labels; ``None`` where there are none.

        Args:
            level: Confidence of the interval, in (0, 1).
        """

    def randomised_leak(self, *, level: float = 0.95) -> CanaryLeak | None:
        """Return the same of the labels that a label defense put in the place of the canaries', of two classes.

        Args:
            level: Confidence of the interval, in (0, 1).

        Returns:
            ``None`` where there are none, or no one randomised label stands for a canary in the whole run.
        """
        return None

    @abstractmethod
    def summary(self) -> LeakSummary:
        """Return the run's figures so far."""

    def _oriented_summary(self, labels: int, **others: Any) -> LeakSummary:
        """Return the figures of scores that have one orientation for the run, with ``labels`` records met in all."""
        tied = self._tied_aucs
        accumulated = self.accumulated_auc
        tied_accumulated = self.tied_accumulated_auc if self.leaves_out else accumulated
        return LeakSummary(
            auc=self._aucs.mean,
            worst_auc=oriented(tied.mean),
            quantile_95=tied.oriented_quantile(0.95),
            accumulated_auc=accumulated,
            worst_accumulated_auc=oriented(tied_accumulated),
            steps=len(self._aucs),
            undefined=self._undefined,
            tied_auc=tied.mean,
            tied_accumulated_auc=tied_accumulated,
            scored=self.scored,
            scored_accumulated=self.records / labels if labels else math.nan,
            **others,
        )

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If one has canaries and the other has none.
        """
        if (state["canaries"] is None) != (self._canaries is None):
            raise ValueError("one of the two runs has canaries, the other has none")
        self._tied = None if state["tied"] is None else self._new_steps()
        super().load_state_dict(state)


def apart(ids: Ids | None, canaries: Canaries | None) -> tuple[Rows, Rows]:
    """Return which rows are judged with all others, and which are canaries.

    Raises:
        ArgumentError: If there are canaries, and nobody knows which these are.
    """
    if canaries is None:
        return slice(None), slice(0)
    if ids is None:
        raise ArgumentError(NO_IDS)
    canary = canaries.among(ids)
    return ~canary, canary


def judged_rows(ids: Tensor | None, scores: Tensor, labels: Tensor) -> tuple[Ids | None, Tensor, Tensor]:
    """Return ids ``(n,)``, scores ``(n, m)`` and labels ``(n,)`` of records that have a label, the latter in float64.

    Args:
        ids: ``(count,)``, or ``None``.
        scores: ``(count,)``, or ``(count, m)``; NaN stays.
        labels: ``(count,)``; NaN marks records that are not judged.
    """
    truth = labels.detach().reshape(-1).double().cpu()
    real = ~torch.isnan(truth)
    rows = scores.detach().cpu().double().reshape(len(truth), math.prod(scores.shape[1:]))[real]
    own = None if ids is None else ids.detach().cpu().numpy().reshape(-1)[real.numpy()]
    return own, rows, truth[real]
