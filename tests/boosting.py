"""Quicker models of own columns than users have, for tests that ask only whether own columns were judged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

_FEW = 3

# What was fitted in few rounds, apart from what was fitted in as many as users have.
_of_few_rounds: tuple[dict[bytes, Any], dict[bytes, float]] = ({}, {})
_of_quick_models: tuple[dict[bytes, Any], dict[bytes, float]] = ({}, {})


@contextmanager
def few_rounds_of_boosting() -> Iterator[None]:
    """Judge what own columns predict by few rounds, in this process, for the length of a block."""
    # Large libraries are imported where they are needed: the process that only hands out tests needs none.
    from splitvfl.leakage import own_columns, own_columns_many

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_columns, "ROUNDS", _FEW)
        patch.setattr(own_columns_many, "ROUNDS", _FEW)
        patch.setattr(own_columns, "_measured", _of_few_rounds[0])
        patch.setattr(own_columns, "_measured_alone", _of_few_rounds[1])
        yield


@contextmanager
def quick_models() -> Iterator[None]:
    """Judge what own columns predict by two systems of linear equations, in this process, for the length of a block.

    Intervals of figures are those of a hundred draws.
    """
    from splitvfl.leakage import own_columns, own_columns_many
    from splitvfl.learning import bootstrap

    with pytest.MonkeyPatch.context() as patch:
        for module in (own_columns, own_columns_many):
            patch.setattr(module, "classifiers", _classifiers)
        patch.setattr(own_columns_many, "_regressors", _regressors)
        patch.setattr(own_columns, "TargetEncoder", MeanOfCategory)
        for draws in ("_MOST_DRAWS", "_FEWEST_DRAWS"):
            patch.setattr(bootstrap, draws, 100)
        patch.setattr(own_columns, "_measured", _of_quick_models[0])
        patch.setattr(own_columns, "_measured_alone", _of_quick_models[1])
        yield


def boosting_as_here() -> Callable[[], AbstractContextManager[None]]:
    """Return what lets another process judge own columns by the models by which this one does now."""
    module = sys.modules.get("splitvfl.leakage.own_columns")
    if module is None:
        return nullcontext
    if module.classifiers is _classifiers:
        return quick_models
    return few_rounds_of_boosting if module.ROUNDS == _FEW else nullcontext


class Linear:
    """Ridge regression of numbers, or of the flags of classes.

    Args:
        strength: Of the penalty, beside a sum over records whose columns have variance one.
        least: Least number that is predicted.
    """

    def __init__(self, strength: float, least: float = -np.inf) -> None:
        self.strength, self.least = strength, least

    def _solve(self, inputs: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
        self._middle, self._unit = inputs.mean(axis=0, dtype=np.float64), inputs.std(axis=0, dtype=np.float64)
        self._unit[self._unit == 0.0] = 1.0
        self._mean = wanted.mean(axis=0)
        columns = (inputs - self._middle) / self._unit
        squares = columns.T @ columns + self.strength * np.eye(columns.shape[1])
        self._weights = np.linalg.solve(squares, columns.T @ (wanted - self._mean))

    def fit(self, inputs: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> Linear:
        self._solve(inputs, numbers)
        return self

    def predict(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        found = (inputs - self._middle) / self._unit @ self._weights + self._mean
        return np.maximum(found, self.least)


class LinearOfClasses(Linear):
    """The same of classes: probabilities are higher where a flag comes out higher."""

    def fit(self, inputs: npt.NDArray[Any], classes: npt.NDArray[Any]) -> LinearOfClasses:
        self.classes_ = np.unique(classes)
        self._solve(inputs, (classes[:, None] == self.classes_).astype(np.float64))
        return self

    def predict_proba(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        weights = np.exp(4.0 * self.predict(inputs))
        return weights / weights.sum(axis=1, keepdims=True)


class MeanOfCategory:
    """The mean label of a category's records, drawn towards that of all; takes the place of sklearn's encoder."""

    def __init__(self, target_type: str) -> None:
        assert target_type == "binary"

    def fit(self, codes: npt.NDArray[Any], labels: npt.NDArray[Any]) -> MeanOfCategory:
        self._mean = labels.mean()
        self._found = []
        for column in codes.T:
            values, places = np.unique(column, return_inverse=True)
            means = (np.bincount(places, labels) + self._mean) / (np.bincount(places) + 1.0)
            self._found.append((values, means))
        return self

    def transform(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        encoded = np.full(codes.shape, self._mean, np.float64)
        for number, (values, means) in enumerate(self._found):
            places = np.searchsorted(values, codes[:, number]).clip(max=values.size - 1)
            known = values[places] == codes[:, number]
            encoded[known, number] = means[places[known]]
        return encoded


def _classifiers(seed: int) -> dict[str, Any]:
    return {"logistic regression": LinearOfClasses(1.0), "gradient boosting": LinearOfClasses(1000.0)}


def _regressors(family: str, records: int, seed: int) -> dict[str, Any]:
    least = 1e-3 if family else -np.inf  # means are above 0
    return {
        f"{family or 'ridge'} regression": Linear(1.0, least),
        "gradient boosting": Linear(1000.0, least),
    }
