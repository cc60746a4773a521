"""Runs that differ in their seeds alone are judged as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from splitvfl.claims import Guarantee
from splitvfl.errors import ArgumentError
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.in_general import LabelFreeAttack
from splitvfl.report.party_result import PartyResult
from splitvfl.report.pooled import pooled_excess, pooled_verdict
from splitvfl.report.summary import RunSummary
from tests.report.test_tables import party, result, run


def leak(auc: float, low: float, high: float, count: int = 300) -> CanaryLeak:
    return CanaryLeak(auc, low, high, count // 2, count // 2, figures=3)


def seeds(*found: PartyResult) -> list[RunSummary]:
    return [run("a", seed=seed, parties={"lab": one}) for seed, one in enumerate(found)]


def state(*found: PartyResult) -> str:
    labels = pooled_verdict(seeds(*found))["lab"].labels
    assert labels is not None
    return labels.state


def measured(excess: CanaryLeak | None, **changes: object) -> PartyResult:
    return replace(party(norm=result(0.9)), excess=excess, **changes)


def test_seeds_decide_together_what_none_decides_alone() -> None:
    undecided = measured(leak(0.55, 0.47, 0.63))
    assert state(undecided) == "inconclusive"
    assert state(*[undecided] * 4) == "below-goal"
    assert state(measured(leak(0.9, 0.85, 0.94)), *[undecided] * 2) == "above-goal"


def test_a_single_run_keeps_its_interval_and_more_canaries_weigh_more() -> None:
    alone = leak(0.7, 0.6, 0.75)
    assert pooled_excess([alone]) == alone
    both = pooled_excess([leak(0.5, 0.4, 0.6, 300), leak(0.8, 0.7, 0.9, 900)])
    assert both is not None
    assert both.auc == pytest.approx(0.725)
    assert both.count == 1200
    assert pooled_excess([]) is None


def test_the_pooled_interval_covers_the_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        found = []
        for _ in range(3):
            labels = torch.arange(120) % 2
            scores = torch.from_numpy(random.normal(size=120)) + 0.7 * labels  # an AUC of Φ(0.7 / √2)
            found.append(CanaryLeak.of(scores, labels))
        pooled = pooled_excess(found)
        assert pooled is not None
        covered += pooled.low <= 0.68968 <= pooled.high
    assert 180 <= covered <= 198


def test_the_weakest_guarantee_counts_and_none_where_a_run_has_none() -> None:
    strong, weak = (Guarantee(auc, "run", "a") for auc in (0.55, 0.7))
    assert state(measured(None, guarantee=strong), measured(None, guarantee=strong)) == "below-goal"
    assert state(measured(None, guarantee=strong), measured(None, guarantee=weak)) == "inconclusive"
    assert state(measured(None, guarantee=strong), measured(None)) == "inconclusive"


def test_an_attack_without_labels_decides_where_it_does_in_every_run() -> None:
    shows = LabelFreeAttack("norm", 0.99, 0.98, True, True, True, 0.97, 2000)
    assert state(measured(None, label_free=shows), measured(None, label_free=shows)) == "above-goal"
    unclear = replace(shows, low=0.55)
    assert state(measured(None, label_free=shows), measured(None, label_free=unclear)) == "inconclusive"
    assert state(measured(None, label_free=shows), measured(None)) == "inconclusive"


def test_no_runs_are_refused() -> None:
    with pytest.raises(ArgumentError):
        pooled_verdict([])
