"""The auditor's attack on labels of k classes, and on numbers: that on two is :mod:`splitvfl.leakage.auditing`.

The label party knows what it would have sent of every record under every label
(:class:`~splitvfl.learning.label_gradients.LabelGradients`), its model's prediction, and, of earlier steps, which label
it was. As with two classes, no label of a message's own records enters what they are scored by.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.data.coin_labels import Canaries
from splitvfl.data.columns import TaskName
from splitvfl.errors import HookError
from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.judging import keeper_for
from splitvfl.leakage.keeping import Keeper
from splitvfl.leakage.many_run_audit import LEAST_SHARE, MOST_NATS, ClassesHistory, ManyHistory, NumberHistory
from splitvfl.leakage.message_audit import AUDITORS, LATE, MessageAudit, SentBatch
from splitvfl.leakage.partner_features import PartnerFeatures
from splitvfl.leakage.series import StepValues
from splitvfl.leakage.state import Stateful
from splitvfl.learning.label_gradients import LabelGradients

Floats = npt.NDArray[np.float64]
Classes = npt.NDArray[np.int64]

LINEAR, _, RATIO = AUDITORS

# About the last ten steps say how strong the noise is, and how far rows were scaled.
_DECAY = 0.9
# Least noise along the way from one label to another, as a share of the mean way: rounding is not modelled.
_LEAST_NOISE = 1e-3


class ManyAudit(MessageAudit):
    """The auditor's attacks on other than two classes being judged: what ``audit(classes=...)`` returns.

    There is no matching by prediction: ``beyond_prediction`` is NaN, and canaries measure it. Where it is not known
    what would be sent under every label nothing is judged.

    Args:
        classes: Number of classes; ``None`` for numbers.
        history: What is remembered of each record, empty.
        remove: Called when the audit is detached.
        canaries: Which records have labels that were drawn: judged apart. Default: none.
        features: The partner's features. Default: they are not known, and ``total`` is without them.
    """

    legend: ClassVar[str] = "attacks with the label party's own knowledge; the better of two"
    history: ManyHistory
    _kept = ("_linear", "_ratio", "_errors", "_fit", "history")

    def __init__(
        self,
        classes: int | None,
        history: ManyHistory,
        *,
        remove: Callable[[], None] = lambda: None,
        canaries: Canaries | None = None,
        features: PartnerFeatures | None = None,
    ) -> None:
        super().__init__(history, remove=remove, canaries=canaries, features=features)
        self._classes = classes
        self._linear = keeper_for(classes, canaries=canaries)
        self._ratio = keeper_for(classes, canaries=canaries, raw=True)
        self._linear.knows_labels = self._ratio.knows_labels = True
        self._errors = _Errors()
        self._fit = NoiseFit()

    def check(self, labels: Tensor) -> None:
        """Raise :class:`HookError` if a label is no class."""
        known = labels[~labels.isnan()]
        classes = self._classes
        if classes is not None and bool(((known < 0) | (known >= classes) | (known != known.round())).any()):
            some = labels.detach().float().unique()[:5].tolist()
            raise HookError(f"the auditor judges labels 0 to {classes - 1}, got {some}, so nothing was sent")

    def _attack(self, batch: SentBatch) -> None:
        truth = batch.labels.detach().double().cpu()
        if batch.label_gradients is not None and truth.numel():
            canary = None if self._canaries is None else self._canaries.among_rows(batch.ids)
            learned = ~torch.isnan(truth) if canary is None else ~torch.isnan(truth) & ~canary
            self._read(batch.sent, truth, batch.ids, batch.label_gradients, learned.numpy())

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

    explanation: ClassVar[str] = (
        "The label party attacks its own messages with all that it knows, its predictions and the gradients before any "
        "noise: more than a partner has. Two attacks, of which the better one counts at every figure: a projection on "
        "the mean row of each class, and the likelihood of each class given what would be sent of that record under "
        "it. It shows leaks that no partner's attack in this list has found yet."
    )

    def __init__(self, classes: int, **common: Any) -> None:
        super().__init__(classes, ClassesHistory(classes), **common)

    def _read(
        self, sent: Tensor, labels: Tensor, ids: Tensor | None, known: LabelGradients, learned: npt.NDArray[np.bool_]
    ) -> None:
        classes = self._classes
        assert classes is not None, "numbers have an audit of their own"
        rows = _numpy(sent)
        predictions = np.clip(_numpy(known.predictions), LEAST_SHARE, 1.0)
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
            self.history.add(own, truth, likelihoods[learned], np.log(predictions)[learned])
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

    explanation: ClassVar[str] = (
        "The label party attacks its own messages with all that it knows, its predictions and the gradients before any "
        "noise: more than a partner has. Two attacks, of which the better one counts at every figure: a projection on "
        "the way in which a record's row changes with its label, and the label under which that row would be nearest "
        "to what was sent. It shows leaks that no partner's attack in this list has found yet."
    )

    def __init__(self, **common: Any) -> None:
        super().__init__(None, NumberHistory(), **common)

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
            self.history.add(own, labels.numpy()[learned], np.nan_to_num(nearest)[learned, None], predicted[learned])


def auditor_of(task: TaskName) -> type[MessageAudit]:
    """Return the class of the audits of labels of a task: what it says of itself holds for these."""
    audits: dict[TaskName, type[MessageAudit]] = {
        "binary": Audit,
        "multiclass": ClassAudit,
        "regression": NumberAudit,
    }
    return audits[task]


def audit_for(classes: int | None, **common: Any) -> MessageAudit:
    """Return a new audit of messages.

    Args:
        classes: Number of classes of the labels; ``None`` for numbers.
        common: As for :class:`~splitvfl.leakage.message_audit.MessageAudit`.
    """
    if classes is None:
        return NumberAudit(**common)
    return Audit(**common) if classes == 2 else ClassAudit(classes, **common)


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
        return found.clip(min=-MOST_NATS)

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
        last = max(1, math.ceil(LATE * len(self._linear.kept)))
        return min(float(part.kept[-last:].mean()) for part in (self._linear, self._ratio))


def _numpy(values: Tensor) -> Floats:
    """Return values as a matrix in float64, one row for each record."""
    found: Floats = values.detach().double().cpu().reshape(len(values), -1).numpy()
    return found
