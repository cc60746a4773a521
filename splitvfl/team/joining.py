"""How the workers of a party find each other: however late one comes, and whatever others were there before.

A launcher that starts each process again by itself, as Kubernetes does, brings a worker back while others have not
noticed yet that it was gone. Joined by what these have left in their store, it would wait for processes that are about
to end. So worker 0 calls the roll, again and again, and who is there answers each call: together are those who answered
the same one, every number once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

# They are documented there, and not marked as exported.
from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from splitvfl.errors import ConfigError, TeamError

JOIN_S: Final = 30.0
"""How long those who have answered one call may take to connect with each other, in seconds."""

VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# How long answers to one call are waited for, how often they are looked for, and when it is said who is missing.
_CALL_S, _LOOK_S, _TELL_S = 5.0, 0.05, 10.0
_REACH_S: Final = 5.0
_CALLS: Final = "splitvfl calls"


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher tells one of several processes.

    Attributes:
        rank: Number of this process, from 0.
        size: How many were started.
        host: Where worker 0 is found by the others.
        port: The port on which they find it.
        keeps_store: Whether the launcher itself listens there, as ``torchrun`` does; worker 0 otherwise.
    """

    rank: int
    size: int
    host: str
    port: int
    keeps_store: bool = False

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Launch:
        """Return what the variables say.

        Raises:
            ConfigError: If one is missing, or none that can be.
        """
        size = _number(environment, "WORLD_SIZE", least=1, most=1 << 20)
        if not environment.get("MASTER_ADDR"):
            raise ConfigError("MASTER_ADDR is empty: expected the address of worker 0, by which the others find it")
        return cls(
            rank=_number(environment, "RANK", least=0, most=size - 1),
            size=size,
            host=environment["MASTER_ADDR"],
            port=_number(environment, "MASTER_PORT", least=1, most=65535),
            keeps_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @property
    def place(self) -> str:
        """Where they meet, ``host:port``."""
        return f"{self.host}:{self.port}"


def _number(environment: Mapping[str, str], name: str, *, least: int, most: int) -> int:
    text = environment.get(name, "")
    if not (text.isdecimal() and least <= int(text) <= most):
        raise ConfigError(
            f"{name} is {text!r}, expected a whole number from {least} to {most}: what starts the workers sets it "
            "(torchrun, or the manifest, where RANK is the pod's number)"
        )
    return int(text)


def meet(launch: Launch, *, party: str, wait_s: float, notify: Callable[[str], None]) -> Store:
    """Return a store of those who are here now: every number once, and nobody who was here before.

    Args:
        launch: What the launcher said.
        party: The party's name, for errors.
        wait_s: Seconds to wait for all of them.
        notify: Told in one line who is waited for, if that takes long.

    Raises:
        TeamError: If they do not come in time, or one was started twice.
    """
    deadline = time.monotonic() + wait_s
    if launch.rank == 0:
        return _Roll(launch, party, deadline, notify).call()
    return _answer(launch, party, deadline, notify)


class _Roll:
    """The calls of worker 0."""

    def __init__(self, launch: Launch, party: str, deadline: float, notify: Callable[[str], None]) -> None:
        self._launch, self._party, self._deadline, self._notify = launch, party, deadline, notify
        self._store = _store(launch)
        self._told = ""

    def call(self) -> Store:
        """Call until everybody has answered once."""
        begun = time.monotonic()
        while True:
            number = self._store.add(_CALLS, 1)
            answers = self._answers(number)
            if set(answers.values()) <= {1}:
                self._store.add(f"splitvfl {number}/go", 1)
                return PrefixStore(f"splitvfl {number}", self._store)
            said = self._who_is_not_there(answers)
            if time.monotonic() > self._deadline:
                raise TeamError(f"{said} within {time.monotonic() - begun:.0f} s", final=True)
            if time.monotonic() > begun + _TELL_S and said != self._told:
                self._told = said
                self._notify(f"{said}; still waiting")

    def _answers(self, number: int) -> dict[int, int]:
        """Return how often each other worker has answered a call, when each has, or after a while."""
        until = time.monotonic() + _CALL_S  # the last one too: whoever is there is not to be called missing
        while True:
            found = {rank: self._store.add(f"splitvfl {number}/{rank}", 0) for rank in range(1, self._launch.size)}
            if 0 not in found.values() or time.monotonic() > until:
                return found
            time.sleep(_LOOK_S)

    def _who_is_not_there(self, answers: Mapping[int, int]) -> str:
        missing = ", ".join(str(rank) for rank, count in answers.items() if not count)
        twice = ", ".join(str(rank) for rank, count in answers.items() if count > 1)
        said = [
            *([f"worker {missing} of {self._party} did not come to {self._launch.place}"] if missing else []),
            *([f"more than one process says that it is worker {twice} of {self._party}"] if twice else []),
        ]
        return ", and ".join(said)


def _answer(launch: Launch, party: str, deadline: float, notify: Callable[[str], None]) -> Store:
    """Answer the calls of worker 0, until everybody has answered the same one."""
    begun, told = time.monotonic(), False
    while True:
        try:
            if _is_reachable(launch):
                store = _store(launch)
                number = _answered(store, launch.rank, deadline)
                if number is None:
                    raise TeamError(
                        f"not all workers of {party} came to {launch.place} within {time.monotonic() - begun:.0f} s; "
                        "worker 0 says who did not",
                        final=True,
                    )
                return PrefixStore(f"splitvfl {number}", store)
        except DistError:  # whoever listened there has ended: it was about to when this worker came
            pass
        if time.monotonic() > deadline:
            raise TeamError(
                f"worker {launch.rank} of {party} cannot reach worker 0, which all others meet, at {launch.place} "
                f"within {time.monotonic() - begun:.0f} s: it was not started, or is not found there (MASTER_ADDR, "
                "MASTER_PORT), or the network does not let this worker through",
                final=True,
            )
        if time.monotonic() > begun + _TELL_S and not told:
            told = True
            notify(f"worker 0 of {party} cannot be reached at {launch.place}; still waiting")
        time.sleep(_LOOK_S)


def _answered(store: Store, rank: int, deadline: float) -> int | None:
    """Answer every call; return the number of the one that everybody has answered, or nothing at the deadline."""
    last, mine = 0, False
    while time.monotonic() < deadline:
        number = store.add(_CALLS, 0)
        if number > last:
            # If another process has answered in this number, it was there before, or this is one too many.
            last, mine = number, store.add(f"splitvfl {number}/{rank}", 1) == 1
        if mine and store.add(f"splitvfl {number}/go", 0):
            return number
        time.sleep(_LOOK_S)
    return None


def _is_reachable(launch: Launch) -> bool:
    """Return whether anybody listens where they meet: asked of torch, that takes longer, and fills the screen."""
    try:
        socket.create_connection((launch.host, launch.port), timeout=_REACH_S).close()
    except OSError:
        return False
    return True


def _store(launch: Launch) -> Store:
    listens = launch.rank == 0 and not launch.keeps_store
    return TCPStore(
        # Worker 0 finds itself, whether or not its name is known to anybody yet.
        "localhost" if listens else launch.host,
        launch.port,
        launch.size,
        is_master=listens,
        timeout=timedelta(seconds=JOIN_S),
        wait_for_workers=False,
    )
