"""What the partner predicts anyway, from its own columns, if it knew the labels of other records.

No defense at the cut can go below this: the columns themselves tell. It stands beside every leak AUC.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from splitvfl.data.columns import Columns
from splitvfl.errors import DataError
from splitvfl.metrics import leak_auc

# Enough records for an AUC to two digits, and few enough to take seconds.
_MAX_RECORDS = 20_000
FOLDS = 5
"""Folds of the cross-validation, and so the least number of records of each class."""


@dataclass(frozen=True, slots=True)
class OwnColumns:
    """The better of two models on one party's columns.

    Attributes:
        auc: Out-of-fold AUC on the training records.
        model: ``"logistic regression"`` or ``"gradient boosting"``.
    """

    auc: float
    model: str


def own_columns_auc(columns: Columns, labels: Tensor, *, seed: int = 0) -> OwnColumns:
    """Return how well a party's own columns predict binary labels: five-fold, on records not fitted on.

    The larger of logistic regression's and gradient boosting's AUC. It assumes a partner who knows the labels of
    four fifths of the records, more than most partners do. At most 10 000 records of each class are used, drawn with
    ``seed``.

    Raises:
        DataError: If a class has fewer records than folds.
    """
    matrix = np.concatenate([columns.numeric.cpu().numpy(), columns.categorical.cpu().numpy()], axis=1)
    truth = labels.cpu().numpy().astype(np.int64)
    chosen = _sample(truth, seed)
    matrix, truth = matrix[chosen], truth[chosen]
    if np.bincount(truth, minlength=2).min() < FOLDS:
        raise DataError(f"each class needs at least {FOLDS} records, got {np.bincount(truth, minlength=2).tolist()}")
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    models = {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
        "gradient boosting": HistGradientBoostingClassifier(max_iter=50, random_state=seed),
    }
    results = []
    for name, model in models.items():
        scores = cross_val_predict(model, matrix, truth, cv=folds, method="predict_proba")[:, 1]
        results.append(OwnColumns(_auc(scores, truth), name))
    return max(results, key=lambda result: result.auc)


def _sample(truth: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """Return positions of at most half the limit of each class; AUC does not depend on the share of a class."""
    generator = np.random.default_rng(seed)
    classes = [np.flatnonzero(truth == label) for label in (0, 1)]
    return np.sort(np.concatenate([generator.permutation(rows)[: _MAX_RECORDS // 2] for rows in classes]))


def _auc(scores: npt.NDArray[np.float64], truth: npt.NDArray[np.int64]) -> float:
    return leak_auc(torch.from_numpy(scores), torch.from_numpy(truth))
