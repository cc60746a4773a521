"""What feature attacks see of predictions in an experiment, and how they are judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from splitvfl.app.trainer import Trainer
from splitvfl.attacks import (
    BlackBoxFeatureAttack,
    ChebyshevCentreAttack,
    DiscreteSearchAttack,
    GradientInversionAttack,
    HalfAttack,
    HalfStarAttack,
    LeastSquaresAttack,
    NoiseSubtractionAttack,
    ProcrustesAttack,
    SuspectedFlipAttack,
    WeightEstimationAttack,
    ZeroAttack,
    equations,
    least_squares,
)
from splitvfl.data.columns import Columns, PartyData
from splitvfl.data.load import load
from splitvfl.data.transform import Transform, flip, random_rotation
from splitvfl.defenses import Rounding, ScoreNoise, noise_direction
from splitvfl.errors import HookError
from splitvfl.exchange.taylor import Taylor
from splitvfl.hooks import At, Secrets, View
from splitvfl.leakage.features import FeatureLeak
from splitvfl.leakage.unit_box import Box
from splitvfl.learning.tasks import task_for
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.feature_seats import feature_leaks
from tests.builders import ACTIVE, linear_trainer, party_data, seeded, small_trainer
from tests.exchange.logistic import SHORT

OWN = "its own part of the logits"
VIEWS = [("scores", "train"), ("activation", "train"), ("scores", "test"), ("activation", "test")]


def by_view(leaks: list[FeatureLeak]) -> dict[tuple[str, str, str], FeatureLeak]:
    return {(leak.attack, leak.sees, leak.part): leak for leak in leaks}


class Look:
    """Keeps the views that it is lent."""

    name: ClassVar[str] = "look"
    target: ClassVar[Literal["features"]] = "features"

    def __init__(self, *needs: str) -> None:
        self.needs = frozenset(needs)
        self.views: list[View] = []

    def __call__(self, view: View, /) -> Tensor:
        self.views.append(view)
        return torch.full((len(view.ids), view.equations.A.shape[1]), 0.5)


class Twice:
    """Sends twice the activation."""

    name: ClassVar[str] = "twice"
    crossing: ClassVar[Literal["activation"]] = "activation"

    def __call__(self, message: Tensor, _: Secrets, /) -> Tensor:
        return 2 * message


def two_parties(*, outputs: int = 1, sizes: Mapping[str, int] = {"telecom": 2, "shop": 3}, **settings: Any) -> Trainer:
    task = "binary" if outputs == 1 else "multiclass"
    passives = {
        name: PassiveParty(party_data(name, width=width), seeded(name, lambda width=width: Linear(width, outputs)))
        for name, width in sizes.items()
    }
    top = seeded("top", lambda: LinearTop(2, outputs, active_inputs=2))
    active = ActiveParty(party_data(ACTIVE, width=2, task=task), top, task=task_for(task, 3))
    return Trainer(active, passives, **{"batch_size": 16, **settings})


@pytest.mark.parametrize("bias", [False, True])
def test_one_unknown_feature_is_solved_exactly_from_either_view(bias: bool) -> None:
    trainer = linear_trainer(features=1, bias=bias, attacks=[LeastSquaresAttack()])
    trainer.fit(1)
    leaks = trainer.feature_leaks()["telecom"]
    assert [(leak.sees, leak.part) for leak in leaks] == VIEWS
    # A float32 score near ½ has a logit within about 4 · 2**-24 ≈ 2.4e-7, and the weight times the column's range
    # divides it: with that above 0.04 the error stays below 6e-6 per record, its square below 4e-11.
    columns = trainer.passives["telecom"].data.train.columns.numeric
    weight = next(trainer.passives["telecom"].bottom.parameters()).flatten()[0].item()
    assert abs(weight) * (columns.max() - columns.min()) > 0.04
    for leak in leaks:
        assert leak.mse < 4e-11
        assert leak.blind_mse > 0.01
        assert (leak.attack, leak.features, leak.equations, leak.joint) == ("least-squares", 1, 1, 1)
        assert leak.near == 1.0
        assert [column.column for column in leak.columns] == ["telecom0"]


def test_a_regressions_prediction_is_one_equation_in_the_columns_of_all() -> None:
    passives = {
        name: PassiveParty(party_data(name, width=width), seeded(name, lambda width=width: Linear(width)))
        for name, width in {"telecom": 2, "shop": 3}.items()
    }
    top = seeded("top", lambda: LinearTop(2, active_inputs=2))
    active = ActiveParty(party_data(ACTIVE, width=2, task="regression"), top, task=task_for("regression"))
    trainer = Trainer(active, passives, batch_size=16, attacks=[LeastSquaresAttack(), GradientInversionAttack()])
    trainer.fit(1)
    leaks = trainer.feature_leaks()["telecom"]
    columns = [party.data.train.columns.numeric.double() for party in passives.values()]
    box = Box.of(torch.cat(columns, dim=1))
    weight = torch.cat([next(iter(party.bottom.parameters())) for party in passives.values()], dim=1).double().detach()
    t, row = box.unit(torch.cat(columns, dim=1)), (weight * box.width)[0]
    missed = t - (t @ row)[:, None] * row / (row @ row)  # least squares: the projection on the one row

    scores = next(leak for leak in leaks if (leak.sees, leak.part) == ("scores", "train"))
    assert (scores.equations, scores.joint) == (1, 5)
    assert scores.mse == pytest.approx(missed[:, :2].square().mean().item(), rel=1e-4)  # float32 sums
    assert {(leak.attack, leak.sees) for leak in leaks} >= {("least-squares", "activation")}
    assert not trainer.unavailable["telecom"]


def test_who_takes_the_weights_of_flipped_columns_for_true_finds_them_flipped() -> None:
    """The truth is the column itself, and neither its range nor the truth gives the flip away."""
    data = party_data("telecom", width=1, unit=True)
    trainer = linear_trainer(features=1, attacks=[LeastSquaresAttack()])
    bottom = trainer.passives["telecom"].bottom
    flipped = PassiveParty(data.with_transform(flip(1)), bottom)
    top = seeded("linear top", lambda: LinearTop(1, 1, active_inputs=2))
    active = ActiveParty(party_data(ACTIVE, width=2, task="binary", unit=True), top)
    leaks = Trainer(active, {"telecom": flipped}, batch_size=16, attacks=[LeastSquaresAttack()]).feature_leaks()
    train, test = data.train.columns.numeric.double(), data.test.columns.numeric.double()
    width = (train.max() - train.min()).square()
    expected = {"train": (1 - 2 * train).square().mean() / width, "test": (1 - 2 * test).square().mean() / width}
    for leak in leaks["telecom"]:
        # As above, errors of float32 are below 6e-6 of columns of order one.
        left = 0.0 if leak.attack.endswith(" (knows the transform)") else expected[leak.part].item()
        assert leak.mse == pytest.approx(left, abs=2e-5)
    assert len(leaks["telecom"]) == 8


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(flip(3), id="flip"),
        pytest.param(flip(3, [1]), id="one", marks=pytest.mark.slow(reason="all attacks, twice")),
        pytest.param(random_rotation(3, seed=0), id="rotation", marks=pytest.mark.slow(reason="all attacks, twice")),
    ],
)
def test_known_records_undo_a_transform_in_a_run(chosen: Transform) -> None:
    attacks = [
        LeastSquaresAttack(),
        ProcrustesAttack(known_rows=5),
        WeightEstimationAttack(known_rows=5, then="least-squares"),
        SuspectedFlipAttack(belief=0.5),
    ]
    plain = by_view(in_unit_box(None, *attacks).feature_leaks()["telecom"])
    turned = by_view(in_unit_box(chosen, *attacks).feature_leaks()["telecom"])
    for sees, part in VIEWS:
        undefended = plain["least-squares", sees, part]
        aware = turned["least-squares (knows the transform)", sees, part]
        assert aware.mse == pytest.approx(undefended.mse, abs=1e-4)
        for name in ("procrustes", "weight-estimation"):
            known = turned[name, sees, part]
            assert "the columns of 5 training records are assumed to be known" in known.note
            assert known.records == undefended.records - (5 if part == "train" else 0)
            # On test records both are judged alike. Scores are of float32: 2e-7 each, times what equations magnify.
            if part == "test":
                assert known.mse == pytest.approx(undefended.mse, abs=1e-4)
        suspicious = turned["suspected-flip", sees, part]
        assert suspicious.mse == pytest.approx(suspicious.half_mse, abs=1e-12)
    assert turned["least-squares", "scores", "test"].mse > plain["least-squares", "scores", "test"].mse + 0.01


def test_who_knows_one_partys_transform_is_judged_in_systems_that_it_is_part_of() -> None:
    trainer = two_parties(attacks=[LeastSquaresAttack()])
    telecom = trainer.passives["telecom"]
    telecom.data = telecom.data.with_transform(flip(2, [0]))
    aware = "least-squares (knows the transform)"
    found = {
        party: {leak.sees for leak in leaks if leak.attack == aware} for party, leaks in trainer.feature_leaks().items()
    }
    assert found == {"telecom": {"scores", "activation"}, "shop": {"scores"}}
    for leaks in trainer.feature_leaks().values():
        assert len(leaks) == len(by_view(leaks)), "no system is judged twice alike"
    assert not trainer.unavailable["telecom"]

    # Rows that are shifted and then scaled down are no isometry of the columns.
    telecom.data = telecom.data.with_row_norm(0.5)
    assert not [leak for leaks in trainer.feature_leaks().values() for leak in leaks if leak.attack == aware]
    assert "scaled down to a norm after the transform" in trainer.unavailable["telecom"][aware]


def in_unit_box(chosen: Transform | None, *attacks: Any) -> Trainer:
    """A model of three columns that all reach from 0 to 1, as it is and with a transform: scores are the same."""
    data = party_data("telecom", width=3, unit=True)
    for part in (data.train, data.test):
        part.columns.numeric[0], part.columns.numeric[1] = 0.0, 1.0
    bottom = seeded("telecom", lambda: Linear(3, 1, bias=True))
    if chosen is not None:
        weight, bias = bottom.parameters()
        with torch.no_grad():
            bias -= (weight.double() @ chosen.matrix.T @ chosen.shift).float()
            weight.copy_((weight.double() @ chosen.matrix.T).float())
    top = seeded("linear top", lambda: LinearTop(1, 1, active_inputs=2))
    active = ActiveParty(party_data(ACTIVE, width=2, task="binary", unit=True), top)
    passive = PassiveParty(data.with_transform(chosen), bottom)
    return Trainer(active, {"telecom": passive}, batch_size=16, attacks=attacks)


def test_known_records_are_the_same_ones_for_every_party_and_none_of_them_is_judged() -> None:
    class Told(Look):
        known_rows = 4

    look = Told("equations", "known_rows")
    trainer = two_parties(outputs=3, attacks=[look])
    trainer.fit(1)
    leaks = trainer.feature_leaks()
    assert {leak.records for name in leaks for leak in leaks[name] if leak.part == "train"} == {48 - 4}
    joint, *single = (view for view in look.views if len(view.ids) == 48 - 4)
    assert joint.known_rows.columns.shape == (4, 5)
    telecom, shop = single
    assert torch.equal(
        torch.cat([telecom.known_rows.columns, shop.known_rows.columns], dim=1), joint.known_rows.columns
    )
    for view in look.views:
        left, (columns, right, error) = view.equations.A, view.known_rows
        # What a known record's prediction tells is what it tells of any.
        assert ((columns @ left.T - right).abs() <= error).all()
        assert ((columns >= 0) & (columns <= 1)).all()


def test_too_few_known_records_are_refused_with_the_reason_and_the_run_goes_on() -> None:
    few = [ProcrustesAttack(known_rows=2), WeightEstimationAttack(known_rows=2), WeightEstimationAttack(known_rows=500)]
    trainer = linear_trainer(features=2, attacks=[*few, LeastSquaresAttack()])
    leaks = trainer.feature_leaks()["telecom"]
    assert {leak.attack for leak in leaks if leak.part == "train"} == {"least-squares"}
    reasons = trainer.unavailable["telecom"]
    assert "span all 2 columns" in reasons["procrustes (scores)"]
    assert "one is spent on the shift" in reasons["procrustes (scores)"]
    assert reasons.keys() >= {"weight-estimation (scores)", "weight-estimation (activation)"}
    with pytest.raises(HookError, match="known_rows must be a whole number"):
        feature_leaks_of(trainer, type("Told", (Look,), {"known_rows": 0})("equations", "known_rows"))


def feature_leaks_of(trainer: Trainer, attack: Any) -> Any:
    return feature_leaks([attack], trainer.active, trainer.passives, trainer.unavailable)


def test_noise_whose_direction_is_told_is_taken_off_whatever_the_columns_range() -> None:
    """A view's weights are of columns in the unit box, and the defense's direction was of the columns themselves."""

    def error(*attacks: Any, defended: bool) -> float:
        passive = PassiveParty(party_data("telecom", width=4), seeded("linear", lambda: Linear(4, 3)))
        top = seeded("top", lambda: LinearTop(1, 3, active_inputs=2))
        active = ActiveParty(party_data(ACTIVE, width=2, task="multiclass"), top, task=task_for("multiclass", 3))
        direction = noise_direction(next(passive.bottom.parameters()))[0].tolist()
        noise = [ScoreNoise(scheme=2, power=9.0, direction=direction)] if defended else []
        makes = [make(direction) for make in attacks]
        leaks = Trainer(active, {"telecom": passive}, batch_size=16, attacks=makes, defenses=noise).feature_leaks()
        (found,) = (one for one in leaks["telecom"] if (one.sees, one.part) == ("scores", "test"))
        return found.mse

    def told(direction: list[float]) -> NoiseSubtractionAttack:
        return NoiseSubtractionAttack(scheme=2, power=9.0, direction=direction)

    def plain(_: list[float]) -> LeastSquaresAttack:
        return LeastSquaresAttack()

    undefended = error(plain, defended=False)
    # Scores of float32: logits are off by 1e-6, and A⁺ is of order one to ten.
    assert error(told, defended=True) == pytest.approx(undefended, rel=1e-3)
    assert error(plain, defended=True) > 1.2 * undefended


def test_an_activation_is_one_equation_more_than_scores() -> None:
    trainer = linear_trainer(features=3, outputs=3, attacks=[LeastSquaresAttack()])
    trainer.fit(1)
    found = by_view(trainer.feature_leaks()["telecom"])
    scores, activation = (found["least-squares", sees, "test"] for sees in ("scores", "activation"))
    assert (scores.equations, activation.equations) == (2, 3)
    # Three equations in three columns, up to float32 and the inverse's condition (below 1e3).
    assert activation.mse < 1e-6
    assert scores.mse > 1e-3


def test_errors_are_in_units_of_the_training_records_range() -> None:
    trainer = two_parties(attacks=[ZeroAttack(), HalfAttack()])
    trainer.passives["shop"].data.test.columns.numeric[3, 1] = 9.0
    trainer.fit(1)
    found = by_view(trainer.feature_leaks()["shop"])
    data = trainer.passives["shop"].data
    train, test = (part.columns.numeric.numpy().astype(float) for part in (data.train, data.test))
    low, high = train.min(axis=0), train.max(axis=0)
    for part, columns in (("train", train), ("test", test)):
        points = (columns - low) / (high - low)
        zero = found["zero", "scores", part]
        assert zero.mse == pytest.approx((points**2).mean(), rel=1e-12)
        assert zero.half_mse == pytest.approx(((points - 0.5) ** 2).mean(), rel=1e-12)
        assert found["half", "activation", part].mse == pytest.approx(zero.half_mse, rel=1e-12)
        assert zero.blind_mse == pytest.approx(points.var(axis=0).mean(), rel=1e-12)
        assert [one.mse for one in zero.columns] == pytest.approx((points**2).mean(axis=0), rel=1e-12)
        assert [one.mean_mse for one in zero.columns] == pytest.approx(points.var(axis=0), rel=1e-12)
        assert [one.near for one in zero.columns] == pytest.approx((abs(points) <= 0.05).mean(axis=0), rel=1e-12)
        beyond = ((points < 0) | (points > 1)).any(axis=1).sum()
        assert (f"{beyond} of {len(points)} records lie beyond" in zero.note) == bool(beyond)
        assert zero.records == len(points)
    assert beyond > 0  # else the test shows nothing


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_views_equations_hold_for_the_true_columns_within_their_error(outputs: int) -> None:
    look = Look("equations")
    trainer = two_parties(outputs=outputs, attacks=[look])
    trainer.fit(1)
    found = trainer.feature_leaks()
    assert set(found) == {"telecom", "shop"}
    # One joint system for scores, one for each party's activation, of both parts.
    assert [view.equations.A.shape for view in look.views] == 2 * [
        (max(outputs - 1, 1), 5),
        (outputs, 2),
        (outputs, 3),
    ]
    for number, part in enumerate(("train", "test")):
        points = {}
        for name, party in trainer.passives.items():
            low, high = (end(party.data.train.columns.numeric.double(), dim=0) for end in (torch.amin, torch.amax))
            points[name] = (getattr(party.data, part).columns.numeric.double() - low) / (high - low)
        truths = [torch.cat([points["telecom"], points["shop"]], dim=1), points["telecom"], points["shop"]]
        inside = [((truth >= 0) & (truth <= 1)).all(dim=1) for truth in truths]
        for view, truth, kept in zip(look.views[3 * number : 3 * number + 3], truths, inside, strict=True):
            left, right, error = view.equations
            off = (truth @ left.T - right).abs()
            assert (off[kept] <= error[kept]).all()
            # The bound is no more than a few hundred roundings of logits of size 10.
            assert error.max() < 1e-3
            assert view.ids.tolist() == getattr(trainer.active.data, part).ids.tolist()


def test_joint_equations_of_scores_name_all_columns_parties() -> None:
    trainer = two_parties(attacks=[HalfStarAttack()])
    trainer.fit(1)
    found = trainer.feature_leaks()
    scores = by_view(found["shop"])["half-star", "scores", "test"]
    activation = by_view(found["shop"])["half-star", "activation", "test"]
    assert (scores.joint, scores.features, activation.joint) == (5, 3, 3)
    assert "one system of equations in the columns of telecom and shop" in scores.note
    assert "one system" not in activation.note


class Numbered:
    """Answers a tenth of each column's number in the system."""

    name: ClassVar[str] = "numbered"
    target: ClassVar[Literal["features"]] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"equations"})

    def __call__(self, view: View, /) -> Tensor:
        return (torch.arange(view.equations.A.shape[1]).double() / 10).expand(len(view.ids), -1)


def test_each_party_is_judged_by_its_own_columns_of_the_joint_system() -> None:
    trainer = two_parties(attacks=[Numbered()])
    trainer.fit(1)
    found = trainer.feature_leaks()
    for name, first in (("telecom", 0), ("shop", 2)):
        columns = trainer.passives[name].data.train.columns.numeric.numpy().astype(float)
        points = (columns - columns.min(axis=0)) / np.ptp(columns, axis=0)
        for sees, start in (("scores", first), ("activation", 0)):
            leak = by_view(found[name])["numbered", sees, "train"]
            answers = (start + np.arange(points.shape[1])) / 10
            expected = ((points - answers) ** 2).mean(axis=0)
            assert [one.mse for one in leak.columns] == pytest.approx(expected, rel=1e-9)
            assert [one.column for one in leak.columns] == list(trainer.passives[name].data.numeric_names)


def test_the_views_other_fields_give_the_same_equations() -> None:
    look = Look("equations", "scores", "active_logits", "passive_weight")
    trainer = linear_trainer(features=3, bias=True, attacks=[look])
    trainer.fit(1)
    trainer.feature_leaks()
    assert len(look.views) == 2
    for view in look.views:
        left, right = equations(view.scores, view.active_logits, view.passive_weight)
        torch.testing.assert_close(left, view.equations.A, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(right, view.equations.b, rtol=1e-9, atol=1e-9)
    assert trainer.unavailable["telecom"] == {
        "look (activation)": f"needs {OWN}, the passive party's weights, published scores"
    }


def test_the_losses_of_scores_need_scores() -> None:
    trainer = linear_trainer(features=2, attacks=[GradientInversionAttack(loss="kl")])
    trainer.fit(1)
    assert {leak.sees for leak in trainer.feature_leaks()["telecom"]} == {"scores"}
    assert trainer.unavailable["telecom"] == {"gradient-inversion (activation)": f"needs {OWN}"}


def test_an_attack_that_refuses_costs_no_finished_run() -> None:
    trainer = linear_trainer(features=6, attacks=[ChebyshevCentreAttack(), HalfAttack()])
    trainer.fit(1)
    assert {leak.attack for leak in trainer.feature_leaks()["telecom"]} == {"half"}
    reasons = trainer.unavailable["telecom"]
    assert reasons.keys() == {f"chebyshev-centre ({sees})" for sees in ("scores", "activation")}
    assert all("leave 5 dimensions free" in reason for reason in reasons.values())


def test_feature_attacks_on_softmax_regression() -> None:
    trainer = linear_trainer(features=2, outputs=3, attacks=[LeastSquaresAttack(), GradientInversionAttack()])
    trainer.fit(1)
    found = by_view(trainer.feature_leaks()["telecom"])
    # Three classes give two equations for two features: exact up to float32, times the inverse's condition (below 100).
    assert found["least-squares", "scores", "train"].mse < 1e-8
    assert found["gradient-inversion", "scores", "train"].mse < 1e-6
    assert trainer.leaks == {"telecom": {}}


def test_rounded_scores_blur_the_features_and_the_error_says_how_far() -> None:
    look = Look("equations")
    trainer = linear_trainer(features=1, attacks=[LeastSquaresAttack(), look], defenses=[Rounding(decimals=1)])
    trainer.fit(1)
    found = by_view(trainer.feature_leaks()["telecom"])
    assert found["least-squares", "scores", "test"].mse > 1e-4
    assert found["least-squares", "activation", "test"].mse < 4e-11
    truth = trainer.passives["telecom"].data.train.columns.numeric.double()
    points = (truth - truth.min()) / (truth.max() - truth.min())
    scores = next(view for view in look.views if view.equations.error.max() > 0.1)
    assert ((points @ scores.equations.A.T - scores.equations.b).abs() <= scores.equations.error).all()


def test_noise_on_what_is_seen_is_named_beside_the_error() -> None:
    trainer = linear_trainer(features=1, attacks=[HalfAttack()], defenses=[At(Twice(), "prediction")])
    trainer.fit(1)
    found = by_view(trainer.feature_leaks()["telecom"])
    assert "leaves out what twice changed" in found["half", "activation", "test"].note


@pytest.mark.parametrize("names", [("telecom",), ("telecom", "shop")])
def test_where_only_the_sum_is_seen_the_sum_is_attacked(names: tuple[str, ...]) -> None:
    sizes = dict(zip(names, (2, 3), strict=False))
    passives = {
        name: PassiveParty(party_data(name, width=width), seeded(name, lambda width=width: Linear(width)))
        for name, width in sizes.items()
    }
    top = seeded("top", lambda: LinearTop(len(names), active_inputs=2))
    look = Look("equations")
    trainer = Trainer(
        ActiveParty(party_data(ACTIVE, width=2, task="binary"), top),
        passives,
        batch_size=24,
        exchange=Taylor(rows=24, encryption=SHORT),
        attacks=[look],
        audit=False,
    )
    trainer.fit(1)
    found = trainer.feature_leaks()
    leak = by_view(found["telecom"])["look", "activation", "test"]
    assert leak.joint == sum(sizes.values())
    assert "only the sum of all parts" in leak.note
    assert ("of one passive party is its part" in leak.note) == (len(names) == 1)
    truth = []
    for party in trainer.passives.values():
        train = party.data.train.columns.numeric.double()
        low, high = train.amin(dim=0), train.amax(dim=0)
        truth.append((train - low) / (high - low))
    activation = look.views[1].equations
    off = (torch.cat(truth, dim=1) @ activation.A.T - activation.b).abs()
    assert (off <= activation.error).all()


def test_a_linear_bottom_is_read_from_its_activation_under_any_top() -> None:
    passive = PassiveParty(party_data("telecom", width=3), seeded("linear", lambda: Linear(3, 4)))
    top = seeded("any", lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1)))
    trainer = Trainer(
        ActiveParty(party_data(ACTIVE, width=2, task="binary"), top),
        {"telecom": passive},
        batch_size=16,
        attacks=[LeastSquaresAttack()],
    )
    trainer.fit(1)
    leaks = trainer.feature_leaks()["telecom"]
    assert {leak.sees for leak in leaks} == {"activation"}
    assert max(leak.mse for leak in leaks) < 1e-6
    assert trainer.unavailable["telecom"] == {"least-squares (scores)": "needs linear models (logistic regression)"}


def test_feature_attacks_are_unavailable_where_there_are_no_equations() -> None:
    deep = small_trainer(attacks=[LeastSquaresAttack()])
    deep.fit(1)
    assert deep.feature_leaks() == {}
    assert deep.unavailable == {"telecom": {"least-squares": "needs linear models (logistic regression)"}}


class Misplaced(LeastSquaresAttack):
    """One that asks in this seat for what the other seat sees."""

    name = "misplaced"
    needs = frozenset({"equations", "gradient"})


def test_what_no_view_of_the_seat_has_is_not_put_down_to_the_model() -> None:
    deep = small_trainer(attacks=[Misplaced()])
    deep.fit(1)
    assert deep.feature_leaks() == {}
    reason = deep.unavailable["telecom"]["misplaced"]
    assert reason.startswith("needs the gradient of each record, which no view of predictions has; it has")


def with_columns(trainer: Trainer, change: Any) -> Trainer:
    party = trainer.passives["telecom"]
    parts = {
        part: replace(records, columns=Columns.of(change(records.columns.numeric.clone())))
        for part, records in (("train", party.data.train), ("test", party.data.test))
    }
    party.data = replace(party.data, **parts)
    return trainer


def test_a_column_that_does_not_vary_is_known_and_not_judged() -> None:
    def constant(columns: Tensor) -> Tensor:
        columns[:, 1] = 0.75
        return columns

    trainer = with_columns(linear_trainer(features=2, attacks=[LeastSquaresAttack()]), constant)
    trainer.fit(1)
    leaks = trainer.feature_leaks()["telecom"]
    assert {(leak.features, leak.equations) for leak in leaks} == {(1, 1)}
    assert [column.column for column in leaks[0].columns] == ["telecom0"]
    assert max(leak.mse for leak in leaks) < 1e-9


def test_systems_that_no_point_of_the_box_solves_are_counted() -> None:
    trainer = linear_trainer(features=1, attacks=[LeastSquaresAttack()])
    trainer.passives["telecom"].data.test.columns.numeric[:2, 0] = torch.tensor([5.0, -5.0])
    trainer.fit(1)
    for leak in trainer.feature_leaks()["telecom"]:
        # One equation in one column: a record beyond the range has none.
        told = "2 of 24 systems have no solution in the box" in leak.note
        assert told == (leak.part == "test")
        assert ("2 of 24 records lie beyond the known range of a column" in leak.note) == told


def test_columns_of_which_none_varies_have_nothing_to_find() -> None:
    trainer = with_columns(linear_trainer(features=2, attacks=[LeastSquaresAttack()]), torch.ones_like)
    trainer.fit(1)
    assert trainer.feature_leaks() == {}
    assert "none of its columns varies" in trainer.unavailable["telecom"]["least-squares"]


def test_an_endless_range_is_refused_with_the_reason() -> None:
    trainer = linear_trainer(features=2, attacks=[LeastSquaresAttack()])
    trainer.fit(1)
    trainer.passives["telecom"].data.train.columns.numeric[0, 1] = math.inf
    assert trainer.feature_leaks() == {}
    assert "no finite range" in trainer.unavailable["telecom"]["least-squares"]


def test_records_beyond_the_most_are_spread_over_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitvfl.run.feature_systems.MOST_RECORDS", 7)
    look = Look("equations")
    trainer = linear_trainer(features=2, attacks=[look])
    trainer.fit(1)
    leaks = trainer.feature_leaks()["telecom"]
    assert {leak.records for leak in leaks} == {7}
    expected = np.linspace(0, 47, 7).round().astype(int)
    assert look.views[0].ids.tolist() == trainer.active.data.train.ids[expected].tolist()


def test_estimates_of_a_view_solve_its_equations() -> None:
    look = Look("equations")
    trainer = two_parties(attacks=[look])
    trainer.fit(1)
    trainer.feature_leaks()
    for view in look.views:
        left, right, _ = view.equations
        torch.testing.assert_close(least_squares(left, right) @ left.T, right, rtol=0, atol=1e-9)


def with_coins(name: str, places: Sequence[int], *, width: int) -> PartyData:
    """Columns of which those at some places are 0 or 1."""
    data = party_data(name, width=width, unit=True)
    for part in (data.train, data.test):
        part.columns.numeric[:, list(places)] = part.columns.numeric[:, list(places)].round()
    return data


def coin_trainer(sizes: Mapping[str, int], *, continuous: int = 0) -> Trainer:
    """Parties whose columns are coins, but for the last ones."""
    passives = {
        name: PassiveParty(
            with_coins(name, range(width - continuous), width=width), seeded(name, lambda width=width: Linear(width, 1))
        )
        for name, width in sizes.items()
    }
    top = seeded("coins", lambda: LinearTop(len(sizes), 1, active_inputs=2))
    active = ActiveParty(party_data(ACTIVE, width=2, task="binary", unit=True), top)
    return Trainer(active, passives, batch_size=16, attacks=[DiscreteSearchAttack(), HalfStarAttack()])


def test_columns_of_few_values_are_found_by_searching_them_where_one_equation_leaves_one() -> None:
    trainer = coin_trainer({"telecom": 2, "shop": 2})
    found = trainer.feature_leaks()
    for name in ("telecom", "shop"):
        leaks = by_view(found[name])
        for sees, part in VIEWS:
            # Sixteen sums, of random weights: float32's error of 1e-6 confuses none of them.
            assert leaks["discrete-search", sees, part].mse == 0.0
            assert leaks["half-star", sees, part].mse > 0.01
            count = len(getattr(trainer.active.data, part).ids)
            said = f"one candidate alone for {count} of {count} predictions"
            assert said in leaks["discrete-search", sees, part].note


def test_an_attack_that_refuses_a_view_is_listed_as_unavailable_and_the_others_run() -> None:
    trainer = linear_trainer(features=6, attacks=[ChebyshevCentreAttack(), DiscreteSearchAttack(), HalfAttack()])
    leaks = trainer.feature_leaks()["telecom"]
    assert {leak.attack for leak in leaks} == {"half"}
    missing = trainer.unavailable["telecom"]
    assert "5 dimensions free" in missing["chebyshev-centre (scores)"]
    assert "nothing to search" in missing["discrete-search (activation)"]


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_single_column_is_found_without_the_weights(outputs: int) -> None:
    data = party_data("telecom", width=1, unit=True)  # above 0: weight and what is constant have one sign
    passive = PassiveParty(data, seeded("black box", lambda: Linear(1, outputs)))
    task = "binary" if outputs == 1 else "multiclass"
    top = seeded("black box top", lambda: LinearTop(1, outputs, active_inputs=2))
    active = ActiveParty(party_data(ACTIVE, width=2, task=task), top, task=task_for(task, 3))
    look = Look("logit_parts", "equations")
    attacks = [BlackBoxFeatureAttack(case=2), look]
    found = Trainer(active, {"telecom": passive}, batch_size=16, attacks=attacks).feature_leaks()["telecom"]
    leaks = by_view(found)
    for sees in ("scores", "activation"):
        # All training records are judged, so that the least and the largest observation are the box's ends; scores of
        # float32 have logits off by 1e-6, and the weight times the range is above .1.
        assert leaks["black-box-feature", sees, "train"].mse < 1e-8
        # Of test records the ends are their own: at most (1 − max)² + min².
        columns = data.test.columns.numeric.double()
        points = (columns - data.train.columns.numeric.min()) / (
            data.train.columns.numeric.max() - data.train.columns.numeric.min()
        )
        bound = (1 - points.max()) ** 2 + points.min() ** 2
        assert leaks["black-box-feature", sees, "test"].mse <= bound.item() + 1e-6
    for view in look.views:
        # What is constant is all that parts and right sides differ by.
        constant = view.logit_parts.values - view.equations.b
        assert (constant - constant[:1]).abs().max() < 1e-5
        assert view.logit_parts.columns == ("telecom0",)


def test_without_the_weights_several_columns_are_refused_by_name() -> None:
    trainer = two_parties(sizes={"telecom": 1, "shop": 2}, attacks=[BlackBoxFeatureAttack()])
    leaks = trainer.feature_leaks()
    assert [leak.sees for leak in leaks["telecom"]] == ["activation", "activation"]
    assert "shop" not in leaks
    assert "3: telecom0, shop0, shop1" in trainer.unavailable["telecom"]["black-box-feature (scores)"]
    assert "2: shop0, shop1" in trainer.unavailable["shop"]["black-box-feature (activation)"]


def test_a_category_is_judged_in_every_view(tmp_path: Path) -> None:
    """Of one-hot columns, which have a range each, an attack on the box alone guesses, and a search does not."""
    draw = np.random.default_rng(3)
    plan = draw.choice(["a", "b", "c", "d"], 200)
    table = {"plan": plan, "calls": draw.integers(0, 4, 200), "own": draw.random(200), "y": draw.integers(0, 2, 200)}
    path = tmp_path / "t.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in [table, *zip(*table.values(), strict=True)]))
    data = load(
        "table", path=str(path), label="y", active="own", passive={"telecom": ["plan", "calls"]}, scale="minmax"
    )
    passive = PassiveParty(data["telecom"], seeded("plan", lambda: Linear(5, 1)))
    active = ActiveParty(data.active, seeded("plan top", lambda: LinearTop(1, 1, active_inputs=1)))
    attacks = [DiscreteSearchAttack(), HalfStarAttack()]
    leaks = by_view(Trainer(active, {"telecom": passive}, batch_size=16, attacks=attacks).feature_leaks()["telecom"])
    for sees, part in VIEWS:
        searched, boxed = (leaks[name, sees, part] for name in ("discrete-search", "half-star"))
        assert [one.column for one in searched.categories] == ["plan"]
        assert (searched.right, searched.bits_left) == (1.0, 0.0)
        assert boxed.right is not None
        # Four plans; the commonest alone is right in about a third of the records.
        assert boxed.right < 1.0
        assert boxed.categories[0].commonest == searched.categories[0].commonest < 0.5
