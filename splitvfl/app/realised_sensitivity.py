"""How far one changed row really moves what a passive party sends, through the exchange's own steps.

Noise of HDP-VFL is calculated from a theorem's sensitivity, which holds if receivers clip what they use. Here a passive
party is trained twice, on rows that differ in one record, with the same messages from a label party that sends what
moves most: nothing but derivatives of that one record, as large as noise or malice makes them. A receiver that clips
moves by what the theorem allows; one that does not is thrown across its ball.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.config.sections import TrainConfig
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import Secrets
from splitvfl.learning.batches import Batches
from splitvfl.messaging.conversation import Expected, Half, Outbox, converse
from splitvfl.messaging.messages import Message
from splitvfl.models import Linear
from splitvfl.party.party import PassiveParty

MOST_STEPS: Final = 1_000
"""Steps of a training that are gone through, at most: later ones can only move messages farther."""

_TIMES = 1e6  # so many times the agreed clip is what is sent of the changed record
_ACTIVE, _PASSIVE = "label party", "passive party"


def realised_sensitivity(plan: HdpPlan, train: TrainConfig, exchange: Exchange, *, seed: int = 0) -> float:
    """Return the L2 distance of all that a passive party sends before noise, of two trainings on neighbouring rows.

    All rows are one number of the largest norm, and a record's is turned around. The shape of the training and the
    optimiser are the experiment's. It is at most what the plan's noise is calculated from, if receivers clip.

    Args:
        plan: The plan.
        train: How the experiment is trained.
        exchange: Its exchange, whose receivers are tried.
        seed: Of the order of records, and of which one it is.
    """
    shape = plan.training
    batches = Batches(shape.records, shape.size, seed=seed, drop_last=train.drop_last)
    order = [rows for epoch in range(shape.epochs) for rows in batches.epoch(epoch)][:MOST_STEPS]
    changed = int(np.random.default_rng(seed).integers(shape.records))
    streams = []
    for sign in (1.0, -1.0):
        columns = torch.full((shape.records, 1), plan.norm)
        columns[changed] *= sign
        party = PassiveParty(
            _data(columns), Linear(1, init="zero"), optimizer=partial(train.optimizer.make, radius=plan.radius)
        )
        # A party without noise may not take part, and this is what it sends before noise.
        party.activation.attach(_AsItIs(), at=("training",), noise_seed_for_experiments=0)
        streams.append(_sent(party, exchange, order, changed, plan.clips.coefficient or 1.0))
    return float(torch.linalg.vector_norm(streams[0] - streams[1]))


class _AsItIs:
    """Stands in the place of the noise."""

    crossing = "activation"

    def __call__(self, rows: Tensor, secrets: Secrets, /) -> Tensor:
        return rows.clone()


def _data(columns: Tensor) -> PartyData:
    part = Records(torch.arange(len(columns)), Columns.of(columns), None)
    return PartyData(_PASSIVE, ("x",), ("x",), (), part, part)


def _sent(party: PassiveParty, exchange: Exchange, order: list[Tensor], changed: int, clip: float) -> Tensor:
    """Return all activations of a training."""
    side, sent = exchange.passive(party, _ACTIVE), []
    for step, rows in enumerate(order):
        gradient = torch.where(rows == changed, _TIMES * clip / len(rows), 0.0)[:, None].float()
        halves = {party.name: side.step(party.train_batch(rows), step), _ACTIVE: _label_party(gradient, step)}
        converse(halves, record=lambda message: sent.append(message) if message.kind == "activation" else None)
    return torch.cat([message.payload.double().reshape(-1) for message in sent])


def _label_party(gradient: Tensor, step: int) -> Half:
    awaited = Expected(_PASSIVE, "activation", step, (torch.float32,), tuple(gradient.shape))
    yield Outbox(send=(Message(_ACTIVE, _PASSIVE, "gradient", step, gradient),), wait=(awaited,))
