from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from splitvfl.errors import ArgumentError
from splitvfl.privacy import (
    corrected_dp_paillier_sigma,
    dp_paillier_sensitivity,
    dp_paillier_sigma,
    gaussian_sigma,
    label_attack_success,
)

PUBLISHED: dict[str, Any] = {"G": 1.0, "steps": 30, "eta": 0.01, "batch_size": 256}


@pytest.mark.parametrize(
    ("epochs", "published"),
    [(1, {0.1: 179.8, 0.2: 89.9, 0.5: 36.0}), (30, {0.1: 985, 0.2: 492, 0.5: 197})],
)
def test_the_label_partys_noise_is_the_published_one(epochs: int, published: dict[float, float]) -> None:
    digits = 1 if epochs == 1 else 0

    ours = {
        epsilon: round(dp_paillier_sigma("A", epsilon=epsilon, delta=0.1, epochs=epochs, **PUBLISHED), digits)
        for epsilon in published
    }

    assert ours == published


def test_with_thirty_steps_an_epoch_the_published_figures_would_be_others() -> None:
    setting = PUBLISHED | {"steps": 900}

    assert round(dp_paillier_sigma("A", epsilon=0.2, delta=0.1, epochs=30, **setting)) == 493


def test_sensitivities_equal_the_formulas_term_by_term() -> None:
    setting: dict[str, Any] = {"G": 2.0, "epochs": 3, "steps": 12, "eta": 0.5, "batch_size": 4}

    # 8 · 4 · 9 · 12 · 1/4 / 4 = 216; 64 · 4 · 3 = 768; (16 − 4)² · 3 = 432.
    assert dp_paillier_sensitivity("A", **setting) == pytest.approx(math.sqrt(216 + 768), rel=1e-15)
    assert dp_paillier_sensitivity("B", **setting) == pytest.approx(math.sqrt(216 + 432), rel=1e-15)


def test_the_sensitivity_goes_into_the_exact_calibration_too() -> None:
    span = dp_paillier_sensitivity("B", epochs=2, **PUBLISHED)

    exact = gaussian_sigma(0.5, 0.1, sensitivity=span)

    assert 0 < exact < dp_paillier_sigma("B", epsilon=0.5, delta=0.1, epochs=2, **PUBLISHED)


def test_the_corrected_noise_without_any_of_the_other_party_is_the_published_one() -> None:
    setting = PUBLISHED | {"epsilon": 0.3, "delta": 0.05, "epochs": 1}

    assert corrected_dp_paillier_sigma("B", delta_prime=0.05, sigma_other=0.0, **setting) == dp_paillier_sigma(
        "B", **setting
    )


@pytest.mark.parametrize("party", ["A", "B"])
def test_the_corrected_noise_puts_the_bound_on_the_others_noise_into_g(party: Any) -> None:
    setting = PUBLISHED | {"epsilon": 0.3, "delta": 0.05, "epochs": 1}
    bound = math.sqrt(2 * math.log(2 * 256 * 30 / 0.01))

    corrected = corrected_dp_paillier_sigma(party, delta_prime=0.01, sigma_other=7.0, **setting)

    assert corrected == pytest.approx(dp_paillier_sigma(party, **(setting | {"G": 1 + 7.0 * bound / 4})), rel=1e-14)
    # The noises that it bounds: s T = 7680 of them stay below sigma · bound in all but .01 of trainings.
    noises = np.random.default_rng(0).normal(size=(1000, 7680))
    assert (np.abs(noises).max(axis=1) > bound).mean() <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 1000)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("delta", [0.01, 0.9])
def test_both_parties_cannot_have_the_corrected_noise_at_once(epsilon: float, delta: float) -> None:
    setting: dict[str, Any] = {"G": 0.51, "steps": 1, "epochs": 1, "eta": 1e-9, "batch_size": 1}
    setting |= {"epsilon": epsilon, "delta": delta, "delta_prime": 0.999 - delta}
    sigma, other = 1.0, 1.0
    for _ in range(20):
        sigma = corrected_dp_paillier_sigma("A", sigma_other=other, **setting)
        other = corrected_dp_paillier_sigma("B", sigma_other=sigma, **setting)

    assert min(sigma, other) > 1.5**20


def test_the_sign_of_averaged_releases_is_right_as_often_as_said() -> None:
    noise = np.random.default_rng(0).normal(0.0, 36.0, size=(20_000, 30))
    releases = -2.0 * 1.0 + noise  # y = +1, g = 0

    # The standard error of 20 000 signs is .0035; three of them.
    assert label_attack_success(36.0) == pytest.approx((-releases[:, 0] > 0).mean(), abs=0.011)
    assert label_attack_success(36.0, 30) == pytest.approx((-releases.mean(axis=1) > 0).mean(), abs=0.011)


def test_one_release_under_the_specifications_noise() -> None:
    assert label_attack_success(10.0) == pytest.approx(NormalDist().cdf(0.2))
    assert round(label_attack_success(10.0), 2) == 0.58


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"party": "C"}, "party must be 'A'"),
        ({"G": 0.5}, "G must be above 1/2"),
        ({"G": math.nan}, "G must be finite"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"epochs": 40}, "steps counts those of all epochs together: expected at least 40, got 30"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"eta": 1.5}, "eta must be at most 1"),
        ({"eta": 0.0}, "eta must be finite and above 0"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"epsilon": 1.0}, "epsilon below 1"),
        ({"delta": 1.0}, "delta must lie"),
    ],
)
def test_arguments_outside_their_range_are_refused(change: dict[str, Any], message: str) -> None:
    setting = PUBLISHED | {"party": "A", "epsilon": 0.5, "delta": 0.1, "epochs": 1} | change

    with pytest.raises(ArgumentError, match=message):
        dp_paillier_sigma(**setting)
    with pytest.raises(ArgumentError, match=message):
        corrected_dp_paillier_sigma(delta_prime=0.1, sigma_other=1.0, **setting)


def test_the_correction_and_the_success_refuse_their_own_wrong_arguments() -> None:
    setting = PUBLISHED | {"party": "A", "epsilon": 0.5, "epochs": 1}
    with pytest.raises(ArgumentError, match=r"delta \+ delta_prime must lie"):
        corrected_dp_paillier_sigma(delta=0.5, delta_prime=0.5, sigma_other=1.0, **setting)
    for wrong in (-1.0, math.nan):
        with pytest.raises(ArgumentError, match="sigma_other must be finite"):
            corrected_dp_paillier_sigma(delta=0.1, delta_prime=0.1, sigma_other=wrong, **setting)
    with pytest.raises(ArgumentError, match="sigma must be finite and above 0"):
        label_attack_success(0.0)
    with pytest.raises(ArgumentError, match="epochs must be"):
        label_attack_success(1.0, 0)
