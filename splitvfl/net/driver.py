"""Drive one party's half of a conversation over links to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

from splitvfl.errors import LinkError, ProtocolError
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.messages import Message


class Correspondent(Protocol):
    """The part of a :class:`~splitvfl.net.link.Link` that the driver needs."""

    def send(self, message: Message, *, timeout: float) -> None:
        """Hand a message over for sending."""
        ...

    def receive(self, expected: Expected, *, timeout: float) -> Message:
        """Return the message that is awaited."""
        ...

    def announce(self, expected: Expected) -> None:
        """Take in a message before it is awaited."""
        ...


def drive(
    half: Half,
    *,
    party: str,
    links: Mapping[str, Correspondent],
    turn: AbstractContextManager[Any] | None = None,
    timeout: float,
    patience: float | None = None,
) -> Any:
    """Run a half to its end and return its result.

    What :func:`~splitvfl.messaging.conversation.converse` does for all halves in one process, this does for one.
    Messages leave while the half goes on, so that two parties may send each other large ones at once.

    Args:
        half: This party's half; it is closed whatever happens.
        party: The party's name.
        links: By name, the parties that it talks to.
        turn: Entered while the half acts, not while it waits: the party's random state, say.
        timeout: Seconds to wait at most for a message to begin, for the rest of it, and for room to send one.
        patience: As many for the first messages that are awaited: who sends them may have to wait for others.
            Default: as for all.

    Raises:
        LinkError: If a party cannot be reached any more, or kept silent; the half is told first, and may go on
            without it.
        ProtocolError: If a party sends what is not awaited, or the half sends in another's name or to nobody.
    """
    turn = nullcontext() if turn is None else turn
    limit = timeout if patience is None else patience
    resume: Callable[[], Outbox] = partial(next, half)
    try:
        while True:
            try:
                with turn:
                    outbox = resume()
            except StopIteration as stop:
                return stop.value
            if outbox.until is not None and not outbox.until():
                raise ProtocolError(f"{party} waits for a party of this process, and there is none")
            try:
                for message in outbox.send:
                    if message.sender != party:
                        raise ProtocolError(f"{party} sent {message.kind} in the name of {message.sender}")
                    _link(links, message.receiver, party).send(message, timeout=timeout)
                for one in outbox.ahead:
                    _link(links, one.sender, party).announce(one)
                inbox = {one.sender: _link(links, one.sender, party).receive(one, timeout=limit) for one in outbox.wait}
            except LinkError as error:
                resume = partial(half.throw, error)
            else:
                resume = partial(half.send, inbox)
            limit = timeout if outbox.wait else limit
    finally:
        half.close()


def _link(links: Mapping[str, Correspondent], name: str, party: str) -> Correspondent:
    if name not in links:
        raise ProtocolError(f"{party} talks to {', '.join(links) or 'nobody'}, and has no link with {name}")
    return links[name]
