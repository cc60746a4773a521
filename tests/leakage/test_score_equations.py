from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.attacks import LeastSquaresAttack, equations, least_squares, score_equations
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, call_attack, target_of
from splitvfl.metrics import reconstruction_mse


def system(n: int, k: int, d: int, *, seed: int = 0, scale: float = 1.0) -> tuple[torch.Tensor, ...]:
    """Scores, active logits, weights and the true features; one sigmoid for k = 1."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(n, d, generator=generator, dtype=torch.float64)
    weight = scale * torch.randn(k, d, generator=generator, dtype=torch.float64)
    known = torch.randn(n, k, generator=generator, dtype=torch.float64)
    if k == 1:
        weight, known = weight[0], known[:, 0]
        return torch.sigmoid(known + features @ weight), known, weight, features
    return torch.softmax(known + features @ weight.T, dim=1), known, weight, features


@given(k=st.integers(1, 8), d=st.integers(1, 10), seed=st.integers(0, 1000))
def test_the_true_features_solve_the_equations(k: int, d: int, seed: int) -> None:
    scores, known, weight, features = system(5, k, d, seed=seed)

    left, right = equations(scores, known, weight)

    assert left.shape == (max(k - 1, 1), d)
    # Logits up to about 15 here: a score as small as e^-15 costs no digits, and 1 - c at most e^15 · 1e-16.
    torch.testing.assert_close(features @ left.T, right, rtol=0, atol=1e-9)


def test_a_sigmoid_is_one_equation_in_the_weights() -> None:
    scores, known, weight, _ = system(4, 1, 3)

    left, right = equations(scores, known, weight)

    assert torch.equal(left, weight.unsqueeze(0))
    expected = [math.log(c) - math.log(1 - c) - a for c, a in zip(scores.tolist(), known.tolist(), strict=True)]
    assert right[:, 0].tolist() == pytest.approx(expected, rel=1e-12)


def test_float32_is_solved_in_float64() -> None:
    left, right = equations(*(tensor.float() for tensor in system(3, 4, 5)[:3]))

    assert left.dtype == right.dtype == torch.float64


def test_a_saturated_sigmoid_is_bounded_and_reported() -> None:
    scores = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)

    with pytest.warns(RuntimeWarning, match="2 of 3 predictions hold scores of exactly 0 or 1"):
        _, right = equations(scores, torch.zeros(3, dtype=torch.float64), torch.ones(2, dtype=torch.float64))

    bound = -math.log(torch.finfo(torch.float64).eps / 2)
    assert right[:, 0].tolist() == pytest.approx([-bound, math.log(1 / 3), bound], rel=1e-12)


def test_a_raised_zero_stays_below_every_score_that_was_published() -> None:
    scores = torch.tensor([0.0, 1e-30], dtype=torch.float64)

    with pytest.warns(RuntimeWarning, match="1 of 2"):
        _, right = equations(scores, torch.zeros(2, dtype=torch.float64), torch.ones(1, dtype=torch.float64))

    assert right[0, 0] == pytest.approx(math.log(0.5e-30))
    assert right[1, 0] == pytest.approx(math.log(1e-30))


@pytest.mark.parametrize("d", [2, 3, 6])
def test_zero_scores_of_a_row_with_two_positive_ones_are_left_out(d: int) -> None:
    scores, known, weight, _ = system(6, 5, d)
    zeroed = scores.clone()
    zeroed[1, 2] = zeroed[1, 4] = zeroed[3, 0] = 0.0

    with pytest.warns(RuntimeWarning, match="2 of 6"):
        estimate = least_squares(*equations(zeroed, known, weight))

    for row, kept in ((1, [0, 1, 3]), (3, [1, 2, 3, 4])):
        reduced = equations(scores[row : row + 1, kept], known[row : row + 1, kept], weight[kept])
        # Consistent systems of condition number below 1e3.
        torch.testing.assert_close(estimate[row], least_squares(*reduced)[0], rtol=0, atol=1e-10)
    untouched = least_squares(*equations(scores, known, weight))
    torch.testing.assert_close(estimate[[0, 2, 4, 5]], untouched[[0, 2, 4, 5]], rtol=0, atol=1e-12)


def test_a_one_hot_row_is_bounded() -> None:
    scores = torch.tensor([[0.0, 1.0, 0.0]])

    with pytest.warns(RuntimeWarning):
        left, right = equations(scores, torch.zeros(1, 3), torch.eye(3))

    bound = -math.log(torch.finfo(torch.float32).eps / 2)
    assert left.tolist() == [[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]]
    assert right[0].tolist() == pytest.approx([bound, -bound], rel=1e-6)


@given(m=st.integers(1, 8), d=st.integers(1, 8), rank=st.integers(1, 8), seed=st.integers(0, 1000))
def test_least_squares_equals_the_pseudo_inverse_of_scipy(m: int, d: int, rank: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(m, rank, generator=generator, dtype=torch.float64)
    left = left @ torch.randn(rank, d, generator=generator, dtype=torch.float64)
    right = torch.randn(4, m, generator=generator, dtype=torch.float64)

    estimate = least_squares(left, right)

    expected = right.numpy() @ scipy.linalg.pinv(left.numpy(), rtol=1e-10).T
    # Condition numbers of these draws reach about 1e5.
    np.testing.assert_allclose(estimate.numpy(), expected, rtol=1e-7, atol=1e-7)


def test_least_squares_treats_tiny_singular_values_as_zero() -> None:
    left = torch.diag(torch.tensor([1.0, 1e-11], dtype=torch.float64))

    assert least_squares(left, torch.ones(1, 2, dtype=torch.float64)).tolist() == [[1.0, 0.0]]


def test_error_of_least_squares_is_what_the_null_space_hides() -> None:
    scores, known, weight, features = system(300, 4, 7)

    left, right = equations(scores, known, weight)
    mse = reconstruction_mse(least_squares(left, right), features)

    projection = np.linalg.pinv(left.numpy()) @ left.numpy()
    second_moment = features.numpy().T @ features.numpy() / 300
    expected = np.trace((np.eye(7) - projection) @ second_moment) / 7
    assert mse == pytest.approx(expected, rel=1e-9)
    # It lies between the sums of the d - rank smallest and largest eigenvalues.
    eigenvalues = np.linalg.eigvalsh(second_moment)
    assert eigenvalues[:4].sum() <= 7 * mse <= eigenvalues[-4:].sum()


def test_as_many_equations_as_features_are_enough() -> None:
    scores, known, weight, features = system(50, 6, 5)
    view = View(party="A", step=0, ids=torch.arange(50), equations=score_equations(scores, known, weight))

    estimate = call_attack(LeastSquaresAttack(), view)

    assert target_of(LeastSquaresAttack()) == "features"
    # Condition number below 1e3, logits with an error of about 1e-14.
    torch.testing.assert_close(estimate, features, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("scores", "known", "weight", "message"),
    [
        (torch.rand(3), torch.rand(2), torch.rand(4), r"got \(3,\), \(2,\) and \(4,\)"),
        (torch.rand(3), torch.rand(3), torch.rand(1, 4), "expected scores and active logits"),
        (torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 4), "expected scores and active logits"),
        (torch.rand(3, 1), torch.rand(3, 1), torch.rand(1, 4), "k > 1"),
        (torch.rand(3, 2), torch.rand(3, 2), torch.rand(2), "expected scores and active logits"),
        (torch.rand(3), torch.rand(3), torch.rand(0), "expected scores and active logits"),
        (torch.tensor([1.5]), torch.zeros(1), torch.ones(2), r"scores must lie in \[0, 1\]"),
        (torch.tensor([-0.5]), torch.zeros(1), torch.ones(2), r"scores must lie in \[0, 1\]"),
        (torch.tensor([math.nan]), torch.zeros(1), torch.ones(2), "scores holds NaN"),
        (torch.tensor([0.5]), torch.tensor([math.inf]), torch.ones(2), "active_logits holds NaN or infinite"),
        (torch.tensor([1]), torch.zeros(1), torch.ones(2), "floating-point dtype, got torch.int64"),
    ],
)
def test_bad_input_is_refused(scores: torch.Tensor, known: torch.Tensor, weight: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        equations(scores, known, weight)


def test_least_squares_refuses_systems_that_do_not_fit() -> None:
    with pytest.raises(ArgumentError, match=r"got \(2, 3\) and \(4, 3\)"):
        least_squares(torch.ones(2, 3), torch.ones(4, 3))
    with pytest.raises(ArgumentError, match="NaN"):
        least_squares(torch.ones(2, 3), torch.full((4, 2), math.nan))
