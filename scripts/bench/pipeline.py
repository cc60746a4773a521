"""Batches in flight: how much of the time that messages travel is used, beside what could be used at most.

Two processes on one machine, each party on one core and one thread, over mutual TLS and a line that holds back every
byte by a given time each way. The model is Wide & Deep of ``scripts.bench.cut``. In lockstep a step takes T; a party's
own part of it is tP and tA. With k batches in flight no step can take less than max(tP, tA, T / (k + 1)): each party
has its work to do, and k + 1 steps share one way there and back. A figure is that bound over the time that a step
takes, 1 at best. Steps are timed between the first k + 2 of a run and its last, so that neither filling the line nor
emptying it counts; in training that happens once between two checkpoints. Run
``python -m scripts.bench.pipeline [--quick] [--json OUT]``.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Final

import torch

from scripts.bench.cut import FIELDS, ROWS, WIDTH, Bench
from scripts.bench.delay_line import DelayLine
from scripts.bench.measuring import Result, main
from scripts.bench.network import HERE, LIMIT_S, PROCESSES, THERE
from splitvfl.exchange.base import Side
from splitvfl.exchange.split import Split
from splitvfl.net.certs import make_certificates
from splitvfl.net.driver import drive
from splitvfl.net.frames import Hello
from splitvfl.net.links import Link, Listener, dial
from splitvfl.net.tls import Identity
from splitvfl.party.party import Party
from splitvfl.system.allocator import keep_large_blocks


@dataclass(frozen=True)
class Case:
    """One distance and one number of batches in flight.

    Attributes:
        delay_ms: How long a byte is under way, one way.
        in_flight: Batches in flight.
        batch: Records in a batch.
        target: What is aimed at; ``None``: nothing.
        runs: How many runs each way is timed with, in turn.
    """

    delay_ms: int
    in_flight: int
    batch: int = 4096
    target: float | None = None
    runs: int = 7


CASES: Final = (
    Case(10, 1, target=0.9),
    Case(20, 1, target=0.9),
    Case(40, 1),
    Case(40, 2, target=0.8),
    Case(40, 4),
    Case(20, 1, batch=65_536, runs=3),
)
QUICK_CASES: Final = (Case(10, 1, batch=512, runs=2), Case(10, 2, batch=512, runs=2))
# Steps of a run that are timed.
STEPS, QUICK_STEPS = 20, 4


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes smaller tables, fewer steps and fewer runs."""
    steps, fields = (QUICK_STEPS, 2) if quick else (STEPS, FIELDS)
    return [row for case in (QUICK_CASES if quick else CASES) for row in _rows(case, steps, fields)]


def _rows(case: Case, steps: int, fields: int) -> list[Result]:
    runs = case.runs
    with _two_parties(case, fields) as parties:
        timed = [[parties.run(in_flight, steps) for in_flight in (0, case.in_flight)] for _ in range(runs + 1)][1:]
    lockstep, ahead = ([run[way].step_s for run in timed] for way in (0, 1))
    # The lesser of both ways: a core that has waited computes more slowly, and a bound must hold for one that has not.
    own_s, their_s = (
        min(median(getattr(run[way], part) for run in timed) for way in (0, 1)) for part in ("own_s", "their_s")
    )
    step_s = median(lockstep)
    bound_s = max(own_s, their_s, step_s / (case.in_flight + 1))
    ratios = sorted(bound_s / one for one in ahead)
    name = f"{case.in_flight} in flight, {case.delay_ms} ms each way, batch {case.batch}"
    note = (
        f"a step {step_s * 1e3:.0f} ms in lockstep, {median(ahead) * 1e3:.0f} ms in flight, at best "
        f"{bound_s * 1e3:.0f} ms; passive {own_s * 1e3:.0f} ms, active {their_s * 1e3:.0f} ms; {runs} runs, "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    )
    return [
        Result(f"{name}: speed-up / bound", median(ratios), "ratio", case.target, better="higher", note=note),
        Result(f"{name}: speed-up", step_s / median(ahead), "ratio", None, better="higher", note=f"{runs} runs"),
    ]


@dataclass(frozen=True)
class _Timed:
    """Seconds of one step: from one to the next, and what each party computes of it."""

    step_s: float
    own_s: float
    their_s: float


class Busy:
    """Counts the time in which a party acts, in its own random state. A context manager.

    Args:
        party: The party.
        clock: What tells the time.
    """

    def __init__(self, party: Party, clock: Callable[[], float] = time.perf_counter) -> None:
        self._party, self._clock = party, clock
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._started = self._clock()
        self._party.random.__enter__()

    def __exit__(self, *error: object) -> None:
        self._party.random.__exit__(None, None, None)
        self.seconds += self._clock() - self._started


class _TwoParties:
    """A passive party here, and an active one in another process that takes as many steps as it is told."""

    def __init__(self, case: Case, fields: int, link: Link, orders: Connection) -> None:
        self._bench = Bench(case.batch, fields, ROWS + 1)
        self._link, self._orders = link, orders
        self._done = 0

    def run(self, in_flight: int, steps: int) -> _Timed:
        """Take steps until the line is full, then those that are timed, and bring what is under way to an end."""
        party, busy = self._bench.passive, Busy(self._bench.passive)
        first, total = in_flight + 2, steps + in_flight + 2
        self._orders.send((in_flight, self._done, total))
        side = Split(in_flight=in_flight).passive(party, THERE)
        times = []
        for step in range(self._done, self._done + total):
            drive(
                side.step(self._bench.passive_records, step),
                party=HERE,
                links={THERE: self._link},
                turn=busy,
                timeout=LIMIT_S,
            )
            times.append(time.perf_counter())
        drive(side.drain(), party=HERE, links={THERE: self._link}, turn=busy, timeout=LIMIT_S)
        self._done += total
        return _Timed((times[-1] - times[first - 1]) / steps, busy.seconds / total, self._orders.recv())


@contextmanager
def _two_parties(case: Case, fields: int) -> Iterator[_TwoParties]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    orders, theirs = PROCESSES.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(folder, [HERE, THERE])
        hello, credentials = Hello(HERE, "bench", "passive"), Identity.load(HERE, folder=folder)
        with (
            Listener("127.0.0.1:0", credentials, hello=hello, peers={THERE: THERE}) as listener,
            DelayLine(listener.port, case.delay_ms / 1e3) as line,
        ):
            process = PROCESSES.Process(
                target=_be_active, args=(folder, line.port, case, fields, theirs, cores[1:2]), daemon=True
            )
            process.start()
            keep_to(cores[:1])
            try:
                with listener.accept(THERE, timeout=LIMIT_S) as link:
                    yield _TwoParties(case, fields, link, orders)
                    orders.send(None)
                    process.join()
            finally:
                keep_to(cores)


def _be_active(folder: str, port: int, case: Case, fields: int, orders: Connection, cores: list[int]) -> None:
    torch.set_num_threads(1)
    keep_large_blocks()
    keep_to(cores)
    bench = Bench(case.batch, fields, ROWS + 1)
    bench.active.widths = {HERE: WIDTH}
    hello, credentials = Hello(THERE, "bench", "active"), Identity.load(THERE, folder=folder)
    with dial(HERE, f"127.0.0.1:{port}", credentials, hello=hello, identity=HERE, timeout=LIMIT_S) as link:
        while (order := orders.recv()) is not None:
            in_flight, first, total = order
            busy, side = Busy(bench.active), Split(in_flight=in_flight).active(bench.active)
            for step in range(first, first + total):
                side.look_ahead([case.batch] * min(in_flight, first + total - step - 1))
                _take(side, bench, step, link, busy)
            orders.send(busy.seconds / total)


def _take(side: Side, bench: Bench, step: int, link: Link, busy: Busy) -> None:
    drive(side.step(bench.active_records, step), party=THERE, links={HERE: link}, turn=busy, timeout=LIMIT_S)


def keep_to(cores: list[int]) -> None:
    """Keep this process, threads that begin from now on included, to these cores; where that is known, and one is."""
    if cores:
        os.sched_setaffinity(0, cores)


if __name__ == "__main__":
    raise SystemExit(main("Batches in flight: what is used of the time that messages travel", measure))
