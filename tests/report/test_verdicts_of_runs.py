"""What is concluded of a run: the examples that misled, and what a summary says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from splitvfl.app.trainer import Trainer
from splitvfl.claims import CLASS_WEIGHTS, STRATIFIED, Guarantee
from splitvfl.defenses import AsymmetricResponse
from splitvfl.errors import CheckpointError
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.column_figures import ColumnReading, ColumnShare, OwnShares
from splitvfl.leakage.in_general import KnowledgeGain, LabelFreeAttack
from splitvfl.privacy import SummedTraining, solvable_labels
from splitvfl.report.first_screen import first_screen
from splitvfl.report.party_result import PartyResult
from splitvfl.report.rows import DefenseRow, group_runs, rows_by_defense
from splitvfl.report.summary import ExchangeTraits, RunSummary, read_summary
from splitvfl.report.verdict import Baseline, Total
from tests.builders import small_trainer
from tests.report.test_tables import party, result, run

ANSWERS = Guarantee(0.60, "run", "asymmetric-response")
NEAR = CanaryLeak(0.60, 0.52, 0.68, 150, 150, figures=3)
LOUD = CanaryLeak(0.98, 0.95, 0.99, 150, 150, figures=3)


def of_labels(found: RunSummary) -> tuple[str, str]:
    (verdict,) = found.verdict.values()
    assert verdict.labels is not None
    return verdict.labels.state, verdict.labels.row


def telecom(**changes: object) -> RunSummary:
    """Return a run whose partner is read with an AUC of 0.98 by an attack on messages."""
    return run(parties={"telecom": replace(party(norm=result(0.98)), **changes)})  # type: ignore[arg-type]


def test_undefended_labels_are_above_the_goal_with_canaries_and_undecided_without() -> None:
    assert of_labels(telecom(excess=LOUD)) == ("above-goal", "excess-above")
    assert of_labels(telecom()) == ("inconclusive", "undecided")


# Figures of runs of ten epochs, mlp of one layer, the partner with most of the columns: breast cancer and digits.
CANCER = {"own_columns_auc": 0.992, "first_component_auc": 0.953, "prediction_auc": 0.973, "total": 0.997}
DIGITS = {"own_columns_auc": 0.993, "first_component_auc": 0.624, "prediction_auc": 0.617, "total": 0.994}


def measured(figures: dict[str, float], worst: float, **changes: object) -> RunSummary:
    """Return a run with such figures, of which an attack on messages recovers labels with an AUC."""
    lab = replace(party(auditor_linear=result(worst)), includes_features=True, **figures, **changes)  # type: ignore[arg-type]
    return run("axis-sumkl(detection_error=0.4)", parties={"lab": lab})


def test_a_broken_defense_is_above_the_goal_however_much_the_partner_knows_anyway() -> None:
    # What the partner's own features predict, 0.99, was what an attack was compared with: 0.87 was "goal met".
    axis = measured(CANCER, 0.867, excess=CanaryLeak(0.862, 0.682, 0.948, 33, 27, figures=5))
    assert of_labels(axis) == ("above-goal", "excess-above")
    one_way = replace(
        run(parties={"lab": replace(party(), own_columns_auc=0.992)}),
        exchange="one-way",
        exchange_traits=ExchangeTraits(one_way=True, shows_gradients=False),
    )
    assert of_labels(one_way) == ("no-label-dependent-message", "one-way")


def test_canaries_decide_what_was_undecided_and_turn_nothing_round() -> None:
    # The same experiment was "goal met" without canaries and "goal missed" with them.
    norm = LabelFreeAttack("norm", 0.600, 0.548, False, False, False, 0.602, 1439)
    without = measured(DIGITS, 0.826, label_free=norm)
    canaries = measured(DIGITS, 0.824, label_free=norm, excess=CanaryLeak(0.818, 0.714, 0.890, 74, 70, figures=5))
    assert of_labels(without) == ("inconclusive", "undecided")
    assert of_labels(canaries) == ("above-goal", "excess-above")
    for goal in (0.55, 0.6, 0.7):
        assert of_labels(replace(without, goal=goal))[0] == "inconclusive"
        assert of_labels(replace(canaries, goal=goal))[0] == "above-goal"


def test_an_undefended_model_is_above_the_goal_without_canaries_if_an_attack_needs_no_labels() -> None:
    norm = LabelFreeAttack("norm", 1.000, 0.993, True, True, True, 1.0, 1439)
    digits = replace(measured(DIGITS, 1.0, label_free=norm), defenses=[])
    assert of_labels(digits) == ("above-goal", "attack")
    (verdict,) = digits.verdict.values()
    assert verdict.labels is not None
    assert verdict.labels.reason == "norm reaches 1.00 and needs no labels"
    found = telecom(label_free=replace(norm, auc=0.98, low=0.95, matched=0.93))
    assert of_labels(found) == ("above-goal", "attack")
    assert of_labels(telecom(label_free=replace(norm, beats_baseline=False))) == ("inconclusive", "undecided")


def test_hybrid_with_nearly_all_signs_recovered_is_not_below_the_goal() -> None:
    # Give me some credit: stacked-epochs had 98.7 % of the signs right, and no leak AUC was above the goal.
    stacked = replace(result(0.5), signs_right=0.987)
    hybrid = replace(
        run(parties={"lab": party(stacked_epochs=stacked)}),
        exchange="hybrid",
        exchange_traits=ExchangeTraits(shows_gradients=False),
    )
    assert of_labels(hybrid) == ("inconclusive", "undecided")
    (verdict,) = hybrid.verdict.values()
    assert verdict.labels is not None
    assert verdict.labels.reason == "the excess cannot be measured in this protocol"
    assert verdict.labels.decided_by == "a guarantee"
    shown = LabelFreeAttack("stacked-epochs", 0.987, 0.981, True, True, True, 0.98, 2000)
    lab = replace(party(stacked_epochs=stacked), label_free=shown)
    assert of_labels(replace(hybrid, parties={"lab": lab})) == ("above-goal", "attack")


def test_a_stratified_division_voids_a_guarantee_and_one_way() -> None:
    void = replace(ANSWERS, void=(STRATIFIED.name,))
    found = replace(telecom(guarantee=void, excess=NEAR), label_releases=[STRATIFIED.name])
    assert of_labels(found) == ("inconclusive", "excess-undecided")
    assert of_labels(replace(found, goal=0.99)) == ("below-goal", "excess-below")
    traits = ExchangeTraits(one_way=True, shows_gradients=False)
    one_way = replace(telecom(), exchange="one-way", exchange_traits=traits, label_releases=[STRATIFIED.name])
    (verdict,) = one_way.verdict.values()
    assert verdict.labels is not None
    assert verdict.labels.state == "inconclusive"
    assert verdict.labels.reason == "the partner sees what is made from labels: stratified division"
    weighed = replace(one_way, label_releases=[CLASS_WEIGHTS.name])  # no gradient goes to the partner
    assert of_labels(weighed) == ("no-label-dependent-message", "one-way")


def test_a_guarantee_at_the_goal_is_below_it_whatever_the_interval_is() -> None:
    assert of_labels(telecom(guarantee=ANSWERS, excess=NEAR)) == ("below-goal", "guarantee")
    assert of_labels(telecom(excess=NEAR)) == ("inconclusive", "excess-undecided")


def test_a_guarantee_above_the_goal_does_not_decide() -> None:
    noise = replace(ANSWERS, auc=0.64)
    assert of_labels(telecom(guarantee=noise, excess=NEAR)) == ("inconclusive", "excess-undecided")
    assert of_labels(replace(telecom(guarantee=noise, excess=NEAR), goal=0.65)) == ("below-goal", "guarantee")


def test_what_is_revealed_of_randomised_labels_is_shown_and_decides_nothing() -> None:
    found = telecom(guarantee=ANSWERS, excess=NEAR, randomised=LOUD)
    assert of_labels(found) == of_labels(telecom(guarantee=ANSWERS, excess=NEAR))
    said = StringIO()
    Console(width=80, file=said).print(first_screen(found))
    assert "  0.98         95 % CI 0.95–0.99 for the randomised labels" in said.getvalue()


def test_what_is_made_from_labels_voids_a_guarantee_and_one_way() -> None:
    void = replace(ANSWERS, void=("early stopping",))
    assert of_labels(telecom(guarantee=void, excess=NEAR)) == ("inconclusive", "excess-undecided")
    one_way = replace(
        telecom(), exchange="one-way", exchange_traits=ExchangeTraits(one_way=True, shows_gradients=False)
    )
    assert of_labels(one_way) == ("no-label-dependent-message", "one-way")
    assert of_labels(replace(one_way, label_releases=["early stopping"])) == ("inconclusive", "undecided")


def test_labels_that_can_be_solved_for_are_above_the_goal_though_nothing_was_measured() -> None:
    training = SummedTraining(records=4000, batch_size=16, epochs=2)
    found = list(solvable_labels("telecom", 32, training, horizon=1000, zero_start=False))
    sums = replace(telecom(), solvable=found, exchange_traits=ExchangeTraits(shows_gradients=False))
    assert of_labels(sums) == ("above-goal", "solvable")
    (verdict,) = sums.verdict.values()
    assert verdict.labels is not None
    assert verdict.labels.reason == "batch of 16 records ≤ 32 features: telecom solves every label"
    assert verdict.labels.prevented_by == f"train.batch_size: {found[0].batch_size_needed}"
    hopeless = [replace(one, batch_size_needed=None, epochs_allowed=None) for one in found]
    (verdict,) = replace(sums, solvable=hopeless).verdict.values()
    assert verdict.labels is not None
    assert verdict.labels.prevented_by == "randomised labels, or one-way training: no batch size does"
    assert of_labels(replace(sums, solvable=[replace(one, labels="changed") for one in found])) == (
        "inconclusive",
        "undecided",
    )
    assert of_labels(replace(sums, solvable=[])) == ("inconclusive", "undecided")


def test_total_and_baseline_stand_beside_the_state() -> None:
    found = replace(
        party(norm=result(0.98)), total=0.9, includes_features=True, first_component_auc=0.57, own_columns_auc=0.77
    )
    (verdict,) = run(parties={"lab": found}).verdict.values()
    assert verdict.labels is not None
    assert verdict.labels.total == Total(0.98, includes_features=True)
    assert verdict.labels.baseline == Baseline(without_labels=0.57, with_labels=0.77)
    (over_a_network,) = run(parties={"lab": PartyResult({})}).verdict.values()
    assert over_a_network.labels is not None
    assert (over_a_network.labels.total, over_a_network.labels.baseline) == (None, None)


def read(share: float, without: float | None, records: int = 1000, **changes: float) -> ColumnReading:
    return ColumnReading("ridge", 0.05, share, 1, records, [ColumnShare("age", share, without=without)], **changes)


@pytest.mark.parametrize(
    ("reading", "state"),
    [
        (read(0.95, 0.1), "above-goal"),
        (read(0.95, 0.6), "inconclusive"),  # the label owner's own columns recover most of it
        (read(0.56, 0.0, records=30), "inconclusive"),  # too few records to say so
        (read(0.56, 0.0, records=30_000), "above-goal"),
        (read(0.2, 0.0, exact=0.5), "above-goal"),
        (read(0.2, 0.0, exact=0.5, exact_without=0.495), "inconclusive"),
        (read(0.2, None), "inconclusive"),
    ],
)
def test_features_are_above_the_goal_by_what_messages_add(reading: ColumnReading, state: str) -> None:
    (verdict,) = run(parties={"lab": PartyResult({}, readings=[reading])}).verdict.values()
    assert verdict.features.state == state


def test_own_columns_stand_beside_each_feature() -> None:
    found = read(0.95, None).with_own(OwnShares(0.3, None, {"age": 0.6}))
    assert found.columns[0].without == 0.6
    assert found.with_own(None).columns[0].without is None


# --- where it is kept


def test_a_summary_holds_its_verdict_and_one_that_was_changed_is_judged_anew(tmp_path: Path) -> None:
    telecom(guarantee=ANSWERS, excess=NEAR).save(tmp_path)
    path = tmp_path / "summary.json"
    held = json.loads(path.read_text())
    labels = held["verdict"]["telecom"]["labels"]
    assert labels["state"] == "below-goal"
    assert labels["excess"] | {"figures": 3} == {
        "value": 0.6,
        "low": 0.52,
        "high": 0.68,
        "canaries": 300,
        "figures": 3,
        "twin": False,
    }
    assert labels["guarantee"]["auc"] == 0.6
    expected = {"state", "guarantee", "excess", "total", "baseline", "knowledge_gain", "reason", "decided_by"}
    assert expected <= labels.keys()
    assert expected <= held["verdict"]["telecom"]["features"].keys()

    held["figures"] = [one for one in held["figures"] if one.get("part") != "guarantee"]
    held["notes"] = [one for one in held["notes"] if one.get("part") != "guarantee"]
    path.write_text(json.dumps(held))
    assert of_labels(read_summary(tmp_path)) == ("inconclusive", "excess-undecided")


NORM = LabelFreeAttack("norm", 0.98, 0.97, True, True, True, matched=0.97, records=400)


def test_an_attack_that_needs_no_labels_decides_without_canaries_and_is_judged_anew_with_another_goal(
    tmp_path: Path,
) -> None:
    telecom(label_free=NORM).save(tmp_path)
    read = read_summary(tmp_path)
    assert of_labels(read) == ("above-goal", "attack")
    (verdict,) = read.verdict.values()
    assert verdict.labels is not None
    assert verdict.labels.reason == "norm reaches 0.98 and needs no labels"
    assert of_labels(replace(read, goal=0.62)) == ("inconclusive", "undecided")  # 0.97 is not 0.36 above it
    assert of_labels(telecom(label_free=NORM, excess=NEAR)) == ("inconclusive", "excess-undecided")


def test_labels_in_general_stand_beside_the_state_and_one_way_nothing_is_new(tmp_path: Path) -> None:
    gained = KnowledgeGain(0.57, 0.73, 0.14, 0.18, model=0.74)
    telecom(knowledge_gain=gained).save(tmp_path)
    (verdict,) = read_summary(tmp_path).verdict.values()
    assert verdict.labels is not None
    assert (verdict.labels.knowledge_gain, verdict.labels.row) == (gained, "undecided")
    traits = ExchangeTraits(one_way=True, shows_gradients=False)
    one_way = replace(telecom(first_component_auc=0.57), exchange="one-way", exchange_traits=traits)
    (verdict,) = one_way.verdict.values()
    assert verdict.labels is not None
    assert verdict.labels.knowledge_gain == KnowledgeGain.without_messages(0.57)
    assert not verdict.labels.knowledge_gain.significant
    (verdict,) = replace(one_way, label_releases=["early stopping"]).verdict.values()
    assert verdict.labels is not None
    assert verdict.labels.knowledge_gain is None


def test_figures_that_no_run_has_are_refused(tmp_path: Path) -> None:
    telecom(excess=NEAR).save(tmp_path)
    path = tmp_path / "summary.json"
    held = json.loads(path.read_text())
    (excess,) = [one for one in held["figures"] if one.get("part") == "excess" and one["what"] == "auc"]
    excess["low"] = 0.7
    path.write_text(json.dumps(held))
    with pytest.raises(CheckpointError, match="low <= value <= high"):
        read_summary(tmp_path)


def test_a_passive_partys_own_summary_says_nothing_of_labels() -> None:
    (verdict,) = replace(telecom(), seat="telecom").verdict.values()
    assert verdict.labels is None


def test_a_trainer_in_python_concludes_alike() -> None:
    def judged(*defenses: AsymmetricResponse) -> Trainer:
        made = small_trainer(
            sizes={"train": 200, "test": 40}, batch_size=50, canaries=60, audit=True, defenses=defenses
        )
        made.fit(2)
        return made

    plain, defended = judged(), judged(AsymmetricResponse(detection_error=0.4))
    (found,) = plain.verdict.values()
    assert found.labels is not None
    assert found.labels.guarantee is None
    assert found.labels.excess is not None
    assert found.labels.excess.canaries == 60
    assert found.labels.randomised is None
    (found,) = defended.verdict.values()
    assert found.labels is not None
    assert (found.labels.state, found.labels.row) == ("below-goal", "guarantee")
    assert found.labels.randomised is not None
    assert found.labels.excess is not None
    assert found.labels.randomised.value > found.labels.excess.value
    (found,) = defended.judged(0.55).values()
    assert found.labels is not None
    assert found.labels.row != "guarantee"


# --- several seeds


def seeded(*excesses: CanaryLeak, goal: float = 0.60, **more: object) -> DefenseRow:
    """Return a row of runs: the norm recovers so much of the canaries, an attack on columns alone all of it."""
    blind = replace(result(1.0), by_messages=False)
    runs = [
        replace(
            run(
                parties={
                    "telecom": replace(
                        party(norm=result(0.7), alone=blind),
                        excess=replace(one, figures=3),
                        canaries={"norm": one, "alone": LOUD},
                        **more,  # type: ignore[arg-type]
                    )
                }
            ),
            goal=goal,
            seed=seed,
        )
        for seed, one in enumerate(excesses)
    ]
    (group,) = group_runs(runs)
    (row,) = rows_by_defense(group)
    return row


def decided(row: DefenseRow) -> tuple[str, str]:
    labels = row.verdict["telecom"].labels
    assert labels is not None
    return labels.state, labels.row


def test_seeds_are_pooled_before_they_are_judged() -> None:
    one = CanaryLeak(0.64, 0.58, 0.70, 150, 150)
    assert decided(seeded(one)) == ("inconclusive", "excess-undecided")
    row = seeded(one, one, one)
    assert decided(row) == ("above-goal", "excess-above")
    (found,) = row.parties
    assert found.excess is not None
    assert found.excess.auc == pytest.approx(0.64)
    assert (found.excess.count, found.excess.figures) == (900, 1)
    # The other attack reads no message, and is no part of it.
    assert found.excess.high - found.excess.low == pytest.approx(0.12 / 3**0.5, rel=1e-3)
    assert found.interval == (found.excess.low, found.excess.high)
    assert found.beyond is not None
    assert found.beyond.mean == found.excess.auc
    low = CanaryLeak(0.54, 0.48, 0.60, 150, 150)
    assert decided(seeded(low, low, low)) == ("below-goal", "excess-below")
    # Seeds that disagree decide nothing together.
    assert decided(seeded(low, one, low, one)) == ("inconclusive", "excess-undecided")


def test_a_guarantee_of_several_runs_is_the_weakest_of_theirs() -> None:
    near = CanaryLeak(0.60, 0.54, 0.66, 150, 150)
    assert decided(seeded(near, near, guarantee=ANSWERS)) == ("below-goal", "guarantee")
    row = seeded(near, near, guarantee=ANSWERS)
    first, second = row.results
    for other in (None, replace(ANSWERS, auc=0.65), replace(ANSWERS, void=("early stopping",))):
        changed = replace(second, parties={"telecom": replace(second.parties["telecom"], guarantee=other)})
        assert decided(replace(row, results=[first, changed])) == ("inconclusive", "excess-undecided")
        assert decided(replace(row, results=[changed, first])) == ("inconclusive", "excess-undecided")
