from __future__ import annotations

import math

import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.attacks import LeastSquaresAttack, equations, score_equations
from splitvfl.attacks.noise_subtraction import NoiseSubtractionAttack, feasible_powers, subtract_noise
from splitvfl.defenses import ScoreNoise, noise_direction
from splitvfl.defenses.score_noise import as_classes, scheme_noise
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, View, call_attack
from splitvfl.metrics import reconstruction_mse

SCHEMES = st.sampled_from([1, 2, 3])


def case(k: int, d: int, *, seed: int = 0, n: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, active logits, weights and the true features; one sigmoid for k = 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=torch.float64)
    weight = torch.randn(k, d, generator=generator, dtype=torch.float64)
    known = torch.randn(n, k, generator=generator, dtype=torch.float64)
    logits = known + x @ weight.T
    if k == 1:
        return torch.sigmoid(logits[:, 0]), known[:, 0], weight[0], x
    return torch.softmax(logits, dim=1), known, weight, x


def defended(scores: Tensor, weight: Tensor, scheme: int, power: float) -> Tensor:
    direction = None if scheme == 3 else noise_direction(weight)[0].tolist()
    own = Secrets(party="bank", step=0, generator=torch.Generator())
    return ScoreNoise(scheme=scheme, power=power, direction=direction)(scores, own)  # type: ignore[arg-type]


def view(scores: Tensor, known: Tensor, weight: Tensor) -> View:
    ids = torch.arange(len(scores))
    shown = {"scores": scores, "active_logits": known, "passive_weight": weight}
    return View(party="bank", step=0, ids=ids, equations=score_equations(*shown.values()), **shown)


@settings(max_examples=25)
@given(k=st.sampled_from([1, 2, 3, 6]), d=st.integers(1, 7), seed=st.integers(0, 200), scheme=SCHEMES)
def test_a_known_power_leaves_no_defense(k: int, d: int, seed: int, scheme: int) -> None:
    scores, known, weight, _ = case(k, d, seed=seed)
    sent = defended(scores, weight, scheme, 2.0)

    plain = subtract_noise(sent, scheme, power=2.0, direction=noise_direction(weight)[0])  # type: ignore[arg-type]

    torch.testing.assert_close(plain, scores, rtol=1e-9, atol=1e-14)
    estimate = call_attack(NoiseSubtractionAttack(scheme=scheme, power=2.0), view(sent, known, weight))  # type: ignore[arg-type]
    undefended = call_attack(LeastSquaresAttack(), view(scores, known, weight))
    # Logits below 12 lose five digits at most, and weights may be of condition 1e4.
    torch.testing.assert_close(estimate, undefended, rtol=0, atol=1e-6)


@settings(max_examples=15)
@given(k=st.sampled_from([1, 3, 5]), d=st.integers(1, 6), seed=st.integers(0, 50), scheme=SCHEMES)
def test_the_feasible_powers_hold_the_right_one(k: int, d: int, seed: int, scheme: int) -> None:
    scores, known, weight, _ = case(k, d, seed=seed, n=4)
    power = 0.5
    A, b = equations(defended(scores, weight, scheme, power), known, weight)
    direction = noise_direction(weight)[0]
    step = torch.diff(scheme_noise(as_classes(scores), scheme, power=1.0, direction=direction), dim=1)  # type: ignore[arg-type]

    found = feasible_powers(A, b, step)

    assert found.low - 1e-6 <= power <= found.high + 1e-6

    def missed(power: float) -> float:
        """By how much the equations of some prediction miss every point of the box, on a grid of one power."""
        right = (b - math.sqrt(power) * step).numpy()
        return max(math.sqrt(2 * scipy.optimize.lsq_linear(A.numpy(), row, (0, 1)).cost) for row in right)

    # Solvers leave 1e-6; beyond the ends the miss grows with the root of the power, by 1e-3 and more.
    assert missed(min((found.low + found.high) / 2, found.low + 1.0)) < 1e-4
    if math.isfinite(found.high):
        assert missed((math.sqrt(found.high) + 0.1) ** 2) > 1e-4
    if found.low > 0.05:
        assert missed((math.sqrt(found.low) - 0.1) ** 2) > 1e-4
    assert missed(power) < 1e-4


@settings(max_examples=25)
@given(d=st.integers(1, 5), seed=st.integers(0, 100))
def test_of_one_equation_the_powers_are_known_in_closed_form(d: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(1, d, generator=generator, dtype=torch.float64)
    right = A @ torch.rand(d, generator=generator, dtype=torch.float64)
    low, high = A.clamp(max=0).sum().item(), A.clamp(min=0).sum().item()

    found = feasible_powers(A, right[None] + 0.7, torch.ones(1, 1))

    # A x = b + .7 − s for an x in the box: from s = b + .7 − high, or 0, to b + .7 − low.
    expected = [max(0.0, right.item() + 0.7 - high), right.item() + 0.7 - low]
    assert [math.sqrt(found.low), math.sqrt(found.high)] == pytest.approx(expected, abs=1e-7)


def test_many_predictions_narrow_an_unknown_power_down() -> None:
    scores, known, weight, x = case(4, 3, seed=2, n=40)
    sent = defended(scores, weight, 3, 1.0)
    attack = NoiseSubtractionAttack(scheme=3)

    estimate = call_attack(attack, view(sent, known, weight))

    naive = reconstruction_mse(call_attack(LeastSquaresAttack(), view(sent, known, weight)), x)
    A, b = equations(sent, known, weight)
    step = torch.diff(scheme_noise(as_classes(sent), 3, power=1.0), dim=1)
    few, many = (feasible_powers(A, b, step, most=most) for most in (3, 40))
    assert few.low <= many.low <= 1.0 <= many.high <= few.high
    assert reconstruction_mse(estimate, x) < naive / 4


def test_without_noise_its_power_may_be_none() -> None:
    scores, known, weight, _ = case(3, 4, seed=1)
    A, b = equations(scores, known, weight)
    step = torch.diff(scheme_noise(as_classes(scores), 3, power=1.0), dim=1)

    assert feasible_powers(A, b, step).low == pytest.approx(0.0, abs=1e-12)


def test_bad_input_is_told() -> None:
    A, b = torch.ones(1, 1), torch.tensor([[5.0], [0.5]])
    with pytest.raises(ArgumentError, match="no power leaves"):
        feasible_powers(A, b, torch.zeros(2, 1))
    with pytest.raises(ArgumentError, match="no power fits all"):
        feasible_powers(A, torch.tensor([[5.0], [9.0]]), torch.ones(2, 1))
    with pytest.raises(ArgumentError, match=r"step \(n, m\)"):
        feasible_powers(A, b, torch.zeros(1, 1))
    with pytest.raises(ArgumentError, match="NaN"):
        feasible_powers(A, b, torch.full((2, 1), math.nan))
    with pytest.raises(ArgumentError, match="scheme must be"):
        NoiseSubtractionAttack(scheme="optimum")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="power must be"):
        NoiseSubtractionAttack(scheme=1, power=-1.0)
    with pytest.raises(ArgumentError, match="scheme 3 adds noise to the predicted class alone"):
        NoiseSubtractionAttack(scheme=3, direction=[1.0, 0.0])


@pytest.mark.parametrize("scheme", [1, 2])
def test_a_direction_that_does_not_follow_from_the_weights_is_told(scheme: int) -> None:
    scores, known, weight, _ = case(4, 6)
    chosen = [0.1, -0.7, 0.2, 0.5]
    own = Secrets(party="bank", step=0, generator=torch.Generator())
    sent = ScoreNoise(scheme=scheme, power=2.0, direction=chosen)(scores, own)  # type: ignore[arg-type]
    undefended = call_attack(LeastSquaresAttack(), view(scores, known, weight))

    told = NoiseSubtractionAttack(scheme=scheme, power=2.0, direction=chosen)  # type: ignore[arg-type]
    guessing = NoiseSubtractionAttack(scheme=scheme, power=2.0)  # type: ignore[arg-type]

    # As above.
    torch.testing.assert_close(call_attack(told, view(sent, known, weight)), undefended, rtol=0, atol=1e-6)
    assert (call_attack(guessing, view(sent, known, weight)) - undefended).abs().max() > 0.01
