"""Judging attacks on labels of k classes: one class against the rest, and the class that scores highest.

Scores come in three forms. *Named*: one for each class, judged as they are. *Single*: one per record, as of the length
of a gradient; it may be large for any of the classes, so the judge turns it round for each class on its own, and there
is no class that scores highest. *Clusters*: one for each of k classes of unknown names; the judge grants the one-to-one
names that read best (the assignment problem), which reads something of nothing: what matching gives by chance stands
beside.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import Any

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
from splitvfl.learning.records import Ids, Slots
from splitvfl.metrics import (
    chance_macro_auc,
    class_aucs,
    in_the_middle,
    mean_known,
    oriented,
    scores_and_classes,
    top_shares,
)

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Classes = npt.NDArray[np.int64]

# A table of sums takes 100 MiB at most, or thereabouts.
_MOST_NUMBERS = 1 << 23
# Random orders of the labels of which the mean says what matching gives by chance.
_ORDERS = 20
_RECENT = 10


class ClassKeeper(Keeper):
    """The judge of scores of k classes.

    Every AUC is a mean over the classes of one against the rest, with midranks, whatever the classes' shares: one half
    is blind, 1 perfect. Classes that a batch lacks do not count in its step. Orientations and matchings are those of
    the means over the run, never of a batch.

    Scores of a step are centred class by class and brought to one common scale before they are added up, so that steps
    with large gradients do not drown the others and classes stay comparable.

    Args:
        classes: k, at least 3.
        canaries: Which records have labels that were drawn, if any have.
        raw: Whether scores are log likelihoods of the classes: added as they are, and judged as posteriors.
        cumulative: Whether a score is of all that came of its record so far.
        clusters: Whether the classes of the columns are not known.
    """

    _kept = (*Keeper._kept, "_columns")
    _aucs: _Steps
    _tied: _Steps | None
    _records: _ClassSums
    _canaries: _ClassSums | None

    def __init__(
        self,
        classes: int,
        *,
        canaries: Canaries | None = None,
        raw: bool = False,
        cumulative: bool = False,
        clusters: bool = False,
    ) -> None:
        super().__init__(
            partial(_Steps, classes, clusters=clusters), partial(_ClassSums, last=cumulative), canaries=canaries
        )
        self.class_count = classes
        self._raw, self._as_is, self._clusters = raw, raw or cumulative, clusters
        self._columns = 0

    def add(self, ids: Tensor | None, scores: Tensor, labels: Tensor) -> float:
        """Judge one step and return its leak AUC (NaN if undefined), of the records that are no canaries.

        Args:
            ids: Record ids, ``(n,)``; ``None`` when nobody knows them, and nothing can be added up.
            scores: ``(n,)`` or ``(n, k)``; a row with NaN was not scored.
            labels: ``(n,)`` in 0 … k−1; NaN marks records that are not judged.

        Raises:
            ArgumentError: If a label is no class, the form of the scores has changed, or there are canaries and nobody
                knows which these are.
        """
        if len(scores) != labels.numel():
            raise ArgumentError(f"expected one row of scores for each of {labels.numel()} records, got {len(scores)}")
        own, rows, truth = judged_rows(ids, scores, labels)
        scored = ~torch.isnan(rows).any(dim=1).numpy()
        values, classes = scores_and_classes(torch.nan_to_num(rows), truth, classes=self.class_count)
        self._check_form(values.shape[1])
        kept, canary = apart(own, self.canaries)
        auc = self._judge(values[kept], classes[kept], scored[kept])
        if own is not None:
            self._sum(own, _to_add(values, scored, as_is=self._as_is, raw=self._raw), classes, kept, canary)
        return auc

    def revise(self, ids: Ids, scores: Floats) -> None:
        """Put scores of all that has come in place of records' last ones: ``(n,)`` or ``(n, k)``.

        Raises:
            ArgumentError: If the form of the scores has changed.
        """
        rows = scores.reshape(len(ids), -1) if len(ids) else scores.reshape(0, self._columns)
        if len(ids):
            self._check_form(rows.shape[1])
        super().revise(ids, rows)

    def _check_form(self, columns: int) -> None:
        if self._columns not in (0, columns):
            raise ArgumentError(f"expected scores with {self._columns} columns as before, got {columns}")
        self._columns = columns

    def _judge(self, values: Floats, classes: Classes, scored: Flags) -> float:
        if self._raw and values.size:
            values = scipy.special.log_softmax(values, axis=1)
        self._count(classes.size, int(np.count_nonzero(scored)))
        auc = self._aucs.add(values[scored], classes[scored])
        if self._tied is not None:
            self._tied.add(_placed(values, scored), classes)
        self._undefined += int(math.isnan(auc))
        return auc

    @property
    def _tied_aucs(self) -> _Steps:
        steps = super()._tied_aucs
        assert isinstance(steps, _Steps)
        return steps

    @property
    def beside_auc(self) -> dict[str, float]:
        """For a log: mean share of the last ten steps whose own class scored highest; NaN where scores name no class.

        Beside it the share of the most frequent class so far.
        """
        top = self._tied_aucs.recent_top1
        return {"leak_top1": top, "leak_top1_commonest": math.nan if math.isnan(top) else self._records.commonest}

    def _auc_of(self, sums: Floats, labels: Classes) -> float:
        return self._of_sums(sums, labels)[0].auc

    def _of_sums(self, sums: Floats, classes: Classes) -> tuple[_Reading, Floats]:
        """Return what sums tell, and the sums as posteriors where they are log likelihoods."""
        values = scipy.special.log_softmax(sums, axis=1) if self._raw and sums.size else sums
        return read(values, classes, self.class_count, clusters=self._clusters), values

    def canary_leak(self, *, level: float = 0.95) -> CanaryLeak | None:
        """Return what the accumulated scores tell of the canaries' labels; ``None`` where there are none.

        A score that names no class tells nothing of them here, and neither do clusters: ``None`` too.

        Args:
            level: Confidence of the interval, in (0, 1).
        """
        if self._canaries is None or self._clusters or self._columns == 1:
            return None
        sums, classes = self._canaries.of_all()
        return CanaryLeak.of_classes(self.orientation * sums, classes, self.class_count, level=level)

    def summary(self) -> LeakSummary:
        """Return the run's figures so far."""
        found, everybody = self._aucs, self._tied_aucs
        sums, classes = self._records.of_scored()
        accumulated, _ = self._of_sums(sums, classes)
        tied, values = accumulated, sums
        if self.leaves_out:
            sums, classes = self._records.of_all()
            tied, values = self._of_sums(sums, classes)
        counts = np.bincount(classes, minlength=self.class_count)
        chance, by_matching = self._chance(values, classes, counts)
        return LeakSummary(
            auc=found.reading.auc,
            worst_auc=everybody.reading.best,
            quantile_95=everybody.oriented_quantile(0.95),
            accumulated_auc=accumulated.auc,
            worst_accumulated_auc=tied.best if self.records else math.nan,
            steps=len(found),
            undefined=self._undefined,
            tied_auc=everybody.reading.auc,
            tied_accumulated_auc=tied.auc,
            scored=self.scored,
            scored_accumulated=float(self.records / counts.sum()) if counts.sum() else math.nan,
            task="multiclass",
            class_counts=tuple(counts.tolist()),
            top1=everybody.top1,
            accumulated_top1=tied.top1,
            commonest=float(counts.max() / counts.sum()) if counts.sum() else math.nan,
            top1_by_matching=by_matching,
            chance=chance,
        )

    def _chance(self, values: Floats, classes: Classes, counts: Classes) -> tuple[float, float]:
        """Return what knowing nothing gives: as AUC, and, where clusters are matched, as share of records."""
        if not self._clusters or not classes.size:
            return chance_macro_auc(counts.tolist()), math.nan
        generator = np.random.default_rng(0)
        found = [read(values, generator.permutation(classes), self.class_count, clusters=True) for _ in range(_ORDERS)]
        return mean_known(np.array([one.best for one in found])), mean_known(np.array([one.top1 for one in found]))


class _Reading:
    """What scores tell of classes, from the AUC of each column as a score of each class.

    Attributes:
        auc: In the attack's own orientation, where it has one.
        best: In the better one: over all classes together, or for each where there is one score for all.
        names: Which column is read for each class, ``(k,)``.
        top1: Share of records whose own class scored highest; NaN of single scores.
    """

    def __init__(self, matrix: Floats, *, clusters: bool) -> None:
        columns, classes = matrix.shape
        self.top1 = math.nan
        if columns == 1:
            self.names = np.zeros(classes, np.int64)
            self.turned = matrix[0] < 0.5
            self.auc = self.best = mean_known(np.maximum(matrix[0], 1.0 - matrix[0]))
            return
        self.names = np.arange(classes)
        if clusters:
            rows, found = scipy.optimize.linear_sum_assignment(np.nan_to_num(matrix, nan=0.5), maximize=True)
            self.names = rows[np.argsort(found)]
        self.turned = np.zeros(classes, np.bool_)
        self.auc = mean_known(matrix[self.names, np.arange(classes)])
        self.best = self.auc if clusters else oriented(self.auc)

    def of_step(self, matrix: Floats) -> float:
        """Return the AUC of one step, read like this."""
        found = matrix[self.names, np.arange(matrix.shape[1])]
        return mean_known(np.where(self.turned, 1.0 - found, found))

    def top(self, values: Floats, classes: Classes) -> float:
        """Return the share of records whose own class scored highest, ties in part; NaN of single scores."""
        if values.shape[1] == 1 or not classes.size:
            return math.nan
        return float(top_shares(values[:, self.names], classes).mean())


def read(values: Floats, classes: Classes, count: int, *, clusters: bool) -> _Reading:
    """Return what scores ``(n, m)`` tell of the classes ``(n,)`` of k."""
    found = _Reading(class_aucs(values, classes, count), clusters=clusters)
    found.top1 = found.top(values, classes)
    return found


class _Steps(StepValues):
    """AUCs of every column as a score of every class, averaged over steps, and what the steps read by them."""

    _kept = (*StepValues._kept, "_sums", "_counts", "_tops", "_recent_tops")

    def __init__(self, classes: int, *, clusters: bool) -> None:
        super().__init__()
        self._clusters = clusters
        self._sums = self._counts = np.zeros((0, classes))
        self._tops = np.zeros(2)  # of shares, and how many
        self._recent_tops: deque[float] = deque(maxlen=_RECENT)

    def add(self, values: Floats, classes: Classes) -> float:
        """Add a step and return its AUC, in the orientation and by the names that the run has so far."""
        matrix = class_aucs(values, classes, self._sums.shape[1])
        if not len(self._sums):
            self._sums, self._counts = np.zeros(matrix.shape), np.zeros(matrix.shape)
        self._sums, self._counts = self._sums + np.nan_to_num(matrix), self._counts + ~np.isnan(matrix)
        reading = self.reading
        auc = reading.of_step(matrix)
        if math.isnan(auc):
            return auc
        self.append(auc)
        top = reading.top(values, classes)
        if not math.isnan(top):
            self._tops = self._tops + np.array([top, 1.0])
            self._recent_tops.append(top)
        return auc

    @property
    def reading(self) -> _Reading:
        """What the means over steps tell."""
        sums, counts = (part if len(part) else np.zeros((1, part.shape[1])) for part in (self._sums, self._counts))
        return _Reading(
            np.divide(sums, counts, out=np.full(sums.shape, math.nan), where=counts > 0), clusters=self._clusters
        )

    def oriented_quantile(self, share: float) -> float:
        """Return a quantile of the steps, in the better orientation: single scores and clusters are turned already."""
        named = len(self._sums) > 1 and not self._clusters
        return super().oriented_quantile(share) if named else self.quantile(share)

    @property
    def top1(self) -> float:
        """Mean share of records whose own class scored highest."""
        return float(self._tops[0] / self._tops[1]) if self._tops[1] else math.nan

    @property
    def recent_top1(self) -> float:
        """The same over the last ten steps."""
        return sum(self._recent_tops) / len(self._recent_tops) if self._recent_tops else math.nan


class _ClassSums(RecordSums):
    """Sums of records of k classes, one number for each column of the scores."""

    def __init__(self, *, last: bool) -> None:
        super().__init__(last=last, label=np.int64)
        self._by_column = np.zeros((0, 1))

    def _most(self, scores: Floats) -> int:
        return _MOST_NUMBERS // int(scores.shape[1])

    def _totals(self, scores: Floats) -> Floats:
        rows, (before, columns) = len(self._records), self._by_column.shape
        if rows > before:
            wider = np.zeros((max(rows, 2 * before), scores.shape[1]))
            wider[:before, :columns] = self._by_column
            self._by_column = wider
        return self._by_column

    def _meet(self, slots: Slots, labels: Classes) -> None:
        self._records["label"][slots] = labels + 1  # 0 is a record that was never met

    def _met(self) -> Flags:
        return self._records["label"] > 0

    def _labels(self, chosen: Flags) -> Classes:
        return self._records["label"][chosen] - 1

    def _sums(self, chosen: Flags) -> Floats:
        sums = self._by_column[: len(self._records)][chosen]
        return _placed(sums, self._records["count"][chosen] > 0) if len(sums) else sums

    @property
    def commonest(self) -> float:
        """Share of the most frequent class among the records that were met; NaN before any."""
        self._settle()
        labels = self._records["label"]
        counts = np.bincount(labels[labels > 0])
        return float(counts.max() / counts.sum()) if counts.size else math.nan

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers, fit for a checkpoint."""
        table = super().state_dict()
        return {"table": table, "sums": torch.from_numpy(self._by_column[: len(self._records)].copy())}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        super().load_state_dict(state["table"])
        self._by_column = state["sums"].numpy().copy()


def _placed(values: Floats, scored: Flags) -> Floats:
    """Return scores in which the rows that were left out have the mean of the others, column by column."""
    if scored.all():
        return values
    return np.column_stack([in_the_middle(column, scored) for column in values.T])


def _to_add(values: Floats, scored: Flags, *, as_is: bool, raw: bool) -> Floats:
    """Return what a step adds to the sums, rows of NaN where a record was left out."""
    added = np.full(values.shape, math.nan)
    chosen = values[scored]
    if as_is:
        # Of log likelihoods only differences between classes say anything.
        added[scored] = chosen - chosen.mean(axis=1, keepdims=True) if raw else chosen
        return added
    centred = chosen
    if len(chosen):
        shifted = chosen - chosen[0]  # the mean of equal scores would be rounded, and differ from every one of them
        centred = shifted - shifted.mean(axis=0)
    largest = float(np.abs(centred).max()) if centred.size else 0.0
    scaled = centred / largest if largest > 0.0 else centred  # squares would overflow, or vanish
    deviation = math.sqrt(float(np.square(scaled).mean())) if scaled.size else 0.0
    added[scored] = scaled / deviation if deviation > 0.0 else 0.0
    return added
