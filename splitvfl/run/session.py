"""Meeting the partners, and meeting them again when a link breaks, until everything has been said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from splitvfl.errors import LinkError, ProtocolError
from splitvfl.net.driver import Correspondent


class MeetingPlace(Protocol):
    """Where the parties find each other, again and again: a :class:`~splitvfl.net.meeting.Meeting`, say."""

    def meet(self) -> AbstractContextManager[Mapping[str, Correspondent]]:
        """Return links to all partners, which are closed when the block is left."""
        ...


def meet_until_done(
    place: MeetingPlace,
    talk: Callable[[Mapping[str, Correspondent]], object],
    *,
    retries: int,
    reached: Callable[[], int] = lambda: 0,
    notify: Callable[[str], None],
    then: str,
) -> None:
    """Meet the partners and talk to the end, however often links break.

    A break is a lost link, or a message that does not belong there. One that would be the same another time is final.

    Args:
        place: Where they meet.
        talk: What is said at one meeting, from the beginning to the end.
        retries: How often in a row they meet again without getting any further.
        reached: How far they have got; a higher number than at the last break starts the count of retries anew.
        notify: Told in one line what broke.
        then: What it is told besides: how it goes on.

    Raises:
        LinkError: If a partner does not appear in time, or links keep breaking.
        ProtocolError: If a partner keeps sending what does not belong there.
    """
    failures, furthest = 0, -1
    while (broken := _break(place, talk)) is not None:
        failures = failures + 1 if reached() <= furthest else 1
        furthest = max(furthest, reached())
        if getattr(broken, "final", False) or failures > retries:
            raise broken
        notify(f"{broken}; {then}")


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
