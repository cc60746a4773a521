"""The auditor who waits: everything that a run's messages told about each record, put together at the end.

Sums of scores are one way to accumulate. This auditor learns the best one: a classifier on the history of each record,
fitted with true labels and judged on records that it was not fitted on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.errors import DataError
from splitvfl.label_gradients import LabelGradients
from splitvfl.leakage.auditing import class_axis, message_features, of_real_rows
from splitvfl.leakage.judging import Handle
from splitvfl.metrics import leak_auc, matched_auc
from splitvfl.records import RecordTable

Floats = npt.NDArray[np.float64]

FOLDS = 5
"""Folds of the cross-validation, and so the least number of records of each class."""

_MOST_OF_A_CLASS = 10_000
_COLUMNS = ("seen", "projection", "square", "energy", "first", "last")


@dataclass(frozen=True, slots=True)
class RunLeak:
    """What a whole run told.

    Attributes:
        auc: Out-of-fold leak AUC of the auditor's classifier, who also knows the model's prediction of every record.
        matched_auc: The same between records of equal prediction: what the messages told beyond the prediction.
        prediction_auc: AUC of the model's prediction alone, on the same training records.
        records: Number of records that it was judged on.
    """

    auc: float
    matched_auc: float
    prediction_auc: float
    records: int


class RunAudit(Handle):
    """Remembers each record's messages, six numbers per record, and judges them at the end.

    The numbers are the first, the last, the mean and the spread of the record's projection on the clean Δg, and its
    mean log energy off Δg, each in units of its batch; Δg is between the classes of a label defense's answers where
    there is one, as for :class:`~splitvfl.leakage.auditing.Auditor`. The label party alone can do this: it takes the
    clean gradients and the labels. It bounds the leak from below; a cleverer auditor may find more.

    Args:
        remove: Called at most once, when it is detached.

    Attributes:
        seconds: Time spent on looking.
    """

    def __init__(self, *, remove: Callable[[], None] = lambda: None) -> None:
        super().__init__(remove)
        self.seconds = 0.0
        self._records = RecordTable(**dict.fromkeys(_COLUMNS, np.float32))

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
        """Remember one message; nothing of a batch of one class, which has no Δg, or without ids.

        Args:
            clean: Cut gradient before the defenses, ``(n, width)``.
            sent: What is sent, ``(n, width)``.
            labels: ``(n,)`` in {0, 1}.
            ids: Record ids, ``(n,)``, each at most once.
            responses: ``(n,)`` in {0, 1}: what a label defense answered in place of the labels, if there is one.
            label_gradients: Not used.
        """
        started = time.perf_counter()
        clean, sent, labels, ids, responses = of_real_rows(clean, sent, labels, ids, responses)
        axis = class_axis(clean, (labels if responses is None else responses).reshape(-1) == 1)
        if axis is not None and ids is not None:
            self._remember(ids, message_features(sent, axis).numpy())
        self.seconds += time.perf_counter() - started

    def _remember(self, ids: Tensor, features: Floats) -> None:
        slots = self._records.slots(ids.detach().cpu().numpy())
        projection, energy = features.T
        columns = {name: self._records[name] for name in _COLUMNS}
        new = columns["seen"][slots] == 0
        columns["first"][slots[new]] = projection[new]
        columns["last"][slots] = projection
        columns["seen"][slots] += 1
        columns["projection"][slots] += projection
        columns["square"][slots] += projection**2
        columns["energy"][slots] += energy

    def judge(self, ids: Tensor, labels: Tensor, predictions: Tensor, *, seed: int = 0) -> RunLeak:
        """Return how well the run's messages tell the labels of these records, together with the model's predictions.

        Gradient boosting, five-fold, on at most 10 000 records of each class.

        Args:
            ids: ``(n,)`` ids of training records; those that were never seen are left out.
            labels: ``(n,)`` in {0, 1}.
            predictions: ``(n,)`` the trained model's scores of them, in any monotone unit.
            seed: Decides which records are drawn, and the folds.

        Raises:
            DataError: If fewer than five records of a class were seen.
        """
        slots = self._records.slots(ids.detach().cpu().numpy())
        known = np.flatnonzero(self._records["seen"][slots] > 0)
        truth = labels.detach().reshape(-1).cpu().numpy()[known] == 1
        if min(np.count_nonzero(truth), np.count_nonzero(~truth)) < FOLDS:
            raise DataError(f"the auditor needs {FOLDS} records of each class that crossed the cut, got {known.size}")
        chosen = _sample(truth, seed)
        predicted = predictions.detach().reshape(-1).cpu().double().numpy()[known][chosen]
        truth = truth[chosen]
        history = self._history(slots[known][chosen])
        scores = _out_of_fold(np.column_stack([history, predicted]), truth, seed)
        tensors = [torch.from_numpy(values) for values in (scores, truth, predicted)]
        return RunLeak(
            auc=leak_auc(tensors[0], tensors[1]),
            matched_auc=matched_auc(*tensors),
            prediction_auc=leak_auc(tensors[2], tensors[1]),
            records=truth.size,
        )

    def _history(self, slots: npt.NDArray[np.int64]) -> Floats:
        columns = {name: self._records[name][slots].astype(np.float64) for name in _COLUMNS}
        mean = columns["projection"] / columns["seen"]
        spread = np.sqrt(np.maximum(columns["square"] / columns["seen"] - mean**2, 0.0))
        energy = columns["energy"] / columns["seen"]
        return np.column_stack([mean, spread, columns["first"], columns["last"], energy])

    def state_dict(self) -> dict[str, Any]:
        """Return the records' numbers."""
        return self._records.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._records.load_state_dict(state)


def _sample(truth: npt.NDArray[np.bool_], seed: int) -> npt.NDArray[np.int64]:
    generator = np.random.default_rng(seed)
    classes = [np.flatnonzero(truth == label) for label in (False, True)]
    return np.sort(np.concatenate([generator.permutation(rows)[:_MOST_OF_A_CLASS] for rows in classes]))


def _out_of_fold(columns: Floats, truth: npt.NDArray[np.bool_], seed: int) -> Floats:
    # Takes a second to import, which nothing else here needs.
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, random_state=seed)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    scores: Floats = cross_val_predict(model, columns, truth, cv=folds, method="predict_proba")[:, 1]
    return scores
