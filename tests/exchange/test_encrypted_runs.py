"""Runs under encryption against the same runs in the clear: how far apart they end, and that all else is alike."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.defenses import Isotropic
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.paillier import Encryption, InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.messaging.conversation import converse
from splitvfl.messaging.messages import Message
from splitvfl.run.trainer import Trainer
from tests.builders import take_step
from tests.exchange.logistic import BATCH, RATE, RECORDS, SHORT, trainer_of, weights_of

# So few fraction bits that their error is far above that of float32.
COARSE = InsecureEncryption(key_bits=512, value_bits=8, feature_bits=8)
FLOAT32 = 2.0**-24


def drawn(
    seed: int, encryption: Encryption, approximations: Sequence[str] = ("taylor", "minimax", "piecewise", "exact")
) -> tuple[Trainer, Trainer, int]:
    """The same parties twice, encrypted and in the clear, and how many other parties' logits are encrypted."""
    rng = random.Random(seed)
    widths = {name: rng.randint(1, 6) for name in ("lab", "shop", "telecom", "imaging")[: rng.randint(1, 4)]}
    batch, own = rng.randint(1, RECORDS), rng.randint(0, 4)
    name, approximation = rng.choice([("taylor", "taylor")] * 2 + [("residue", one) for one in approximations])
    encrypted: Exchange = (
        Taylor(rows=batch, encryption=encryption, loss=rng.random() < 0.5)
        if name == "taylor"
        else Residue(rows=batch, encryption=encryption, approximation=approximation)
    )
    make = partial(trainer_of, widths=widths, approximation=approximation, batch=batch, own=own)
    return make(encrypted), make(Oracle(approximation=approximation)), len(widths) if name == "taylor" else 0


def joined(trainer: Trainer) -> Tensor:
    return torch.cat([weight.double() for weight in weights_of(trainer).values()])


def sizes(trainer: Trainer) -> float:
    """A bound of what is multiplied and added up for one gradient: numbers of this size were rounded to float32."""
    columns = [party.data.train.columns.numeric for party in trainer.training.parties]
    widest = max(float(part.abs().max()) if part.numel() else 1.0 for part in columns)
    total = sum(float(part.abs().sum(dim=1).max()) for part in columns)
    return (1 + widest) * (2 + (1 + total) * float(joined(trainer).abs().max()))


def errors(parts: int) -> float:
    """What fixed point may add to an entry of a gradient, as it is documented."""
    return COARSE.error * (parts / 4 if parts else 1)


def step_both(encrypted: Trainer, clear: Trainer, steps: int) -> None:
    for trainer in (encrypted, clear):
        converse({name: side.open() for name, side in trainer._sides.items()})
        for rows in [rows for epoch in range(steps) for rows in trainer.batches.epoch(epoch)][:steps]:
            take_step(trainer, rows)


@pytest.mark.filterwarnings("ignore:logits lie outside")  # of minimax, which is as wrong in the clear
@pytest.mark.parametrize("seed", range(6))
def test_one_step_errs_by_no_more_than_fixed_point_may(seed: int) -> None:
    encrypted, clear, parts = drawn(seed, COARSE)
    assert torch.equal(joined(encrypted), joined(clear))
    limit = RATE * errors(parts)
    step_both(encrypted, clear, 1)
    apart = (joined(encrypted) - joined(clear)).abs().max().item()
    assert apart <= limit + 8 * FLOAT32 * sizes(clear)
    assert apart > 100 * FLOAT32  # it is fixed point that is measured here


@pytest.mark.filterwarnings("ignore:logits lie outside")
@pytest.mark.parametrize("seed", range(6))
def test_sums_are_those_of_rounded_numbers_and_nothing_else_is_lost(seed: int) -> None:
    """Residues as they cross in the clear, rounded to the agreed bits, times columns rounded likewise."""
    rng = random.Random(seed)
    approximation, batch = rng.choice(("taylor", "piecewise", "exact")), rng.randint(1, RECORDS)
    widths = {"lab": rng.randint(1, 6), "shop": rng.randint(1, 6)}
    make = partial(trainer_of, widths=widths, approximation=approximation, batch=batch)
    seen: list[Message] = []
    encrypted = make(Residue(rows=batch, encryption=COARSE, approximation=approximation))
    clear = make(Oracle(approximation=approximation), record=seen.append)
    before = weights_of(encrypted)
    step_both(encrypted, clear, 1)
    rows = clear.batches.epoch(0)[0]
    for name in widths:
        (residues,) = [
            one.payload.double().squeeze(1) for one in seen if (one.kind, one.receiver) == ("gradient", name)
        ]
        columns = clear.passives[name].data.train.columns.numeric[rows].double()
        whole = torch.round(columns * 2.0**COARSE.feature_bits).T @ torch.round(
            residues * len(rows) * 2.0**COARSE.value_bits
        )
        gradient = whole / 2.0 ** (COARSE.feature_bits + COARSE.value_bits) / len(rows)
        expected = before[name].double() - RATE * gradient
        # The gradient, its product with the rate and the weight are rounded to float32.
        assert torch.allclose(weights_of(encrypted)[name].double(), expected, rtol=0, atol=4 * FLOAT32 * sizes(clear))


@pytest.mark.parametrize("seed", range(30, 33))
def test_the_errors_of_many_steps_add_up_at_most(seed: int) -> None:
    """Gradient descent on a convex loss brings two points no further apart, below a rate of 2 / the largest slope."""
    encrypted, clear, parts = drawn(seed, COARSE, ("taylor", "exact"))
    steps, before = 6, joined(clear)
    whole = torch.cat([party.data.train.columns.numeric.double() for party in clear.training.parties], dim=1)
    for rows in clear.batches.epoch(0):
        part = torch.cat([whole[rows], torch.ones(len(rows), 1)], dim=1)
        assert RATE * torch.linalg.matrix_norm(part, 2) ** 2 / (4 * len(rows)) <= 2
    step_both(encrypted, clear, steps)
    apart = torch.linalg.vector_norm(joined(encrypted) - joined(clear)).item()
    each = RATE * errors(parts) + 8 * FLOAT32 * sizes(clear)
    assert apart <= steps * each * math.sqrt(len(before))
    assert apart > 100 * FLOAT32


EXCHANGES: dict[str, Callable[[], Exchange]] = {
    "residue": lambda: Residue(rows=BATCH, encryption=SHORT),
    "taylor": lambda: Taylor(rows=BATCH, encryption=SHORT),
}
WIDTHS = {"lab": 4, "shop": 2}


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_resumed_run_ends_to_the_bit_like_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    """Keys and masks are new; the sums under them are of integers, and exact."""
    options: dict[str, Any] = {"checkpoint_every": 2, "log_every": 1, "defenses": (Isotropic(ratio=0.5),)}
    whole = trainer_of(EXCHANGES[name](), WIDTHS, log_dir=tmp_path / "whole", **options)
    whole.fit(2)
    trainer_of(EXCHANGES[name](), WIDTHS, log_dir=tmp_path / "parts", **options).fit(1)
    again = trainer_of(EXCHANGES[name](), WIDTHS, log_dir=tmp_path / "parts", **options)
    assert again.resume() == 5
    again.fit(2)
    assert all(torch.equal(weight, weights_of(again)[party]) for party, weight in weights_of(whole).items())
    logs = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("whole", "parts")]
    assert logs[0] == logs[1]
    assert len(logs[0].splitlines()) == 10


@pytest.mark.slow(reason="up to twelve epochs under encryption")
@pytest.mark.parametrize("name", EXCHANGES)
def test_training_stops_early_where_it_does_in_the_clear_and_keeps_the_same_epoch(name: str) -> None:
    stopping = EarlyStopping(patience=2, validation_every=5)
    encrypted, clear = (
        trainer_of(exchange, WIDTHS, early_stopping=stopping) for exchange in (EXCHANGES[name](), Oracle())
    )
    figures = [trainer.fit(12) for trainer in (encrypted, clear)]
    assert encrypted.stopped
    assert clear.stopped
    assert encrypted.step == clear.step < 12 * len(clear.batches)
    assert encrypted.kept_epoch == clear.kept_epoch
    assert figures[0] == pytest.approx(figures[1], abs=1e-5)
    assert encrypted.validation == pytest.approx(clear.validation, abs=1e-5)
    # Float32's rounding of a dozen steps, and far below it fixed point's.
    assert torch.allclose(joined(encrypted), joined(clear), rtol=0, atol=1e-5)
