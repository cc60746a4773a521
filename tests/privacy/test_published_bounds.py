from __future__ import annotations

import math
from typing import Any

import pytest

from splitvfl.errors import ArgumentError
from splitvfl.privacy import hdp_excess_loss, noise_norm_bound, noisy_label_horizon


def test_the_published_settings_have_26_steps_and_278_without_noise() -> None:
    noise = noise_norm_bound(sigma=36.0, batch_size=256, steps=1500, delta=0.1)
    assert noisy_label_horizon(eta=0.01, noise=noise) == 26
    assert noisy_label_horizon(eta=0.01, noise=0.0) == 278


def test_the_bound_fails_with_the_probability_that_it_is_given() -> None:
    bound = noise_norm_bound(sigma=3.0, batch_size=64, steps=100, delta=0.2, constant=2.0)
    k = 64 * (bound / 3.0) ** 2
    assert 2 * 100 * math.exp(-2.0 * k) == pytest.approx(0.2)


@pytest.mark.parametrize(("noise", "first"), [(0.0, 0.0), (0.0, 1.5), (7.2, 0.3), (1.0, 1.99)])
def test_the_horizon_is_the_first_step_at_which_the_growing_logit_reaches_its_limit(noise: float, first: float) -> None:
    # By repeated multiplication, in place of logarithms.
    grown, steps = 4 * noise + 2 + first, 0
    while grown < 4 * noise + 4:
        grown, steps = grown * (1 + 0.05 / 4), steps + 1
    assert noisy_label_horizon(eta=0.05, noise=noise, first_logit=first) == steps
    assert noisy_label_horizon(eta=0.05, noise=noise, first_logit=2.0) == 0


def test_the_excess_loss_is_vacuous_without_noise_and_the_usual_one_without_errors() -> None:
    assert hdp_excess_loss(beta=0.25, beta_theta=0.25, steps=50, k=1.0, distance=0.0) == pytest.approx(2 * 50)
    assert hdp_excess_loss(beta=2.0, beta_theta=0.0, steps=10, k=1.0, distance=3.0) == pytest.approx(2 * 9 / 20)


def test_noise_enters_the_excess_loss_as_lemma_5_has_it() -> None:
    found = hdp_excess_loss(beta=0.5, beta_theta=0.25, steps=4, k=1.0, distance=1.0, noise=(0.3, 2.0))
    errors = [0.25 * (2.0 + 2.0) + 0.3] * 4
    assert found == pytest.approx(0.5 / 8 * (1.0 + 2 * sum(errors) / 0.5) ** 2)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (noise_norm_bound, {"sigma": 1.0, "batch_size": 8, "steps": 5, "delta": 1.0}),
        (noise_norm_bound, {"sigma": -1.0, "batch_size": 8, "steps": 5, "delta": 0.1}),
        (noise_norm_bound, {"sigma": 1.0, "batch_size": 8, "steps": 5, "delta": 0.1, "constant": 0.0}),
        (noisy_label_horizon, {"eta": 0.0, "noise": 0.0}),
        (noisy_label_horizon, {"eta": 0.1, "noise": -1.0}),
        (hdp_excess_loss, {"beta": 0.0, "beta_theta": 0.1, "steps": 3, "k": 1.0, "distance": 0.0}),
        (hdp_excess_loss, {"beta": 1.0, "beta_theta": 0.1, "steps": 3, "k": -1.0, "distance": 0.0}),
    ],
)
def test_numbers_out_of_range_are_refused(function: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        function(**wrong)
