"""The auditor's evidence of a whole run, of k classes and of numbers; :mod:`splitvfl.leakage.run_audit` has two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import torch

from splitvfl.errors import DataError
from splitvfl.leakage.number_judging import held_out_concordance
from splitvfl.leakage.run_audit import RunHistory, RunLeak, with_features
from splitvfl.learning.drawing import FOLDS, drawn
from splitvfl.learning.records import Ids, Slots
from splitvfl.metrics import chance_concordance, chance_macro_auc, concordance, macro_auc

Floats = npt.NDArray[np.float64]
Classes = npt.NDArray[np.int64]

MOST_NATS = 30.0
"""Nats that one message can tell, and beyond which sums count no more where nothing else matters."""

LEAST_SHARE = 1e-12
"""Least probability of a class."""

# Nats beyond which sums count no more where a prediction may still matter.
_NEAR = 8.0
_MOST_NUMBERS = 1 << 23
# Deviations below this share of the largest number are rounding.
_LEAST_UNIT = 1e-9


class ManyHistory(RunHistory):
    """What is remembered of each record: sums of what messages told, its last prediction, and sums of all of them.

    Args:
        columns: Numbers that a message tells of a record.
    """

    def __init__(self, columns: int) -> None:
        super().__init__(label=np.float64)
        self._columns = columns
        self._numbers = np.zeros((0, 3 * columns))

    def add(self, ids: Ids, labels: Floats, told: Floats, predicted: Floats) -> None:
        """Remember one message: ``told`` and ``predicted`` are ``(n, columns)``."""
        if not ids.size:
            return
        room = len(self._records) * self._numbers.shape[1] < _MOST_NUMBERS
        slots = self._records.slots(ids) if room else self._records.find(ids)
        known = slots >= 0
        slots, labels, told, predicted = slots[known], labels[known], told[known], predicted[known]
        if len(self._records) > len(self._numbers):
            wider = np.zeros((max(len(self._records), 2 * len(self._numbers)), self._numbers.shape[1]))
            wider[: len(self._numbers)] = self._numbers
            self._numbers = wider
        self._records["label"][slots] = labels
        self._numbers[slots, : self._columns] += told
        self._numbers[slots, self._columns : 2 * self._columns] = predicted
        self._numbers[slots, 2 * self._columns :] += predicted
        np.add.at(self._records["seen"], slots, 1)

    def _drawn(self, labels: npt.NDArray[Any], seed: int) -> Classes:
        found: Classes = drawn(labels.size, seed).numpy()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the records' numbers."""
        return {"table": super().state_dict(), "numbers": torch.from_numpy(self._numbers.copy())}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        super().load_state_dict(state["table"])
        self._numbers = state["numbers"].numpy().copy()

    def _told(self, slots: Slots) -> Floats:
        told, _, seen = self._sums(slots)
        return told / seen

    def _last(self, slots: Slots) -> Floats:
        return self._numbers[slots, self._columns : 2 * self._columns]

    def _sums(self, slots: Slots) -> tuple[Floats, Floats, Floats]:
        """Return sums of what was told, mean predictions, and the number of messages ``(n, 1)``."""
        seen = self._records["seen"][slots].astype(np.float64)[:, None]
        return self._numbers[slots, : self._columns], self._numbers[slots, 2 * self._columns :] / seen, seen


class ClassesHistory(ManyHistory):
    """Of k classes: log likelihoods and log probabilities, put together by logistic regression, five-fold.

    The odds of a class are a weighted sum of what is known of *that* class, with the same weights for all, and a number
    for each class: weights of its own for every pair of classes would learn to predict anew from what a bad model puts
    out. Levels of whole messages belong to no class, and have a weight for each. Log probabilities on the fold that was
    left out are the scores, judged by macro AUC. Where the partner's features are known, a second one gets in addition
    the log probabilities that two models of the features give out of fold, on the same folds. It is fitted with true
    labels, as a partner's attack is not.
    """

    @property
    def enough(self) -> bool:
        """Whether there are at least two classes, and five records of each."""
        labels = self._records["label"][self._records["seen"] > 0]
        counts = np.unique(labels, return_counts=True)[1]
        return bool(counts.size >= 2 and counts.min() >= FOLDS)

    @property
    def classes(self) -> int:
        """How many."""
        return self._columns

    def _as_kept(self, predictions: Floats) -> Floats:
        found: Floats = np.log(np.clip(predictions, LEAST_SHARE, 1.0))
        return found

    def _judge(self, slots: Slots, labels: Floats, predicted: Floats, rows: Classes | None, seed: int) -> RunLeak:
        from splitvfl.leakage.own_columns import folds_of  # slow to import, and needed at ends of epochs only

        truth = labels.astype(np.int64)
        classes, counts = np.unique(truth, return_counts=True)
        if classes.size < 2 or counts.min() < FOLDS:
            raise DataError(f"the auditor needs {FOLDS} records of each class that crossed the cut, got {truth.size}")
        told, mean, seen = self._sums(slots)
        # Sums are what counts where they are small, and mean no more than "certainly" where they are large; of answers
        # that a label defense remembers, and so repeats, it is their mean that counts.
        summed = scipy.special.log_softmax(told, axis=1)
        parts = np.stack(
            [predicted, mean, np.maximum(summed, -_NEAR), np.maximum(summed, -MOST_NATS), told / seen], axis=2
        )
        levels = self._levels(slots)
        answers, folds = torch.from_numpy(truth), folds_of(truth, seed)

        def auc_of(parts: Sequence[Floats]) -> float:
            scores = np.zeros(summed.shape)
            for (fitted, held_out), known in zip(folds, parts, strict=True):
                model = _fitted(known[fitted], levels[fitted], truth[fitted])
                scores[held_out] = model(known[held_out], levels[held_out])
            return macro_auc(torch.from_numpy(scores), answers)

        messages = auc_of([parts] * FOLDS)
        found = RunLeak(
            auc=messages,
            matched_auc=math.nan,
            prediction_auc=macro_auc(torch.from_numpy(predicted), answers),
            records=truth.size,
            chance=chance_macro_auc(counts.tolist()),
            messages=messages,
        )
        if rows is None or self.features is None:
            return found
        own = self.features.predictions(rows, labels, self._columns, seed=seed)
        joint = auc_of([np.concatenate([parts, more], axis=2) for more in own.nested])
        return with_features(found, joint=joint, baseline=own.auc)


def _fitted(parts: Floats, whole: Floats, truth: Classes) -> Callable[[Floats, Floats], Floats]:
    """Return what gives log probabilities, fitted to records of these classes.

    The likelihood is that of ``softmax_c(Σ_j β_j x_cj + Σ_l γ_cl z_l + b_c)``, less half the squares of β and γ on
    standardised numbers.

    Args:
        parts: ``(n, k, j)``: x, numbers of each class.
        whole: ``(n, l)``: z, numbers of a record that belong to no class.
        truth: ``(n,)``.
    """
    _, classes, count = parts.shape
    unit = _unit(parts.reshape(-1, count))
    middle, spread = whole.mean(axis=0), _unit(whole)
    members = np.eye(classes)[truth]

    def standard(whole: Floats) -> Floats:
        return np.column_stack([(whole - middle) / spread, np.ones(len(whole))])

    scaled, beside = parts / unit, standard(whole)
    penalty = np.ones((beside.shape[1], classes))
    penalty[-1] = 0.0

    def log_shares(values: Floats, scaled: Floats, beside: Floats) -> Floats:
        found: Floats = scipy.special.log_softmax(
            scaled @ values[:count] + beside @ values[count:].reshape(-1, classes), axis=1
        )
        return found

    def loss(values: Floats) -> tuple[float, Floats]:
        logits, kept = log_shares(values, scaled, beside), values.copy()
        kept[count:] *= penalty.ravel()
        residues = np.exp(logits) - members
        slopes = np.concatenate([np.einsum("nk,nkj->j", residues, scaled), (beside.T @ residues).ravel()]) + kept
        return float(0.5 * kept @ kept - (members * logits).sum()), slopes

    start = np.zeros(count + penalty.size)
    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    return lambda parts, whole: log_shares(found, parts / unit, standard(whole))


def _unit(numbers: Floats) -> Floats:
    """Return the deviation of each column; infinity where it is constant."""
    spread = numbers.std(axis=0)
    found: Floats = np.where(spread > _LEAST_UNIT * np.abs(numbers).max(axis=0), spread, np.inf)
    return found


class NumberHistory(ManyHistory):
    """Of numbers: labels that messages told and predictions, put together by ridge regression, five-fold.

    Where the partner's features are known, a second one gets in addition what two models of the features predict out of
    fold, on the same folds.

    Judged by the concordance within the folds that were left out
    (:func:`~splitvfl.leakage.number_judging.held_out_concordance`).
    """

    def __init__(self) -> None:
        super().__init__(1)

    @property
    def enough(self) -> bool:
        """Whether there are ten records with different labels."""
        labels = self._records["label"][self._records["seen"] > 0]
        return bool(labels.size >= 2 * FOLDS and np.ptp(labels) > 0.0)

    @property
    def classes(self) -> None:
        """None: they are numbers."""

    def _as_kept(self, predictions: Floats) -> Floats:
        return predictions[:, :1]

    def _judge(self, slots: Slots, labels: Floats, predicted: Floats, rows: Classes | None, seed: int) -> RunLeak:
        from sklearn.linear_model import RidgeCV  # slow to import, and needed at ends of epochs only
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        from splitvfl.leakage.own_columns import place_of_each
        from splitvfl.leakage.own_columns_many import number_folds

        if labels.size < 2 * FOLDS:
            raise DataError(f"the auditor needs {2 * FOLDS} records that crossed the cut, got {labels.size}")
        told, mean, seen = self._sums(slots)
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3.0, 3.0, 7)))
        folds = number_folds(labels.size, seed)
        numbers = np.concatenate([predicted, mean, told / seen, self._levels(slots)], axis=1)
        answers = torch.from_numpy(labels.astype(np.float64))

        def concordance_of(numbers: Sequence[Floats]) -> float:
            scores = np.zeros(labels.size)
            for (fitted, held_out), known in zip(folds, numbers, strict=True):
                scores[held_out] = model.fit(known[fitted], labels[fitted]).predict(known[held_out])
            return held_out_concordance(scores, labels, place_of_each(folds))

        messages = concordance_of([numbers] * FOLDS)
        found = RunLeak(
            auc=messages,
            matched_auc=math.nan,
            prediction_auc=concordance(torch.from_numpy(predicted[:, 0].copy()), answers),
            records=labels.size,
            chance=chance_concordance(labels.size),
            messages=messages,
        )
        if rows is None or self.features is None:
            return found
        own = self.features.predictions(rows, labels, None, seed=seed)
        joint = concordance_of([np.concatenate([numbers, more], axis=1) for more in own.nested])
        return with_features(found, joint=joint, baseline=own.auc)
