from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import cvxpy
import numpy as np
import pytest
import torch

from splitvfl.attacks import (
    GradientInversionAttack,
    equations,
    gradient_inversion,
    least_squares,
    projected_gradient,
    score_equations,
)
from splitvfl.attacks.gradient_inversion import _kl_slope, _log_squares_slope
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, call_attack, target_of
from splitvfl.metrics import reconstruction_mse


def system(n: int, k: int, d: int, *, spread: float = 1.0, scale: float = 1.0) -> tuple[torch.Tensor, ...]:
    """Scores, active logits, weights and true features within ½ ± spread/2; one sigmoid for k = 1."""
    generator = torch.Generator().manual_seed(0)
    features = 0.5 + spread * (torch.rand(n, d, generator=generator, dtype=torch.float64) - 0.5)
    weight = scale * torch.randn(k, d, generator=generator, dtype=torch.float64)
    known = torch.randn(n, k, generator=generator, dtype=torch.float64)
    if k == 1:
        weight, known = weight[0], known[:, 0]
        return torch.sigmoid(known + features @ weight), known, weight, features
    return torch.softmax(known + features @ weight.T, dim=1), known, weight, features


def half_star(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    projection = torch.from_numpy(np.linalg.pinv(left.numpy()) @ left.numpy())
    half = torch.full((1, left.shape[1]), 0.5, dtype=torch.float64)
    return least_squares(left, right) + half - half @ projection


@pytest.mark.parametrize(("k", "d"), [(1, 4), (2, 6), (4, 9), (10, 12)])
@pytest.mark.parametrize("scale", [0.1, 4.0])
def test_from_one_half_the_limit_is_half_star_where_that_fits_the_box(k: int, d: int, scale: float) -> None:
    scores, known, weight, _ = system(60, k, d, spread=0.5, scale=scale)

    estimate = gradient_inversion(scores, known, weight)

    limit = half_star(*equations(scores, known, weight))
    inside = ((limit >= 0) & (limit <= 1)).all(dim=1)
    assert inside.sum() > 30
    # Moves of 1e-13 at rest, times the square of the condition number (below 200); logits up to about 40 in saturated
    # scores carry errors near 1e-12.
    torch.testing.assert_close(estimate[inside], limit[inside], rtol=0, atol=1e-10)


def test_from_zero_the_limit_is_least_squares_where_that_fits_the_box() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(6, generator=generator, dtype=torch.float64)
    features = torch.rand(40, 6, generator=generator, dtype=torch.float64)
    scores, known = torch.sigmoid(features @ weight - 1.0), torch.full((40,), -1.0, dtype=torch.float64)

    estimate = gradient_inversion(scores, known, weight, start=0.0)

    limit = least_squares(*equations(scores, known, weight))
    inside = ((limit >= 0) & (limit <= 1)).all(dim=1)
    assert inside.sum() > 20
    torch.testing.assert_close(estimate[inside], limit[inside], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("start", "k", "d"), [(0.5, 1, 5), (0.5, 3, 8), (0.5, 10, 20), (0.5, 6, 4), (0.0, 6, 4), (1.0, 3, 8)]
)
def test_estimates_lie_in_the_box_and_reproduce_the_scores(start: float, k: int, d: int) -> None:
    scores, known, weight, _ = system(150, k, d)

    estimate = gradient_inversion(scores, known, weight, start=start)

    again = torch.sigmoid(known + estimate @ weight) if k == 1 else torch.softmax(known + estimate @ weight.T, dim=1)
    assert estimate.min() >= 0
    assert estimate.max() <= 1
    # Iteration ends at moves of 1e-13; slow rows of degenerate geometry add a few digits.
    torch.testing.assert_close(again, scores, rtol=0, atol=1e-9)


def test_scores_that_no_features_give_are_fitted_best() -> None:
    scores, known, weight, _ = system(8, 4, 6)
    impossible = known + 3.0 * torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)

    estimate = gradient_inversion(scores, impossible, weight)

    left, right = equations(scores, impossible, weight)
    for row in range(8):
        x = cvxpy.Variable(6)
        loss = cvxpy.sum_squares(left.numpy() @ x - right[row].numpy())
        best = cvxpy.Problem(cvxpy.Minimize(loss), [x >= 0, x <= 1]).solve(solver=cvxpy.CLARABEL)
        reached = np.square(left.numpy() @ estimate[row].numpy() - right[row].numpy()).sum()
        # Clarabel stops at relative gaps of 1e-8.
        assert reached == pytest.approx(best, rel=1e-6, abs=1e-7)


def test_errors_from_one_half_are_those_of_half_star() -> None:
    scores, known, weight, features = system(200, 3, 8, spread=0.3)

    mse = reconstruction_mse(gradient_inversion(scores, known, weight), features)

    left, _ = equations(scores, known, weight)
    projection = np.linalg.pinv(left.numpy()) @ left.numpy()
    centred = features.numpy() - 0.5
    moment = centred.T @ centred / 200
    assert mse == pytest.approx(np.trace((np.eye(8) - projection) @ moment) / 8, rel=1e-9)
    assert mse < reconstruction_mse(torch.full_like(features, 0.5), features)


def test_attack_returns_the_estimate_of_its_view() -> None:
    scores, known, weight, _ = system(20, 3, 5)
    view = View(party="A", step=0, ids=torch.arange(20), equations=score_equations(scores, known, weight))

    estimate = call_attack(GradientInversionAttack(start=0.25), view)

    assert target_of(GradientInversionAttack()) == "features"
    assert torch.equal(estimate, gradient_inversion(scores, known, weight, start=0.25))


@pytest.mark.parametrize("start", [-0.1, 1.1, float("nan")])
def test_a_start_outside_the_box_is_refused(start: float) -> None:
    with pytest.raises(ArgumentError, match=r"start must lie in \[0, 1\] or be 'random'"):
        GradientInversionAttack(start=start)
    with pytest.raises(ArgumentError, match=r"start must lie in \[0, 1\] or be 'random'"):
        gradient_inversion(torch.tensor([0.5]), torch.zeros(1), torch.ones(2), start=start)


def test_a_random_start_follows_from_its_seed_and_ends_where_the_scores_fit() -> None:
    scores, known, weight, _ = system(40, 3, 6)
    one, same, other = (gradient_inversion(scores, known, weight, start="random", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert (one - other).abs().max() > 0.01
    assert (one[0] - one[1]).abs().max() > 0.01  # each record starts elsewhere
    torch.testing.assert_close(torch.softmax(known + one @ weight.T, dim=1), scores, rtol=0, atol=1e-9)


def test_steps_are_those_of_the_projected_gradient() -> None:
    """Against a loop over single records with torch's own gradient."""
    generator = torch.Generator().manual_seed(5)
    left = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    right = torch.randn(6, 2, generator=generator, dtype=torch.float64)

    with pytest.warns(RuntimeWarning, match="6 of 6 records had not come to rest after 7 steps"):
        estimate = projected_gradient(left, right, start=0.25, steps=7)

    rate = 1 / np.linalg.svd(left.numpy())[1][0] ** 2
    for row in range(6):
        x = torch.full((4,), 0.25, dtype=torch.float64)
        for _ in range(7):
            x = x.clone().requires_grad_()
            (0.5 * (left @ x - right[row]).square().sum()).backward()  # type: ignore[no-untyped-call]
            assert x.grad is not None
            x = (x.detach() - rate * x.grad).clamp(0, 1)
        torch.testing.assert_close(estimate[row], x, rtol=0, atol=1e-13)


def test_a_zero_matrix_moves_nothing() -> None:
    assert projected_gradient(torch.zeros(2, 3), torch.ones(4, 2), start=0.25).tolist() == [[0.25] * 3] * 4


@pytest.mark.parametrize("loss", ["kl", "log-squares"])
@pytest.mark.parametrize("k", [1, 4])
def test_losses_of_scores_end_where_the_scores_fit(loss: Literal["kl", "log-squares"], k: int) -> None:
    scores, known, weight, _ = system(30, k, 6, spread=0.4)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Adam may circle about a minimum
        estimate = gradient_inversion(scores, known, weight, loss=loss)

    again = torch.sigmoid(known + estimate @ weight) if k == 1 else torch.softmax(known + estimate @ weight.T, dim=1)
    assert ((estimate >= 0) & (estimate <= 1)).all()
    # Steps of Adam are of its rate, .01, until it settles: features of about .001, times weights.
    torch.testing.assert_close(again, scores, rtol=0, atol=3e-3)


@pytest.mark.parametrize(("loss", "slope"), [("kl", _kl_slope), ("log-squares", _log_squares_slope)])
def test_slopes_are_the_gradients_of_the_losses(loss: str, slope: Callable[..., torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(2)
    wanted = torch.log_softmax(torch.randn(5, 4, generator=generator, dtype=torch.float64), dim=1)
    logits = torch.randn(5, 4, generator=generator, dtype=torch.float64).requires_grad_()
    reached = torch.log_softmax(logits, dim=1)
    value = (wanted.exp() * (wanted - reached)).sum() if loss == "kl" else (reached - wanted).square().sum()
    value.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(slope(reached.detach(), wanted), logits.grad, rtol=1e-10, atol=1e-12)


def test_losses_of_scores_report_what_does_not_come_to_rest() -> None:
    scores, known, weight, _ = system(5, 3, 4)
    with pytest.warns(RuntimeWarning, match="5 of 5 records had not come to rest after 3 steps"):
        gradient_inversion(scores, known, weight, loss="kl", steps=3)


def test_an_attack_on_scores_reads_them_from_its_views_equations() -> None:
    scores, known, weight, _ = system(5, 3, 4)
    view = View(
        party="A",
        step=0,
        ids=torch.arange(5),
        equations=score_equations(scores, known, weight),
        active_logits=known,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        estimate = call_attack(GradientInversionAttack(loss="log-squares", steps=50), view)
        expected = gradient_inversion(scores, known, weight, loss="log-squares", steps=50)
    torch.testing.assert_close(estimate, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"loss": "l1"}, {"steps": 0}, {"seed": -1}, {"start": "middle"}])
def test_options_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(options))):
        GradientInversionAttack(**options)
