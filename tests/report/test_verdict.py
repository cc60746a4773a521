"""The rules by which a state follows from figures: a table, and what has to be true of it whatever the figures are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.claims import Guarantee
from splitvfl.errors import ArgumentError
from splitvfl.leakage.in_general import KnowledgeGain, LabelFreeAttack
from splitvfl.metrics import auc_interval
from splitvfl.report.verdict import (
    Baseline,
    Excess,
    FeatureEvidence,
    LabelEvidence,
    Total,
    Verdict,
    feature_verdict,
    half_width,
    label_verdict,
)

NEAR = Excess(0.60, low=0.52, high=0.68, canaries=300)
CLEAR = Excess(0.52, low=0.48, high=0.56, canaries=1000)
LOUD = Excess(0.90, low=0.85, high=0.93, canaries=300)
ANSWERS = Guarantee(0.60, "run", "asymmetric-response")
NOISE = Guarantee(0.64, "run", "record-gaussian")
ATTACK = LabelFreeAttack("sign", 0.97, 0.96, True, True, True, matched=0.97, records=400)

TABLE = {
    "one-way": (LabelEvidence(one_way=True, solvable="x", excess=LOUD), "no-label-dependent-message", "one-way"),
    "one-way, and the division is made from labels": (
        LabelEvidence(one_way=True, releases=("stratified division",)),
        "inconclusive",
        "undecided",
    ),
    "a measurement contradicts the guarantee": (
        LabelEvidence(guarantee=ANSWERS, excess=LOUD),
        "above-goal",
        "contradicted",
    ),
    "a measurement disagrees with the guarantee": (
        LabelEvidence(guarantee=ANSWERS, excess=Excess(0.72, low=0.648, high=0.782, canaries=400)),
        "inconclusive",
        "disagreement",
    ),
    "a guarantee at the goal": (LabelEvidence(guarantee=ANSWERS, excess=NEAR), "below-goal", "guarantee"),
    "a guarantee, nothing measured": (LabelEvidence(guarantee=ANSWERS), "below-goal", "guarantee"),
    "a guarantee before what shapes allow": (LabelEvidence(guarantee=ANSWERS, solvable="x"), "below-goal", "guarantee"),
    "a guarantee above the goal decides nothing": (
        LabelEvidence(guarantee=NOISE, excess=NEAR),
        "inconclusive",
        "excess-undecided",
    ),
    "a guarantee of one message decides nothing": (
        LabelEvidence(guarantee=replace(ANSWERS, scope="message"), excess=NEAR),
        "inconclusive",
        "excess-undecided",
    ),
    "a guarantee that a stratified division voids": (
        LabelEvidence(guarantee=replace(ANSWERS, void=("stratified division",)), excess=NEAR),
        "inconclusive",
        "excess-undecided",
    ),
    "a guarantee that is void is not contradicted": (
        LabelEvidence(guarantee=replace(ANSWERS, void=("early stopping",)), excess=LOUD),
        "above-goal",
        "excess-above",
    ),
    "solvable, though little was measured": (LabelEvidence(solvable="x", excess=CLEAR), "above-goal", "solvable"),
    "a guarantee beside a release that it does not know": (
        LabelEvidence(guarantee=ANSWERS, releases=("early stopping",)),
        "inconclusive",
        "undecided",
    ),
    "all labels, read the wrong way round": (
        LabelEvidence(excess=Excess(0.02, low=0.01, high=0.05, canaries=300)),
        "inconclusive",
        "excess-undecided",
    ),
    "undefended": (LabelEvidence(excess=LOUD), "above-goal", "excess-above"),
    "little among many canaries": (LabelEvidence(excess=CLEAR), "below-goal", "excess-below"),
    "an interval around the goal": (LabelEvidence(excess=NEAR), "inconclusive", "excess-undecided"),
    "an attack that needs no labels": (LabelEvidence(label_free=ATTACK), "above-goal", "attack"),
    "an attack beside canaries": (LabelEvidence(label_free=ATTACK, excess=CLEAR), "below-goal", "excess-below"),
    "an attack that the baseline equals": (
        LabelEvidence(label_free=replace(ATTACK, beats_baseline=False)),
        "inconclusive",
        "undecided",
    ),
    "an attack that predictions explain": (
        LabelEvidence(label_free=replace(ATTACK, matched=0.9)),
        "inconclusive",
        "undecided",
    ),
    "the same attack on many records": (
        LabelEvidence(label_free=replace(ATTACK, matched=0.9, records=4000)),
        "above-goal",
        "attack",
    ),
    "nothing": (LabelEvidence(), "inconclusive", "undecided"),
    "nothing that could be measured": (LabelEvidence(measurable=False), "inconclusive", "undecided"),
}


@pytest.mark.parametrize(("evidence", "state", "row"), TABLE.values(), ids=list(TABLE))
def test_each_row_of_the_table(evidence: LabelEvidence, state: str, row: str) -> None:
    found = label_verdict(evidence, goal=0.60)
    assert (found.state, found.row) == (state, row)
    assert found.reason
    assert (found.decided_by == "") == (state != "inconclusive")


aucs = st.floats(0.5, 1.0)
excesses = st.builds(
    lambda middle, below, above, canaries: Excess(
        middle, low=middle * below, high=middle + (1.0 - middle) * above, canaries=canaries
    ),
    st.floats(0.3, 1.0),
    st.floats(0.3, 1.0),
    st.floats(0.0, 1.0),
    st.integers(20, 5000),
)
releases = st.sampled_from([(), ("early stopping",)])
guarantees = st.builds(Guarantee, aucs, st.sampled_from(["message", "run"]), st.just("x"), void=releases)
flags = st.booleans()
attacks = st.builds(LabelFreeAttack, st.just("sign"), aucs, aucs, flags, flags, flags, aucs, st.integers(1, 5000))
evidences = st.builds(
    LabelEvidence,
    one_way=flags,
    releases=releases,
    guarantee=st.none() | guarantees,
    solvable=st.sampled_from(["", "shapes"]),
    excess=st.none() | excesses,
    label_free=st.none() | attacks,
    measurable=flags,
)
goals = st.floats(0.5, 0.99)


@given(evidence=evidences, goal=goals)
def test_rows_are_exhaustive_and_the_first_that_matches_decides(evidence: LabelEvidence, goal: float) -> None:
    bound = evidence.guarantee
    if bound is not None and (bound.scope == "message" or bound.void or evidence.releases):
        bound = None
    excess, attack = evidence.excess, evidence.label_free
    far = -math.inf if bound is None or excess is None else excess.above(bound.auc)
    rows = {
        "one-way": evidence.one_way and not evidence.releases,
        "contradicted": far > 4.4,
        "disagreement": far > 3.4,
        "guarantee": bound is not None and bound.auc <= goal + 1e-9,
        "solvable": bool(evidence.solvable),
        "excess-above": excess is not None and excess.low > goal,
        "excess-below": excess is not None and 0.5 <= excess.high <= goal,
        "excess-undecided": excess is not None,
        "attack": attack is not None and attack.decides(goal),
        "undecided": True,
    }
    assert label_verdict(evidence, goal=goal).row == next(row for row, matches in rows.items() if matches)


@given(evidence=evidences, low=goals, high=goals)
def test_a_higher_goal_never_takes_back_what_is_below_it(evidence: LabelEvidence, low: float, high: float) -> None:
    low, high = sorted((low, high))
    if label_verdict(evidence, goal=low).state == "below-goal":
        assert label_verdict(evidence, goal=high).state == "below-goal"
    if label_verdict(evidence, goal=high).state == "above-goal":
        assert label_verdict(evidence, goal=low).state == "above-goal"


@given(evidence=evidences, excess=excesses, goal=goals)
def test_canaries_decide_what_was_open_and_overturn_a_guarantee_only_by_contradiction(
    evidence: LabelEvidence, excess: Excess, goal: float
) -> None:
    before = label_verdict(replace(evidence, excess=None), goal=goal)
    after = label_verdict(replace(evidence, excess=excess), goal=goal)
    if before.row in ("one-way", "solvable"):
        assert after.row in (before.row, "contradicted", "disagreement")
    if before.row == "guarantee":
        assert after.row in ("guarantee", "contradicted", "disagreement")
    if before.row in ("attack", "undecided"):
        assert after.row not in ("attack", "undecided", "one-way", "solvable", "guarantee")


@given(evidence=evidences, goal=goals, values=st.tuples(aucs, aucs, aucs))
def test_no_state_depends_on_baseline_total_or_labels_in_general(
    evidence: LabelEvidence, goal: float, values: tuple[float, float, float]
) -> None:
    total, before, after = values
    beside = label_verdict(
        evidence,
        goal=goal,
        total=Total(total, includes_features=True),
        baseline=Baseline(before, after),
        knowledge_gain=KnowledgeGain(before, after, -0.1, 0.1),
    )
    alone = label_verdict(evidence, goal=goal)
    assert replace(beside, total=None, baseline=None, knowledge_gain=None) == alone
    assert (alone.guarantee, alone.excess) == (evidence.guarantee, evidence.excess)


@pytest.mark.parametrize("goal", [0.49, 1.0, math.nan])
def test_a_goal_that_judges_nothing_is_refused(goal: float) -> None:
    with pytest.raises(ArgumentError, match="goal"):
        label_verdict(LabelEvidence(), goal=goal)


def test_a_measurement_beside_a_guarantee_is_called_consistent_or_higher() -> None:
    at_bound = label_verdict(LabelEvidence(guarantee=ANSWERS, excess=replace(NEAR, value=0.62)), goal=0.60)
    higher = replace(NEAR, value=0.70, low=0.62, high=0.77)
    above = label_verdict(LabelEvidence(guarantee=ANSWERS, excess=higher), goal=0.60)
    assert at_bound.reason.endswith("measured, consistent")
    assert above.state == "below-goal"
    assert above.reason.endswith("measured higher (p < 0.05), repeat")


# --- intervals


def test_standard_errors_are_those_of_the_interval_that_was_measured() -> None:
    values = torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.arange(300) % 2
    scores = values + 0.8 * labels
    low, high = auc_interval(scores, labels, level=1.0 - 0.05 / 3)
    found = Excess(
        scipy.stats.mannwhitneyu(scores[labels == 1], scores[labels == 0]).statistic / 150**2, low, high, 300
    )
    # The interval's ends are its own quantile away, by construction.
    assert found.above(low) == pytest.approx(found.quantile, rel=1e-9)
    assert found.above(high) == pytest.approx(-found.quantile, rel=1e-9)
    assert found.quantile == pytest.approx(scipy.stats.norm.isf(0.025 / 3), rel=1e-12)


def test_an_excess_of_one_is_far_above_every_guarantee() -> None:
    assert Excess(1.0, low=0.97, high=1.0, canaries=144).above(0.6) > 4.4
    # An upper end of 1 says nothing of how sure the lower one is.
    assert Excess(0.97, low=0.9, high=1.0, canaries=300).above(0.6) > 4.4


@pytest.mark.parametrize(("auc", "stated"), [(0.50, 460), (0.70, 370), (0.55, 1800), (0.65, 1640)])
def test_so_many_canaries_decide_nine_runs_of_ten(auc: float, stated: int) -> None:
    needed = Excess(auc, low=0.4, high=0.8, canaries=100).needed(0.60)
    assert needed is not None
    assert needed == pytest.approx(stated, rel=0.04)


@pytest.mark.parametrize("auc", [0.50, 0.55, 0.65, 0.70])
def test_the_number_of_canaries_that_is_named_decides_by_simulation(auc: float) -> None:
    needed = Excess(auc, low=0.4, high=0.8, canaries=100).needed(0.60)
    assert needed is not None
    half = needed // 2
    labels = torch.cat([torch.ones(half), torch.zeros(half)]).to(torch.int64)
    shift = math.sqrt(2.0) * float(scipy.stats.norm.ppf(auc))
    source = np.random.default_rng(5)
    decided = 0
    for _ in range(400):
        scores = torch.from_numpy(source.standard_normal(2 * half)) + shift * labels
        low, high = auc_interval(scores, labels, level=1.0 - 0.05 / 3)
        decided += low > 0.60 if auc > 0.60 else high <= 0.60
    assert 0.85 < decided / 400 < 0.95  # 0.90, with a standard error of 0.015


@pytest.mark.parametrize(
    ("canaries", "stated"),
    [(20, 0.29), (60, 0.17), (144, 0.114), (300, 0.079), (600, 0.056), (1_000, 0.044), (3_000, 0.025)],
)
def test_so_wide_is_the_interval_of_an_excess_of_one_half(canaries: int, stated: float) -> None:
    assert half_width(canaries) == pytest.approx(stated, rel=0.04)
    # Scores that say nothing, and are well mixed: the interval is the one that is made of them.
    labels = torch.arange(canaries) % 2
    scores = torch.from_numpy(np.random.default_rng(1).permutation(canaries).astype(np.float64))
    low, high = auc_interval(scores, labels, level=1.0 - 0.05 / 3)
    assert half_width(canaries) == pytest.approx((high - low) / 2.0, rel=0.12)


def test_no_number_of_canaries_decides_an_excess_at_the_goal() -> None:
    found = label_verdict(LabelEvidence(excess=NEAR), goal=0.60)
    assert "only a guarantee" in found.decided_by


# --- features


@pytest.mark.parametrize(
    ("evidence", "state"),
    [
        (FeatureEvidence(), "not-measured"),
        (FeatureEvidence(recovered=0, features=16), "inconclusive"),
        (FeatureEvidence(recovered=11, features=16), "above-goal"),
        (FeatureEvidence(recovered=11, features=16, guaranteed="x"), "above-goal"),
        (FeatureEvidence(guaranteed="x"), "below-goal"),
        (FeatureEvidence(exact_matches=0.02), "above-goal"),
        (FeatureEvidence(exact_matches=0.01), "inconclusive"),
        (FeatureEvidence(solvable="d + 1 known records", guaranteed="x"), "above-goal"),
    ],
)
def test_features_are_below_the_goal_by_a_guarantee_only(evidence: FeatureEvidence, state: str) -> None:
    found = feature_verdict(evidence)
    assert isinstance(found, Verdict)
    assert found.state == state
    assert found.reason
