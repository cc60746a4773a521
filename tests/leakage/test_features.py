"""Judging feature attacks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import ClassVar, Literal

import pytest
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View
from splitvfl.leakage.categories import CategoryGroup
from splitvfl.leakage.features import judge_estimate, judge_features
from splitvfl.leakage.remaining_bits import bits_left, bits_of

TRUTH = torch.randn(12, 3, generator=torch.Generator().manual_seed(2)) + torch.tensor([0.0, 5.0, -2.0])


class Answer:
    """Answers what it is told to."""

    name: ClassVar[str] = "answer"
    target: ClassVar[Literal["features"]] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"scores"})

    def __init__(self, answer: Callable[[View], Tensor]) -> None:
        self._answer = answer

    def __call__(self, view: View, /) -> Tensor:
        return self._answer(view)


def view() -> View:
    return View(party="bank", step=0, ids=torch.arange(12) * -3, scores=torch.linspace(0.1, 0.9, 12))


def test_errors_are_means_over_all_entries_and_the_blind_one_is_the_variance() -> None:
    estimate = TRUTH + torch.randn(TRUTH.shape, generator=torch.Generator().manual_seed(3))
    leak = judge_features(Answer(lambda _: estimate), view(), TRUTH)
    # float32 columns: the mean of a column is rounded to 2⁻²⁴ of its size.
    assert leak.mse == pytest.approx(((estimate - TRUTH).numpy().astype("float64") ** 2).mean(), rel=1e-6)
    assert leak.blind_mse == pytest.approx(TRUTH.numpy().astype("float64").var(axis=0).mean(), rel=1e-5)
    assert (leak.attack, leak.features, leak.note) == ("answer", 3, "")


def test_a_perfect_estimate_has_no_error_and_the_blind_answer_the_blind_one() -> None:
    assert judge_features(Answer(lambda _: TRUTH.clone()), view(), TRUTH).mse == 0.0
    blind = judge_features(Answer(lambda _: TRUTH.mean(dim=0).repeat(12, 1)), view(), TRUTH)
    assert blind.mse == pytest.approx(blind.blind_mse, rel=1e-12)


def test_what_an_attack_warns_of_becomes_the_note_and_goes_no_further() -> None:
    def answer(seen: View) -> Tensor:
        warnings.warn("two scores hold no logit", RuntimeWarning, stacklevel=1)
        warnings.warn("and another thing", RuntimeWarning, stacklevel=1)
        return torch.zeros(12, 3)

    assert judge_features(Answer(answer), view(), TRUTH).note == "two scores hold no logit; and another thing"


@pytest.mark.parametrize(
    ("estimate", "error", "says"),
    [
        (torch.zeros(12, 2), ArgumentError, r"answer: expected an estimate of \(12, 3\), got \(12, 2\)"),
        (torch.zeros(12), ArgumentError, "answer"),
        (torch.zeros(11, 3), HookError, "answer"),
        (torch.full((12, 3), math.nan), ArgumentError, "NaN"),
        (torch.full((12, 3), math.inf), HookError, "answer"),
    ],
)
def test_an_estimate_that_is_none_is_refused(estimate: Tensor, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        judge_features(Answer(lambda _: estimate), view(), TRUTH)


def test_an_attack_that_writes_into_its_view_is_named() -> None:
    def answer(seen: View) -> Tensor:
        seen.scores.add_(1.0)
        return torch.zeros(12, 3)

    with pytest.raises(HookError, match="answer"):
        judge_features(Answer(answer), view(), TRUTH)


def coded(*categories: int) -> Tensor:
    """A category of three in columns 0 to 2, a flag in column 3 and a number in column 4."""
    count = len(categories)
    flag = (torch.arange(count) % 2).double()
    number = torch.rand(count, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    hot = torch.nn.functional.one_hot(torch.tensor(categories), 3).double()
    return torch.cat([hot, flag.unsqueeze(1), number.unsqueeze(1)], dim=1)


GROUP = CategoryGroup("plan", (0, 1, 2))
NAMES = ("plan=x", "plan=y", "plan=z", "late", "age")


def test_categories_and_flags_are_judged_as_such_and_numbers_are_not() -> None:
    truth, estimate = coded(0, 1, 2, 1, 1, 0, 2, 1), coded(0, 1, 1, 1, 1, 0, 2, 0)
    estimate[:3, 3] = 1 - estimate[:3, 3]
    leak = judge_estimate("answer", estimate, truth, names=NAMES, groups=[GROUP])
    plan, late = leak.categories
    assert (plan.column, plan.right, plan.commonest) == ("plan", 6 / 8, 4 / 8)
    assert (late.column, late.right, late.commonest) == ("late", 5 / 8, 4 / 8)
    assert leak.right == (6 / 8 + 5 / 8) / 2
    # Counts 2, 4, 2 of 8: 1.5 bits, and (3 − 1) / 16 nats for the bias; but three categories have log2 3 at most.
    assert 1.5 + 2 / (16 * math.log(2)) > math.log2(3)
    assert plan.bits == pytest.approx(math.log2(3))
    # Guesses 0, 1, 2 are of 3, 4 and 1 records: of the first two of 3 are right and of the second three of 4.
    h = -sum(p * math.log2(p) for p in (1 / 3, 2 / 3))
    left = 3 / 8 * h + 4 / 8 * -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert plan.bits_left == pytest.approx(left + (5 - 3) / (16 * math.log(2)))


def test_bits_are_those_of_each_column_and_their_mean() -> None:
    truth, estimate = coded(0, 1, 2, 1), coded(0, 2, 2, 1)
    leak = judge_estimate("answer", estimate, truth, names=NAMES)
    whole = [bits_of(column) for column in truth.T]
    left = [bits_left(own, answer) for own, answer in zip(truth.T, estimate.T, strict=True)]
    assert [one.bits for one in leak.columns] == whole
    assert [one.bits_left for one in leak.columns] == left
    assert leak.bits == pytest.approx(sum(whole) / 5)
    assert leak.bits_left == pytest.approx(sum(left) / 5)
    assert leak.bits_left < leak.bits


def test_who_has_the_columns_in_another_order_has_no_error_once_they_are_matched() -> None:
    truth = coded(0, 1, 2, 1)
    leak = judge_estimate("answer", truth[:, [4, 0, 1, 2, 3]], truth)
    assert leak.mse > 0.1
    assert leak.matched_mse == 0.0


def test_without_categories_there_is_no_share_of_them() -> None:
    leak = judge_estimate("answer", TRUTH, TRUTH)
    assert leak.right is None
    assert leak.categories == []
