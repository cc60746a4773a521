from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import approx_fprime, minimize
from scipy.special import expit
from scipy.stats import norm

from splitvfl.attacks.mixture_fit import (
    LineMessages,
    MixtureFit,
    _Likelihood,
    _Units,
    fit_mixture,
    log_ratios,
    logits,
    step_variances,
    weights,
)
from splitvfl.errors import ArgumentError
from splitvfl.metrics import oriented, rank_auc

Vector = npt.NDArray[np.float64]

ALPHA, BETA, KAPPA = 1.6, -1.0, 1.2


def drawn(
    *, records: int = 300, epochs: int = 6, batch: int = 50, noise: float = 0.6, growth: float = 0.0, seed: int = 0
) -> tuple[LineMessages, npt.NDArray[np.bool_]]:
    """Messages κ_t (p − y) and noise; activations hardly move, and labels follow the prediction at the end."""
    random = np.random.default_rng(seed)
    record = np.concatenate([random.permutation(records) for _ in range(epochs)])
    step = np.arange(record.size) // batch
    activation = random.normal(size=records)[record] + 0.05 * random.normal(size=record.size)
    grown = np.exp(growth * (step - step.max()) / max(step.max(), 1))
    last = np.zeros(records)
    last[record] = activation
    positive = random.random(records) < expit(ALPHA * last + BETA)
    prediction = expit(ALPHA * grown * activation + BETA)
    clean = KAPPA * grown * (prediction - positive[record])
    deviations = noise * (1.0 + 0.3 * random.random(step.max() + 1))
    return LineMessages(record, step, clean + deviations[step] * random.normal(size=record.size), activation), positive


def scores(messages: LineMessages, fit: MixtureFit, variances: Vector) -> Vector:
    weight = weights(messages, fit)
    prior = np.bincount(messages.record, weight * logits(messages, fit)) / np.bincount(messages.record, weight)
    return prior + np.bincount(messages.record, log_ratios(messages, fit, variances))


def slow_likelihood(messages: LineMessages, fit: dict[str, float], variances: Vector) -> float:
    """The definition, record by record and message by message."""
    last, first = messages.step.max(), messages.step.min()
    total = 0.0
    for record in np.unique(messages.record):
        own = np.flatnonzero(messages.record == record)
        by_label = [1.0, 1.0]
        late, early = [], []
        for i in own:
            age = (messages.step[i] - last) / (last - first)
            kappa, alpha = (fit[name] * math.exp(fit["growth"] * age) for name in ("kappa", "alpha"))
            logit = alpha * (messages.activation[i] - fit["middle"]) + fit["beta"]
            (late if age >= -0.5 else early).append(logit)
            for label in (0, 1):
                mean = kappa * (1 / (1 + math.exp(-logit)) - label)
                square = (messages.shift[i] - mean) ** 2 / variances[i]
                by_label[label] *= math.exp(-0.5 * square) / math.sqrt(2 * math.pi * variances[i])
        positive = 1 / (1 + math.exp(-np.mean(late or early)))
        total += math.log((1 - positive) * by_label[0] + positive * by_label[1])
    return total


def slow_of(point: Vector, fit: MixtureFit, messages: LineMessages, variances: Vector) -> float:
    named = dict(zip(("kappa", "alpha", "beta", "growth"), point, strict=True)) | {"middle": fit.middle}
    return slow_likelihood(messages, named, variances)


def test_the_fit_is_an_optimum_of_the_likelihood_as_written() -> None:
    messages, _ = drawn(records=60, growth=0.5)
    fit, variances = fit_mixture(messages)
    point = np.array([fit.kappa, fit.alpha, fit.beta, fit.growth])

    found = minimize(
        lambda point: -slow_of(point, fit, messages, variances),
        point * 1.2,
        method="Nelder-Mead",
        options={"xatol": 1e-4, "fatol": 1e-6, "maxfev": 600},
    )

    assert not fit.failure
    # In likelihood, not place: it is flat where four numbers are told by 360 messages. 2e-3 nats are 6e-6 per message,
    # where the fit stops.
    assert slow_of(point, fit, messages, variances) == pytest.approx(-found.fun, abs=5e-3)
    np.testing.assert_allclose(point, found.x, rtol=0.05, atol=0.02)


def test_its_gradient_is_that_of_finite_differences() -> None:
    messages, _ = drawn(records=40)
    problem = _Likelihood(messages, _Units.of(messages))
    variances = problem.unshifted()
    for point in np.random.default_rng(1).normal(size=(5, 4)):
        slopes = approx_fprime(point, lambda point: problem.objective(point, variances)[0], 1e-6)
        np.testing.assert_allclose(problem.objective(point, variances)[1], slopes, rtol=1e-4, atol=1e-6)


def test_its_gain_is_the_slow_likelihood_over_that_of_no_shift() -> None:
    messages, _ = drawn(records=40, noise=0.3)
    fit, _ = fit_mixture(messages)
    problem = _Likelihood(messages, _Units.of(messages))
    climb = problem.climb(problem.units.point(fit), problem.settled_variances(problem.units.point(fit)), rounds=1)
    variances = climb.variances * problem.units.shift**2
    point = np.array([fit.kappa, fit.alpha, fit.beta, fit.growth])
    unshifted = problem.unshifted() * problem.units.shift**2
    nothing = norm.logpdf(messages.shift, 0.0, np.sqrt(unshifted)).sum()

    # Both sides are within the fit's tolerance, 1e-6 per message, and the variances' last round.
    assert fit.gain == pytest.approx(slow_of(point, fit, messages, variances) - nothing, abs=0.05)


def test_it_finds_what_the_messages_were_made_with() -> None:
    messages, positive = drawn(records=3000, epochs=5, growth=0.6)
    fit, variances = fit_mixture(messages)

    # 15 000 messages; tolerances are about four standard errors over ten seeds.
    assert fit.kappa == pytest.approx(KAPPA, rel=0.08)
    assert fit.alpha == pytest.approx(ALPHA, rel=0.2)
    assert fit.beta - fit.alpha * fit.middle == pytest.approx(BETA, abs=0.25)
    assert fit.growth == pytest.approx(0.6, abs=0.25)
    assert rank_auc(scores(messages, fit, variances), positive) > 0.98


def test_its_scores_are_as_good_as_those_of_who_knows_everything() -> None:
    messages, positive = drawn(records=3000, epochs=6, noise=1.5)
    fit, variances = fit_mixture(messages)
    prediction = expit(ALPHA * messages.activation + BETA)
    ratio = -KAPPA * (messages.shift - KAPPA * (prediction - 0.5)) / (1.5 * 1.15) ** 2
    known = np.bincount(messages.record, ratio)
    known += np.bincount(messages.record, ALPHA * messages.activation + BETA) / np.bincount(messages.record)

    assert rank_auc(scores(messages, fit, variances), positive) > rank_auc(known, positive) - 0.02


def test_labels_and_signs_exchanged_are_the_same_mixture() -> None:
    messages, _ = drawn(records=200)
    fit, variances = fit_mixture(messages)

    turned = messages._replace(shift=-messages.shift, activation=-messages.activation)
    other, other_variances = fit_mixture(turned)

    assert other.gain == pytest.approx(fit.gain, abs=0.01)
    assert (other.kappa, other.alpha) == pytest.approx((fit.kappa, fit.alpha), rel=0.02)
    np.testing.assert_allclose(
        scores(turned, other, other_variances), -scores(messages, fit, variances), rtol=0.05, atol=0.2
    )


@pytest.mark.parametrize("unit", [1e-9, 1e6])
def test_units_do_not_matter(unit: float) -> None:
    messages, _ = drawn(records=100)
    fit, variances = fit_mixture(messages)

    other, other_variances = fit_mixture(messages._replace(shift=unit * messages.shift))

    assert other.kappa == pytest.approx(unit * fit.kappa, rel=1e-3)
    np.testing.assert_allclose(other_variances, unit**2 * variances, rtol=1e-2)


def test_pure_noise_is_told_from_a_shift() -> None:
    random = np.random.default_rng(0)
    failures = []
    for seed in range(6):
        messages, _ = drawn(records=200, epochs=4, seed=seed)
        failures.append(fit_mixture(messages._replace(shift=random.normal(size=messages.shift.size)))[0].failure)
    assert all("labels shift nothing that can be told from noise" in failure for failure in failures)


def test_messages_without_noise_are_read_to_the_last_record() -> None:
    messages, positive = drawn(noise=0.0)
    fit, variances = fit_mixture(messages)

    assert not fit.failure
    assert np.isfinite(variances).all()
    assert oriented(rank_auc(scores(messages, fit, variances), positive)) == 1.0


@pytest.mark.parametrize("batch", [1, 7, 300])
def test_any_batch_size_will_do(batch: int) -> None:
    messages, positive = drawn(batch=batch, noise=0.4)
    fit, variances = fit_mixture(messages)
    assert rank_auc(scores(messages, fit, variances), positive) > 0.98


@pytest.mark.parametrize(
    ("changes", "failure"),
    [({"shift": np.zeros(1800)}, "all messages are zero"), ({"activation": np.zeros(1800)}, "")],
)
def test_nothing_to_fit_is_said_and_nothing_breaks(changes: dict[str, Any], failure: str) -> None:
    messages, _ = drawn()
    fit, variances = fit_mixture(messages._replace(**changes))
    assert fit.failure == failure
    assert np.isfinite(variances).all()


def test_a_single_message_is_no_fit_and_none_is_refused() -> None:
    one = LineMessages(np.array([0]), np.array([0]), np.array([0.3]), np.array([1.0]))
    assert fit_mixture(one)[0].failure

    with pytest.raises(ArgumentError, match="at least one message"):
        fit_mixture(LineMessages(*(field[:0] for field in one)))


def test_many_messages_are_fitted_by_those_of_some_records(monkeypatch: pytest.MonkeyPatch) -> None:
    messages, positive = drawn(records=1500)
    monkeypatch.setattr("splitvfl.attacks.mixture_fit._FITTED_MESSAGES", 3000)

    fit, variances = fit_mixture(messages)

    assert fit.messages == 3000
    assert variances.size == messages.record.size
    assert rank_auc(scores(messages, fit, variances), positive) > 0.95


def test_the_variance_of_a_new_step_is_about_that_of_its_noise() -> None:
    messages, _ = drawn(records=2000, batch=500)
    fit, _ = fit_mixture(messages)
    fresh, _ = drawn(records=500, epochs=1, batch=500, noise=1.5, seed=9)

    variances = step_variances(fresh._replace(step=fresh.step + fit.last + 1), fit)

    # Deviations are 1.5 to 1.95; a deviation from 500 rows has a standard error of 3 %.
    assert 1.3 < math.sqrt(variances[0]) < 2.1
    assert (variances == variances[0]).all()
