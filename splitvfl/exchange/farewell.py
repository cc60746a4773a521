"""The last words of a meeting: everybody has done everything, so nobody is waited for any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from splitvfl.errors import ProtocolError
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.json_message import awaited_note, note, read_note
from splitvfl.messaging.messages import Message

KIND = "farewell"


def farewell(name: str, others: Sequence[str], step: int) -> Half:
    """Return one party's half; it ends when all others have ended at the same step.

    Raises:
        ProtocolError: If another party ended at another step.
    """
    inbox = yield Outbox(send=_said(name, others, step), wait=_awaited(others, step))
    _check(inbox, name, others, step)


def active_farewell(name: str, passives: Sequence[str], step: int, heard: Callable[[], None]) -> Half:
    """Return the active party's half, where the others take the half above: it has the last word.

    No passive party ends before all of them, and the active one, have said or noted that they are done: until then one
    of them may have to go back, and needs the others.

    Args:
        name: The active party.
        passives: The others.
        step: Number of steps done.
        heard: Called when all others have taken their leave, before this party does.

    Raises:
        ProtocolError: If another party ended at another step.
    """
    inbox = yield Outbox(wait=_awaited(passives, step))
    _check(inbox, name, passives, step)
    heard()
    yield Outbox(send=_said(name, passives, step))


def _said(name: str, others: Sequence[str], step: int) -> tuple[Message, ...]:
    return tuple(note(name, other, KIND, step, {"steps": step}) for other in others)


def _awaited(others: Sequence[str], step: int) -> tuple[Expected, ...]:
    return tuple(awaited_note(other, KIND, step) for other in others)


def _check(inbox: Mapping[str, Message], name: str, others: Sequence[str], step: int) -> None:
    for other in others:
        if read_note(inbox[other]) != {"steps": step}:
            raise ProtocolError(f"{name} ended after {step} steps, and {other} did not")
