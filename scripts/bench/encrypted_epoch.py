"""What an epoch of logistic regression takes under encryption, through the exchanges as they are: seconds, and bytes.

Two parties in one process, so that the seconds are CPU time of both together on one core: the label party has the first
half of the columns, the other one the second half. Breast cancer (30 columns, batches of 16) and digits (is it an 8? 64
columns, batches of 32), the settings of the paper's table IV, on the 80 % of their records that are trained on.
Exchanges: ``oracle`` in the clear, ``residue``, ``hybrid`` and ``taylor`` under keys of 2048 bits, everything else as
agreed by default. In a step of ``hybrid`` as many records are used on average as the others' batches have, and 40 or 70
are sent, as in table IV.

The table has 554.2 s for the residue exchange and 957.4 s for the hybrid on breast cancer, 2 415.8 s and 4 142.5 s on
digits: ratios of 1.73 and 1.71. These are of python-paillier and gRPC between two machines, with all columns at the
party without labels and numbers of epochs that are not published, so that ratios alone can be compared.

An epoch is its number of steps times the median step; for ``hybrid``, as many steps as the others take, which use as
many records. In the first epoch replies are hidden by powers that later ones are made of; the last epoch has these
behind it. Keys and tables, made once a run, are in the first step, which is a row of its own; evaluations are in none.
Bytes are the mean of all messages of a step, both ways, as they cross a network.

Rows "with pools" are wall time of the last epoch with a process at either party that shares its work, and one that
prepares encryptions: whoever else uses the machine is in it. Their note has CPU seconds of all processes together.

Rows "naive phe" are the same steps as most write them with ``phe`` (:mod:`scripts.bench.paillier`), CPU time of both
parties on one core, as many steps as an epoch has, from the median of a few.

Run ``python -m scripts.bench.encrypted_epoch [--quick] [--json OUT]``. ``--quick`` takes 512-bit keys, breast cancer
only, and fewer epochs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import mean, median
from typing import Any

import torch

from scripts.bench.measuring import Result, cpu_of_all_processes, main
from scripts.bench.paillier import Work, draw, naive
from splitvfl.app.trainer import Trainer
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.paillier import generate_keys
from splitvfl.data.columns import VerticalData
from splitvfl.data.load import load
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.paillier import Encryption, InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.selection import SecretBatch
from splitvfl.exchange.taylor import Taylor
from splitvfl.learning.losses import Approximation
from splitvfl.learning.tasks import Binary
from splitvfl.messaging.messages import Message, encode
from splitvfl.models import Linear, LinearTop, logistic_loss
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.training import Status


@dataclass(frozen=True)
class Setting:
    """A data set, and how it is trained on.

    Attributes:
        data: Its name.
        batch: Records that are used in a step.
        sent: Records of which something is sent in a step of ``hybrid``, on average.
        epochs: After which 128 replies are behind the run.
    """

    data: str
    batch: int
    sent: int
    epochs: int


@dataclass(frozen=True)
class Spread:
    """How an exchange uses processes, as in :class:`~splitvfl.crypto.engine.Engine`."""

    processes: int = 0
    stock: int = 0


SETTINGS = (Setting("breast-cancer", 16, 40, 6), Setting("digits", 32, 70, 4))
QUICK_SETTINGS = (Setting("breast-cancer", 16, 40, 2),)
BITS, QUICK_BITS = 2048, 512
RATE = 0.1
NAIVE_STEPS, QUICK_NAIVE_STEPS = 5, 1
# Exchanges of which it is also measured what processes are good for, and what phe takes.
COMPARED = ("residue", "hybrid")


def exchange_of(name: str, setting: Setting, limits: Encryption, spread: Spread) -> tuple[Exchange, int]:
    """Return an exchange, and the size of its batches."""
    common: dict[str, Any] = {"encryption": limits, "processes": spread.processes, "stock": spread.stock}
    if name == "oracle":
        return Oracle(), setting.batch
    if name == "hybrid":
        drawn, size = SecretBatch.for_sizes(setting.batch, setting.sent)
        return Hybrid(
            rows=size, epsilon=drawn.epsilon, share=drawn.share, selection_seed_for_experiments=0, **common
        ), size
    kind = {"residue": Residue, "taylor": Taylor}[name]
    return kind(rows=setting.batch, **common), setting.batch


EXCHANGES: dict[str, Approximation] = {"oracle": "exact", "residue": "exact", "hybrid": "exact", "taylor": "taylor"}


@dataclass
class Meter:
    """What the steps of a run take.

    Attributes:
        cycle: Steps of an epoch of the run. Its first and its last one, which evaluate or are shorter, do not count.
        cpu: CPU seconds of this process at the beginning, and at the end of each step.
        wall: Wall seconds, likewise.
        all_cpu: CPU seconds of all processes, likewise.
        sent: Bytes of the messages of each step.
    """

    cycle: int
    cpu: list[float] = field(default_factory=lambda: [time.process_time()])
    wall: list[float] = field(default_factory=lambda: [time.perf_counter()])
    all_cpu: list[float] = field(default_factory=lambda: [cpu_of_all_processes()])
    sent: Counter[int] = field(default_factory=Counter)

    def record(self, message: Message) -> None:
        """Count a message."""
        self.sent[message.step] += len(encode(message))

    def step(self, status: Status) -> None:
        """Note the end of a step."""
        self.cpu.append(time.process_time())
        self.wall.append(time.perf_counter())
        self.all_cpu.append(cpu_of_all_processes())

    def counted(self, first: int, last: int) -> list[int]:
        """Return the steps from one to another one that count."""
        return [step for step in range(first, last) if 0 < step % self.cycle < self.cycle - 1]

    def median(self, first: int, last: int) -> float:
        """Return the median CPU seconds of a step from one to another one."""
        taken = [end - start for start, end in pairwise(self.cpu)]
        return median(taken[step] for step in self.counted(first, last))

    def first(self) -> float:
        """Return the CPU seconds of the first step, keys included."""
        return self.cpu[1] - self.cpu[0]

    def bytes(self, steps: int) -> float:
        """Return the mean number of bytes of a step."""
        return mean(self.sent[step] for step in self.counted(0, steps))


def trainer_of(
    name: str,
    data: VerticalData,
    exchange: Exchange,
    batch: int,
    record: Callable[[Message], None] | None,
) -> Trainer:
    """Return the trainer of one exchange."""
    torch.manual_seed(0)
    sgd = partial(torch.optim.SGD, lr=RATE)
    own, (other,) = data.active.width, data.passives.values()
    return Trainer(
        ActiveParty(
            data.active, LinearTop(1, active_inputs=own), task=Binary(logistic_loss(EXCHANGES[name])), optimizer=sgd
        ),
        {other.name: PassiveParty(other, Linear(other.width), optimizer=sgd)},
        batch_size=batch,
        exchange=exchange,
        audit=False,
        record=record,
    )


def run(name: str, setting: Setting, data: VerticalData, limits: Encryption, spread: Spread, steps: int) -> Meter:
    """Train for so many steps at least, and return what they took."""
    exchange, batch = exchange_of(name, setting, limits, spread)
    cycle = -(-data.active.train.count // batch)
    meter = Meter(cycle)
    # Messages are not weighed where they would be in the time of the other processes.
    record = None if spread.processes else meter.record
    trainer_of(name, data, exchange, batch, record).fit(-(-steps // cycle), progress=meter.step)
    return meter


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes short keys, one data set and fewer epochs."""
    bits = QUICK_BITS if quick else BITS
    limits = (InsecureEncryption if quick else Encryption)(key_bits=bits)
    key = generate_keys(bits, insecure_for_tests=quick)
    results = []
    for setting in QUICK_SETTINGS if quick else SETTINGS:
        # Columns in the order in which the data set has them.
        data = load(setting.data, active=0.5, passive={"other": "rest"})
        for exchange in EXCHANGES:
            results += _results(exchange, setting, data, limits)
            if exchange in COMPARED:
                results.append(_with_pools(exchange, setting, data, limits))
                results.append(_naive(exchange, setting, data, key, QUICK_NAIVE_STEPS if quick else NAIVE_STEPS))
    return results


def _steps(setting: Setting, data: VerticalData) -> int:
    """Return the steps of an epoch of batches that are used whole."""
    return -(-data.active.train.count // setting.batch)


def _label(exchange: str, setting: Setting) -> str:
    return f"{setting.data}, {exchange}"


def _results(exchange: str, setting: Setting, data: VerticalData, limits: Encryption) -> list[Result]:
    steps, label, (other,) = _steps(setting, data), _label(exchange, setting), data.passives.values()
    whole = steps * setting.epochs
    meter = run(exchange, setting, data, limits, Spread(), whole)
    early, late = meter.median(0, steps), meter.median(whole - steps, whole)
    sent = f", {setting.sent} sent" if exchange == "hybrid" else ""
    shape = f"{steps} steps of {setting.batch} records{sent}, {data.active.width} + {other.width} columns"
    size = meter.bytes(whole)
    return [
        Result(f"{label}: the first epoch", early * steps, "s", None, note=f"{shape}, {early * 1000:.1f} ms each"),
        Result(f"{label}: epoch {setting.epochs}", late * steps, "s", None, note=f"{late * 1000:.1f} ms a step"),
        Result(f"{label}: the first step", meter.first(), "s", None, note="with keys and tables, once a run"),
        Result(f"{label}: bytes of a step", size / 1024, "KiB", None, note=f"{size * steps / 2**20:.2f} MiB an epoch"),
    ]


def _with_pools(exchange: str, setting: Setting, data: VerticalData, limits: Encryption) -> Result:
    steps = _steps(setting, data)
    encrypted = setting.sent if exchange == "hybrid" else setting.batch
    meter = run(exchange, setting, data, limits, Spread(processes=1, stock=2 * encrypted), steps * setting.epochs)
    wall, cpu = (_last(ends, steps) for ends in (meter.wall, meter.all_cpu))
    note = f"wall; {cpu:.3g} s of CPU of all processes, {wall / steps * 1000:.1f} ms a step; evaluations included"
    return Result(f"{_label(exchange, setting)}: epoch {setting.epochs} with pools", wall, "s", None, note=note)


def _last(ends: Sequence[float], steps: int) -> float:
    """Return what the last steps took together: none may be left out, or the pools would fill in it."""
    return ends[-1] - ends[-1 - steps]


def _naive(exchange: str, setting: Setting, data: VerticalData, key: PrivateKey, runs: int) -> Result:
    steps, (other,) = _steps(setting, data), data.passives.values()
    work = naive_work(setting, other.width, among_zeros=exchange == "hybrid")
    step = naive(key)
    seconds = median(step(work)[0].total for _ in range(runs))
    note = f"{runs} steps of {len(work.residues)} x {other.width}, {seconds * 1000:.1f} ms each, CPU of both parties"
    return Result(f"{_label(exchange, setting)}: an epoch of naive phe", seconds * steps, "s", None, note=note)


def naive_work(setting: Setting, columns: int, *, among_zeros: bool) -> Work:
    """Return the numbers of a step: residues of a batch, or as many among zeros for the others that are sent."""
    if not among_zeros:
        return draw(setting.batch, columns)
    work = draw(setting.sent, columns)
    used = torch.randperm(setting.sent, generator=torch.Generator().manual_seed(0))[: setting.batch]
    return replace(work, residues=torch.zeros_like(work.residues).index_copy(0, used, work.residues[used]))


if __name__ == "__main__":
    raise SystemExit(main("Logistic regression under encryption: an epoch", measure))
