"""Any release put to the test by draws: the textbook's Gaussian noise beyond its range, and noise that is enough."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from splitvfl.audit import ClaimAudit, audit_release
from splitvfl.privacy import gaussian_sigma
from tests.audit.seeds import SEEDS

MANY, FEW = 10_000_000, 40_000


def textbook(epsilon: float, delta: float) -> float:
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def audited(sigma: float, delta: float, *, seed: int, draws: int, gaussian: bool = False) -> ClaimAudit:
    rng = np.random.default_rng(seed)

    def world(mean: float) -> Callable[[int], np.ndarray]:
        return lambda number: mean + sigma * rng.standard_normal(number)

    return audit_release(world(0.0), world(1.0), epsilon=10.0, delta=delta, draws=draws, gaussian=gaussian)


@pytest.mark.slow(reason="ten million draws of each world")
def test_counting_refutes_the_textbooks_gaussian_at_ten() -> None:
    # Two seconds for ten million draws of each world: fewer would not do for every seed. Of few seeds, one is tried.
    for seed in range(SEEDS if SEEDS >= 20 else 1):
        found = audited(textbook(10.0, 0.1), 0.1, seed=seed, draws=MANY)
        assert found.verdict == "violated"
        assert found.bound is not None
        # Its δ is .406 at 10: the exact ε at δ = .1 is 14.7.
        assert 10.0 < found.bound < 14.7


def test_a_bound_of_mu_refutes_it_with_few_draws_and_says_what_it_assumes() -> None:
    for seed in range(SEEDS):
        found = audited(textbook(10.0, 0.01), 0.01, seed=seed, draws=FEW, gaussian=True)
        assert found.verdict == "violated"
        assert found.why[-1].endswith("if noise is Gaussian.")
        assert found.calculated is not None
        assert "if the noise is Gaussian" in found.calculated.by
        # Counting so few draws refutes nothing above ln(20,000 / 3.7) or so.
        assert found.bound is not None
        assert found.refutable is not None
        assert found.bound < found.refutable < 10.0
        assert audited(textbook(10.0, 0.01), 0.01, seed=seed, draws=FEW).verdict == "not refuted"


@pytest.mark.parametrize("gaussian", [False, True])
def test_the_analytic_gaussian_is_not_refuted(gaussian: bool) -> None:
    sigma = gaussian_sigma(10.0, 0.1, sensitivity=1.0)
    for seed in range(SEEDS):
        assert audited(sigma, 0.1, seed=seed, draws=FEW, gaussian=gaussian).verdict == "not refuted"


def test_two_bounds_may_err_half_as_often_each() -> None:
    for gaussian, each in ((False, 0.95), (True, 0.975)):
        counted = audited(1.0, 0.1, seed=0, draws=200, gaussian=gaussian).measured
        assert counted is not None
        assert counted.confidence == pytest.approx(each, abs=1e-9)


def test_noise_that_is_not_gaussian_is_counted() -> None:
    rng = np.random.default_rng(0)
    found = audit_release(
        lambda number: rng.laplace(0.0, 0.5, number), lambda number: rng.laplace(1.0, 0.5, number), epsilon=1.9
    )
    assert found.verdict == "violated"  # it is 2
    assert found.bound is not None
    assert 1.9 < found.bound < 2.0
    assert found.claimed == 1.9
    assert found.as_json()["event"] is not None
