"""Theorem 3 beside what is measured, and what noisy derivatives tell of labels: by other means, and that it runs."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from scripts.reproduce.hdp_vfl import theorems
from scripts.reproduce.hdp_vfl.descent import Floats, descend, inside, least_loss, loss
from scripts.reproduce.hdp_vfl.study import BREAST
from scripts.reproduce.shared.settings import Settings
from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.learning.optimizers import sgd
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.privacy import tight_hdp_sensitivity


def problem(seed: int, count: int = 60) -> tuple[Floats, Floats, Floats]:
    draw = np.random.default_rng(seed)
    active, passive = draw.normal(size=(count, 3)), draw.normal(size=(count, 2))
    labels = np.sign(active[:, 0] - passive[:, 1] + draw.normal(size=count))
    return active, passive, labels


# --- the weights


@pytest.mark.parametrize("radius", [0.3, 1.0])
def test_the_least_loss_in_both_balls_is_that_of_another_solver(radius: float) -> None:
    active, passive, labels = problem(0)

    weights, least = least_loss(active, passive, labels, radius)

    rows = np.hstack([active, passive])
    balls = [{"type": "ineq", "fun": lambda w, of=of: radius**2 - w[of] @ w[of]} for of in (slice(0, 3), slice(3, 5))]
    found = minimize(lambda w: loss(rows, labels, w), np.zeros(5), constraints=balls, method="SLSQP", tol=1e-12)
    assert least == pytest.approx(found.fun, abs=1e-7)
    assert max(math.hypot(*weights[:3]), math.hypot(*weights[3:])) <= radius * (1 + 1e-12)


def test_in_large_balls_it_is_plain_logistic_regression() -> None:
    active, passive, labels = problem(1)

    weights, _ = least_loss(active, passive, labels, 100.0)

    plain = LogisticRegression(C=math.inf, fit_intercept=False, tol=1e-10, max_iter=10_000)
    np.testing.assert_allclose(weights, plain.fit(np.hstack([active, passive]), labels).coef_[0], atol=1e-4)


def test_without_noise_the_steps_are_those_of_the_package() -> None:
    active, passive, labels = problem(2)
    course = descend(
        active, passive, labels, steps=5, rate=2.0, radius=0.5, sigma_active=0.0, sigma_passive=0.0, seed=0
    )

    def party(name: str, columns: Floats, answers: torch.Tensor | None) -> PartyData:
        part = Records(torch.arange(len(columns)), Columns.of(torch.tensor(columns).float()), answers)
        names = tuple(f"x{number}" for number in range(columns.shape[1]))
        return PartyData(name, names, names, (), part, part)

    steps = partial(sgd, lr=2.0, radius=0.5)
    top = LinearTop(1, active_inputs=3, init="zero", intercept=False)
    bank = ActiveParty(party("bank", active, torch.tensor(labels > 0).float()), top, optimizer=steps)
    shop = PassiveParty(party("shop", passive, None), Linear(2, init="zero"), optimizer=steps)
    Trainer(bank, {"shop": shop}, batch_size=len(labels), evaluate_every=5, audit=False).fit(5)
    assert top.own is not None
    learned = torch.cat([weight.detach().flatten() for half in (top.own, shop.module) for weight in half.parameters()])
    # float32 against float64.
    np.testing.assert_allclose(course.last, learned.numpy(), atol=1e-5)


def test_the_average_is_of_the_weights_after_each_step() -> None:
    active, passive, labels = problem(3)
    how: Any = {"rate": 1.0, "radius": 0.4, "sigma_active": 0.7, "sigma_passive": 0.3, "seed": 5}
    lasts = [descend(active, passive, labels, steps=steps, **how).last for steps in (1, 2, 3)]

    average = descend(active, passive, labels, steps=3, **how).average

    np.testing.assert_allclose(average, np.mean(lasts, axis=0), rtol=1e-12)


def test_the_nearest_weights_in_a_ball() -> None:
    np.testing.assert_allclose(inside(np.array([3.0, 4.0]), 1.0), [0.6, 0.8])
    np.testing.assert_array_equal(inside(np.array([0.3, 0.4]), 1.0), [0.3, 0.4])


# --- the bound


def test_no_draw_is_beyond_so_many_deviations_but_with_the_probability_of_failure() -> None:
    deviations = theorems.most_deviations(10_000, 0.05)

    exact = 10_000 * 2.0 * norm.sf(deviations)
    # The tail's usual bound is off by a factor of about 1 + 1 / C².
    assert 0.05 / (1 + 1.5 / deviations**2) < exact < 0.05


def test_the_bound_of_theorem_3_term_by_term() -> None:
    # β_θ (2 k + C σ_B) + C σ_A = (2 · 2 + 3 · 8) / 4 + 3 · 5; 0.5 / 8 · (1 + 2 · 4 · 22 / .5)².
    assert theorems.error_bound(3.0, 5.0, 8.0, 2.0) == 22.0
    assert theorems.excess_bound(4, 22.0, 1.0, 0.5) == pytest.approx(0.5 / 8 * 353.0**2)


@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
def test_without_noise_it_is_two_for_every_step(steps: int) -> None:
    """Rows of joint norm 1, so that β = β_θ, and k = 1: above ln 2, the loss of a coin, from the first step on."""
    error = theorems.error_bound(0.0, 0.0, 0.0, 1.0)

    assert theorems.excess_bound(steps, error, 0.0, theorems.BETA_THETA) == pytest.approx(2.0 * steps)
    assert 2.0 * steps > math.log(2.0)


def test_noise_is_that_of_the_recursion_and_the_exact_mechanism() -> None:
    sigmas = theorems.noise_of(455, 10, 1.0, 0.5)

    own: Any = {"beta_theta": 0.25, "beta_y": 0.5, "k_y": 1.0, "step": 1 + math.tanh(math.sqrt(0.5))}
    common: Any = {"steps": 10, "epochs": 10, "batch_size": 455, "eta": 0.5, "k": 1.0, "lipschitz": 1.0}
    moved = (
        tight_hdp_sensitivity("active", **common, **own, row_norm=math.sqrt(2.0)),
        tight_hdp_sensitivity("passive", **common),
    )
    for sigma, most in zip(sigmas, moved, strict=True):
        ratio = most / sigma
        delta = norm.cdf(ratio / 2 - 1 / ratio) - math.e * norm.cdf(-ratio / 2 - 1 / ratio)
        assert delta == pytest.approx(0.01, rel=1e-6)


# --- labels


def test_evidence_is_the_log_likelihood_ratio_of_normal_draws() -> None:
    """One step from zero: half a derivative of either sign, and noise."""
    active, passive, labels = problem(4, count=50)
    course = descend(
        active, passive, labels, steps=1, rate=1.0, radius=1.0, sigma_active=0.8, sigma_passive=0.0, seed=7
    )

    draw = np.random.default_rng(7)
    draw.normal(size=50)  # the passive party's, which is multiplied by 0
    sent = -0.5 * labels + 0.8 * draw.normal(size=50)
    ratio = norm.logpdf(sent, loc=-0.5, scale=0.8) - norm.logpdf(sent, loc=0.5, scale=0.8)
    np.testing.assert_allclose(course.evidence, ratio, atol=1e-12)


def test_labels_leak_as_the_closed_form_says() -> None:
    active, passive, labels = problem(5, count=20_000)
    course = descend(
        active, passive, labels, steps=9, rate=0.1, radius=1.0, sigma_active=4.0, sigma_passive=1.0, seed=0
    )

    positive, negative = course.evidence[labels > 0], course.evidence[labels < 0]
    order = np.sort(negative)
    auc = (np.searchsorted(order, positive) / len(order)).mean()
    # μ = √9 / 4; four standard errors of an AUC of two classes of 10 000 are below .015.
    assert auc == pytest.approx(norm.cdf(0.75 / math.sqrt(2)), abs=0.015)


# --- the page


@pytest.mark.parametrize(
    ("closed_form", "verdict"),
    # Student's t of three seeds is 4.30: .600 ± 4.30 · .01 / √3, which is .025.
    [(0.600, "reproduces"), (0.624, "reproduces"), (0.626, "does not"), (0.574, "does not")],
)
def test_the_closed_form_is_judged_by_the_seeds_and_is_no_figure_of_the_paper(closed_form: float, verdict: str) -> None:
    results = [{"auc": auc, "closed form": closed_form} for auc in (0.59, 0.60, 0.61)]
    claim = theorems._leak_claim(theorems.Trained(BREAST, 10, 1.0, results))
    assert (claim.verdict, claim.published) == (verdict, None)


def test_where_every_pair_is_told_apart_three_digits_decide() -> None:
    for closed_form, verdict in ((0.9999, "reproduces"), (0.999, "does not")):
        results = [{"auc": 1.0, "closed form": closed_form}] * 3
        assert theorems._leak_claim(theorems.Trained(BREAST, 10, 100.0, results)).verdict == verdict


def test_quick_sections_have_every_verdict(tmp_path: Path) -> None:
    utility, leakage = theorems.sections(Settings(out=tmp_path, quick=True, seeds=2, workers=1, say=lambda line: None))

    assert [claim.verdict for claim in utility.claims] == ["reproduces", "does not"]
    assert utility.claims[1].ours is not None
    assert utility.claims[1].ours > math.log(2.0)
    assert len(leakage.claims) == 3
    assert all(claim.verdict == "reproduces" for claim in leakage.claims)
    assert "2 T" in utility.body
