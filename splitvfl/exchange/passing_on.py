"""Messages between parties without a link: the active party passes them on, and can neither change nor make them.

After a roll call (:mod:`splitvfl.exchange.roll_call`) every two of its members share keys, under which each part that
one has for another carries a code (:mod:`splitvfl.crypto.tags`). What was not sent by the one in whose name it comes is
noticed before anything is computed with it, so that it is never a sum that is refused. Parts stand one behind the other
in one message, in the order of the names.

It holds as far as the roll call does: where keys are not signed, an active party that has handed out its own makes
codes in everybody's name. It says who sent what, not that it is right: the other one may lie as it likes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from splitvfl.crypto.key_agreement import AgreementKey
from splitvfl.crypto.tags import TAG_BYTES, Tags
from splitvfl.errors import CryptoError, ProtocolError
from splitvfl.messaging.messages import Message

Shape = tuple[int, int]


def sealed_bytes(*shapes: Shape) -> int:
    """Return how many bytes parts of so many rows and bytes of a row have, each with its code."""
    return sum(rows * width + TAG_BYTES for rows, width in shapes)


class PassedOn:
    """One member's end of the messages that are passed on.

    Each has a ``kind`` and the number of a step, and is about as many numbers as its ``count`` says
    (:class:`~splitvfl.crypto.tags.Tags`).

    The key is the one whose public half this member has sent in the roll call, for this meeting only; ``keys`` are
    those of the others, uint8, and ``session`` the roll call's.

    Raises:
        ProtocolError: If one is no key.
    """

    def __init__(self, name: str, active: str, key: AgreementKey, keys: Mapping[str, Tensor], session: bytes) -> None:
        self._name = name
        try:
            others = {other: bytes(public.tolist()) for other, public in keys.items()}
            self._tags = Tags(name, active, key, others, session=session)
        except CryptoError as error:
            raise ProtocolError(f"keys passed on by {active}: {error}") from error
        self._others = tuple(others)

    def tags(self, payload: Tensor, kind: str, step: int, count: int) -> Tensor:
        """Return the codes of one message that all others get: uint8 ``(others, 32)``."""
        return torch.stack(
            [self._tags.tag(other, payload, kind=kind, step=step, count=count) for other in self._others]
        )

    def to_others(self, parts: Mapping[str, Tensor], kind: str, step: int, counts: Mapping[str, int]) -> Tensor:
        """Return a part for each of the others with its code, to be passed on; ``parts`` are by receiver."""
        return torch.cat(
            [self._tags.sealed(other, part, kind=kind, step=step, count=counts[other]) for other, part in parts.items()]
        )

    def from_others(
        self, message: Message, kind: str, shapes: Mapping[str, Shape], counts: Mapping[str, int]
    ) -> dict[str, Message]:
        """Return what each of the others has sent, as a message of its own; ``shapes`` and ``counts`` are by sender.

        Raises:
            ForgedError: If one of them has not sent it.
        """
        found = {}
        sizes = [sealed_bytes(shape) for shape in shapes.values()]
        for (other, shape), part in zip(shapes.items(), message.payload.split(sizes), strict=True):
            content = self._tags.opened(other, part, kind=kind, step=message.step, count=counts[other])
            found[other] = Message(other, self._name, kind, message.step, content.reshape(shape))
        return found
