"""Messages between parties: one tensor with its address.

In one process a message is handed over by reference. Between processes it is a msgpack envelope around the tensor's
raw little-endian bytes, decoded against exact types and limits; nothing in it can name code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import torch
from torch import Tensor

from splitvfl.errors import ProtocolError
from splitvfl.system.gpu_copies import bytes_of, to_memory

MAX_BYTES: Final = 1 << 30

_DTYPES: Final = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
FLOATS: Final = tuple(dtype for dtype in _DTYPES.values() if dtype.is_floating_point)
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Message:
    """One tensor on its way from one party to another.

    Attributes:
        sender: Name of the party that sends.
        receiver: Name of the party that it is for.
        kind: What it is: ``"activation"``, ``"gradient"``, ``"scores"``, ``"agreement"``.
        step: Number of the conversation that it belongs to.
        payload: The tensor. Nobody writes to it once it has been sent: neither the receiver nor the sender.
    """

    sender: str
    receiver: str
    kind: str
    step: int
    payload: Tensor


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
ByteCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]


class _Envelope(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    sender: Name
    receiver: Name
    kind: Name
    step: Annotated[int, msgspec.Meta(ge=0)]
    dtype: Name
    shape: Annotated[tuple[ByteCount, ...], msgspec.Meta(max_length=8)]
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Envelope)


def name_of(dtype: torch.dtype) -> str:
    """Return what a dtype is called on the wire.

    Raises:
        ProtocolError: If it has no place there.
    """
    if dtype not in _NAMES:
        raise ProtocolError(f"cannot send dtype {dtype}; expected one of {', '.join(_DTYPES)}")
    return _NAMES[dtype]


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype that is called so on the wire.

    Raises:
        ProtocolError: If none is.
    """
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise ProtocolError(f"unknown dtype {name!r}; expected one of {', '.join(_DTYPES)}")
    return dtype


def size_in_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return how many bytes a tensor has; nothing is allocated.

    Raises:
        ProtocolError: If they are more than may cross in one message.
    """
    size = math.prod(shape) * dtype.itemsize
    if size > MAX_BYTES:
        raise ProtocolError(f"a tensor of {size} bytes exceeds the limit of {MAX_BYTES}")
    if math.prod(max(length, 1) for length in shape) > MAX_BYTES:
        raise ProtocolError(f"shape {tuple(shape)} is empty, but too large for a tensor")
    return size


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        ProtocolError: If the payload's dtype has no place on the wire.
    """
    payload = to_memory(message.payload)
    return _encoder.encode(
        _Envelope(
            message.sender,
            message.receiver,
            message.kind,
            message.step,
            name_of(payload.dtype),
            tuple(payload.shape),
            bytes(bytes_of(payload)),
        )
    )


def decode(data: bytes) -> Message:
    """Return the message in these bytes; nothing is allocated before sizes and types agree.

    Raises:
        ProtocolError: If the bytes are no message, or lengths do not match the shape.
    """
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"a message of {len(data)} bytes exceeds the limit of {MAX_BYTES}")
    try:
        envelope = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a message: {error}") from error
    dtype = dtype_named(envelope.dtype)
    expected = size_in_bytes(envelope.shape, dtype)
    if len(envelope.data) != expected:
        raise ProtocolError(
            f"shape {envelope.shape} of {envelope.dtype} needs {expected} bytes, got {len(envelope.data)}"
        )
    flat = torch.frombuffer(bytearray(envelope.data), dtype=dtype) if expected else torch.zeros(0, dtype=dtype)
    payload = flat.reshape(envelope.shape)
    return Message(envelope.sender, envelope.receiver, envelope.kind, envelope.step, payload)
