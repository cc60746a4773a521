"""How far one changed row really moves what a party sends, through the training steps of exchange split themselves.

The claim of HDP-VFL is about two runs that differ in one row of one party and are given the same messages. Here both
are run, on messages that are as large as noise makes them, and the distance of what the party sends is compared with
the sensitivity that its noise is calculated from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.exchange.receiver_clips import NO_CLIPS, ReceiverClips
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.learning.batches import Batches
from splitvfl.learning.optimizers import ProximalSGD, sgd
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message
from splitvfl.models import Linear, LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.privacy import hdp_sensitivity, tight_hdp_sensitivity
from tests.builders import awaited

LOGISTIC = {"lipschitz": 1.0}
OF_LABELS = {"beta_theta": 0.25, "beta_y": 0.5, "k_y": 1.0}


def data_of(name: str, columns: Tensor, labels: Tensor | None = None) -> PartyData:
    part = Records(torch.arange(len(columns)), Columns.of(columns), labels)
    names = tuple(f"x{number}" for number in range(columns.shape[1]))
    return PartyData(name, names, names, (), part, part)


def says(sender: str, receiver: str, kind: str, step: int, payload: Tensor, hears: str) -> Half:
    heard = awaited(receiver, hears, step=step, shape=tuple(payload.shape))
    yield Outbox(send=(Message(sender, receiver, kind, step, payload),), wait=(heard,))


def activations(party: PassiveParty, order: Sequence[Tensor], derivatives: Sequence[Tensor], clips: Any) -> Tensor:
    """All that a passive party would send before noise, given what the label party sends."""
    sent: list[Message] = []
    for step, (rows, one) in enumerate(zip(order, derivatives, strict=True)):
        half = passive_step(party, party.train_batch(rows), step, active="bank", clips=clips)
        gradient = (one / len(rows)).float()
        converse(
            {"lab": half, "bank": says("bank", "lab", "gradient", step, gradient, "activation")}, record=sent.append
        )
    return torch.cat([one.payload.double() for one in sent if one.kind == "activation"])


def derivatives(party: ActiveParty, order: Sequence[Tensor], parts: Sequence[Tensor], clips: Any) -> Tensor:
    """All that the label party would send before noise, times the batch's size, given what the other party sends."""
    sent: list[Message] = []
    party.connect("lab")
    for step, (rows, one) in enumerate(zip(order, parts, strict=True)):
        half = active_step(party, party.train_batch(rows), step, clips=clips)
        peer = says("lab", "bank", "activation", step, one.float(), "gradient")
        converse({"bank": half, "lab": peer}, record=sent.append)
    return torch.cat([len(one.payload) * one.payload.double() for one in sent if one.kind == "gradient"])


# --- an example: 256 records with the number 1, one of which is changed to −1

N, BATCH, EPOCHS, ETA = 256, 64, 10, 0.1
ORDER = [rows for epoch in range(EPOCHS) for rows in Batches(N, BATCH, seed=0).epoch(epoch)]
EXAMPLE: dict[str, Any] = {"steps": len(ORDER), "epochs": EPOCHS, "batch_size": BATCH, "eta": ETA, "k": 1.0, **LOGISTIC}


def example(epsilon: float, clips: ReceiverClips, seed: int) -> float:
    """Distance of the two runs where the label party's noise is the published one, of δ = .01 and β_y = 1.1."""
    moved = hdp_sensitivity("active", **EXAMPLE, beta_theta=0.25, beta_y=1.1, k_y=1.0)
    sigma = math.sqrt(2 * math.log(1.25 / 0.01)) * moved / epsilon
    draw = np.random.default_rng(seed)
    q = [torch.tensor(draw.uniform(-1, 1, (BATCH, 1)) + draw.normal(0, sigma, (BATCH, 1))) for _ in ORDER]
    streams = []
    for changed in (1.0, -1.0):
        columns = torch.ones(N, 1)
        columns[0] = changed
        party = PassiveParty(
            data_of("lab", columns), Linear(1, init="zero"), optimizer=partial(sgd, lr=ETA, radius=1.0)
        )
        streams.append(activations(party, ORDER, q, clips))
    return float((streams[0] - streams[1]).norm())


def test_a_receiver_that_does_not_clip_voids_the_lemma() -> None:
    """17.2 is realised where lemma 3 says 6.61; with derivatives clipped to L, as its proof needs it, .84 at most."""
    lemma, tight = hdp_sensitivity("passive", **EXAMPLE), tight_hdp_sensitivity("passive", **EXAMPLE)
    assert lemma == pytest.approx(6.61, abs=0.005)
    assert tight < lemma
    bare = [example(0.01, NO_CLIPS, seed) for seed in range(4)]
    clipped = [example(0.01, ReceiverClips(coefficient=1.0), seed) for seed in range(4)]
    # Weights thrown across the ball in every step are 2 apart where a record decides which way: how often that is, is
    # chance. The specification's draw realises 17.2; of these four the largest is beyond it, as others may be.
    assert max(bare) > 17.2 > 2.5 * lemma
    assert max(clipped) < 1.0 < tight
    assert max(example(1.0, NO_CLIPS, seed) for seed in range(4)) > lemma


# --- whatever is sent, on small problems


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [0.5, 100.0])
def test_no_row_of_a_passive_party_moves_more_than_its_sensitivity(seed: int, size: float) -> None:
    draw = np.random.default_rng(seed)
    count, batch, epochs, k = 12, int(draw.integers(2, 6)), 4, float(draw.uniform(0.3, 2))
    decay, l2, eta = float(draw.uniform(0, 1)), 0.0, float(draw.uniform(0.05, 0.9))
    if seed % 2:
        decay, l2 = 0.0, decay
    order = [rows for epoch in range(epochs) for rows in Batches(count, batch, seed=seed).epoch(epoch)]
    columns = draw.normal(size=(count, 2))
    columns /= np.linalg.norm(columns, axis=1, keepdims=True)  # all at the norm
    signs = np.sign(columns @ columns[0])  # hostile: every step pulls towards the changed row's old direction
    q = [torch.tensor(size * -signs[rows.numpy()][:, None] * draw.uniform(0, 1, (len(rows), 1))) for rows in order]
    streams = []
    for row in (columns[0], -columns[0]):
        rows = torch.tensor(columns).float()
        rows[0] = torch.tensor(row)
        if l2:
            made: Any = partial(ProximalSGD, lr=eta, l2=l2, l1=0.01, radius=k)
        else:
            made = partial(sgd, lr=eta, weight_decay=decay, radius=k)
        party = PassiveParty(data_of("lab", rows), Linear(2, init="zero"), optimizer=made)
        streams.append(activations(party, order, q, ReceiverClips(coefficient=1.0)))
    allowed = tight_hdp_sensitivity(
        "passive",
        steps=len(order),
        epochs=epochs,
        batch_size=batch,
        last_batch=len(order[-1]),
        eta=eta,
        k=k,
        weight_decay=decay,
        proximal_l2=l2,
        **LOGISTIC,
    )
    realised = float((streams[0] - streams[1]).norm())
    # Rounding of float32 in a dozen steps.
    assert 0.05 * allowed < realised <= allowed * (1 + 1e-5)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [0.5, 100.0])
def test_no_row_of_the_label_party_moves_more_than_its_sensitivity(seed: int, size: float) -> None:
    draw = np.random.default_rng(100 + seed)
    count, batch, epochs, k = 12, int(draw.integers(2, 6)), 4, float(draw.uniform(0.3, 2))
    decay, eta = float(draw.uniform(0, 1)), float(draw.uniform(0.05, 0.9))
    order = [rows for epoch in range(epochs) for rows in Batches(count, batch, seed=seed).epoch(epoch)]
    columns = draw.normal(size=(count, 2))
    columns /= np.linalg.norm(columns, axis=1, keepdims=True)
    labels = (columns @ columns[0] > 0).astype(float)
    parts = [torch.tensor(draw.uniform(-size, size, (len(rows), 1))) for rows in order]
    streams = []
    for row, label in ((columns[0], 1.0), (-columns[0], 0.0)):
        rows, own = torch.tensor(columns).float(), torch.tensor(labels).float()
        rows[0], own[0] = torch.tensor(row), label
        party = ActiveParty(
            data_of("bank", rows, own),
            LinearTop(1, active_inputs=2, init="zero"),
            optimizer=partial(sgd, lr=eta, weight_decay=decay, radius=k),
        )
        streams.append(derivatives(party, order, parts, ReceiverClips(activation=k)))
    norm = math.sqrt(2)  # with the intercept's column of ones
    allowed = tight_hdp_sensitivity(
        "active",
        steps=len(order),
        epochs=epochs,
        batch_size=batch,
        last_batch=len(order[-1]),
        eta=eta,
        k=k,
        weight_decay=decay,
        row_norm=norm,
        step=1 + math.tanh(k * norm / 2),
        **LOGISTIC,
        **OF_LABELS,
    )
    realised = float((streams[0] - streams[1]).norm())
    assert 0.2 * allowed < realised <= allowed * (1 + 1e-5)
