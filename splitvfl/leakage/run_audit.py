"""The auditor's evidence of a whole run: all messages about each record, with the model's prediction of it.

Sums of log ratios are one way to accumulate: the best one if the model of the noise is right, steps are independent and
predictions are calibrated. None of it has to be so, and so the auditor also learns how to weigh what it has of each
record, with true labels, and is judged on records that it was not fitted on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from splitvfl.data.columns import Columns
from splitvfl.errors import DataError
from splitvfl.leakage.label_ratios import Flags, Floats, Messages, of_records
from splitvfl.leakage.partner_features import PartnerFeatures
from splitvfl.learning.drawing import FOLDS, drawn_of_classes
from splitvfl.learning.records import Ids, RecordTable, Slots
from splitvfl.metrics import chance_auc, leak_auc, matched_auc

_MOST_RECORDS = 1 << 21
# Nats beyond which sums of log ratios count no more: where a prediction may still matter, and where nothing does.
_NEAR, _FAR = 8.0, 30.0
_LEAST_UNIT, _MOST_UNITS, _MOST_NEWTON = 1e-9, 10.0, 50
# Memory of a run's usual level, in messages: about the last fifty count.
_USUAL_DECAY = 0.98
_TINY = np.finfo(np.float64).tiny
_COLUMNS = ("ratio", "shift", "square", "last", "energy", "logit", "logits")


@dataclass(frozen=True, slots=True)
class RunLeak:
    """The leak of a whole run.

    Attributes:
        auc: Leak AUC of messages and prediction together; where the partner's features are known, the larger of
            ``joint`` and ``baseline``. A reader of all is fitted, and where records are few and features many it may
            be below what the features tell alone.
        matched_auc: The same between records of equal prediction: what the messages told beyond the prediction, and
            some of it, so that it may read above what a promise allows (:func:`~splitvfl.metrics.matched_auc`); in a
            run with canaries take their AUC.
        prediction_auc: AUC of the model's prediction alone, on the same training records.
        records: Number of records that it was judged on.
        chance: What a figure of so many records is expected to be that knows nothing, turned round.
        messages: Leak AUC of messages and prediction alone.
        joint: Leak AUC of messages, prediction and the partner's features together; NaN where these are not known.
        baseline: Leak AUC of the features alone, with labels of other records: the better of two models, on the same
            records and folds. NaN likewise.
    """

    auc: float
    matched_auc: float
    prediction_auc: float
    records: int
    chance: float = math.nan
    messages: float = math.nan
    joint: float = math.nan
    baseline: float = math.nan

    @property
    def includes_features(self) -> bool:
        """Whether the partner's features are in it."""
        return not math.isnan(self.baseline)


class Sample(NamedTuple):
    """Records that are drawn, none of them a canary, and what is known of each; one row for each in all.

    Attributes:
        ids: ``(n,)``.
        labels: ``(n,)``.
        predicted: The last prediction, ``(n, 1)``, or ``(n, k)`` of k classes.
        told: The mean of what the auditor found in a message, ``(n, a)``.
        features: The partner's.
        component: Where it is on their first principal component, ``(n,)``.
    """

    ids: Ids
    labels: npt.NDArray[Any]
    predicted: Floats
    told: Floats
    features: Columns
    component: Floats


class RunHistory(ABC):
    """What is remembered of each record, in bounded memory, however long the run is.

    Args:
        label: Type of the labels.
        columns: Numbers kept of a record beside its label and how often it was seen, and their dtypes.

    Attributes:
        features: The partner's features; ``None`` where they are not known.
    """

    def __init__(self, *, label: type[np.generic], **columns: type[np.generic]) -> None:
        self._records = RecordTable(seen=np.int64, label=label, level=np.float64, least=np.float64, **columns)
        self._usual = np.zeros(2)  # sum of the levels of earlier messages, and how many
        self.features: PartnerFeatures | None = None

    @property
    @abstractmethod
    def enough(self) -> bool:
        """Whether there are records enough to judge by."""

    def __len__(self) -> int:
        """Number of records that crossed."""
        return int(np.count_nonzero(self._records["seen"]))

    @property
    def messages(self) -> int:
        """Number of rows of all messages that are remembered."""
        return int(self._records["seen"].sum())

    def note_level(self, ids: Ids, sent: Tensor) -> None:
        """Remember how strong a message is as a whole, of the records in it that are known by now.

        A defense may scale its noise by the batch. Then the rows of all others tell something of a record's label, and
        its own row does not.

        Args:
            ids: ``(n,)``.
            sent: ``(n, width)``: the message.
        """
        if not len(ids):
            return
        level = math.log(max(float(sent.detach().double().square().mean()), _TINY))
        if not math.isfinite(level):
            return
        beyond = level - self._usual[0] / self._usual[1] if self._usual[1] else 0.0
        self._usual = _USUAL_DECAY * self._usual + (level, 1.0)
        slots = self._records.find(ids)
        slots = slots[slots >= 0]
        np.add.at(self._records["level"], slots, beyond)
        np.minimum.at(self._records["least"], slots, beyond)

    def _levels(self, slots: Slots) -> Floats:
        """Return the mean and the least level of each record's messages, beyond the usual one, ``(n, 2)``.

        The least is 0 where none was below it.
        """
        seen = self._records["seen"][slots]
        return np.stack([self._records["level"][slots] / seen, self._records["least"][slots]], axis=1)

    def judge(self, *, seed: int = 0) -> RunLeak:
        """Return how well the run's messages tell the labels, together with the last prediction of each record.

        On at most 10 000 records of each of two classes, and 20 000 otherwise, drawn with the seed.
        """
        slots = np.flatnonzero(self._records["seen"] > 0)
        return self._judge_some(slots, self._records["label"][slots], self._last(slots), seed)

    def judge_shuffled(self, *, seed: int = 0, order: int = 0) -> RunLeak:
        """Return the same with labels in random order, fitted anew at both levels: what it reads where nothing leaks.

        Args:
            seed: Decides the records and the folds.
            order: Seed of the order.
        """
        slots = np.flatnonzero(self._records["seen"] > 0)
        labels = np.random.default_rng(order).permutation(self._records["label"][slots])
        return self._judge_some(slots, labels, self._last(slots), seed)

    def judge_with(self, ids: Tensor, labels: Tensor, predictions: Tensor, *, seed: int = 0) -> RunLeak:
        """Return the same of these records, with these predictions."""
        slots = self._records.find(ids.detach().cpu().numpy())
        known = slots >= 0
        known[known] = self._records["seen"][slots[known]] > 0
        truth = labels.detach().reshape(-1).cpu().double().numpy()[known]
        predicted = predictions.detach().reshape(len(slots), -1).cpu().double().numpy()[known]
        return self._judge_some(slots[known], truth, self._as_kept(predicted), seed)

    def sample(self, *, seed: int = 0) -> Sample | None:
        """Return records that are drawn with the seed, as :meth:`judge` draws them; ``None`` without their features."""
        if self.features is None:
            return None
        seen = np.flatnonzero(self._records["seen"] > 0)
        slots, labels, predicted, rows = self._some(seen, self._records["label"][seen], self._last(seen), seed)
        assert rows is not None
        return Sample(
            self._records.ids(slots),
            labels,
            predicted.reshape(labels.size, -1),
            self._told(slots),
            self.features.columns(rows),
            self.features.component(rows, seed=seed),
        )

    def _judge_some(self, slots: Slots, labels: npt.NDArray[Any], predicted: Floats, seed: int) -> RunLeak:
        return self._judge(*self._some(slots, labels, predicted, seed), seed)

    def _some(
        self, slots: Slots, labels: npt.NDArray[Any], predicted: Floats, seed: int
    ) -> tuple[Slots, npt.NDArray[Any], Floats, npt.NDArray[np.int64] | None]:
        """Return records that are drawn from these, in the order of the features, and the rows of these if known."""
        rows = None
        if self.features is not None:
            rows = self.features.rows(self._records.ids(slots))
            order = np.argsort(rows)
            slots, labels, predicted, rows = slots[order], labels[order], predicted[order], rows[order]
        chosen = self._drawn(labels, seed)
        return slots[chosen], labels[chosen], predicted[chosen], None if rows is None else rows[chosen]

    @property
    @abstractmethod
    def classes(self) -> int | None:
        """Number of classes of the labels; ``None`` for numbers."""

    @abstractmethod
    def _told(self, slots: Slots, /) -> Floats:
        """Return the mean of what messages told of each record, ``(n, a)``."""

    @abstractmethod
    def _last(self, slots: Slots, /) -> Floats:
        """Return the last prediction of each record, as it is kept."""

    @abstractmethod
    def _as_kept(self, predictions: Floats, /) -> Floats:
        """Return predictions ``(n, m)`` of the trained model as they are kept."""

    @abstractmethod
    def _drawn(self, labels: npt.NDArray[Any], seed: int, /) -> npt.NDArray[np.int64]:
        """Return positions of the records that are judged."""

    @abstractmethod
    def _judge(
        self,
        slots: Slots,
        labels: npt.NDArray[Any],
        predicted: Floats,
        rows: npt.NDArray[np.int64] | None,
        seed: int,
        /,
    ) -> RunLeak:
        """Judge exactly these records; ``rows`` are those of their features, if these are known."""

    def state_dict(self) -> dict[str, Any]:
        """Return the records' numbers."""
        return {**self._records.state_dict(), "usual": torch.from_numpy(self._usual.copy())}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._records.load_state_dict(state)
        usual = state.get("usual")  # earlier versions knew nothing of levels
        self._usual = np.zeros(2) if usual is None else usual.numpy().copy()


class BinaryHistory(RunHistory):
    """Numbers of each record's messages, of two classes.

    Sum and mean of the log ratios, mean, spread and last of the shifts, mean energy, last and mean logit, mean and
    least level of whole messages: these are put together by logistic regression, five-fold, on at most 10 000 records
    of each class that are drawn with a fixed seed. Its log odds on the fold that was left out are the score. Where the
    partner's features are known, a second one gets in addition the log odds that two models of the features give each
    record out of fold, on the same folds. It is fitted with true labels, as a partner's attack is not, and yet loses a
    little to a better one where records are few. On some hundred records gradient boosting on the same numbers read up
    to .06 less and at most .004 more, and adding the sums of log ratios to the logit far less where answers are
    remembered, as the same evidence is then counted in every epoch.

    It is kept of about the first two million records that are met, 81 bytes each and their ids.
    """

    def __init__(self) -> None:
        super().__init__(label=np.int8, **dict.fromkeys(_COLUMNS, np.float64))

    def add(self, ids: Ids, positive: Flags, messages: Messages, ratios: Floats) -> None:
        """Remember one message.

        Args:
            ids: ``(n,)``.
            positive: ``(n,)``, whether the label is 1.
            messages: What was read in it.
            ratios: ``(n,)``, log ratios of the labels.
        """
        slots = self._records.slots(ids) if len(self._records) < _MOST_RECORDS else self._records.find(ids)
        known = slots >= 0
        if not known.all():
            slots, positive, ratios = slots[known], positive[known], ratios[known]
            messages = of_records(messages, known)
        columns = {name: self._records[name] for name in ("seen", "label", *_COLUMNS)}
        columns["last"][slots] = messages.shift
        columns["logit"][slots] = messages.logit
        columns["label"][slots] = positive
        sums = {
            "ratio": ratios,
            "shift": messages.shift,
            "square": messages.shift**2,
            "energy": messages.energy,
            "logits": messages.logit,
        }
        for name, values in sums.items():
            np.add.at(columns[name], slots, values)
        np.add.at(columns["seen"], slots, 1)

    @property
    def enough(self) -> bool:
        """Whether there are five records of each class."""
        seen, label = self._records["seen"] > 0, self._records["label"] == 1
        return bool(min(np.count_nonzero(seen & label), np.count_nonzero(seen & ~label)) >= FOLDS)

    @property
    def classes(self) -> int:
        """Two."""
        return 2

    def _told(self, slots: Slots) -> Floats:
        found: Floats = (self._records["shift"][slots] / self._records["seen"][slots])[:, None]
        return found

    def _last(self, slots: Slots) -> Floats:
        return self._records["logit"][slots]

    def _as_kept(self, predictions: Floats) -> Floats:
        return predictions[:, 0]

    def _drawn(self, labels: npt.NDArray[Any], seed: int) -> npt.NDArray[np.int64]:
        return drawn_of_classes(torch.from_numpy(np.asarray(labels == 1, np.int8)), seed)

    def _judge(
        self,
        slots: Slots,
        labels: npt.NDArray[Any],
        predicted: Floats,
        rows: npt.NDArray[np.int64] | None,
        seed: int,
    ) -> RunLeak:
        truth: Flags = labels == 1
        positives, negatives = int(np.count_nonzero(truth)), int(np.count_nonzero(~truth))
        if min(positives, negatives) < FOLDS:
            raise DataError(f"the auditor needs {FOLDS} records of each class that crossed the cut, got {truth.size}")
        numbers = np.column_stack([predicted, self._numbers(slots)])
        scores = _out_of_fold(numbers, truth, stratified(truth, seed))
        tensors = [torch.from_numpy(values) for values in (scores, truth, predicted)]
        found = RunLeak(
            auc=leak_auc(tensors[0], tensors[1]),
            matched_auc=matched_auc(*tensors),
            prediction_auc=leak_auc(tensors[2], tensors[1]),
            records=truth.size,
            chance=chance_auc(positives, negatives),
            messages=leak_auc(tensors[0], tensors[1]),
        )
        if rows is None or self.features is None:
            return found
        own = self.features.predictions(rows, truth.astype(np.float64), 2, seed=seed)
        scores = _out_of_fold(numbers, truth, own.places, own.nested)
        return with_features(found, joint=leak_auc(torch.from_numpy(scores), tensors[1]), baseline=own.auc)

    def _numbers(self, slots: Slots) -> Floats:
        """Return what there is of each record besides the prediction, ``(n, 10)``."""
        columns = {name: self._records[name][slots].astype(np.float64) for name in ("seen", *_COLUMNS)}
        seen, ratio = columns["seen"], columns["ratio"]
        shift, energy, logit, each = (columns[name] / seen for name in ("shift", "energy", "logits", "ratio"))
        spread = np.sqrt(np.maximum(columns["square"] / seen - shift**2, 0.0))
        # Sums of ratios are what counts where they are small, and mean no more than "certainly" where they are large;
        # of answers that a label defense remembers, and so repeats, it is their mean that counts.
        sums = (np.clip(ratio, -near, near) for near in (_NEAR, _FAR))
        told = [logit, *sums, np.clip(each, -_NEAR, _NEAR), shift, spread, columns["last"], energy]
        return np.column_stack([*told, self._levels(slots)])


def with_features(messages: RunLeak, *, joint: float, baseline: float) -> RunLeak:
    """Return the leak with the partner's features: the larger of all together, and of the features alone."""
    return replace(messages, auc=max(joint, baseline), joint=joint, baseline=baseline)


def stratified(truth: Flags, seed: int) -> npt.NDArray[np.int64]:
    """Return the fold of each record, ``(n,)``; classes have their shares in each."""
    generator = np.random.default_rng(seed)
    folds = np.empty(truth.size, np.int64)
    for label in (False, True):
        rows = generator.permutation(np.flatnonzero(truth == label))
        folds[rows] = np.arange(rows.size) % FOLDS
    return folds


def _out_of_fold(given: Floats, truth: Flags, folds: npt.NDArray[np.int64], nested: Floats | None = None) -> Floats:
    """Return each record's log odds by logistic regression on the other folds.

    Args:
        given: ``(n, j)``, what is known of each record.
        truth: ``(n,)``.
        folds: ``(n,)``.
        nested: ``(5, n, m)``: more of it, by the fold that is left out.
    """
    scores, weights = np.empty(truth.size), None
    for fold in range(FOLDS):
        columns = given if nested is None else np.concatenate([given, nested[fold]], axis=1)
        fitted = folds != fold
        middle, unit = columns[fitted].mean(axis=0), columns[fitted].std(axis=0)
        numbers = (columns - middle) / np.where(unit > _LEAST_UNIT * np.abs(middle), unit, np.inf)
        design = np.column_stack([np.ones(truth.size), numbers.clip(-_MOST_UNITS, _MOST_UNITS)])
        weights = _logistic(design[fitted], truth[fitted].astype(np.float64), start=weights)
        scores[~fitted] = design[~fitted] @ weights
    return scores


def _logistic(design: Floats, truth: Floats, *, start: Floats | None) -> Floats:
    """Return the coefficients of largest likelihood less half their squares, by Newton's method; the first is free.

    There is one optimum. From the coefficients of another fold it is reached in fewer steps.
    """
    penalty = np.ones(design.shape[1])
    penalty[0] = 1e-6
    weights = np.zeros(design.shape[1]) if start is None else start
    value = _loss(design, truth, weights, penalty)
    for _ in range(_MOST_NEWTON):
        share = scipy.special.expit(design @ weights)
        slope = design.T @ (share - truth) + penalty * weights
        curve = (design * (share * (1.0 - share))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curve, slope)
        length = 1.0
        while length > 1e-6 and _loss(design, truth, weights - length * step, penalty) > value:
            length /= 2.0
        weights = weights - length * step
        before, value = value, _loss(design, truth, weights, penalty)
        if before - value < 1e-9 * abs(before):
            break
    return weights


def _loss(design: Floats, truth: Floats, weights: Floats, penalty: Floats) -> float:
    odds = design @ weights
    return float(np.logaddexp(0.0, odds).sum() - truth @ odds + 0.5 * penalty @ weights**2)
