"""Parties of several workers, as ``scripts.bench.scale`` compares and disturbs them: every kind of fault once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.bench.faults import disturbed_run
from scripts.bench.processes import workplace
from scripts.bench.scale_equality import DEFENDED, Case, compared
from scripts.bench.scale_faults import KINDS, DisturbedTeams, scenarios, undisturbed
from scripts.bench.scale_parties import PARTIES
from tests.run.forked import PACE, Forked


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with workplace(*PARTIES) as folder:
        yield folder


@pytest.mark.slow(reason="eight processes that train, and one")
def test_four_workers_have_the_weights_figures_and_verdicts_of_one_process(place: Path) -> None:
    """In float64, where nothing but another order of sums tells them apart."""
    case = Case("answers, isotropic", 4, 20, True, 1e-12, settings=DEFENDED, defense="answers, isotropic")
    rows = compared(case, place / "four", Forked)
    assert [row.name.rsplit(": ", 1)[1] for row in rows] == [
        "weights from one process",
        "figures from one process",
        "verdicts that differ",
    ]
    assert [row.note for row in rows if not row.holds] == []
    assert max(row.value for row in rows) < 1e-9


@pytest.mark.slow(reason="a fault of every kind, and a run without any")
def test_a_disturbed_run_of_workers_ends_like_an_undisturbed_one(place: Path) -> None:
    plan = scenarios(epochs=6)[0]
    known = undisturbed(plan, place, pace=PACE, launch=Forked)
    run = DisturbedTeams(plan, place / "disturbed", pace=PACE, launch=Forked, relayed=True)
    told: list[str] = []
    outcomes = disturbed_run(run, sorted(KINDS), known, random.Random(0), told.append)
    assert [outcome.kind for outcome in outcomes] == sorted(KINDS)
    assert [outcome.kind for outcome in outcomes if not outcome.survived] == [], "\n".join(told)
