"""What crosses a cut has a row for each record, and a model of the wrong width names the party and both widths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from splitvfl import ActiveParty, PassiveParty, SplitModel, Trainer
from splitvfl.attacks import NormAttack
from splitvfl.cut.layer import CutLayer
from splitvfl.defenses import GaussianIR
from splitvfl.errors import ArgumentError
from tests.builders import ACTIVE, party_data

INPUT = torch.ones(4, 6)


@pytest.mark.parametrize(
    "bottom",
    [nn.Unflatten(1, (2, 3)), nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), nn.Unflatten(1, (2, 3, 1))],
    ids=["three dimensions", "one", "four"],
)
def test_an_activation_that_is_no_matrix_is_refused_before_any_hook_sees_it(bottom: nn.Module) -> None:
    model = SplitModel({"lab": bottom}, nn.Identity())
    model.cut.defend(GaussianIR(clip=1.0, sigma=1.0))
    model.cut.watch(NormAttack())

    with pytest.raises(ArgumentError, match=r"activation of lab of shape \(n, width\), got .*nn.Flatten"):
        model(INPUT, labels=torch.ones(4))
    assert model.cut.steps == 0


def test_a_cut_alone_refuses_it_too() -> None:
    with pytest.raises(ArgumentError, match=r"got \(4, 2, 3\)"):
        CutLayer("lab")(torch.zeros(4, 2, 3))


TWO: dict[str, Any] = {"lab": nn.Linear(6, 2), "ward": nn.Linear(6, 3)}


@pytest.mark.parametrize(
    ("bottoms", "top", "active", "told"),
    [
        (TWO, nn.Linear(4, 1), None, "top model takes rows of width 4, and gets 5: 2 of lab, 3 of ward"),
        (TWO, nn.Sequential(nn.ReLU(), nn.Linear(5, 1)), 2, "width 5, and gets 7: 2 of lab, 3 of ward, 2 of active"),
        (
            {"lab": nn.Linear(5, 2)},
            nn.Linear(2, 1),
            None,
            "bottom model of lab takes rows of width 5, and gets 6",
        ),
    ],
)
def test_a_wrong_width_names_the_parties_and_both_widths(bottoms: Any, top: Any, active: Any, told: str) -> None:
    own = None if active is None else torch.ones(4, active)

    with pytest.raises(ArgumentError, match=told):
        SplitModel(bottoms, top)(*[INPUT] * len(bottoms), active=own)


def test_another_failure_stays_what_it_is() -> None:
    class Failing(nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("out of tune")

    with pytest.raises(RuntimeError, match="out of tune"):
        SplitModel(nn.Linear(6, 2), Failing(2, 1))(INPUT)


def test_a_linear_layer_behind_another_one_is_not_named() -> None:
    """Its input is not what the bottom was given, and it is not what failed."""
    bottom = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(RuntimeError, match="channels"):
        SplitModel(bottom, nn.Linear(2, 1))(torch.ones(3, 16))


@pytest.mark.parametrize(
    ("bottom", "top", "told", "sent"),
    [
        (nn.Sequential(nn.Linear(5, 6), nn.Unflatten(1, (2, 3))), nn.Linear(8, 1), "bottom model of telecom must", 0),
        (nn.Linear(6, 3), nn.Linear(5, 1), "bottom model of telecom takes rows of width 6, and gets 5: 5 of tele", 0),
        (nn.Linear(5, 3), nn.Linear(9, 1), "top model takes rows of width 9, and gets 5: 3 of telecom, 2 of bank", 1),
    ],
)
def test_parties_say_the_same(bottom: nn.Module, top: nn.Module, told: str, sent: int) -> None:
    crossed: list[Any] = []
    active = ActiveParty(party_data(ACTIVE, width=2, task="binary"), top)
    trainer = Trainer(
        active, {"telecom": PassiveParty(party_data("telecom", width=5), bottom)}, record=crossed.append, batch_size=16
    )

    with pytest.raises(ArgumentError, match=told):
        trainer.fit(1)
    assert len(crossed) == sent  # a partner cannot know the width of a top
