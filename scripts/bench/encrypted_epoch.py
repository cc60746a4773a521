"""What an epoch of logistic regression takes under encryption, through the exchanges as they are: seconds, and bytes.

Two parties in one process, so that the seconds are CPU time of both together on one core: the label party has the first
half of the columns, the other one the second half. Breast cancer (30 columns, batches of 16) and digits (is it an 8? 64
columns, batches of 32), the settings of the paper's table IV, on the 80 % of their records that are trained on.
Exchanges: ``oracle`` in the clear, ``residue`` and ``taylor`` under keys of 2048 bits, everything else as agreed by
default.

An epoch is its number of steps times the median step. In the first epoch replies are hidden by powers that later ones
are made of; the last epoch has these behind it. Keys and tables, made once a run, are in the first step, which is a row
of its own; evaluations are in none. Bytes are those of all messages of a step, both ways, as they cross a network.

Run ``python -m scripts.bench.encrypted_epoch [--quick] [--json OUT]``. ``--quick`` takes 512-bit keys, breast cancer
only, and fewer epochs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median

import torch

from scripts.bench.measuring import Result, main
from splitvfl.data import VerticalData, load
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.paillier import Encryption, InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from splitvfl.learning.tasks import Binary
from splitvfl.messaging.messages import Message, encode
from splitvfl.models import Linear, LinearTop, logistic_loss
from splitvfl.models.sigmoid_coefficients import Approximation
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status

# The data set, the batch, and the epochs after which 128 replies are behind the run.
SETTINGS = (("breast-cancer", 16, 6), ("digits", 32, 4))
QUICK_SETTINGS = (("breast-cancer", 16, 2),)
BITS, QUICK_BITS = 2048, 512
RATE = 0.1

EXCHANGES: dict[str, tuple[Approximation, Callable[[int, Encryption], Exchange]]] = {
    "oracle": ("exact", lambda rows, limits: Oracle()),
    "residue": ("exact", lambda rows, limits: Residue(rows=rows, encryption=limits)),
    "taylor": ("taylor", lambda rows, limits: Taylor(rows=rows, encryption=limits)),
}


@dataclass
class Meter:
    """What the steps of a run take.

    Attributes:
        ends: CPU seconds at the beginning, and at the end of each step.
        sent: Bytes of the messages of the second step.
    """

    ends: list[float] = field(default_factory=lambda: [time.process_time()])
    sent: int = 0

    def record(self, message: Message) -> None:
        """Count a message."""
        if message.step == 1:
            self.sent += len(encode(message))

    def step(self, status: Status) -> None:
        """Note the end of a step."""
        self.ends.append(time.process_time())

    def epoch(self, number: int, steps: int) -> float:
        """Return CPU seconds of an epoch, without its first step, which may make keys, and its last, evaluated."""
        taken = [end - start for start, end in pairwise(self.ends)]
        return median(taken[number * steps + 1 : (number + 1) * steps - 1]) * steps

    @property
    def first(self) -> float:
        """CPU seconds of the first step, keys included."""
        return self.ends[1] - self.ends[0]


def trainer_of(
    name: str, data: VerticalData, batch: int, limits: Encryption, record: Callable[[Message], None]
) -> Trainer:
    """Return the trainer of one exchange."""
    torch.manual_seed(0)
    approximation, exchange = EXCHANGES[name]
    sgd = partial(torch.optim.SGD, lr=RATE)
    own, (other,) = data.active.width, data.passives.values()
    return Trainer(
        ActiveParty(
            data.active, LinearTop(1, active_inputs=own), task=Binary(logistic_loss(approximation)), optimizer=sgd
        ),
        {other.name: PassiveParty(other, Linear(other.width), optimizer=sgd)},
        batch_size=batch,
        exchange=exchange(batch, limits),
        audit=False,
        record=record,
    )


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes short keys, one data set and fewer epochs."""
    bits = QUICK_BITS if quick else BITS
    limits = (InsecureEncryption if quick else Encryption)(key_bits=bits)
    results = []
    for name, batch, epochs in QUICK_SETTINGS if quick else SETTINGS:
        # Columns in the order in which the data set has them.
        data = load(name, active=0.5, passive={"other": "rest"})
        for exchange in EXCHANGES:
            results += _results(name, exchange, data, batch, limits, epochs)
    return results


def _results(name: str, exchange: str, data: VerticalData, batch: int, limits: Encryption, epochs: int) -> list[Result]:
    meter, (other,) = Meter(), data.passives.values()
    trainer_of(exchange, data, batch, limits, meter.record).fit(epochs, progress=meter.step)
    steps = -(-data.active.train.count // batch)
    first, last = meter.epoch(0, steps), meter.epoch(epochs - 1, steps)
    shape = f"{steps} steps of {batch} records, {data.active.width} + {other.width} columns"
    label = f"{name}, {exchange}"
    return [
        Result(f"{label}: the first epoch", first, "s", None, note=f"{shape}, {first / steps * 1000:.1f} ms each"),
        Result(f"{label}: epoch {epochs}", last, "s", None, note=f"{last / steps * 1000:.1f} ms a step"),
        Result(f"{label}: the first step", meter.first, "s", None, note="with keys and tables, once a run"),
        Result(
            f"{label}: bytes of a step",
            meter.sent / 1024,
            "KiB",
            None,
            note=f"{meter.sent * steps / 2**20:.2f} MiB an epoch",
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main("Logistic regression under encryption: an epoch", measure))
