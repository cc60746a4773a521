"""Steps of the paper's four mechanisms, one at a time, and what they take: its table IV's settings, CPU and wall time.

Both parties are in one process. ``Add`` and ``Mult`` are exchange ``split`` with a defense, in the clear; ``residue``
and ``hybrid`` are the exchanges of these names, as they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count, islice
from types import TracebackType
from typing import Any, Literal, get_args

import torch

from scripts.bench.measuring import cpu_of_all_processes, interleaved
from scripts.bench.paillier import Work, naive
from scripts.reproduce.residue_protection.mechanisms import Mechanism, additive, multiplicative
from scripts.reproduce.residue_protection.study import PASSIVE, Problem, build_trainer, table_of
from scripts.reproduce.shared.jobs import Result
from splitvfl.crypto.paillier import generate_keys
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.paillier import EncryptedExchange, Encryption, InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.selection import SecretBatch
from splitvfl.exchange.split import Split
from splitvfl.messaging.conversation import converse
from splitvfl.messaging.messages import Message

MechanismName = Literal["Add", "Mult", "residue", "hybrid"]
MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)
NOISE: Mapping[MechanismName, Mechanism] = {"Add": additive(1.0), "Mult": multiplicative(10.0, 0.1, 10.0)}

_RATE = 0.1
_SHORTEST_SAFE_KEY = 2048
# Steps in the clear take a millisecond, and so many are timed at once.
_CLEAR_STEPS = 20
# Helping processes count as idle when they take less than 5 % of a core for so long.
_IDLE_S = 0.2


@dataclass(frozen=True)
class Row:
    """What the paper prints of one data set in table IV.

    Attributes:
        columns: d_A.
        used: The batch: records whose residues count in a step, k of ``hybrid``.
        sent: L, of which ``hybrid`` sends something encrypted.
        seconds: Of whole trainings, whose epochs it does not print.
    """

    columns: int
    used: int
    sent: int
    seconds: Mapping[MechanismName, float]

    @property
    def ratio(self) -> float:
        """Hybrid to residue exchange."""
        return self.seconds["hybrid"] / self.seconds["residue"]


def _row(columns: int, used: int, sent: int, *seconds: float) -> Row:
    return Row(columns, used, sent, dict(zip(MECHANISMS, seconds, strict=True)))


TABLE_4: Mapping[str, Row] = {
    "breast": _row(30, 16, 40, 3.5, 3.5, 554.2, 957.4),
    "digits": _row(64, 32, 70, 5.6, 5.7, 2415.8, 4142.5),
    "census": _row(81, 32, 90, 100.5, 101.8, 74049.6, 131299.8),
    "credit": _row(10, 8, 15, 1374.3, 1402.1, 88321.9, 113761.6),
}


class Steps:
    """Training steps of one mechanism at table IV's setting, one at a time; a context manager.

    Args:
        name: Which mechanism.
        problem: The data set.
        bits: Bit length of the key; below 2048 for quick runs only.
        exact: Of ``hybrid``, take only steps of which exactly k records are used and L sent.
        processes: Beside this one at either party.
        record: Called with every message.

    Attributes:
        passive: The party with all columns, whose weights are trained.
    """

    def __init__(
        self,
        name: MechanismName,
        problem: Problem,
        *,
        bits: int,
        exact: bool = True,
        processes: int = 0,
        record: Callable[[Message], None] | None = None,
    ) -> None:
        row = TABLE_4[problem.key]
        self.used, self.sent, self._columns, self._exact = row.used, row.sent, row.columns, exact
        self.encrypted = {"residue": row.used, "hybrid": row.sent}.get(name, 0)
        stock = 2 * self.encrypted if processes else 0
        exchange, size = self._made(name, bits, processes=processes, stock=stock)
        noise = NOISE.get(name)
        defense = None if noise is None else noise.defense()
        trainer = build_trainer(
            replace(problem, batch_size=size),
            seed=0,
            rate=_RATE,
            defenses=() if defense is None else (defense,),
            exchange=exchange,
        )
        self._active, self.passive = trainer.active, trainer.passives[PASSIVE]
        self._sides = {
            self._active.name: exchange.active(self._active),
            PASSIVE: exchange.passive(self.passive, self._active.name),
        }
        self._batches = (rows for epoch in count() for rows in trainer.batches.epoch(epoch))
        self._exchange, self._size = exchange, size
        self._record = record
        self._planned: list[int] = []
        self._number = -1

    def _made(self, name: MechanismName, bits: int, *, processes: int, stock: int) -> tuple[Exchange, int]:
        if name in NOISE:
            return Split(), self.used
        limits = (InsecureEncryption if bits < _SHORTEST_SAFE_KEY else Encryption)(key_bits=bits)
        common: dict[str, Any] = {"encryption": limits, "processes": processes, "stock": stock}
        if name == "residue":
            return Residue(rows=self.used, **common), self.used
        drawn, size = SecretBatch.for_sizes(self.used, self.sent)
        hybrid = Hybrid(rows=size, epsilon=drawn.epsilon, share=drawn.share, selection_seed_for_experiments=0, **common)
        return hybrid, size

    def __enter__(self) -> Steps:
        """Exchange keys, and start processes."""
        converse({name: side.open() for name, side in self._sides.items()})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for side in self._sides.values():
            side.close()

    @property
    def secret_batch(self) -> SecretBatch | None:
        """How the label party draws what it uses, if it does."""
        return self._exchange.secret_batch if isinstance(self._exchange, Hybrid) else None

    def until(self, replies: int) -> int:
        """Return the steps after which so many replies were sent, and two more."""
        exchange = self._exchange
        if not isinstance(exchange, EncryptedExchange):
            return 2
        return -(-replies // exchange.encryption.layout(exchange.rows, self._columns).replies) + 2

    def plan(self, steps: int) -> None:
        """Look for the numbers of so many steps beforehand, so that it is not in their time."""
        self._planned = list(islice(self._numbers(), steps))

    def _numbers(self) -> Iterator[int]:
        exchange = self._exchange
        for number in count(self._number + 1):
            if isinstance(exchange, Hybrid) and self._exact:
                draw = exchange.secret_batch.draw(exchange.selection_key(), number, self._size, [self._columns])
                if (int(draw.used.sum()), int(draw.sent.sum())) != (self.used, self.sent):
                    continue
            yield number

    def step(self) -> None:
        """Take the next step."""
        if not self._planned:
            self.plan(1)
        self._number = self._planned.pop(0)
        rows = next(self._batches)
        while self._exact and len(rows) < self._size:  # the last one of an epoch
            rows = next(self._batches)
        converse(
            {
                self._active.name: self._sides[self._active.name].step(self._active.train_batch(rows), self._number),
                PASSIVE: self._sides[PASSIVE].step(self.passive.train_batch(rows), self._number),
            },
            record=self._record,
        )


def steps_of_epoch(problem: Problem) -> int:
    """Return the steps of an epoch: a batch is what is used of it."""
    return -(-len(table_of(problem, 0).train) // TABLE_4[problem.key].used)


def check_width(problem: Problem) -> None:
    """Check that the problem has as many columns as the paper says, of which the times follow."""
    width, published = table_of(problem, 0).train.shape[1], TABLE_4[problem.key].columns
    assert width == published, f"{problem.title}: {width} columns, and {published} are published"


# --- jobs


def one_core_steps(problem: Mapping[str, Any], bits: int, runs: int, replies: int) -> Result:
    """Time steps of all mechanisms in turn: CPU seconds of this process, both parties' together.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        bits: Bit length of the key.
        runs: Steps of each.
        replies: How many are sent before. The first 128 under a key are hidden by powers that later ones are made of.

    Returns:
        ``seconds``: by mechanism, of each run.
    """
    given = Problem.of(problem)
    check_width(given)
    with ExitStack() as opened:
        steps = [opened.enter_context(Steps(name, given, bits=bits)) for name in MECHANISMS]
        warm_up = max(each.until(replies) for each in steps)
        often = [1 if each.encrypted else _CLEAR_STEPS for each in steps]
        for each, times in zip(steps, often, strict=True):
            each.plan((runs + warm_up) * times)
        taken = interleaved([each.step for each in steps], runs=runs, repeats=often, warm_up=warm_up)
    return {"seconds": dict(zip(MECHANISMS, taken, strict=True))}


def naive_steps(problem: Mapping[str, Any], bits: int, runs: int) -> Result:
    """Time the encryption of steps of the residue exchange and of the hybrid as most write it with ``phe``, in turn.

    Rows are the problem's, residues spread over (−1, 1), and for the hybrid k of them among L − k zeros.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        bits: Bit length of the key.
        runs: Steps of each.

    Returns:
        ``seconds``: by mechanism, CPU seconds of this process of each run.
    """
    given = Problem.of(problem)
    row, step = TABLE_4[given.key], naive(generate_keys(bits, insecure_for_tests=bits < _SHORTEST_SAFE_KEY))
    taken: dict[str, list[float]] = {"residue": [], "hybrid": []}
    for number in range(runs):
        works = naive_works(given, row, seed=number)
        for name in sorted(works, reverse=number % 2 == 0):
            taken[name].append(step(works[name])[0].total)
    return {"seconds": taken}


def naive_works(problem: Problem, row: Row, *, seed: int) -> dict[MechanismName, Work]:
    """Return the numbers of a step of the residue exchange, and of one of the hybrid."""
    generator = torch.Generator().manual_seed(seed)
    table = table_of(problem, 0).train
    rows = table[torch.randperm(len(table), generator=generator)[: row.sent]].double()
    residues = 2 * torch.rand(row.used, generator=generator, dtype=torch.float64) - 1
    places = torch.randperm(row.sent, generator=generator)[: row.used]
    among_zeros = torch.zeros(row.sent, dtype=torch.float64).index_copy(0, places, residues)
    return {"residue": Work(residues, rows[: row.used]), "hybrid": Work(among_zeros, rows)}


def pooled_steps(problem: Mapping[str, Any], bits: int, runs: int, block: int, replies: int) -> Result:
    """Time steps of the encrypted mechanisms with pools, block by block in turn.

    At either party one process shares the work, and one at the label party prepares encryptions. A block begins with
    full pools, and CPU seconds are counted until they are full again; wall seconds end with its last step.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        bits: Bit length of the key.
        runs: Blocks of each.
        block: Steps of a block.
        replies: How many are sent before.

    Returns:
        ``wall`` and ``cpu``: by mechanism, seconds of a step in each block, CPU of all processes.
    """
    given = Problem.of(problem)
    names: tuple[MechanismName, MechanismName] = ("residue", "hybrid")
    found: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in names} for clock in ("wall", "cpu")}
    with ExitStack() as opened:
        steps = {name: opened.enter_context(Steps(name, given, bits=bits, processes=1)) for name in names}
        for each in steps.values():
            before = each.until(replies)
            each.plan(before + runs * block)
            for _ in range(before):
                each.step()
        for number in range(runs):
            for name in names if number % 2 == 0 else names[::-1]:
                _wait_until_idle()
                cpu, started = cpu_of_all_processes(), time.perf_counter()
                for _ in range(block):
                    steps[name].step()
                found["wall"][name].append((time.perf_counter() - started) / block)
                _wait_until_idle()
                found["cpu"][name].append((cpu_of_all_processes() - cpu) / block)
    return found


def _wait_until_idle() -> None:
    spent = math.inf
    while spent > 0.05 * _IDLE_S:
        before = cpu_of_all_processes()
        time.sleep(_IDLE_S)
        spent = cpu_of_all_processes() - before


def whole_training(problem: Mapping[str, Any], mechanism: MechanismName, bits: int, epochs: int) -> Result:
    """Train, keys and tables included, and return the CPU seconds of both parties on one core.

    An epoch is as many steps as use every record once; of ``hybrid``, which draws what it uses, on average.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        mechanism: Which.
        bits: Bit length of the key.
        epochs: Of the training.

    Returns:
        ``seconds`` and ``steps``.
    """
    given = Problem.of(problem)
    steps = epochs * steps_of_epoch(given)
    started = time.process_time()
    with Steps(mechanism, given, bits=bits, exact=False) as taken:
        taken.plan(steps)
        for _ in range(steps):
            taken.step()
    return {"seconds": time.process_time() - started, "steps": steps}
