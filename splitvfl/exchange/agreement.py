"""Before the first step: do the parties hold the same records, in the same order, and the same settings?

What crosses is a count and a digest. The digest of ids that are easy to guess can be inverted by trying; parties
that train together hold the same ids anyway.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor

from splitvfl.conversation import Expected, Half, Outbox
from splitvfl.data.columns import PartyData
from splitvfl.errors import DataError, ProtocolError
from splitvfl.messages import Message

_MAX_BYTES = 1 << 16


def terms_of(data: PartyData, settings: Mapping[str, object]) -> dict[str, object]:
    """Return what must be equal at every party: counts and digests of its ids, and the agreed settings."""
    return {
        "training records": data.train.count,
        "test records": data.test.count,
        "order of the training ids": _digest(data.train.ids),
        "order of the test ids": _digest(data.test.ids),
        **settings,
    }


def _digest(ids: Tensor) -> str:
    # Hashed where they lie: ids of a table on disk need not fit into memory.
    return hashlib.sha256(ids.cpu().contiguous().numpy().astype("<i8", copy=False).data).hexdigest()[:32]


def agreement(name: str, others: tuple[str, ...], terms: Mapping[str, object]) -> Half:
    """Return one party's half: it sends its terms to the others, and compares theirs with its own.

    Raises:
        DataError: If any term differs; every difference is named, with both values.
        ProtocolError: If what came are no terms.
    """
    text = json.dumps(dict(terms), sort_keys=True)
    terms = json.loads(text)  # as the others read them: a tuple arrives as a list
    payload = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    send = tuple(Message(name, other, "agreement", 0, payload) for other in others)
    form = ((torch.uint8,), (range(2, _MAX_BYTES + 1),))
    inbox = yield Outbox(send=send, wait=tuple(Expected(other, "agreement", 0, *form) for other in others))
    for other in others:
        theirs = _parse(inbox[other])
        differing = [key for key in sorted({*terms, *theirs}) if terms.get(key) != theirs.get(key)]
        if differing:
            lines = "; ".join(f"{key}: {name} has {terms.get(key)}, {other} has {theirs.get(key)}" for key in differing)
            raise DataError(f"{name} and {other} do not agree: {lines}")


def _parse(message: Message) -> dict[str, object]:
    try:
        terms = json.loads(message.payload.numpy().tobytes())
    except (ValueError, RecursionError) as error:  # too deep, or a number of too many digits, included
        raise ProtocolError(f"{message.sender} sent no agreement: {error}") from error
    if not isinstance(terms, dict):
        raise ProtocolError(f"{message.sender} sent no agreement, but a {type(terms).__name__}")
    return terms
