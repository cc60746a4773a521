"""A passive party in its partner's seat: what it finds of its own columns, alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from splitvfl.attacks import (
    ChebyshevCentreAttack,
    GradientInversionAttack,
    HalfStarAttack,
    LeastSquaresAttack,
)
from splitvfl.data.transform import Rotation, flip, random_rotation
from splitvfl.errors import HookError
from splitvfl.hooks import At, Equations
from splitvfl.leakage.features import FeatureLeak
from splitvfl.leakage.score_equations import score_part
from splitvfl.party.party import PassiveParty
from splitvfl.run.feature_seats import own_feature_leaks
from splitvfl.run.feature_systems import LabelParty
from tests.builders import linear_trainer, party_data
from tests.run.test_feature_seats import Look, Twice, by_view

Floats = npt.NDArray[np.float64]

BANK = LabelParty(name="bank", logits=3, all_named=True)
SEEN = ("scores", "activation")


def passive(features: int, **settings: Any) -> PassiveParty:
    trainer = linear_trainer(features=features, outputs=3, bias=True, **settings)
    return trainer.passives["telecom"]


def found(party: PassiveParty, *attacks: Any, seen_by: LabelParty = BANK) -> tuple[list[FeatureLeak], dict[str, str]]:
    unavailable: dict[str, str] = {}
    return own_feature_leaks(attacks or [LeastSquaresAttack()], party, seen_by, unavailable), unavailable


def by_hand(party: PassiveParty, sees: str, *, middle: float = 0.0, part: str = "train") -> float:
    """The error of the solution nearest to a point, of ``J W x`` or ``W x``, in the training records' unit box."""
    train, judged = (getattr(party.data, name).columns.numeric.double().numpy() for name in ("train", part))
    low, high = train.min(axis=0), train.max(axis=0)
    x = (judged - low) / (high - low)
    weight = next(party.bottom.parameters()).detach().double().numpy() * (high - low)
    A = np.diff(weight, axis=0) if sees == "scores" else weight
    P = np.linalg.pinv(A) @ A
    return float(((x @ P + (np.eye(len(P)) - P) @ np.full(len(P), middle) - x) ** 2).mean())


@pytest.mark.parametrize("sees", SEEN)
@pytest.mark.parametrize("part", ["train", "test"])
def test_figures_are_those_of_its_own_equations(sees: str, part: str) -> None:
    party = passive(5)
    leaks, unavailable = found(party, LeastSquaresAttack(), HalfStarAttack())
    assert unavailable == {}
    for attack, middle in (("least-squares", 0.0), ("half-star", 0.5)):
        leak = by_view(leaks)[attack, sees, part]
        # What crosses is float32: off by 1e-7 of its size, times the inverse's condition, which is below 100.
        assert leak.mse == pytest.approx(by_hand(party, sees, middle=middle, part=part), rel=1e-4)
        assert (leak.equations, leak.joint) == ({"scores": 2, "activation": 3}[sees], 5)
        assert leak.note == ("2 of 24 records lie beyond the known range of a column" if part == "test" else "")


def test_what_it_finds_of_its_part_is_what_the_label_party_finds() -> None:
    trainer = linear_trainer(
        features=4, outputs=3, bias=True, attacks=[LeastSquaresAttack()], defenses=[At(Twice(), "prediction")]
    )
    trainer.fit(1)
    joint = by_view(trainer.feature_leaks()["telecom"])
    own = by_view(found(trainer.passives["telecom"])[0])
    for part in ("train", "test"):
        assert own["least-squares", "activation", part] == joint["least-squares", "activation", part]
        # Of scores the label party has a few digits less.
        ours, theirs = (leaks["least-squares", "scores", part] for leaks in (own, joint))
        assert ours.mse == pytest.approx(theirs.mse, rel=1e-3)
        assert "leaves out what twice changed" in ours.note


def test_nothing_of_the_party_changes_for_it() -> None:
    party = passive(3)
    before = copy.deepcopy(party.state_dict())
    found(party)
    torch.testing.assert_close(party.state_dict(), before, rtol=0, atol=0)
    assert party.bottom.training


def turned(party: PassiveParty, kind: str) -> tuple[PassiveParty, PassiveParty]:
    """A party whose columns are transformed and whose weights fit, and the same without a transform."""
    width = party.data.width
    transform = flip(width) if kind == "flip" else Rotation(random_rotation(width, seed=3).matrix)
    bottom = copy.deepcopy(party.bottom)
    with torch.no_grad():
        weight, bias = bottom.parameters()
        # h = W x + b = W Hᵀ (z − s) + b
        moved = weight.double() @ transform.matrix.T
        bias -= (moved @ transform.shift).float()
        weight.copy_(moved)
    return PassiveParty(party.data.with_transform(transform), bottom), party


@pytest.mark.parametrize("kind", ["flip", "orthonormal"])
def test_who_knows_the_transform_finds_what_there_is_without_one(kind: str) -> None:
    hidden, plain = turned(passive(4), kind)
    leaks, unavailable = found(hidden)
    assert unavailable == {}
    open_leaks = by_view(found(plain)[0])
    for sees in SEEN:
        for part in ("train", "test"):
            knows = by_view(leaks)["least-squares (knows the transform)", sees, part]
            # As above, of float32; the truth is the columns themselves in both.
            assert knows.mse == pytest.approx(open_leaks["least-squares", sees, part].mse, rel=1e-4)
            assert [one.column for one in knows.columns] == list(plain.data.numeric_names)
            assert by_view(leaks)["least-squares", sees, part].mse > 1.2 * knows.mse


def test_a_norm_of_flipped_rows_leaves_no_equation_for_who_knows_the_flip() -> None:
    hidden, _ = turned(passive(3), "flip")
    hidden.data = hidden.data.with_row_norm(0.5)
    leaks, unavailable = found(hidden)
    assert {leak.attack for leak in leaks} == {"least-squares"}
    assert unavailable.keys() == {"least-squares (knows the transform)"}
    assert "norm after the transform" in unavailable["least-squares (knows the transform)"]
    turn, _ = turned(passive(3), "orthonormal")  # which leaves norms as they are
    turn.data = turn.data.with_row_norm(0.5)
    assert found(turn)[1] == {}


@pytest.mark.parametrize(
    ("seen_by", "scores", "activation"),
    [
        (LabelParty(name="bank", logits=3), "other passive parties, if there are any,", ""),
        (
            LabelParty(name="bank", logits=3, others=("shop", "lab")),
            "the parts of shop and lab are taken to be known",
            "",
        ),
        (LabelParty(name="bank", logits=3, all_named=True, sums=True), "", "which of one passive party is its part"),
        (
            LabelParty(name="bank", logits=3, others=("shop",), all_named=True, sums=True),
            "parts of shop",
            "parts of shop",
        ),
    ],
)
def test_what_is_assumed_of_others_is_said(seen_by: LabelParty, scores: str, activation: str) -> None:
    for leak in found(passive(2), seen_by=seen_by)[0]:
        expected = scores if leak.sees == "scores" else activation
        assert expected in leak.note
        assert ("worst case" in leak.note) == ("part" in expected and "is its part" not in expected)
        assert ("only the sum of all parts" in leak.note) == (seen_by.sums and leak.sees == "activation")


def test_where_scores_are_no_sums_of_parts_only_the_part_is_attacked() -> None:
    leaks, unavailable = found(passive(2), seen_by=replace(BANK, logits=0))
    assert {leak.sees for leak in leaks} == {"activation"}
    assert unavailable.keys() == {"least-squares (scores)"}


def test_a_model_that_is_not_linear_is_named() -> None:
    deep = PassiveParty(party_data("telecom", width=2), nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    leaks, unavailable = found(deep)
    assert leaks == []
    assert unavailable == {"least-squares": "needs linear models (logistic regression)"}


def test_what_cannot_be_run_alone_is_named_with_the_reason() -> None:
    leaks, unavailable = found(passive(8), ChebyshevCentreAttack(), GradientInversionAttack(loss="kl"))
    assert leaks == []
    assert "dimensions free" in unavailable["chebyshev-centre (scores)"]
    assert unavailable["gradient-inversion (activation)"] == "needs its own part of the logits"


def test_the_attackers_view_is_of_the_partner_and_holds_no_column() -> None:
    look = Look("equations")
    party = passive(2)
    found(party, look)
    assert {view.party for view in look.views} == {"bank"}
    with pytest.raises(HookError, match="columns"):
        look.views[0].columns  # noqa: B018 - reading is what is tried


def test_scores_are_off_by_what_two_logits_are() -> None:
    """An equation of scores is a difference: its error is bounded by the errors of both, and no less will do."""
    known = Equations(torch.eye(3).double(), torch.tensor([[3.0, 1.0, 0.5]]), torch.tensor([[0.1, 0.2, 0.4]]))
    left, right, error = score_part(known)
    torch.testing.assert_close(left, torch.tensor([[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]]).double())
    torch.testing.assert_close(right, torch.tensor([[-2.0, -0.5]]))
    torch.testing.assert_close(error, torch.tensor([[0.3, 0.6]]))
    one = Equations(torch.ones(1, 2).double(), torch.ones(4, 1), torch.zeros(4, 1))
    assert score_part(one) is one
