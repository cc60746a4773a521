"""Judging attacks on labels of k classes: one class against the rest, and the class that scores highest.

Scores come in three forms. *Named*: one for each class, judged as they are. *Single*: one per record, as of the length
of a gradient; it may be large for any of the classes, so the judge turns it round for each class on its own, and there
is no class that scores highest. *Clusters*: one for each of k classes of unknown names; the judge grants the one-to-one
names that read best (the assignment problem), which reads something of nothing: what matching gives by chance stands
beside.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import log_softmax
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.leakage.canaries import NO_IDS, Canaries, CanaryLeak
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.series import StepValues
from splitvfl.leakage.state import Stateful
from splitvfl.learning.records import Ids, RecordTable
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


class ClassKeeper(Stateful):
    """Leak of each step, and sums per record, as :class:`~splitvfl.leakage.judging.ScoreKeeper` for two classes.

    Every AUC is a mean over the classes of one against the rest, with midranks, whatever the classes' shares: one half
    is blind, 1 perfect. Classes that a batch lacks do not count in its step. Orientations and matchings are those of
    the means over the run, never of a batch.

    Scores of a step are centred class by class and brought to one common scale before they are added up, so that steps
    with large gradients do not drown the others and classes stay comparable.

    Args:
        classes: k, at least 3.
        canaries: Which records have labels that were drawn, if any have: judged apart.
        raw: Whether scores are log likelihoods of the classes: added as they are, and judged as posteriors.
        cumulative: Whether a score is of all that came of its record so far.
        clusters: Whether the classes of the columns are not known.
    """

    _kept = ("_scored", "_tied", "_asked", "_answered", "_undefined", "_records", "_canaries", "_columns")

    def __init__(
        self,
        classes: int,
        *,
        canaries: Canaries | None = None,
        raw: bool = False,
        cumulative: bool = False,
        clusters: bool = False,
    ) -> None:
        self.canaries = canaries
        self.class_count = classes
        self._raw, self._as_is, self._clusters = raw, raw or cumulative, clusters
        self._scored = _Steps(classes, clusters=clusters)
        self._tied: _Steps | None = None
        self._asked = self._answered = self._undefined = 0
        self._columns = 0
        self._records = _ClassSums(classes, last=cumulative)
        self._canaries = None if canaries is None else _ClassSums(classes, last=cumulative)

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
        truth = labels.detach().reshape(-1).double().cpu()
        real = ~torch.isnan(truth)
        if len(scores) != len(truth):
            raise ArgumentError(f"expected one row of scores for each of {len(truth)} records, got {len(scores)}")
        rows = scores.detach().cpu().double().reshape(len(truth), math.prod(scores.shape[1:]))[real]
        scored = ~torch.isnan(rows).any(dim=1).numpy()
        values, classes = scores_and_classes(torch.nan_to_num(rows), truth[real], classes=self.class_count)
        self._check_form(values.shape[1])
        own = None if ids is None else ids.detach().cpu().numpy().reshape(-1)[real.numpy()]
        kept = np.ones(classes.size, np.bool_)
        if self.canaries is not None:
            if own is None:
                raise ArgumentError(NO_IDS)
            kept = ~self.canaries.among(own)
        auc = self._judge(values[kept], classes[kept], scored[kept])
        if own is not None:
            self._sum(own, _to_add(values, scored, as_is=self._as_is, raw=self._raw), classes, kept)
        return auc

    def _check_form(self, columns: int) -> None:
        if self._columns not in (0, columns):
            raise ArgumentError(f"expected scores with {self._columns} columns as before, got {columns}")
        self._columns = columns

    def _sum(self, ids: Ids, added: Floats, classes: Classes, kept: Flags) -> None:
        self._records.add(ids[kept], added[kept], classes[kept])
        if self._canaries is not None:
            self._canaries.add(ids[~kept], added[~kept], classes[~kept])

    def _judge(self, values: Floats, classes: Classes, scored: Flags) -> float:
        if self._raw and values.size:
            values = log_softmax(values, axis=1)
        self._asked += classes.size
        self._answered += int(np.count_nonzero(scored))
        if not scored.all() and self._tied is None:
            self._tied = copy.deepcopy(self._scored)
        auc = self._scored.add(values[scored], classes[scored])
        if self._tied is not None:
            self._tied.add(_placed(values, scored), classes)
        self._undefined += int(math.isnan(auc))
        return auc

    @property
    def _all(self) -> _Steps:
        """Steps with records that were left out as ties."""
        if not self._answered:
            return _Steps(self.class_count, clusters=self._clusters)
        return self._scored if self._tied is None else self._tied

    @property
    def aucs(self) -> tuple[float, ...]:
        """Leak AUC of each step that had one, in order; evenly spaced ones of a long run."""
        return tuple(self._scored.aucs.kept.tolist())

    @property
    def auc_sum(self) -> tuple[float, int]:
        """Sum of the leak AUCs of all steps that had one, and how many these are."""
        return self._scored.aucs.total, len(self._scored.aucs)

    @property
    def recent_auc(self) -> float:
        """Mean leak AUC of the last ten steps that had one."""
        return self._scored.aucs.recent_mean

    @property
    def recent_tied_auc(self) -> float:
        """The same of all records, those left out as ties."""
        return self._all.aucs.recent_mean

    @property
    def beside_auc(self) -> dict[str, float]:
        """For a log: mean share of the last ten steps whose own class scored highest; NaN where scores name no class.

        Beside it the share of the most frequent class so far.
        """
        top = self._all.recent_top1
        return {"leak_top1": top, "leak_top1_commonest": math.nan if math.isnan(top) else self._records.commonest}

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
        """AUC of the per-record sums or last scores, of records that were scored at all."""
        return self._of_sums(*self._records.of_scored())[0].auc

    @property
    def tied_accumulated_auc(self) -> float:
        """The same of all records, where one that was never scored is in the middle; NaN if no record ever was."""
        return self._of_sums(*self._records.of_all())[0].auc if self.records else math.nan

    def _of_sums(self, sums: Floats, classes: Classes) -> tuple[_Reading, Floats]:
        """Return what sums tell, and the sums as posteriors where they are log likelihoods."""
        values = log_softmax(sums, axis=1) if self._raw and sums.size else sums
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
        return CanaryLeak.of_classes(sums, classes, self.class_count, level=level)

    def summary(self) -> LeakSummary:
        """Return the run's figures so far."""
        found, everybody = self._scored, self._all
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
            quantile_95=everybody.quantile(0.95),
            accumulated_auc=accumulated.auc,
            worst_accumulated_auc=tied.best if self.records else math.nan,
            steps=len(found.aucs),
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

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If one has canaries and the other has none.
        """
        if (state["canaries"] is None) != (self._canaries is None):
            raise ValueError("one of the two runs has canaries, the other has none")
        self._tied = None if state["tied"] is None else _Steps(self.class_count, clusters=self._clusters)
        super().load_state_dict(state)


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
            rows, found = linear_sum_assignment(np.nan_to_num(matrix, nan=0.5), maximize=True)
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


class _Steps(Stateful):
    """AUCs of every column as a score of every class, averaged over steps, and what the steps read by them."""

    _kept = ("_sums", "_counts", "aucs", "_tops", "_recent_tops")

    def __init__(self, classes: int, *, clusters: bool) -> None:
        self._clusters = clusters
        self._sums = self._counts = np.zeros((0, classes))
        self.aucs = StepValues()
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
        self.aucs.append(auc)
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

    def quantile(self, share: float) -> float:
        """Return a quantile of the steps, in the better orientation."""
        named = len(self._sums) > 1 and not self._clusters
        return 1.0 - self.aucs.quantile(1.0 - share) if named and self.aucs.mean < 0.5 else self.aucs.quantile(share)

    @property
    def top1(self) -> float:
        """Mean share of records whose own class scored highest."""
        return float(self._tops[0] / self._tops[1]) if self._tops[1] else math.nan

    @property
    def recent_top1(self) -> float:
        """The same over the last ten steps."""
        return sum(self._recent_tops) / len(self._recent_tops) if self._recent_tops else math.nan


class _ClassSums:
    """Scores added up per record, one number for each column.

    Args:
        classes: k.
        last: Whether the last scores of a record count in place of sums.
    """

    def __init__(self, classes: int, *, last: bool) -> None:
        self._classes, self._last = classes, last
        self._table = RecordTable(count=np.int64, label=np.int64)
        self._sums = np.zeros((0, 1))

    def add(self, ids: Ids, scores: Floats, classes: Classes) -> None:
        """Add rows of scores; a row of NaN was left out."""
        if not ids.size:
            return
        if not len(self._sums):
            self._sums = np.zeros((0, scores.shape[1]))
        room = len(self._table) * scores.shape[1] < _MOST_NUMBERS
        slots = self._table.slots(ids) if room else self._table.find(ids)
        self._grow(len(self._table))
        known = slots >= 0
        slots, scores, classes = slots[known], scores[known], classes[known]
        self._table["label"][slots] = classes + 1  # 0 is a record that was never met
        scored = ~np.isnan(scores).any(axis=1)
        slots, scores = slots[scored], scores[scored]
        if self._last:
            self._sums[slots] = scores
        else:
            np.add.at(self._sums, slots, scores)
        np.add.at(self._table["count"], slots, 1)

    def _grow(self, rows: int) -> None:
        if rows > len(self._sums):
            wider = np.zeros((max(rows, 2 * len(self._sums)), self._sums.shape[1]))
            wider[: len(self._sums)] = self._sums
            self._sums = wider

    @property
    def scored(self) -> int:
        """Number of records that were scored at least once."""
        return int(np.count_nonzero(self._table["count"]))

    @property
    def commonest(self) -> float:
        """Share of the most frequent class among the records that were met; NaN before any."""
        labels = self._table["label"]
        counts = np.bincount(labels[labels > 0])
        return float(counts.max() / counts.sum()) if counts.size else math.nan

    def of_scored(self) -> tuple[Floats, Classes]:
        """Return the sums ``(n, m)`` and the classes of the records that were scored at least once."""
        return self._of(self._table["count"] > 0)

    def of_all(self) -> tuple[Floats, Classes]:
        """Return the same of all records that were met; those never scored are in the middle."""
        return self._of(self._table["label"] > 0)

    def _of(self, chosen: Flags) -> tuple[Floats, Classes]:
        sums = self._sums[: len(self._table)][chosen]
        if len(sums):
            sums = _placed(sums, self._table["count"][chosen] > 0)
        return sums, self._table["label"][chosen] - 1

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers, fit for a checkpoint."""
        return {"table": self._table.state_dict(), "sums": torch.from_numpy(self._sums[: len(self._table)].copy())}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._table.load_state_dict(state["table"])
        self._sums = state["sums"].numpy().copy()


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
