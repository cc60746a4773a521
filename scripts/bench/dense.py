"""Dense weights of two workers, replicated and divided: what a passive party's step takes, and what is kept.

Two processes on one machine, each on one core and one thread, joined by gloo over loopback. A step is what a passive
party does with its half of the records: activation, backward pass, the sum over the workers, Adam. Steps of both ways
are timed in turn. Kept are weights and what Adam has of them; gradients, of the same size as weights, come and go with
a step. Run ``python -m scripts.bench.dense [--quick] [--json OUT]``.
"""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import Any, Final, NamedTuple

import torch

from scripts.bench.measuring import Result, main
from scripts.bench.team import WORKERS, done_by_workers
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.models import MLP
from splitvfl.party.party import PassiveParty
from splitvfl.team.team import Team

INPUTS: Final = 256


class Case(NamedTuple):
    """A model, a batch of all workers, and how often it is timed."""

    widths: tuple[int, ...]
    batch: int
    runs: int


CASES: Final = (
    Case((1024, 1024, 1024, 128), 1024, 15),
    Case((1024, 1024, 1024, 128), 8192, 9),
    Case((4096, 4096, 128), 1024, 9),
)
QUICK_CASES: Final = (Case((32, 8), 64, 2),)


class Measured(NamedTuple):
    """Seconds of each replicated and each divided step, and bytes that worker 0 keeps of either."""

    replicated: list[float]
    divided: list[float]
    kept: tuple[int, int]


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes a small model."""
    cases = QUICK_CASES if quick else CASES
    found = done_by_workers(partial(_timed, cases=cases))
    return [row for case, measured in zip(cases, found, strict=True) for row in _rows(case, measured)]


def _rows(case: Case, measured: Measured) -> list[Result]:
    name = f"dense {'-'.join(map(str, (INPUTS, *case.widths)))}, batch {case.batch}"
    ratios = sorted(one / other for one, other in zip(measured.divided, measured.replicated, strict=True))
    note = f"{case.runs} runs"
    return [
        Result(f"{name}: replicated", 1e3 * median(measured.replicated), "ms", None, note=note),
        Result(f"{name}: divided", 1e3 * median(measured.divided), "ms", None, note=note),
        Result(
            f"{name}: divided / replicated",
            median(ratios),
            "ratio",
            None,
            note=f"{note}, {ratios[0]:.2f} to {ratios[-1]:.2f}",
        ),
        Result(f"{name}: kept, divided / replicated", measured.kept[1] / measured.kept[0], "ratio", 1 / WORKERS + 0.01),
    ]


def _timed(team: Team, *, cases: tuple[Case, ...]) -> list[Measured]:
    return [_measured(team, case) for case in cases]


def _measured(team: Team, case: Case) -> Measured:
    parties = [_party(team, case, divides) for divides in (False, True)]
    times: tuple[list[float], list[float]] = ([], [])
    for run in range(case.runs + 1):
        for party, taken in zip(parties, times, strict=True):
            team.collect(b"")  # both begin together
            started = time.perf_counter()
            _step(party, run)
            if run:
                taken.append(time.perf_counter() - started)
    replicated, divided = map(_kept, parties)
    return Measured(*times, (replicated, divided))


def _party(team: Team, case: Case, divides: bool) -> PassiveParty:
    count = case.batch // team.size
    random = torch.Generator().manual_seed(team.rank)
    records = Records(
        torch.arange(count),
        Columns.of(torch.randn(count, INPUTS, generator=random)),
    )
    names = tuple(f"c{place}" for place in range(INPUTS))
    torch.manual_seed(0)
    party = PassiveParty(PartyData("bench", names, names, (), records, records), MLP(INPUTS, case.widths))
    party.join(team)
    party.weights.divides = divides
    party.share = 1 / team.size
    party.weights.divide()
    return party


def _step(party: PassiveParty, step: int) -> None:
    records = party.data.train
    party.weights.clear_gradients()
    activation = party.activate(records)
    gradient = torch.full_like(activation, 1e-3)
    party.learn(activation, gradient, records, step)
    party.weights.update()


def _kept(party: PassiveParty) -> int:
    """Return how many bytes of weights and of the optimiser's state this worker keeps."""
    assert party.weights.optimizer is not None
    state: list[Any] = [value for one in party.weights.optimizer.state.values() for value in one.values()]
    tensors = [*party.weights.held.parameters(), *(value for value in state if torch.is_tensor(value))]
    return sum(one.numel() * one.element_size() for one in tensors)


if __name__ == "__main__":
    raise SystemExit(main("Dense weights of two workers: replicated, and divided", measure))
