"""What more workers would gain than there are cores here: computed, from constants that are measured.

A step of a batch of B records at W workers of each party, in lockstep, takes::

    fixed + B/W · record                           what both parties compute of their parts, one after the other
    + B · rows · row                               tables' rows: every worker applies those of all
    + 2 · (message + way) + B/W · bytes · (byte + 1/bandwidth)              an activation there, a gradient back
    + sums · 2 (W − 1) · hop + gathers · (W − 1) · hop                      each operation of workers goes round
    + 2 (W − 1)/W · dense · (summed byte + 1/bandwidth)                     a ring, as gloo has it
    + (W − 1)/W · B · rows · row bytes · (gathered byte + 1/bandwidth)      each worker gets the rows of all others

Measured here are *fixed* and *record*, from steps of two batch sizes; *row*; *message* and *byte*, from what is left of
those steps, TLS at both ends and loopback included; and *hop*, *summed byte* and *gathered byte*, from sums of two
workers alone. Assumed are the bandwidth and the delay of a network. What a party of several machines has besides is
left out: workers of unequal speed, of whom the slowest counts; cores of a machine that share its memory and its
network; evaluations and checkpoints; a network that others use. Both parties of a pair share a core, as they do where
this is measured: with a core each, what the active party does after it has sent its gradient costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

from scripts.bench.measuring import Result
from scripts.bench.scale_pairs import DENSE_SUM, ROWS_SUM, SMALL_SUM, Load, Measured, Timed
from scripts.bench.training import DIM, NUMERIC, WIDTH

WORKERS: Final = (8, 32, 128)
GIGABITS: Final = (10, 25, 100)
# Bytes of a record's activation and its gradient, float32.
RECORD_BYTES: Final = 2 * 4 * WIDTH
ROW_BYTES: Final = 8 + 4 * DIM
_FLOAT_BYTES: Final = 4


@dataclass(frozen=True)
class Network:
    """What lies between workers of a party, and between those of a pair.

    Attributes:
        bits_per_s: Bandwidth of each worker, in either direction.
        hop_s: One way between workers of a party.
        way_s: One way between parties.
    """

    bits_per_s: float
    hop_s: float = 0.0
    way_s: float = 0.0

    @property
    def byte_s(self) -> float:
        """Seconds that a byte takes."""
        return 8.0 / self.bits_per_s


# Its time is in what was measured.
LOOPBACK: Final = Network(inf)
# Between machines of one hall, and of two companies in one city.
HOP_S, WAY_S = 30e-6, 500e-6


@dataclass(frozen=True)
class Constants:
    """What a step costs on this machine, in seconds, and what it moves.

    Attributes:
        fixed_s: Of each step, whatever the batch.
        record_s: Of each record of a worker's part.
        row_s: Of each row of a table's gradient.
        message_s: Of each message.
        byte_s: Of each byte between parties.
        hop_s: Of each hop of an operation between workers.
        summed_s: Of each byte of a dense sum.
        gathered_s: Of each byte of rows that come.
        rows: Rows of tables, of each record.
        dense_bytes: Bytes of the weights that are added up densely, at both parties.
        sums: How many sums go round in a step, at both parties, short ones included.
        gathers: How many times something is gathered.
    """

    fixed_s: float
    record_s: float
    row_s: float
    message_s: float
    byte_s: float
    hop_s: float
    summed_s: float
    gathered_s: float
    rows: int
    dense_bytes: int
    sums: int
    gathers: int


@dataclass(frozen=True)
class Step:
    """The parts of a step, in seconds."""

    compute_s: float
    rows_s: float
    messages_s: float
    sums_s: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.compute_s + self.rows_s + self.messages_s + self.sums_s


def step_of(constants: Constants, batch: int, workers: int, network: Network) -> Step:
    """Return what a step takes, by the formula above."""
    one, part = constants, batch / workers
    others = (workers - 1) / workers
    rounds = one.sums * 2 * (workers - 1) + one.gathers * (workers - 1)
    dense = 2 * others * one.dense_bytes * (one.summed_s + network.byte_s)
    gathered = others * batch * one.rows * ROW_BYTES * (one.gathered_s + network.byte_s)
    return Step(
        compute_s=one.fixed_s + part * one.record_s,
        rows_s=batch * one.rows * one.row_s,
        messages_s=2 * (one.message_s + network.way_s) + part * RECORD_BYTES * (one.byte_s + network.byte_s),
        sums_s=rounds * (one.hop_s + network.hop_s) + dense + gathered,
    )


def line_through(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """Return where a line through two points begins, and how steep it is: neither is less than 0.

    >>> line_through((2.0, 5.0), (4.0, 9.0)), line_through((1.0, 1.0), (2.0, 4.0)), line_through((1.0, 3.0), (2.0, 1.0))
    ((1.0, 2.0), (0.0, 2.0), (2.0, 0.0))
    """
    slope = (second[1] - first[1]) / (second[0] - first[0])
    if slope < 0.0:
        # More records took less time: noise is larger than what they cost, and no more can be said than what both took.
        return (first[1] + second[1]) / 2, 0.0
    beginning = first[1] - slope * first[0]
    # Where it would begin below, noise is larger than what there is: the larger batch says more.
    return (beginning, slope) if beginning >= 0.0 else (0.0, second[1] / second[0])


def constants_of(small: Measured, large: Measured) -> Constants:
    """Return the constants of a model, from steps of one pair with two batch sizes, and sums of two workers."""
    batches = [one.load.batch for one in (small, large)]
    alone = [Timed.middle(one.timed[1]) for one in (small, large)]
    fields = small.load.fields
    fixed, record = line_through(*((batch, one.compute_s) for batch, one in zip(batches, alone, strict=True)))
    messages, byte = line_through(
        *((RECORD_BYTES * batch, one.rest_s) for batch, one in zip(batches, alone, strict=True))
    )
    least = median([one.sums[SMALL_SUM] for one in (small, large)])
    dense, rows = (median([one.sums[kind] for one in (small, large)]) for kind in (DENSE_SUM, ROWS_SUM))
    return Constants(
        fixed_s=fixed,
        record_s=record,
        row_s=alone[1].rows_s / (batches[1] * fields) if fields else 0.0,
        message_s=messages / 2,
        byte_s=byte,
        # What is said before it, and the sum: each goes there and back between two.
        hop_s=least / (2 * 2),
        summed_s=max(0.0, dense - least) / (_FLOAT_BYTES * DENSE_SUM[0]),
        # In place of the sum rows and their indices are counted, and gathered: half as many hops more.
        gathered_s=max(0.0, rows - 1.5 * least) / (ROW_BYTES * ROWS_SUM[1]),
        rows=fields,
        dense_bytes=_FLOAT_BYTES * dense_weights(fields),
        # At the passive party two, and at the active one three: its loss is of another type. Rows and their indices
        # take one, for how many there are, and are gathered.
        sums=5 + (1 if fields else 0),
        gathers=2 if fields else 0,
    )


def dense_weights(fields: int) -> int:
    """Return how many weights both parties have besides tables."""
    inputs = NUMERIC + DIM * (fields or 26)
    bottom = inputs * WIDTH + WIDTH + 3 * (WIDTH * WIDTH + WIDTH)
    return bottom + WIDTH + NUMERIC + 1


def checked(found: Sequence[Measured]) -> list[Result]:
    """Return what the formula says of steps that were measured, over what was measured."""
    rows = []
    for small, large in _by_model(found):
        constants = constants_of(small, large)
        for one in (small, large):
            for workers, timed in sorted(one.timed.items()):
                step = step_of(constants, one.load.batch, workers, LOOPBACK).seconds
                seen = Timed.middle(timed).step_s
                name = f"computed / measured step: {one.load.name}, W = {workers}"
                rows.append(Result(name, step / seen, "ratio", None, note=f"{1e3 * step:.1f} and {1e3 * seen:.1f} ms"))
    return rows


def computed(found: Sequence[Measured], workers: Sequence[int] = WORKERS) -> list[Result]:
    """Return what a step would take with more workers, and what it would gain."""
    return [
        _computed(constants_of(small, large), large.load, count, gigabits)
        for small, large in _by_model(found)
        for gigabits in GIGABITS
        for count in workers
    ]


def _computed(constants: Constants, load: Load, workers: int, gigabits: int) -> Result:
    network = Network(gigabits * 1e9, HOP_S, WAY_S)
    alone, step = (step_of(constants, load.batch, count, network) for count in (1, workers))
    gained = alone.seconds / step.seconds
    note = (
        f"{gained:.1f} times as fast as one, {gained / workers:.2f} of what {workers} could gain; computation "
        f"{1e3 * step.compute_s:.2f}, rows {1e3 * step.rows_s:.1f}, messages {1e3 * step.messages_s:.2f}, sums "
        f"{1e3 * step.sums_s:.1f}"
    )
    name = f"computed step: {load.name}, W = {workers}, {gigabits} Gbit/s"
    return Result(name, 1e3 * step.seconds, "ms", None, note=note)


def said_of(found: Sequence[Measured]) -> list[Result]:
    """Return the constants that were measured."""
    rows = []
    for small, large in _by_model(found):
        one = constants_of(small, large)
        for what, value, unit in (
            ("computation of a step, whatever the batch", 1e3 * one.fixed_s, "ms"),
            ("computation of a record", 1e6 * one.record_s, "us"),
            ("a row of a table", 1e6 * one.row_s, "us"),
            ("a message", 1e3 * one.message_s, "ms"),
            ("a byte between parties", 1e9 * one.byte_s, "ns"),
            ("a hop between workers", 1e3 * one.hop_s, "ms"),
            ("a byte of a dense sum", 1e9 * one.summed_s, "ns"),
            ("a byte of rows gathered", 1e9 * one.gathered_s, "ns"),
        ):
            rows.append(Result(f"constant, {small.load.model}: {what}", value, unit, None))
    return rows


def _by_model(found: Sequence[Measured]) -> list[tuple[Measured, Measured]]:
    """Return the smallest and the largest batch of each model that has two; the formula is of replicated tables."""
    pairs = []
    found = [one for one in found if not one.load.divided]
    for model in dict.fromkeys(one.load.model for one in found):
        own = sorted((one for one in found if one.load.model == model), key=lambda one: one.load.batch)
        if len(own) > 1:
            pairs.append((own[0], own[-1]))
    return pairs
