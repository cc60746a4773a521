"""What the workers of a party tell each other around the steps: that they are alike, and that one cannot go on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from splitvfl.errors import ConfigError, LinkError, ProtocolError, TeamError
from splitvfl.net.driver import Correspondent
from splitvfl.net.frames import Bye
from splitvfl.net.link import DONE
from splitvfl.party.party import Party
from splitvfl.run.shared_state import collect_json
from splitvfl.system.gpu_copies import bytes_of
from splitvfl.system.signals import Interrupted
from splitvfl.team.divided import divided_weights, replicated_state, sharded_tables
from splitvfl.team.team import Team


@contextmanager
def telling(team: Team) -> Iterator[None]:
    """Tell the other workers of what ends this block, in the place of the operation that they wait in: they end too.

    Raises:
        BaseException: What ended the block.
    """
    try:
        yield
    except BaseException as error:
        _tell(team, error, once_more=False)
        raise


def _tell(team: Team, error: BaseException, *, once_more: bool) -> bool:
    """Tell the other workers that this one cannot go on, and return whether that is to be followed by a new meeting.

    Args:
        team: The workers.
        error: Why.
        once_more: Whether a lost link, or a message that does not belong there, is no end: all meet again then.
    """
    passing = isinstance(error, LinkError | ProtocolError) and not getattr(error, "final", False)
    if not isinstance(error, Interrupted | TeamError):  # which all workers raise together
        team.refuse(str(error) or "it was stopped", final=not (passing and once_more))
    return passing and once_more


class LiveLink(Correspondent, Protocol):
    """The part of a :class:`~splitvfl.net.link.Link` by which a worker hears of its end, and of others of its team."""

    while_waiting: Callable[[], None]

    @property
    def ended(self) -> Bye | str | None:
        """The reason why nothing more will arrive; ``None`` as long as something may."""
        ...


class LivePlace(Protocol):
    """Where a worker meets its partners: a :class:`~splitvfl.net.meeting.Meeting`, say."""

    def meet(self) -> AbstractContextManager[Mapping[str, LiveLink]]:
        """Return links to all partners, which are closed when the block is left."""
        ...


class TeamMeeting:
    """Where the workers of a party meet their partners: all of them, before any says a word.

    A worker whose link breaks while others still wait for theirs meets its partner again, and no other link is given
    up for that. Later, where one gives up its links, all do: the links first, so that partners know, and then they tell
    each other. So no worker waits for one that is still meeting, and nobody drops a link that is new. One that waits
    for its partner looks meanwhile whether another one has lost its link: its partner may be waiting for that one's.

    Args:
        place: Where this worker meets its partners.
        team: The workers.
    """

    def __init__(self, place: LivePlace, team: Team) -> None:
        self._place, self._team = place, team

    @contextmanager
    def meet(self) -> Iterator[Mapping[str, Correspondent]]:
        """Make links to all partners, for the length of a block, when all workers have theirs.

        Raises:
            LinkError: If a partner does not appear in time, or a worker cannot go on.
            ProtocolError: If whoever answers in a partner's place is not that partner.
        """
        met = self._team.size == 1
        while True:
            try:
                with self._place.meet() as links:
                    while not met and _alive(links):
                        met = self._all_linked(links)
                    if not met:
                        raise _Broken("a link broke before all workers had theirs")
                    with self._watched(links):
                        yield links
                return
            except _Broken:
                continue
            except BaseException as error:
                why = self._team.lost  # a link may have broken because the workers had parted
                ends = not _tell(self._team, error, once_more=met)
                passing = isinstance(error, LinkError | ProtocolError) and not isinstance(error, TeamError)
                if self._team.lost and passing:
                    raise TeamError(why or (str(error) if ends else self._team.lost), final=True) from error
                raise

    @contextmanager
    def _watched(self, links: Mapping[str, LiveLink]) -> Iterator[None]:
        """Let workers that wait for a partner, or for each other, hear of a link that is lost."""
        for link in links.values():
            link.while_waiting = self._give_up_with_others
        self._team.link_lost = lambda: not _alive(links)
        try:
            yield
        finally:
            self._team.link_lost = lambda: False

    def _give_up_with_others(self) -> None:
        if self._team.is_refusing():
            raise LinkError("another worker of this party lost its link, or cannot go on")

    def _all_linked(self, links: Mapping[str, LiveLink]) -> bool:
        """Wait until all workers have links, and return whether all still have them then."""
        self._team.collect(b"")
        return b"" not in self._team.collect(b"alive" if _alive(links) else b"")


class _Broken(LinkError):
    """This worker's link broke before there was anything to say on it; the others keep theirs, and wait."""


def _alive(links: Mapping[str, LiveLink]) -> bool:
    """Return whether nothing has ended too early."""
    ends = [link.ended for link in links.values()]
    return all(end is None or (isinstance(end, Bye) and end.reason == DONE) for end in ends)


def check_workers_alike(team: Team, party: str, terms: Mapping[str, str]) -> None:
    """Check that all workers of a party have the same settings.

    Raises:
        ConfigError: If one has others; it says which differ from those of worker 0.
    """
    if team.size == 1:
        return
    theirs: list[dict[str, str]] = collect_json(team, dict(terms))
    for rank, other in enumerate(theirs):
        differing = [key for key in sorted({*other, *theirs[0]}) if other.get(key) != theirs[0].get(key)]
        if differing:
            lines = "; ".join(f"{key}: {theirs[0].get(key)} and {other.get(key)}" for key in differing)
            raise ConfigError(
                f"workers 0 and {rank} of {party} do not have the same: {lines}; give all of them one file, the same "
                "data and one version"
            )


def check_replicas(team: Team, party: Party) -> None:
    """Check that all workers hold the same weights and buffers, to the bit, and each its part of the same others.

    Raises:
        ConfigError: If one does not.
    """
    if team.size == 1:
        return
    digest = hashlib.sha256()
    for model in party.models:
        for name, state in replicated_state(model).items():
            digest.update(f"{name} {state.dtype} {tuple(state.shape)}\n".encode())
            digest.update(bytes_of(state.detach().cpu()))
        for name, table in sharded_tables(model).items():
            digest.update(f"{name} {table.rows.dtype} {table.count} by {table.rows.shape[1]}, divided\n".encode())
        for name, weight in divided_weights(model).items():
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}, divided\n".encode())
    said = team.collect(digest.digest())
    others = [rank for rank, one in enumerate(said) if one != said[0]]
    if others:
        raise ConfigError(
            f"the weights of worker {', '.join(map(str, others))} of {party.name} are not those of worker 0. Either a "
            "folder is of another run, or was changed; or a machine computes otherwise than another one (processor, "
            "GPU); or a layer keeps something of the records that pass, of which each worker has others. Take machines "
            "of one kind, or a layer that keeps nothing, and start all parties anew with --overwrite"
        )
