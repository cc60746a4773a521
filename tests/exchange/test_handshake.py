"""What parties tell each other before the first step and after the last: what is refused, and what crosses."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.errors import DataError, ProtocolError
from splitvfl.exchange.handshake import (
    MAX_CLASSES,
    HeldCheckpoints,
    TaskSpec,
    active_farewell,
    active_introduction,
    active_resuming,
    agreement,
    farewell,
    passive_introduction,
    passive_resuming,
    terms_of,
)
from splitvfl.messaging.conversation import Expected, Half, Outbox, converse
from splitvfl.messaging.json_message import awaited_note
from splitvfl.messaging.messages import Message
from splitvfl.party.party import MAX_WIDTH
from tests.builders import party_data, record_ids


def stranger(name: str, receiver: str, kind: str, facts: Any) -> Half:
    """Send what it likes, and wait for what the other has to say."""
    payload = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
    yield Outbox(send=(Message(name, receiver, kind, 0, payload),), wait=(awaited_note(receiver, kind, 0),))


# Introduction: what is learned, and how wide activations are


def passive(name: str, width: int, seen: list[TaskSpec] | None = None) -> Half:
    def width_for(learned: TaskSpec) -> int:
        if seen is not None:
            seen.append(learned)
        return width

    return passive_introduction(name, "bank", width_for)


@pytest.mark.parametrize("learned", [TaskSpec("binary", 1), TaskSpec("multiclass", 7), TaskSpec("regression", 1)])
def test_each_learns_what_it_must_know(learned: TaskSpec) -> None:
    seen: list[TaskSpec] = []
    crossed: list[Message] = []
    halves = {
        "bank": active_introduction("bank", ("telecom", "shop"), learned),
        "telecom": passive("telecom", 4, seen),
        "shop": passive("shop", 9),
    }
    results = converse(halves, record=crossed.append)
    assert results == {"bank": {"telecom": 4, "shop": 9}, "telecom": learned, "shop": learned}
    assert seen == [learned]
    said = {one.sender: json.loads(bytes(one.payload.tolist())) for one in crossed}
    facts = {"task": learned.task, "outputs": learned.outputs}
    assert said == {"bank": facts, "telecom": {"width": 4}, "shop": {"width": 9}}


@pytest.mark.parametrize("width", [1, MAX_WIDTH])
def test_widths_up_to_the_limit_are_taken(width: int) -> None:
    halves = {
        "bank": active_introduction("bank", ("telecom",), TaskSpec("binary", 1)),
        "telecom": passive("telecom", width),
    }
    assert converse(halves)["bank"] == {"telecom": width}


@pytest.mark.parametrize("width", [0, -1, MAX_WIDTH + 1, 4.0, True, "4", None, [4], 10**4000, "\x1b[2J"])
def test_other_widths_are_refused(width: Any) -> None:
    halves = {
        "bank": active_introduction("bank", ("telecom",), TaskSpec("binary", 1)),
        "telecom": stranger("telecom", "bank", "introduction", {"width": width}),
    }
    with pytest.raises(ProtocolError, match="expected telecom to state width from 1 to 65536, got ") as caught:
        converse(halves)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"outputs": 1}, "expected bank to state one of the tasks binary, multiclass, regression, got nothing"),
        ({"task": "ranking", "outputs": 1}, "got 'ranking'"),
        ({"task": ["binary"], "outputs": 1}, r"got \['binary'\]"),
        ({"task": {}, "outputs": 1}, "got {}"),
        ({"task": "\x1b]0;x\x07", "outputs": 1}, r"got '\\x1b"),
        ({"task": "binary"}, "expected bank to state outputs from 1 to 65536, got nothing"),
        ({"task": "multiclass", "outputs": MAX_CLASSES + 1}, "got 65537"),
        ({"task": "multiclass", "outputs": 2.0}, "got 2.0"),
        ({"task": "multiclass", "outputs": True}, "got true"),
        ({"task": "multiclass", "outputs": 1}, "bank states 1 outputs of a multiclass task"),
        ({"task": "binary", "outputs": 2}, "bank states 2 outputs of a binary task"),
        ({"task": "regression", "outputs": 3}, "bank states 3 outputs of a regression task"),
    ],
)
def test_what_is_no_task_is_refused_and_no_model_is_built(facts: Any, complaint: str) -> None:
    seen: list[TaskSpec] = []
    with pytest.raises(ProtocolError, match=complaint) as caught:
        converse({"bank": stranger("bank", "telecom", "introduction", facts), "telecom": passive("telecom", 4, seen)})
    assert not seen
    assert str(caught.value).isprintable()


# Agreement: parties that differ do not begin, and learn in what they differ


TERMS = Expected("bank", "agreement", 0, (torch.uint8,), (range(1 << 16),))
SETTINGS = {"batch size": 16, "exchange": "split"}


def terms(data: PartyData | None = None, **changes: object) -> dict[str, object]:
    return terms_of(party_data("x", width=2) if data is None else data, {**SETTINGS, **changes})


def with_ids(train: torch.Tensor, test: torch.Tensor) -> PartyData:
    parts = (Records(ids, Columns.of(torch.zeros(len(ids), 1))) for ids in (train, test))
    return PartyData("x", ("a",), ("a",), (), *parts)


def agree(**parties: Mapping[str, object]) -> dict[str, Any]:
    """The active party is called bank; it talks to everybody, the others to it alone."""
    others = tuple(name for name in parties if name != "bank")
    halves = {name: agreement(name, ("bank",), parties[name]) for name in others}
    return converse({"bank": agreement("bank", others, parties["bank"]), **halves})


def test_equal_parties_agree() -> None:
    assert agree(bank=terms(), telecom=terms(), shop=terms()) == {"bank": None, "telecom": None, "shop": None}


def test_columns_and_labels_do_not_matter() -> None:
    active, passive = party_data("bank", width=2, task="binary"), party_data("telecom", width=5)
    assert terms(active) == terms(passive)


@pytest.mark.parametrize("part", ["training", "test"])
def test_a_different_number_of_records_is_named_with_both_values(part: str) -> None:
    sizes: dict[str, Any] = {"training": {"train": 47}, "test": {"test": 23}}[part]
    counts = {"training": "bank has 48, telecom has 47", "test": "bank has 24, telecom has 23"}[part]
    with pytest.raises(DataError, match=f"bank and telecom do not agree.*{part} records: {counts}") as caught:
        agree(telecom=terms(party_data("x", width=2, **sizes)), bank=terms())
    assert f"order of the {part} ids: bank has " in str(caught.value)
    assert f"order of the {({'training', 'test'} - {part}).pop()} ids" not in str(caught.value)


@pytest.mark.parametrize("part", ["training", "test"])
def test_another_order_of_the_same_ids_is_named_with_both_digests(part: str) -> None:
    ids = {"training": record_ids(6), "test": record_ids(4, first=50)}
    swapped = {**ids, part: ids[part].roll(1)}
    ours, theirs = terms(with_ids(**_names(ids))), terms(with_ids(**_names(swapped)))
    key = f"order of the {part} ids"
    with pytest.raises(DataError) as caught:
        agree(telecom=theirs, bank=ours)
    named, _, advice = str(caught.value).partition(". ")
    assert named == f"bank and telecom do not agree: {key}: bank has {ours[key]}, telecom has {theirs[key]}"
    assert "splitvfl align" in advice


def _names(ids: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"train": ids["training"], "test": ids["test"]}


def test_one_other_id_is_noticed() -> None:
    ids = record_ids(6)
    other = ids.clone()
    other[3] += 1
    assert (
        terms(with_ids(ids, ids))["order of the training ids"]
        != terms(with_ids(other, ids))["order of the training ids"]
    )


def test_strides_of_the_ids_do_not_matter() -> None:
    ids = record_ids(6)
    assert terms(with_ids(torch.stack([ids, ids], 1)[:, 0], ids)) == terms(with_ids(ids, ids))


def test_different_settings_are_all_named_with_both_values() -> None:
    with pytest.raises(DataError) as caught:
        agree(telecom={**terms(), "batch size": 32, "exchange": "paillier"}, bank=terms())
    assert "batch size: bank has 16, telecom has 32" in str(caught.value)
    assert "exchange: bank has split, telecom has paillier" in str(caught.value)


def test_of_terms_that_follow_from_each_other_the_first_is_named_and_what_to_write() -> None:
    elsewhere = {
        "scores are computed by": "telecom",
        "keys that are passed on": "signed",
        "loss of the scores": "usual",
    }
    halves = {
        "bank": agreement("bank", ("telecom",), {"records": 5}),
        "telecom": agreement("telecom", ("bank",), {"records": 6, "noise of scores": "memoised", **elsewhere}),
    }
    with pytest.raises(DataError) as caught:
        converse(halves)
    assert str(caught.value) == (
        "bank and telecom do not agree: scores are computed by: bank has the party with the labels, telecom has "
        "telecom; noise of scores: bank has fresh, telecom has memoised; records: bank has 5, telecom has 6. Write the "
        "same prediction.scores_by in all files"
    )


def test_a_setting_that_one_party_lacks_is_named() -> None:
    with pytest.raises(DataError, match="bank has nothing, shop has 3"):
        agree(telecom=terms(), shop=terms(seed=3), bank=terms())


def test_what_json_writes_otherwise_still_agrees() -> None:
    """A tuple arrives as a list; equal settings must not be told apart for that."""
    agree(telecom=terms(layers=(8, 4)), bank=terms(layers=(8, 4)))


def test_no_id_crosses() -> None:
    ids = torch.arange(100_000, 100_050)
    crossed: list[Message] = []
    ours = terms(with_ids(ids, ids))
    halves = {"telecom": agreement("telecom", ("bank",), ours), "bank": agreement("bank", ("telecom",), ours)}
    converse(halves, record=crossed.append)
    text = " ".join(message.payload.numpy().tobytes().decode() for message in crossed)
    assert len(crossed) == 2
    assert not [number for number in ids.tolist() if str(number) in text]


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (torch.zeros(3), "expected agreement of step 0 from telecom to be 2 to 65536 in uint8, got 3 in float32"),
        (b"{}" + b" " * (1 << 16), "to be 2 to 65536 in uint8, got 65538 in uint8"),
        (
            torch.zeros(0, dtype=torch.uint8),
            "expected agreement of step 0 from telecom to be 2 to 65536 in uint8, got 0",
        ),
        (b"{{", "telecom sent no agreement"),
        (b"\xff\xfe\xfd", "telecom sent no agreement"),
        (b"[" * 60_000, "telecom sent no agreement"),
        (b"1" * 60_000, "telecom sent no agreement"),
        (b"[1, 2]", "telecom sent no agreement, but a list"),
        (b"null", "telecom sent no agreement, but a NoneType"),
    ],
)
def test_what_is_no_agreement_is_refused(payload: Any, complaint: str) -> None:
    if isinstance(payload, bytes):
        payload = torch.frombuffer(bytearray(payload), dtype=torch.uint8)

    def stranger() -> Half:
        yield Outbox(send=(Message("telecom", "bank", "agreement", 0, payload),), wait=(TERMS,))

    with pytest.raises(ProtocolError, match=complaint):
        converse({"telecom": stranger(), "bank": agreement("bank", ("telecom",), terms())})


def test_another_kind_of_message_is_refused() -> None:
    payload = torch.frombuffer(bytearray(json.dumps(terms()).encode()), dtype=torch.uint8)

    def stranger() -> Half:
        yield Outbox(send=(Message("telecom", "bank", "gradient", 0, payload),), wait=(TERMS,))

    with pytest.raises(ProtocolError, match=r"expected agreement of step 0 from telecom.*gradient"):
        converse({"telecom": stranger(), "bank": agreement("bank", ("telecom",), terms())})


# Resuming: from the newest checkpoint that all have, of one run; every small case is compared with that rule


NAMES = ("bank", "telecom", "shop", "post")
ONE, OTHER = "1" * 32, "2" * 32
SUBSETS = [steps for size in (1, 2, 3) for steps in itertools.combinations((0, 4, 9), size)]
HELD = [HeldCheckpoints("", ()), *(HeldCheckpoints(run, steps) for run in (ONE, OTHER) for steps in SUBSETS)]


def resume(*held: HeldCheckpoints) -> dict[str, Any]:
    names = NAMES[: len(held)]
    halves = {"bank": active_resuming("bank", names[1:], held[0])}
    for name, own in zip(names[1:], held[1:], strict=True):
        halves[name] = passive_resuming(name, "bank", own)
    return converse(halves)


def rule(held: tuple[HeldCheckpoints, ...]) -> tuple[set[str], int] | None:
    """The run (empty: any new one) and the step to go on from; None where there is none.

    A party can begin at a step if it has that checkpoint, or at 0 if it has none at all. Parties that have got beyond
    step 0 must have done so in one run.
    """
    beyond = {one.run for one in held if any(step > 0 for step in one.steps)}
    for step in (9, 4, 0):
        if all(step in one.steps or (step == 0 and one.steps == ()) for one in held):
            return (beyond, step) if len(beyond) < 2 else None
    return None


def check(held: tuple[HeldCheckpoints, ...]) -> bool:
    wanted = rule(held)
    if wanted is None:
        with pytest.raises(DataError, match="no checkpoint in common") as caught:
            resume(*held)
        assert all(name in str(caught.value) for name in NAMES[: len(held)])
        return False
    results = resume(*held)
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
    found = [check(held) for held in itertools.product(HELD, repeat=parties)]
    assert {True, False} == set(found)


def test_some_cases_of_four_parties_follow_the_rule() -> None:
    rng = random.Random(0)
    found = [check(tuple(rng.choices(HELD, k=4))) for _ in range(1000)]
    assert {True, False} == set(found)


def test_new_runs_have_new_numbers() -> None:
    fresh = (HeldCheckpoints("", ()),) * 2
    assert resume(*fresh)["bank"].run != resume(*fresh)["bank"].run


def test_all_checkpoints_are_named_when_there_is_none_in_common() -> None:
    with pytest.raises(DataError) as caught:
        resume(HeldCheckpoints(ONE, (4, 9)), HeldCheckpoints("", ()))
    assert "bank has steps 4, 9 of run 11111111; telecom has steps none of run (none)" in str(caught.value)


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
        "telecom": stranger("telecom", "bank", "resuming", facts),
    }
    with pytest.raises(ProtocolError, match=r"telecom (did not say which checkpoints it has|named a run without)"):
        converse(halves)


@pytest.mark.parametrize("facts", NONSENSE)
def test_what_says_nothing_of_checkpoints_is_refused_by_a_passive_party(facts: Any) -> None:
    halves = {
        "bank": stranger("bank", "telecom", "resuming", facts),
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
        "bank": stranger("bank", "telecom", "resuming", {"run": run, "steps": steps}),
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


# Farewell: nobody leaves before all have done everything, and the active party has noted it


def test_the_active_party_hears_all_notes_it_and_has_the_last_word() -> None:
    order: list[str] = []

    def record(message: Message) -> None:
        order.append(f"{message.sender} to {message.receiver}")

    halves = {
        "bank": active_farewell("bank", ("telecom", "shop"), 7, lambda: order.append("noted")),
        "telecom": farewell("telecom", ("bank",), 7),
        "shop": farewell("shop", ("bank",), 7),
    }
    converse(halves, record=record)
    assert order == ["telecom to bank", "shop to bank", "noted", "bank to telecom", "bank to shop"]


def test_who_ended_elsewhere_is_named_and_nothing_is_noted() -> None:
    noted: list[str] = []
    halves = {
        "bank": active_farewell("bank", ("telecom",), 7, lambda: noted.append("noted")),
        "telecom": farewell("telecom", ("bank",), 6),
    }
    with pytest.raises(ProtocolError, match="farewell of step 7 from telecom, got farewell of step 6"):
        converse(halves)
    assert noted == []
