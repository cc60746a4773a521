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
from splitvfl.leakage.features import judge_features

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
