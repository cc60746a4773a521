"""One party's session with its partners: where they meet, how long it waits, and meeting again when a link breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from splitvfl.errors import LinkError, ProtocolError
from splitvfl.messaging.conversation import Half
from splitvfl.net.driver import Correspondent, drive


class MeetingPlace(Protocol):
    """Where the parties find each other, again and again: a :class:`~splitvfl.net.meeting.Meeting`, say."""

    def meet(self) -> AbstractContextManager[Mapping[str, Correspondent]]:
        """Return links to all partners, which are closed when the block is left."""
        ...


Place_co = TypeVar("Place_co", bound=MeetingPlace, covariant=True)
_Place = TypeVar("_Place", bound=MeetingPlace)


def _silent(line: str) -> None: ...


@dataclass(frozen=True)
class Session(Generic[Place_co]):
    """What one party's part in a conversation over links has in common with any other, whatever they talk about.

    Attributes:
        party: The party's name.
        place: Where it meets the others.
        message_s: Seconds that a message may take.
        meeting_s: Seconds that the label party may wait for everybody, before it says anything.
        retries: How often in a row they meet again without getting any further.
        notify: Told in one line what happens, for a person.
    """

    party: str
    place: Place_co
    message_s: float = 300.0
    meeting_s: float = 600.0
    retries: int = 3
    notify: Callable[[str], None] = _silent

    @property
    def first_s(self) -> float:
        """Seconds to wait for the first message of a party that waits for others before it says anything."""
        return max(self.meeting_s, self.message_s)

    def at(self, place: _Place) -> Session[_Place]:
        """Return the same session with another place to meet."""
        return Session(self.party, place, self.message_s, self.meeting_s, self.retries, self.notify)

    def drive(
        self,
        half: Half,
        links: Mapping[str, Correspondent],
        *,
        first_s: float | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ) -> Any:
        """Run the party's half of a conversation over links, and return its result.

        Args:
            half: The half.
            links: Links to its partners.
            first_s: Seconds to wait for the first message; ``None``: as for every other.
            turn: Entered while it computes, as by :func:`splitvfl.net.driver.drive`.

        Raises:
            LinkError: If a partner is gone, or too slow.
            ProtocolError: If one sends what does not belong there.
        """
        return drive(half, party=self.party, links=links, turn=turn, timeout=self.message_s, patience=first_s)

    def meet_until_done(
        self,
        talk: Callable[[Mapping[str, Correspondent]], object],
        *,
        reached: Callable[[], int] = lambda: 0,
        then: str,
    ) -> None:
        """Meet the partners and talk to the end, however often links break.

        A break is a lost link, or a message that does not belong there. One that would be the same another time is
        final.

        Args:
            talk: What is said at one meeting, from the beginning to the end.
            reached: How far they have got; a higher number than at the last break starts the count of retries anew.
            then: What is told of a break besides what broke: how it goes on.

        Raises:
            LinkError: If a partner does not appear in time, or links keep breaking.
            ProtocolError: If a partner keeps sending what does not belong there.
        """
        failures, furthest = 0, -1
        while (broken := _break(self.place, talk)) is not None:
            failures = failures + 1 if reached() <= furthest else 1
            furthest = max(furthest, reached())
            if getattr(broken, "final", False) or failures > self.retries:
                raise broken
            self.notify(f"{broken}; {then}")


def _break(
    place: MeetingPlace, talk: Callable[[Mapping[str, Correspondent]], object]
) -> LinkError | ProtocolError | None:
    """Meet and talk to the end; return what broke, if anything did once they had met."""
    met = False
    try:
        with place.meet() as links:
            met = True
            talk(links)
    except (LinkError, ProtocolError) as error:
        if not met:
            raise
        return error
    return None
