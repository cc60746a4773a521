"""The search of discrete values, against brute force over all combinations and between its two ways."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from splitvfl.attacks import DiscreteSearchAttack, discrete_search, rcc2
from splitvfl.attacks.discrete_halves import closest_pairs
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Alphabet, Equations, View, call_attack
from splitvfl.leakage.alphabets import finite, one_hot
from tests.builders import random

# Programs have all the time that they need: no test waits for a clock.
AMPLE = {"time_limit_s": 600.0}
PROGRAMS: dict[str, Any] = {"most_combinations": 0, **AMPLE}
# Of 24 combinations: four of one half, and six of the other.
HALVES: dict[str, Any] = {"most_combinations": 6, **AMPLE}


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def discrete_columns(seed: int, count: int, *, m: int) -> tuple[Tensor, Tensor, list[Alphabet]]:
    """Equations and records of a category of three, in columns 4, 0 and 3, and columns of four and two values."""
    draw = random(seed)
    category, quarters, coin = (torch.randint(0, c, (count,), generator=draw) for c in (3, 4, 2))
    truth = torch.zeros(count, 5, dtype=torch.float64)
    truth[torch.arange(count), torch.tensor([4, 0, 3])[category]] = 1.0
    truth[:, 1], truth[:, 2] = quarters.double() / 4, coin.double()
    alphabets = [one_hot([4, 0, 3]), finite(1, [0.75, 0.0, 0.25, 0.5]), finite(2, [0.0, 1.0])]
    return torch.randn(m, 5, generator=draw, dtype=torch.float64), truth, alphabets


def every_point() -> list[list[float]]:
    """All 24 points of these columns, made otherwise than the search makes them."""
    groups = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
    return [
        [group[0], quarter, coin, group[1], group[2]]
        for group, quarter, coin in itertools.product(groups, (0.0, 0.25, 0.5, 0.75), (0.0, 1.0))
    ]


def test_the_specifications_example() -> None:
    found = discrete_search(matrix([1, 2]), matrix([2.1]), [finite(1, [0, 1])])
    torch.testing.assert_close(found.points, matrix([0.1, 1.0]), rtol=0, atol=1e-12)
    assert (found.candidates.tolist(), found.complete.tolist(), found.enumerated) == ([1], [True], True)


@pytest.mark.parametrize("options", [{}, HALVES, PROGRAMS], ids=["enumerated", "halves", "programs"])
@pytest.mark.parametrize(("seed", "m"), [(0, 1), (1, 2), (2, 1)])
def test_among_discrete_points_it_is_the_nearest_that_brute_force_finds(
    seed: int, m: int, options: dict[str, Any]
) -> None:
    A, truth, alphabets = discrete_columns(seed, 6, m=m)
    b = truth @ A.T
    b[3:] += torch.randn(3, m, generator=random(seed + 50), dtype=torch.float64)  # which no point need give
    found = discrete_search(A, b, alphabets, **options)
    points = np.array(every_point())
    lengths = np.linalg.norm(A.numpy(), axis=1)
    for record in range(6):
        missed = (abs(points @ A.numpy().T - b[record].numpy()) / lengths).sum(axis=1)
        assert found.mismatch[record].item() == pytest.approx(missed.min(), abs=1e-9)
        # Weights are random: no two points miss alike.
        np.testing.assert_array_equal(found.points[record], points[missed.argmin()])
    assert found.candidates.tolist() == [1] * 6
    assert found.complete.all()
    torch.testing.assert_close(found.points[:3], truth[:3], rtol=0, atol=0)
    assert found.enumerated == (options != PROGRAMS)


@pytest.mark.parametrize(("seed", "m"), [(0, 1), (1, 2), (2, 3)])
def test_with_continuous_columns_both_ways_agree(seed: int, m: int) -> None:
    A, truth, alphabets = discrete_columns(seed, 5, m=m)
    rest = torch.rand(5, 2, generator=random(seed + 9), dtype=torch.float64)
    A = torch.cat([A, 0.3 * torch.randn(m, 2, generator=random(seed + 7), dtype=torch.float64)], dim=1)
    truth = torch.cat([truth, rest], dim=1)
    b = truth @ A.T
    enumerated = discrete_search(A, b, alphabets)
    programs = discrete_search(A, b, alphabets, most_candidates=24, **PROGRAMS)
    assert enumerated.enumerated
    assert not programs.enumerated
    assert programs.complete.all()
    assert enumerated.candidates.tolist() == programs.candidates.tolist()
    # A candidate's continuous part solves its equations to 1e-13, times the inverse of a small matrix.
    torch.testing.assert_close(enumerated.points, programs.points, rtol=0, atol=1e-8)
    assert (enumerated.mismatch <= 1e-9).all()
    # Of means of points that satisfy the equations.
    torch.testing.assert_close(enumerated.points @ A.T, b, rtol=0, atol=1e-8)


def test_where_nothing_fits_the_best_fit_of_all_combinations_is_answered() -> None:
    A, _, alphabets = discrete_columns(6, 3, m=2)
    A = torch.cat([A, 0.1 * torch.ones(2, 1, dtype=torch.float64)], dim=1)
    b = 4 * torch.randn(3, 2, generator=random(60), dtype=torch.float64)
    found = discrete_search(A, b, alphabets)
    rows = A.numpy() / np.linalg.norm(A.numpy(), axis=1, keepdims=True)
    for record, right in enumerate(b.numpy() / np.linalg.norm(A.numpy(), axis=1)):
        missed = []
        for point in every_point():
            left = right - rows[:, :5] @ point
            rest = scipy.optimize.lsq_linear(rows[:, 5:], left, bounds=(0, 1), tol=1e-14).x
            missed.append((abs(rows[:, 5:] @ rest - left).sum(), [*point, *rest]))
        least, nearest = min(missed)
        assert least > 0.01
        # The solver's own tolerance, near the square root of its objective's.
        assert found.mismatch[record].item() == pytest.approx(least, abs=1e-6)
        np.testing.assert_allclose(found.points[record], nearest, atol=1e-5)


def test_a_combination_that_fits_each_equation_alone_gives_way_to_one_that_fits_both_better() -> None:
    # A 0 needs t = .05 and t = .95, both in the box; a 1 needs t = .05 and t = -.05, of which one is not.
    found = discrete_search(matrix([0, 1], [1, 1]), matrix([0.05, 0.95]), [finite(0, [0, 1])])
    assert found.points[0, 0].item() == 1.0
    assert 0.05 < found.mismatch.item() < 0.15


def test_continuous_columns_are_nearest_to_one_half_for_each_candidate() -> None:
    A, truth, alphabets = discrete_columns(4, 8, m=1)
    A = torch.cat([A, matrix([0.4, 0.2])], dim=1)
    truth = torch.cat([truth, torch.rand(8, 2, generator=random(5), dtype=torch.float64)], dim=1)
    found = discrete_search(A, truth @ A.T, alphabets)
    for record in range(8):
        left = truth[record] @ A.T - torch.tensor(every_point(), dtype=torch.float64) @ A[:, :5].T
        rest = rcc2(A[:, 5:], left)
        met = ((rest @ A[:, 5:].T - left).abs() < 1e-9).squeeze(1).tolist()
        fitting = [[*point, *own] for point, own, fits in zip(every_point(), rest.tolist(), met, strict=True) if fits]
        assert found.candidates[record].item() == len(fitting)
        expected = torch.tensor(fitting, dtype=torch.float64).mean(dim=0)
        torch.testing.assert_close(found.points[record], expected, rtol=0, atol=1e-9)


def test_of_columns_of_equal_weight_the_answer_is_the_mean_of_all_that_fit() -> None:
    # Two of four coins: six ways, in each of which half are 1; none and all are one way.
    A, coins = matrix([1, 1, 1, 1]), [finite(place, [0, 1]) for place in range(4)]
    found = discrete_search(A, matrix([2.0], [0.0], [4.0]), coins)
    assert found.candidates.tolist() == [6, 1, 1]
    assert found.points.tolist() == [[0.5] * 4, [0.0] * 4, [1.0] * 4]


def test_halves_give_all_that_fit_and_all_that_are_nearest_alike() -> None:
    A, coins = matrix([1, 1, 1, 1]), [finite(place, [0, 1]) for place in range(4)]
    b = matrix([2.0], [0.5], [4.0], [9.0])
    whole, halves = (discrete_search(A, b, coins, most_combinations=most) for most in (16, 4))
    # Of a half, none and all single ones are as near: five.
    assert whole.candidates.tolist() == halves.candidates.tolist() == [6, 5, 1, 1]
    torch.testing.assert_close(whole.points, halves.points, rtol=0, atol=1e-12)
    torch.testing.assert_close(whole.mismatch, halves.mismatch, rtol=0, atol=1e-12)
    wide = discrete_search(A, b, coins, most_combinations=4, error=torch.full_like(b, 1.0))
    assert wide.candidates.tolist() == [14, 5, 5, 1]


def test_of_more_pairs_than_can_be_listed_programs_find_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitvfl.attacks.discrete_halves.MOST_PAIRS", 5)
    A, coins = matrix([1, 1, 1, 1]), [finite(place, [0, 1]) for place in range(4)]
    found = discrete_search(A, matrix([2.0], [1.0]), coins, most_combinations=4, most_candidates=2, **AMPLE)
    assert found.candidates.tolist() == [2, 4]
    assert found.complete.tolist() == [False, True]


@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_those_that_all_sums_show(seed: int) -> None:
    draw = random(seed)
    # Eighths: many sums are equal, and the nearest ones are to the bit.
    first, second, targets = ((torch.rand(c, generator=draw, dtype=torch.float64) * 8).round() for c in (7, 9, 20))
    targets, slack = targets * 1.7, (torch.arange(20) % 3).double() / 2
    found = closest_pairs(first, second, targets, slack, tie=1e-9)
    listed = sorted(zip(*(one.tolist() for one in found[:3]), strict=True))
    expected = []
    for record in range(20):
        off = (first[:, None] + second - targets[record]).abs().numpy()
        near = np.argwhere(off <= max(off.min(), slack[record].item()) + 1e-9)
        expected += [(record, *pair) for pair in near.tolist()]
    assert listed == expected
    assert not found.too_many.any()


def test_programs_that_stop_at_some_candidates_say_that_there_are_more() -> None:
    A, coins = matrix([1, 1, 1, 1]), [finite(place, [0, 1]) for place in range(4)]
    found = discrete_search(A, matrix([2.0], [4.0]), coins, most_candidates=3, **PROGRAMS)
    assert found.candidates.tolist() == [3, 1]
    assert found.complete.tolist() == [False, True]
    # The mean of three of the six: each has two ones.
    assert found.points[0].sum().item() == pytest.approx(2.0)


def test_an_error_of_the_equations_makes_candidates_of_all_within_it() -> None:
    A, alphabets = matrix([1, 1]), [finite(0, [0, 0.5, 1]), finite(1, [0, 0.125])]
    exact = discrete_search(A, matrix([0.55]), alphabets)
    assert exact.points.tolist() == [[0.5, 0.0]]
    assert exact.mismatch.item() == pytest.approx(0.05 / math.sqrt(2))
    within = discrete_search(A, matrix([0.55]), alphabets, error=matrix([0.08]))
    assert (within.candidates.item(), within.mismatch.item()) == (2, 0.0)
    assert within.points.tolist() == [[0.5, 0.0625]]
    assert discrete_search(A, matrix([0.55]), alphabets, error=matrix([0.08]), **PROGRAMS).candidates.item() == 2


def test_rounded_equations_with_continuous_columns_keep_the_true_combination() -> None:
    draw = random(11)
    A = torch.randn(2, 4, generator=draw, dtype=torch.float64)
    truth = torch.rand(40, 4, generator=draw, dtype=torch.float64)
    truth[:, :2] = truth[:, :2].round()
    b = ((truth @ A.T) * 20).round() / 20
    coins = [finite(0, [0, 1]), finite(1, [0, 1])]
    found = discrete_search(A, b, coins, error=torch.full_like(b, 0.025))
    assert (found.mismatch <= 1e-9).all()
    sure = (found.candidates == 1) & found.complete
    assert sure.any()
    torch.testing.assert_close(found.points[sure, :2], truth[sure, :2], rtol=0, atol=0)


def test_it_finds_more_categories_than_chance_and_than_the_box_alone() -> None:
    A, truth, alphabets = discrete_columns(8, 200, m=1)
    b = truth @ A.T
    found, boxed = discrete_search(A, b, alphabets), rcc2(A, b)
    right = [
        (one[:, [4, 0, 3]].argmax(dim=1) == truth[:, [4, 0, 3]].argmax(dim=1)).double().mean()
        for one in (found.points, boxed)
    ]
    assert right[0].item() == 1.0
    # Chance is a third; of 200 records five standard errors are .17.
    assert right[1].item() < 0.9
    assert (found.points - truth).square().mean() < 1e-12 < (boxed - truth).square().mean()


def test_without_time_every_prediction_is_given_up_and_answered_by_rcc2_with_sums() -> None:
    A, truth, alphabets = discrete_columns(3, 4, m=1)
    found = discrete_search(A, truth @ A.T, alphabets, most_combinations=0, time_limit_s=0.0)
    assert found.gave_up.tolist() == [True] * 4
    assert not found.complete.any()
    assert found.mismatch.isnan().all()
    sums = torch.cat([A, matrix([1, 0, 0, 1, 1])])
    torch.testing.assert_close(found.points, rcc2(sums, truth @ sums.T), rtol=0, atol=1e-9)


def test_predictions_beyond_the_most_programs_are_given_up() -> None:
    A, truth, alphabets = discrete_columns(3, 5, m=1)
    found = discrete_search(A, truth @ A.T, alphabets, most_programs=3, **PROGRAMS)
    assert found.gave_up.tolist() == [False, True, False, True, False]
    torch.testing.assert_close(found.points[::2], truth[::2], rtol=0, atol=0)


def answering(*answers: Any) -> Any:
    """Return what stands for the solver: it gives these answers, and then says that nothing is left."""
    left = iter(answers)

    def milp(cost: Any, **_: Any) -> Any:
        return next(left, SimpleNamespace(x=None, fun=None, status=2))

    return milp


def test_a_solver_that_ends_early_counts_only_if_what_it_has_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    A, coins = matrix([1, 2]), [finite(0, [0, 1]), finite(1, [0, 1])]
    ended = {"fits": np.array([1.0, 0, 0, 1, 0]), "does not": np.array([0, 1.0, 0, 1, 0.0])}
    for name, x in ended.items():
        monkeypatch.setattr(
            scipy.optimize,
            "milp",
            answering(SimpleNamespace(x=x, fun=0.0, status=1), SimpleNamespace(x=None, status=1)),
        )
        found = discrete_search(A, matrix([2.0]), coins, **PROGRAMS)
        assert found.gave_up.item() == (name == "does not")
        assert not found.complete.item()
    torch.testing.assert_close(found.points, rcc2(A, matrix([2.0])), rtol=0, atol=1e-9)


@pytest.mark.parametrize("status", [0, 1])
def test_only_a_proof_that_others_fit_worse_makes_the_candidates_complete(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SimpleNamespace(x=np.array([1.0, 0, 0, 1, 0]), fun=0.0, status=0)
    worse = SimpleNamespace(x=np.array([0, 1.0, 0, 1, 1.0]), fun=1.0, status=status)
    monkeypatch.setattr(scipy.optimize, "milp", answering(first, worse))
    found = discrete_search(matrix([1, 2]), matrix([2.0]), [finite(0, [0, 1]), finite(1, [0, 1])], **PROGRAMS)
    assert found.candidates.tolist() == [1]
    assert found.complete.item() == (status == 0)


def test_a_matrix_of_zeros_leaves_every_combination() -> None:
    found = discrete_search(torch.zeros(2, 3).double(), torch.zeros(1, 2).double(), [one_hot([0, 1, 2])])
    assert found.candidates.item() == 3
    torch.testing.assert_close(found.points, torch.full((1, 3), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("alphabets", "says"),
    [
        ([finite(0, [])], "without a value contradicts"),
        ([Alphabet((), torch.zeros(1, 0))], "at least one"),
        ([finite(0, [0.0, 1.5])], r"values in \[0, 1\]"),
        ([finite(0, [0.0, math.nan])], r"values in \[0, 1\]"),
        ([one_hot([0, 1]), one_hot([1, 2])], "column 1 is in alphabet 0 and in alphabet 1"),
        ([one_hot([0, 0])], "different columns"),
        ([one_hot([0, 1, 2, 3])], "there are 3 columns, from 0 to 2, and it names 3"),
        ([finite(-1, [0.0])], "it names -1"),
        ([finite(0, [0.5, 0.5])], "occurs twice"),
        ([Alphabet((0, 1), torch.zeros(2, 1))], r"expected values \(c, 2\)"),
    ],
)
def test_alphabets_that_contradict_themselves_are_refused(alphabets: list[Alphabet], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        discrete_search(torch.ones(1, 3), torch.ones(1, 1), alphabets)


@pytest.mark.parametrize(
    "options",
    [
        {"most_combinations": -1},
        {"most_combinations": 1.5},
        {"time_limit_s": -0.1},
        {"time_limit_s": math.inf},
        {"most_programs": -1},
        {"most_candidates": 0},
        {"error": torch.full((1, 1), -0.1)},
        {"error": torch.zeros(2, 1)},
    ],
)
def test_limits_and_errors_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(options)) if "error" not in options else "errors >= 0"):
        discrete_search(torch.ones(1, 1), torch.ones(1, 1), [finite(0, [0.0, 1.0])], **options)


def seen(A: Tensor, b: Tensor, alphabets: list[Alphabet]) -> View:
    known = Equations(A, b, torch.zeros_like(b))
    return View(party="bank", step=0, ids=torch.arange(len(b)), equations=known, alphabets=tuple(alphabets))


def test_the_attack_says_how_many_candidates_there_were_and_where_it_gave_up() -> None:
    A, coins = matrix([1, 1, 1, 1]), [finite(place, [0, 1]) for place in range(4)]
    view = seen(A, matrix([2.0], [0.0], [2.5]), coins)
    attack = DiscreteSearchAttack()
    call_attack(attack, view)
    assert attack.note == (
        "all combinations looked at, one candidate alone for 1 of 3 predictions, else their mean, of 6 in the "
        "median and up to 10, no values fit for 1, and the nearest are answered"
    )
    late = DiscreteSearchAttack(most_combinations=0, time_limit_s=0.0)
    call_attack(late, view)
    assert (
        late.note == "integer programs for at most 200 predictions, 0 s each, gave up on 3 of 3, where RCC2 is answered"
    )


def test_without_an_alphabet_the_attack_refuses() -> None:
    with pytest.raises(AttackRefused, match="nothing to search"):
        DiscreteSearchAttack()(seen(matrix([1, 2]), matrix([1.0]), []))
