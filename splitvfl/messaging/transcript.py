"""A recorded conversation: every message in order, to be kept, counted, and replayed against one half."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from splitvfl.errors import ProtocolError
from splitvfl.messaging.conversation import Half, admit
from splitvfl.messaging.messages import MAX_BYTES, Message, decode, encode
from splitvfl.system.untrusted_files import UntrustedFile

_LENGTH = struct.Struct("<Q")


class Transcript:
    """The messages of one or more conversations, in the order of sending.

    It holds what crossed, gradients and activations included: whoever reads it can run every attack on it.

    Args:
        most_bytes: Of payloads that are kept: beyond, the oldest messages are dropped. ``None``: all are kept.

    Attributes:
        messages: The messages.
        dropped: How many were dropped; :func:`replay` needs all from the beginning.

    >>> transcript = Transcript()
    >>> transcript.record(Message("a", "b", "scores", 0, torch.zeros(2)))
    >>> len(transcript)
    1
    """

    def __init__(self, *, most_bytes: int | None = None) -> None:
        self.messages: list[Message] = []
        self.dropped = 0
        self._most_bytes, self._bytes = most_bytes, 0

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def record(self, message: Message) -> None:
        """Keep a copy of one message; give this to ``converse(record=...)``."""
        copy = message.payload.detach().cpu().clone()
        self.messages.append(Message(message.sender, message.receiver, message.kind, message.step, copy))
        self._bytes += copy.nbytes
        while self._most_bytes is not None and self._bytes > self._most_bytes:
            self._bytes -= self.messages.pop(0).payload.nbytes
            self.dropped += 1

    def save(self, path: Path) -> None:
        """Write all messages to a file, each with its length before it."""
        with path.open("wb") as file:
            for message in self.messages:
                data = encode(message)
                file.write(_LENGTH.pack(len(data)) + data)

    @classmethod
    def load(cls, path: Path) -> Transcript:
        """Read a file that :meth:`save` wrote.

        Raises:
            ProtocolError: If it is truncated or damaged.
        """
        transcript = cls()
        with UntrustedFile(path=path, error=ProtocolError, linked=True).opened() as file:
            while header := file.read(_LENGTH.size):
                length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else MAX_BYTES + 1
                data = file.read(length) if length <= MAX_BYTES else b""
                if len(data) != length:
                    raise ProtocolError(f"{path}: truncated or damaged after {len(transcript)} messages")
                transcript.messages.append(decode(data))
        return transcript


def replay(half: Half, party: str, transcript: Transcript) -> Any:
    """Run one party's half, in the state in which the recording began, against what crossed then; return its result.

    Raises:
        ProtocolError: If the half sends anything but what it sent then, to the bit, or waits for more, or for something
            else.
    """
    sent = iter([message for message in transcript if message.sender == party])
    received = [message for message in transcript if message.receiver == party]
    inbox: dict[str, Message] | None = None
    try:
        while True:
            outbox = next(half) if inbox is None else half.send(inbox)
            for message in outbox.send:
                _compare(message, next(sent, None))
            inbox = {one.sender: admit(_take(received, one.sender, party), one) for one in outbox.wait}
    except StopIteration as stop:
        return stop.value


def _compare(message: Message, recorded: Message | None) -> None:
    same = (
        recorded is not None
        and (message.receiver, message.kind, message.step) == (recorded.receiver, recorded.kind, recorded.step)
        and message.payload.dtype == recorded.payload.dtype  # torch.equal compares values only
        and torch.equal(message.payload.cpu(), recorded.payload)
    )
    if not same:
        raise ProtocolError(f"{message.sender} sent another {message.kind} at step {message.step} than was recorded")


def _take(received: list[Message], sender: str, party: str) -> Message:
    for position, message in enumerate(received):
        if message.sender == sender:
            return received.pop(position)
    raise ProtocolError(f"{party} waits for more from {sender} than was recorded")
