"""Small structured messages between parties: JSON in UTF-8 in a vector of bytes, bounded, and read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from splitvfl.errors import ProtocolError
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message

MAX_NOTE_BYTES = 1 << 16
# Lists within lists in what is read; deeper ones could be read, and then not be shown in an error.
_DEEPEST = 8

Note = Mapping[str, Any]


def note(sender: str, receiver: str, kind: str, step: int, content: Note) -> Message:
    """Return a message that holds a mapping of plain values."""
    text = json.dumps(dict(content), sort_keys=True).encode()
    return Message(sender, receiver, kind, step, torch.frombuffer(bytearray(text), dtype=torch.uint8))


def awaited_note(sender: str, kind: str, step: int) -> Expected:
    """Return what :func:`note` of this kind looks like from outside."""
    return Expected(sender, kind, step, (torch.uint8,), (range(2, MAX_NOTE_BYTES + 1),))


def read_note(message: Message) -> dict[str, Any]:
    """Return the mapping in a message of another party; what its values are is the reader's to check.

    Raises:
        ProtocolError: If it is no JSON object, has a key twice, or is nested more than eight deep.
    """
    try:
        content = json.loads(message.payload.numpy().tobytes().decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # too deep, or a number of too many digits, included
        raise ProtocolError(f"{message.sender} sent no {message.kind}: {error}") from error
    if not isinstance(content, dict):
        raise ProtocolError(f"{message.sender} sent no {message.kind}, but a {type(content).__name__}")
    if not _is_shallow(content, _DEEPEST):
        raise ProtocolError(f"{message.sender} sent no {message.kind}, but something nested more than {_DEEPEST} deep")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key comes twice")
    return content


def _is_shallow(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(part, levels - 1) for part in parts)
