"""Runs in processes that something happens to: how they are started, ordered about, waited for and started again."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

import torch

from scripts.bench.faulty import COUNTS
from scripts.bench.relay import Relay
from splitvfl.net.certs import make_certificates
from splitvfl.run import checkpoint
from splitvfl.run.shared_state import whole_party

ROOT: Final = Path(__file__).resolve().parents[2]
# No wait is longer: who gets no further within this time hangs.
LIMIT_S: Final = 180.0
POLL_S: Final = 0.01


class Lost(Exception):
    """A run did not survive."""


@dataclass(frozen=True)
class Pace:
    """How long things take, in seconds.

    Attributes:
        message_s: What the parties grant a message.
        long_s: A disturbance that is longer than that.
        short_s: One that is shorter.
        start_s: About what a party takes to start.
        meeting_s: How long parties wait for each other: more than several starts take.
    """

    message_s: float = 6.0
    long_s: float = 9.0
    short_s: float = 1.0
    start_s: float = 4.0
    meeting_s: float = 60.0


@dataclass
class Ended:
    """A process that ended.

    Attributes:
        party: Whose it was; of a worker, which.
        code: Its exit code.
        said: The end of what it wrote.
    """

    party: str
    code: int
    said: str


class Process(Protocol):
    """A party's process, as :class:`subprocess.Popen` and :class:`multiprocessing.Process` both can be seen."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    def code(self) -> int | None:
        """Return its exit code, negative for a signal; ``None`` while it runs."""
        ...

    def words(self) -> str:
        """Return the end of what it wrote; asked once it has ended."""
        ...


class Launch(Protocol):
    """Starts a process."""

    def __call__(self, folder: Path, arguments: Sequence[str], **variables: str) -> Process:
        """Start ``splitvfl`` in a folder, with these variables of the environment besides."""
        ...


class Command:
    """A process of its own, started as a person starts it.

    Args:
        folder: Where it runs, and where it looks for orders.
        arguments: Those of ``splitvfl``.
        variables: Of the environment, besides those that a process needs.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], **variables: str) -> None:
        environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PATH": "/usr/bin:/bin"}
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "scripts.bench.faulty", str(folder), *arguments],
            cwd=folder,
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._said: deque[str] = deque(maxlen=12)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as lines:
            self._said.extend(lines)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._popen.pid

    def code(self) -> int | None:
        """Return its exit code, negative for a signal; ``None`` while it runs."""
        return self._popen.poll()

    def words(self) -> str:
        """Return the end of what it wrote."""
        self._reader.join(5)
        return "".join(self._said)


class Disturbed(ABC):
    """Processes that do one thing together, each in a folder of its own. A context manager: none outlives it.

    Args:
        name: What they do.
        members: Their names; the first one counts the steps of all.
        folder: Where they run: each in a folder of its name.
        pace: How long things take.
        launch: Starts a process.

    Attributes:
        ended: The processes that have ended, the first one first.
        victims: To whom something happens; what happens to the network happens to all.
        struck: To whom the last thing happened.
        relays: What connections pass through, by the member that dials it.
    """

    def __init__(self, name: str, members: Sequence[str], folder: Path, *, pace: Pace, launch: Launch) -> None:
        self.name = name
        self.members, self.folder, self.pace, self.launch = tuple(members), folder, pace, launch
        self.victims, self.struck = self.members, ""
        self.ended: list[Ended] = []
        self.processes: dict[str, Process] = {}
        self.relays: dict[str, Relay] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for name in self.members:
            self.start(name)
        return self

    def __exit__(self, *error: object) -> None:
        for name, process in self.processes.items():
            self.signal(name, signal.SIGKILL)
            while process.code() is None:
                time.sleep(POLL_S)
        self._stack.close()

    def relay(self, name: str, port: int, at: int = 0) -> int:
        """Begin to pass on to a port what a member sends there, and return where it dials instead: a port, if given."""
        self.relays[name] = self._stack.enter_context(Relay(port, at))
        return self.relays[name].port

    @abstractmethod
    def start(self, name: str) -> None:
        """Start a member: the same command every time."""

    @abstractmethod
    def tend(self) -> None:
        """Take note of whoever has ended, and start again who did not end well."""

    @property
    @abstractmethod
    def done(self) -> set[str]:
        """The members that have ended well, and are not needed any more."""

    @property
    @abstractmethod
    def kinds(self) -> Kinds:
        """What can happen, and with which exit codes it may end a member."""

    def unexpected(self, kind: str, ended: Sequence[Ended]) -> list[Ended]:
        """Return those that a fault of this kind does not end, of those that have ended since."""
        return [one for one in ended if one.code and one.code not in self.kinds[kind][1]]

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what a finished run leaves behind: what must be equal to the bit."""

    @property
    def is_over(self) -> bool:
        """Whether the one that counts the steps has ended well."""
        return self.members[0] in self.done

    def steps(self, name: str | None = None) -> tuple[int, int]:
        """Return how many steps a member, the first if none is named, has done, and how many it has taken."""
        path = self.folder / (name or self.members[0]) / "steps"
        content = path.read_bytes() if path.exists() else b""
        return COUNTS.unpack(content) if len(content) == COUNTS.size else (0, 0)

    def order(self, name: str, what: str) -> None:
        """Let something go wrong inside a member, at the next opportunity."""
        beside = self.folder / name / ".order"
        beside.write_text(what)
        beside.replace(self.folder / name / "order")

    def ordered(self, name: str) -> bool:
        """Return whether that has still to happen."""
        return (self.folder / name / "order").exists()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a member a signal, if it runs."""
        if self.processes[name].code() is None:
            os.kill(self.processes[name].pid, number)

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        """Wait for something, and start again whoever dies meanwhile.

        Raises:
            Lost: If it does not happen, and no step is taken either, for so long.
        """
        taken, deadline = self.steps()[1], time.monotonic() + limit_s
        while not condition():
            self.tend()
            if self.steps()[1] != taken:
                taken, deadline = self.steps()[1], time.monotonic() + limit_s
            if time.monotonic() > deadline:
                last = "\n".join(f"{one.party} {one.code}: {one.said}" for one in self.ended[-3:])
                raise Lost(f"{what} did not happen within {limit_s:g} s; steps {self.steps()}; {last}")
            time.sleep(POLL_S)

    def finish(self) -> None:
        """Wait until all have ended well."""
        self.until(lambda: self.done == set(self.members), "the end of the run")


Fault = Callable[[Disturbed, random.Random], None]
Kinds = Mapping[str, tuple[Fault, set[int]]]


def kept_state(run: Path) -> dict[str, Any]:
    """Return what the newest checkpoint of a run of one party holds: what must be equal to the bit."""
    newest = checkpoint.latest(run / "checkpoints")
    assert newest is not None
    party = whole_party(newest)
    return {key: party[key] for key in ("module", "kept", "optimizer", "random", "epoch", "stopped")}


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    """Return where two nested states differ, tensors by their bits."""
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted({*left, *right}, key=str)
        return [
            found for key in keys for found in differences(left.get(key), right.get(key), f"{where}/{key}".strip("/"))
        ]
    if isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        return [found for pair in zip(left, right, strict=True) for found in differences(*pair, where)]
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return [] if left.dtype == right.dtype and torch.equal(left, right) else [where]
    return [] if left == right else [where]


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def free_ports(count: int) -> int:
    """Return the first of so many ports that follow each other, at which nobody listens now.

    Raises:
        OSError: If a hundred attempts find none.
    """
    for _ in range(100):
        first = free_port()
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except (OSError, OverflowError):  # one of them is taken, or would be above the last there is
                continue
            return first
    raise OSError(f"no {count} free ports follow each other on this machine")


@contextmanager
def workplace(*names: str) -> Iterator[Path]:
    """Give a folder with certificates of these parties, in ``certs``, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder) / "certs", list(names))
        yield Path(folder)
