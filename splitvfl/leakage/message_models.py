"""What a party's features say of the messages it gets: models that messages taught, of records left out of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_MOST_FITTED = 20_000
_FOLDS = 5
# A leaf holds a fiftieth of the records, and no more than so many: noisy labels need large ones.
_TREES, _LEAF_SHARE, _LARGEST_LEAF = 25, 50, 20


def in_units(values: Floats) -> Floats:
    """Return values ``(n, a)`` less their mean, in units of their spread in all directions together."""
    apart = values - values.mean(axis=0) if len(values) else values
    spread = float(np.sqrt(np.square(apart).mean())) if apart.size else 0.0
    return apart / spread if spread > 0.0 else np.zeros_like(apart)


def taught_by_messages(
    numeric: npt.NDArray[np.float32], codes: Whole, messages: Floats, came: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Return what two models of the features predict of each record's message, ``(n, a)`` each.

    No record's own message enters what is predicted of it.

    Args:
        numeric: ``(n, d)``.
        codes: ``(n, f)``, categories.
        messages: ``(n, a)``.
        came: ``(n,)``, of which records any message came: only these are learned from.
    """
    # scikit-learn is slow to import, and most runs have no such attack.
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    generator = np.random.default_rng(0)
    folds = generator.permutation(len(messages)) % _FOLDS
    forest, ridge = np.zeros_like(messages), np.zeros_like(messages)
    for fold in range(_FOLDS):
        fitted, asked = np.flatnonzero((folds != fold) & came), np.flatnonzero(folds == fold)
        most = _MOST_FITTED * (_FOLDS - 1) // _FOLDS
        if len(fitted) > most:
            fitted = np.sort(generator.choice(fitted, most, replace=False))
        inputs, others = _encoded(numeric, codes, messages, fitted, asked)
        trees = ExtraTreesRegressor(
            _TREES,
            min_samples_leaf=int(np.clip(len(fitted) // _LEAF_SHARE, 2, _LARGEST_LEAF)),
            max_features=0.5,
            random_state=0,
        )
        line = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3.0, 3.0, 7)))
        for found, model in ((forest, trees), (ridge, line)):
            model.fit(inputs, messages[fitted] if messages.shape[1] > 1 else messages[fitted, 0])
            found[asked] = model.predict(others).reshape(len(asked), -1)
    return forest, ridge


def _encoded(
    numeric: npt.NDArray[np.float32], codes: Whole, messages: Floats, fitted: Whole, asked: Whole
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return inputs of the records to fit to, and of others: a category is the mean message of its fitted records.

    Of the records to fit to it is that of others among them, so that no model takes a record's own message for a code.
    """
    if not codes.shape[1]:
        return numeric[fitted], numeric[asked]
    from sklearn.preprocessing import TargetEncoder

    inputs: list[npt.NDArray[Any]] = [numeric[fitted]]
    others: list[npt.NDArray[Any]] = [numeric[asked]]
    places = np.arange(len(fitted)) % _FOLDS
    for axis in range(messages.shape[1]):
        encoder, own = TargetEncoder(target_type="continuous"), messages[fitted, axis]
        encoded = np.zeros(codes[fitted].shape)
        for fold in range(_FOLDS):
            known = places != fold
            encoded[~known] = encoder.fit(codes[fitted][known], own[known]).transform(codes[fitted][~known])
        inputs.append(encoded)
        others.append(encoder.fit(codes[fitted], own).transform(codes[asked]))
    return np.concatenate(inputs, axis=1), np.concatenate(others, axis=1)
