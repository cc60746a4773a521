from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.attacks import ResidueSolvingAttack, solve_residues
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View, call_attack
from splitvfl.learning.losses import Approximation
from splitvfl.learning.sigmoid_coefficients import APPROXIMATIONS, sigmoid_coefficients


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 1000))
def test_solution_equals_the_least_squares_solver_of_numpy(rows: int, columns: int, seed: int) -> None:
    features, gradient = draw(rows, columns, seed=seed), draw(columns, seed=seed + 1)

    solution = solve_residues(features, gradient, underdetermined=True)

    expected = np.linalg.lstsq(features.numpy().T, gradient.numpy(), rcond=None)[0]
    # Two ways to one solution differ by the condition number (up to 1e4 for small square draws) times 1e-16.
    np.testing.assert_allclose(solution.numpy(), expected, rtol=1e-8, atol=1e-8)


def test_residues_are_recovered_exactly_up_to_the_rank() -> None:
    features, residues = draw(20, 30), draw(20, seed=1)

    solution = solve_residues(features, features.T @ residues)

    # The condition number of such a matrix is below 100.
    torch.testing.assert_close(solution, residues, rtol=1e-12, atol=1e-12)


def test_zero_residues_of_zero_gradient() -> None:
    assert solve_residues(draw(3, 5), torch.zeros(5, dtype=torch.float64)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "features",
    [
        draw(6, 5),
        torch.cat([draw(3, 8), draw(3, 8)[:1]]),
        torch.cat([draw(3, 8), torch.zeros(1, 8)]),
        torch.zeros(2, 3),
    ],
    ids=["more rows than columns", "a row twice", "a row of zeros", "nothing"],
)
def test_more_residues_than_rank_are_refused(features: torch.Tensor) -> None:
    gradient = torch.zeros(features.shape[1])

    with pytest.raises(ArgumentError, match=r"more than the features' rank"):
        solve_residues(features, gradient)
    assert solve_residues(features, gradient, underdetermined=True).shape == features.shape[:1]


def test_a_row_that_differs_by_float32_rounding_does_not_add_to_the_rank() -> None:
    row = draw(1, 8).float()
    features = torch.cat([draw(3, 8, seed=1).float(), row, row * 3.0 / 3.0 * (1.0 + 1e-7)])

    with pytest.raises(ArgumentError, match="5 residues are more than the features' rank 4"):
        solve_residues(features, torch.zeros(8))


@pytest.mark.parametrize(
    ("features", "gradient", "message"),
    [
        (torch.zeros(3), torch.zeros(3), r"expected features \(s, d\)"),
        (torch.zeros(3, 2), torch.zeros(3), r"got \(3, 2\) and \(3,\)"),
        (torch.zeros(0, 2), torch.zeros(2), r"got \(0, 2\)"),
        (torch.full((1, 2), math.nan), torch.zeros(2), "features holds NaN"),
        (torch.ones(1, 2), torch.tensor([0.0, math.inf]), "gradient holds NaN or infinite"),
        (torch.ones(1, 2, dtype=torch.int64), torch.zeros(2), "floating-point dtype, got torch.int64"),
    ],
)
def test_bad_input_is_refused(features: torch.Tensor, gradient: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        solve_residues(features, gradient)


def view_of(columns: object, aggregated: torch.Tensor, rows: int) -> View:
    return View(party="B", step=0, ids=torch.arange(rows), columns=columns, aggregated_gradient=aggregated)


def test_attack_reads_all_labels_of_a_small_batch() -> None:
    features, labels = draw(24, 30).float(), (draw(24, seed=1) > 0).float()
    residues = (torch.sigmoid(draw(24, seed=2)).float() - labels) / 24

    scores = call_attack(ResidueSolvingAttack(), view_of(features, (features.T @ residues).unsqueeze(1), 24))

    assert torch.equal(scores > 0, labels == 1)


def test_signs_of_an_underdetermined_batch_are_right_as_often_as_published() -> None:
    s, d, trials = 128, 32, 100
    right = 0.0
    for seed in range(trials):
        features = draw(s, d, seed=seed)
        labels = torch.sign(draw(s, seed=10_000 + seed))
        view = view_of(features, (features.T @ (-0.5 * labels)).unsqueeze(1), s)
        right += (torch.sign(call_attack(ResidueSolvingAttack(), view)) == labels).double().mean().item()

    expected = NormalDist().cdf(math.sqrt(d / (s - d)))
    # 12 800 signs have a standard error of .004; three of them, and about as much for the approximation at finite s.
    assert right / trials == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_of_three_passive_parties_each_with_enough_columns_recovers_the_same_residues(
    approximation: Approximation,
) -> None:
    s, widths, active = 20, (24, 33, 12), 0.2 * draw(20, 5, seed=7)
    parties = [0.2 * draw(s, width, seed=width) for width in widths]
    weights = [0.1 * draw(width, seed=100 + width) for width in widths]
    own_weights, labels = torch.zeros(5, dtype=torch.float64), torch.sign(draw(s, seed=8))
    for _ in range(10):
        logits = active @ own_weights + sum(own @ weight for own, weight in zip(parties, weights, strict=True))
        residues = sigmoid_coefficients(logits, labels, approximation=approximation)
        seen = [view_of(own, (own.T @ residues).unsqueeze(1), s) for own in parties]
        for view in seen[:2]:
            # Exact up to the condition number of 20 generic rows, below 1e3.
            torch.testing.assert_close(-call_attack(ResidueSolvingAttack(), view), residues, rtol=0, atol=1e-11)
        with pytest.raises(ArgumentError, match="rank 12"):
            ResidueSolvingAttack(underdetermined=False)(seen[2])
        weights = [w - 0.1 * (own.T @ residues) / s for own, w in zip(parties, weights, strict=True)]
        own_weights = own_weights - 0.1 * (active.T @ residues) / s


def test_attack_may_insist_on_a_unique_solution() -> None:
    view = view_of(draw(6, 5), torch.zeros(5, 1), 6)

    with pytest.raises(ArgumentError, match="rank 5"):
        ResidueSolvingAttack(underdetermined=False)(view)


def test_wide_cuts_and_categorical_columns_are_refused() -> None:
    with pytest.raises(HookError, match=r"width 1, got shape \(5, 2\)"):
        ResidueSolvingAttack()(view_of(draw(4, 5), torch.zeros(5, 2), 4))
    with pytest.raises(HookError, match="numeric columns"):
        ResidueSolvingAttack()(view_of((draw(4, 5), torch.zeros(4, 1)), torch.zeros(5, 1), 4))
