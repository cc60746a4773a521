"""Two teams that lose links at any moment meet again, all of them, and nobody waits for ever."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

from splitvfl.errors import LinkError, TeamError
from splitvfl.run.session import Session
from splitvfl.run.teamwork import TeamMeeting
from splitvfl.team.team import Team

SIZE, STEPS = 2, 6
LIMIT_S = 20.0


class Votes:
    """What the workers of one team, threads here, say in each operation."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rounds: list[dict[int, bytes | None]] = [{}]
        self._called = -1

    def calls(self) -> bool:
        """Whether one who waits in the operation that is under way refuses, or has lost its link."""
        with self._changed:
            waits = len(self._rounds[-1]) < SIZE
            return waits and (None in self._rounds[-1].values() or self._called == len(self._rounds) - 1)

    def say(self, rank: int, content: bytes | None, lost: Callable[[], bool]) -> list[bytes | None]:
        """Say something, or (None) that this one cannot go on; return what all say."""
        deadline = time.monotonic() + LIMIT_S
        with self._changed:
            if len(self._rounds[-1]) == SIZE:
                self._rounds.append({})
            number, said = len(self._rounds) - 1, self._rounds[-1]
            assert rank not in said, f"worker {rank} is at operation {number} twice"
            said[rank] = content
            self._changed.notify_all()
            while not self._changed.wait_for(lambda: len(said) == SIZE, 0.002):
                assert time.monotonic() < deadline, f"somebody is missed in {number}"
                if lost():
                    self._called = number
        return [said[one] for one in range(SIZE)]


class Threads(Team):
    """A worker that is a thread."""

    def __init__(self, rank: int, votes: Votes) -> None:
        super().__init__()
        self.rank, self.size, self._votes = rank, SIZE, votes

    stop_asked = False

    def collect(self, content: bytes) -> list[bytes]:
        said = self._votes.say(self.rank, content, self.link_lost)
        if None in said:
            raise TeamError("another worker lost its link")
        return [one for one in said if one is not None]

    def refuse(self, reason: str, *, final: bool = False) -> None:
        assert not final, reason
        self._votes.say(self.rank, None, self.link_lost)

    def is_refusing(self) -> bool:
        return self._votes.calls()

    def add_up(self, tensors: Sequence[Tensor | None]) -> Any: ...
    def gather(self, tensor: Tensor) -> Any: ...
    def scatter(self, parts: Sequence[Tensor] | None, rows: int) -> Any: ...
    def exchange(self, rows: Tensor, counts: Sequence[int], awaited: Sequence[int] | None = None) -> Any: ...
    def share(self, tensors: Sequence[Tensor]) -> None: ...
    def divide(self, module: Any) -> Any: ...
    def jointly(self, work: Any) -> Any: ...
    def compute_on(self, device: Any) -> Any: ...


class Line:
    """Between worker i of one party and worker i of the other: one link at a time, as a listener takes them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.fresh: Link | None = None
        self.current: Link | None = None


class Link:
    def __init__(self, line: Line) -> None:
        self.line, self.ended = line, None
        self.letters: tuple[queue.Queue[int], queue.Queue[int]] = (queue.Queue(), queue.Queue())

    def end(self) -> None:
        with self.line.changed:
            self.ended = "broken"
            self.line.changed.notify_all()


class Side:
    """One end of a link."""

    def __init__(self, link: Link, here: int) -> None:
        self.link, self._here = link, here
        self.while_waiting = lambda: None

    @property
    def ended(self) -> Any:
        return self.link.ended

    def send(self, step: int) -> None:
        """What is sent before the end arrives, and after it nothing is sent: else one side could be done alone.

        Parties have a farewell for that, which these have not.
        """
        with self.link.line.changed:
            if self.link.ended:
                raise LinkError("the link broke")
            self.link.letters[1 - self._here].put(step)

    def receive(self, step: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            # Looked at before: what was sent until then has arrived, as on a link that has ended.
            ended = self.link.ended
            try:
                found = self.link.letters[self._here].get(timeout=0.002)
            except queue.Empty:
                if ended:
                    raise LinkError("the link broke") from None
                self.while_waiting()
                continue
            assert found == step
            return
        raise AssertionError("it did not come in time")


class Place:
    """Where one worker meets its partner: it dials, or takes what was dialled."""

    def __init__(self, line: Line, here: int) -> None:
        self._line, self._here = line, here

    @contextmanager
    def meet(self) -> Iterator[Mapping[str, Any]]:
        link = self._dial() if self._here else self._accept()
        try:
            yield {"partner": Side(link, self._here)}
        except BaseException:
            link.end()
            raise

    def _dial(self) -> Link:
        line = self._line
        with line.changed:
            # A listener keeps an old link that is alive, and who dials tries again.
            free = line.changed.wait_for(lambda: line.current is None or line.current.ended is not None, LIMIT_S)
            assert free, "an old link stays alive"
            line.fresh = line.current = Link(line)
            line.changed.notify_all()
            return line.current

    def _accept(self) -> Link:
        line = self._line
        with line.changed:
            there = line.changed.wait_for(lambda: line.fresh is not None and line.fresh.ended is None, LIMIT_S)
            assert there, "nobody dials"
            link, line.fresh = line.fresh, None
            assert link is not None
            return link


def _worker(team: Threads, place: Place, told: list[str], begins: Callable[[], None] = lambda: None) -> None:
    def talk(links: Mapping[str, Any]) -> None:
        begins()
        link = links["partner"]
        for step in range(STEPS):
            link.send(step)
            link.receive(step)
            team.collect(b"step")
            time.sleep(0.001)
        team.collect(b"done")

    Session("lab", TeamMeeting(place, team), retries=10**6, notify=told.append).meet_until_done(talk, then="again")


@pytest.mark.parametrize("seed", range(12))
def test_teams_that_lose_links_at_any_moment_meet_again_and_end(seed: int) -> None:
    dice = random.Random(seed)
    lines = [Line() for _ in range(SIZE)]
    told: list[str] = []
    failed: list[BaseException] = []

    def run(rank: int, votes: Votes, here: int) -> None:
        try:
            time.sleep(dice.random() * 0.02)
            _worker(Threads(rank, votes), Place(lines[rank], here), told)
        except BaseException as error:
            failed.append(error)

    parties = (Votes(), Votes())
    threads = [
        threading.Thread(target=run, args=(rank, votes, here), daemon=True)
        for here, votes in enumerate(parties)
        for rank in range(SIZE)
    ]
    for thread in threads:
        thread.start()
    for _ in range(8):
        time.sleep(dice.random() * 0.01)
        link = lines[dice.randrange(SIZE)].current
        if link is not None:
            link.end()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    assert not failed, failed
    assert not any(thread.is_alive() for thread in threads)


def test_a_link_that_breaks_when_only_one_side_has_met_stops_nobody() -> None:
    """Worker 1 of the side that has met waits for one that waits, by way of two others, for worker 1 to hear of it."""
    lines = [Line() for _ in range(SIZE)]
    talking, told, failed = threading.Event(), [], []

    class Late(Threads):
        """Worker 0 of the other side, whose link breaks before it has said that it has one."""

        broken = False

        def collect(self, content: bytes) -> list[bytes]:
            if not self.broken:
                self.broken = talking.wait(LIMIT_S)
                lines[0].current.end()
            return super().collect(content)

    def run(team: Threads, here: int) -> None:
        try:
            _worker(team, Place(lines[team.rank], here), told, talking.set if here == 0 else lambda: None)
        except BaseException as error:
            failed.append(error)

    here, there = Votes(), Votes()
    teams = [(Threads(0, here), 0), (Threads(1, here), 0), (Late(0, there), 1), (Threads(1, there), 1)]
    threads = [threading.Thread(target=run, args=who, daemon=True) for who in teams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    assert not failed, failed
    assert not any(thread.is_alive() for thread in threads)
    assert sum("another worker of this party" in line for line in told) == 1


class Ending(Threads):
    """A worker whose fellows end with it."""

    gone = ""

    def __init__(self) -> None:
        super().__init__(0, Votes())

    @property
    def lost(self) -> str:
        return self.gone

    def refuse(self, reason: str, *, final: bool = False) -> None:
        assert (reason, final) == ("lab did not dial", True)
        self.gone = "worker 0 has ended"


def test_a_worker_whose_partner_does_not_appear_says_so() -> None:
    """And not only that it has ended, which is what the others hear."""

    class Nobody:
        @contextmanager
        def meet(self) -> Iterator[Any]:
            raise LinkError("lab did not dial")
            yield

    with pytest.raises(TeamError, match=r"^lab did not dial$") as raised, TeamMeeting(Nobody(), Ending()).meet():
        pass
    assert raised.value.final
