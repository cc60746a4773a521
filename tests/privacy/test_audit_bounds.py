"""Lower bounds of a privacy loss, against closed forms, published figures and samples of known laws."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

from splitvfl.errors import ArgumentError
from splitvfl.privacy import gaussian_mu_delta
from splitvfl.privacy.audit import (
    Direction,
    Objective,
    delta_bound,
    epsilon_bound,
    error_bound,
    largest_refutable_epsilon,
    measure,
    mu_bound,
    one_run_epsilon,
    one_run_refutes,
    share_bounds,
)

EVENT = Direction(800, 1000, 300, 2000)
LOW, HIGH = beta.ppf(0.025, 800, 201), beta.ppf(0.975, 301, 1700)  # Clopper and Pearson's, from the textbook


def test_bounds_of_a_share_are_those_of_the_binomial_law() -> None:
    for hits, draws in ((0, 50), (1, 50), (25, 50), (49, 50), (50, 50)):
        low, high = share_bounds(hits, draws, lower_alpha=0.03, upper_alpha=0.01)
        # At the bound, so many or more (or fewer) happen with exactly the probability that it may err with.
        assert (low == 0) if hits == 0 else math.isclose(binom.sf(hits - 1, draws, low), 0.03, rel_tol=1e-6)
        assert (high == 1) if hits == draws else math.isclose(binom.cdf(hits, draws, high), 0.01, rel_tol=1e-6)


def test_what_one_event_proves_is_its_formula() -> None:
    assert epsilon_bound(EVENT) == pytest.approx(math.log(LOW / HIGH))
    assert epsilon_bound(EVENT, delta=0.1) == pytest.approx(math.log((LOW - 0.1) / HIGH))
    assert epsilon_bound(EVENT, delta=0.9) == 0
    assert delta_bound(EVENT, epsilon=1.0) == pytest.approx(LOW - math.e * HIGH)
    normal = NormalDist()
    assert mu_bound(EVENT) == pytest.approx(normal.inv_cdf(LOW) - normal.inv_cdf(HIGH))
    assert error_bound(EVENT) == pytest.approx(0.5 * (1 - LOW + HIGH))


def test_an_event_that_is_no_likelier_proves_nothing() -> None:
    nothing = Direction(500, 1000, 500, 1000)
    assert epsilon_bound(nothing) == mu_bound(nothing) == delta_bound(nothing, epsilon=0.1) == 0
    assert error_bound(nothing) == 0.5


def test_the_largest_epsilon_grows_with_the_logarithm_of_the_draws() -> None:
    # The specification: about ln(N / 3.7), 7.9 at 10^4 and 12.5 at 10^6.
    for draws in (10_000, 1_000_000):
        assert largest_refutable_epsilon(draws) == pytest.approx(math.log(draws / 3.7), abs=0.01)


@pytest.mark.parametrize(
    ("right", "guesses", "epsilon"),
    [(200, 200, 4.2), (1000, 1000, 5.8), (5000, 5000, 7.4), (120, 200, 0.16), (600, 1000, 0.30), (3000, 5000, 0.36)],
)
def test_one_run_proves_what_is_published(right: int, guesses: int, epsilon: float) -> None:
    assert one_run_epsilon(right=right, guesses=guesses) == pytest.approx(epsilon, abs=0.05 if epsilon > 1 else 0.005)


def test_one_run_with_delta_is_the_formula_summed_one_by_one() -> None:
    epsilon, v, r, m, delta = 1.0, 90, 100, 300, 1e-4
    s = math.exp(epsilon) / (1 + math.exp(epsilon))
    pmf = [math.comb(r, k) * s**k * (1 - s) ** (r - k) for k in range(r + 1)]
    largest = max(sum(pmf[v - i : v]) / i for i in range(1, v + 1))
    p_value = sum(pmf[v:]) + 2 * m * delta * largest
    for slack, refuted in ((1e-9, True), (-1e-9, False)):
        found = one_run_refutes(epsilon, right=v, guesses=r, canaries=m, delta=delta, confidence=1 - p_value - slack)
        assert found is refuted
    assert one_run_epsilon(right=v, guesses=r, canaries=m, delta=delta) < one_run_epsilon(right=v, guesses=r)


def test_guessing_proves_nothing_of_a_run() -> None:
    assert one_run_epsilon(right=50, guesses=100) == 0


@pytest.mark.parametrize(("right", "guesses", "canaries"), [(11, 10, None), (5, 10, 9), (-1, 10, None)])
def test_more_right_guesses_than_guesses_are_refused(right: int, guesses: int, canaries: int | None) -> None:
    with pytest.raises(ArgumentError, match="right <= guesses <= canaries"):
        one_run_epsilon(right=right, guesses=guesses, canaries=canaries)


@pytest.mark.parametrize("seed", range(3))
def test_gaussian_worlds_are_as_far_apart_as_they_are(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def world(mean: float, n: int) -> np.ndarray:
        return mean + rng.standard_normal(n)

    for objective, true in (
        (Objective("mu"), 1.5),
        (Objective("delta", 1.0), gaussian_mu_delta(1.5, 1.0)),
        (Objective("advantage"), 2 * NormalDist().cdf(0.75) - 1),
    ):
        found = measure(lambda n: world(0, n), lambda n: world(1.5, n), objective, draws=60_000, confidence=0.999)
        # Below it, as it is a bound, and by a few of its standard errors: 8 of .004 where it is δ.
        assert 0.85 * true < found.bound < true


def test_an_interval_is_found_where_no_threshold_tells_anything() -> None:
    rng = np.random.default_rng(0)

    def peaked(n: int) -> np.ndarray:
        return np.where(rng.random(n) < 0.5, 0.1, 1.0) * rng.uniform(-1.0, 1.0, n)

    # Within .1 of 0 there are .55 of these, and .1 of uniform numbers.
    found = measure(peaked, lambda n: rng.uniform(-1.0, 1.0, n), Objective("epsilon"), draws=200_000)
    assert 0.97 * math.log(5.5) < found.bound < math.log(5.5)
    assert found.statistic == "ratio"


def test_an_atom_is_found() -> None:
    rng = np.random.default_rng(0)
    # Randomised response of ε = 2, hidden in noise that both worlds have.
    keep = math.exp(2) / (1 + math.exp(2))

    def world(value: float, n: int) -> np.ndarray:
        answers = np.where(rng.random(n) < keep, value, 1 - value)
        return np.where(rng.random(n) < 0.5, answers / 3, rng.random(n))

    found = measure(lambda n: world(0.0, n), lambda n: world(1.0, n), Objective("epsilon"), draws=100_000)
    assert 1.9 < found.bound < 2.0


def test_wide_messages_whose_difference_tells_are_told_apart() -> None:
    rng = np.random.default_rng(0)

    def world(value: float, n: int) -> np.ndarray:
        noise = rng.standard_normal(n)  # the same twice: neither entry tells more than noise of that size lets through
        return np.stack([noise, value + noise], axis=1)

    found = measure(lambda n: world(-0.5, n), lambda n: world(0.5, n), Objective("mu"), draws=4000)
    assert found.bound > 0.85 * found.ceiling  # a bin that none of the draws that teach fell into may be missed


def test_wide_messages_of_other_spread_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    found = measure(
        lambda n: rng.standard_normal((n, 8)), lambda n: 2 * rng.standard_normal((n, 8)), Objective("mu"), draws=8000
    )
    assert found.bound > 2.0


def test_true_bounds_are_seldom_overstated() -> None:
    rng = np.random.default_rng(7)
    # Two bounds a measurement, each right in 80 %, over 300 measurements of worlds of ε = 1 exactly.
    wrong = sum(
        measure(
            lambda n: rng.laplace(0.0, 1.0, n),
            lambda n: rng.laplace(1.0, 1.0, n),
            Objective("epsilon"),
            draws=400,
            confidence=0.8,
        ).bound
        > 1.0
        for _ in range(300)
    )
    # P[Bin(300, .2) > 86] < 1e-3 /2; conservative bounds err less often.
    assert wrong <= binom.isf(1e-3, 300, 0.2)


def test_identical_worlds_are_not_told_apart() -> None:
    rng = np.random.default_rng(3)
    found = [
        measure(rng.standard_normal, rng.standard_normal, Objective("mu"), draws=400, confidence=0.8).bound
        for _ in range(100)
    ]
    assert sum(bound > 0 for bound in found) <= binom.isf(1e-3, 100, 0.2)


def test_events_are_judged_on_draws_that_taught_and_chose_nothing() -> None:
    rng, asked = np.random.default_rng(0), []

    def world(n: int) -> np.ndarray:
        asked.append(n)
        return rng.standard_normal(n)

    event = measure(world, world, Objective("epsilon"), draws=401).event
    assert sorted(asked) == [100, 100, 100, 100, 201, 201]
    assert event.draws == event.other_draws == 201


def test_messages_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="NaN"):
        measure(lambda n: np.full(n, np.nan), np.zeros, Objective("mu"), draws=100)
    with pytest.raises(ArgumentError, match="one width"):
        measure(lambda n: np.zeros((n, 2)), np.zeros, Objective("mu"), draws=100)


def test_boosting_finds_what_no_other_test_of_wide_messages_does() -> None:
    rng = np.random.default_rng(0)

    def hidden(n: int) -> np.ndarray:
        # Which of eight equal parts one number is in says the sign of another one: each alone is as without it, and
        # their sums, squares and products nearly so.
        first, size = rng.standard_normal(n), np.abs(rng.standard_normal(n))
        signs = np.array([1, -1, -1, 1, -1, 1, 1, -1])
        return np.stack([first, size * signs[np.searchsorted(norm.ppf(np.arange(1, 8) / 8), first)]], axis=1)

    def plain(n: int) -> np.ndarray:
        return rng.standard_normal((n, 2))

    found = measure(hidden, plain, Objective("advantage"), draws=10_000)
    assert found.statistic == "boosted"
    assert 0.3 < found.bound < 0.5  # half of the plain ones have the sign that all hidden ones have
    without = measure(hidden, plain, Objective("advantage"), draws=10_000, boosting=False)
    assert without.bound < 0.15  # a sum of the two is not quite normal


def test_a_linear_test_is_chosen_where_it_suffices() -> None:
    rng = np.random.default_rng(0)

    def world(mean: float, n: int) -> np.ndarray:
        return mean + rng.standard_normal((n, 16))

    # Sixteen shifts of .3 are as one of 1.2, which no single entry shows.
    found = measure(lambda n: world(0.3, n), lambda n: world(0.0, n), Objective("mu"), draws=20_000)
    assert found.statistic == "linear"
    assert 1.0 < found.bound < 1.2


def test_millions_of_draws_are_judged_piece_by_piece() -> None:
    rng, asked = np.random.default_rng(0), []

    def world(n: int) -> np.ndarray:
        asked.append(n)
        return rng.integers(0, 2, n).astype(float)

    event = measure(world, world, Objective("epsilon"), draws=1_200_000).event
    # A quarter of a million teaches, a quarter of all chooses.
    assert event.draws == event.other_draws == 1_200_000 - 250_000 - 300_000
    assert sum(asked) == 2 * 1_200_000
    assert sorted(asked)[-3:] == [131_072, 250_000, 250_000]
