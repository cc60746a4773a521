"""Sealed messages, which a third party passes on and cannot read.

Every two parties that have no link share a key for each direction, under which a message is encrypted with AES-256-GCM.
What the message is (whatever both mean it to be: its *context*) and its place among all messages of that direction are
bound to it. So whoever passes it on cannot read it, change it, make one of its own, or pass on one of another pair,
direction or context, or an older one: it sees how long a message is, and can only stop. The keys are those of
:mod:`splitvfl.crypto.pair_keys`.

The nonce is the number of the message. Two messages under one key and nonce would give the key away: a key is of one
meeting, whose session never comes again as long as one of the two draws a nonce of its own for it, and one object
counts all its messages.

What they do not do: prove to anybody else who sent what, or hold where the third party has put its own keys between the
two, as it can where keys are not signed (:mod:`splitvfl.exchange.roll_call`). Codes that hide nothing are
:mod:`splitvfl.crypto.tags`.

Source: NIST SP 800-38D (AES-GCM).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from splitvfl.crypto.key_agreement import AgreementKey
from splitvfl.crypto.pair_keys import PairKeys
from splitvfl.errors import ForgedError
from splitvfl.system.gpu_copies import bytes_of

SEAL_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_PURPOSE: Final = b"splitvfl, sealed for another party"


class Seals:
    """One party's sealed messages, for one meeting.

    The party ``through`` passes messages on; ``key`` is made for this meeting, ``others`` are the public keys of those
    that the party has no link with, and ``session`` is the same at all of them, and at no other meeting.

    Raises:
        CryptoError: If one is no key.
    """

    def __init__(
        self, name: str, through: str, key: AgreementKey, others: Mapping[str, bytes], *, session: bytes
    ) -> None:
        self._keys = PairKeys(name, through, key, others, session=session, purpose=_PURPOSE, make=AESGCM)

    def sealed(self, receiver: str, payload: Tensor, *, context: bytes) -> Tensor:
        """Return the next message to a party: uint8 of one dimension, 16 bytes longer than the payload.

        Args:
            receiver: The party's name.
            payload: On the CPU; its dtype and shape are no part of the message: both sides must know them.
            context: What the message is. Not hidden, and not sent: the receiver must mean the same.
        """
        number = self._keys.next_number(receiver)
        made = self._keys.outgoing[receiver].encrypt(_nonce(number), bytes(bytes_of(payload)), context)
        return torch.frombuffer(bytearray(made), dtype=torch.uint8)

    def opened(self, sender: str, sealed: Tensor, *, context: bytes, what: str) -> bytes:
        """Return the content of the next message of a party, out of what was passed on as that.

        Args:
            sender: The party's name.
            sealed: What was passed on, uint8 of one dimension.
            context: What the message is, as the sender has to have meant it.
            what: The same in words, for an error.

        Raises:
            ForgedError: If it is not what that party sent, or was meant otherwise; it names both.
        """
        keys = self._keys
        try:
            nonce = _nonce(keys.received[sender])
            content = keys.incoming[sender].decrypt(nonce, bytes(bytes_of(sealed)), context)
        except InvalidTag:
            raise ForgedError(
                f"{keys.through} passed on {what} in the name of {sender}, and it is not what {sender} sent "
                f"{keys.name} there: {keys.through} has changed it, put something else in its place or left "
                f"something out, or {sender} means something else by it, other records say. Nothing was computed with "
                "it. Honest parties never cause this: find out with both what happened"
            ) from None
        keys.received[sender] += 1
        return content


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "big")
