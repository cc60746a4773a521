"""The partner's knowledge without any message: its own columns, with labels of other records or without any.

No defense at the cut can go below this: the columns themselves tell. It stands beside every leak AUC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import torch
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, TargetEncoder
from torch import Tensor

from splitvfl.data.columns import Columns, Records
from splitvfl.errors import DataError
from splitvfl.learning.drawing import FOLDS, drawn, drawn_of_classes
from splitvfl.metrics import leak_auc, oriented

Matrix = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
# Fits models to the first records and predicts the others.
Predict = Callable[[Rows, Rows], Mapping[str, Floats]]

# A column that varies less than this, in parts of its mean, is constant but for rounding.
_LEAST_UNIT = 1e-9
# What was measured in this process, by a digest of the columns and labels: run after run in a notebook, or a sweep, is
# about the same data, and ten models are fitted for each figure. Those used last stay.
_measured: dict[bytes, OwnColumns] = {}
_MOST_MEASURED = 32
# Least probability that a model gives a label: log odds are finite.
_LEAST_PROBABILITY = 1e-12
# The same of what the label party's own columns alone tell.
_measured_alone: dict[bytes, dict[str, float]] = {}
# Rounds of gradient boosting: few enough for ten models to take seconds.
ROUNDS = 50


@dataclass(frozen=True, slots=True)
class OwnColumns:
    """The better of two models on one party's columns.

    Attributes:
        auc: Out-of-fold AUC on the training records.
        model: ``"logistic regression"`` or ``"gradient boosting"``; of numbers ``"ridge regression"`` in place of the
            first.
        predicted: What each model predicts of each record out of fold, by its name: log odds ``(n,)`` of two classes,
            log probabilities ``(n, k)`` of k, and numbers ``(n,)``.
    """

    auc: float
    model: str
    predicted: Mapping[str, Floats] = field(default_factory=dict, compare=False, repr=False)


def own_columns_auc(columns: Columns, labels: Tensor, *, seed: int = 0) -> OwnColumns:
    """Return how well a party's own columns predict binary labels: five-fold, on records not fitted on.

    The larger of logistic regression's and gradient boosting's AUC. It assumes a partner who knows the labels of
    four fifths of the records, more than most partners do. At most 10 000 records of each class are used, drawn with
    ``seed``; only they are read, if the columns lie on disk.

    A category counts as the mean label of its records, drawn towards the mean of all where there are few (empirical
    Bayes), and out of fold too: no record's own label enters its columns. Where fields have so many categories that
    few come twice in 20 000 records, a partner with more records predicts better than this.

    Source: Micci-Barreca, SIGKDD Explorations 3 (2001), for the encoding of categories.

    Args:
        columns: The party's columns.
        labels: One per record, in {0, 1}.
        seed: Decides the sample, the folds and the models' randomness.

    Raises:
        DataError: If a class has fewer records than folds.
    """
    chosen = torch.from_numpy(drawn_of_classes(labels, seed))
    truth = labels[chosen.to(labels.device)].cpu().numpy().astype(np.int64)
    return of_these(columns.rows(chosen), truth, seed=seed)


def of_these(used: Columns, truth: npt.NDArray[np.int64], *, seed: int = 0) -> OwnColumns:
    """Return the same of exactly these records.

    Args:
        used: Their columns.
        truth: ``(n,)``, in {0, 1}.
        seed: Decides the folds, which are those of :func:`folds_of`, and the models' randomness.

    Raises:
        DataError: If a class has fewer records than folds.
    """
    matrix = np.concatenate([used.numeric.cpu().numpy(), used.categorical.cpu().numpy()], axis=1)
    if np.bincount(truth, minlength=2).min() < FOLDS:
        raise DataError(f"each class needs at least {FOLDS} records, got {np.bincount(truth, minlength=2).tolist()}")
    fields = used.categorical.shape[1]
    key = key_of(matrix, truth, fields, seed)
    return measured_once(key, lambda: _better_model(matrix, truth, fields=fields, seed=seed))


def nested_of_these(used: Columns, truth: npt.NDArray[np.int64], *, seed: int = 0) -> Mapping[str, Floats]:
    """Return what a second model may be fitted to, for each fold that it leaves out: see :func:`nested`.

    Args:
        used: Columns of the records.
        truth: ``(n,)``, in {0, 1}; five records of each class.
        seed: As of :func:`of_these`.

    Returns:
        Log odds ``(5, n)``, by the model's name.
    """
    matrix = np.concatenate([used.numeric.cpu().numpy(), used.categorical.cpu().numpy()], axis=1)
    predict = predicting(matrix, truth, fields=used.categorical.shape[1], seed=seed)
    return nested(place_of_each(folds_of(truth, seed)), of_these(used, truth, seed=seed).predicted, predict)


def folds_of(truth: npt.NDArray[np.int64], seed: int) -> list[tuple[Rows, Rows]]:
    """Return five pairs of positions: of records to fit to, and of those that are held out; classes have their shares.

    Args:
        truth: ``(n,)``, the class of each record.
        seed: Decides the folds.
    """
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(truth, truth))


def place_of_each(folds: Iterable[tuple[Rows, Rows]]) -> Rows:
    """Return the fold, from 0, in which each record is held out, ``(n,)``."""
    parts = [held_out for _, held_out in folds]
    found = np.empty(sum(part.size for part in parts), np.int64)
    for number, part in enumerate(parts):
        found[part] = number
    return found


def out_of_fold(folds: Iterable[tuple[Rows, Rows]], predict: Predict) -> dict[str, Floats]:
    """Return what models that were fitted to the other folds predict of each record, by their names."""
    parts = [(held_out, predict(fitted, held_out)) for fitted, held_out in folds]
    order = np.argsort(np.concatenate([held_out for held_out, _ in parts]))
    return {name: np.concatenate([found[name] for _, found in parts])[order] for name in parts[0][1]}


def nested(places: Rows, predicted: Mapping[str, Floats], predict: Predict) -> dict[str, Floats]:
    """Return, for each fold, what models predict of all records that know no label of that fold.

    A second model is fitted to what first ones predict, and judged on a fold of its own. Fitted to plain out-of-fold
    predictions it would know the labels of that fold: the first models of all other folds were fitted to them. With 400
    records it then reads 0.515 to 0.518 where nothing tells. Here each of the other folds is predicted by models that
    were fitted to neither: ten fits, as each pair of folds shares one.

    Args:
        places: ``(n,)``, the fold of each record, from 0.
        predicted: What is predicted out of fold, by the model's name, ``(n, …)``.
        predict: Fits the models to some records and predicts others.

    Returns:
        By name ``(folds, n, …)``: what a second model that leaves out the fold is fitted to, and judged on.
    """
    count = int(places.max()) + 1
    found = {name: np.repeat(own[None], count, axis=0) for name, own in predicted.items()}
    for first, second in combinations(range(count), 2):
        asked = np.flatnonzero((places == first) | (places == second))
        fitted = np.flatnonzero((places != first) & (places != second))
        others = {first: places[asked] == second, second: places[asked] == first}
        for name, values in predict(fitted, asked).items():
            for left_out, chosen in others.items():
                found[name][left_out, asked[chosen]] = values[chosen]
    return found


def measured_once(key: bytes, measure: Callable[[], OwnColumns]) -> OwnColumns:
    """Return what was measured under a key in this process, or measure it."""
    _measured[key] = _measured.pop(key) if key in _measured else measure()
    if len(_measured) > _MOST_MEASURED:
        del _measured[next(iter(_measured))]
    return _measured[key]


def key_of(matrix: Matrix, truth: npt.NDArray[Any], *numbers: int | None) -> bytes:
    """Return a digest of all that the figure depends on."""
    described = repr((matrix.shape, matrix.dtype.str, truth.dtype.str, numbers)).encode()
    return sha256(described + np.ascontiguousarray(matrix).tobytes() + truth.tobytes()).digest()


def _better_model(matrix: Matrix, truth: npt.NDArray[np.int64], *, fields: int, seed: int) -> OwnColumns:
    odds = out_of_fold(folds_of(truth, seed), predicting(matrix, truth, fields=fields, seed=seed))
    return better({name: _auc(scores, truth) for name, scores in odds.items()}, odds)


def predicting(matrix: Matrix, truth: npt.NDArray[np.int64], *, fields: int, seed: int) -> Predict:
    """Return what fits both models to some records and gives the log odds of others.

    Args:
        matrix: Columns of the records, ``(n, d)``; the last ``fields`` are codes of categories.
        truth: ``(n,)``, in {0, 1}.
        fields: How many.
        seed: Decides the folds in which categories are encoded, and the models' randomness.
    """

    def predict(fitted: Rows, asked: Rows) -> dict[str, Floats]:
        inputs, others = _numbers(matrix, fitted, asked, truth, fields=fields, seed=seed)
        found = {}
        for name, model in classifiers(seed).items():
            probabilities = model.fit(inputs, truth[fitted]).predict_proba(others)[:, 1]
            found[name] = scipy.special.logit(np.clip(probabilities, _LEAST_PROBABILITY, 1.0 - _LEAST_PROBABILITY))
        return found

    return predict


def better(aucs: Mapping[str, float], predicted: Mapping[str, Floats]) -> OwnColumns:
    """Return the better one of models, by their AUCs, with what all of them predict."""
    model = max(aucs, key=lambda name: aucs[name])
    return OwnColumns(aucs[model], model, predicted)


def alone_aucs(train: Records, test: Records, *, seed: int = 0) -> Mapping[str, float]:
    """Return the test AUCs of logistic regression and of gradient boosting on the label party's own columns.

    They are fitted to training records and judged on test records; of each at most 10 000 of a class, drawn with
    ``seed``. Records that the party does not hold itself are left out.

    Args:
        train: Its training records, with binary labels.
        test: Its test records, likewise.
        seed: Decides the samples and the models' randomness.

    Returns:
        By name of the model, in [0, 1]; none if the party has no columns, or a class has too few records.
    """
    found = [_matrix_and_truth(records, seed) for records in (train, test)]
    (inputs, labels), (others, truth) = found
    least = [np.bincount(each, minlength=2).min() for each in (labels, truth)]
    if not inputs.shape[1] or least[0] < FOLDS or least[1] < 1:
        return {}
    fields = train.columns.categorical.shape[1]
    matrix, rows = np.concatenate([inputs, others]), np.arange(labels.size + truth.size)
    both = np.concatenate([labels, truth])
    key = key_of(matrix, both, labels.size, fields, seed)
    if key not in _measured_alone:
        inputs, others = _numbers(matrix, rows[: labels.size], rows[labels.size :], both, fields=fields, seed=seed)
        _measured_alone[key] = {
            name: _auc(model.fit(inputs, labels).predict_proba(others)[:, 1], truth)
            for name, model in classifiers(seed).items()
        }
    return _measured_alone[key]


def _matrix_and_truth(records: Records, seed: int) -> tuple[Matrix, npt.NDArray[np.int64]]:
    assert records.labels is not None, "the label party's"
    held = records.labels if records.real is None else records.labels.double().masked_fill(~records.real, torch.nan)
    chosen = torch.from_numpy(drawn_of_classes(held, seed))
    used = records.columns.rows(chosen)
    matrix = np.concatenate([used.numeric.cpu().numpy(), used.categorical.cpu().numpy()], axis=1)
    return matrix, records.labels[chosen.to(records.labels.device)].cpu().numpy().astype(np.int64)


def classifiers(seed: int) -> dict[str, Any]:
    """Return the two models, unfitted, by their names."""
    return {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
        "gradient boosting": HistGradientBoostingClassifier(max_iter=ROUNDS, random_state=seed),
    }


def first_component_auc(columns: Columns, labels: Tensor, *, seed: int = 0) -> float | None:
    """Return how well the first principal component of a party's own columns tells binary labels; it knows none.

    Each column is brought to mean zero and variance one, and a record's score is its coordinate on the direction of
    the largest variance. Its sign is granted, as to every attack: the figure is at least one half.

    The component is fitted to at most 20 000 records that are drawn whatever their labels: on a sample with as many
    records of each class it would lean towards what tells them apart. It is judged on at most 10 000 of each class.

    Only columns of numbers count, one-hot ones among them. Categories that are kept as codes are left out, so that a
    partner who knows how to order them reads more than this.

    Args:
        columns: The party's columns.
        labels: One per record, in {0, 1}; they judge, and nothing else.
        seed: Decides which records are drawn.

    Returns:
        The AUC, in [0.5, 1]; ``None`` if no column of numbers has two values, or a class has no record.
    """
    if not (labels == 1).any() or not (labels == 0).any():
        return None
    component = first_component(columns, labels.numel(), seed=seed)
    if component is None:
        return None
    chosen = torch.from_numpy(drawn_of_classes(labels, seed))
    truth = labels[chosen.to(labels.device)].cpu().numpy().astype(np.int64)
    return oriented(_auc(component(columns.rows(chosen)), truth))


def first_component(columns: Columns, count: int, *, seed: int) -> Callable[[Columns], Floats] | None:
    """Return what gives each record's coordinate on the first principal component of the columns of numbers.

    Args:
        columns: The party's columns.
        count: Number of its records; the component is fitted to at most 20 000 of them.
        seed: Decides which.

    Returns:
        ``None`` if no column of numbers has two values.
    """
    if not columns.numeric.shape[1]:
        return None
    fitted = _doubles(columns.rows(drawn(count, seed)))
    middle, unit = fitted.mean(axis=0), fitted.std(axis=0)
    varied = unit > _LEAST_UNIT * np.abs(middle)
    if not varied.any():
        return None
    middle, unit = middle[varied], unit[varied]
    component = PCA(1, random_state=seed).fit((fitted[:, varied] - middle) / unit).components_[0]
    return lambda asked: (_doubles(asked)[:, varied] - middle) / unit @ component


def _doubles(columns: Columns) -> Floats:
    return columns.numeric.cpu().numpy().astype(np.float64)


def _numbers(
    matrix: Matrix, fitted: Rows, held_out: Rows, truth: npt.NDArray[np.int64], *, fields: int, seed: int
) -> tuple[Matrix, Matrix]:
    """Return the columns of the records to fit on, and of those held out; the last ``fields``, categories, encoded."""
    inputs, others = matrix[fitted], matrix[held_out]
    if fields:
        codes, labels, encoder = inputs[:, -fields:].copy(), truth[fitted], TargetEncoder(target_type="binary")
        # One fold less than outside: of a class with as many records as folds, one less is fitted on; or two.
        inner = StratifiedKFold(min(FOLDS - 1, np.bincount(labels).min()), shuffle=True, random_state=seed)
        for known, asked in inner.split(codes, labels):
            inputs[asked, -fields:] = encoder.fit(codes[known], labels[known]).transform(codes[asked])
        others[:, -fields:] = encoder.fit(codes, labels).transform(others[:, -fields:])
    return inputs, others


def _auc(scores: npt.NDArray[np.float64], truth: npt.NDArray[np.int64]) -> float:
    return leak_auc(torch.from_numpy(scores), torch.from_numpy(truth))
