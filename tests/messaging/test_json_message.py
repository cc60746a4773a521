"""Notes arrive as they were sent, and what is none is refused, whatever it is."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.errors import ProtocolError
from splitvfl.messaging.conversation import admit
from splitvfl.messaging.json_message import MAX_NOTE_BYTES, awaited_note, note, read_note
from splitvfl.messaging.messages import Message

PLAIN = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=20)
CONTENT = st.dictionaries(st.text(max_size=10), PLAIN | st.lists(PLAIN, max_size=4), max_size=5)


def of(text: bytes) -> Message:
    return Message("telecom", "bank", "agreement", 3, torch.tensor(list(text), dtype=torch.uint8))


@given(CONTENT)
def test_a_note_is_read_as_it_was_written(content: dict[str, Any]) -> None:
    sent = note("telecom", "bank", "agreement", 3, content)
    assert (sent.sender, sent.receiver, sent.kind, sent.step) == ("telecom", "bank", "agreement", 3)
    assert read_note(admit(sent, awaited_note("telecom", "agreement", 3))) == content


def test_equal_content_is_written_alike() -> None:
    one, other = note("a", "b", "k", 0, {"x": 1, "y": 2}), note("a", "b", "k", 0, {"y": 2, "x": 1})
    assert torch.equal(one.payload, other.payload)


@pytest.mark.parametrize("size", [0, 1, MAX_NOTE_BYTES + 1])
def test_sizes_beyond_the_limits_are_refused_before_they_are_read(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"from telecom to be 2 to 65536 in uint8, got {size}"):
        admit(of(b" " * size), awaited_note("telecom", "agreement", 3))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_refused(data: bytes) -> None:
    try:
        json.loads(data.decode())
    except ValueError:
        with pytest.raises(ProtocolError, match="telecom sent no agreement") as caught:
            read_note(of(data))
        assert str(caught.value).isprintable()
    else:
        with contextlib.suppress(ProtocolError):
            assert isinstance(read_note(of(data)), dict)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1, "a": 1}',  # two readers could read two things
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"\xef\xbb\xbf{}",  # with a byte-order mark
        b"\xff\xfe{\x00}\x00",  # in UTF-16
        b"{\x00}\x00",
        b"null",
        b'"\x1b[2J"',
        b'{"\x1b[2J": \x07}',
        b"{} {}",
        b"",
    ],
)
def test_what_is_no_object_is_refused_with_the_senders_name(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="telecom sent no agreement") as caught:
        read_note(of(text))
    assert str(caught.value).isprintable()


def nested(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_nesting_is_limited_to_what_can_be_shown_everywhere() -> None:
    """Python reads lists a thousand deep, and cannot always print what it has read."""
    assert read_note(of(nested(8)))
    for levels in (9, 100, *range(900, 1000), 30_000):
        with pytest.raises(ProtocolError, match="telecom sent no agreement"):
            read_note(of(nested(levels)))


@pytest.mark.parametrize("part", [b"[],", b"{},", b"1e9,", b'"\xf0\x9f\x98\x80",', b'{"":1},', b"[[]],"])
def test_the_longest_note_takes_little_memory(part: bytes) -> None:
    body = part * ((MAX_NOTE_BYTES - 20) // len(part))
    message = of(b'{"a": [' + body + b"0]}")
    tracemalloc.start()
    read_note(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A dict of one entry is 184 bytes for 7 of text: 27-fold. Twice that is room for lists that grow.
    assert peak < 54 * MAX_NOTE_BYTES


def test_a_note_is_json() -> None:
    sent = note("a", "b", "k", 0, {"x": [1, "é"]})
    assert json.loads(bytes(sent.payload.tolist())) == {"x": [1, "é"]}
