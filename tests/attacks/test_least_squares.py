"""Estimates in closed form: least squares, its clamp, one half and the solution nearest to it; and guesses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.attacks import (
    ClampedLeastSquaresAttack,
    HalfStarAttack,
    RandomGuessAttack,
    ZeroAttack,
    clamped_least_squares,
    half,
    half_star,
    least_squares,
)
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations, View, call_attack

sizes = given(
    m=st.integers(1, 6), d=st.integers(1, 8), rank=st.integers(0, 6), n=st.integers(0, 5), seed=st.integers(0, 1000)
)


def system(m: int, d: int, rank: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Equations of a rank, their right sides, and the points of the unit box that they are of."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(m, rank, generator=generator, dtype=torch.float64)
    left = left @ torch.randn(rank, d, generator=generator, dtype=torch.float64)
    truth = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return left, truth @ left.T, truth


def view(left: torch.Tensor, right: torch.Tensor) -> View:
    return View(
        party="bank", step=0, ids=torch.arange(len(right)), equations=Equations(left, right, torch.zeros_like(right))
    )


@sizes
def test_half_star_is_the_solution_nearest_to_one_half(m: int, d: int, rank: int, n: int, seed: int) -> None:
    left, right, truth = system(m, d, rank, n, seed)

    estimate = half_star(left, right)

    inverse = scipy.linalg.pinv(left.numpy(), rtol=1e-10)
    expected = right.numpy() @ inverse.T + 0.5 * (np.eye(d) - inverse @ left.numpy()).sum(axis=1)
    # Condition numbers of these draws reach about 1e4.
    np.testing.assert_allclose(estimate.numpy(), expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(estimate @ left.T, right, rtol=0, atol=1e-8)
    # Pythagoras: the rest of the truth is orthogonal to what the equations tell.
    whole, told, rest = (
        (one - other).square().sum(dim=1) for one, other in ((truth, 0.5), (estimate, 0.5), (truth, estimate))
    )
    torch.testing.assert_close(whole, told + rest, rtol=0, atol=1e-7)


@sizes
def test_a_clamp_never_makes_an_estimate_worse(m: int, d: int, rank: int, n: int, seed: int) -> None:
    left, right, truth = system(m, d, rank, n, seed)
    plain, clamped = least_squares(left, right), clamped_least_squares(left, right)
    assert ((clamped >= 0) & (clamped <= 1)).all()
    assert ((clamped - truth).abs() <= (plain - truth).abs() + 1e-12).all()
    assert torch.equal(clamped, plain.clamp(0, 1))


def test_nothing_is_known_of_a_zero_matrix() -> None:
    left, right = torch.zeros(2, 3), torch.zeros(4, 2)
    assert least_squares(left, right).tolist() == [[0.0] * 3] * 4
    assert half_star(left, right).tolist() == [[0.5] * 3] * 4


def test_repeated_equations_change_nothing() -> None:
    left, right, _ = system(2, 5, 2, 6, 0)
    for estimate in (least_squares, half_star, clamped_least_squares):
        again = estimate(torch.cat([left, left]), torch.cat([right, right], dim=1))
        torch.testing.assert_close(again, estimate(left, right), rtol=0, atol=1e-12)


def test_half_reads_shapes_only() -> None:
    assert half(torch.ones(2, 3), torch.ones(4, 2)).tolist() == [[0.5] * 3] * 4
    assert half(torch.ones(2, 3), torch.ones(4, 2)).dtype == torch.float64


@pytest.mark.parametrize("estimate", [half, half_star, clamped_least_squares])
def test_systems_that_do_not_fit_are_refused(estimate: object) -> None:
    for left, right in (((2, 3), (4, 3)), ((2, 0), (4, 2)), ((3,), (4, 3))):
        with pytest.raises(ArgumentError, match="expected A"):
            estimate(torch.ones(left), torch.ones(right))  # type: ignore[operator]
    with pytest.raises(ArgumentError, match="NaN"):
        estimate(torch.ones(2, 3), torch.full((4, 2), float("inf")))  # type: ignore[operator]


@pytest.mark.parametrize("m", [0, 2])
def test_equations_that_tell_nothing_leave_the_start(m: int) -> None:
    left, right = torch.zeros(m, 3), torch.zeros(4, m)

    assert least_squares(left, right).tolist() == [[0.0] * 3] * 4
    assert half_star(left, right).tolist() == [[0.5] * 3] * 4


def test_attacks_read_the_equations_of_their_view() -> None:
    left, right, _ = system(2, 4, 2, 5, 3)
    seen = view(left, right)
    assert torch.equal(call_attack(HalfStarAttack(), seen), half_star(left, right))
    assert torch.equal(call_attack(ClampedLeastSquaresAttack(), seen), clamped_least_squares(left, right))
    assert call_attack(ZeroAttack(), seen).tolist() == [[0.0] * 4] * 5


@pytest.mark.parametrize("power", [0.3, 1.0, 4.0])
def test_a_uniform_guess_costs_a_twelfth_more_than_one_half_whatever_the_data(power: float) -> None:
    """Lemma 1: a random guess is worse than its mean by its variance."""
    truth = torch.rand(40_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** power
    seen = view(torch.ones(1, 3, dtype=torch.float64), truth.sum(dim=1, keepdim=True))
    guess = call_attack(RandomGuessAttack(seed=4), seen)
    gap = (guess - truth).square().mean() - (truth - 0.5).square().mean()
    # 120,000 entries whose squares have a deviation below .4: five standard errors are .006.
    assert gap.item() == pytest.approx(1 / 12, abs=0.006)


def test_guesses_follow_from_their_seed() -> None:
    seen = view(torch.ones(1, 2), torch.ones(6, 1))
    one, same, other = (call_attack(RandomGuessAttack(seed=seed), seen) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    for seed in (-1, 1.5, True):
        with pytest.raises(ArgumentError, match="seed must be"):
            RandomGuessAttack(seed=seed)  # type: ignore[arg-type]
