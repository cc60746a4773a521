"""Vertical logistic regression for the tests of its exchanges, and the same by a slow loop that shares no code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.hooks import Defense
from splitvfl.learning.tasks import Binary
from splitvfl.messaging.messages import Message
from splitvfl.models import Linear, LinearTop, logistic_loss
from splitvfl.party.party import ActiveParty, PassiveParty

SHORT = InsecureEncryption(key_bits=512)
RECORDS, BATCH, RATE = 70, 16, 0.5


def data_of(name: str, width: int, *, labels: bool = False, records: int = RECORDS) -> PartyData:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    ids = torch.arange(records)
    numeric = torch.randn(records, width, generator=generator)
    own = (torch.rand(records, generator=generator) < 0.4).float() if labels else None
    part = Records(ids, Columns.of(numeric), own)
    names = tuple(f"{name} {number}" for number in range(width))
    return PartyData(name, names, names, (), part, part)


def trainer_of(
    exchange: Exchange | Mapping[str, Exchange],
    widths: Mapping[str, int],
    *,
    approximation: str = "taylor",
    defenses: tuple[Defense, ...] = (),
    record: Callable[[Message], None] | None = None,
    own: int = 3,
    intercept: bool = True,
    batch: int = BATCH,
    **options: object,
) -> Trainer:
    torch.manual_seed(7)
    for one in exchange.values() if isinstance(exchange, Mapping) else (exchange,):
        if not one.hides_parts:  # its residues are those of the loss
            one.approximation = approximation  # type: ignore[assignment]  # checked where it is used
    sgd = partial(torch.optim.SGD, lr=RATE)
    top = LinearTop(len(widths), active_inputs=own, intercept=intercept)
    return Trainer(
        ActiveParty(data_of("bank", own, labels=True), top, task=Binary(logistic_loss(approximation)), optimizer=sgd),
        {name: PassiveParty(data_of(name, width), Linear(width), optimizer=sgd) for name, width in widths.items()},
        batch_size=batch,
        exchange=exchange,
        defenses=defenses,
        record=record,
        **({"noise_seed_for_experiments": 1, "audit": False} | options),  # type: ignore[arg-type]
    )


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    """Every party's weights, the active party's with its intercept behind."""
    found = {name: party.bottom.weight.detach().flatten().clone() for name, party in trainer.passives.items()}
    top = trainer.active.top
    own = torch.empty(0) if top.own is None else top.own.weight.detach().flatten()
    return {**found, "bank": torch.cat([own, top.intercept.detach()])}


def by_hand(
    trainer: Trainer, epochs: int, coefficient: Callable[[float, float], float], scale: float
) -> dict[str, np.ndarray]:
    """Train a copy of what the parties hold, record by record; ``coefficient(z, y) / scale`` is a residue."""
    batches = [rows for epoch in range(epochs) for rows in trainer.batches.epoch(epoch)]
    return descend(trainer, batches, coefficient, scale)


def descend(
    trainer: Trainer, batches: Iterable[Tensor], coefficient: Callable[[float, float], float], scale: float
) -> dict[str, np.ndarray]:
    """The same on batches of one's own, of which each gives a mean."""
    weights = {name: weight.double().numpy().copy() for name, weight in weights_of(trainer).items()}
    columns = {name: party.data.train.columns.numeric.double().numpy() for name, party in trainer.passives.items()}
    bank = trainer.active.data.train
    columns["bank"] = np.concatenate([bank.columns.numeric.double().numpy(), np.ones((bank.count, 1))], axis=1)
    labels = 2 * bank.labels.double().numpy() - 1  # type: ignore[union-attr]
    for rows in batches:
        gradients = {name: np.zeros_like(weight) for name, weight in weights.items()}
        for row in rows.tolist():
            z = sum(float(columns[name][row] @ weights[name]) for name in weights)
            for name in weights:
                gradients[name] += coefficient(z, labels[row]) * columns[name][row] / (scale * len(rows))
        for name in weights:
            weights[name] -= RATE * gradients[name]
    return weights


def taylor_coefficient(z: float, y: float) -> float:
    return z - 2 * y


def exact_coefficient(z: float, y: float) -> float:
    return -y / (1 + math.exp(y * z))
