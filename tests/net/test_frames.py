"""The bytes on a link: what goes in comes out, and whatever else comes is refused before it costs anything."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.errors import ProtocolError
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import MAX_BYTES, Message
from splitvfl.net import frames
from splitvfl.net.frames import (
    CHUNK,
    Assembly,
    Bye,
    Hello,
    bye_frame,
    hello_frame,
    pack,
    read_bye,
    read_hello,
    shown_text,
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)

# Written by hand from docs/reference/protocol.md. The parser below reads them without the library.
HELLO = "01 73706c697476666c 0300 95 a7 74656c65636f6d a6 637265646974 a7 70617373697665 00 01"
MESSAGE = (
    "02 1b00"  # a first frame, head of 27 bytes
    "96 00 aa 61637469766174696f6e 07"  # [0, "activation", 7,
    "a7 666c6f61743332 93 02 01 02 10"  # "float32", [2, 1, 2], 16]
    "0000803f 00000040 000040c0 0000807f"  # 1, 2, -3, infinity
)
NUMBER = "02 1600 96 05 a6 73636f726573 cd0102 a7 666c6f61743634 90 08 000000000000f83f"  # 1.5, step 258, number 5
EMPTY = "02 1900 96 01 a8 6772616469656e74 03 a8 62666c6f61743136 92 00 04 00"
BYE = "04 92 a4 646f6e65 c3"


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


MESSAGES = {
    "matrix": (MESSAGE, 0, "activation", 7, torch.tensor([[[1.0, 2.0]], [[-3.0, torch.inf]]])),
    "number": (NUMBER, 5, "scores", 258, torch.tensor(1.5, dtype=torch.float64)),
    "empty": (EMPTY, 1, "gradient", 3, torch.zeros(0, 4, dtype=torch.bfloat16)),
}


def expecting(tensor: torch.Tensor, kind: str = "activation", step: int = 7) -> Expected:
    return Expected("telecom", kind, step, (tensor.dtype,), tuple(tensor.shape))


def assemble(parts: Sequence[bytes], expected: Expected, sequence: int = 0) -> Message | None:
    first, *others = parts
    assembly = Assembly(first, expected, receiver="bank", sequence=sequence)
    for part in others:
        assembly.add(part)
    return assembly.message


def packed(tensor: torch.Tensor, kind: str = "activation", step: int = 7, sequence: int = 0) -> list[bytes]:
    return list(pack(Message("telecom", "bank", kind, step, tensor), sequence).frames())


def bits(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes, without NumPy and without a copy that could hide a wrong order."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.zeros(0, dtype=torch.uint8)
    return bytes(raw.tolist())


# --- a parser of its own


class ByHand:
    """The part of msgpack that the specification uses, read by hand."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self) -> Any:
        (tag,) = self.take(1)
        if tag < 0x80:
            return tag
        if 0x90 <= tag <= 0x9F:
            return [self.value() for _ in range(tag & 0x0F)]
        if 0xA0 <= tag <= 0xBF:
            return self.take(tag & 0x1F).decode("utf-8")
        if tag in (0xC2, 0xC3):
            return tag == 0xC3
        if 0xCC <= tag <= 0xCF:
            return int.from_bytes(self.take(1 << (tag - 0xCC)), "big")
        if tag == 0xD9:
            return self.take(self.take(1)[0]).decode("utf-8")
        raise AssertionError(f"not in the specification: {tag:#x}")


def by_hand(parts: Sequence[bytes]) -> tuple[list[Any], bytes]:
    """Return head and payload of a message as the specification has them."""
    assert parts[0][0] == 2
    (length,) = struct.unpack("<H", parts[0][1:3])
    parser = ByHand(parts[0][3 : 3 + length])
    head = parser.value()
    assert parser.at == length
    payload = parts[0][3 + length :]
    for part in parts[1:]:
        assert part[0] == 3
        assert struct.unpack("<QQ", part[1:17]) == (head[0], len(payload))
        payload += part[17:]
    assert len(payload) == head[5]
    return head, payload


@pytest.mark.parametrize(("text", "sequence", "kind", "step", "tensor"), MESSAGES.values(), ids=MESSAGES)
def test_golden_messages(text: str, sequence: int, kind: str, step: int, tensor: torch.Tensor) -> None:
    golden = unhex(text)
    assert packed(tensor, kind, step, sequence) == [golden]
    name = str(tensor.dtype).removeprefix("torch.")
    assert by_hand([golden]) == ([sequence, kind, step, name, list(tensor.shape), tensor.nbytes], bits(tensor))
    message = assemble([golden], expecting(tensor, kind, step), sequence)
    assert message is not None
    assert (message.sender, message.receiver, message.kind, message.step) == ("telecom", "bank", kind, step)
    assert torch.equal(message.payload, tensor)
    assert message.payload.dtype == tensor.dtype


def test_golden_control_frames() -> None:
    hello = Hello("telecom", "credit", "passive")
    assert hello_frame(hello) == unhex(HELLO)
    assert read_hello(unhex(HELLO), "x") == hello
    assert ByHand(unhex(HELLO)[11:]).value() == ["telecom", "credit", "passive", 0, 1]
    assert bye_frame("done", final=True) == unhex(BYE)
    assert read_bye(unhex(BYE), "x") == Bye("done", True)
    assert (frames.PING_FRAME, frames.PONG_FRAME) == (b"\x05", b"\x06")


def test_a_long_message_is_cut_every_mebibyte() -> None:
    tensor = torch.arange(2 * CHUNK + 3).to(torch.uint8)
    parts = packed(tensor, sequence=300)
    assert [len(part) for part in parts[1:]] == [17 + CHUNK, 17 + 3]
    assert parts[1][:17] == unhex("03 2c01000000000000 0000100000000000")
    assert parts[2][:17] == unhex("03 2c01000000000000 0000200000000000")
    head, payload = by_hand(parts)
    assert head == [300, "activation", 7, "uint8", [2 * CHUNK + 3], 2 * CHUNK + 3]
    assert payload == bits(tensor)
    message = assemble(parts, expecting(tensor), 300)
    assert message is not None
    assert torch.equal(message.payload, tensor)


# --- round trips


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.tensor(list(draw(st.binary(min_size=count, max_size=count))), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape) if count else torch.zeros(shape, dtype=dtype)
    if tensor.dim() > 1 and draw(st.booleans()):
        return tensor.transpose(0, 1)  # not in one piece
    return tensor


@given(tensor=tensors(), sequence=st.integers(0, 2**40), step=st.integers(0, 2**40))
def test_what_goes_in_comes_out_to_the_bit(tensor: torch.Tensor, sequence: int, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "CHUNK", 24)  # small tensors then need several frames
        parts = packed(tensor, step=step, sequence=sequence)
        message = assemble(parts, expecting(tensor, step=step), sequence)
    assert len(parts) == max(1, -(-tensor.nbytes // 24))
    assert message is not None
    assert (message.payload.dtype, message.payload.shape) == (tensor.dtype, tensor.shape)
    assert bits(message.payload) == bits(tensor)
    assert by_hand(parts)[1] == bits(tensor)


def test_a_message_is_there_only_when_all_of_it_is() -> None:
    tensor = torch.zeros(3 * CHUNK, dtype=torch.uint8)
    first, *others = packed(tensor)
    assembly = Assembly(first, expecting(tensor), receiver="bank", sequence=0)
    for part in others:
        assert assembly.message is None
        assembly.add(part)
    assert assembly.message is not None


def test_sending_copies_a_frame_at_a_time_and_never_the_whole() -> None:
    message = Message("telecom", "bank", "activation", 7, torch.zeros(32 * CHUNK, dtype=torch.uint8))
    tracemalloc.start()
    try:
        sizes = [len(part) for part in pack(message, 0).frames()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(sizes) > 32 * CHUNK
    # The frame at hand, and the one before, which the loop still holds.
    assert peak < 3 * CHUNK


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Message("a", "b", "activation", 0, torch.zeros(2, dtype=torch.int32)), "cannot send dtype torch.int32"),
        (Message("a", "b", "new\nline", 0, torch.zeros(2)), "cannot send a message of kind 'new"),
        (Message("a", "b", "", 0, torch.zeros(2)), "cannot send a message of kind ''"),
        (Message("a", "b", "k" * 201, 0, torch.zeros(2)), "1 to 200 printable"),
        (Message("a", "b", "activation", 0, torch.zeros([1] * 9)), "with 9 dimensions"),
        (Message("a", "b", "activation", 0, torch.zeros(1).expand(MAX_BYTES // 4 + 1)), "exceeds the limit"),
    ],
    ids=["dtype", "line break", "no kind", "long kind", "dimensions", "size"],
)
def test_what_has_no_place_on_the_wire_is_not_sent(message: Message, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        pack(message, 0)


# --- whatever else comes

GOOD: dict[str, Any] = {
    "sequence": 0,
    "kind": "activation",
    "step": 7,
    "dtype": "float32",
    "shape": [2, 3],
    "size": 24,
}


def forged(tail: bytes = bytes(24), **changes: Any) -> bytes:
    head = msgspec.msgpack.encode(list({**GOOD, **changes}.values()))
    return b"\x02" + struct.pack("<H", len(head)) + head + tail


LOOSE = Expected("telecom", "activation", 7, (torch.float32,), (range(MAX_BYTES + 1), range(MAX_BYTES + 1)))


def test_the_forgers_pattern_is_good() -> None:
    assert assemble([forged()], LOOSE) is not None


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (forged(shape=[2**28, 1], size=24), "to be 1073741824 bytes, got the announcement of 24"),
        (forged(shape=[2**28, 1], size=2**30), "expected 1048576 bytes of .* from byte 0 on, got 24"),
        (forged(shape=[2**28 + 1, 1], size=2**30), "exceeds the limit"),
        (forged(shape=[MAX_BYTES, MAX_BYTES], size=24), "exceeds the limit"),
        (forged(shape=[2, 3, 1]), "expected activation of step 7 from telecom to be"),
        (forged(shape=[0, MAX_BYTES + 1]), "not a message head"),
        (forged(shape=[-2, -3]), "not a message head"),
        (forged(shape=[2**63, 3]), "not a message head"),
        (forged(shape=[2.0, 3.0]), "not a message head"),
        (forged(shape=[1] * 9), "not a message head"),
        (forged(size=25), "got the announcement of 25"),
        (forged(size=-1), "not a message head"),
        (forged(tail=bytes(23)), "expected 24 bytes"),
        (forged(tail=bytes(25)), "expected 24 bytes"),
        (forged(tail=b""), "expected 24 bytes"),
        (forged(tail=bytes(2 * CHUNK)), "expected a message from telecom, got a message of 2097"),
        (forged(sequence=1), "expected message number 0 from telecom, got number 1"),
        (forged(sequence=-1), "not a message head"),
        (forged(sequence=True), "not a message head"),
        (forged(kind="gradient"), "expected activation of step 7 from telecom, got gradient"),
        (forged(kind="a\x1b[2J"), "not a message head"),
        (forged(kind="activation\n"), "not a message head"),
        (forged(kind="a" * 201), "not a message head"),
        (forged(kind=b"activation"), "not a message head"),
        (forged(kind="a" * 1020), "expected a head of 1 to 1024 bytes"),
        (forged(step=8), "expected activation of step 7 from telecom, got activation of step 8"),
        (forged(step="7"), "not a message head"),
        (forged(dtype="object"), "unknown dtype 'object'"),
        (forged(dtype="float64", size=48, tail=bytes(48)), "in float32, got 2 x 3 in float64"),
        (forged(more=1), "not a message head"),
        (b"", "an empty frame"),
        (b"\x02", "a message of 1 bytes"),
        (b"\x02\x00\x00", "expected a head of 1 to"),
        (b"\x02\xff\xff" + bytes(60), "expected a head of 1 to"),
        (b"\x02\x01\x00\xc1", "not a message head"),
        (b"\x02\x03\x00" + b"\x91" * 3, "not a message head"),
        (b"\x02\xe8\x03" + b"\x91" * 1000, "not a message head"),
        (b"\x07" + bytes(40), "a frame of unknown type 7"),
        (b"\x03" + bytes(40), "expected a message from telecom, got a part of one"),
        (unhex(HELLO), "expected a message from telecom, got a hello"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_not_the_awaited_message_is_refused_before_memory_is_taken(
    frame: bytes, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    empty = frames._empty
    monkeypatch.setattr(frames, "_empty", lambda *form: taken.append(form) or empty(*form))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=complaint):
            assemble([frame], LOOSE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken == []
    assert peak < 100_000


def rest(sequence: int = 0, offset: int = CHUNK, tail: bytes = bytes(CHUNK)) -> bytes:
    return struct.pack("<BQQ", 3, sequence, offset) + tail


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (rest(sequence=1), "expected the part of message number 0 at byte 1048576 .* got that of number 1"),
        (rest(offset=0), "got that of number 0 at byte 0"),
        (rest(offset=2 * CHUNK), "at byte 2097152$"),
        (rest(offset=2**64 - 1), "at byte 18446744073709551615"),
        (rest(tail=bytes(CHUNK - 1)), "expected 1048576 bytes .* got 1048575"),
        (rest(tail=bytes(CHUNK + 1)), "expected 1048576 bytes .* got 1048577"),
        (rest(tail=b""), "expected 1048576 bytes .* got 0"),
        (b"\x03" + bytes(15), "expected the next part of activation of step 7 from telecom, got a part of one of 16"),
        (b"", "got an empty frame"),
        (b"\x02" + bytes(40), "got a message of 41 bytes"),
        (unhex(BYE), "got a bye"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_not_the_next_part_is_refused(frame: bytes, complaint: str) -> None:
    tensor = torch.zeros(3 * CHUNK, dtype=torch.uint8)
    assembly = Assembly(packed(tensor)[0], expecting(tensor), receiver="bank", sequence=0)
    with pytest.raises(ProtocolError, match=complaint):
        assembly.add(frame)


def test_a_part_too_many_is_refused() -> None:
    for tensor in (torch.zeros(CHUNK + 1, dtype=torch.uint8), torch.zeros(0)):
        parts = packed(tensor)
        with pytest.raises(ProtocolError, match="expected the part of message number 0 at byte"):
            assemble([*parts, rest(offset=tensor.nbytes, tail=b"")], expecting(tensor))


def test_parts_in_another_order_or_twice_are_refused() -> None:
    tensor = torch.zeros(4 * CHUNK, dtype=torch.uint8)
    first, second, third, fourth = packed(tensor)
    for wrong in ([first, third], [first, second, second], [first, second, fourth], [second], [first, first]):
        with pytest.raises(ProtocolError):
            assemble(wrong, expecting(tensor))


@pytest.mark.parametrize(("text", "sequence", "kind", "step", "tensor"), MESSAGES.values(), ids=MESSAGES)
def test_every_change_of_one_byte_of_a_message_is_refused_or_changes_its_values_only(
    text: str, sequence: int, kind: str, step: int, tensor: torch.Tensor
) -> None:
    golden = unhex(text)
    begins = len(golden) - tensor.nbytes
    expected = expecting(tensor, kind, step)
    refused = 0
    for place in range(len(golden)):
        for value in range(256):
            changed = golden[:place] + bytes([value]) + golden[place + 1 :]
            try:
                message = assemble([changed], expected, sequence)
            except ProtocolError:
                assert place < begins
                refused += 1
                continue
            # In the head, what is not refused is another way to write the same: a number of step 258 with a sign, say.
            assert message is not None
            assert bits(message.payload) == changed[begins:]
    assert refused >= 255 * begins - 5


def test_every_truncation_and_every_byte_too_many_is_refused() -> None:
    for text, sequence, kind, step, tensor in MESSAGES.values():
        golden = unhex(text)
        for wrong in (*(golden[:length] for length in range(len(golden))), golden + b"\x00"):
            with pytest.raises(ProtocolError):
                assemble([wrong], expecting(tensor, kind, step), sequence)
    for text, read in ((HELLO, read_hello), (BYE, read_bye)):
        golden = unhex(text)
        for wrong in (*(golden[:length] for length in range(len(golden))), golden + b"\x00"):
            with pytest.raises(ProtocolError):
                read(wrong, "telecom")


def test_every_change_of_one_byte_of_a_control_frame_is_refused_or_changes_its_words_only() -> None:
    for text, read, form in ((HELLO, read_hello, Hello), (BYE, read_bye, Bye)):
        golden = unhex(text)
        read_well = 0
        for place in range(len(golden)):
            for value in range(256):
                try:
                    found = read(golden[:place] + bytes([value]) + golden[place + 1 :], "telecom")
                except ProtocolError:
                    continue
                read_well += 1
                assert isinstance(found, form)
        # Some do change the words: the loop is not refusing everything.
        assert read_well > 256


def test_nothing_but_a_protocol_error_ever_comes_of_random_frames() -> None:
    """Bytes changed, left out, put in and swapped, many at a time."""
    dice = random.Random(0)
    golden = [unhex(text) for text in (HELLO, MESSAGE, NUMBER, EMPTY, BYE)] + [rest(tail=bytes(8))]
    accepted = 0
    for _ in range(20_000):
        data = bytearray(dice.choice(golden))
        for _ in range(dice.randint(0, 4)):
            at, change = dice.randrange(len(data) + 1), dice.randrange(3)
            data[at : at + dice.randint(0, 3) * (change != 0)] = dice.randbytes(dice.randint(0, 4) * (change != 1))
        for read in (lambda f: assemble([f], LOOSE), lambda f: read_hello(f, "x"), lambda f: read_bye(f, "x")):
            try:
                read(bytes(data))
                accepted += 1
            except ProtocolError:
                continue
    assert accepted > 1000


# --- hello and bye


def test_another_version_is_refused_with_both_named_whatever_follows() -> None:
    frame = hello_frame(Hello("telecom", "credit", "passive"), version=4)
    for wrong in (frame, frame[:11], frame[:11] + b"anything at all"):
        with pytest.raises(ProtocolError, match="telecom speaks version 4 of the protocol, and this party version 3"):
            read_hello(wrong, "telecom")


@pytest.mark.parametrize(
    "fields",
    [
        ["", "r", "active"],
        ["p", "", "active"],
        ["p" * 201, "r", "active"],
        ["p", "r", "other"],
        ["p", "r"],
        ["p", "r", 1],
    ],
)
def test_a_hello_that_says_too_little_or_too_much_is_refused(fields: list[Any]) -> None:
    frame = unhex(HELLO)[:11] + msgspec.msgpack.encode(fields)
    with pytest.raises(ProtocolError, match="not a hello from telecom"):
        read_hello(frame, "telecom")


def test_a_hello_from_another_program_is_refused() -> None:
    with pytest.raises(ProtocolError, match="expected a hello of splitvfl from telecom, got b'SPLITVFL'"):
        read_hello(unhex(HELLO).replace(b"splitvfl", b"SPLITVFL"), "telecom")


def test_a_name_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="not a hello from this party"):
        hello_frame(Hello("p" * 201, "r", "active"))


def test_long_reasons_are_cut_and_longer_ones_refused() -> None:
    assert read_bye(bye_frame("é" * 500, final=False), "x").reason == "é" * 500
    assert read_bye(bye_frame("é" * 501, final=False), "x").reason == "é" * 499 + "…"
    with pytest.raises(ProtocolError, match="not a bye"):
        read_bye(b"\x04" + msgspec.msgpack.encode(["é" * 501, False]), "x")
    with pytest.raises(ProtocolError, match="expected a bye"):
        read_bye(b"\x04" + msgspec.msgpack.encode(["x" * 5000, False]), "x")
    # What no text can hold is replaced, not raised: somebody is on the way out.
    assert read_bye(bye_frame("\ud800", final=True), "x").reason == "?"


def test_what_others_write_is_shown_on_one_line_without_control_characters() -> None:
    assert shown_text("é\r\n\x1b]0;title\x07\u202e") == "é\\r\\n\\x1b]0;title\\x07\\u202e"
    assert shown_text("x" * 600) == "x" * 499 + "…"
