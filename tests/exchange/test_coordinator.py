"""A third party with the only key: the same weights, and what each of them could read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splitvfl.crypto.integers import tensor_to_integers
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.paillier import generate_keys
from splitvfl.crypto.tags import TAG_BYTES
from splitvfl.errors import CryptoError, DataError
from splitvfl.exchange.coordinator import NAME, Coordinator
from splitvfl.messaging.messages import Message
from splitvfl.run.trainer import Trainer
from tests.exchange.logistic import BATCH, SHORT, by_hand, data_of, taylor_coefficient, trainer_of, weights_of

KEY = generate_keys(512, insecure_for_tests=True)
# float32 weights of size 1 over 10 steps, and gradients that err by 1.3e-7 · parties.
ROUNDING = 2e-6


def coordinated(**changes: object) -> Coordinator:
    return Coordinator(rows=BATCH, encryption=SHORT.model_copy(update=changes), key=KEY)


@pytest.mark.parametrize("widths", [{"lab": 4}, {"lab": 3, "shop": 2, "telecom": 4}], ids=["one", "three"])
def test_weights_are_those_of_a_slow_loop(widths: dict[str, int]) -> None:
    trainer = trainer_of(coordinated(), widths)
    expected = by_hand(trainer, 2, taylor_coefficient, 4.0)
    trainer.fit(2)
    for party, weight in weights_of(trainer).items():
        assert np.allclose(weight.numpy(), expected[party], rtol=0, atol=ROUNDING), party


def test_all_go_through_the_active_party_and_nothing_of_a_step_crosses_in_the_clear() -> None:
    messages: list[Message] = []
    trainer_of(coordinated(), {"lab": 3, "shop": 2}, record=messages.append).fit(1)
    assert {frozenset((message.sender, message.receiver)) for message in messages} == {
        frozenset(("bank", other)) for other in ("lab", "shop", NAME)
    }
    kinds = {"turn", "logits", "residues", "sums", "asked", "answered", "opened"}
    assert {message.kind for message in messages} == kinds
    # A turn is the number of a step.
    assert {message.payload.dtype for message in messages if message.kind != "turn"} == {torch.uint8}


def test_the_coordinator_and_one_party_together_read_every_label() -> None:
    messages: list[Message] = []
    trainer = trainer_of(coordinated(), {"lab": 2}, record=messages.append)
    for party in (trainer.active, *trainer.passives.values()):
        for parameter in party.module.parameters():
            torch.nn.init.zeros_(parameter)
    trainer.fit(1)
    first = next(message.payload for message in messages if message.kind == "residues")
    coefficients = Owner(KEY).decrypt(first)
    labels = trainer.active.train_batch(trainer.batches.epoch(0)[0]).labels
    assert labels is not None
    # f = -2 y with zero weights, in 32 fraction bits.
    assert coefficients == [int(-2 * (2 * label - 1)) << 32 for label in labels.tolist()]


def test_the_coordinator_alone_decrypts_masked_sums_only() -> None:
    messages: list[Message] = []
    trainer_of(coordinated(), {"lab": 2}, record=messages.append).fit(1)
    asked = [message.payload for message in messages if message.kind == "asked"]
    exchange = coordinated()
    width = KEY.public.ciphertext_bytes
    # One ciphertext of the bank, for its three columns and the intercept, and one of the lab, with its code behind it.
    assert {len(payload) for payload in asked} == {2 * width + TAG_BYTES}
    asked = [payload[:-TAG_BYTES].reshape(2, width) for payload in asked]
    for payload in asked:
        for value, sums in zip(Owner(KEY).decrypt(payload), (4, 2), strict=True):
            # A mask is uniform modulo n, of 512 bits: so much shorter it is with a probability below 2^-100.
            assert value.bit_length() > sums * exchange.layout(sums, 2).slot_bits + 20
    sums = [number for payload in asked for number in tensor_to_integers(payload, width)]
    assert len(set(sums)) == len(sums)


def test_losses_of_steps_are_not_known_and_those_of_evaluations_are() -> None:
    seen: list[float] = []
    trainer = trainer_of(coordinated(), {"lab": 2})
    figures = trainer.fit(1, progress=lambda status: seen.append(status.loss))
    assert np.isnan(seen).all()
    assert np.isfinite(figures["loss"])


def test_more_sums_than_agreed_are_refused() -> None:
    trainer = trainer_of(coordinated(most_columns=3), {"lab": 4})
    with pytest.raises(DataError, match="asks for 4 sums"):
        trainer.fit(1)


def test_a_part_above_the_limit_is_not_sent() -> None:
    messages: list[Message] = []
    trainer = trainer_of(coordinated(value_limit=4.0), {"lab": 4}, record=messages.append)
    torch.nn.init.constant_(trainer.passives["lab"].bottom.weight, 100.0)
    with pytest.raises(CryptoError, match="lab would send a value of size"):
        trainer.fit(1)
    assert not [message for message in messages if message.sender == "lab" and message.kind == "logits"]


def test_parts_within_the_limit_may_add_up_to_more() -> None:
    trainer = trainer_of(coordinated(value_limit=8.0), {"lab": 1, "shop": 1}, own=1)
    for party in (trainer.active, *trainer.passives.values()):
        columns = party.data.train.columns.numeric
        columns.copy_(columns.abs().clamp(0.5, 1.0))
        party.weights.optimizer.param_groups[0]["lr"] = 1e-6  # type: ignore[union-attr]
    for passive in trainer.passives.values():
        torch.nn.init.constant_(passive.bottom.weight, 7.5)
    torch.nn.init.constant_(trainer.active.top.own.weight, 5.0)  # type: ignore[union-attr, arg-type]
    expected = by_hand_gradient(trainer)
    before = weights_of(trainer)["lab"].clone()
    trainer.fit(1)
    # Five steps of 1e-6 times a gradient of about three, seen through float32 weights of size 8.
    moved = (before - weights_of(trainer)["lab"]).item()
    assert moved == pytest.approx(5e-6 * expected, abs=3e-6)
    assert expected > 2


def by_hand_gradient(trainer: Trainer) -> float:
    """The gradient of the lab's weight over all training records, with weights as they are."""
    bank, lab, shop = (
        party.data.train.columns.numeric[:, 0].double() for party in (trainer.active, *trainer.passives.values())
    )
    labels = trainer.active.data.train.labels
    assert labels is not None
    logits = 5.0 * bank + 7.5 * (lab + shop)
    return ((logits - 2 * (2 * labels.double() - 1)) * lab).mean().item() / 4


def test_columns_above_the_limit_are_refused_before_anything_crosses() -> None:
    largest = data_of("lab", 4).train.columns.numeric.abs().max().item()
    with pytest.raises(DataError, match="feature_limit"):
        trainer_of(coordinated(feature_limit=largest / 2), {"lab": 4})
