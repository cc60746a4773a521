"""Counts of a prediction whose links break: never fewer than what was shown, in every role."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from splitvfl.errors import LimitError
from splitvfl.exchange.scoring import COORDINATOR
from splitvfl.party.party import PassiveParty
from splitvfl.run.ledger import CountedCall, Ledger, ScoredFor, ScoreLimits
from splitvfl.run.ledger_file import LINES_FILE
from tests.builders import ACTIVE
from tests.run.test_prediction import THREE, alike
from tests.run.test_prediction import score as score_here
from tests.run.test_scoring import in_one_process, parties, score, world_of

RECORDS = 24
PARTS = {"activation", "part", "parts", "share", "scores"}


def counted(folder: Path, name: str) -> int:
    lines = (folder / name / LINES_FILE).read_text().splitlines()
    total: int = json.loads(lines[-1]).get("total", 0)
    return total


def tallied(party: PassiveParty, folder: Path, by: str, **limits: int) -> None:
    """Let a passive party count as `splitvfl predict` lets it."""
    ledger = Ledger(folder / party.name, party=party.name, run="a" * 32, limits=ScoreLimits(**limits))
    about = ScoredFor(partner=ACTIVE, asked="predict", model="", defenses=(), scorer=by)
    again = by not in ("active", party.name)  # as app.counting has it
    party.tally = CountedCall(ledger, np.arange(RECORDS, dtype=np.uint64), about, records=RECORDS, again=again)


@pytest.mark.parametrize("by", ["active", COORDINATOR, *THREE])
def test_who_refuses_by_a_limit_has_sent_nothing_and_nobody_gets_a_score(tmp_path: Path, by: str) -> None:
    world, all_parties = world_of(by), parties()
    telecom = all_parties["telecom"]
    assert isinstance(telecom, PassiveParty)
    tallied(telecom, tmp_path, by, fewest=RECORDS + 1)

    if by == "active":
        found = score_here(world, all_parties, alike(THREE, scores_by=by))
    else:
        found = score(world, by, all_parties)

    assert isinstance(found["telecom"], LimitError)
    assert isinstance(found[ACTIVE], Exception)
    assert not {message.kind for message in world.sent["telecom"]} & PARTS
    assert not [message for sent in world.sent.values() for message in sent if message.kind == "scores"]
    begun, refused = (json.loads(line) for line in (tmp_path / "telecom" / LINES_FILE).read_text().splitlines())
    assert (begun["what"], refused["what"], refused["limit"]) == ("begun", "refused", f"fewest: {RECORDS + 1}")
    assert refused.get("total", 0) == 0


@pytest.mark.parametrize("by", ["active", COORDINATOR, *THREE])
def test_whatever_breaks_no_record_is_counted_less_often_than_it_was_shown(tmp_path: Path, by: str) -> None:
    draw = np.random.default_rng(len(by))
    names = (ACTIVE, *THREE)
    for number in range(2):
        # Two meetings break, each before one of somebody's messages: before, between and behind the parts.
        breaks = [(names[draw.integers(len(names))], int(draw.integers(12))) for _ in range(2)]
        world, all_parties, folder = world_of(by, *breaks), parties(), tmp_path / str(number)
        for party in all_parties.values():
            if isinstance(party, PassiveParty):
                tallied(party, folder, by)
        if by == "active":
            found = score_here(world, all_parties, alike(THREE, scores_by=by))
        else:
            found = score(world, by, all_parties)
        assert torch.equal(found[ACTIVE].scores, in_one_process(by)), "nothing is lost"
        for name in THREE:
            shown = [one for one in world.sent[name] if one.kind in PARTS and one.step == 0]
            looks = len(shown) if by not in ("active", name) else 1
            assert counted(folder, name) >= RECORDS * looks >= RECORDS
            assert counted(folder, name) <= RECORDS * world.met
            if by in ("active", name):
                assert counted(folder, name) == RECORDS, "the same to the bit is no further look"
