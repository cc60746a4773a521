"""The label owner's own model: what training with others has to beat.

A linear model or gradient boosting on its own columns. Training records choose between them, by cross-validation; test
records are predicted once, and choose nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splitvfl.data.columns import Columns, Records
from splitvfl.errors import DataError
from splitvfl.leakage import own_columns
from splitvfl.leakage.own_columns import Floats, Matrix, Predict, Rows, folds_of, key_of, out_of_fold, predicting
from splitvfl.leakage.own_columns_many import number_folds, numbers_of, predicting_classes, predicting_numbers
from splitvfl.learning.drawing import FOLDS, drawn, drawn_of_classes
from splitvfl.learning.tasks import Task

# What was fitted in this process, by a digest of all that it depends on: runs of a comparison share the data.
_fitted: dict[bytes, OwnModel] = {}
_MOST_FITTED = 8


@dataclass(frozen=True, slots=True)
class OwnModel:
    """A model of the label owner's own columns.

    Attributes:
        name: ``"logistic regression"``, ``"ridge regression"``, ``"poisson regression"``, ``"gamma regression"`` or
            ``"gradient boosting"``.
        scores: What it predicts of the records asked for, in an order or a unit that
            :meth:`splitvfl.learning.tasks.Task.measure_scores` takes: log odds ``(m,)``, log probabilities ``(m, k)``,
            or numbers ``(m,)``.
    """

    name: str
    scores: Tensor


def own_model(train: Records, asked: Records, task: Task, *, seed: int = 0) -> OwnModel:
    """Return the better of two models of the label owner's columns, fitted to training records.

    The better one has the larger figure of the task out of fold, in five folds of the training records. At most 20 000
    of these are used, drawn with the seed; with two classes at most 10 000 of each. Dummies of a padded alignment are
    left out. Categories are encoded as :func:`splitvfl.leakage.own_columns.own_columns_auc` and
    :func:`splitvfl.leakage.own_columns_many.own_columns_leak` do it.

    Args:
        train: Its training records, with true labels.
        asked: Records to predict.
        task: What is predicted, and by which figure.
        seed: Decides the sample, the folds and the models' randomness.

    Raises:
        DataError: If there are too few records, the loss's figure cannot be measured of another model, or a model
            cannot be fitted to these columns.
    """
    assert train.labels is not None, "the label owner's"
    rows = _used(train, task, seed)
    truth = train.labels[rows.to(train.labels.device)].cpu()
    binary = task.name == "binary"
    matrix = _matrix(train.columns.rows(rows), asked.columns, codes=binary)
    fields = train.columns.categorical.shape[1]
    # Beyond the training records nothing is known, and nothing is fitted to it.
    labels = np.concatenate([truth.numpy(), np.zeros(asked.count, truth.numpy().dtype)])
    rounds = own_columns.ROUNDS
    key = key_of(matrix, labels, rows.numel(), fields, seed, rounds) + repr((task.name, task.metric)).encode()
    if key not in _fitted:
        predict = _predicting(matrix, labels, task, fields=fields, seed=seed)
        _fitted[key] = _better(predict, truth, asked.count, task, seed)
    _fitted[key] = _fitted.pop(key)  # those used last stay
    if len(_fitted) > _MOST_FITTED:
        del _fitted[next(iter(_fitted))]
    return _fitted[key]


def _used(train: Records, task: Task, seed: int) -> Tensor:
    """Return positions of the training records that models are fitted to."""
    assert train.labels is not None, "the label owner's"
    if task.name == "binary":
        held = train.judged  # NaN, of neither class, where there is a dummy
        assert held is not None, "there are labels"
        found = torch.from_numpy(drawn_of_classes(held, seed))
        least = [int((held == label).sum()) for label in (0, 1)]
        if min(least) < FOLDS:
            raise DataError(f"each class needs at least {FOLDS} training records, got {least}")
        return found
    real = torch.arange(train.count) if train.real is None else train.real.cpu().nonzero()[:, 0]
    if len(real) < 2 * FOLDS:
        raise DataError(f"expected at least {2 * FOLDS} training records, got {len(real)}")
    return real[drawn(len(real), seed)]


def _matrix(fitted: Columns, asked: Columns, *, codes: bool) -> Matrix:
    """Return the columns of both, one behind the other; categories as codes, or each as a column of its own."""
    both = Columns(*(torch.cat([own.cpu(), other.cpu()]) for own, other in zip(fitted, asked, strict=True)))
    return np.concatenate([both.numeric.numpy(), both.categorical.numpy()], axis=1) if codes else numbers_of(both)


def _predicting(matrix: Matrix, labels: Matrix, task: Task, *, fields: int, seed: int) -> Predict:
    if task.name == "binary":
        return predicting(matrix, labels.astype(np.int64), fields=fields, seed=seed)
    numbers = np.asarray(matrix, np.float64)
    if task.classes is not None:
        return predicting_classes(numbers, labels.astype(np.int64), task.classes, seed)
    return predicting_numbers(numbers, labels.astype(np.float64), seed, task.loss.family)


def _better(predict: Predict, truth: Tensor, asked: int, task: Task, seed: int) -> OwnModel:
    count = truth.numel()
    folds = folds_of(truth.numpy().astype(np.int64), seed) if task.name == "binary" else number_folds(count, seed)
    try:
        found = {name: _scores(scores) for name, scores in out_of_fold(folds, predict).items()}
        asked_for = predict(_rows(0, count), _rows(count, count + asked))
    except (ValueError, ArithmeticError) as error:  # of scikit-learn: columns or labels that no model can be fitted to
        raise DataError(f"no model can be fitted to these columns: {error}") from error
    figures = {name: _figure(task, scores, truth) for name, scores in found.items()}
    best = max(figures, key=lambda name: figures[name])
    return OwnModel(best, _scores(asked_for[best]))


def _rows(start: int, end: int) -> Rows:
    return np.arange(start, end)


def _scores(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float64))


def _figure(task: Task, scores: Tensor, truth: Tensor) -> float:
    found = task.measure_scores(scores, truth)
    if found is None:
        raise DataError(f"the metric {task.metric!r} of the loss is measured of the joint model's outputs only")
    return found
