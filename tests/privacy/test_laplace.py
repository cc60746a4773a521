from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import laplace

from splitvfl.errors import ArgumentError
from splitvfl.privacy import (
    choose_multiplicative_bounds,
    label_success_ceiling,
    laplace_label_success,
    laplace_scale,
    multiplicative_laplace_epsilon,
)
from splitvfl.privacy.laplace import MultiplicativeMode

MODES: tuple[MultiplicativeMode, ...] = ("as_printed", "sign_preserving", "centred_at_one")

nominal = st.floats(-2.0, 1.5).map(lambda log: 10**log)
inner = st.floats(0.02, 1.0)
outer = st.floats(-1.5, 1.5).map(lambda log: 10**log)


def brute_force(epsilon: float, b1: float, b2: float, centre: float) -> float:
    """The largest log ratio over a grid of residues and of what is sent, by scipy's densities."""
    sizes = np.geomspace(b1, 1.0, 120)
    residues = np.concatenate([sizes, -sizes])[:, None]
    scale = np.abs(residues) * 2 * b2 / (b1 * epsilon)
    sent = np.concatenate([np.linspace(0, b2, 150)[:-1], [edge for edge in (b1, 1.0) if edge < b2], [b2 * (1 - 1e-9)]])
    logs = laplace.logpdf(sent[None], loc=centre * residues, scale=scale)
    atoms = laplace.logsf(b2, loc=centre * residues, scale=scale)
    return max(float(np.ptp(logs, axis=0).max()), float(np.ptp(atoms)))


@settings(max_examples=60)
@given(nominal, inner, outer)
def test_the_true_epsilon_is_the_supremum_of_all_log_ratios(epsilon: float, b1: float, b2: float) -> None:
    for mode, centre in (("sign_preserving", 0.0), ("centred_at_one", 1.0)):
        found = multiplicative_laplace_epsilon(epsilon, b1, b2, mode=mode)  # type: ignore[arg-type]
        seen = brute_force(epsilon, b1, b2, centre)

        assert seen <= found * (1 + 1e-9) + 1e-9  # nothing exceeds it: the 1e-9 is scipy's rounding, and b2 (1 − 1e-9)
        # The grid of sizes is 120 steps of a factor; between two of them a log density moves by a step of its slope.
        assert seen >= found - 0.04 * (1.0 + found)


def test_the_true_epsilon_is_met_by_two_residues_of_the_printed_mechanism() -> None:
    # At z = 0 densities are as 1/|r|: b1 and 1 differ by ln 10 whatever the nominal ε, until the tails take over.
    for epsilon, expected in ((0.01, math.log(10)), (0.1, math.log(10)), (1.0, math.log(10)), (10.0, 4.5)):
        for mode in ("as_printed", "sign_preserving"):
            assert multiplicative_laplace_epsilon(epsilon, 0.1, 7.0, mode=mode) == pytest.approx(expected, rel=1e-12)


@given(st.floats(0.01, 50.0), inner, outer)
def test_the_nominal_epsilon_holds_for_mean_zero_only_where_b1_is_large_enough(
    epsilon: float, b1: float, b2: float
) -> None:
    true = multiplicative_laplace_epsilon(epsilon, b1, b2, mode="as_printed")

    assert (true <= epsilon) == (b1 >= math.exp(-epsilon))


def test_one_release_of_additive_noise_tells_as_much_as_the_best_threshold() -> None:
    for epsilon in (0.01, 0.1, 1.0, 10.0):
        scale = laplace_scale(epsilon)
        # Half the total variation distance more than ½: the best test of two residues that are 1 apart, integrated.
        apart, _ = quad(
            lambda z, scale=scale: max(laplace.pdf(z, 0.5, scale) - laplace.pdf(z, -0.5, scale), 0.0),
            0.0,
            0.5 + 45 * scale,
            points=[0.5],
            limit=200,
        )
        assert laplace_label_success(epsilon) == pytest.approx(0.5 + apart / 2, abs=1e-9)


def test_the_ceiling_is_the_success_of_randomised_response_and_above_that_of_laplace_noise() -> None:
    for epsilon in (0.01, 0.1, 1.0, 10.0):
        # By label the ε is half of that by value.
        assert laplace_label_success(epsilon) <= label_success_ceiling(epsilon / 2)
    assert label_success_ceiling(0.5, releases=30) == pytest.approx(1 / (1 + math.exp(-15)), rel=1e-15)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0, 12.0])
def test_chosen_bounds_keep_the_true_epsilon_and_send_what_they_say(epsilon: float) -> None:
    chosen = choose_multiplicative_bounds(epsilon)
    rng, n = np.random.default_rng(0), 400_000
    prediction = rng.random(n)
    residue = (rng.random(n) < prediction) - prediction
    kept = np.sign(residue) * np.maximum(np.abs(residue), chosen.b1)
    multiplier = 1 + rng.laplace(size=n) * 2 * chosen.b2 / (chosen.b1 * chosen.epsilon)
    sent = np.clip(kept * multiplier, -chosen.b2, chosen.b2)

    true = multiplicative_laplace_epsilon(*chosen[:3], mode="centred_at_one")
    assert epsilon - 1e-5 <= true <= epsilon  # all of the budget, and no more
    # A correlation of n pairs is off by at most 1/√n in standard deviation, here five of them.
    assert np.corrcoef(sent, residue)[0, 1] == pytest.approx(chosen.correlation, abs=5 / math.sqrt(n))


def test_chosen_bounds_are_no_worse_than_any_others_that_keep_the_same_epsilon() -> None:
    rng, n = np.random.default_rng(1), 100_000
    prediction = rng.random(n)
    residue = (rng.random(n) < prediction) - prediction
    draws, best = rng.laplace(size=n), choose_multiplicative_bounds(2.0).correlation
    tried = 0
    for _ in range(300):
        b1, b2, given = rng.uniform(0.14, 1.0), 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-2, 1)
        if multiplicative_laplace_epsilon(given, b1, b2, mode="centred_at_one") > 2.0:
            continue
        kept = np.sign(residue) * np.maximum(np.abs(residue), b1)
        sent = np.clip(kept * (1 + draws * 2 * b2 / (b1 * given)), -b2, b2)
        tried += 1
        # .02: five standard errors of a correlation of so many pairs, and the step of the grid.
        assert np.corrcoef(sent, residue)[0, 1] <= best + 0.02
    assert tried > 50


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0.0, 0.1, 1.0), "epsilon"),
        ((math.inf, 0.1, 1.0), "epsilon"),
        ((math.nan, 0.1, 1.0), "epsilon"),
        ((1.0, 0.0, 1.0), "b1"),
        ((1.0, 1.5, 1.0), "b1"),
        ((1.0, math.nan, 1.0), "b1"),
        ((1.0, 0.1, 0.0), "b2"),
        ((1.0, 0.1, math.inf), "b2"),
    ],
)
def test_wrong_parameters_are_named(arguments: tuple[float, float, float], named: str) -> None:
    for mode in MODES:
        with pytest.raises(ArgumentError, match=named):
            multiplicative_laplace_epsilon(*arguments, mode=mode)


def test_an_unknown_mode_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ArgumentError, match="as_printed, sign_preserving, centred_at_one, got 'centered'"):
        multiplicative_laplace_epsilon(1.0, 0.1, 1.0, mode="centered")  # type: ignore[arg-type]
    for wrong in (0.0, -1.0, math.inf, math.nan):
        for function in (laplace_scale, laplace_label_success, label_success_ceiling, choose_multiplicative_bounds):
            with pytest.raises(ArgumentError, match="epsilon"):
                function(wrong)
    with pytest.raises(ArgumentError, match="releases"):
        label_success_ceiling(1.0, releases=0)
