from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.attacks import least_squares
from splitvfl.attacks.error_bounds import (
    UNIFORM_VARIANCE,
    classes_for_exactness,
    column_errors,
    equation_count,
    errors_before_training,
    flip_gain,
    guess_error,
    half_star_error,
    least_error,
    least_squares_error,
    row_space,
    transformed_error,
)
from splitvfl.errors import ArgumentError
from splitvfl.leakage.column_moments import ColumnMoments
from splitvfl.metrics import reconstruction_mse

SIZES = {"n": st.integers(1, 40), "d": st.integers(1, 9), "m": st.integers(1, 9), "seed": st.integers(0, 1000)}


def columns(n: int, d: int, *, seed: int) -> Tensor:
    """Correlated columns of the unit box with means all over it."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    own = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return (0.4 * common + 0.6 * own) ** torch.linspace(0.5, 4.0, d, dtype=torch.float64)


def weights(m: int, d: int, *, seed: int) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)


def orthonormal(d: int, *, seed: int) -> Tensor:
    return torch.from_numpy(scipy.stats.ortho_group.rvs(d, random_state=seed) if d > 1 else np.ones((1, 1)))


@given(**SIZES)
def test_the_closed_forms_are_the_errors_of_the_estimates(n: int, d: int, m: int, seed: int) -> None:
    x, A = columns(n, d, seed=seed), weights(m, d, seed=seed)
    moments = ColumnMoments.of(x)
    b = x @ A.T
    fitting = least_squares(A, b)
    null = torch.from_numpy(scipy.linalg.null_space(A.numpy()))
    filling = null @ null.T

    # Sums of 40 rows of numbers below 1, and weights whose condition may be 1e4: float64 leaves more than eight digits.
    assert least_squares_error(A, moments) == pytest.approx(reconstruction_mse(fitting, x), abs=1e-8)
    half_star = fitting + filling.sum(dim=1) / 2
    assert half_star_error(A, moments) == pytest.approx(reconstruction_mse(half_star, x), abs=1e-8)
    best = fitting + filling @ x.mean(dim=0)
    assert least_error(A, moments) == pytest.approx(reconstruction_mse(best, x), abs=1e-8)
    each = (half_star - x).square().mean(dim=0)
    torch.testing.assert_close(column_errors(A, moments, fill=0.5), each, rtol=0, atol=1e-8)


@given(**SIZES)
def test_the_bounds_before_training_hold_for_every_weight(n: int, d: int, m: int, seed: int) -> None:
    x, A = columns(n, d, seed=seed), weights(m, d, seed=seed)
    moments = ColumnMoments.of(x)

    forecast = errors_before_training(moments, m)

    assert forecast.rank == min(m, d)
    for found, error in (
        (forecast.least_squares, least_squares_error(A, moments)),
        (forecast.half_star, half_star_error(A, moments)),
        (forecast.best, least_error(A, moments)),
    ):
        assert found.low - 1e-12 <= error <= found.high + 1e-12
    assert forecast.best.low <= min(least_squares_error(A, moments), half_star_error(A, moments)) + 1e-12
    assert forecast.exact == (m >= d)


@pytest.mark.parametrize("which", [0, 1])
def test_weights_along_the_eigenvectors_attain_both_bounds(which: int) -> None:
    x = columns(50, 6, seed=3)
    moments = ColumnMoments.of(x)
    _, vectors = np.linalg.eigh((x.T @ x / 50).numpy())
    rank = 2
    kept = vectors[:, -rank:] if which == 0 else vectors[:, :rank]

    found = errors_before_training(moments, rank).least_squares

    assert least_squares_error(torch.from_numpy(kept.T.copy()), moments) == pytest.approx(found[which], abs=1e-12)


@given(n=st.integers(2, 30), d=st.integers(1, 7), pieces=st.integers(1, 5), seed=st.integers(0, 100))
def test_pieces_of_rows_have_the_moments_of_all(n: int, d: int, pieces: int, seed: int) -> None:
    x, point = columns(n, d, seed=seed), columns(1, d, seed=seed + 1)[0]
    whole, parts = ColumnMoments.of(x), ColumnMoments.of(iter(x.float().double().tensor_split(pieces)))

    assert whole.count == parts.count == n
    moved = (x - point).numpy()
    np.testing.assert_allclose(whole.around(point).numpy(), moved.T @ moved / n, atol=1e-14)
    covariance = np.cov(x.numpy(), rowvar=False, bias=True).reshape(d, d)
    np.testing.assert_allclose(whole.around(whole.mean).numpy(), covariance, atol=1e-14)
    torch.testing.assert_close(parts.around(0.0), whole.around(0.0), rtol=0, atol=1e-6)  # rounded to float32


def test_a_uniform_guess_costs_a_twelfth_more_than_half_on_any_data() -> None:
    x = columns(400, 3, seed=0)
    moments = ColumnMoments.of(x)
    generator = torch.Generator().manual_seed(1)
    draws = torch.rand(2000, 400, 3, generator=generator, dtype=torch.float64)

    found = guess_error(moments, 0.5, UNIFORM_VARIANCE)

    assert found - guess_error(moments, 0.5) == pytest.approx(1 / 12, abs=1e-15)
    assert guess_error(moments, 0.5) == pytest.approx(reconstruction_mse(torch.full_like(x, 0.5), x), abs=1e-14)
    # 2.4 million squared errors with a standard deviation below .3: 2e-4 standard errors.
    assert found == pytest.approx((draws - x).square().mean().item(), abs=1e-3)


@given(**SIZES)
def test_a_transform_costs_its_closed_form(n: int, d: int, m: int, seed: int) -> None:
    x, A, H = columns(n, d, seed=seed), weights(m, d, seed=seed), orthonormal(d, seed=seed)
    shift = weights(1, d, seed=seed + 5)[0]
    z = x @ H.T + shift
    revealed = A @ H.T
    fitting = least_squares(revealed, z @ revealed.T)
    moments = ColumnMoments.of(x)

    assert transformed_error(A, moments, H, shift) == pytest.approx(reconstruction_mse(fitting, x), abs=1e-7)
    inside = least_squares(revealed, torch.full((1, d), 0.5, dtype=torch.float64) @ revealed.T)
    half_star = fitting + 0.5 - inside
    assert transformed_error(A, moments, H, shift, fill=0.5) == pytest.approx(
        reconstruction_mse(half_star, x), abs=1e-7
    )
    P, K = row_space(A), moments.around(0.0)
    published = torch.trace((torch.eye(d) + P) @ K) - 2 * torch.trace(H @ P @ K)
    assert transformed_error(A, moments, H) == pytest.approx(published.item() / d, abs=1e-10)


@given(**SIZES)
def test_the_flip_raises_both_errors_by_the_same_number(n: int, d: int, m: int, seed: int) -> None:
    x, A = columns(n, d, seed=seed), weights(m, d, seed=seed)
    moments = ColumnMoments.of(x)
    H, shift = -torch.eye(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64)

    gain = flip_gain(A, moments)

    assert transformed_error(A, moments, H, shift) - least_squares_error(A, moments) == pytest.approx(gain, abs=1e-9)
    raised = transformed_error(A, moments, H, shift, fill=0.5)
    assert raised - half_star_error(A, moments) == pytest.approx(gain, abs=1e-9)


def test_equations_and_classes_are_counted() -> None:
    assert [equation_count(k, seen="scores") for k in (2, 3, 10)] == [1, 2, 9]
    assert [equation_count(k, seen="activation") for k in (2, 3, 10)] == [1, 3, 10]
    assert equation_count(2, seen="activation", one_logit=False) == 2
    assert classes_for_exactness(1, seen="scores") == 2
    assert classes_for_exactness(36, seen="scores") == 37
    assert classes_for_exactness(36, seen="activation") == 36


def test_a_repeated_equation_and_no_equation_are_of_lower_rank() -> None:
    x = columns(20, 3, seed=1)
    moments, row = ColumnMoments.of(x), weights(1, 3, seed=2)

    assert least_squares_error(row.repeat(2, 1), moments) == pytest.approx(least_squares_error(row, moments), abs=1e-14)
    assert least_squares_error(torch.zeros(2, 3), moments) == pytest.approx(x.square().mean().item(), abs=1e-14)
    assert half_star_error(torch.zeros(0, 3), moments) == pytest.approx(guess_error(moments, 0.5), abs=1e-14)


def test_bad_input_is_told() -> None:
    moments = ColumnMoments.of(columns(3, 2, seed=0))
    with pytest.raises(ArgumentError, match="at least one row"):
        ColumnMoments.of(torch.zeros(0, 2))
    with pytest.raises(ArgumentError, match="NaN"):
        ColumnMoments.of(torch.tensor([[float("nan"), 1.0]]))
    with pytest.raises(ArgumentError, match=r"expected rows \(n, 2\)"):
        moments.add(torch.zeros(1, 3))
    with pytest.raises(ArgumentError, match=r"expected equations \(m, 2\)"):
        least_squares_error(torch.ones(1, 3), moments)
    with pytest.raises(ArgumentError, match="2 classes"):
        equation_count(1, seen="scores")
    with pytest.raises(ArgumentError, match="at least one column"):
        classes_for_exactness(0, seen="scores")
