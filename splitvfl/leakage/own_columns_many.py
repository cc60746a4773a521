"""The partner's knowledge without any message, of labels of k classes and of numbers.

:mod:`splitvfl.leakage.own_columns` measures it for two classes; figures here are macro AUCs, and concordances.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor

from splitvfl.data.columns import Columns
from splitvfl.errors import DataError
from splitvfl.leakage.judging import keeper_for
from splitvfl.leakage.own_columns import OwnColumns
from splitvfl.leakage.run_audit import FOLDS
from splitvfl.metrics import concordance, known, macro_auc

Matrix = npt.NDArray[np.float64]

# As many as of two classes together.
_MAX_RECORDS = 20_000
_LEAST_UNIT = 1e-9
_MOST_CATEGORIES = 100


def own_columns_leak(columns: Columns, labels: Tensor, classes: int | None, *, seed: int = 0) -> OwnColumns:
    """Return how well a party's own columns predict labels: five-fold, on records not fitted on.

    The larger of a linear model's figure (logistic, or ridge regression) and gradient boosting's, on at most 20 000
    records that are drawn with the seed. Of each categorical field the hundred most frequent categories count.

    Args:
        columns: The party's columns.
        labels: One per record, in 0 … k−1, or numbers.
        classes: k; ``None`` for numbers.
        seed: Decides the sample, the folds and the models' randomness.

    Raises:
        DataError: If a class has fewer records than folds, or there are fewer than ten records.
    """
    chosen = _drawn(labels.numel(), seed)
    truth = labels[chosen.to(labels.device)].cpu().double().numpy()
    matrix = _matrix(columns.rows(chosen))
    models: dict[str, Any]
    if classes is None:
        if truth.size < 2 * FOLDS:
            raise DataError(f"expected at least {2 * FOLDS} records, got {truth.size}")
        folds = KFold(FOLDS, shuffle=True, random_state=seed)
        models = {
            "ridge regression": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3.0, 3.0, 7))),
            "gradient boosting": HistGradientBoostingRegressor(max_iter=50, random_state=seed),
        }
        found = {name: cross_val_predict(model, matrix, truth, cv=folds) for name, model in models.items()}
    else:
        present, counts = np.unique(truth, return_counts=True)
        if counts.min() < FOLDS or present.size < 2:
            raise DataError(f"each class needs at least {FOLDS} records, got {counts.tolist()}")
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        models = {
            "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
            "gradient boosting": HistGradientBoostingClassifier(max_iter=50, random_state=seed),
        }
        found = {}
        for name, model in models.items():
            scores = np.zeros((truth.size, classes))
            scores[:, present.astype(np.int64)] = cross_val_predict(
                model, matrix, truth.astype(np.int64), cv=folds, method="predict_proba"
            )
            found[name] = scores
    figure = concordance if classes is None else macro_auc
    results = [OwnColumns(figure(torch.from_numpy(found[name]), torch.from_numpy(truth)), name) for name in models]
    return max(results, key=lambda result: result.auc)


def first_component_leak(columns: Columns, labels: Tensor, classes: int | None, *, seed: int = 0) -> float | None:
    """Return how well the first principal component of a party's columns of numbers tells labels; it knows none.

    Of k classes it is turned round for each on its own.

    Args:
        columns: The party's columns.
        labels: One per record, in 0 … k−1, or numbers; they judge, and nothing else.
        classes: k; ``None`` for numbers.
        seed: Decides which records are drawn.

    Returns:
        The figure, in [0.5, 1]; ``None`` if no column of numbers has two values, or all labels are equal.
    """
    if not columns.numeric.shape[1]:
        return None
    chosen = _drawn(labels.numel(), seed)
    rows = columns.rows(chosen).numeric.cpu().double().numpy()
    middle, unit = rows.mean(axis=0), rows.std(axis=0)
    varied = unit > _LEAST_UNIT * np.abs(middle)
    if not varied.any():
        return None
    scores = PCA(1, random_state=seed).fit_transform((rows[:, varied] - middle[varied]) / unit[varied])[:, 0]
    keeper = keeper_for(classes, cumulative=True)
    keeper.add(None, torch.from_numpy(scores), labels[chosen.to(labels.device)])
    return known(keeper.summary().worst_auc)


def _drawn(count: int, seed: int) -> Tensor:
    if count <= _MAX_RECORDS:
        return torch.arange(count)
    drawn = np.random.default_rng(seed).choice(count, _MAX_RECORDS, replace=False, shuffle=False)
    return torch.from_numpy(np.sort(drawn))


def _matrix(columns: Columns) -> Matrix:
    numeric = columns.numeric.cpu().double().numpy()
    if not columns.categorical.shape[1]:
        return numeric
    encoder = OneHotEncoder(max_categories=_MOST_CATEGORIES, sparse_output=False, handle_unknown="infrequent_if_exist")
    # Which categories there are is told by no label.
    return np.concatenate([numeric, encoder.fit_transform(columns.categorical.cpu().numpy())], axis=1)
