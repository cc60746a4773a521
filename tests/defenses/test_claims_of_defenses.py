"""What every exported defense claims: typed, said in whole sentences, with numbers that a calculation here confirms."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import laplace, norm

from splitvfl import defenses
from splitvfl.claims import (
    LABEL_CLAIMS,
    ROW_CLAIMS,
    DetectionError,
    Gaussian,
    GaussianDP,
    NoPromise,
    PureDP,
    RowNorm,
    claims_of,
    told,
)
from splitvfl.config.registry import built_in
from splitvfl.errors import ArgumentError
from tests.rows import every
from tests.test_contract import DEFENSES

SENTENCES = {name: told(claims_of(row.make())) for name, row in DEFENSES.items()}


def test_every_exported_defense_is_judged_here() -> None:
    exported = {one for one in vars(defenses).values() if inspect.isclass(one)}

    judged = {type(row.make()) for row in DEFENSES.values()}

    assert exported == judged
    assert set(built_in("defenses").values()) <= judged


@every(name=DEFENSES)
def test_it_promises_something_or_says_why_not(name: str) -> None:
    claims = claims_of(DEFENSES[name].make())

    promises = [claim for claim in claims if isinstance(claim, (*LABEL_CLAIMS, DetectionError))]
    nothing = [claim for claim in claims if isinstance(claim, NoPromise)]
    assert bool(promises) != bool(nothing)
    assert all(isinstance(claim, (*ROW_CLAIMS, *LABEL_CLAIMS, DetectionError, NoPromise)) for claim in claims)
    for claim in promises:
        assert claim.mechanism
        assert claim.conditions
        assert claim.not_covered


@every(name=DEFENSES)
def test_words_are_whole_sentences(name: str) -> None:
    said = SENTENCES[name]

    for text in [*said.promised, *said.not_covered, *(part for condition in said.conditions for part in condition)]:
        assert text[0].isupper(), text
        assert text.endswith("."), text
        assert not text.endswith(".."), text
        assert "  " not in text, text
    for mechanism in said.mechanisms:
        assert not mechanism.endswith("."), mechanism


@every(name=DEFENSES)
def test_each_condition_says_what_was_checked_of_it(name: str) -> None:
    for condition in SENTENCES[name].conditions:
        assert condition.checked.startswith(("Checked", "Nobody")), condition.checked


# --- numbers, computed anew


def largest_log_ratio(one: Callable[[Any], Any], other: Callable[[Any], Any], points: Any) -> float:
    return float(np.abs(one(points) - other(points)).max())


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 7.0])
def test_laplace_noise_costs_what_densities_on_a_grid_tell(epsilon: float) -> None:
    label, residue = claims_of(defenses.LaplaceResidue(epsilon=epsilon))
    scale, points = 2.0 / epsilon, np.linspace(-5, 5, 2001)

    def density(value: float) -> Callable[[Any], Any]:
        return lambda at: laplace.logpdf(at, loc=value, scale=scale)

    # Prediction .3: residues .7 and −.3; any two: −1 and 1.
    assert isinstance(label, PureDP)
    assert isinstance(residue, PureDP)
    assert label.epsilon == pytest.approx(largest_log_ratio(density(0.7), density(-0.3), points), rel=1e-9)
    assert residue.epsilon == pytest.approx(largest_log_ratio(density(1.0), density(-1.0), points), rel=1e-9)


@pytest.mark.parametrize("mode", ["sign_preserving", "centred_at_one"])
def test_multiplied_noise_costs_no_less_than_densities_on_a_grid_tell(mode: Any) -> None:
    defense = defenses.MultiplicativeLaplaceResidue(epsilon=4.0, b1=0.4, b2=1.0, mode=mode)
    label, residue = claims_of(defense)
    assert isinstance(label, PureDP)
    assert isinstance(residue, PureDP)
    scale, centre = 2 * 1.0 / (0.4 * 4.0), float(mode == "centred_at_one")
    points = np.linspace(-1, 1, 4001)[1:-1]

    def logs(size: float) -> Any:
        """Log densities of z = r (centre + λ L) inside, and log probabilities of both ends."""
        spread, middle = abs(size) * scale, size * centre
        ends = [laplace.logsf(1.0, loc=middle, scale=spread), laplace.logcdf(-1.0, loc=middle, scale=spread)]
        return np.concatenate([laplace.logpdf(points, loc=middle, scale=spread), ends])

    sizes = np.linspace(0.4, 1.0, 61)
    table = np.stack([logs(size) for size in np.concatenate([-sizes, sizes])])
    worst = float(np.ptp(table, axis=0).max())

    # The supremum is over all sizes and points; the grid has its ends, and misses it by a step of it at most.
    assert worst <= residue.epsilon * (1 + 1e-9)
    assert worst == pytest.approx(residue.epsilon, rel=5e-3)
    assert label.epsilon == residue.epsilon


ANSWERING = {
    name: row
    for name, row in DEFENSES.items()
    if any(isinstance(claim, PureDP) and claim.per == "run" for claim in claims_of(row.make()))
}


@pytest.mark.parametrize("name", [*ANSWERING, "asymmetric-response-without-epsilon", "three-classes"])
def test_remembered_answers_cost_what_their_probabilities_tell(name: str) -> None:
    made = {
        "asymmetric-response-without-epsilon": defenses.AsymmetricResponse(detection_error=0.3, epsilon=None),
        "three-classes": defenses.RandomisedResponse(epsilon=1.3, classes=3),
    }
    defense: Any = made[name] if name in made else ANSWERING[name].make()
    table = channel(defense)

    pure = [claim.epsilon for claim in claims_of(defense) if isinstance(claim, PureDP)]
    error = [claim for claim in claims_of(defense) if isinstance(claim, DetectionError)]
    with np.errstate(divide="ignore"):
        epsilon = float((np.log(table).max(axis=0) - np.log(table).min(axis=0)).max())
    assert pure == ([pytest.approx(epsilon, rel=1e-9)] if math.isfinite(epsilon) else [])
    for claim in error:
        distance = 0.5 * float(np.abs(table[0] - table[1]).sum())
        assert claim.bound == pytest.approx((1 - distance) / 2, rel=1e-9)
        if claim.auc is not None:
            # Of the best reader: P(positive's answer says more) + ½ P(both answer alike).
            zero, one = table
            ranks = np.argsort(one / zero) if (zero > 0).all() else np.argsort([0, 1])
            zero, one = zero[ranks], one[ranks]
            auc = sum(one[i] * (zero[:i].sum() + 0.5 * zero[i]) for i in range(len(one)))
            assert auc <= claim.auc + 1e-12
    assert error or not isinstance(defense, defenses.AbstainingResponse)


def channel(defense: Any) -> Any:
    """P(answer | label), a row for each label, from the defense's settings alone."""
    if isinstance(defense, defenses.RandomisedResponse):
        k = defense.classes
        lie = 1 / (math.exp(defense.epsilon) + k - 1)
        return np.full((k, k), lie) + np.eye(k) * (1 - k * lie)
    if isinstance(defense, defenses.AbstainingResponse):
        says, lie = defense.speaking, defense.flip
        return np.array([[says * (1 - lie), 1 - says, says * lie], [says * lie, 1 - says, says * (1 - lie)]])
    negative, positive = defense.flips
    return np.array([[1 - negative, negative], [positive, 1 - positive]])


@pytest.mark.parametrize("sigma", [0.5, 2.0, 30.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_delta_of_gaussian_rows_is_that_of_a_shift_by_twice_the_clip(sigma: float, epsilon: float) -> None:
    claim = claims_of(defenses.GaussianIR(clip=1.5, sigma=sigma))[0]
    assert isinstance(claim, Gaussian)

    assert claim.delta(epsilon) == pytest.approx(shifted(3.0 / sigma, epsilon), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
def test_the_delta_and_the_detection_error_of_a_gaussian_promise_are_those_of_a_shift(mu: float) -> None:
    for defense in (defenses.RecordGaussian(mu=mu), defenses.GaussianTargets(mu=mu)):
        (claim,) = claims_of(defense)
        assert isinstance(claim, GaussianDP)
        assert claim.delta(0.7) == pytest.approx(shifted(mu, 0.7), rel=1e-6)
        assert claim.detection_error == pytest.approx((1 - shifted(mu, 0.0)) / 2, rel=1e-6)


def shifted(distance: float, epsilon: float) -> float:
    """δ(ε) of N(0, 1) and N(distance, 1): the integral of what one density has above e^ε times the other."""
    points = np.linspace(-12, 12 + distance, 400_001)
    above = norm.pdf(points, loc=distance) - math.exp(epsilon) * norm.pdf(points)
    return float(np.trapezoid(above.clip(min=0), points))


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_delta_of_a_pure_promise_is_that_of_randomised_response(epsilon: float) -> None:
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    for other in (0.0, 0.1, epsilon, 5.0):
        expected = max(0.0, truth - math.exp(other) * (1 - truth)) + max(0.0, (1 - truth) - math.exp(other) * truth)
        assert PureDP(epsilon).delta(other) == pytest.approx(expected, abs=1e-15)
    assert PureDP(epsilon).success_bound == pytest.approx(truth)


def test_bounds_under_a_model_say_so() -> None:
    axis, sumkl = (claims_of(make(detection_error=0.4))[0] for make in (defenses.AxisGaussian, defenses.SumKL))
    for claim in (axis, sumkl):
        assert isinstance(claim, DetectionError)
        assert not claim.proven
        assert claim.bound == pytest.approx(0.4)
        assert "if its model of gradients holds" in claim.stated()
    # ½(FPR + FNR) of the best threshold between N(0, ratio²) and N(1, ratio²).
    (given,) = claims_of(defenses.AxisGaussian(ratio=2.0))
    assert isinstance(given, DetectionError)
    assert given.bound == pytest.approx(norm.sf(0.5 / 2.0))
    assert isinstance(claims_of(defenses.SumKL(ratio=1.0))[0], NoPromise)
    # Noise without measure, and next to none: what rounds to the ends is claimed as that.
    for ratio, bound in ((1e20, 0.5), (1e-3, 0.0)):
        (given,) = claims_of(defenses.AxisGaussian(ratio=ratio))
        assert isinstance(given, DetectionError)
        assert given.bound == bound


def test_what_is_no_number_is_no_claim() -> None:
    for wrong in (0.0, -1.0, math.inf, math.nan, 1):
        with pytest.raises(ArgumentError, match="PureDP: epsilon must be positive and finite"):
            PureDP(wrong)
        with pytest.raises(ArgumentError, match="GaussianDP: mu must be positive and finite"):
            GaussianDP(wrong)
    for bound in (-0.1, 0.6, math.nan):
        with pytest.raises(ArgumentError, match="DetectionError: bound must be from 0 to ½"):
            DetectionError(bound)
    with pytest.raises(ArgumentError, match="per must be 'message' or 'run'"):
        PureDP(1.0, per="epoch")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="without a bound on rows"):
        Gaussian(1.0).delta(1.0)


def test_words_are_no_part_of_what_is_compared() -> None:
    assert PureDP(1.0, mechanism="one") == PureDP(1.0, mechanism="other")
    assert PureDP(1.0) != PureDP(2.0)
    assert RowNorm(1.0) != RowNorm(2.0)
