"""Predictions in processes of their own, over TLS: as in one process, and as undisturbed whatever happens to them."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scripts.bench.scoring_faults import KINDS, ROLES, Outcome, Scored, disturbed, drawn, make_halves, results
from splitvfl.net.certs import make_certificates
from tests.run.forked import Forked


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored")
    make_certificates(folder / "certs", ["clinic", "lab", "shop", "coordinator"])
    make_halves(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(workplace: Path) -> Scored:
    """A bank, two passive parties and a coordinator, each in a process."""
    with Scored("coordinator", workplace / "undisturbed", workplace / "halves", launch=Forked) as scored:
        assert scored.finish() == ""
    return scored


def test_a_coordinator_scores_for_three_parties_in_processes_of_their_own(undisturbed: Scored) -> None:
    scores = pd.read_csv(undisturbed.folder / "clinic" / "scores.csv")["score"]
    assert len(scores) == 114
    assert scores.between(0, 1).all()
    said = undisturbed.processes["coordinator"].words()
    assert "coordinator: 114 records scored" in said
    assert not list((undisturbed.folder / "coordinator").rglob("*.csv")), "it keeps no score"
    assert np.unique(scores).size > 100


def test_a_scorer_that_is_killed_and_others_that_err_change_no_bit_of_the_scores(
    workplace: Path, undisturbed: Scored
) -> None:
    """The noise included: its key is a file of the scorer."""
    again = Scored("coordinator", workplace / "disturbed", workplace / "halves", launch=Forked)
    again.keep_keys_of(undisturbed)

    outcome = disturbed(again, [("coordinator", 6, "die"), ("lab", 4, "truncate")], undisturbed.scores)

    assert outcome == Outcome("coordinator", outcome.faults, 2, "")
    # Had it shown its records once more than it counted, that would be told; and so would a ledger that is gone.
    with (again.folder / "lab" / "sent").open("a") as file:
        file.write("0 part 0\n" * 9)
    assert re.fullmatch(r"lab showed 114 records \d+ times, and counted \d+, 114 different ones", again.miscounted())
    shutil.rmtree(again.folder / "lab" / "half" / "ledger")
    assert again.miscounted() == "lab has 0 ledgers"


def test_faults_are_drawn_for_every_role_and_what_is_lost_is_told() -> None:
    for role in ROLES:
        faults = drawn(role, 40, random.Random(0))
        assert len({(name, number) for name, number, _ in faults}) == 40
        assert {kind for _, _, kind in faults} == set(KINDS)
        assert ("coordinator" in {name for name, _, _ in faults}) == (role == "coordinator")
    rows = results([Outcome("active", ("a",), 2, ""), Outcome("lab", ("b", "c"), 1, "no end")])
    assert [(row.value, row.unit, row.holds) for row in rows] == [
        (0, "2 faults", True),
        (0, "0 faults", True),
        (1, "1 faults", False),
    ]
    assert rows[2].note == "b, c: no end"
