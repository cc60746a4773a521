"""Parties go on from the newest checkpoint that all have, of one run; every small case is compared with that rule."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest
import torch

from splitvfl.errors import DataError, ProtocolError
from splitvfl.exchange.resuming import HeldCheckpoints, active_resuming, passive_resuming
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.json_message import awaited_note
from splitvfl.messaging.messages import Message

NAMES = ("bank", "telecom", "shop", "post")
ONE, OTHER = "1" * 32, "2" * 32
SUBSETS = [steps for size in (1, 2, 3) for steps in itertools.combinations((0, 4, 9), size)]
STANDINGS = [HeldCheckpoints("", ()), *(HeldCheckpoints(run, steps) for run in (ONE, OTHER) for steps in SUBSETS)]


def talk(*standings: HeldCheckpoints) -> dict[str, Any]:
    names = NAMES[: len(standings)]
    halves = {"bank": active_resuming("bank", names[1:], standings[0])}
    for name, own in zip(names[1:], standings[1:], strict=True):
        halves[name] = passive_resuming(name, "bank", own)
    return converse(halves)


def rule(standings: tuple[HeldCheckpoints, ...]) -> tuple[set[str], int] | None:
    """The run (empty: any new one) and the step to go on from; None where there is none.

    A party can begin at a step if it has that checkpoint, or at 0 if it has none at all. Parties that have got beyond
    step 0 must have done so in one run.
    """
    beyond = {standing.run for standing in standings if any(step > 0 for step in standing.steps)}
    for step in (9, 4, 0):
        if all(step in one.steps or (step == 0 and one.steps == ()) for one in standings):
            return (beyond, step) if len(beyond) < 2 else None
    return None


def check(standings: tuple[HeldCheckpoints, ...]) -> bool:
    wanted = rule(standings)
    if wanted is None:
        with pytest.raises(DataError, match="no checkpoint in common") as caught:
            talk(*standings)
        assert all(name in str(caught.value) for name in NAMES[: len(standings)])
        return False
    results = talk(*standings)
    chosen: HeldCheckpoints = results["bank"]
    runs, step = wanted
    assert set(results.values()) == {chosen}
    assert chosen.steps == (step,)
    if runs:
        assert {chosen.run} == runs
    else:
        assert re.fullmatch("[0-9a-f]{32}", chosen.run)
        assert chosen.run not in (ONE, OTHER)
    return True


@pytest.mark.parametrize("parties", [2, 3])
def test_all_small_cases_follow_the_rule(parties: int) -> None:
    found = [check(standings) for standings in itertools.product(STANDINGS, repeat=parties)]
    assert {True, False} == set(found)


def test_some_cases_of_four_parties_follow_the_rule() -> None:
    rng = random.Random(0)
    found = [check(tuple(rng.choices(STANDINGS, k=4))) for _ in range(1000)]
    assert {True, False} == set(found)


def test_new_runs_have_new_numbers() -> None:
    fresh = (HeldCheckpoints("", ()),) * 2
    assert talk(*fresh)["bank"].run != talk(*fresh)["bank"].run


def test_all_standings_are_named_when_there_is_none_in_common() -> None:
    with pytest.raises(DataError) as caught:
        talk(HeldCheckpoints(ONE, (4, 9)), HeldCheckpoints("", ()))
    assert "bank has steps 4, 9 of run 11111111; telecom has steps none of run (none)" in str(caught.value)


# --- what others send


def stranger(name: str, receiver: str, facts: Any) -> Half:
    payload = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
    yield Outbox(send=(Message(name, receiver, "resuming", 0, payload),), wait=(awaited_note(receiver, "resuming", 0),))


NONSENSE = [
    {},
    {"run": ONE},
    {"steps": [4]},
    {"run": None, "steps": [4]},
    {"run": "1" * 31, "steps": [4]},
    {"run": "1" * 31 + "G", "steps": [4]},
    {"run": "1" * 31 + "\n", "steps": [4]},
    {"run": "１" * 32, "steps": [4]},  # digits, but not ASCII ones
    {"run": ONE, "steps": 4},
    {"run": ONE, "steps": {"4": 4}},
    {"run": ONE, "steps": [4.0]},
    {"run": ONE, "steps": [True]},
    {"run": ONE, "steps": [-1]},
    {"run": ONE, "steps": [1 << 53]},
    {"run": ONE, "steps": [[4]]},
    {"run": ONE, "steps": list(range(65))},
    {"run": ONE, "steps": []},  # a run, and no checkpoint of it
    {"run": "", "steps": [4]},  # a checkpoint of no run
    {"run": "", "steps": [0]},
]


@pytest.mark.parametrize("facts", NONSENSE)
def test_what_says_nothing_of_checkpoints_is_refused_by_the_active_party(facts: Any) -> None:
    halves = {
        "bank": active_resuming("bank", ("telecom",), HeldCheckpoints(ONE, (0, 4))),
        "telecom": stranger("telecom", "bank", facts),
    }
    with pytest.raises(ProtocolError, match=r"telecom (did not say which checkpoints it has|named a run without)"):
        converse(halves)


@pytest.mark.parametrize("facts", NONSENSE)
def test_what_says_nothing_of_checkpoints_is_refused_by_a_passive_party(facts: Any) -> None:
    halves = {
        "bank": stranger("bank", "telecom", facts),
        "telecom": passive_resuming("telecom", "bank", HeldCheckpoints(ONE, (0, 4))),
    }
    with pytest.raises(ProtocolError, match=r"bank (did not say which checkpoints it has|named a run without)"):
        converse(halves)


@pytest.mark.parametrize(
    ("own", "run", "steps", "taken"),
    [
        (HeldCheckpoints(ONE, (4, 9)), ONE, [9], True),
        (HeldCheckpoints(ONE, (4, 9)), ONE, [4], True),
        (HeldCheckpoints(ONE, (4, 9)), ONE, [0], False),  # it has no checkpoint of step 0
        (HeldCheckpoints(ONE, (4, 9)), OTHER, [4], False),
        (HeldCheckpoints(ONE, (4, 9)), ONE, [4, 9], False),
        (HeldCheckpoints(ONE, (4, 9)), "", [], False),
        (HeldCheckpoints(ONE, (4, 9)), ONE, [4, 4], False),
        (HeldCheckpoints(ONE, (0, 9)), OTHER, [0], True),  # a new beginning belongs to any run
        (HeldCheckpoints(ONE, (0, 9)), OTHER, [9], False),
        (HeldCheckpoints("", ()), ONE, [0], True),
        (HeldCheckpoints("", ()), ONE, [4], False),
        (HeldCheckpoints("", ()), "", [], False),
    ],
)
def test_a_passive_party_goes_on_only_from_where_it_can(
    own: HeldCheckpoints, run: str, steps: list[int], taken: bool
) -> None:
    halves = {
        "bank": stranger("bank", "telecom", {"run": run, "steps": steps}),
        "telecom": passive_resuming("telecom", "bank", own),
    }
    if taken:
        half = halves["telecom"]
        next(half)
        payload = torch.tensor(list(json.dumps({"run": run, "steps": steps}).encode()), dtype=torch.uint8)
        with pytest.raises(StopIteration) as stop:
            half.send({"bank": Message("bank", "telecom", "resuming", 0, payload)})
        assert stop.value.value == HeldCheckpoints(run, tuple(steps))
    else:
        with pytest.raises(ProtocolError, match=r"bank wants to go on from step .*; telecom has steps"):
            converse(halves)
