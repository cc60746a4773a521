"""A conversation: each party's half is a generator, and a driver moves the messages.

A half yields an :class:`Outbox`, the messages that it sends and the names of the parties it now waits for, and is
resumed with one message from each of them: ``inbox = yield Outbox(...)``. Sends leave first; an outbox that waits for
nobody resumes at once. What the half returns is its party's result.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from splitvfl.errors import ProtocolError
from splitvfl.messages import Message


@dataclass(frozen=True, slots=True)
class Outbox:
    """What a half hands to its driver.

    Attributes:
        send: Messages to deliver, first.
        wait: Names of the parties from which one message each is awaited.
    """

    send: tuple[Message, ...] = ()
    wait: tuple[str, ...] = ()


Inbox = Mapping[str, Message]
Half = Generator[Outbox, Inbox, Any]
Recorder = Callable[[Message], None]


@dataclass
class _Turn:
    half: Half
    turn: AbstractContextManager[Any]
    started: bool = False
    waits: tuple[str, ...] = ()
    letters: dict[str, deque[Message]] = field(default_factory=lambda: defaultdict(deque))

    def ready(self) -> bool:
        return all(self.letters[name] for name in self.waits)

    def resume(self) -> Outbox:
        inbox = {name: self.letters[name].popleft() for name in self.waits}
        with self.turn:
            if self.started:
                return self.half.send(inbox)
            self.started = True
            return next(self.half)


def converse(
    halves: Mapping[str, Half],
    *,
    turns: Mapping[str, AbstractContextManager[Any]] | None = None,
    record: Recorder | None = None,
) -> dict[str, Any]:
    """Drive all halves of a conversation in this process and return each party's result.

    Messages pass by reference.

    Args:
        halves: One generator per party.
        turns: Entered while the party of that name acts: its random state, say.
        record: Called with every message, in the order of sending.

    Raises:
        ProtocolError: If no half can go on (it says who waits for whom), a message goes to nobody, names another
            sender, or is never read. Any half that raises closes the others, and its error is the one that comes out.
    """
    running = {name: _Turn(half, (turns or {}).get(name, nullcontext())) for name, half in halves.items()}
    results: dict[str, Any] = {}
    try:
        while running:
            able = [name for name, party in running.items() if party.ready()]
            if not able:
                raise ProtocolError(_deadlock(running))
            for name in able:
                _advance(name, running, results, record)
    finally:
        for half in halves.values():
            half.close()
    return results


def _advance(name: str, running: dict[str, _Turn], results: dict[str, Any], record: Recorder | None) -> None:
    party = running[name]
    try:
        outbox = party.resume()
    except StopIteration as stop:
        results[name] = stop.value
        unread = [message.kind for letters in party.letters.values() for message in letters]
        if unread:
            raise ProtocolError(f"{name} ended without reading {', '.join(unread)}") from None
        del running[name]
        return
    for message in outbox.send:
        _deliver(message, name, running, record)
    party.waits = outbox.wait


def _deliver(message: Message, sender: str, running: dict[str, _Turn], record: Recorder | None) -> None:
    if message.sender != sender:
        raise ProtocolError(f"{sender} sent {message.kind} in the name of {message.sender}")
    if message.receiver not in running:
        raise ProtocolError(f"{sender} sent {message.kind} to {message.receiver}, who takes no part (any more)")
    if record is not None:
        record(message)
    running[message.receiver].letters[sender].append(message)


def _deadlock(running: Mapping[str, _Turn]) -> str:
    waits = (
        f"{name} waits for {', '.join(other for other in party.waits if not party.letters[other])}"
        for name, party in running.items()
    )
    return f"nobody can go on: {'; '.join(waits)}"


def expect(inbox: Inbox, sender: str, kind: str, step: int) -> Message:
    """Return the message from ``sender`` after checking that it is the one that belongs here.

    Raises:
        ProtocolError: If its kind, step or sender differs.
    """
    message = inbox[sender]
    if (message.sender, message.kind, message.step) != (sender, kind, step):
        raise ProtocolError(
            f"expected {kind} of step {step} from {sender}, "
            f"got {message.kind} of step {message.step} from {message.sender}"
        )
    return message
