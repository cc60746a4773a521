"""The AUC that each kind of claim allows, against the area that its trade-off of errors leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats

from splitvfl.claims import (
    DetectionError,
    GaussianDP,
    Guarantee,
    PureDP,
    auc_of_detection_error,
    auc_of_epsilon,
    auc_of_mu,
    guarantee_of,
    tightest,
)
from splitvfl.errors import ArgumentError

Errors = npt.NDArray[np.float64]

ANSWERS = Guarantee(0.60, "run", "asymmetric-response")
NOISE = Guarantee(0.64, "run", "record-gaussian")


def _area(trade_off: Callable[[Errors], Errors]) -> float:
    """Return the area under the curve of true against false positives that a trade-off of errors leaves."""
    false = (np.arange(200_000) + 0.5) / 200_000
    return float(np.mean(1.0 - trade_off(false)))


@pytest.mark.parametrize("error", [0.0, 0.1, 0.4, 0.5])
def test_the_auc_of_a_detection_error_is_the_area_of_its_trade_off(error: float) -> None:
    assert auc_of_detection_error(error) == pytest.approx(
        _area(lambda false: np.maximum(0.0, 2.0 * error - false)), abs=1e-5
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 4.0])
def test_the_auc_of_epsilon_is_the_area_of_its_trade_off(epsilon: float) -> None:
    def trade_off(false: Errors) -> Errors:
        steep, flat = 1.0 - np.exp(epsilon) * false, np.exp(-epsilon) * (1.0 - false)
        found: Errors = np.maximum(0.0, np.maximum(steep, flat))
        return found

    assert auc_of_epsilon(epsilon) == pytest.approx(_area(trade_off), abs=1e-4)


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
def test_the_auc_of_mu_is_the_area_of_its_trade_off(mu: float) -> None:
    def trade_off(false: Errors) -> Errors:
        found: Errors = scipy.stats.norm.cdf(scipy.stats.norm.isf(false) - mu)
        return found

    assert auc_of_mu(mu) == pytest.approx(_area(trade_off), abs=1e-4)


def test_equal_detection_errors_are_no_equal_aucs() -> None:
    # 60 of 100: randomised labels of L = 0.4, and Gaussian noise of the same detection error.
    mu = -2.0 * float(scipy.stats.norm.ppf(0.4))
    assert auc_of_epsilon(math.log(0.6 / 0.4)) == pytest.approx(0.60)
    assert auc_of_mu(mu) == pytest.approx(0.640, abs=5e-4)
    assert auc_of_detection_error(0.4) == pytest.approx(0.68)


def test_a_guarantee_of_the_run_is_tighter_than_any_of_a_message() -> None:
    of_message = Guarantee(0.51, "message", "a")
    assert tightest(of_message, NOISE, ANSWERS) == ANSWERS
    assert tightest(of_message, replace(ANSWERS, void=("early stopping",))) == of_message
    assert tightest() is None


@pytest.mark.parametrize(
    ("claim", "auc"),
    [
        (GaussianDP(1.0, per="run"), auc_of_mu(1.0)),
        (PureDP(1.0), auc_of_epsilon(1.0)),
        (DetectionError(0.4), 0.68),
        (DetectionError(0.4, auc=0.6), 0.6),
        (DetectionError(0.5), 0.5),
    ],
)
def test_a_claim_guarantees_its_own_auc_where_it_states_one(
    claim: GaussianDP | PureDP | DetectionError, auc: float
) -> None:
    found = guarantee_of(claim, "x", void=("early stopping",))
    assert found.auc == pytest.approx(auc)
    assert (found.scope, found.source, found.of_run) == (claim.per, "x", False)


def test_no_guarantee_is_below_a_guess() -> None:
    with pytest.raises(ArgumentError, match=r"from 0\.5 to 1"):
        replace(ANSWERS, auc=0.4)
