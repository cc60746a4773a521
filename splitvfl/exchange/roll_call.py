"""The roll call: which parties take part with which keys, where the active party passes keys on between the others.

Its *members* are the passive parties, and a coordinator if there is one. Each sends a fresh nonce and its keys; the
active party passes all of them on, with the members' names; each signs all that it has seen, with its own name, and the
active party passes on the signatures. What all have then is either the same names, nonces and keys, each vouched for by
its owner in this very meeting, or an error.

So an active party can end a run here, and no more: keys of its own, old ones, another's, ones from another run or
another exchange, fewer or more members than a member's own file names, or different ones for different members are
noticed. A signature is over the nonces of all, so that none serves twice; and masks are drawn from these nonces too, so
that the same masks never come twice whatever keys are used. What members have for each other afterwards goes through it
too, with codes under keys of each pair that come of the same secrets and nonces: :mod:`splitvfl.exchange.passing_on`.

It rests on how members prove who they are (:class:`Signer`): where keys are not signed, in one process or without TLS,
it says who takes part and holds against nobody. What a member signs is not that it is honest: members that work with
the active party tell it what they know, and with all but one of them it knows the parts of the last.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from splitvfl.crypto.pair_keys import framed
from splitvfl.errors import DataError, ProtocolError, shown
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.json_message import awaited_note, note, read_note
from splitvfl.messaging.messages import Message

NONCE_BYTES: Final = 32
_MEMBER, _MEMBERS, _SIGNATURE = "member", "members", "signature"
_MOST_MEMBERS: Final = 1 << 10


class Signer(Protocol):
    """A signer: it proves that keys are a member's own, and checks the others'."""

    def sign(self, statement: bytes) -> Mapping[str, object]:
        """Return a signature of a statement, and what others need to check it: plain values of JSON."""
        ...

    def check(self, member: str, statement: bytes, shown: Mapping[str, object]) -> None:
        """Check what a member's :meth:`sign` returned.

        Raises:
            ProtocolError: If it does not prove that this member has signed this statement.
        """
        ...


@dataclass(frozen=True, slots=True)
class Vouching:
    """A party's own knowledge of who takes part, and its way to check whose keys it gets.

    Attributes:
        members: Who takes part, as this party's file says; ``None`` where no file does, in one process.
        signer: Signs, and checks the others' signatures. ``None``: nobody signs, as in one process, and without TLS,
            where nobody could say who has signed.
    """

    members: frozenset[str] | None = None
    signer: Signer | None = None


UNSIGNED: Final = Vouching()


def vouching_terms(vouching: Vouching) -> dict[str, object]:
    """Return what must be equal at every party of an exchange in which keys are passed on."""
    return {"keys that are passed on": "not signed" if vouching.signer is None else "signed"}


@dataclass(frozen=True, slots=True)
class RollCall:
    """The result of a roll call, at one member.

    Attributes:
        session: Digest of all names, nonces and keys, the same at all members and at no two meetings.
        keys: The other members' keys, uint8, in the active party's order.
    """

    session: bytes
    keys: Mapping[str, Tensor]


def active_roll_call(name: str, lengths: Mapping[str, int], vouching: Vouching) -> Half:
    """Return the active party's half: it passes on what the members say; its result is each member's keys, uint8.

    ``lengths`` says how many bytes each member's keys have, and ``vouching`` whether there are signatures to pass on.
    It checks none: what comes over its own links is known by these.
    """
    awaited = tuple(Expected(one, _MEMBER, 0, (torch.uint8,), (NONCE_BYTES + size,)) for one, size in lengths.items())
    inbox = yield Outbox(wait=awaited)
    said = {member: inbox[member].payload for member in lengths}
    yield Outbox(send=tuple(note(name, member, _MEMBERS, 0, {"names": [*lengths]}) for member in lengths))
    yield Outbox(send=_passed_on(name, said, _MEMBER))
    if vouching.signer is not None and len(lengths) > 1:
        inbox = yield Outbox(wait=tuple(awaited_note(member, _SIGNATURE, 0) for member in lengths))
        yield Outbox(send=_passed_on(name, {member: inbox[member].payload for member in lengths}, _SIGNATURE))
    return {member: payload[NONCE_BYTES:] for member, payload in said.items()}


def _passed_on(name: str, said: Mapping[str, Tensor], kind: str) -> tuple[Message, ...]:
    return tuple(
        Message(name, member, kind, 0, payload) for member in said for other, payload in said.items() if other != member
    )


def member_roll_call(
    name: str, active: str, own: Tensor, *, subject: str, length_of: Callable[[str], int], vouching: Vouching
) -> Half:
    """Return a member's half; its result is a :class:`RollCall`.

    Its own keys are uint8, of one dimension; ``subject`` is what they are for: another exchange's are refused.
    ``length_of`` says how many bytes the keys of a member have, and ``vouching`` who takes part, and how it is known.

    Raises:
        DataError: If the active party names other members than this one's file.
        ProtocolError: If a member has not vouched for what came as its keys.
    """
    said = {name: torch.cat([torch.tensor([*secrets.token_bytes(NONCE_BYTES)], dtype=torch.uint8), own])}
    inbox = yield Outbox(
        send=(Message(name, active, _MEMBER, 0, said[name]),), wait=(awaited_note(active, _MEMBERS, 0),)
    )
    others = [other for other in _names(inbox[active], name, active, vouching.members) if other != name]
    for other in others:
        size = NONCE_BYTES + length_of(other)
        inbox = yield Outbox(wait=(Expected(active, _MEMBER, 0, (torch.uint8,), (size,)),))
        said[other] = inbox[active].payload
    session = _session(subject, active, said)
    if vouching.signer is not None and others:
        own_signature = note(name, active, _SIGNATURE, 0, vouching.signer.sign(_statement(session, name)))
        yield Outbox(send=(own_signature,))
        for other in others:
            inbox = yield Outbox(wait=(awaited_note(active, _SIGNATURE, 0),))
            vouching.signer.check(other, _statement(session, other), read_note(inbox[active]))
    return RollCall(session, {other: said[other][NONCE_BYTES:] for other in others})


def _names(message: Message, name: str, active: str, known: Collection[str] | None) -> list[str]:
    names = read_note(message).get("names")
    if not isinstance(names, list) or not 1 <= len(names) <= _MOST_MEMBERS:
        raise ProtocolError(f"expected {active} to name 1 to {_MOST_MEMBERS} members, got {shown(names)}")
    if not all(isinstance(one, str) for one in names) or len({*names}) < len(names) or name not in names:
        raise ProtocolError(f"expected {active} to name {name} and others, each once, got {shown(names)}")
    if known is not None and {*names} != {*known}:
        missing, more = sorted({*known} - {*names}), sorted({*names} - {*known})
        parts = [
            *([f"{', '.join(missing)}, named there, not among them"] if missing else []),
            *([f"{shown(', '.join(more))} among them, not named there"] if more else []),
        ]
        raise DataError(
            f"{active} passes on keys between other parties than the file of {name} names: {'; '.join(parts)}. Under "
            f"this exchange every party's file names all of them: in the file of {name}, write "
            f"`NAME: {{role: passive}}` under `parties` for each that takes part (with `identity`, if its certificate "
            f"has another name), and take out those that do not. If you expected others, ask {active} first: with "
            "fewer parties each is hidden among fewer"
        )
    return names


def _session(subject: str, active: str, said: Mapping[str, Tensor]) -> bytes:
    parts = [b"splitvfl roll call", subject.encode(), active.encode()]
    for name in sorted(said):
        parts += [name.encode(), bytes(said[name].tolist())]
    return hashlib.sha256(b"".join(map(framed, parts))).digest()


def _statement(session: bytes, name: str) -> bytes:
    return session + name.encode()
