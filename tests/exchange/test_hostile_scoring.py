"""A label party, or a passive one, that lies where another party computes the scores: no score comes of it.

Keys are signed in a roll call that works (``test_roll_call.py``): here the parties' keys are their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.errors import DataError, ForgedError, ProtocolError, SplitVFLError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.scoring import (
    COORDINATOR,
    CoordinatorSide,
    LabelSide,
    PassiveScorerSide,
    PassiveSide,
    ScoringTerms,
)
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.json_message import note, read_note
from splitvfl.messaging.messages import Message
from splitvfl.party.scorer import Scorer
from tests.builders import ACTIVE
from tests.exchange.test_scoring import linear_parties

NAMES = ("lab", "shop", "telecom")
ROWS, OTHERS = torch.arange(8), torch.arange(8, 16)
Change = Callable[[Message], Message]


def same(message: Message) -> Message:
    return message


def changing(half: Half, change: Change) -> Half:
    """A half, with what it sends changed."""
    outbox = next(half)
    while True:
        inbox = yield Outbox(send=tuple(map(change, outbox.send)), wait=outbox.wait)
        try:
            outbox = half.send(inbox)
        except StopIteration as stop:
            return stop.value


class Meeting:
    """One meeting of all parties, of whom some lie.

    Args:
        by: Who computes the scores.
        changed: Terms that one party takes for agreed, and others do not.
    """

    def __init__(self, by: str = COORDINATOR, **changed: dict[str, Any]) -> None:
        self.by = by
        self.active, self.passives = linear_parties(NAMES, task="multiclass")
        own = {
            "scorer": by,
            "parties": NAMES,
            "learned": TaskSpec("multiclass", 3),
            "loss": "usual",
            "records": 16,
            "rows": 8,
            "run": "a" * 32,
        }
        terms = {name: ScoringTerms(**{**own, **changed.get(name, {})}) for name in (ACTIVE, *NAMES)}
        scorer = Scorer(by, self.active.task)
        self.sides: dict[str, Any] = {ACTIVE: LabelSide(self.active, terms[ACTIVE])}
        for name, party in self.passives.items():
            here = [scorer] if name == by else []
            kind: Any = PassiveScorerSide if here else PassiveSide
            self.sides[name] = kind(party, *here, ACTIVE, terms[name])
        if by == COORDINATOR:
            self.sides[COORDINATOR] = CoordinatorSide(ACTIVE, scorer)
        self.crossed: list[Message] = []

    def open(self, change: Change = same) -> Meeting:
        halves = {name: side.open() for name, side in self.sides.items()}
        converse(halves | {ACTIVE: changing(halves[ACTIVE], change)}, record=self.crossed.append)
        return self

    def step(self, number: int = 0, rows: Tensor = ROWS, *, liar: str = ACTIVE, change: Change = same) -> Tensor:
        """The scores that the label party gets."""
        halves = {
            name: side.step(len(rows) if name == COORDINATOR else self.batch(name, rows), number)
            for name, side in self.sides.items()
        }
        found: Tensor = converse(halves | {liar: changing(halves[liar], change)}, record=self.crossed.append)[ACTIVE]
        return found

    def batch(self, name: str, rows: Tensor) -> Any:
        party: Any = self.active if name == ACTIVE else self.passives[name]
        return party.test_batch(rows)

    @property
    def answers(self) -> int:
        return sum(message.kind == "scores" for message in self.crossed)


def of(kind: str, spoil: Callable[[Tensor], Tensor]) -> Change:
    """A change of the messages of one kind."""

    def change(message: Message) -> Message:
        return replace(message, payload=spoil(message.payload.clone())) if message.kind == kind else message

    return change


def flipped(place: int) -> Callable[[Tensor], Tensor]:
    def spoil(payload: Tensor) -> Tensor:
        payload[place] ^= 1
        return payload

    return spoil


BY = (COORDINATOR, "shop")


@pytest.mark.parametrize("by", BY)
def test_honest_parties_get_scores(by: str) -> None:
    meeting = Meeting(by).open()

    assert meeting.step().shape == (8, 3)
    assert meeting.step(1, OTHERS).shape == (8, 3)


# --- a label party that lies


@pytest.mark.parametrize("place", [32, 40, -1], ids=["first", "some", "last"])
@pytest.mark.parametrize("by", BY)
def test_a_part_that_was_changed_on_the_way_is_refused(by: str, place: int) -> None:
    meeting = Meeting(by).open()

    with pytest.raises(ForgedError, match=f"bank passed on a part of scores of step 0 in the name of .* {by}"):
        meeting.step(change=of("parts", flipped(place)))
    assert meeting.answers == 0


@pytest.mark.parametrize("by", BY)
def test_parts_of_two_parties_cannot_change_places(by: str) -> None:
    size = 8 * 3 * 4 + 16

    def exchanged(payload: Tensor) -> Tensor:
        head, first, second, rest = payload.split([32, size, size, len(payload) - 32 - 2 * size])
        return torch.cat([head, second, first, rest])

    with pytest.raises(ForgedError):
        Meeting(by).open().step(change=of("parts", exchanged))


@pytest.mark.parametrize("by", BY)
def test_an_old_part_cannot_be_sent_again(by: str) -> None:
    """Neither in the place of the next batch, nor at another meeting of the same parties on the same records."""
    meeting, kept = Meeting(by).open(), []
    meeting.step(change=lambda message: kept.append(message) or message)  # type: ignore[func-returns-value]
    (old,) = [message for message in kept if message.kind == "parts"]

    with pytest.raises(ForgedError):
        meeting.step(1, change=of("parts", lambda payload: torch.cat([payload[:32], old.payload[32:]])))
    with pytest.raises((ForgedError, DataError)):
        Meeting(by).open().step(change=of("parts", lambda payload: old.payload))
    with pytest.raises(ForgedError):
        Meeting(by).open().step(change=of("parts", lambda payload: torch.cat([payload[:32], old.payload[32:]])))


@pytest.mark.parametrize("by", BY)
def test_parts_of_other_records_than_the_others_are_refused(by: str) -> None:
    meeting = Meeting(by).open()
    own = meeting.passives["telecom"].test_batch
    meeting.passives["telecom"].test_batch = lambda rows: own(rows + 8)  # type: ignore[method-assign]

    with pytest.raises(ForgedError, match="telecom means something else by it, other records say"):
        meeting.step()
    assert meeting.answers == 0


def test_a_label_party_that_asks_a_scorer_for_other_records_than_its_own_is_told() -> None:
    meeting = Meeting("shop").open()
    own = meeting.active.test_batch
    meeting.active.test_batch = lambda rows: own(rows + 8)  # type: ignore[method-assign]

    with pytest.raises(DataError, match="bank asks for the scores of other records than shop has agreed to"):
        meeting.step()


@pytest.mark.parametrize("key", ["records", "rows", "run", "step", "epoch", "outputs", "task", "masked", "scorer"])
@pytest.mark.parametrize("by", BY)
def test_a_label_party_that_tells_a_passive_party_something_else_gets_no_part(by: str, key: str) -> None:
    other = {"run": "b" * 32, "task": "binary", "masked": True, "scorer": "lab"}.get(key, 5)

    def change(message: Message) -> Message:
        if (message.kind, message.receiver) != ("scoring", "telecom"):
            return message
        return note(ACTIVE, "telecom", "scoring", 0, {**read_note(message), key: other})

    meeting = Meeting(by)
    with pytest.raises((DataError, ProtocolError)):
        meeting.open(change)


@pytest.mark.parametrize("key", ["records", "run", "step", "epoch", "loss"])
def test_a_label_party_that_tells_the_third_one_something_else_gets_no_scores(key: str) -> None:
    """What is said of the parts is bound to them: the third party has nothing else to compare it with."""
    other = {"run": "b" * 32, "loss": "another"}.get(key, 5)

    def change(message: Message) -> Message:
        if (message.kind, message.receiver) != ("scoring", COORDINATOR):
            return message
        return note(ACTIVE, COORDINATOR, "scoring", 0, {**read_note(message), key: other})

    meeting = Meeting().open(change)
    with pytest.raises(ForgedError):
        meeting.step()


def test_parts_that_were_made_under_two_salts_do_not_go_together() -> None:
    def change(message: Message) -> Message:
        if (message.kind, message.receiver) != ("scoring", "telecom"):
            return message
        return note(ACTIVE, "telecom", "scoring", 0, {**read_note(message), "salt": "00" * 32})

    with pytest.raises(ForgedError):
        Meeting().open(change).step()


def test_the_third_party_is_not_told_the_salt() -> None:
    meeting = Meeting().open()

    said = [message for message in meeting.crossed if (message.kind, message.receiver) == ("scoring", COORDINATOR)]
    assert "salt" not in read_note(said[0])


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"parties": []},
        {"parties": ["lab", "lab"]},
        {"parties": "lab"},
        {"records": 0},
        {"records": 1.5},
        {"records": True},
        {"rows": 1 << 40},
        {"rows": 1 << 24, "records": 1 << 24, "outputs": 1 << 9},
        {"task": "nonsense"},
        {"task": "binary"},
        {"outputs": 1},
        {"loss": None},
        {"masked": 1},
        {"more": 1},
        {"scorer": "shop"},
        {"parties": ["lab", "shop"]},
    ],
    ids=str,
)
def test_a_third_party_that_is_told_nonsense_says_so(facts: dict[str, Any]) -> None:
    def change(message: Message) -> Message:
        if (message.kind, message.receiver) != ("scoring", COORDINATOR):
            return message
        said = {**read_note(message), **facts} if facts else {}
        return note(ACTIVE, COORDINATOR, "scoring", 0, json.loads(json.dumps(said)))

    with pytest.raises(ProtocolError, match=r"bank (did not|to name|states)|expected bank"):
        Meeting().open(change)


@pytest.mark.parametrize("salt", [None, "", "zz" * 32, "00" * 31, 7])
def test_a_salt_that_is_none_is_refused(salt: object) -> None:
    def change(message: Message) -> Message:
        if (message.kind, message.receiver) != ("scoring", "lab"):
            return message
        return note(ACTIVE, "lab", "scoring", 0, {**read_note(message), "salt": salt})

    with pytest.raises(ProtocolError, match="expected bank to send a salt of 32 bytes"):
        Meeting().open(change)


# --- numbers


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("by", BY)
def test_a_part_of_the_label_party_that_is_no_number_is_refused(by: str, value: float) -> None:
    meeting = Meeting(by).open()

    def spoil(payload: Tensor) -> Tensor:
        payload[3, 1] = value
        return payload

    with pytest.raises(ProtocolError, match="the share of step 0 from bank holds NaN or infinite values"):
        meeting.step(change=of("share", spoil))
    assert meeting.answers == 0


@pytest.mark.parametrize("by", BY)
def test_a_part_of_a_passive_party_that_is_no_number_is_refused(by: str) -> None:
    """Its own half would not send it: this one's model is spoiled behind the check."""
    meeting = Meeting(by).open()
    side = meeting.sides["telecom"]
    part = side.part
    side.part = lambda batch, number: part(batch, number) * torch.inf

    with pytest.raises(ProtocolError, match="the part of step 0 from telecom holds NaN or infinite values"):
        meeting.step()
    assert meeting.answers == 0


@pytest.mark.parametrize("by", BY)
def test_logits_that_are_none_are_refused(by: str) -> None:
    meeting = Meeting(by).open()
    side = meeting.sides["telecom"]
    side.part = lambda batch, number: torch.full((8, 3), 3e38)
    meeting.sides["lab"].part = side.part

    with pytest.raises(ProtocolError, match=f"the logits that {by} adds up hold NaN or infinite values"):
        meeting.step()
    assert meeting.answers == 0


@pytest.mark.parametrize("kind", ["parts", "share"])
@pytest.mark.parametrize("by", BY)
def test_parts_of_another_shape_are_refused(by: str, kind: str) -> None:
    meeting = Meeting(by).open()
    with pytest.raises(ProtocolError, match=f"expected {kind} of step 0 from bank to be"):
        meeting.step(change=of(kind, lambda payload: payload[:-1]))
    assert meeting.answers == 0


def test_a_sealed_part_of_another_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="expected part of step 0 from telecom to be 112 in uint8, got 111"):
        Meeting().open().step(liar="telecom", change=of("part", lambda payload: payload[:-1]))


@pytest.mark.parametrize(
    "spoil",
    [lambda scores: scores[:-1], lambda scores: scores[:, :2], lambda scores: scores[:, 0]],
    ids=["rows", "classes", "one"],
)
@pytest.mark.parametrize("by", BY)
def test_scores_of_another_shape_are_refused(by: str, spoil: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ProtocolError, match=f"expected scores of step 0 from {by} to be 8 x 3"):
        Meeting(by).open().step(liar=by, change=of("scores", spoil))


@pytest.mark.parametrize("by", BY)
def test_scores_that_are_no_numbers_are_refused(by: str) -> None:
    with pytest.raises(ProtocolError, match=f"the scores of step 0 from {by} holds NaN or infinite values"):
        Meeting(by).open().step(liar=by, change=of("scores", lambda scores: scores * torch.nan))


def test_a_model_that_is_wider_than_the_logits_is_no_part_of_them() -> None:
    meeting = Meeting().open()
    meeting.passives["lab"].bottom = torch.nn.Linear(5, 4)

    with pytest.raises(SplitVFLError, match="lab puts out 4 numbers of a record, and its part of the logits is 3"):
        meeting.step()


def test_who_takes_another_task_or_run_for_agreed_is_told_both() -> None:
    with pytest.raises(DataError, match=r"do not agree on what scores are of: run: lab has 'b+', bank has 'a+'"):
        Meeting(lab={"run": "b" * 32}).open()
    with pytest.raises(DataError, match="loss: shop has 'another', bank has 'usual'"):
        Meeting("shop", shop={"loss": "another"}).open()
    Meeting("shop", lab={"loss": "another"}).open()  # it is nobody's business but the scorer's
