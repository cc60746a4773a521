"""Each half of each exchange against a peer that sends anything: it ends as it should, or refuses and names the peer.

``admit``, as every driver has it, lets only messages of the awaited form through; within it the peer may send any
values. Sometimes it says what it should, so that halves get to their later messages.
"""

from __future__ import annotations

import functools
import json
import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scripts.bench.scenes import ACTIVE, EXCHANGES, RUN, Scene, scenes
from splitvfl.errors import LinkError, SplitVFLError
from splitvfl.exchange.scoring import COORDINATOR
from splitvfl.messaging.conversation import Expected, admit
from splitvfl.messaging.json_message import MAX_NOTE_BYTES
from splitvfl.messaging.messages import FLOATS, Message

DTYPES = (*FLOATS, torch.int64, torch.uint8)

NUMBERS = st.sampled_from(
    [float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 3.4e38, 1e19, 1e-45, -0.0, 0.0, 1.0, -1.0, 255.0]
)
WHOLES = st.sampled_from([0, 1, 2, 3, 4, 5, -1, 255, 1 << 31, 1 << 53, (1 << 63) - 1, -(1 << 63)])

# Texts that a note may hold: what each exchange reads, with values that it should not have.
KEYS = st.sampled_from(
    ["task", "outputs", "width", "run", "steps", "batch size", "seed", "training records", "mode", "padding"]
)
SMALL = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([10**4000, -(10**4000), float("nan"), RUN, "", "binary", "both", 7, 3, [3], [3, 6], [[3]], {}])
    | st.text(alphabet=st.characters(), max_size=8)
    | st.sampled_from(["\x1b[2J\x07", "\r\nadmin: ok", "\u202e", "\ud800", "\x00"])
)
RAW = st.binary(min_size=2, max_size=40) | st.sampled_from(
    [
        b"\x00" * 40,
        b"[" * 60_000,
        b'{"a":' * 9000,
        b'{"a":' * 960 + b"1" + b"}" * 960,
        b'{"width": ' + b"[" * 950 + b"]" * 950 + b"}",
        b'{"task": ' + b"[" * 970 + b"]" * 970 + b"}",
        b'{"steps": ' + b"9" * 5000 + b"}",
        b'{"width": 4, "width": 5}',
        b'{"width": 1e999}',
        b'{"\x1b[2J": 1}',
        b'{"\\u001b[2J": "\\u001b[2J"}',
        b"\xff\xfe{\x00}\x00",
        b" " * MAX_NOTE_BYTES,
        b"[{}," * 16_000,
    ]
)


@st.composite
def notes(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        return draw(RAW)
    content = draw(st.dictionaries(KEYS | st.text(max_size=4), SMALL | st.lists(SMALL, max_size=3), max_size=4))
    return json.dumps(content).encode()[:MAX_NOTE_BYTES]


@st.composite
def values(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Any values: one everywhere, some in a few places, or any bits at all."""
    if draw(st.booleans()):
        size = int(torch.Size(shape).numel()) * dtype.itemsize
        bits = bytearray(random.Random(draw(st.integers(0, 1 << 32))).randbytes(size))
        return torch.frombuffer(bits, dtype=dtype).reshape(shape) if size else torch.zeros(shape, dtype=dtype)
    numbers = NUMBERS if dtype.is_floating_point else WHOLES
    payload = torch.zeros(shape, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
    payload.fill_(draw(numbers))
    for _ in range(draw(st.integers(0, 2)) if payload.numel() else 0):
        payload.view(-1)[draw(st.integers(0, payload.numel() - 1))] = draw(numbers)
    return payload.to(dtype)


@functools.cache
def stage() -> dict[tuple[str, str], Scene]:
    roles = {ACTIVE: "active", COORDINATOR: "third"}
    return {(scene.exchange, roles.get(scene.name, "passive")): scene for scene in scenes()}


HALVES = [(exchange, role) for exchange in EXCHANGES for role in ("active", "passive")]
HALVES += [(f"scoring {COORDINATOR}", "third")]


class Hostile:
    """A link with a peer that sends what hypothesis draws."""

    def __init__(self, scene: Scene, peer: str, data: st.DataObject) -> None:
        self._genuine = scene.heard[peer].messages
        self._number = 0
        self._peer, self._name, self._draw = peer, scene.name, data.draw

    def send(self, message: Message, *, timeout: float) -> None:
        assert message.receiver == self._peer

    def receive(self, expected: Expected, *, timeout: float) -> Message:
        message = admit(self._next(expected), expected)
        self._number += 1
        return message

    def _next(self, expected: Expected) -> Message:
        match self._draw(st.sampled_from(["genuine"] * 6 + ["values"] * 4 + ["form", "again", "skipped", "silence"])):
            case "genuine" if self._number < len(self._genuine):
                return self._genuine[self._number]
            case "again" if self._number:
                return self._genuine[(self._number - 1) % len(self._genuine)]
            case "skipped" if self._number + 1 < len(self._genuine):
                return self._genuine[self._number + 1]
            case "form":
                return self._other_form(expected)
            case "silence":
                raise LinkError(f"waiting for {self._peer}: nothing came")
        return self._other_values(expected)

    def _other_values(self, expected: Expected) -> Message:
        if any(isinstance(size, range) for size in expected.shape):
            payload = torch.tensor(list(self._draw(notes())), dtype=torch.uint8)
        else:
            shape = [size for size in expected.shape if isinstance(size, int)]
            payload = self._draw(values(shape, self._draw(st.sampled_from(expected.dtypes))))
        return Message(self._peer, self._name, expected.kind, expected.step, payload)

    def _other_form(self, expected: Expected) -> Message:
        draw = self._draw
        shape = draw(st.lists(st.integers(0, 9), max_size=3))
        return Message(
            draw(st.sampled_from([self._peer, self._peer, "mallory", "\x1b[2J", self._name])),
            self._name,
            draw(st.sampled_from([expected.kind, expected.kind, "gradient", "verdict", "x\x1b[2J\n", "\u202e"])),
            draw(st.sampled_from([expected.step, expected.step, expected.step + 1, -1, 1 << 63])),
            torch.zeros(shape, dtype=draw(st.sampled_from(DTYPES))),
        )


def meet(scene: Scene, data: st.DataObject) -> bool:
    """Run a half among hostile peers; whether it ended as it should."""
    try:
        scene.drive({peer: Hostile(scene, peer, data) for peer in scene.heard})
    except SplitVFLError as error:
        text = str(error)
        assert any(peer in text for peer in scene.heard), text
        assert text.isprintable()
        assert len(text) < 2000
        assert scene.is_unchanged()
        return False
    else:
        assert scene.is_sound()
        return True
    finally:
        scene.reset()


@pytest.mark.parametrize(("exchange", "role"), HALVES)
@settings(max_examples=15)
@given(data=st.data())
def test_a_half_ends_as_it_should_or_refuses_and_changes_nothing(exchange: str, role: str, data: st.DataObject) -> None:
    meet(stage()[exchange, role], data)


@pytest.mark.parametrize(("exchange", "role"), HALVES)
def test_what_peers_said_once_is_taken(exchange: str, role: str) -> None:
    """Otherwise everything else here would be refused for the wrong reason."""
    scene = stage()[exchange, role]
    scene.attempt({peer: heard.frames for peer, heard in scene.heard.items()})
    scene.reset()


class Repeating:
    """A link with a peer that says what it said once, and in place of one message something else."""

    def __init__(self, messages: Sequence[Message], place: int, payload: Tensor) -> None:
        self._messages, self._place, self._payload, self._number = messages, place, payload, -1

    def send(self, message: Message, *, timeout: float) -> None: ...

    def receive(self, expected: Expected, *, timeout: float) -> Message:
        self._number += 1
        one = self._messages[self._number]
        payload = self._payload if self._number == self._place else one.payload
        return admit(Message(one.sender, one.receiver, one.kind, one.step, payload), expected)


@pytest.mark.parametrize(("exchange", "role"), [half for half in HALVES if half[0] in ("introduction", "resuming")])
@pytest.mark.parametrize("key", ["task", "outputs", "width", "run", "steps"])
def test_no_depth_of_nesting_gets_through_to_where_it_cannot_be_shown(exchange: str, role: str, key: str) -> None:
    """Python's limits on reading and on printing what is nested are not the same: every depth near them is tried."""
    scene = stage()[exchange, role]
    for depth in range(880, 1000, 3):
        text = b'{"%s": %s%s}' % (key.encode(), b"[" * depth, b"]" * depth)
        links: dict[str, Any] = {
            peer: Repeating(heard.messages, 0, torch.tensor(list(text), dtype=torch.uint8))
            for peer, heard in scene.heard.items()
        }
        with pytest.raises(SplitVFLError):
            scene.drive(links)


def test_hostile_messages_leave_no_memory_behind() -> None:
    """What a half takes for five bad notes of the largest size is gone afterwards."""
    scene = stage()["agreement", "passive"]
    payload = torch.tensor(list(b'{"a": [' + b"{}," * 21_000 + b"0]}"), dtype=torch.uint8)

    def refuse() -> None:
        with pytest.raises(SplitVFLError):
            scene.drive({peer: Repeating(heard.messages, 0, payload) for peer, heard in scene.heard.items()})

    refuse()
    tracemalloc.start()
    for _ in range(5):
        refuse()
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 21 000 empty dicts of 64 bytes, their list, and what pytest keeps of five errors.
    assert left < 1 << 19
    assert peak < 8 << 20
