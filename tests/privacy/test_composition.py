from __future__ import annotations

import ast
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import splitvfl
from splitvfl.errors import ArgumentError
from splitvfl.privacy import (
    PrivacyLoss,
    gaussian_mu,
    gaussian_mu_delta,
    gaussian_mu_epsilon,
    k_fold_delta,
    k_fold_epsilon,
)

dp_accounting = pytest.importorskip("dp_accounting", exc_type=ImportError)


# Gaussian releases.


@pytest.mark.parametrize("mu", [0.01, 0.5, 1.0, 3.0, 10.0])
def test_a_gaussian_epsilon_is_where_the_two_normals_say(mu: float) -> None:
    for delta in (1e-9, 1e-5, 0.01):
        epsilon = gaussian_mu_epsilon(mu, delta)
        if epsilon:
            # Corollary 2.13 as printed, in scipy's normal distribution; cancellation costs it digits at 1e-9.
            slow = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
            assert slow == pytest.approx(delta, rel=1e-6)
            assert gaussian_mu(epsilon=epsilon, delta=delta) == pytest.approx(mu, rel=1e-9)
        else:
            assert 2 * norm.cdf(mu / 2) - 1 <= delta


def test_without_any_epsilon_delta_is_the_total_variation_of_two_normals() -> None:
    assert gaussian_mu_delta(0.7, 0.0) == pytest.approx(2 * norm.cdf(0.35) - 1, rel=1e-12)
    assert gaussian_mu_delta(0.0, 1.0) == 0.0
    assert gaussian_mu_delta(1.0, math.inf) == 0.0


def test_gaussian_rounds_compose_exactly_and_renyi_is_looser() -> None:
    sigmas = [2.0, 5.0, 3.0, 3.0]
    ours = PrivacyLoss()
    exact = dp_accounting.pld.PLDAccountant()
    renyi = dp_accounting.rdp.RdpAccountant()
    for sigma in sigmas:
        ours += PrivacyLoss.gaussian(1.0 / sigma)
        exact.compose(dp_accounting.GaussianDpEvent(sigma))
        renyi.compose(dp_accounting.GaussianDpEvent(sigma))

    found = ours.guarantee(1e-5)

    assert found.method.startswith("exact")
    # The accountant rounds losses up to multiples of 1e-4.
    assert found.epsilon == pytest.approx(exact.get_epsilon(1e-5), rel=1e-4)
    assert found.epsilon < renyi.get_epsilon(1e-5)
    assert ours.zcdp == pytest.approx(sum(1 / (2 * sigma**2) for sigma in sigmas), rel=1e-12)


# Pure ε, k times.


def slow_k_fold_delta(epsilon: float, times: int, total: float) -> float:
    """All 2^k answers of randomised response, one by one."""
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    found = 0.0
    for answers in itertools.product((True, False), repeat=times):
        one, other = (math.prod(keep if answer == world else 1 - keep for answer in answers) for world in (True, False))
        found += max(0.0, one - math.exp(total) * other)
    return found


@settings(max_examples=60, deadline=None)
@given(epsilon=st.floats(0.01, 3.0), times=st.integers(1, 9), share=st.floats(0.0, 1.1))
def test_k_rounds_are_as_bad_as_k_answers_of_randomised_response(epsilon: float, times: int, share: float) -> None:
    total = share * times * epsilon

    assert k_fold_delta(epsilon, times, total) == pytest.approx(
        slow_k_fold_delta(epsilon, times, total), rel=1e-9, abs=1e-15
    )


def test_the_formula_of_the_specification_at_its_own_points() -> None:
    epsilon, k = 0.3, 7
    for i in range(k // 2 + 1):
        printed = (
            sum(math.comb(k, j) * (math.exp((k - j) * epsilon) - math.exp((k - 2 * i + j) * epsilon)) for j in range(i))
            / (1 + math.exp(epsilon)) ** k
        )

        assert k_fold_delta(epsilon, k, (k - 2 * i) * epsilon) == pytest.approx(printed, rel=1e-10, abs=1e-15)


@pytest.mark.parametrize(("epsilon", "times"), [(0.1, 100), (1.0, 5), (0.02, 1000)])
def test_k_rounds_equal_dp_accounting(epsilon: float, times: int) -> None:
    # The worst of all mechanisms that are ε-private is randomised response, for neighbours of which one is replaced.
    response = dp_accounting.pld.privacy_loss_distribution.from_randomized_response(
        2 / (1 + math.exp(epsilon)),
        2,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
        value_discretization_interval=epsilon / 1000,
    )
    theirs = response.self_compose(times).get_epsilon_for_delta(1e-5)

    # They round every loss up to a multiple of a thousandth of ε.
    ours = k_fold_epsilon(epsilon, times, 1e-5)
    assert ours * (1 - 1e-9) <= theirs <= ours + times * epsilon / 1000


def test_k_rounds_without_any_delta_add_up() -> None:
    assert k_fold_epsilon(0.2, 7, 0.0) == pytest.approx(1.4)
    assert k_fold_epsilon(0.2, 1, 1e-300) == pytest.approx(0.2)
    assert k_fold_epsilon(0.001, 1, 0.1) == 0.0


# Laplace noise, and mixtures.


def test_one_laplace_release_is_exact() -> None:
    loss = PrivacyLoss.laplace_releases(1.5)
    x = np.linspace(-40, 40, 800_001)
    density, other = 0.75 * np.exp(-1.5 * np.abs(x)), 0.75 * np.exp(-1.5 * np.abs(x - 1))
    slow = np.maximum(density - math.exp(0.4) * other, 0).sum() * 1e-4

    assert loss.delta(0.4) == pytest.approx(slow, rel=1e-4)  # of the grid
    assert loss.delta(loss.guarantee(0.01).epsilon) == pytest.approx(0.01)
    assert loss.guarantee(0.9).epsilon == 0.0


@pytest.mark.parametrize(
    ("loss", "events"),
    [
        (PrivacyLoss.laplace_releases(0.1, 100), [("LaplaceDpEvent", 10.0, 100)]),
        (
            PrivacyLoss.laplace_releases(0.2, 20) + PrivacyLoss.gaussian(0.5),
            [("LaplaceDpEvent", 5.0, 20), ("GaussianDpEvent", 2.0, 1)],
        ),
    ],
)
def test_mixtures_equal_dp_accounting_and_are_below_the_sum(
    loss: PrivacyLoss, events: list[tuple[str, float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, renyi = dp_accounting.pld.PLDAccountant(), dp_accounting.rdp.RdpAccountant()
    for name, scale, times in events:
        exact.compose(getattr(dp_accounting, name)(scale), times)
        renyi.compose(getattr(dp_accounting, name)(scale), times)

    found = loss.guarantee(1e-5)
    # What the interpreter does where a module is not there.
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    without = loss.guarantee(1e-5)

    assert "dp-accounting" in found.method
    assert found.epsilon == pytest.approx(exact.get_epsilon(1e-5), rel=1e-3)
    assert found.epsilon < renyi.get_epsilon(1e-5)
    assert "not installed" in without.method or len(events) == 1
    assert without.epsilon >= found.epsilon
    assert loss.delta(without.epsilon) == pytest.approx(1e-5, rel=1e-6)


def test_without_the_library_laplace_rounds_count_as_pure_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)

    found = PrivacyLoss.laplace_releases(0.1, 100).guarantee(1e-5)

    assert found.epsilon == pytest.approx(k_fold_epsilon(0.1, 100, 1e-5))
    assert "looser" in found.method
    assert "not installed" in found.method


def test_different_pure_rounds_are_no_worse_than_their_sum() -> None:
    loss = PrivacyLoss.pure_releases(0.5, 3) + PrivacyLoss.pure_releases(0.7)

    assert loss.pure == ((0.5, 3), (0.7, 1))
    assert k_fold_epsilon(0.5, 4, 1e-6) <= loss.guarantee(1e-6).epsilon <= 2.2


def test_the_library_is_imported_in_one_module_only() -> None:
    root = Path(splitvfl.__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    naming = {
        path.name
        for path, text in texts.items()
        if "dp_accounting" in text
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Import) and any(each.name.startswith("dp_accounting") for each in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dp_accounting"))
        or (isinstance(node, ast.Constant) and str(node.value).startswith("dp_accounting."))
    }

    assert naming == {"loss_distributions.py"}


# What losses do.


def test_a_sampler_that_is_not_exact_costs_its_distance_once_on_either_side() -> None:
    exact = PrivacyLoss.gaussian(0.5)
    rough = exact + PrivacyLoss(distance=1e-7)

    assert rough.delta(1.0) == pytest.approx(exact.delta(1.0) + (1 + math.e) * 1e-7, rel=1e-12)
    epsilon = rough.guarantee(1e-5).epsilon
    assert epsilon > exact.guarantee(1e-5).epsilon
    assert rough.delta(epsilon) <= 1e-5
    assert rough.delta(epsilon * (1 - 1e-5)) > 1e-5
    assert rough.guarantee(1e-7).epsilon == math.inf


def test_a_group_moves_the_noise_by_so_many_sensitivities() -> None:
    loss = PrivacyLoss.gaussian(0.5) + PrivacyLoss.laplace_releases(0.1, 3)

    group = loss.of_group(4)

    assert (group.mu, group.laplace) == (2.0, ((0.4, 3),))


def test_rounds_repeat() -> None:
    loss = (PrivacyLoss.gaussian(0.5) + PrivacyLoss.pure_releases(0.1, 2)).repeated(9)

    assert (loss.mu, loss.pure) == (1.5, ((0.1, 18),))
    assert loss.repeated(0) == PrivacyLoss()
    assert loss.repeated(0).guarantee(1e-5).epsilon == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PrivacyLoss(mu=-1.0), "mu must be finite"),
        (lambda: PrivacyLoss(distance=2.0), "distance must lie"),
        (lambda: PrivacyLoss.pure_releases(0.0), "epsilon must be finite and above 0"),
        (lambda: PrivacyLoss.laplace_releases(1.0, 0), "how often must be"),
        (lambda: PrivacyLoss.gaussian(1.0).guarantee(0.0), "delta must lie"),
        (lambda: PrivacyLoss.gaussian(1.0).delta(-1.0), "epsilon must be at least 0"),
        (lambda: k_fold_delta(0.1, 5, -1.0), "total must be at least 0"),
        (lambda: k_fold_epsilon(0.1, 5, 1.0), "delta must lie"),
        (lambda: gaussian_mu_delta(-1.0, 1.0), "expected mu and epsilon from 0"),
    ],
)
def test_numbers_out_of_range_are_refused(call: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()  # type: ignore[operator]
