"""Authentication codes for messages that a third party passes on.

Every two parties that have no link share a key for each direction, and a message carries 32 bytes that nobody can make
without it: HMAC-SHA256 over what the message is (its kind, the number of the step, how many numbers it is about), its
place among all messages of that direction, and its content. So whoever passes it on cannot change it, make one of its
own, or pass on one of another pair, direction, step or kind, or an older one: it can only stop. The keys are those of
:mod:`splitvfl.crypto.pair_keys`.

What they do not do: hide anything, which encryption and masks are there for; prove to anybody else who sent what, as
either of the two could have made a code; or hold where the third party has put its own keys between the two, as it can
where keys are not signed (:mod:`splitvfl.exchange.roll_call`). A code depends on nothing that must not repeat, unlike
those of AES-GCM, of which two with one nonce give the key away.

Source: RFC 2104 (HMAC).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from splitvfl.crypto.key_agreement import AgreementKey
from splitvfl.crypto.pair_keys import PairKeys, framed
from splitvfl.errors import ForgedError
from splitvfl.system.gpu_copies import bytes_of

TAG_BYTES: Final = 32
_PURPOSE: Final = b"splitvfl, what the active party passes on"


class Tags:
    """One party's codes, for one meeting.

    The party ``through`` passes messages on; ``key`` is made for this meeting, ``others`` are the public keys of those
    that the party has no link with, and ``session`` is the same at all of them, and at no other meeting.

    Raises:
        CryptoError: If one is no key.
    """

    def __init__(
        self, name: str, through: str, key: AgreementKey, others: Mapping[str, bytes], *, session: bytes
    ) -> None:
        self._keys = PairKeys(name, through, key, others, session=session, purpose=_PURPOSE, make=bytes)

    def tag(self, receiver: str, payload: Tensor, *, kind: str, step: int, count: int) -> Tensor:
        """Return the code of the next message to a party, uint8 ``(32,)``.

        The content is uint8, and its shape no part of it; ``count`` is how many numbers it is about: both sides must
        mean the same.
        """
        number = self._keys.next_number(receiver)
        code = _code(self._keys.outgoing[receiver], payload, kind, step, count, number)
        return torch.frombuffer(bytearray(code), dtype=torch.uint8)

    def sealed(self, receiver: str, payload: Tensor, *, kind: str, step: int, count: int) -> Tensor:
        """Return a message with its code behind it, uint8 of one dimension; arguments as :meth:`tag`."""
        return torch.cat([payload.flatten(), self.tag(receiver, payload, kind=kind, step=step, count=count)])

    def opened(self, sender: str, sealed: Tensor, *, kind: str, step: int, count: int) -> Tensor:
        """Return the content of the next message of a party, of one dimension, out of what was passed on as that.

        All but the content is said to be what it was at the sender.

        Raises:
            ForgedError: If it is not what that party sent; it names both.
        """
        payload, code = sealed[:-TAG_BYTES], bytes(sealed[-TAG_BYTES:].tolist())
        keys = self._keys
        expected = _code(keys.incoming[sender], payload, kind, step, count, keys.received[sender])
        if not hmac.compare_digest(code, expected):
            raise ForgedError(
                f"{keys.through} passed on {kind} of step {step} in the name of {sender}, and it is not what {sender} "
                f"sent {keys.name} there: {keys.through} has changed it, put something else in its place or left "
                f"something out, or {sender} has sent what it cannot vouch for. Nothing was computed with it. Honest "
                "parties never cause this: find out with both what happened, and begin a new run only with those that "
                "you still trust"
            )
        keys.received[sender] += 1
        return payload


def _code(key: bytes, payload: Tensor, kind: str, step: int, count: int, number: int) -> bytes:
    head = framed(kind.encode()) + b"".join(one.to_bytes(8, "big") for one in (step, count, number))
    code = hmac.new(key, head, "sha256")
    code.update(bytes_of(payload.cpu()))
    return code.digest()
