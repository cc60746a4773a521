"""The sumKL solver against geometric programs, random search, optimality conditions and closed forms."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from sklearn.metrics import roc_auc_score

from splitvfl.defenses.solve_sumkl import (
    SumKLSolution,
    detection_error_bound,
    least_power,
    solve_sumkl,
    sum_kl_for,
)
from splitvfl.errors import ArgumentError
from tests.rows import every

Problem = tuple[float, float, float, int, float, float]
NAMES = ("u", "v", "gap", "width", "positive_share", "power")

positive = st.floats(min_value=-4.0, max_value=4.0).map(lambda exponent: 10.0**exponent)
problems = st.tuples(
    positive, positive, positive, st.sampled_from([1, 2, 5, 128]), st.floats(min_value=0.01, max_value=0.99), positive
)


def random_problems(count: int, *, seed: int, widths: Sequence[int] = (1, 2, 8, 128)) -> list[Problem]:
    rng = random.Random(seed)
    return [
        (
            10 ** rng.uniform(-2, 2),
            10 ** rng.uniform(-2, 2),
            10 ** rng.uniform(-2, 2),
            rng.choice(widths),
            rng.uniform(0.02, 0.98),
            10 ** rng.uniform(-2, 2),
        )
        for _ in range(count)
    ]


def divergence(lambdas: Any, u: float, v: float, gap: float, width: int) -> Any:
    """sumKL as defined, from covariances: ½[tr(Σ0⁻¹Σ1) + tr(Σ1⁻¹Σ0) - 2d + Δᵀ(Σ0⁻¹ + Σ1⁻¹)Δ]."""
    a, c0, b, c1 = lambdas[0] + u, lambdas[1] + u, lambdas[2] + v, lambdas[3] + v
    return 0.5 * ((width - 1) * (c0 / c1 + c1 / c0 - 2) + a / b + b / a - 2 + gap / a + gap / b)


def cost(width: int, p: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([1 - p, (1 - p) * (width - 1), p, p * (width - 1)])


@pytest.mark.parametrize("problem", random_problems(16, seed=1, widths=(2, 3, 8, 32)))
def test_agrees_with_a_geometric_program(problem: Problem) -> None:
    u, v, gap, width, p, power = problem
    a, b, c0, c1 = (cvxpy.Variable(pos=True) for _ in range(4))
    objective = (width - 1) * (c0 / c1 + c1 / c0) + a / b + b / a + gap / a + gap / b
    q = 1 - p
    spent = q * a + q * (width - 1) * c0 + p * b + p * (width - 1) * c1
    budget = power + width * (q * u + p * v)
    program = cvxpy.Problem(cvxpy.Minimize(objective), [spent <= budget, a >= u, c0 >= u, b >= v, c1 >= v])
    # At its default tolerances Clarabel overspends small budgets, by up to 1e-5 of them, and so comes out lower.
    program.solve(gp=True, solver=cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    found = np.clip([a.value - u, c0.value - u, b.value - v, c1.value - v], 0.0, None)
    feasible = found * min(1.0, power / (cost(width, p) @ found))

    ours = 2 * solve_sumkl(*problem).sum_kl + 2 * width

    # What is left of the overspending, about 1e-7 of the budget at the steepest problem, moves the value by as much.
    assert ours == pytest.approx(program.value, rel=2e-7)
    # A point within the budget is never better, up to the rounding of ours.
    assert 2 * divergence(feasible, u, v, gap, width) + 2 * width >= ours * (1 - 1e-12)


@every(problem=random_problems(20, seed=2))
def test_no_other_split_of_the_budget_is_better(problem: Problem) -> None:
    u, v, gap, width, p, power = problem
    solution = solve_sumkl(*problem)
    ours, weights = np.array(solution[:4]), cost(width, p)
    rng = np.random.default_rng(3)
    shares = rng.dirichlet([0.5] * 4, size=4000) * rng.uniform(0.5, 1.0, size=(4000, 1))
    anywhere = shares * power / np.maximum(weights, 1e-12)
    # Mixtures of the answer and another feasible point are feasible; most of them are close to the answer.
    mix = 10 ** rng.uniform(-5, 0, size=(4000, 1))
    others = np.concatenate([anywhere, (1 - mix) * ours + mix * anywhere])

    assert solution.sum_kl == pytest.approx(divergence(ours, u, v, gap, width), rel=1e-9, abs=1e-12)
    # 1e-10: what the terms of sizes up to 1e4 lose by rounding in the sum above.
    assert divergence(others.T, u, v, gap, width).min() >= solution.sum_kl * (1 - 1e-10) - 1e-10


@every(problem=random_problems(30, seed=4))
def test_meets_the_optimality_conditions(problem: Problem) -> None:
    u, v, gap, width, p, _ = problem
    solution = solve_sumkl(*problem)
    lambdas = torch.tensor(solution[:4], dtype=torch.float64, requires_grad=True)
    divergence(lambdas, u, v, gap, width).backward()
    assert lambdas.grad is not None
    gradient, weights = lambdas.grad.numpy(), cost(width, p)
    used = weights > 0
    price = -gradient[used] / weights[used]
    active = np.array(solution[:4])[used] > 0

    assert price.max() > 0
    # Where something is spent, the last unit buys the most there is to buy. 1e-6: steep second derivatives times the
    # solver's 1e-15.
    np.testing.assert_allclose(price[active], price.max(), rtol=1e-6)


@given(problems)
def test_spends_exactly_the_budget(problem: Problem) -> None:
    *_, width, p, power = problem
    solution = solve_sumkl(*problem)

    assert min(solution[:4]) >= 0.0
    assert cost(width, p) @ np.array(solution[:4]) == pytest.approx(power, rel=1e-9)


@given(problems)
def test_larger_variance_class_gets_nothing_across_the_gap(problem: Problem) -> None:
    u, v, _, width, *_ = problem
    solution = solve_sumkl(*problem)
    smaller, larger = solution.orthogonal_negative, solution.orthogonal_positive
    if u > v:
        smaller, larger = larger, smaller

    assert larger == 0.0
    assert 0.0 <= smaller <= abs(u - v)
    if width == 1:
        assert smaller == 0.0


@given(problems)
def test_variance_along_the_gap_is_never_below_that_across(problem: Problem) -> None:
    solution = solve_sumkl(*problem)
    # Rounding of the closed split, in units of the largest number in the problem.
    slack = 1e-12 * max(problem[0], problem[1], problem[2], problem[5])

    assert solution.parallel_negative >= solution.orthogonal_negative - slack
    assert solution.parallel_positive >= solution.orthogonal_positive - slack


@given(problems)
def test_exchanging_the_classes_exchanges_the_answers(problem: Problem) -> None:
    u, v, gap, width, p, power = problem
    one, other = solve_sumkl(*problem), solve_sumkl(v, u, gap, width, 1 - p, power)

    # 1 - (1 - p) differs from p by rounding; 1e-9 of the largest number leaves room for its effect.
    slack = 1e-9 * max(u, v, gap, power)
    assert one[:4] == pytest.approx((*other[2:4], *other[0:2]), rel=1e-6, abs=slack)
    assert one.sum_kl == pytest.approx(other.sum_kl, rel=1e-9, abs=1e-12)


@given(problems, st.sampled_from([1e-24, 1e-12, 1e-3, 1e12]))
def test_has_no_scale_of_its_own(problem: Problem, factor: float) -> None:
    u, v, gap, width, p, power = problem
    one = solve_sumkl(*problem)
    scaled = solve_sumkl(u * factor, v * factor, gap * factor, width, p, power * factor)

    # Multiplying rounds each input by 1e-16; the root moves by that over its slope.
    slack = 1e-9 * max(u, v, gap, power)
    assert [value / factor for value in scaled[:4]] == pytest.approx(one[:4], rel=1e-6, abs=slack)
    assert scaled.sum_kl == pytest.approx(one.sum_kl, rel=1e-9, abs=1e-12)


@given(problems, st.sampled_from([2.0**-800, 2.0**-200, 2.0**960]))
def test_a_power_of_two_as_unit_changes_no_bit(problem: Problem, unit: float) -> None:
    u, v, gap, width, p, power = problem
    one = solve_sumkl(*problem)
    scaled = solve_sumkl(u * unit, v * unit, gap * unit, width, p, power * unit)

    assert [value / unit for value in scaled[:4]] == list(one[:4])
    assert scaled.sum_kl == one.sum_kl


@pytest.mark.parametrize("unit", [2.0**-800, 2.0**960])
def test_batches_near_the_ends_of_float64_lose_nothing(unit: float) -> None:
    u, v, gap, width, p, power = torch.tensor(random_problems(200, seed=8), dtype=torch.float64).T
    one = solve_sumkl(u, v, gap, width, p, power)
    scaled = solve_sumkl(u * unit, v * unit, gap * unit, width, p, power * unit)

    for variance, expected in zip(scaled[:4], one[:4], strict=True):
        assert torch.equal(variance / unit, expected)
    assert torch.equal(scaled.sum_kl, one.sum_kl)


@given(problems, st.floats(min_value=1.0, max_value=100.0))
def test_more_power_never_leaves_a_larger_divergence(problem: Problem, factor: float) -> None:
    *rest, power = problem

    # 1e-12: rounding of the sum.
    assert solve_sumkl(*rest, power * factor).sum_kl <= solve_sumkl(*problem).sum_kl * (1 + 1e-12) + 1e-12


def edge_problems() -> list[Problem]:
    values = (0.0, 1e-9, 1.0)
    return [
        (u, v, gap, width, p, power)
        for u in values
        for v in values
        for gap in values
        for width in (1, 2, 128)
        for p in (0.1, 0.5)
        for power in (-1.0, 0.0, 1e-6, 3.0)
    ]


@pytest.mark.parametrize("chosen", [random_problems(300, seed=5), edge_problems()], ids=["random", "edges"])
def test_batched_and_single_answers_agree(chosen: list[Problem]) -> None:
    single = torch.tensor([solve_sumkl(*problem) for problem in chosen], dtype=torch.float64)
    batched = torch.stack(solve_sumkl(*torch.tensor(chosen, dtype=torch.float64).T), dim=1)

    assert batched.dtype == torch.float64
    # Sixty halvings against a bracketed secant: both stop within 1e-15 of numbers up to 100.
    torch.testing.assert_close(batched[:, :4], single[:, :4], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(batched[:, 4], single[:, 4], rtol=1e-10, atol=1e-14)


def test_numbers_broadcast_against_tensors_of_any_kind() -> None:
    power = torch.tensor([1, 2, 3])
    batched = solve_sumkl(1.0, torch.tensor(2.0), 4.0, torch.tensor([8]), 0.25, power)

    assert all(part.shape == (3,) and part.dtype == torch.float64 for part in batched)
    for index in range(3):
        alone = solve_sumkl(1.0, 2.0, 4.0, 8, 0.25, index + 1.0)
        assert [part[index].item() for part in batched] == pytest.approx(list(alone), rel=1e-9)


def test_no_problems_have_no_answers() -> None:
    nothing = torch.zeros(0)

    assert all(part.shape == (0,) for part in solve_sumkl(nothing, nothing, nothing, 4, 0.5, nothing))


@pytest.mark.parametrize("power", [0.0, -3.0])
def test_without_power_nothing_is_added(power: float) -> None:
    # a = c0 = 1, b = c1 = 2, width 3, gap 4: ½[2·½ + ½ + 4(1 + ½)] = 3.75.
    assert solve_sumkl(1.0, 2.0, 4.0, 3, 0.5, power) == (0.0, 0.0, 0.0, 0.0, pytest.approx(3.75))


@pytest.mark.parametrize(
    ("u", "v", "gap"), [(0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (0.0, 0.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.0, 0.0)]
)
def test_without_power_and_variance_the_classes_are_told_apart(u: float, v: float, gap: float) -> None:
    assert solve_sumkl(u, v, gap, 4, 0.5, 0.0).sum_kl == math.inf
    assert solve_sumkl(*torch.tensor([[u], [v], [gap]]), 4, 0.5, 0.0).sum_kl.item() == math.inf


def test_at_width_one_everything_goes_along_the_gap() -> None:
    solution = solve_sumkl(1.0, 5.0, 2.0, 1, 0.3, 4.0)

    assert solution.orthogonal_negative == solution.orthogonal_positive == 0.0
    assert 0.7 * solution.parallel_negative + 0.3 * solution.parallel_positive == pytest.approx(4.0)


@pytest.mark.parametrize(("power", "level"), [(1.4, 0.5), (100.0, 2.0)])
def test_without_gap_the_tighter_class_is_widened_evenly(power: float, level: float) -> None:
    # u = 1, v = 3, q = 0.7, width 4: min(2, power / 2.8) in every direction.
    solution = solve_sumkl(1.0, 3.0, 0.0, 4, 0.3, power)
    c = 1.0 + level

    assert solution[:4] == pytest.approx((level, level, 0.0, 0.0))
    assert solution.sum_kl == pytest.approx(0.5 * 4 * (c - 3.0) ** 2 / (3.0 * c), abs=1e-15)
    mirrored = solve_sumkl(3.0, 1.0, 0.0, 4, 0.7, power)
    assert mirrored[:4] == pytest.approx((0.0, 0.0, level, level))


def test_nothing_to_hide_costs_nothing() -> None:
    assert solve_sumkl(2.0, 2.0, 0.0, 4, 0.5, 1.0) == (0.0, 0.0, 0.0, 0.0, 0.0)
    assert solve_sumkl(0.0, 0.0, 0.0, 4, 0.5, 1.0) == (0.0, 0.0, 0.0, 0.0, 0.0)


def test_two_points_are_blurred_along_the_gap_by_the_closed_split() -> None:
    # Minimises a/b + b/a - 2 + gap(1/a + 1/b) on qa + pb = power: found here by a plain search over a.
    p, power, gap = 0.2, 3.0, 5.0
    a = np.linspace(1e-3, power / 0.8 - 1e-3, 400_001)
    b = (power - 0.8 * a) / p
    best = 0.5 * ((a - b) ** 2 / (a * b) + gap * (1 / a + 1 / b))

    solution = solve_sumkl(0.0, 0.0, gap, 16, p, power)

    assert (solution.orthogonal_negative, solution.orthogonal_positive) == (0.0, 0.0)
    # The grid's step is 1e-5, and the minimum is flat.
    assert solution.sum_kl == pytest.approx(best.min(), rel=1e-9)
    assert solution.parallel_negative == pytest.approx(a[best.argmin()], abs=1e-4)


@pytest.mark.parametrize(("u", "v"), [(0.0, 2.0), (2.0, 0.0)])
def test_a_class_without_variance_is_regular(u: float, v: float) -> None:
    solution = solve_sumkl(u, v, 1.0, 8, 0.5, 3.0)

    assert math.isfinite(solution.sum_kl)
    assert solution.orthogonal_negative + solution.orthogonal_positive > 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": -1.0}, "at least 0"),
        ({"v": math.inf}, "finite"),
        ({"gap": math.nan}, "finite"),
        ({"width": 0}, "at least 1"),
        ({"width": 2.5}, "whole"),
        ({"positive_share": 0.0}, "strictly between 0 and 1"),
        ({"positive_share": 1.0}, "strictly between 0 and 1"),
        ({"power": math.inf}, "finite"),
    ],
)
def test_arguments_outside_their_range_are_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"u": 1.0, "v": 1.0, "gap": 1.0, "width": 4, "positive_share": 0.5, "power": 1.0}
    arguments.update(change)

    with pytest.raises(ArgumentError, match=message):
        solve_sumkl(**arguments)
    with pytest.raises(ArgumentError, match=message):
        solve_sumkl(**{name: torch.tensor([float(value)]) for name, value in arguments.items()})


def test_arguments_that_are_no_numbers_or_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError, match="numbers"):
        solve_sumkl("one", 1.0, 1.0, 4, 0.5, 1.0)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="one length"):
        solve_sumkl(torch.ones(2), torch.ones(3), 1.0, 4, 0.5, 1.0)


@given(problems, st.floats(min_value=0.01, max_value=0.49))
def test_least_power_is_least_to_one_per_cent_on_the_safe_side(problem: Problem, detection_error: float) -> None:
    *rest, start = problem
    target = sum_kl_for(detection_error)
    power, solution = least_power(*rest, target, start=start)

    assert solution == solve_sumkl(*rest, power)
    assert solution.sum_kl <= target
    if power > 0.0:
        assert solve_sumkl(*rest, power / 1.01001).sum_kl > target


@pytest.mark.parametrize("problem", random_problems(10, seed=6))
def test_least_power_agrees_with_a_root_finder(problem: Problem) -> None:
    rest, target = problem[:5], 0.5
    if solve_sumkl(*rest, 0.0).sum_kl <= target:
        assert least_power(*rest, target)[0] == 0.0
        return
    exact = brentq(lambda power: solve_sumkl(*rest, power).sum_kl - target, 0.0, 1e9, xtol=1e-12)
    for start in (None, exact, 1e-3 * exact, 1e5 * exact):
        assert exact * (1 - 1e-9) <= least_power(*rest, target, start=start)[0] <= exact * 1.01001


def test_least_power_without_gap_and_right_below_the_clean_divergence() -> None:
    clean = solve_sumkl(1.0, 3.0, 0.0, 4, 0.5, 0.0).sum_kl

    assert least_power(1.0, 3.0, 0.0, 4, 0.5, clean)[0] == 0.0
    for target in (math.nextafter(clean, 0.0), 0.5 * clean, 1e-30):
        power, solution = least_power(1.0, 3.0, 0.0, 4, 0.5, target)
        assert solution.sum_kl <= target
        assert power <= 4.0 * 1.01  # at 0.5·4·2 the two classes are one
    with pytest.raises(ArgumentError, match="positive"):
        least_power(1.0, 3.0, 0.0, 4, 0.5, 0.0)


@given(st.floats(min_value=0.001, max_value=0.499))
def test_bound_and_divergence_are_inverse(detection_error: float) -> None:
    assert detection_error_bound(sum_kl_for(detection_error)) == pytest.approx(detection_error, abs=1e-12)


@pytest.mark.parametrize(("sum_kl", "bound"), [(0.0, 0.5), (1.0, 0.25), (4.0, 0.0), (9.0, 0.0), (math.inf, 0.0)])
def test_bound_at_known_points(sum_kl: float, bound: float) -> None:
    assert detection_error_bound(sum_kl) == bound


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_bound_of_no_divergence_is_refused(value: float) -> None:
    with pytest.raises(ArgumentError, match="at least 0"):
        detection_error_bound(value)


def test_detection_error_outside_its_range_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"between 0 and 0\.5"):
        sum_kl_for(0.5)


@pytest.mark.parametrize("detection_error", [0.1, 0.25, 0.4])
def test_bound_holds_against_the_best_attacker_under_the_model(detection_error: float) -> None:
    u, v, gap, width, p, n = 0.2, 1.5, 9.0, 6, 0.3, 40_000
    _, solution = least_power(u, v, gap, width, p, sum_kl_for(detection_error))
    rng = np.random.default_rng(7)
    scores = log_likelihood_ratios(solution, u, v, gap, width, n, rng)
    labels = np.repeat([0, 1], n)
    negative, positive_scores = np.sort(scores[:n]), np.sort(scores[n:])
    thresholds = np.sort(scores)
    gaps = np.searchsorted(negative, thresholds) - np.searchsorted(positive_scores, thresholds)
    error = 0.5 * (1 - np.abs(gaps).max() / n)

    # 0.01 is over five standard errors (at most 0.5 / √40 000 = 0.0025 each, the AUC's are smaller).
    assert error >= detection_error - 0.01
    assert roc_auc_score(labels, scores) <= 1 - 2 * detection_error**2 + 0.01
    delta = 0.5 * math.sqrt(solution.sum_kl)
    assert roc_auc_score(labels, scores) <= 0.5 + delta - delta**2 / 2 + 0.01


def log_likelihood_ratios(
    solution: SumKLSolution[float], u: float, v: float, gap: float, width: int, n: int, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Scores of the optimal attacker on n negatives, then n positives, drawn from the noisy model."""
    spread = np.full((2, width), [[u + solution.orthogonal_negative], [v + solution.orthogonal_positive]])
    spread[:, 0] = u + solution.parallel_negative, v + solution.parallel_positive
    means = np.zeros((2, width))
    means[1, 0] = math.sqrt(gap)
    rows = np.concatenate([means[y] + rng.normal(size=(n, width)) * np.sqrt(spread[y]) for y in (0, 1)])
    densities = [-0.5 * ((rows - means[y]) ** 2 / spread[y] + np.log(spread[y])).sum(axis=1) for y in (0, 1)]
    ratios: np.ndarray[Any, np.dtype[np.float64]] = densities[1] - densities[0]
    return ratios
