"""A conversation: each party's half is a generator, and a driver moves the messages.

A half yields an :class:`Outbox`, the messages that it sends and what it now waits for, and is resumed with these
messages by sender: ``inbox = yield Outbox(...)``. Sends leave first; an outbox that waits for nothing resumes at once.
What the half returns is its party's result.

What is awaited is described in full (:class:`Expected`), so that a driver refuses everything else before it takes
memory for it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from splitvfl.errors import ProtocolError
from splitvfl.messaging.messages import Message

Size = int | range


@dataclass(frozen=True, slots=True)
class Expected:
    """The one message of a party that belongs here.

    Attributes:
        sender: The party's name.
        kind: What it is, as in :class:`~splitvfl.messaging.messages.Message`.
        step: Number of the conversation.
        dtypes: Dtypes that it may have.
        shape: Each size of it: a number, or a ``range`` of which any will do.
    """

    sender: str
    kind: str
    step: int
    dtypes: tuple[torch.dtype, ...]
    shape: tuple[Size, ...]

    def check(self, *, sender: str, kind: str, step: int, dtype: torch.dtype, shape: Sequence[int]) -> None:
        """Compare with what is said of a message that arrives; its values are not looked at.

        Raises:
            ProtocolError: If anything differs.
        """
        if (sender, kind, step) != (self.sender, self.kind, self.step):
            raise ProtocolError(
                f"expected {self.kind} of step {self.step} from {self.sender}, "
                f"got {_plain(kind)} of step {step} from {_plain(sender)}"
            )
        fits = len(shape) == len(self.shape) and all(map(_fits, shape, self.shape))
        if not fits or dtype not in self.dtypes:
            sizes = " x ".join(map(_size_in_words, self.shape)) or "a single number"
            dtypes = " or ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
            raise ProtocolError(
                f"expected {kind} of step {step} from {sender} to be {sizes} in {dtypes}, "
                f"got {' x '.join(map(str, shape)) or 'a single number'} in {str(dtype).removeprefix('torch.')}"
            )


def _plain(text: str) -> str:
    return text if text.isprintable() else ascii(text)


def _fits(size: int, expected: Size) -> bool:
    return size in expected if isinstance(expected, range) else size == expected


def _size_in_words(size: Size) -> str:
    return f"{size.start} to {size.stop - 1}" if isinstance(size, range) else str(size)


@dataclass(frozen=True, slots=True)
class Outbox:
    """A half's order to its driver: messages to send, and messages to wait for.

    Attributes:
        send: Messages to deliver, first.
        wait: What is awaited, one message a party.
        until: What must hold besides, brought about by other halves in the same process; a driver that has one half
            only refuses what does not hold yet. ``None``: nothing.
        ahead: What will be awaited later, in the order in which each sender sends it: a driver may take it in while
            the half computes, and takes memory for nothing that is not named here or awaited.
    """

    send: tuple[Message, ...] = ()
    wait: tuple[Expected, ...] = ()
    until: Callable[[], bool] | None = None
    ahead: tuple[Expected, ...] = ()


Inbox = Mapping[str, Message]
Half = Generator[Outbox, Inbox, Any]
Recorder = Callable[[Message], None]


@dataclass
class _Turn:
    half: Half
    turn: AbstractContextManager[Any]
    started: bool = False
    waits: tuple[Expected, ...] = ()
    until: Callable[[], bool] | None = None
    letters: dict[str, deque[Message]] = field(default_factory=lambda: defaultdict(deque))

    def ready(self) -> bool:
        return all(self.letters[expected.sender] for expected in self.waits) and (self.until is None or self.until())

    def resume(self) -> Outbox:
        inbox = {expected.sender: admit(self.letters[expected.sender].popleft(), expected) for expected in self.waits}
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
        ProtocolError: If no half can go on (it says who waits for whom), a message is not the one awaited, goes to
            nobody, names another sender, or is never read. Any half that raises closes the others, and its error is the
            one that comes out.
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
    party.waits, party.until = outbox.wait, outbox.until


def _deliver(message: Message, sender: str, running: dict[str, _Turn], record: Recorder | None) -> None:
    if message.sender != sender:
        raise ProtocolError(f"{sender} sent {message.kind} in the name of {message.sender}")
    if message.receiver not in running:
        raise ProtocolError(f"{sender} sent {message.kind} to {message.receiver}, who takes no part (any more)")
    if record is not None:
        record(message)
    running[message.receiver].letters[sender].append(message)


def _deadlock(running: Mapping[str, _Turn]) -> str:
    missing = {
        name: ", ".join(awaited.sender for awaited in party.waits if not party.letters[awaited.sender])
        for name, party in running.items()
    }
    waits = (f"{name} waits for {others or 'all to come as far'}" for name, others in missing.items())
    return f"nobody can go on: {'; '.join(waits)}"


def admit(message: Message, expected: Expected) -> Message:
    """Return a message after checking that it is the one that belongs here.

    Raises:
        ProtocolError: If it is another, or has another form.
    """
    payload = message.payload
    expected.check(
        sender=message.sender, kind=message.kind, step=message.step, dtype=payload.dtype, shape=payload.shape
    )
    return message
