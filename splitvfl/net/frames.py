"""The frames on a link: messages in pieces of at most 1 MiB of payload, and four control frames.

A frame is one message of the transport underneath, which keeps frames whole and in order; its first byte says what it
is. Everything in a frame is bounded and of one exact type, and nothing in it can name code. What is received is checked
before memory is taken for it: :class:`Assembly` compares a message's first frame with what is awaited, then makes the
tensor, once, and copies each frame's bytes to their place in it.

Sender and receiver of a message are not on the wire. A link knows both: its certificate names the one, and who reads is
the other.

The specification, byte by byte: ``docs/reference/protocol.md``.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal, ParamSpec, TypeVar

import msgspec
import torch
from torch import Tensor

from splitvfl.errors import ProtocolError, printable
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import MAX_BYTES, ByteCount, Message, Name, dtype_named, name_of, size_in_bytes
from splitvfl.system.gpu_copies import bytes_of, empty_bytes, to_memory

PROTOCOL_VERSION: Final = 3
CHUNK: Final = 1 << 20
LONGEST_HEAD: Final = 1 << 10
LONGEST_CONTROL: Final = 1 << 12
LONGEST_REASON: Final = 500

# The first byte of a frame. Those of hello and bye, and how they are laid out, are the same in every version.
HELLO: Final = 1
MESSAGE: Final = 2
REST: Final = 3
BYE: Final = 4
PING: Final = 5
PONG: Final = 6

PING_FRAME: Final = bytes([PING])
PONG_FRAME: Final = bytes([PONG])

_MAGIC: Final = b"splitvfl"
_GREETING: Final = struct.Struct("<B8sH")
_FIRST: Final = struct.Struct("<BH")
_NEXT: Final = struct.Struct("<BQQ")
_LONGEST_FRAME: Final = CHUNK + _FIRST.size + LONGEST_HEAD

_PRINTABLE: Final = re.compile(r"[ -~]{1,200}")

Number = Annotated[int, msgspec.Meta(ge=0)]
MessageKind = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[ -~]+\Z")]
Role = Literal["active", "passive"]


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    sequence: Number
    kind: MessageKind
    step: Number
    dtype: Annotated[str, msgspec.Meta(min_length=1, max_length=16)]
    shape: Annotated[tuple[ByteCount, ...], msgspec.Meta(max_length=8)]
    size: ByteCount


class Hello(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The first frame of each side of a link.

    Attributes:
        party: Its name.
        run: What it takes the link to be for: parties whose runs differ do not talk.
        role: ``"active"`` or ``"passive"``; a link joins one of each.
        worker: Which of the party's workers speaks, from 0; a link joins two with the same number.
        workers: How many the party has; all parties have as many.
    """

    party: Name
    run: Name
    role: Role
    worker: Number = 0
    workers: Number = 1


class Bye(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The last frame of a side of a link.

    Attributes:
        reason: Why it goes, in words; at most 500 characters.
        final: Whether trying again makes no sense.
    """

    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]
    final: bool


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(_Head)
_hellos = msgspec.msgpack.Decoder(Hello)
_byes = msgspec.msgpack.Decoder(Bye)

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Packed:
    """A message that is ready for the wire; its frames are cut when they are needed: no second copy of it exists.

    Attributes:
        head: The beginning of the first frame.
        body: The payload's bytes, where they lie.
        sequence: The message's number on its link.
    """

    head: bytes
    body: memoryview
    sequence: int

    def frames(self) -> Iterator[bytes]:
        """Yield the frames in order."""
        yield b"".join((self.head, self.body[:CHUNK]))
        for offset in range(CHUNK, len(self.body), CHUNK):
            yield b"".join((_NEXT.pack(REST, self.sequence, offset), self.body[offset : offset + CHUNK]))


def pack(message: Message, sequence: int) -> Packed:
    """Return a message as it goes on the wire; ``sequence`` have been sent on its link before it.

    Its payload is not copied, and must not change until it has left.

    Raises:
        ProtocolError: If its dtype, size or kind has no place on the wire.
    """
    payload = to_memory(message.payload)
    if not _PRINTABLE.fullmatch(message.kind):
        raise ProtocolError(
            f"cannot send a message of kind {message.kind!r}: expected 1 to 200 printable ASCII characters"
        )
    shape = tuple(payload.shape)
    if len(shape) > 8:
        raise ProtocolError(
            f"cannot send {message.kind} with {len(shape)} dimensions; at most 8 have a place on the wire"
        )
    name = name_of(payload.dtype)
    size = size_in_bytes(shape, payload.dtype)
    head = _encoder.encode(_Head(sequence, message.kind, message.step, name, shape, size))
    return Packed(_FIRST.pack(MESSAGE, len(head)) + head, bytes_of(payload), sequence)


class Assembly:
    """A message that arrives frame by frame.

    The constructor checks the first frame in full; only then is memory taken, exactly as much as the payload needs. On
    its link, ``sequence`` messages have come before it.

    Raises:
        ProtocolError: If the frame is not the beginning of that message.
    """

    def __init__(self, frame: bytes, expected: Expected, *, receiver: str, sequence: int) -> None:
        head, first = _split_first(frame, expected.sender)
        if head.sequence != sequence:
            raise ProtocolError(
                f"expected message number {sequence} from {expected.sender}, got number {head.sequence}: "
                "repeated, skipped or out of order"
            )
        dtype = _named_by(expected.sender, dtype_named, head.dtype)
        expected.check(sender=expected.sender, kind=head.kind, step=head.step, dtype=dtype, shape=head.shape)
        self._size = _named_by(expected.sender, size_in_bytes, head.shape, dtype)
        self._sequence = sequence
        self._what = f"{head.kind} of step {head.step} from {expected.sender}"
        if head.size != self._size:
            raise ProtocolError(f"expected {self._what} to be {self._size} bytes, got the announcement of {head.size}")
        self._check_part(first, 0)
        self._payload, self._bytes = _empty(head.shape, dtype, self._size)
        self._message = Message(expected.sender, receiver, head.kind, head.step, self._payload)
        self._filled = 0
        self._place(first)

    @property
    def message(self) -> Message | None:
        """The message, once it is complete."""
        return self._message if self._filled == self._size else None

    def add(self, frame: bytes) -> None:
        """Take the next frame.

        Raises:
            ProtocolError: If it is not the next one of this message.
        """
        if len(frame) < _NEXT.size or frame[0] != REST:
            raise ProtocolError(f"expected the next part of {self._what}, got {_in_words(frame)}")
        _, sequence, offset = _NEXT.unpack_from(frame)
        if (sequence, offset) != (self._sequence, self._filled) or self._filled == self._size:
            raise ProtocolError(
                f"expected the part of message number {self._sequence} at byte {self._filled} of {self._size} "
                f"({self._what}), got that of number {sequence} at byte {offset}"
            )
        part = memoryview(frame)[_NEXT.size :]
        self._check_part(part, offset)
        self._place(part)

    def _check_part(self, part: memoryview, offset: int) -> None:
        wanted = min(CHUNK, self._size - offset)
        if len(part) != wanted:
            raise ProtocolError(f"expected {wanted} bytes of {self._what} from byte {offset} on, got {len(part)}")

    def _place(self, part: memoryview) -> None:
        self._bytes[self._filled : self._filled + len(part)] = part
        self._filled += len(part)


def most_frames(expected: Expected) -> int:
    """Return in how many frames a message comes at most, whichever of its dtypes and sizes it has."""
    numbers = math.prod(size.stop - 1 if isinstance(size, range) else size for size in expected.shape)
    # A larger one than any message may be is refused when it comes.
    size = min(numbers * max(dtype.itemsize for dtype in expected.dtypes), MAX_BYTES)
    return max(1, -(-size // CHUNK))


def _split_first(frame: bytes, sender: str) -> tuple[_Head, memoryview]:
    if not _FIRST.size <= len(frame) <= _LONGEST_FRAME or frame[0] != MESSAGE:
        raise ProtocolError(f"expected a message from {sender}, got {_in_words(frame)}")
    _, length = _FIRST.unpack_from(frame)
    if not 0 < length <= min(LONGEST_HEAD, len(frame) - _FIRST.size):
        raise ProtocolError(
            f"expected a head of 1 to {LONGEST_HEAD} bytes within the frame from {sender}, got one of {length}"
        )
    view = memoryview(frame)
    end = _FIRST.size + length
    return _decoded(_heads, view[_FIRST.size : end], f"message head from {sender}"), view[end:]


def _empty(shape: tuple[int, ...], dtype: torch.dtype, size: int) -> tuple[Tensor, memoryview]:
    raw = empty_bytes(size)
    if size == 0:
        return torch.zeros(shape, dtype=dtype), memoryview(bytearray())
    return raw.view(dtype).reshape(shape), raw.numpy().data


def hello_frame(hello: Hello, *, version: int = PROTOCOL_VERSION) -> bytes:
    """Return the frame in which a side says who it is.

    Raises:
        ProtocolError: If a name in it is empty or longer than 200 characters.
    """
    frame = _GREETING.pack(HELLO, _MAGIC, version) + _encoder.encode(hello)
    if version == PROTOCOL_VERSION:
        read_hello(frame, "this party")
    return frame


def read_hello(frame: bytes, sender: str) -> Hello:
    """Return what a side says of itself in its first frame.

    Raises:
        ProtocolError: If it is no hello, or one of another version.
    """
    if not _GREETING.size <= len(frame) <= LONGEST_CONTROL or frame[0] != HELLO:
        raise ProtocolError(f"expected a hello from {sender}, got {_in_words(frame)}")
    _, magic, version = _GREETING.unpack_from(frame)
    if magic != _MAGIC:
        raise ProtocolError(f"expected a hello of splitvfl from {sender}, got {bytes(magic)!r}")
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"{sender} speaks version {version} of the protocol, and this party version {PROTOCOL_VERSION}: "
            "both need the same"
        )
    return _decoded(_hellos, memoryview(frame)[_GREETING.size :], f"hello from {sender}")


def bye_frame(reason: str, *, final: bool) -> bytes:
    """Return the frame in which a side says why it goes; a reason of more than 500 characters is cut."""
    text = reason.encode("utf-8", "replace").decode()
    if len(text) > LONGEST_REASON:
        text = text[: LONGEST_REASON - 1] + "…"
    return bytes([BYE]) + _encoder.encode(Bye(text, final))


def read_bye(frame: bytes, sender: str) -> Bye:
    """Return why a side goes. The reason is another's text: show it with :func:`shown_text`.

    Raises:
        ProtocolError: If the frame is no bye.
    """
    if not 1 < len(frame) <= LONGEST_CONTROL or frame[0] != BYE:
        raise ProtocolError(f"expected a bye from {sender}, got {_in_words(frame)}")
    return _decoded(_byes, memoryview(frame)[1:], f"bye from {sender}")


def shown_text(text: str) -> str:
    r"""Return another's text so that it can be shown: on one line, without control characters, not too long.

    >>> shown_text("gone\n\x1b[2J")
    'gone\\n\\x1b[2J'
    """
    return printable(text, longest=LONGEST_REASON)


def _named_by(sender: str, check: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
    try:
        return check(*args, **options)
    except ProtocolError as error:
        raise ProtocolError(f"message from {sender}: {error}") from error


def _decoded(decoder: msgspec.msgpack.Decoder[_T], data: memoryview, what: str) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a {what}: {shown_text(str(error))}") from error


_KINDS: Final = {
    HELLO: "a hello",
    MESSAGE: "a message",
    REST: "a part of one",
    BYE: "a bye",
    PING: "a ping",
    PONG: "a pong",
}


def _in_words(frame: bytes) -> str:
    if not frame:
        return "an empty frame"
    return f"{_KINDS.get(frame[0], f'a frame of unknown type {frame[0]}')} of {len(frame)} bytes"
