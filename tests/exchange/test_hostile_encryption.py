"""What a party that deviates from an encrypted exchange can send: a clear error, and no weight changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from splitvfl.conversation import Half, Outbox, converse
from splitvfl.crypto.keys import PublicKey
from splitvfl.crypto.paillier import generate_keys
from splitvfl.errors import SplitVFLError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from tests.exchange.logistic import BATCH, SHORT, trainer_of, weights_of

EXCHANGES: dict[str, Callable[[], Exchange]] = {
    "residue": lambda: Residue(rows=BATCH, encryption=SHORT),
    "taylor": lambda: Taylor(rows=BATCH, encryption=SHORT),
}
KINDS = {"residue": ["residues", "sums"], "taylor": ["logits", "residues", "relayed", "sums", "asked"]}
WIDTHS = {"lab": 4, "shop": 2, "telecom": 5}


DAMAGE: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "above n²": lambda payload: torch.full_like(payload, 255),
    "a row less": lambda payload: payload[:-1],
    "a row more": lambda payload: torch.cat([payload, payload[:1]]),
    "shorter rows": lambda payload: payload[:, :-1].contiguous(),
    "numbers instead": lambda payload: payload.float(),
}
CASES = [(name, kind, damage) for name, kinds in KINDS.items() for kind in kinds for damage in DAMAGE]


def _tampering(half: Half, kind: str, damage: Callable[[Tensor], Tensor]) -> Half:
    """A half whose messages of one kind are damaged on their way out."""
    outbox = next(half)
    while True:
        sent = tuple(
            replace(message, payload=damage(message.payload)) if message.kind == kind else message
            for message in outbox.send
        )
        inbox = yield Outbox(send=sent, wait=outbox.wait)
        try:
            outbox = half.send(inbox)
        except StopIteration as stop:
            return stop.value


@pytest.mark.parametrize(("name", "kind", "damage"), CASES)
def test_what_is_no_ciphertext_is_refused_and_nothing_learned(name: str, kind: str, damage: str) -> None:
    trainer = trainer_of(EXCHANGES[name](), WIDTHS)
    sides = trainer._sides
    converse({party: side.open() for party, side in sides.items()})
    before = weights_of(trainer)
    rows = trainer.batches.epoch(0)[0]
    batches = {party.name: party.train_batch(rows) for party in trainer._parties}
    halves = {party: _tampering(side.step(batches[party], 0), kind, DAMAGE[damage]) for party, side in sides.items()}
    with pytest.raises(SplitVFLError, match=r"expected|ciphertext"):
        converse(halves)
    for party, weight in weights_of(trainer).items():
        assert torch.equal(weight, before[party])


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_multiple_of_a_factor_of_n_is_refused(name: str) -> None:
    """Whoever knew one had broken the key; the owner of another key may send one to see what happens."""
    key = generate_keys(512, insecure_for_tests=True)
    exchange = EXCHANGES[name]()
    exchange.key = key  # type: ignore[attr-defined]
    multiple = (int(key.p) * 12345).to_bytes(key.public.ciphertext_bytes, "big")
    damaged = torch.frombuffer(bytearray(multiple), dtype=torch.uint8)
    trainer = trainer_of(exchange, {"lab": 4})
    converse({party: side.open() for party, side in trainer._sides.items()})
    rows = trainer.batches.epoch(0)[0]
    halves = {
        party.name: _tampering(
            trainer._sides[party.name].step(party.train_batch(rows), 0),
            "sums",
            lambda payload: damaged.repeat(len(payload), 1),
        )
        for party in trainer._parties
    }
    with pytest.raises(SplitVFLError, match="coprime to n"):
        converse(halves)


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("wrong", ["zero", "even", "prime"])
def test_what_is_no_key_is_refused(name: str, wrong: str) -> None:
    trainer = trainer_of(EXCHANGES[name](), {"lab": 4})
    number = {"zero": 0, "even": 1 << 511, "prime": (1 << 512) - 569}[wrong]
    tensor = torch.frombuffer(bytearray(number.to_bytes(64, "big")), dtype=torch.uint8)
    halves = {
        party: _tampering(side.open(), "key", lambda payload: tensor.expand_as(payload).contiguous())
        for party, side in trainer._sides.items()
    }
    with pytest.raises(SplitVFLError, match=r"expected .*(key|product|bits)"):
        converse(halves)


def test_a_key_of_another_length_than_agreed_is_refused() -> None:
    short = PublicKey(generate_keys(256, insecure_for_tests=True).public.n, insecure_for_tests=True).to_tensor()
    trainer = trainer_of(EXCHANGES["residue"](), {"lab": 4})
    halves = {party: _tampering(side.open(), "key", lambda payload: short) for party, side in trainer._sides.items()}
    with pytest.raises(SplitVFLError, match=r"expected key .* to be 64 in uint8, got 32"):
        converse(halves)
