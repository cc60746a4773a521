"""Figures of attacks over several trainings, and what a guarantee allows."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy import optimize, stats

from splitvfl.audit import audit_defense
from splitvfl.audit.attacks import figure_of, reading_epochs, right_guesses, standardised, together
from splitvfl.audit.ceilings import error_ceiling, gaussian_ceiling, pure_ceiling, right_allowed
from splitvfl.defenses import GaussianIR, Isotropic
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Defense
from splitvfl.privacy.gaussian_dp import gaussian_mu_delta

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("few_rounds")


def test_a_figure_is_a_mean_with_the_t_interval_of_scipy() -> None:
    values = [0.52, 0.61, 0.58, 0.66]
    found = figure_of([*values, None, math.nan], confidence=0.99)
    low, high = stats.t.interval(0.99, 3, loc=np.mean(values), scale=stats.sem(values))
    assert found is not None
    assert (found.mean, found.low, found.high, found.trainings) == pytest.approx((np.mean(values), low, high, 4))


def test_an_interval_ends_where_shares_end_and_two_trainings_have_none() -> None:
    wide = figure_of([0.1, 0.5, 0.9], confidence=0.95)
    assert wide is not None
    assert (wide.low, wide.high) == (0.0, 1.0)
    single = figure_of([0.7], confidence=0.95)
    assert single is not None
    assert (single.low, single.high) == (None, None)
    # Two shares of a few coins are equal in one of ten pairs of trainings: an interval of no width would hold nothing.
    pair = figure_of([0.6, 0.6], confidence=0.95)
    assert pair is not None
    assert (pair.mean, pair.low, pair.high, pair.trainings) == (0.6, None, None, 2)
    assert figure_of([None, math.nan], confidence=0.95) is None


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
def test_gaussian_ceilings_are_those_of_the_best_thresholds(mu: float) -> None:
    thresholds = np.linspace(-9.0, 12.0, 20_001)
    hits, alarms = stats.norm.sf(thresholds, loc=mu), stats.norm.sf(thresholds)
    found = gaussian_ceiling(mu, "")
    # Thresholds are .001 apart: the best one is off by less than its square.
    assert found.right == pytest.approx(float((0.5 * (1.0 + hits - alarms)).max()), abs=1e-6)
    assert found.auc == pytest.approx(float(np.trapezoid(hits[::-1], alarms[::-1])), abs=1e-6)
    assert gaussian_ceiling(mu, "", unmatched=0.7).right == min(1.0, found.right + 0.7)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_no_two_answers_within_epsilon_are_told_apart_better(epsilon: float) -> None:
    shares = np.linspace(0.0, 1.0, 2001)
    one, other = shares[:, None], shares[None, :]
    ratio = math.exp(epsilon) * (1.0 + 1e-12)
    allowed = (one <= ratio * other) & (1 - other <= ratio * (1 - one)) & (one >= other)
    best = float((0.5 * (1.0 + one - other))[allowed].max())
    found = pure_ceiling(epsilon, "")
    assert best <= found.right + 1e-9
    assert found.right == pytest.approx(best, abs=1e-3)  # of a grid of 2000 steps
    # Of two answers the AUC is the same.
    assert found.auc == found.right


def test_a_claim_allows_what_its_quantity_says() -> None:
    assert right_allowed("ε", 1.0) == pure_ceiling(1.0, "").right
    assert right_allowed("μ", 1.0) == NormalDist().cdf(0.5)
    assert right_allowed("detection error", 0.4) == error_ceiling(0.4, "").right == 0.6
    mu = optimize.brentq(lambda value: gaussian_mu_delta(value, 2.0) - 1e-3, 1e-3, 10.0)
    for quantity, value in (("δ at ε 2", 1e-3), ("ε at δ 0.001", 2.0)):
        assert right_allowed(quantity, value) == pytest.approx(NormalDist().cdf(mu / 2.0), abs=1e-6)
    assert right_allowed("δ at ε 2", 1.0) == 1.0
    assert right_allowed("norm", 1.0) is None
    assert right_allowed("ε", None) is None
    assert right_allowed("δ at ε 2", 0.0) is None, "of Gaussian noise there is none"


def test_noise_on_rows_that_nothing_bounds_limits_nothing() -> None:
    def allowed(defense: Defense) -> list[float | None]:
        return [claim.as_json()["right"] for claim in audit_defense(defense, draws=400).claims]

    assert set(allowed(Isotropic(sigma=1.0))) == {None}
    # Rows of length 1 at most are 2 apart: half of that in units of the noise, and half of that again.
    assert NormalDist().cdf(0.5) in allowed(GaussianIR(clip=1.0, sigma=2.0))


def test_it_is_read_after_the_first_the_tenth_and_the_last_epoch() -> None:
    assert [reading_epochs(number) for number in (1, 2, 10, 11)] == [(1,), (1, 2), (1, 10), (1, 10, 11)]
    with pytest.raises(ArgumentError, match="at least 1"):
        reading_epochs(0)


def test_right_guesses_are_counted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    scores, coins = rng.standard_normal(31), rng.integers(0, 2, 31)
    middle = sorted(scores)[15]
    right = sum((score > middle) == bool(coin) for score, coin in zip(scores, coins, strict=True))
    assert right_guesses(scores, coins) == right / 31
    assert right_guesses(-scores, 1 - coins) == pytest.approx(right / 31, abs=1 / 31)  # but for the middle itself


def test_scores_that_are_put_together_have_no_unit() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((2, 40))
    np.testing.assert_allclose(together([3.0 * one + 7.0, other]), together([one, other]), rtol=1e-12)
    assert not standardised(np.ones(3)).any()
    # Two readers with noise of their own read more together: √2 of the signal, as it is in the mean.
    signal = np.repeat([0.0, 1.0], 2000)
    parts = [signal + rng.standard_normal(4000) for _ in range(2)]
    alone, joint = (right_guesses(scores, signal.astype(int)) for scores in (parts[0], together(parts)))
    assert alone == pytest.approx(NormalDist().cdf(0.5), abs=0.03)  # four standard errors of 4000 guesses
    assert joint == pytest.approx(NormalDist().cdf(0.5 * math.sqrt(2.0)), abs=0.03)
