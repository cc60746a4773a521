"""Keys that a party shares with others, one for each direction, and the numbers of what went under them.

What two parties that have no link send each other goes through a third one, which must not be able to read it
(:mod:`splitvfl.crypto.seals`) or to make it (:mod:`splitvfl.crypto.tags`). Either needs a key of the pair for each
direction: HKDF-SHA256 of the pair's X25519 secret (:mod:`splitvfl.crypto.key_agreement`), with what tells this meeting
from all others as its salt, and what the key is for and the names of both as its context, the sender first. And either
binds to a message its number among all of that direction, so that an older one cannot be passed on again.

Source: RFC 5869 (HKDF).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NoReturn, TypeVar

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from splitvfl.crypto.key_agreement import AgreementKey
from splitvfl.errors import CryptoError
from splitvfl.system.forks import forks

_KEY_BYTES: Final = 32

_K = TypeVar("_K")


class PairKeys(Generic[_K]):
    """One party's keys for one meeting, and how many messages went each way.

    They cannot be copied, and a forked child cannot send under them: two that count for themselves would send two
    messages under one number, and with AES-GCM that gives the key away.

    Args:
        name: The party's.
        through: Who passes messages on.
        key: Its key, made for this meeting.
        others: Public keys of those that it has no link with.
        session: The same at all of them, and at no other meeting.
        purpose: What the keys are for; keys for something else have nothing in common with them.
        make: Makes what is used of a key of 32 bytes.

    Attributes:
        name: As given.
        through: As given.
        outgoing: What is used to send, by receiver.
        incoming: What is used to receive, by sender.
        sent: Messages to each one so far.
        received: Messages of each one that were taken so far.

    Raises:
        CryptoError: If one of the public keys is none.
    """

    def __init__(
        self,
        name: str,
        through: str,
        key: AgreementKey,
        others: Mapping[str, bytes],
        *,
        session: bytes,
        purpose: bytes,
        make: Callable[[bytes], _K],
    ) -> None:
        def derived(secret: bytes, sender: str, receiver: str) -> _K:
            context = b"".join(framed(part) for part in (purpose, sender.encode(), receiver.encode()))
            return make(HKDF(SHA256(), _KEY_BYTES, salt=session, info=context).derive(secret))

        self.name, self.through = name, through
        secrets = {other: key.secret_with(public) for other, public in others.items()}
        self.outgoing = {other: derived(secret, name, other) for other, secret in secrets.items()}
        self.incoming = {other: derived(secret, other, name) for other, secret in secrets.items()}
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._forks = forks()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("keys of a pair are not copied: two messages would go under one number")

    def next_number(self, receiver: str) -> int:
        """Return the number of the next message to a party, from 0: never the same again.

        Raises:
            CryptoError: If this is a forked child: its parent counts too.
        """
        if self._forks != forks():
            raise CryptoError(
                f"the keys of {self.name} for what {self.through} passes on belong to the process that this one was "
                "forked from, which sends under the same numbers; nothing was sent. Connect again in this process"
            )
        number = self.sent[receiver]
        self.sent[receiver] += 1
        return number


def framed(part: bytes) -> bytes:
    """Return a part with its length before it, so that parts behind each other can be read in one way only."""
    return len(part).to_bytes(8, "big") + part
