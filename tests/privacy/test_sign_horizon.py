from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from splitvfl.errors import ArgumentError
from splitvfl.learning.losses import Approximation
from splitvfl.models import gradient_scale, sigmoid_coefficients
from splitvfl.privacy import initial_margin, sign_attack_horizon


def counted(eta: str, margin: str, crossing: str, radius: str) -> int:
    """Count steps one by one, in exact fractions, until the bound on the largest logit reaches the crossing."""
    largest, steps = Fraction(margin), 0
    while largest < Fraction(crossing):
        steps += 1
        largest += Fraction(eta) * Fraction(radius) ** 2 / 4 * (2 + largest)
    return steps


@pytest.mark.parametrize(
    ("eta", "margin", "radius"),
    # The last three end on a whole number of steps, or start at or beyond the crossing.
    [("1/10", "0", "1"), ("1/10", "1/2", "2"), ("3", "1.9", "1/2"), ("4", "0", "1"), ("1", "2", "1"), ("1", "7", "1")],
)
@pytest.mark.parametrize(("approximation", "crossing"), [("taylor", "2"), ("minimax", "3.2")])
def test_the_horizon_is_the_number_of_steps_that_a_loop_counts(
    eta: str, margin: str, radius: str, approximation: Approximation, crossing: str
) -> None:
    found = sign_attack_horizon(
        float(Fraction(eta)), float(Fraction(margin)), approximation=approximation, radius=float(Fraction(radius))
    )
    assert found == counted(eta, margin, crossing, radius)
    assert isinstance(found, int)


def test_the_formula_of_the_paper_at_its_settings() -> None:
    # ln 2 / ln 1.0025 = 277.6
    assert sign_attack_horizon(0.01, 0.0) == 278


@pytest.mark.parametrize("approximation", ["exact", "piecewise"])
def test_some_residues_never_expire(approximation: Approximation) -> None:
    assert sign_attack_horizon(1.0, 50.0, approximation=approximation) == math.inf


@pytest.mark.parametrize(
    ("approximation", "eta"), [("taylor", 2.0), ("minimax", 2.0), ("exact", 4.0), ("piecewise", 4.0)]
)
def test_signs_are_labels_within_the_horizon_of_a_run(approximation: Approximation, eta: float) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(12, 3)) * [1, 1, 0.1]
    y = np.where(x[:, 0] > 0, 1.0, -1.0)  # separable: logits grow for ever
    theta = generator.normal(size=3) * 0.2
    radius, margin = np.linalg.norm(x, axis=1).max(), np.abs(x @ theta).max()
    horizon = sign_attack_horizon(eta, margin, approximation=approximation, radius=radius)
    right = []
    for _ in range(int(min(horizon, 50))):
        f = sigmoid_coefficients(torch.from_numpy(x @ theta), torch.from_numpy(y), approximation=approximation).numpy()
        # A piecewise residue of zero carries no label; a sign is never wrong.
        right.append((np.sign(-f) == np.where(f == 0, 0, y)).all() and (approximation == "piecewise" or f.all()))
        theta = theta - eta / (gradient_scale(approximation) * 12) * x.T @ f
    assert all(right)
    assert right


def test_a_sign_can_be_wrong_right_after_the_horizon() -> None:
    weight, eta = 1.99, 4.0
    assert sign_attack_horizon(eta, weight) == 1
    # The step on a record x = -1/2, y = -1 takes the logit of the record x = 1, y = 1 beyond 2.
    weight -= eta / 4 * (weight * -0.5 + 2) * -0.5
    assert -(weight - 2) < 0


@pytest.mark.parametrize("probability", [0.5, 0.05])
def test_first_logits_stay_below_the_margin_about_as_often_as_promised(probability: float) -> None:
    generator = np.random.default_rng(0)
    records, tau, radius, draws = 20, 0.3, 1.7, 4000
    rows = generator.normal(size=(records, 60))
    rows *= radius / np.linalg.norm(rows, axis=1, keepdims=True)
    logits = generator.normal(size=(draws, 60)) * tau @ rows.T
    exceeded = (np.abs(logits).max(axis=1) > initial_margin(tau, radius, records, probability)).mean()
    # Nearly independent logits: the union bound p is at most 1 - exp(-p) wide. Four standard errors of a share.
    error = 4 * math.sqrt(probability / draws)
    assert 1 - math.exp(-probability) - error - 0.02 < exceeded <= probability + error


def test_the_margin_of_zero_weights_is_zero() -> None:
    assert initial_margin(0.0, 3.0, 1000, 0.01) == 0.0


def test_the_margin_of_a_tiny_probability_is_finite() -> None:
    assert initial_margin(1.0, 1.0, 10**9, 1e-12) == pytest.approx(9.5, abs=0.5)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_settings_out_of_range_are_refused(wrong: float) -> None:
    with pytest.raises(ArgumentError, match="eta above 0"):
        sign_attack_horizon(wrong, 0.0)
    with pytest.raises(ArgumentError, match="radius above 0"):
        sign_attack_horizon(0.1, 0.0, radius=wrong)


def test_other_settings_out_of_range_are_refused() -> None:
    for margin in (-0.1, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="margin of at least 0"):
            sign_attack_horizon(0.1, margin)
    with pytest.raises(ArgumentError, match="tau of at least 0"):
        initial_margin(-1.0, 1.0, 10, 0.1)
    for records, probability in ((0, 0.1), (10, 0.0), (10, 1.0), (10, math.nan)):
        with pytest.raises(ArgumentError, match=r"probability in \(0, 1\)"):
            initial_margin(1.0, 1.0, records, probability)
