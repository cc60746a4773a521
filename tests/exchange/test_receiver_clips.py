"""What receivers clip before use: noise and hostile rows alike, and nothing else of the step."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from splitvfl.app.deployment import party_run, run_party
from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.config.sections import parse_config
from splitvfl.defenses import CoefficientNoise, GaussianIR
from splitvfl.errors import ConfigError, ProtocolError
from splitvfl.exchange.receiver_clips import ReceiverClips, bounded_rows
from splitvfl.exchange.split import Split
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.messaging.conversation import Half, Outbox, converse
from splitvfl.messaging.messages import Message
from tests.builders import ACTIVE, WIDTH, active_party, awaited, passive_party, sgd
from tests.exchange.logistic import RATE, data_of, trainer_of, weights_of
from tests.run.parties import free_ports, same_weights
from tests.run.parties import weights_of as saved_weights_of

CLIPS = ReceiverClips(activation=0.7, coefficient=0.4)
NOISE = (GaussianIR(clip=5.0, sigma=3.0), CoefficientNoise(sigma=2.0, clip=1.0, scale=1.0))
ROWS = torch.tensor([4, 0, 31, 12, 7, 9])


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


@pytest.mark.parametrize("names", [{"shop": 4}, {"shop": 4, "telecom": 2}])
def test_weights_move_by_what_was_clipped(names: dict[str, int]) -> None:
    """A slow loop that is given what crossed, and nothing else of the run, ends with the same weights."""
    crossed: list[Message] = []
    exchange = Split(receiver_clips=CLIPS)
    trainer = trainer_of(exchange, names, approximation="exact", defenses=NOISE, record=crossed.append, audit=False)
    before = {name: weight.double().numpy() for name, weight in weights_of(trainer).items()}
    trainer.fit(2)
    columns = {name: data_of(name, width).train.columns.numeric.double().numpy() for name, width in names.items()}
    bank = data_of("bank", 3, labels=True).train
    columns["bank"] = np.concatenate([bank.columns.numeric.double().numpy(), np.ones((bank.count, 1))], axis=1)
    said = {(one.sender, one.receiver, one.kind, one.step): one.payload.double().numpy() for one in crossed}
    batches = [rows.numpy() for epoch in range(2) for rows in trainer.batches.epoch(epoch)]
    longest = 0.0
    for step, rows in enumerate(batches):
        logits = columns["bank"][rows] @ before["bank"]
        for name in names:
            received = said[name, "bank", "activation", step][:, 0]
            longest = max(longest, abs(received).max())
            logits = logits + np.clip(received, -0.7, 0.7)
            used = np.clip(said["bank", name, "gradient", step][:, 0], -0.4 / len(rows), 0.4 / len(rows))
            before[name] = before[name] - RATE * columns[name][rows].T @ used
        residues = sigmoid(logits) - bank.labels.numpy()[rows]  # type: ignore[union-attr]
        before["bank"] = before["bank"] - RATE * columns["bank"][rows].T @ residues / len(rows)
    assert longest > 5  # far beyond the bound
    for name, weight in weights_of(trainer).items():
        # Ten steps of float32, each of sums over 16 records.
        np.testing.assert_allclose(weight.double().numpy(), before[name], rtol=2e-5, atol=2e-6)


def test_a_bound_that_nothing_exceeds_changes_nothing() -> None:
    plain, bounded = (
        trainer_of(exchange, {"shop": 4}, approximation="exact", defenses=NOISE, audit=False)
        for exchange in (Split(), Split(receiver_clips=ReceiverClips(activation=1e3, coefficient=1e3)))
    )
    plain.fit(2)
    bounded.fit(2)
    for left, right in zip(weights_of(plain).values(), weights_of(bounded).values(), strict=True):
        assert torch.equal(left, right)


# --- a hostile sender


def sent(kind: str, payload: Tensor, sender: str, receiver: str) -> Half:
    """A sender that says what it likes, whatever it hears."""
    other = {"activation": "gradient", "gradient": "activation"}[kind]
    heard = awaited(receiver, other, shape=tuple(payload.shape))
    yield Outbox(send=(Message(sender, receiver, kind, 0, payload),), wait=(heard,))


def step_of_bank(payload: Tensor, clips: ReceiverClips) -> dict[str, Tensor]:
    active = active_party(1, optimizer=sgd)
    active.connect("telecom")
    converse(
        {
            ACTIVE: active_step(active, active.train_batch(ROWS), 0, clips=clips),
            "telecom": sent("activation", payload, "telecom", ACTIVE),
        }
    )
    return {name: weight.clone() for name, weight in active.top.state_dict().items()}


def step_of_telecom(payload: Tensor, clips: ReceiverClips) -> tuple[dict[str, Tensor], list[Tensor]]:
    party, seen = passive_party("telecom", optimizer=sgd), list[Tensor]()

    class Looks:
        needs = frozenset({"gradient"})

        def __call__(self, view: Any, /) -> None:
            seen.append(view.gradient.clone())

    party.observers.append(Looks())
    converse(
        {
            "telecom": passive_step(party, party.train_batch(ROWS), 0, active=ACTIVE, clips=clips),
            ACTIVE: sent("gradient", payload, ACTIVE, "telecom"),
        }
    )
    return {name: weight.clone() for name, weight in party.bottom.state_dict().items()}, seen


@pytest.mark.parametrize("size", [1.5, 1e4, 3e38])
def test_a_row_that_is_too_long_is_taken_for_one_at_the_bound(size: float) -> None:
    rows = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    unit = rows / rows.norm(dim=1, keepdim=True)
    hostile, within = unit.clone(), unit.clone()
    hostile[2:] *= size
    rows_used = bounded_rows(hostile, 1.0)
    # Of a row at the bound the norm rounds to either side of it.
    torch.testing.assert_close(rows_used, within, rtol=1e-6, atol=1e-6)
    clips = ReceiverClips(activation=1.0, coefficient=6.0)  # of six rows, 1 each
    for found, same in (
        (step_of_bank(hostile, clips), step_of_bank(rows_used, ReceiverClips())),
        (step_of_telecom(hostile, clips)[0], step_of_telecom(rows_used, ReceiverClips())[0]),
    ):
        assert same_weights(found, same)


def test_a_partys_own_attacks_see_what_came() -> None:
    hostile = torch.full((6, WIDTH), 50.0)
    _, seen = step_of_telecom(hostile, ReceiverClips(coefficient=1.0))
    assert torch.equal(seen[0], hostile)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_is_refused_and_not_clipped(poison: float) -> None:
    rows = torch.zeros(6, WIDTH)
    rows[3, 1] = poison
    clips = ReceiverClips(activation=1.0, coefficient=1.0)
    for step in (step_of_bank, step_of_telecom):
        with pytest.raises(ProtocolError, match="NaN or infinite"):
            step(rows, clips)


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=6, max_size=6),
    st.floats(1e-6, 1e6),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_no_row_is_longer_than_its_bound_and_none_is_turned(
    values: list[float], bound: float, width: int, dtype: torch.dtype
) -> None:
    rows = torch.tensor(values).to(dtype).reshape(-1, width)
    found = bounded_rows(rows, bound)
    assert found.dtype == dtype
    norms = torch.linalg.vector_norm(found.double(), dim=1)
    # Whatever the type rounds to: the norm itself is calculated to 53 bits.
    assert bool((norms <= bound * (1 + 1e-15)).all())
    before, eps = torch.linalg.vector_norm(rows.double(), dim=1), torch.finfo(dtype).eps
    kept = before <= bound * (1 - 2 * eps)
    assert torch.equal(found[kept], rows[kept])
    assert bool((norms[before > bound] >= bound * (1 - 6 * eps)).all())  # and no shorter than rounding needs
    turned = (rows.double() * found.double()).sum(dim=1) - before * norms
    assert bool((turned.abs() <= 8 * eps * before * norms + 1e-30).all())


# --- in a file


FILE = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error"]}
  far: {role: passive, columns: ["worst *"]}
model: {name: logistic-regression, init: zero, row_norm: 1.0}
exchange: {name: split, CLIPS}
train: {epochs: 2, batch_size: 64, optimizer: {name: sgd, lr: 0.5}, noise_seed_for_experiments: 3}
defenses:
  - {name: gaussian-ir, clip: 1.0, sigma: 4.0, at: training}
  - {name: coefficient-noise, clip: 1.0, sigma: 4.0, scale: 1.0}
audit: false
network: {listen: "127.0.0.1:PORT", plaintext_on_loopback: true, meeting_s: 60, message_s: 60}
"""
IN_FILE = "receiver_clips: {activation: 1.0, coefficient: 1.0}"


def config_of(folder: Path, clips: str = IN_FILE, port: int = 1) -> Any:
    text = FILE.replace("CLIPS", clips).replace("PORT", str(port))
    return parse_config(text, source=folder / "run.yaml")


def test_over_a_network_it_is_the_same_to_the_bit(tmp_path: Path) -> None:
    config = config_of(tmp_path, port=free_ports(1)[0])
    threads = [
        threading.Thread(target=run_party, args=(config, name, tmp_path / name)) for name in ("clinic", "lab", "far")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    trainer = build_trainer(config, load_data(config))
    trainer.fit(2)
    modules = {"clinic": trainer.active.top, **{name: one.bottom for name, one in trainer.passives.items()}}
    for name, module in modules.items():
        assert same_weights(saved_weights_of(tmp_path / name), module.state_dict())
    wide = build_trainer(config_of(tmp_path, "wire: null"), load_data(config))
    wide.fit(2)
    assert not torch.equal(trainer.active.top.intercept, wide.active.top.intercept)


def test_the_bounds_are_agreed_on(tmp_path: Path) -> None:
    plain, clipped, other = (
        party_run(config_of(tmp_path, clips), "lab", tmp_path / "run").settings.terms
        for clips in ("wire: null", IN_FILE, IN_FILE.replace("activation: 1.0", "activation: 2.0"))
    )
    assert plain.items() <= clipped.items()  # without them, terms are as ever
    assert clipped["receivers clip activations to"] == 1.0
    assert {key for key in clipped if clipped[key] != other[key]} == {"receivers clip activations to"}


@pytest.mark.parametrize("clips", ["{activation: 0}", "{coefficient: -1}", "{activation: .inf}", "{norm: 1}"])
def test_a_bound_is_above_zero(clips: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.yaml:8: exchange\.receiver_clips"):
        config_of(tmp_path, f"receiver_clips: {clips}")
