"""What more workers gain on one machine: one pair of workers on one core beside several pairs on as many cores.

A pair is worker i of the passive party and worker i of the active one, both on core i with one thread each, over mutual
TLS on loopback; so nothing is gained but by more cores. Every number of pairs takes steps of the same total batch, of
which each pair has its part. The share of what so many cores could gain is T1 / (W T_W), 1 at best. The dense model
has a bottom of four layers of 128 over 325 numbers; Wide & Deep has 26 fields of 50 000 categories by 12 in place of
most of them, and categories under Zipf's law; its tables are replicated at every worker, or divided among them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, nn

from scripts.bench.measuring import Result, ratio
from scripts.bench.network import HERE, LIMIT_S, PROCESSES, THERE
from scripts.bench.pipeline import Busy, keep_to
from scripts.bench.processes import free_ports, workplace
from scripts.bench.training import DIM, FIELDS, NUMERIC, ROWS, WIDTH, zipf
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.exchange.base import Side
from splitvfl.exchange.split import Split
from splitvfl.learning.optimizers import PerParameter, RowWiseAdagrad
from splitvfl.models import MLP, WideDeepBottom, WideDeepTop
from splitvfl.net.driver import drive
from splitvfl.net.frames import Hello
from splitvfl.net.links import Link, Listener, dial
from splitvfl.net.tls import Identity
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.system.allocator import keep_large_blocks
from splitvfl.team.gpus import take_gpu
from splitvfl.team.team import Alone, Team
from splitvfl.team.workers import Workers


@dataclass(frozen=True)
class Load:
    """What is trained, in batches of which size.

    Attributes:
        model: ``"dense"`` or ``"Wide & Deep"``.
        batch: Records in a step, of all pairs together.
        target: The share that is aimed at; ``None``: nothing.
        steps: Steps of a run.
        rounds: How many runs of each number of pairs, in turn.
        fields: Categorical columns; 0 in the dense model.
        divided: Whether each worker holds its part of the tables' rows, where there are several.
        device: Where workers compute, ``"cpu"`` or ``"cuda"``; batches come from main memory in every step.
        threads: How many threads each worker has. One stays on its core; more go where there is room.
    """

    model: str
    batch: int
    target: float | None
    steps: int
    rounds: int
    fields: int = 0
    divided: bool = False
    device: str = "cpu"
    threads: int = 1

    @property
    def keeps_to_core(self) -> bool:
        """Whether each worker stays on a core of its own."""
        return self.device == "cpu" and self.threads == 1

    @property
    def name(self) -> str:
        """What a row says of it."""
        return f"{self.model}{', divided tables' if self.divided else ''}, batch {self.batch}"

    @property
    def sparse_bytes(self) -> int:
        """Bytes of the tables' gradient, for each record: indices of 64 bits, and rows."""
        return self.fields * (8 + 4 * DIM)


LOADS: Final = (
    Load("dense", 4096, 0.8, 10, 7),
    Load("dense", 65_536, 0.9, 2, 7),
    Load("Wide & Deep", 4096, 0.7, 10, 7, FIELDS),
    Load("Wide & Deep", 65_536, 0.7, 2, 7, FIELDS),
    Load("Wide & Deep", 4096, 0.7, 10, 7, FIELDS, divided=True),
    Load("Wide & Deep", 65_536, 0.7, 2, 7, FIELDS, divided=True),
)
QUICK_LOADS: Final = (Load("Wide & Deep", 256, 0.7, 3, 2, 2), Load("Wide & Deep", 1024, 0.7, 2, 2, 2))


@dataclass(frozen=True)
class Timed:
    """Seconds of one step, at worker 0 of both parties.

    Attributes:
        step_s: From one step to the next.
        passive_s: CPU seconds of the passive party's worker, without those of sums and of tables' rows.
        rows_s: CPU seconds of the tables' optimiser.
        sum_s: From the beginning to the end of the passive party's sum of gradients, whatever its core does meanwhile.
        active_s: CPU seconds of the active party's worker, without those of sums.
    """

    step_s: float
    passive_s: float
    rows_s: float
    sum_s: float
    active_s: float

    @property
    def compute_s(self) -> float:
        """What both parties compute of their parts of the batch; what every worker does of all rows is not in it."""
        return self.passive_s + self.active_s

    @property
    def rest_s(self) -> float:
        """What is left: messages and their encryption, sums, and waiting; 0 where both parties computed at once."""
        return max(0.0, self.step_s - self.compute_s - self.rows_s)

    @classmethod
    def middle(cls, timed: Sequence[Timed]) -> Timed:
        """Return the median of each."""
        return cls(*(median(values) for values in zip(*map(astuple, timed), strict=True)))


@dataclass(frozen=True)
class Measured:
    """What was measured of one load.

    Attributes:
        load: The load.
        timed: The runs of each number of pairs, one of each round.
        sums: Seconds of a sum of two workers, by how many numbers and rows of a table each of them adds.
    """

    load: Load
    timed: Mapping[int, Sequence[Timed]]
    sums: Mapping[tuple[int, int], float]

    def share(self, pairs: int) -> tuple[float, str]:
        """Return the median share of what so many cores could gain, and a note."""
        alone, several = ([one.step_s for one in self.timed[count]] for count in (1, pairs))
        return ratio(alone, [pairs * step for step in several])


# Numbers, and rows of a table, in sums that are timed alone: next to nothing, and much of either.
SMALL_SUM, DENSE_SUM, ROWS_SUM = (1, 0), (1 << 20, 0), (1, 1 << 15)
SUMS: Final = (SMALL_SUM, DENSE_SUM, ROWS_SUM)


def cores_here() -> list[int]:
    """Return the cores on which this process may run; none where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def numbers_of_pairs(cores: int) -> tuple[int, ...]:
    """Return how many pairs are timed: one, and every power of two for which there are cores; two at any rate.

    >>> numbers_of_pairs(2), numbers_of_pairs(12)
    ((1, 2), (1, 2, 4, 8))
    """
    return tuple(2**power for power in range(max(2, cores).bit_length()))


def measured(loads: Sequence[Load], pairs: Sequence[int]) -> list[Measured]:
    """Time every load with every number of pairs, in turn, forwards and backwards."""
    return [_measured(load, pairs) for load in loads]


def _measured(load: Load, pairs: Sequence[int]) -> Measured:
    timed: dict[int, list[Timed]] = {count: [] for count in pairs}
    with workplace(HERE, THERE) as folder, ExitStack() as stack:
        running = {count: stack.enter_context(running_pairs(load, count, folder)) for count in pairs}
        for number in range(load.rounds + 1):
            for count in pairs if number % 2 == 0 else reversed(pairs):
                found = running[count].run(load.steps)
                if number:  # the first one warms up
                    timed[count].append(found)
        sums = {kind: running[2].add_up(*kind) for kind in SUMS}
    return Measured(load, timed, sums)


def results(found: Sequence[Measured]) -> list[Result]:
    """Return the share of what more cores could gain, and what a step consists of."""
    return [row for one in found for row in _results(one)]


def _results(one: Measured) -> list[Result]:
    rows = []
    for pairs in sorted(one.timed):
        middle, name = Timed.middle(one.timed[pairs]), f"{one.load.name}, {pairs} pair{'s' * (pairs > 1)}"
        if pairs > 1:
            share, note = one.share(pairs)
            target = one.load.target if pairs == 2 else None
            rows.append(Result(f"{name}: T1 / ({pairs} T{pairs})", share, "ratio", target, "higher", note))
        note = (
            f"computation {1e3 * middle.compute_s:.1f}, rows of tables {1e3 * middle.rows_s:.1f}, messages and sums "
            f"{1e3 * middle.rest_s:.1f}, a sum takes {1e3 * middle.sum_s:.1f}; medians of {len(one.timed[pairs])} runs"
        )
        rows.append(Result(f"{name}: a step", 1e3 * middle.step_s, "ms", None, note=note))
    return rows


# --- the processes

# Many processes that start on few cores take a while.
_START_S: Final = 600.0
# So often it is looked whether one of them has ended.
_LOOK_S: Final = 1.0


@dataclass(frozen=True)
class Place:
    """Where a worker is.

    Attributes:
        party: Whose worker it is.
        rank: Its number.
        size: How many there are.
        port: Where the active worker of its pair listens.
        meeting: Where the workers of its party meet.
        folder: Where certificates lie, in ``certs``.
        core: Where it runs; ``None``: anywhere.
    """

    party: str
    rank: int
    size: int
    port: int
    meeting: int
    folder: Path
    core: int | None


class Pairs:
    """Pairs of workers that take steps, or add up, when they are told to.

    Args:
        orders: What leads to each worker: those of the passive party, and then those of the active one.
        processes: The workers, likewise.
    """

    def __init__(self, orders: Sequence[Connection], processes: Sequence[BaseProcess]) -> None:
        self._orders, self._processes = orders, processes

    def run(self, steps: int) -> Timed:
        """Take one step, and then so many that are timed."""
        answers = self._tell(steps)
        (step, passive, rows, summing), (_, active, *_) = answers[0], answers[len(answers) // 2]
        return Timed(step, passive, rows, summing, active)

    def add_up(self, numbers: int, rows: int) -> float:
        """Return the seconds in which workers add up so many numbers, and so many rows of a table each."""
        return max(seconds for (seconds,) in self._tell((numbers, rows)))

    def _tell(self, what: object) -> list[list[float]]:
        for one in self._orders:
            one.send(what)
        return self.answers()

    def answers(self) -> list[list[float]]:
        """Return what each worker answers next.

        Raises:
            TimeoutError: If one does not, or has ended.
        """
        deadline = time.monotonic() + _START_S
        for one, process in zip(self._orders, self._processes, strict=True):
            while not one.poll(_LOOK_S):
                if not process.is_alive() or time.monotonic() > deadline:
                    raise TimeoutError(f"a worker has ended, or did not answer within {_START_S:g} s")
        return [one.recv() for one in self._orders]


@contextmanager
def running_pairs(load: Load, count: int, folder: Path) -> Iterator[Pairs]:
    """Start so many pairs, each on a core of its own, as long as there are any, for the length of a block."""
    cores, port = cores_here(), free_ports(count + 2)
    orders, processes = [], []
    for meeting, party in enumerate((HERE, THERE), start=port + count):
        for rank in range(count):
            core = cores[rank % len(cores)] if cores and load.keeps_to_core else None
            own, theirs = PROCESSES.Pipe()
            place = Place(party, rank, count, port + rank, meeting, folder, core)
            processes.append(PROCESSES.Process(target=_be_worker, args=(load, place, theirs), daemon=True))
            processes[-1].start()
            orders.append(own)
    pairs = Pairs(orders, processes)
    try:
        pairs.answers()  # all are there
        yield pairs
        for one in orders:
            one.send(None)
        for process in processes:
            process.join(LIMIT_S)
    finally:
        for process in processes:
            process.kill()


def _be_worker(load: Load, place: Place, orders: Connection) -> None:
    torch.set_num_threads(load.threads)
    keep_large_blocks()
    keep_to([] if place.core is None else [place.core])
    with _team(place) as team, _link(place) as link:
        worker = _Worker(load, place, team, link)
        orders.send([])
        while (order := orders.recv()) is not None:
            orders.send(worker.run(order) if isinstance(order, int) else [worker.add_up(*order)])


@contextmanager
def _team(place: Place) -> Iterator[Team]:
    if place.size == 1:
        yield Alone()
        return
    variables = {"RANK": place.rank, "WORLD_SIZE": place.size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": place.meeting}
    os.environ |= {name: str(value) for name, value in variables.items()}
    with _TimedWorkers(place.size, party=place.party, environment=os.environ, wait_s=_START_S) as team:
        yield team


@contextmanager
def _link(place: Place) -> Iterator[Link]:
    credentials, address = Identity.load(place.party, folder=place.folder / "certs"), f"127.0.0.1:{place.port}"
    if place.party == HERE:
        hello = Hello(HERE, "bench", "passive")
        with dial(THERE, address, credentials, hello=hello, identity=THERE, timeout=_START_S) as link:
            yield link
        return
    hello = Hello(THERE, "bench", "active")
    with (
        Listener(address, credentials, hello=hello, peers={HERE: HERE}) as listener,
        listener.accept(HERE, timeout=_START_S) as link,
    ):
        yield link


class _Stopwatch:
    """Adds up the time of blocks, by the clock and of this thread's CPU."""

    def __init__(self) -> None:
        self.seconds, self.cpu_s = 0.0, 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        started = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started[0]
            self.cpu_s += time.thread_time() - started[1]


_ADDING, _ROWS = _Stopwatch(), _Stopwatch()


class _TimedWorkers(Workers):
    """Workers that note how long they add up."""

    def add_up(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        with _ADDING.running():
            return super().add_up(tensors)


class _TimedRows(RowWiseAdagrad):
    """The tables' optimiser, which notes how long it takes."""

    def step(self, closure: Any = None) -> Any:
        with _ROWS.running():
            return super().step(closure)


_OPTIMIZER: Final = PerParameter(embeddings=_TimedRows)
_WIDTHS: Final = (WIDTH,) * 4
# So many sums are timed, and the middle one is taken.
_SUMS: Final = 15


class _Worker:
    """One worker of one party, with its part of a batch that stays the same."""

    def __init__(self, load: Load, place: Place, team: Team, link: Link) -> None:
        part = slice(place.rank * load.batch // place.size, (place.rank + 1) * load.batch // place.size)
        here = place.party == HERE
        self._party, self._side, self._batch = _passive(load, part, team) if here else _active(load, part)
        self._party.join(team)
        self._device = take_gpu(os.environ) if load.device == "cuda" else torch.device("cpu")
        team.compute_on(self._device)
        self._party.prepare(seed=0, device=self._device)
        self._party.share = self._batch.count / load.batch
        self._team, self._links = team, {THERE if place.party == HERE else HERE: link}
        self._number = 0

    def run(self, steps: int) -> list[float]:
        """Return the seconds of a step: all, those that this worker computes, of rows of tables, and of the sum."""
        self._step(Busy(self._party))  # so that what the other party still has to do of a step is in the next one
        for watch in (_ADDING, _ROWS):
            watch.seconds, watch.cpu_s = 0.0, 0.0
        busy, started = Busy(self._party, time.thread_time), time.perf_counter()
        for _ in range(steps):
            self._step(busy)
        taken = time.perf_counter() - started
        found = (taken, busy.seconds - _ADDING.cpu_s - _ROWS.cpu_s, _ROWS.cpu_s, _ADDING.seconds)
        return [seconds / steps for seconds in found]

    def _step(self, turn: Busy) -> None:
        half = self._side.step(self._batch.to(self._device), self._number)
        drive(half, party=self._party.name, links=self._links, turn=turn, timeout=LIMIT_S)
        self._number += 1

    def add_up(self, numbers: int, rows: int) -> float:
        """Return the seconds of one sum of so many numbers, and so many rows of a table at each worker."""
        given = [torch.ones(numbers, device=self._device)]
        if rows:
            indices, values = torch.randint(ROWS, (1, rows)), torch.ones(rows, DIM)
            sparse = torch.sparse_coo_tensor(indices, values, (ROWS, DIM), check_invariants=False)
            given.append(sparse.to(self._device))
        taken = []
        for _ in range(_SUMS):
            started = time.perf_counter()
            self._team.add_up(given)
            taken.append(time.perf_counter() - started)
        return median(taken)


def _passive(load: Load, part: slice, team: Team) -> tuple[Party, Side, Records]:
    torch.manual_seed(0)
    inputs = NUMERIC if load.fields else NUMERIC + FIELDS * DIM
    columns = Columns(torch.randn(load.batch, inputs)[part], zipf(load.batch, load.fields, ROWS)[part])
    records, sizes, names = Records(_ids(load, part), columns), (ROWS,) * load.fields, tuple(map(str, range(inputs)))
    torch.manual_seed(1)  # all workers begin with the same weights
    bottom: nn.Module = MLP(inputs, _WIDTHS)
    if load.fields:
        among = team if load.divided and team.size > 1 else None
        bottom = WideDeepBottom(NUMERIC, sizes, embedding_dim=DIM, widths=_WIDTHS, sparse=True, team=among)
    party = PassiveParty(PartyData(HERE, names, names, sizes, records, records), bottom, optimizer=_OPTIMIZER)
    return party, Split().passive(party, THERE), records


def _active(load: Load, part: slice) -> tuple[Party, Side, Records]:
    torch.manual_seed(0)
    labels, names = (torch.rand(load.batch) < 0.25).float()[part], tuple(map(str, range(NUMERIC)))
    records = Records(_ids(load, part), Columns.of(torch.randn(load.batch, NUMERIC)[part]), labels)
    torch.manual_seed(1)
    top = WideDeepTop(WIDTH, NUMERIC)
    party = ActiveParty(PartyData(THERE, names, names, (), records, records), top, optimizer=_OPTIMIZER)
    party.connect(HERE)
    party.widths = {HERE: WIDTH}
    return party, Split().active(party), records


def _ids(load: Load, part: slice) -> Tensor:
    return torch.arange(load.batch)[part]
