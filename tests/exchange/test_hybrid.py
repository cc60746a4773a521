"""The hybrid exchange: gradient descent on records that the label party alone knows, and what crosses of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.exchange.hybrid import Hybrid
from splitvfl.messaging.messages import Message
from splitvfl.run.trainer import Trainer
from tests.exchange.logistic import SHORT, descend, exact_coefficient, taylor_coefficient, trainer_of, weights_of

ONE, TWO = {"lab": 4}, {"lab": 4, "shop": 6}
BATCH = 32

# Weights are float32 of size one: ten steps may each round by 2^-24.
ROUNDING = 2e-6


def hybrid(**options: Any) -> Hybrid:
    settings: dict[str, Any] = {"rows": BATCH, "encryption": SHORT, "epsilon": 1.0, "share": 0.3}
    return Hybrid(**(settings | {"selection_seed_for_experiments": 3} | options))


def used_batches(trainer: Trainer, exchange: Hybrid, epochs: int) -> list[Tensor]:
    """The records that are used, step by step; none of a batch that is left out."""
    widths = [party.data.width for party in trainer.passives.values()]
    batches = [rows for epoch in range(epochs) for rows in trainer.batches.epoch(epoch)]
    draws = (
        (rows, exchange.secret_batch.draw(exchange.selection_key(), step, len(rows), widths))
        for step, rows in enumerate(batches)
        if exchange.secret_batch.is_likely(len(rows), max(widths))
    )
    return [rows[draw.used] for rows, draw in draws]


@pytest.mark.parametrize("widths", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize(
    ("approximation", "coefficient", "scale"),
    [("taylor", taylor_coefficient, 4.0), ("exact", exact_coefficient, 1.0)],
)
def test_it_trains_as_gradient_descent_on_the_records_that_are_used(
    widths: dict[str, int], approximation: Any, coefficient: Callable[[float, float], float], scale: float
) -> None:
    exchange = hybrid(approximation=approximation)
    trainer = trainer_of(exchange, widths, approximation=approximation, batch=BATCH)
    batches = used_batches(trainer, exchange, 2)
    assert len({len(rows) for rows in batches}) > 1  # k is not known beforehand
    expected = descend(trainer, batches, coefficient, scale)
    trainer.fit(2)
    for party, weight in weights_of(trainer).items():
        # Fixed point's error, taken in each step with the learning rate of one half.
        limit = ROUNDING + len(batches) * exchange.error
        assert np.allclose(weight.numpy(), expected[party], rtol=0, atol=limit), party


@pytest.mark.parametrize("widths", [ONE, TWO], ids=["one", "two"])
def test_no_size_of_a_message_follows_from_how_many_records_are_used(widths: dict[str, int]) -> None:
    messages: list[Message] = []
    exchange = hybrid()
    trainer = trainer_of(exchange, widths, approximation="exact", batch=BATCH, record=messages.append)
    trainer.fit(1)

    asked = {message.step: message.payload for message in messages if message.kind == "selection"}
    assert [(bits.dtype, len(bits)) for bits in asked.values()] == [(torch.uint8, n) for n in (BATCH, BATCH, 6)]
    assert not asked[2].any()  # the rest of the epoch is too little to hide anything in
    for message in messages:
        sent = int(asked[message.step].sum())
        assert message.kind in ("selection", "activation", "residues", "sums", "opened")
        if message.kind in ("activation", "residues"):
            assert len(message.payload) == sent
    # All ciphertexts of the zeros are new, as those of residues are: none is alike.
    residues = next(message.payload for message in messages if message.kind == "residues")
    assert len(residues.unique(dim=0)) == len(residues)


def test_activations_are_of_the_records_that_are_asked_for_in_their_order() -> None:
    messages: list[Message] = []
    trainer = trainer_of(hybrid(), ONE, approximation="exact", batch=BATCH, record=messages.append)
    party, rows = trainer.passives["lab"], trainer.batches.epoch(0)[0]
    logits = party.activate(party.train_batch(rows)).detach()
    trainer.fit(1)

    bits, sent = (next(m.payload for m in messages if m.kind == kind) for kind in ("selection", "activation"))
    # Of float32 products of a few numbers of size one, in another order.
    assert torch.allclose(sent, logits[bits.bool()], rtol=0, atol=1e-6)
