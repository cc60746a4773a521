"""The auditor's attack on labels of k classes, and on numbers: that on two is :mod:`splitvfl.leakage.auditing`.

The label party knows what it would have sent of every record under every label
(:class:`~splitvfl.learning.label_gradients.LabelGradients`), its model's prediction, and, of earlier steps, which label
it was. As with two classes, no label of a message's own records enters what they are scored by.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor

from splitvfl.errors import DataError, HookError
from splitvfl.leakage.auditing import AUDITORS
from splitvfl.leakage.canaries import Canaries, CanaryLeak
from splitvfl.leakage.judging import Handle, keeper_for, worst_of
from splitvfl.leakage.keeping import Keeper
from splitvfl.leakage.leak_summary import LeakSummary, nanmax
from splitvfl.leakage.run_audit import FOLDS, RunLeak
from splitvfl.leakage.series import StepValues
from splitvfl.leakage.state import Stateful
from splitvfl.learning.label_gradients import LabelGradients
from splitvfl.learning.records import Ids, RecordTable
from splitvfl.metrics import concordance, macro_auc

Floats = npt.NDArray[np.float64]
Classes = npt.NDArray[np.int64]

LINEAR, _, RATIO = AUDITORS

# About the last ten steps say how strong the noise is, and how far rows were scaled.
_DECAY = 0.9
# Least noise along the way from one label to another, as a share of the mean way: rounding is not modelled.
_LEAST_NOISE = 1e-3
# Nats that one message can tell, and those beyond which sums count no more.
_MOST, _NEAR = 30.0, 8.0
_LEAST_SHARE = 1e-12
_TINY = np.finfo(np.float64).tiny
# The last steps of a run, as a share of it.
_LATE = 0.1
_MOST_RECORDS = 20_000
_MOST_NUMBERS = 1 << 23


class ManyAudit(Handle, Stateful, ABC):
    """The auditor's attacks on other than two classes being judged: what ``audit(classes=...)`` returns.

    Figures are those of :class:`~splitvfl.leakage.auditing.Audit`, with macro AUCs, or concordances, in place of AUCs.
    There is no matching by prediction: ``beyond_prediction`` is NaN, and canaries measure it.

    Args:
        classes: Number of classes; ``None`` for numbers.
        remove: Called when the audit is detached.
        canaries: Which records have labels that were drawn: judged apart. Default: none.

    Attributes:
        keepers: The judges of the attacks on messages, by name.
        seconds: Time spent on attacking and judging.
    """

    _kept = ("_linear", "_ratio", "_errors", "_fit", "_history")

    def __init__(
        self, classes: int | None, *, remove: Callable[[], None] = lambda: None, canaries: Canaries | None = None
    ) -> None:
        super().__init__(remove)
        self._classes = classes
        self._canaries = canaries
        self._linear = keeper_for(classes, canaries=canaries)
        self._ratio = keeper_for(classes, canaries=canaries, raw=True)
        self._errors = _Errors()
        self._fit = NoiseFit()
        self._history: RecordHistory = ClassHistory(classes) if classes else NumberHistory()
        self.seconds = 0.0
        self._told: RunLeak | None = None

    def check(self, labels: Tensor) -> None:
        """Raise :class:`HookError` if a label is no class."""
        known = labels[~labels.isnan()]
        classes = self._classes
        if classes is not None and bool(((known < 0) | (known >= classes) | (known != known.round())).any()):
            some = labels.detach().float().unique()[:5].tolist()
            raise HookError(f"the auditor judges labels 0 to {classes - 1}, got {some}, so nothing was sent")

    def see(
        self,
        clean: Tensor,
        sent: Tensor,
        labels: Tensor,
        ids: Tensor | None,
        *,
        responses: Tensor | None = None,
        label_gradients: LabelGradients | None = None,
    ) -> None:
        """Attack one message with everything that the label party knows.

        Args:
            clean: Cut gradient before the defenses, ``(n, width)``.
            sent: What is sent, ``(n, width)``.
            labels: ``(n,)``; NaN of records that are left out.
            ids: Record ids, ``(n,)``; ``None`` where nobody knows them, and nothing can be added up.
            responses: What a label defense answered; a message is read for that.
            label_gradients: What would be sent under every label; without it nothing is judged.
        """
        started = time.perf_counter()
        self._told = None
        truth = labels.detach().reshape(-1).double().cpu()
        if label_gradients is not None and truth.numel():
            canary = None if self._canaries is None else self._canaries.among_rows(ids)
            learned = ~torch.isnan(truth) if canary is None else ~torch.isnan(truth) & ~canary
            self._read(sent, truth, ids, label_gradients, learned.numpy())
        self.seconds += time.perf_counter() - started

    @abstractmethod
    def _read(
        self, sent: Tensor, labels: Tensor, ids: Tensor | None, known: LabelGradients, learned: npt.NDArray[np.bool_]
    ) -> None:
        """Score the rows of a message, judge the scores, and then learn from the rows of ``learned``."""

    @property
    def keepers(self) -> dict[str, Keeper]:
        """The judges of the attacks on messages, by name."""
        return {LINEAR: self._linear, RATIO: self._ratio}

    @property
    def summaries(self) -> dict[str, LeakSummary]:
        """Figures of these attacks, by name."""
        return {name: keeper.summary() for name, keeper in self.keepers.items()}

    @property
    def worst(self) -> float:
        """The largest leak of an attack on messages, per step or accumulated."""
        return nanmax(*(summary.worst for summary in self.summaries.values()))

    @property
    def canaries(self) -> CanaryLeak | None:
        """What messages gave away of the canaries' labels: the leak beyond prediction; ``None`` without canaries."""
        return worst_of(self.keepers.values())

    @property
    def detection_error(self) -> float:
        """Mean balanced error of the better attack in one message: share of a class's records not called that class.

        It is the mean over the classes of a batch, ``1 − 1/k`` for who knows nothing, and ½(FPR + FNR) with two. NaN of
        numbers, and before the noise was seen.
        """
        return self._errors.mean

    @property
    def late_detection_error(self) -> float:
        """The same over the last tenth of the steps, at least one."""
        return self._errors.late

    @property
    def told(self) -> RunLeak | None:
        """What messages and predictions told together so far; ``None`` with less than five records of a class."""
        if self._told is None and self._history.enough:
            self._told = self._history.judge()
        return self._told

    def judge(self, ids: Tensor, labels: Tensor, predictions: Tensor, *, seed: int = 0) -> RunLeak:
        """Return what messages told of these records together with these predictions.

        Args:
            ids: ``(n,)`` ids of training records; those that never crossed are left out.
            labels: ``(n,)``.
            predictions: ``(n, k)`` probabilities, or ``(n,)`` numbers.
            seed: Decides the folds.

        Raises:
            DataError: If too few records crossed.
        """
        return self._history.judge_with(ids, labels, predictions, seed=seed)

    @property
    def total(self) -> float:
        """Leak of messages and the model's predictions together, at least :attr:`worst`."""
        return nanmax(self.worst, math.nan if self.told is None else self.told.auc)

    @property
    def prediction_auc(self) -> float:
        """Macro AUC, or concordance, of the model's prediction in the last step of each record; NaN if unknown."""
        return math.nan if self.told is None else self.told.prediction_auc

    @property
    def beyond_prediction(self) -> float:
        """NaN: nothing is matched here. Canaries measure what messages tell beyond the prediction."""
        return math.nan

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._told = None
        super().load_state_dict(state)


class ClassAudit(ManyAudit):
    """The auditor's two attacks on k classes.

    *Linear*: ``s · m_c − ‖m_c‖²/2``, with m_c the mean row that predictions lead one to expect of class c: each record
    counts as probable as the prediction has the class.

    *Ratio*: log likelihoods ``−‖s − a u_c‖² / 2v`` of the row s that was sent, with u_c this record's own row under
    class c: what the noise hides is the way from one candidate to another. The scale a and the noise's variance v along
    such ways are fitted on earlier steps. Noise is taken for normal and alike in all directions; a class that is marked
    by more noise than others is not looked for, as it is with two.

    Args:
        classes: k.
        common: As for :class:`ManyAudit`.
    """

    def _read(
        self, sent: Tensor, labels: Tensor, ids: Tensor | None, known: LabelGradients, learned: npt.NDArray[np.bool_]
    ) -> None:
        classes = self._classes
        assert classes is not None, "numbers have an audit of their own"
        rows = _numpy(sent)
        predictions = np.clip(_numpy(known.predictions), _LEAST_SHARE, 1.0)
        candidates = np.stack([_numpy(known.under(float(label))) for label in range(classes)], axis=1)
        centres = np.einsum("nk,nkw->kw", predictions / predictions.sum(axis=0), candidates)
        unit = math.sqrt(float(np.square(candidates).sum(axis=2).mean())) or 1.0
        linear = (rows @ centres.T - 0.5 * np.square(centres).sum(axis=1)) / unit**2
        likelihoods = self._fit.likelihoods(rows / unit, candidates / unit)
        self._linear.add(ids, torch.from_numpy(linear), labels)
        self._ratio.add(ids, torch.from_numpy(likelihoods), labels)
        truth = labels.numpy()[learned]
        if self._fit.fitted:
            self._errors.add(*(balanced_error(part[learned], truth) for part in (linear, likelihoods)))
        if ids is not None:
            own = ids.detach().cpu().numpy().reshape(-1)[learned]
            self._history.add(own, truth, likelihoods[learned], np.log(predictions)[learned])
        answers = known.targets.detach().cpu()
        called = (answers.argmax(dim=1) if answers.dim() > 1 else answers.reshape(-1).long()).numpy()
        given = _numpy(known.rows)
        self._fit.learn(rows[learned] / unit, candidates[learned] / unit, given[learned] / unit, called[learned])


class NumberAudit(ManyAudit):
    """The auditor's attack on numbers.

    *Linear*: the projection of a row on the way in which it changes with the label. *Ratio*: the label under which this
    record's row would be nearest to what was sent, ``⟨s − u(0), J⟩ / ‖J‖²`` with ``J = u(1) − u(0)``, which is the
    label itself where nothing was added and rows are linear in it, as with squared error. There is no detection error.

    Args:
        common: As for :class:`ManyAudit`.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(None, **common)

    def _read(
        self, sent: Tensor, labels: Tensor, ids: Tensor | None, known: LabelGradients, learned: npt.NDArray[np.bool_]
    ) -> None:
        rows, base = _numpy(sent), _numpy(known.under(0.0))
        way = _numpy(known.under(1.0)) - base
        square = np.square(way).sum(axis=1)
        longest = math.sqrt(float(square.max())) or 1.0
        unit = np.where(square > (_LEAST_NOISE * longest) ** 2, square, np.inf)
        linear = (rows * way).sum(axis=1) / np.sqrt(unit)
        nearest = ((rows - base) * way).sum(axis=1) / unit
        came = rows.any(axis=1)  # who sends nothing says nothing
        nearest = np.where(came, nearest, np.nan)
        self._linear.add(ids, torch.from_numpy(linear), labels)
        self._ratio.add(ids, torch.from_numpy(nearest), labels)
        if ids is not None:
            own = ids.detach().cpu().numpy().reshape(-1)[learned]
            predicted = _numpy(known.predictions)[:, :1]
            self._history.add(own, labels.numpy()[learned], np.nan_to_num(nearest)[learned, None], predicted[learned])


def many_audit(classes: int | None, **common: Any) -> ManyAudit:
    """Return a new audit of k classes, or of numbers where there are none."""
    return NumberAudit(**common) if classes is None else ClassAudit(classes, **common)


def balanced_error(scores: Floats, labels: Floats) -> float:
    """Return the mean, over the classes there are, of the share of records whose class did not score highest.

    Ties count in part. NaN with less than two classes.
    """
    classes = np.unique(labels)
    if classes.size < 2:
        return math.nan
    level = scores == scores.max(axis=1, keepdims=True)
    right = level[np.arange(labels.size), labels.astype(np.int64)] / level.sum(axis=1)
    return 1.0 - float(np.mean([right[labels == label].mean() for label in classes]))


class NoiseFit(Stateful):
    """Scale and noise of messages, as earlier steps have shown them: ``s = a u + noise`` of variance v on every way."""

    _kept = ("_sums",)

    def __init__(self) -> None:
        self._sums = np.zeros(4)  # ⟨s, u⟩, ⟨u, u⟩; squares along ways, and their number

    @property
    def fitted(self) -> bool:
        """Whether any step was seen."""
        return bool(self._sums[3] > 0.0)

    @property
    def scale(self) -> float:
        """Scale a."""
        return float(self._sums[0] / self._sums[1]) if self._sums[1] > 0.0 else 1.0

    @property
    def variance(self) -> float:
        """Variance v."""
        return max(float(self._sums[2] / self._sums[3]), _LEAST_NOISE**2) if self.fitted else 1.0

    def likelihoods(self, rows: Floats, candidates: Floats) -> Floats:
        """Return the log likelihood of each candidate, ``(n, k)``, at most so many nats apart; zeros before any step.

        Args:
            rows: ``(n, width)``, in units of the candidates.
            candidates: ``(n, k, width)``.
        """
        if not self.fitted:
            return np.zeros(candidates.shape[:2])
        apart = np.square(rows[:, None] - self.scale * candidates).sum(axis=2)
        found: Floats = -(apart - apart.min(axis=1, keepdims=True)) / (2.0 * self.variance)
        found[~rows.any(axis=1)] = 0.0
        return found.clip(min=-_MOST)

    def learn(self, rows: Floats, candidates: Floats, given: Floats, called: Classes) -> None:
        """Take a step into account, whose rows without noise were ``given``; of records called these classes."""
        came = rows.any(axis=1)
        rows, candidates, given, called = rows[came], candidates[came], given[came], called[came]
        if not len(rows):
            return
        self._sums *= _DECAY
        self._sums[:2] += (rows * given).sum(), np.square(given).sum()
        ways = candidates - candidates[np.arange(len(called)), called][:, None]
        lengths = np.linalg.norm(ways, axis=2)
        there = lengths > _LEAST_NOISE * lengths.max() if lengths.max() > 0.0 else np.zeros(lengths.shape, np.bool_)
        noise = np.einsum("nw,nkw->nk", rows - self.scale * given, ways)[there] / lengths[there]
        self._sums[2:] += np.square(noise).sum(), noise.size


class _Errors(Stateful):
    """Balanced errors of both attacks, step by step; the better one over the run counts."""

    _kept = ("_linear", "_ratio")

    def __init__(self) -> None:
        self._linear, self._ratio = StepValues(), StepValues()

    def add(self, linear: float, ratio: float) -> None:
        """Add the errors of a step; NaN of one with less than two classes."""
        if not math.isnan(linear):
            self._linear.append(linear)
            self._ratio.append(ratio)

    @property
    def mean(self) -> float:
        """Over all steps."""
        return min(self._linear.mean, self._ratio.mean)

    @property
    def late(self) -> float:
        """Over the last tenth of the steps."""
        if not len(self._linear):
            return math.nan
        last = max(1, math.ceil(_LATE * len(self._linear.kept)))
        return min(float(part.kept[-last:].mean()) for part in (self._linear, self._ratio))


class RecordHistory(Stateful, ABC):
    """What is remembered of each record: sums of what messages told, its last prediction, and their sum.

    Args:
        columns: Numbers that a message tells of a record.
    """

    _kept = ("_table", "_numbers")

    def __init__(self, columns: int) -> None:
        self._table = RecordTable(seen=np.int64, label=np.float64)
        self._columns = columns
        self._numbers = np.zeros((0, 3 * columns))

    def add(self, ids: Ids, labels: Floats, told: Floats, predicted: Floats) -> None:
        """Remember one message: ``told`` and ``predicted`` are ``(n, columns)``."""
        if not ids.size:
            return
        room = len(self._table) * self._numbers.shape[1] < _MOST_NUMBERS
        slots = self._table.slots(ids) if room else self._table.find(ids)
        known = slots >= 0
        slots, labels, told, predicted = slots[known], labels[known], told[known], predicted[known]
        if len(self._table) > len(self._numbers):
            wider = np.zeros((max(len(self._table), 2 * len(self._numbers)), self._numbers.shape[1]))
            wider[: len(self._numbers)] = self._numbers
            self._numbers = wider
        self._table["label"][slots] = labels
        self._numbers[slots, : self._columns] += told
        self._numbers[slots, self._columns : 2 * self._columns] = predicted
        self._numbers[slots, 2 * self._columns :] += predicted
        np.add.at(self._table["seen"], slots, 1)

    def _slots(self) -> Classes:
        slots = np.flatnonzero(self._table["seen"] > 0)
        if slots.size > _MOST_RECORDS:
            slots = np.sort(np.random.default_rng(0).choice(slots, _MOST_RECORDS, replace=False))
        return slots

    def judge(self) -> RunLeak:
        """Return how well messages and the last predictions tell the labels together."""
        slots = self._slots()
        last = self._numbers[slots, self._columns : 2 * self._columns]
        return self._judge(slots, self._table["label"][slots], last, 0)

    def judge_with(self, ids: Tensor, labels: Tensor, predictions: Tensor, *, seed: int) -> RunLeak:
        """Return the same of these records, with these predictions."""
        slots = self._table.find(ids.detach().cpu().numpy())
        known = slots >= 0
        known[known] = self._table["seen"][slots[known]] > 0
        predicted = _numpy(predictions)[known]
        return self._judge(slots[known], _numpy(labels)[known, 0], self._as_numbers(predicted), seed)

    def _sums(self, slots: Classes) -> tuple[Floats, Floats, Floats]:
        """Return sums of what was told, mean predictions, and the number of messages ``(n, 1)``."""
        seen = self._table["seen"][slots].astype(np.float64)[:, None]
        return self._numbers[slots, : self._columns], self._numbers[slots, 2 * self._columns :] / seen, seen

    @property
    @abstractmethod
    def enough(self) -> bool:
        """Whether there are records enough to judge by."""

    @abstractmethod
    def _as_numbers(self, predictions: Floats) -> Floats:
        """Return predictions of the trained model as they are remembered."""

    @abstractmethod
    def _judge(self, slots: Classes, labels: Floats, predicted: Floats, seed: int) -> RunLeak: ...


class ClassHistory(RecordHistory):
    """Of k classes: log likelihoods and log probabilities, put together by logistic regression, five-fold.

    The odds of a class are a weighted sum of what is known of *that* class, with the same weights for all, and a number
    for each class: weights of its own for every pair of classes would learn to predict anew from what a bad model puts
    out. Log probabilities on the fold that was left out are the scores, judged by macro AUC. It is fitted with true
    labels, as a partner's attack is not.
    """

    @property
    def enough(self) -> bool:
        """Whether there are at least two classes, and five records of each."""
        labels = self._table["label"][self._table["seen"] > 0]
        counts = np.unique(labels, return_counts=True)[1]
        return bool(counts.size >= 2 and counts.min() >= FOLDS)

    def _as_numbers(self, predictions: Floats) -> Floats:
        found: Floats = np.log(np.clip(predictions, _LEAST_SHARE, 1.0))
        return found

    def _judge(self, slots: Classes, labels: Floats, predicted: Floats, seed: int) -> RunLeak:
        from sklearn.model_selection import StratifiedKFold  # slow to import, and needed at ends of epochs only

        truth = labels.astype(np.int64)
        classes, counts = np.unique(truth, return_counts=True)
        if classes.size < 2 or counts.min() < FOLDS:
            raise DataError(f"the auditor needs {FOLDS} records of each class that crossed the cut, got {truth.size}")
        told, mean, seen = self._sums(slots)
        # Sums are what counts where they are small, and mean no more than "certainly" where they are large; of answers
        # that a label defense remembers, and so repeats, it is their mean that counts.
        summed = log_softmax(told, axis=1)
        parts = np.stack([predicted, mean, np.maximum(summed, -_NEAR), np.maximum(summed, -_MOST), told / seen], axis=2)
        scores = np.zeros(summed.shape)
        for fitted, held_out in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(parts, truth):
            scores[held_out] = _fitted(parts[fitted], truth[fitted])(parts[held_out])
        found = torch.from_numpy(scores)
        answers = torch.from_numpy(truth)
        return RunLeak(
            auc=macro_auc(found, answers),
            matched_auc=math.nan,
            prediction_auc=macro_auc(torch.from_numpy(predicted), answers),
            records=truth.size,
        )


def _fitted(parts: Floats, truth: Classes) -> Callable[[Floats], Floats]:
    """Return what gives the log probabilities of parts ``(n, k, j)``, fitted to parts of records of these classes.

    The likelihood is that of ``softmax_c(Σ_j β_j x_cj + b_c)``, less half the squares of β on standardised numbers.
    """
    _, classes, count = parts.shape
    unit = parts.reshape(-1, count).std(axis=0)
    unit = np.where(unit > 0.0, unit, np.inf)
    scaled, members = parts / unit, np.eye(classes)[truth]

    def loss(values: Floats) -> tuple[float, Floats]:
        logits = log_softmax(scaled @ values[:count] + values[count:], axis=1)
        residues = np.exp(logits) - members
        slopes = np.concatenate([np.einsum("nk,nkj->j", residues, scaled) + values[:count], residues.sum(axis=0)])
        return float(0.5 * values[:count] @ values[:count] - (members * logits).sum()), slopes

    found = minimize(loss, np.zeros(count + classes), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    return lambda asked: np.asarray(log_softmax(asked / unit @ found[:count] + found[count:], axis=1))


class NumberHistory(RecordHistory):
    """Of numbers: labels that messages told and predictions, put together by ridge regression, five-fold."""

    def __init__(self) -> None:
        super().__init__(1)

    @property
    def enough(self) -> bool:
        """Whether there are ten records with different labels."""
        labels = self._table["label"][self._table["seen"] > 0]
        return bool(labels.size >= 2 * FOLDS and np.ptp(labels) > 0.0)

    def _as_numbers(self, predictions: Floats) -> Floats:
        return predictions[:, :1]

    def _judge(self, slots: Classes, labels: Floats, predicted: Floats, seed: int) -> RunLeak:
        from sklearn.linear_model import RidgeCV  # slow to import, and needed at ends of epochs only
        from sklearn.model_selection import KFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if labels.size < 2 * FOLDS:
            raise DataError(f"the auditor needs {2 * FOLDS} records that crossed the cut, got {labels.size}")
        told, mean, seen = self._sums(slots)
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3.0, 3.0, 7)))
        folds = KFold(FOLDS, shuffle=True, random_state=seed)
        numbers = np.concatenate([predicted, mean, told / seen], axis=1)
        scores = torch.from_numpy(cross_val_predict(model, numbers, labels, cv=folds))
        answers = torch.from_numpy(labels.astype(np.float64))
        return RunLeak(
            auc=concordance(scores, answers),
            matched_auc=math.nan,
            prediction_auc=concordance(torch.from_numpy(predicted[:, 0].copy()), answers),
            records=labels.size,
        )


def _numpy(values: Tensor) -> Floats:
    """Return values as a matrix in float64, one row for each record."""
    found: Floats = values.detach().double().cpu().reshape(len(values), -1).numpy()
    return found
