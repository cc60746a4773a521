"""A passive party that asks for other sums than its own: what it reads, and what the bounded mask leaves of it.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, section 5.2.
"""

from __future__ import annotations

from dataclasses import replace

import gmpy2
import pytest
import torch

from splitvfl.attacks.packed_equations import packed_selections, slots_available, unpack_equations
from splitvfl.conversation import Half, Outbox, converse
from splitvfl.crypto import unpack
from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.data.columns import Records
from splitvfl.exchange.paillier import COLUMNS, Encryption, awaited_bytes
from splitvfl.exchange.residue import Residue
from splitvfl.messages import Message
from splitvfl.party import PassiveParty
from tests.exchange.logistic import BATCH, SHORT, trainer_of

COLUMNS_HELD = 4


def _malicious_step(
    party: PassiveParty, batch: Records, active: str, exchange: Residue, modulus: int, slot_bits: int
) -> Half:
    """Follow the protocol, but for the weights: each packs single records into the slots of one plaintext."""
    budget = exchange.encryption.budget(exchange.rows, COLUMNS_HELD)
    width = (2 * exchange.encryption.key_bits + 7) // 8
    sent = Message(party.name, active, "activation", 0, party.activate(batch).detach())
    inbox = yield Outbox(send=(sent,), wait=(awaited_bytes(active, "residues", 0, (batch.count, width)),))
    values = tensor_to_integers(inbox[active].payload, width)
    weights = packed_selections(
        batch.count,
        ciphertexts=budget.replies,
        slot_bits=slot_bits,
        value_bound=budget.value_size,
        modulus=modulus,
    )
    square = gmpy2.mpz(modulus) ** 2
    sums = []
    for row in weights:
        total = gmpy2.mpz(1)
        for value, weight in zip(values, row, strict=True):
            total = total * gmpy2.powmod(value, weight, square) % square
        sums.append(int(total))
    reply = Message(party.name, active, "sums", 0, integers_to_tensor(sums, width))
    shape = (budget.replies, budget.opened_bytes)
    inbox = yield Outbox(send=(reply,), wait=(awaited_bytes(active, "opened", 0, shape),))
    return tensor_to_integers(inbox[active].payload, budget.opened_bytes)


def _attacked(encryption: Encryption) -> tuple[list[int], list[int], int, int]:
    """Return what the attacker was told, the encoded residues, the modulus and the width of its slots."""
    exchange = Residue(rows=BATCH, encryption=encryption)
    trainer = trainer_of(exchange, {"lab": COLUMNS_HELD}, approximation="exact")
    sides, lab = trainer._sides, trainer.passives["lab"]
    seen: list[Message] = []
    opening = {
        "bank": sides["bank"].open(),
        "lab": _opening(encryption, seen),
    }
    converse(opening)
    modulus = int.from_bytes(bytes(seen[0].payload.tolist()), "big")
    rows = trainer.batches.epoch(0)[0]
    batch = lab.train_batch(rows)
    bank = trainer.active.train_batch(rows)
    logits = lab.activate(batch).detach().squeeze(1) + trainer.active.top.active_logits(bank.columns.numeric).squeeze(1)
    residues = (torch.sigmoid(logits) - bank.labels).detach().double()
    budget = encryption.budget(BATCH, COLUMNS_HELD)
    slot_bits = budget.value_size.bit_length() + 2
    halves = {
        "bank": sides["bank"].step(bank, 0),
        "lab": _malicious_step(lab, batch, "bank", exchange, modulus, slot_bits),
    }
    told = converse(halves)["lab"]
    return told, budget.encode_values(residues).tolist(), modulus, slot_bits


def _opening(encryption: Encryption, seen: list[Message]) -> Half:
    own = Message("lab", "bank", COLUMNS, 0, torch.tensor([COLUMNS_HELD]))
    inbox = yield Outbox(send=(own,), wait=(encryption.awaited_key("bank"),))
    seen.append(inbox["bank"])


def test_a_uniform_mask_lets_one_ciphertext_tell_far_more_records_than_there_are_columns() -> None:
    told, truth, modulus, slot_bits = _attacked(replace(SHORT, mask="uniform"))
    slots = slots_available(modulus.bit_length(), slot_bits)
    assert len(told) == 1
    assert COLUMNS_HELD < slots < BATCH
    read = unpack_equations(told, slot_bits=slot_bits, count=slots, modulus=modulus)
    # Residues are float32 on the wire's other side: 2^-24 of one is 2^8 of an encoded one.
    assert read == pytest.approx(truth[:slots], abs=2**10)
    assert [value > 0 for value in read] == [value > 0 for value in truth[:slots]]


def test_a_bounded_mask_leaves_as_many_bits_as_the_agreed_sums_take() -> None:
    told, truth, modulus, slot_bits = _attacked(SHORT)
    budget = SHORT.budget(BATCH, COLUMNS_HELD)
    bits = COLUMNS_HELD * budget.slot_bits
    assert told[0].bit_length() <= bits
    whole = bits // slot_bits
    assert whole < slots_available(modulus.bit_length(), slot_bits)
    # What comes back are the low bits: so many records, and of the rest nothing.
    low = told[0] & ((1 << whole * slot_bits) - 1)
    signed = low - (1 << whole * slot_bits) if low >> (whole * slot_bits - 1) else low
    read = unpack(signed, slot_bits=slot_bits, count=whole, modulus=modulus)
    assert read == pytest.approx(truth[:whole], abs=2**10)
