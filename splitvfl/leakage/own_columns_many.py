"""The partner's knowledge without any message, of labels of k classes and of numbers.

:mod:`splitvfl.leakage.own_columns` measures it for two classes; figures here are macro AUCs, and concordances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import GammaRegressor, PoissonRegressor, RidgeCV
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor

from splitvfl.data.columns import Columns
from splitvfl.errors import DataError
from splitvfl.leakage.judging import keeper_for
from splitvfl.leakage.number_judging import held_out_concordance
from splitvfl.leakage.own_columns import (
    ROUNDS,
    OwnColumns,
    Predict,
    Rows,
    better,
    classifiers,
    first_component,
    folds_of,
    key_of,
    measured_once,
    nested,
    out_of_fold,
    place_of_each,
)
from splitvfl.learning.drawing import FOLDS, drawn
from splitvfl.metrics import known, macro_auc

Matrix = npt.NDArray[np.float64]

_MOST_CATEGORIES = 100
# Least probability that a model gives a class: its logarithm is finite.
_LEAST_PROBABILITY = 1e-12


def own_columns_leak(columns: Columns, labels: Tensor, classes: int | None, *, seed: int = 0) -> OwnColumns:
    """Return how well a party's own columns predict labels: five-fold, on records not fitted on.

    The larger of a linear model's figure (logistic, or ridge regression) and gradient boosting's, on at most 20 000
    records that are drawn with the seed. Numbers are compared within folds. Of each categorical field the hundred most
    frequent categories count.

    Args:
        columns: The party's columns.
        labels: One per record, in 0 … k−1, or numbers.
        classes: k; ``None`` for numbers.
        seed: Decides the sample, the folds and the models' randomness.

    Raises:
        DataError: If a class has fewer records than folds, or there are fewer than ten records.
    """
    chosen = drawn(labels.numel(), seed)
    truth = labels[chosen.to(labels.device)].cpu().double().numpy()
    return of_these(columns.rows(chosen), truth, classes, seed=seed)


def of_these(used: Columns, truth: Matrix, classes: int | None, *, seed: int = 0) -> OwnColumns:
    """Return the same of exactly these records.

    Args:
        used: Their columns.
        truth: ``(n,)`` float64, in 0 … k−1, or numbers.
        classes: k; ``None`` for numbers.
        seed: Decides the folds, as ``KFold`` and :func:`~splitvfl.leakage.own_columns.folds_of` have them, and the
            models' randomness.

    Raises:
        DataError: If a class has fewer records than folds, or there are fewer than ten records.
    """
    matrix = numbers_of(used)

    def measure() -> OwnColumns:
        return better(
            *(_numbers_told(matrix, truth, seed) if classes is None else _classes_told(matrix, truth, classes, seed))
        )

    return measured_once(key_of(matrix, truth, classes, seed), measure)


def nested_of_these(used: Columns, truth: Matrix, classes: int | None, *, seed: int = 0) -> Mapping[str, Matrix]:
    """Return what a second model may be fitted to, for each fold: :func:`~splitvfl.leakage.own_columns.nested`.

    Args:
        used: Columns of the records.
        truth: ``(n,)`` float64, in 0 … k−1, or numbers; as :func:`of_these` takes them.
        classes: k; ``None`` for numbers.
        seed: As of :func:`of_these`.

    Returns:
        Log probabilities ``(5, n, k)``, or numbers ``(5, n)``, by the model's name.
    """
    matrix, predicted = numbers_of(used), of_these(used, truth, classes, seed=seed).predicted
    if classes is None:
        return nested(place_of_each(number_folds(truth.size, seed)), predicted, predicting_numbers(matrix, truth, seed))
    names = truth.astype(np.int64)
    predict = predicting_classes(matrix, names, classes, seed)
    return nested(place_of_each(folds_of(names, seed)), predicted, predict)


def number_folds(count: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Return five pairs of positions: of records to fit to, and of those that are held out."""
    return list(KFold(FOLDS, shuffle=True, random_state=seed).split(np.empty(count)))


def _numbers_told(matrix: Matrix, truth: Matrix, seed: int) -> tuple[dict[str, float], Mapping[str, Matrix]]:
    """Return the concordance of what each of two models predicts out of fold, and the predictions."""
    if truth.size < 2 * FOLDS:
        raise DataError(f"expected at least {2 * FOLDS} records, got {truth.size}")
    folds = number_folds(truth.size, seed)
    places, predicted = place_of_each(folds), out_of_fold(folds, predicting_numbers(matrix, truth, seed))
    return {name: held_out_concordance(scores, truth, places) for name, scores in predicted.items()}, predicted


def predicting_numbers(matrix: Matrix, truth: Matrix, seed: int, family: str = "") -> Predict:
    """Return what fits both models to some records and predicts the numbers of others.

    Args:
        matrix: Columns of the records, ``(n, d)``.
        truth: ``(n,)``.
        seed: Decides the models' randomness.
        family: ``"poisson"`` or ``"gamma"``: its deviance is made small, and means are above 0; empty: squared errors.
    """

    def predict(fitted: Rows, asked: Rows) -> dict[str, Matrix]:
        models = _regressors(family, fitted.size, seed)
        return {name: model.fit(matrix[fitted], truth[fitted]).predict(matrix[asked]) for name, model in models.items()}

    return predict


def _regressors(family: str, records: int, seed: int) -> dict[str, Any]:
    boosting = HistGradientBoostingRegressor(loss=family or "squared_error", max_iter=ROUNDS, random_state=seed)
    if not family:
        linear = RidgeCV(np.logspace(-3.0, 3.0, 7))
        return {"ridge regression": make_pipeline(StandardScaler(), linear), "gradient boosting": boosting}
    kind = {"poisson": PoissonRegressor, "gamma": GammaRegressor}[family]
    # As strong a penalty as that of the logistic regression: half the squared length, beside the sum of losses.
    linear = kind(alpha=1.0 / records, max_iter=300)
    return {f"{family} regression": make_pipeline(StandardScaler(), linear), "gradient boosting": boosting}


def _classes_told(
    matrix: Matrix, truth: Matrix, classes: int, seed: int
) -> tuple[dict[str, float], Mapping[str, Matrix]]:
    """Return the macro AUC of the probabilities that each of two models gives out of fold, and their logarithms."""
    present, counts = np.unique(truth, return_counts=True)
    if counts.min() < FOLDS or present.size < 2:
        raise DataError(f"each class needs at least {FOLDS} records, got {counts.tolist()}")
    names = truth.astype(np.int64)
    predicted = out_of_fold(folds_of(names, seed), predicting_classes(matrix, names, classes, seed))
    answers = torch.from_numpy(truth)
    return {name: macro_auc(torch.from_numpy(scores), answers) for name, scores in predicted.items()}, predicted


def predicting_classes(matrix: Matrix, truth: Rows, classes: int, seed: int) -> Predict:
    """Return what fits both models to some records and gives the log probabilities of others, ``(n, k)``.

    Args:
        matrix: Columns of the records, ``(n, d)``.
        truth: ``(n,)``, in 0 … k−1.
        classes: k.
        seed: Decides the models' randomness.
    """

    def predict(fitted: Rows, asked: Rows) -> dict[str, Matrix]:
        found = {}
        for name, model in classifiers(seed).items():
            scores = np.zeros((asked.size, classes))
            model.fit(matrix[fitted], truth[fitted])
            scores[:, model.classes_] = model.predict_proba(matrix[asked])
            found[name] = np.log(np.clip(scores, _LEAST_PROBABILITY, 1.0))
        return found

    return predict


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
    component = first_component(columns, labels.numel(), seed=seed)
    if component is None:
        return None
    chosen = drawn(labels.numel(), seed)
    keeper = keeper_for(classes, cumulative=True)
    keeper.add(None, torch.from_numpy(component(columns.rows(chosen))), labels[chosen.to(labels.device)])
    return known(keeper.summary().worst_auc)


def numbers_of(columns: Columns) -> Matrix:
    """Return columns as numbers, ``(n, d)``: of each categorical field the hundred most frequent categories."""
    numeric = columns.numeric.cpu().double().numpy()
    if not columns.categorical.shape[1]:
        return numeric
    encoder = OneHotEncoder(max_categories=_MOST_CATEGORIES, sparse_output=False, handle_unknown="infrequent_if_exist")
    # Which categories there are is told by no label.
    return np.concatenate([numeric, encoder.fit_transform(columns.categorical.cpu().numpy())], axis=1)
