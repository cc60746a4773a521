"""The network that reconstructs columns: it learns, its share is bounded, and at its bound it asks for nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Held, call_penalty
from splitvfl.penalties import AdversarialReconstruction


def held(columns: torch.Tensor, *, seed: int = 0) -> Held:
    rows = len(columns)
    return Held(
        party="lab",
        step=0,
        ids=torch.arange(rows),
        columns=columns,
        categories=torch.zeros(rows, 0, dtype=torch.int64),
        generator=torch.Generator().manual_seed(seed),
    )


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(200, 3, generator=torch.Generator().manual_seed(seed))


def test_it_finds_columns_that_are_there_and_none_that_are_not() -> None:
    there, not_there = AdversarialReconstruction(), AdversarialReconstruction()
    for step in range(40):
        columns = drawn(step)
        told = call_penalty(there, 100 + 50 * columns @ torch.ones(3, 3).tril(), held(columns))[0]
        nothing = call_penalty(not_there, drawn(1000 + step), held(columns))[0]
    assert told > 0.95
    # Twenty steps on 200 records learn some of them by heart: 64 hidden units are about as many numbers as they have.
    assert nothing < 0.5


def test_its_gradient_turns_the_bottom_away_from_what_the_network_reads() -> None:
    penalty, columns = AdversarialReconstruction(steps=1), drawn(0)
    sent = columns.clone()
    for _ in range(40):
        call_penalty(penalty, sent, held(columns))
    still = AdversarialReconstruction(steps=1, lr=1e-12)
    state = penalty.state_dict()
    state["adam"]["param_groups"][0]["lr"] = 1e-12
    still.load_state_dict(state)
    before, gradient = call_penalty(still, sent, held(columns))
    after = call_penalty(still, sent - 5.0 * gradient, held(columns))[0]
    assert after < before


def test_where_the_network_is_worse_than_a_mean_it_asks_for_nothing() -> None:
    penalty, columns = AdversarialReconstruction(lr=1e-9), drawn(0)
    call_penalty(penalty, columns, held(columns))
    wrong = penalty.state_dict()
    wrong["weights"] = [torch.full_like(weight, 3.0) for weight in wrong["weights"]]
    penalty.load_state_dict(wrong)
    value, gradient = call_penalty(penalty, drawn(1), held(columns))
    assert value == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("constant", ["column", "activation", "record"])
def test_what_does_not_vary_is_no_number_that_is_not_finite(constant: str) -> None:
    columns, sent = drawn(0), drawn(0)
    if constant == "column":
        columns[:, 1] = 4.0
    if constant == "activation":
        sent = torch.ones_like(sent)
    if constant == "record":
        columns, sent = columns[:1], sent[:1]
    value, gradient = call_penalty(AdversarialReconstruction(), sent, held(columns))
    assert 0.0 <= value <= 1.0
    assert torch.isfinite(gradient).all()


def test_another_width_of_the_network_is_refused() -> None:
    penalty = AdversarialReconstruction(hidden=8)
    call_penalty(penalty, drawn(0), held(drawn(0)))
    with pytest.raises(ValueError, match="had a hidden layer of 8, and has one of 9"):
        AdversarialReconstruction(hidden=9).load_state_dict(penalty.state_dict())


@pytest.mark.parametrize("wrong", [{"records": 1}, {"hidden": 0}, {"steps": 101}, {"lr": 0.0}, {"lr": float("inf")}])
def test_settings_have_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(wrong))} must be"):
        AdversarialReconstruction(**wrong)
