"""Messages on the wire: every tensor comes back to the bit, and nothing else is taken for one."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.errors import ProtocolError
from splitvfl.messaging.messages import MAX_BYTES, Message, decode, encode
from tests.rows import every

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def bits(tensor: Tensor) -> list[int]:
    """The tensor's bytes, so that NaN equals NaN and -0 differs from 0."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of any bits, NaNs of any payload included."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    size = torch.zeros(shape).numel() * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if size else torch.zeros(0, dtype=dtype)
    return flat.reshape(shape)


def message(payload: Tensor) -> Message:
    return Message("bank", "telecom", "gradient", 7, payload)


@given(NAMES, NAMES, NAMES, st.integers(0, 2**63), tensors())
def test_every_message_comes_back_to_the_bit(sender: str, receiver: str, kind: str, step: int, payload: Tensor) -> None:
    back = decode(encode(Message(sender, receiver, kind, step, payload)))
    assert (back.sender, back.receiver, back.kind, back.step) == (sender, receiver, kind, step)
    assert (back.payload.dtype, back.payload.shape) == (payload.dtype, payload.shape)
    assert bits(back.payload) == bits(payload)


@every(dtype=DTYPES, shape=[(), (1,), (0,), (0, 3), (3, 0, 2), (2, 3), (1,) * 8])
def test_every_dtype_has_a_place_for_every_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    payload = torch.ones(shape, dtype=dtype)
    back = decode(encode(message(payload))).payload
    assert back.dtype == dtype
    assert torch.equal(back, payload)


@every(dtype=DTYPES)
def test_strides_do_not_cross(dtype: torch.dtype) -> None:
    whole = torch.arange(24).reshape(4, 6).to(dtype)
    for payload in (whole.t(), whole[:, ::2], whole[1:3, 1:], whole[0].expand(3, 6)):
        assert torch.equal(decode(encode(message(payload))).payload, payload)


def test_gradients_stay_at_home_and_the_copy_can_be_written() -> None:
    payload = torch.ones(3, requires_grad=True)
    back = decode(encode(message(payload * 2))).payload
    assert not back.requires_grad
    back.add_(1)
    assert payload.tolist() == [1.0, 1.0, 1.0]


def test_bytes_are_little_endian() -> None:
    """Against the format as documented, so that it cannot change unseen."""
    expected = ["bank", "telecom", "gradient", 7, "int64", [2], b"\x01" + bytes(7) + b"\xfe" + b"\xff" * 7]
    assert msgspec.msgpack.decode(encode(message(torch.tensor([1, -2])))) == expected


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.complex64])
def test_dtypes_without_a_place_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ProtocolError, match=f"cannot send dtype {dtype}.*float32"):
        encode(message(torch.zeros(2, dtype=dtype)))


GOOD = ["bank", "telecom", "gradient", 7, "float32", [2, 3], bytes(24)]


def forged(**changes: Any) -> bytes:
    fields = ("sender", "receiver", "kind", "step", "dtype", "shape", "data")
    return msgspec.msgpack.encode([changes.get(name, good) for name, good in zip(fields, GOOD, strict=True)])


def test_the_forgers_pattern_is_good() -> None:
    assert torch.equal(decode(forged()).payload, torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"dtype": "complex64"}, "unknown dtype 'complex64'"),
        ({"dtype": "object"}, "unknown dtype 'object'"),
        ({"data": bytes(23)}, "needs 24 bytes, got 23"),
        ({"data": b""}, "needs 24 bytes, got 0"),
        ({"shape": [2, 4]}, "needs 32 bytes, got 24"),
        ({"shape": []}, "needs 4 bytes, got 24"),
        ({"shape": [0]}, "needs 0 bytes, got 24"),
        ({"shape": [-2, -3]}, "not a message"),
        ({"shape": [1] * 9}, "not a message"),
        ({"shape": [2.0, 3.0]}, "not a message"),
        ({"shape": [MAX_BYTES + 1]}, "not a message"),
        ({"shape": [2**63, 2]}, "not a message"),
        ({"shape": [MAX_BYTES] * 8}, "exceeds the limit"),
        ({"shape": [MAX_BYTES, MAX_BYTES, 0], "data": b""}, "too large for a tensor"),
        ({"step": -1}, "not a message"),
        ({"step": "7"}, "not a message"),
        ({"sender": ""}, "not a message"),
        ({"sender": "x" * 201}, "not a message"),
        ({"kind": None}, "not a message"),
        ({"data": "text"}, "not a message"),
    ],
)
def test_forged_envelopes_are_refused_without_a_large_allocation(changes: dict[str, Any], complaint: str) -> None:
    data = forged(**changes)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=complaint):
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_forged_byte_count_allocates_nothing() -> None:
    """The header promises 4 GiB of data; 24 bytes follow."""
    data = forged().replace(b"\xc4\x18" + bytes(24), b"\xc6\xff\xff\xff\xff" + bytes(24))
    assert data != forged()
    with pytest.raises(ProtocolError, match="not a message"):
        decode(data)


@pytest.mark.parametrize("fields", [GOOD[:-1], [*GOOD, 1], [], {"sender": "bank"}, 3])
def test_wrong_envelopes_are_refused(fields: Any) -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        decode(msgspec.msgpack.encode(fields))


def test_names_that_are_no_text_are_refused() -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        decode(forged().replace(b"bank", b"\xff\xfe\xff\xfe"))


def test_every_truncation_is_refused() -> None:
    data = encode(message(torch.arange(6.0)))
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            decode(data[:length])
    with pytest.raises(ProtocolError):
        decode(data + b"\x00")


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_gives_a_message_or_a_protocol_error(position: int, value: int) -> None:
    data = bytearray(encode(message(torch.arange(6.0).reshape(2, 3))))
    data[position % len(data)] = value
    try:
        assert decode(bytes(data)).payload.numel() == decode(bytes(data)).payload.numel()
    except ProtocolError:
        return


def test_more_bytes_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitvfl.messaging.messages.MAX_BYTES", 40)
    with pytest.raises(ProtocolError, match="exceeds the limit of 40"):
        decode(forged())
