"""Runs that differ in their seeds alone are judged as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from splitvfl.claims import Guarantee
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.in_general import KnowledgeGain, LabelFreeAttack
from splitvfl.report.party_result import PartyResult
from splitvfl.report.rows import DefenseRow
from splitvfl.report.summary import RunSummary
from tests.report.test_tables import party, result, run


def seeds(*found: PartyResult) -> list[RunSummary]:
    return [run("a", seed=seed, parties={"lab": one}) for seed, one in enumerate(found)]


def state(*found: PartyResult) -> str:
    return DefenseRow("a", seeds(*found)).label_verdicts["lab"].state


def measured(**changes: Any) -> PartyResult:
    return replace(party(norm=result(0.9)), **changes)


def test_the_weakest_guarantee_counts_and_none_where_a_run_has_none() -> None:
    strong, weak = (Guarantee(auc, "run", "a") for auc in (0.55, 0.7))
    assert state(measured(guarantee=strong), measured(guarantee=strong)) == "below-goal"
    assert state(measured(guarantee=strong), measured(guarantee=weak)) == "inconclusive"
    assert state(measured(guarantee=strong), measured()) == "inconclusive"


def test_an_attack_without_labels_decides_where_it_does_in_every_run() -> None:
    shows = LabelFreeAttack("norm", 0.99, 0.98, True, True, True, 0.97, 2000)
    assert state(measured(label_free=shows), measured(label_free=shows)) == "above-goal"
    unclear = replace(shows, low=0.55)
    assert state(measured(label_free=shows), measured(label_free=unclear)) == "inconclusive"
    assert state(measured(label_free=shows), measured()) == "inconclusive"


def test_a_guarantee_that_one_seed_contradicts_is_contradicted() -> None:
    claimed = Guarantee(0.6, "run", "a")
    loud, near = CanaryLeak(1.0, 0.98, 1.0, 75, 75, figures=3), CanaryLeak(0.61, 0.5, 0.7, 75, 75, figures=3)
    (alone,) = seeds(measured(guarantee=claimed, excess=loud, canaries={"norm": loud}))
    assert alone.verdict["lab"].labels is not None
    assert alone.verdict["lab"].labels.row == "contradicted"
    found = [measured(guarantee=claimed, excess=one, canaries={"norm": one}) for one in (near, loud, near)]
    assert DefenseRow("a", seeds(*found)).label_verdicts["lab"].row == "contradicted"


def test_one_seed_above_the_goal_keeps_several_from_being_below_it() -> None:
    low, high = CanaryLeak(0.5, 0.46, 0.54, 1500, 1500), CanaryLeak(0.62, 0.5, 0.7, 150, 150)
    assert state(*[measured(excess=low, canaries={"norm": low})] * 3) == "below-goal"
    found = [measured(excess=one, canaries={"norm": one}) for one in (low, low, high)]
    row = DefenseRow("a", seeds(*found))
    assert row.parties[0].interval is not None
    assert row.parties[0].interval[1] < 0.6
    assert row.label_verdicts["lab"].state == "inconclusive"


@pytest.mark.parametrize("order", [1, -1])
def test_the_strictest_goal_and_what_any_seed_reveals_count_in_any_order(order: int) -> None:
    runs = seeds(*[measured(guarantee=Guarantee(0.6, "run", "a"))] * 2)[::order]
    assert DefenseRow("a", runs).label_verdicts["lab"].state == "below-goal"
    for changes in ({"goal": 0.55}, {"label_releases": ["stratified division"]}):
        changed = [replace(runs[0], **changes), runs[1]][::order]
        assert DefenseRow("a", changed).label_verdicts["lab"].state == "inconclusive"


def test_labels_in_general_are_the_mean_of_runs_with_the_interval_of_the_mean() -> None:
    gain = KnowledgeGain(0.5, 0.6, 0.06, 0.16)
    pooled = KnowledgeGain.pooled([gain, replace(gain, after=0.8, low=0.26, high=0.34)])
    assert (pooled.before, pooled.after) == pytest.approx((0.5, 0.7))
    # Half widths of 0.04 and 0.06 below, and of 0.04 and 0.06 above, in squares.
    assert pooled.low == pytest.approx(0.2 - (0.04**2 + 0.04**2) ** 0.5 / 2)
    assert pooled.high == pytest.approx(0.2 + (0.06**2 + 0.04**2) ** 0.5 / 2)
    alone = KnowledgeGain.pooled([gain])
    assert (alone.low, alone.high, alone.taught) == (pytest.approx(0.06), pytest.approx(0.16), True)
    (row,) = DefenseRow("a", seeds(measured(knowledge_gain=gain), measured())).parties
    assert row.together(0.6).knowledge_gain is None


def test_an_excess_without_canaries_of_both_labels_is_none() -> None:
    assert state(measured(excess=CanaryLeak(0.5, 0.5, 0.5, 0, 0))) == "inconclusive"
    assert state(measured(excess=CanaryLeak(0.5, 0.45, 0.55, 1000, 1000))) == "below-goal"
