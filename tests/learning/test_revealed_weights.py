from __future__ import annotations

import math

import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.data.transform import random_rotation
from splitvfl.errors import ArgumentError
from splitvfl.learning.revealed_weights import least_singular_value, rotated_weights, shifted_error, weight_shift


def case(k: int, d: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of the unit box, weights, second moments and means; one logit for k = 1."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(40, d, generator=generator, dtype=torch.float64) ** 2
    weight = torch.randn(k, d, generator=generator, dtype=torch.float64)
    return x, weight[0] if k == 1 else weight, x.T @ x / 40, x.mean(dim=0)


def missed(x: Tensor, weight: Tensor, shown: Tensor, *, start: float) -> float:
    """MSE per feature of the estimate ``start + Ã⁺(b − Ã start)``, with neighbouring differences of classes."""
    A, other = ((one[None] if one.dim() == 1 else torch.diff(one, dim=0)).numpy() for one in (weight, shown))
    b = x.numpy() @ A.T
    at = start + (b - start * other.sum(axis=1)) @ scipy.linalg.pinv(other).T
    return float(((at - x.numpy()) ** 2).mean())


@pytest.mark.parametrize("misled", ["least-squares", "half-star"])
@given(k=st.sampled_from([1, 2, 3]), d=st.integers(2, 5), share=st.floats(0.1, 0.9), seed=st.integers(0, 40))
def test_the_error_is_that_of_the_estimate(misled: str, k: int, d: int, share: float, seed: int) -> None:
    x, weight, K, mean = case(k, d, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    shift = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    shift = shift * share * least_singular_value(weight) / shift.norm()

    found = shifted_error(weight, shift, K, mean, misled=misled)  # type: ignore[arg-type]

    start = 0.5 if misled == "half-star" else 0.0
    assert found == pytest.approx(missed(x, weight, weight + shift, start=start), rel=1e-7)


@pytest.mark.parametrize("misled", ["least-squares", "half-star"])
@pytest.mark.parametrize(("k", "d"), [(1, 2), (1, 6), (2, 3), (3, 4), (4, 3)])
def test_no_random_shift_of_that_norm_misleads_more(misled: str, k: int, d: int) -> None:
    x, weight, K, mean = case(k, d, seed=7 * k + d)
    norm = 0.6 * least_singular_value(weight)

    best = weight_shift(weight, K, mean, norm=norm, misled=misled)  # type: ignore[arg-type]

    assert best.norm().item() == pytest.approx(norm, rel=1e-9)
    reached = shifted_error(weight, best, K, mean, misled=misled)  # type: ignore[arg-type]
    assert reached == pytest.approx(missed(x, weight, weight + best, start=0.5 * (misled == "half-star")), rel=1e-6)
    generator = torch.Generator().manual_seed(0)
    for number in range(100):
        other = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        # Anywhere in the ball at first, then next to the best.
        radius = norm * torch.rand(1, generator=generator).item() ** (1 / 4)
        other = other * radius / other.norm() if number < 50 else best + 0.05 * norm * other / other.norm()
        other = other * min(1.0, norm / other.norm().item())
        assert shifted_error(weight, other, K, mean, misled=misled) <= reached * (1 + 1e-7)  # type: ignore[arg-type]


@given(d=st.integers(1, 6), share=st.floats(0.05, 0.95), seed=st.integers(0, 60))
def test_of_one_equation_the_search_ends_where_the_closed_form_is(d: int, share: float, seed: int) -> None:
    _, weight, K, mean = case(1, d, seed=seed)
    norm = share * least_singular_value(weight)
    closed = weight_shift(weight, K, mean, norm=norm)
    # Two softmax classes with the same difference are the same equation, but for the length of the difference.
    generator = torch.Generator().manual_seed(seed)
    reached = shifted_error(weight, closed, K, mean, misled="least-squares")

    for _ in range(20):
        other = torch.randn(d, generator=generator, dtype=torch.float64)
        other = closed + 0.3 * norm * other / other.norm()
        other = other * norm / other.norm()
        assert shifted_error(weight, other, K, mean, misled="least-squares") <= reached + 1e-9


def test_next_to_the_least_singular_value_errors_have_no_bound() -> None:
    _, weight, K, mean = case(3, 4, seed=1)
    largest = least_singular_value(weight)

    errors = []
    for gap in (1e-2, 1e-4):
        shift = weight_shift(weight, K, mean, norm=largest * (1 - gap))
        errors.append(shifted_error(weight, shift, K, mean, misled="least-squares"))

    assert errors[1] > 1000 * errors[0]
    with pytest.raises(ArgumentError, match="no bound"):
        weight_shift(weight, K, mean, norm=largest)


def test_what_all_classes_have_in_common_is_not_moved() -> None:
    _, weight, K, mean = case(4, 5, seed=2)

    shift = weight_shift(weight, K, mean, norm=0.1)

    torch.testing.assert_close(shift.sum(dim=0), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)


def test_rotated_weights_are_those_of_rotated_columns() -> None:
    x, weight, _, _ = case(3, 4, seed=0)
    turn = random_rotation(4, seed=1)

    torch.testing.assert_close(turn.of(x) @ rotated_weights(weight, turn.matrix).T, x @ weight.T)
    with pytest.raises(ArgumentError, match=r"expected H \(d, d\)"):
        rotated_weights(weight, torch.eye(3))


def test_bad_input_is_told() -> None:
    _, weight, K, mean = case(3, 4, seed=0)
    with pytest.raises(ArgumentError, match="norm above 0"):
        weight_shift(weight, K, mean, norm=0.0)
    with pytest.raises(ArgumentError, match="half-star"):
        weight_shift(weight, K, mean, norm=0.1, misled="rcc2")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="second moments"):
        weight_shift(weight, K[:2], mean, norm=0.1)
    with pytest.raises(ArgumentError, match="finite weights"):
        weight_shift(weight * math.nan, K, mean, norm=0.1)
    with pytest.raises(ArgumentError, match="k > 1"):
        least_singular_value(torch.ones(1, 3))
