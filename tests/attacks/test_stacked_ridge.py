"""Several epochs of a record beside one, under bottom models that move and that stay."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.attacks import RidgeAttack, StackedRidgeAttack
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Attack, Auxiliary, View, call_attack

RECORDS, KNOWN, BATCH, COLUMNS, EPOCHS = 360, 120, 60, 6, 6


def views(seed: int, *, width: int = 2, moves: float = 0.05, epochs: int = EPOCHS) -> Iterator[tuple[View, Tensor]]:
    """Messages of a linear bottom that goes one way, step by step, and comes upon records in a new order each epoch."""
    random = torch.Generator().manual_seed(seed)
    columns = torch.randn(RECORDS, COLUMNS, generator=random)
    start, ways = torch.randn(COLUMNS, width, generator=random), torch.randn(epochs, COLUMNS, width, generator=random)
    step, bottom = 0, start
    for epoch in range(epochs):
        for rows in torch.randperm(RECORDS, generator=random).split(BATCH):
            bottom = bottom + moves * ways[epoch]
            sent, known = columns[rows] @ bottom, rows < KNOWN
            told = Auxiliary(sent[known], columns[rows][known], rows[known])
            yield (
                View(party="clinic", step=step, ids=rows[~known], received_activation=sent[~known], auxiliary=told),
                columns[rows][~known],
            )
            step += 1


def share(attack: Attack, seed: int, **options: Any) -> float:
    """Share of the columns' variance that the last epoch gives away."""
    off = [(call_attack(attack, view) - truth).square().mean() for view, truth in views(seed, **options)]
    return 1 - torch.stack(off[-RECORDS // BATCH :]).mean().item()


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.slow(reason="another seed"))])
def test_behind_a_narrow_cut_that_moves_several_epochs_tell_more_than_one(seed: int) -> None:
    """Six columns behind two outputs. Of seeds 0 to 3: .54 to .80 of four epochs, .26 to .48 of two, .20 to .29 of one.

    One epoch tells two directions of six at most, a third.
    """
    one, two, four = (share(StackedRidgeAttack(epochs=count), seed, moves=0.1) for count in (1, 2, 4))
    assert one < 1 / 3 < two
    assert four > 0.5


def test_of_one_epoch_it_reads_as_ridge_does() -> None:
    for (view, _), (again, _) in zip(views(0), views(0), strict=True):
        ours = call_attack(attack := StackedRidgeAttack(epochs=1), view)
        theirs = call_attack(RidgeAttack(), again)
        torch.testing.assert_close(ours, theirs)
        assert attack.state_dict()["others"]["kept"][0].shape[1] == 1


def test_a_bottom_that_stays_tells_nothing_new() -> None:
    one, four = (share(StackedRidgeAttack(epochs=count), 0, moves=0.0) for count in (1, 4))
    assert four == pytest.approx(one, abs=0.01)


@pytest.mark.slow(reason="three attacks of several epochs")
def test_of_whom_it_does_not_remember_it_knows_one_epoch() -> None:
    few, none = (share(StackedRidgeAttack(memory=count), 0, moves=0.1) for count in (120, 0))
    assert share(StackedRidgeAttack(), 0, moves=0.1) > few > none
    assert none < 1 / 3


def test_memory_is_bounded() -> None:
    attack = StackedRidgeAttack(epochs=2, memory=50)
    for view, _ in views(0, epochs=2):
        call_attack(attack, view)
    kept = attack.state_dict()["others"]
    assert len(kept["ids"]) == 50
    assert [tuple(part.shape) for part in kept["kept"]] == [(50, 2, 2), (50,), (50, 0)]
    assert kept["kept"][1].tolist() == [2] * 50


def test_it_goes_on_from_its_saved_state() -> None:
    messages = [view for view, _ in views(1, epochs=3)]
    straight, first, resumed = (StackedRidgeAttack(epochs=3, memory=100) for _ in range(3))
    for view in messages[:9]:
        call_attack(straight, view)
        call_attack(first, view)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for view in messages[9:]:
        assert torch.equal(call_attack(straight, view), call_attack(resumed, view))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"known_share": 0.0}, "known_share must be above 0 and below 1, got 0.0"),
        ({"epochs": 0}, "epochs must be 1 to 10, got 0"),
        ({"memory": -1}, "memory must be 0 to 1,000,000 records, got -1"),
    ],
)
def test_settings_have_limits(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        StackedRidgeAttack(**settings)
