"""The first words: what is learned, and how wide activations are; anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from splitvfl.errors import ProtocolError
from splitvfl.exchange.introduction import MAX_CLASSES, TaskSpec, active_introduction, passive_introduction
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.json_message import awaited_note
from splitvfl.messaging.messages import Message
from splitvfl.party.party import MAX_WIDTH


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


def stranger(name: str, receiver: str, facts: Any) -> Half:
    payload = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
    yield Outbox(
        send=(Message(name, receiver, "introduction", 0, payload),), wait=(awaited_note(receiver, "introduction", 0),)
    )


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
        "telecom": stranger("telecom", "bank", {"width": width}),
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
        converse({"bank": stranger("bank", "telecom", facts), "telecom": passive("telecom", 4, seen)})
    assert not seen
    assert str(caught.value).isprintable()
