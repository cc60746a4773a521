"""Estimators pass what scikit-learn checks of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from splitvfl.sklearn import SplitClassifier, SplitRegressor

SMALL: dict[str, Any] = {"model": {"name": "mlp", "bottom": [8]}, "epochs": 2, "learning_rate": 0.1, "batch_size": 16}

# What scikit-learn checks and these do not pass, with the reason: nothing.
EXPECTED_FAILURES: dict[str, str] = {}


@parametrize_with_checks(
    [SplitClassifier(**SMALL, audit=False), SplitRegressor(**SMALL, audit=False)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_what_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
