"""Logistic regression with a third party that has the only key, to compare the other exchanges with.

The coordinator has no data. A step, with Taylor's sigmoid, where a record's coefficient ``f = z - 2y`` is a sum of the
parties' parts: every passive party encrypts its part under the coordinator's key; the active party adds them up under
encryption, with its own part, and hands ``⟦f⟧`` to all; each party computes ``⟦Xᵀf⟧`` for its own columns and masks it;
the coordinator decrypts the masked sums. All talk through the active party, which passes on what it cannot read; nor
can it ask the coordinator, or answer, in a passive party's name (:mod:`splitvfl.exchange.passing_on`). It asks in its
own, for as many sums as it says it has columns, over whatever ciphertexts it has, and what it hands out as ``⟦f⟧`` is
its word.

What it reveals: to each party the gradient of its own weights, and nothing to a coordinator that keeps to itself. But a
coordinator and any one party together read every record's coefficient, and so every label: everything rests on a party
that gains nothing by being honest. And on the active party: the coordinator hears from it alone which steps are taken
and who asks, so that one which asks for single parts, in steps that nobody else takes, reads all that passive parties
have encrypted. There is one encryption for each record and party, however many parties there are,
where :mod:`~splitvfl.exchange.taylor` needs sums for each pair. Losses of steps are not known to anybody.

Source: Hardy et al., *Private federated learning on vertically partitioned data via entity resolution and additively
homomorphic encryption*, arXiv:1711.10677, of which this keeps the training; sums are masked, which there the
coordinator sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from splitvfl.crypto.ciphertexts import add_ciphertexts, check_ciphertexts
from splitvfl.crypto.key_agreement import KEY_BYTES, AgreementKey
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.crypto.sum_masks import SumMasks
from splitvfl.data.columns import Records, columns_of, with_one
from splitvfl.errors import ProtocolError
from splitvfl.exchange.base import Side
from splitvfl.exchange.handshake import agreement
from splitvfl.exchange.linear import SCALE, ActiveCoefficients, learn_sum, tell_of_sums
from splitvfl.exchange.masking import check_adds_up, mask_parts
from splitvfl.exchange.paillier import (
    COLUMNS,
    EncryptedExchange,
    EncryptedSide,
    PartySide,
    PassiveSide,
    awaited_bytes,
    refusing,
    scatter,
)
from splitvfl.exchange.passing_on import PassedOn, sealed_bytes
from splitvfl.exchange.roll_call import active_roll_call
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, PassiveParty

NAME = "coordinator"
# In the place of a step's number: no step comes any more.
_END = -1
# A party says how many sums it asks for before it knows how many parties there are.
_MANY = 64


class Coordinator(EncryptedExchange):
    """Logistic regression under the key of a third party.

    A run ends with the weights of :class:`~splitvfl.exchange.oracle.Oracle` with the Taylor approximation up to
    fixed-point errors. The loss of a step is NaN; evaluations tell it.

    Works with: model logistic-regression, numeric columns, labels 0 and 1; a party without data that has the key.

    Cost: every step one encryption for each record and party, and sums under encryption for each column; compare
    ``python -m scripts.bench.encrypted_epoch`` on your own machine.

    In a file: ``exchange: {name: coordinator, encryption: {key_bits: 3072}}``

    Args:
        address: Where, over a network, the active party finds the coordinator; without an address it dials.
        identity: The DNS name in its certificate, if that is not its name.
        common: As for :class:`~splitvfl.exchange.paillier.EncryptedExchange`; the encryption's ``value_limit`` bounds
            each party's part, and the key is the coordinator's.
    """

    name: ClassVar[str] = "coordinator"
    approximation = "taylor"
    hides_parts = True
    residue_unit = SCALE
    third_party = NAME
    seen = ("the gradient of its weights", "the gradient of its weights; with the coordinator together, every label")

    def __init__(self, *, address: str | None = None, identity: str | None = None, **common: Any) -> None:
        super().__init__(**common)
        self.address, self.identity = address, identity

    def active_side(self, party: ActiveParty) -> Side:
        """Return the active party's side."""
        return _Active(party, self)

    def passive_side(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side."""
        return _Passive(party, active, self)

    def third_parties(self, active: str) -> Mapping[str, Side]:
        """Return the coordinator's side."""
        return {NAME: ThirdParty(active, self)}

    @property
    def agreed(self) -> dict[str, object]:
        """Settings that the coordinator and the active party compare."""
        return {**self.terms(), "largest batch": self.rows}

    def bytes_of(self, member: str) -> int:
        """Return how many bytes the keys of a member have: Paillier's only at the coordinator."""
        return super().bytes_of(member) if member == NAME else KEY_BYTES

    def layout(self, outputs: int, parties: int) -> ProductLayout:
        """Return the layout of so many sums over coefficients that are the sum of so many parties' parts."""
        layout = self.encryption.layout(self.rows, outputs)
        return replace(layout, value_limit=parties * layout.value_limit)


class ThirdParty(EncryptedSide):
    """The coordinator: it decrypts, at each step, as many masked sums as were agreed.

    Attributes:
        served: Steps that it has taken part in.
    """

    def __init__(self, active: str, exchange: Coordinator) -> None:
        super().__init__(exchange)
        self._active, self._exchange = active, exchange
        self._own: ProductLayout | None = None  # the active party's
        self._layouts: dict[str, ProductLayout] = {}  # of the passive parties
        self._passed_on: PassedOn | None = None
        self.served = 0

    def open(self) -> Half:
        """Send its key, and learn how many sums each party needs."""
        yield from agreement(NAME, (self._active,), self._exchange.agreed)
        exchange, agreement_key = self._exchange, AgreementKey()
        own = torch.cat([agreement_key.public, self.take_key().key_to_send().flatten()])
        roll = yield from exchange.roll_call(NAME, self._active, own)
        if not roll.keys:
            raise ProtocolError(
                f"{self._active} names no passive party, and a coordinator decrypts for several parties"
            )
        self._passed_on = PassedOn(NAME, self._active, agreement_key, roll.keys, roll.session)
        # Of the active party too, first; each passive party says its own in the code of what it asks.
        sizes = Expected(self._active, COLUMNS, 0, (torch.int64,), (len(roll.keys) + 1,))
        inbox = yield Outbox(wait=(sizes,))
        counts = inbox[self._active].payload.tolist()
        limits = exchange.encryption
        self._own, *layouts = [
            exchange.layout(limits.checked_columns(count, self._active), len(counts)) for count in counts
        ]
        self._layouts = dict(zip(roll.keys, layouts, strict=True))

    def step(self, batch: Records, step: int) -> Half:
        """Decrypt the masked sums of all parties.

        Raises:
            ForgedError: If a passive party has not asked what the active party passes on as its sums.
            ProtocolError: If the active party takes another step.
        """
        turn = yield from self._turn()
        if turn != step:
            raise ProtocolError(f"expected step {step} of {self._active}, got {turn}")
        yield from self._decrypted(step)

    def serve(self) -> Half:
        """Return the half of a whole run over a network: it ends when the active party says so."""
        yield from self.open()
        while (turn := (yield from self._turn())) != _END:
            yield from self._decrypted(turn)

    def _turn(self) -> Half:
        inbox = yield Outbox(wait=(Expected(self._active, "turn", 0, (torch.int64,), (1,)),))
        turn = int(inbox[self._active].payload.item())
        if turn < _END:
            raise ProtocolError(f"expected the number of a step of {self._active}, got {turn}")
        return turn

    def _decrypted(self, step: int) -> Half:
        assert self._own is not None, "keys cross first"
        assert self._passed_on is not None, "keys cross first"
        width, counts = self.owner.public.ciphertext_bytes, {name: one.outputs for name, one in self._layouts.items()}
        shapes = {name: (layout.replies, width) for name, layout in self._layouts.items()}
        start = self._own.replies * width
        inbox = yield Outbox(
            wait=(awaited_bytes(self._active, "asked", step, (start + sealed_bytes(*shapes.values()),)),)
        )
        asked = inbox[self._active]
        own = replace(asked, payload=asked.payload[:start].reshape(-1, width))
        passed = replace(asked, payload=asked.payload[start:])
        theirs = self._passed_on.from_others(passed, "sums", shapes, counts)
        plain = {name: self.decrypt_masked(theirs[name], layout) for name, layout in self._layouts.items()}
        replies = [
            self.decrypt_masked(own, self._own).flatten(),
            self._passed_on.to_others(plain, "opened", step, counts),
        ]
        yield Outbox(send=(Message(NAME, self._active, "answered", step, torch.cat(replies)),))
        self.served += 1


class _Active(PartySide[ActiveParty, Coordinator]):
    def __init__(self, party: ActiveParty, exchange: Coordinator) -> None:
        super().__init__(party, exchange)
        self._layouts: dict[str, ProductLayout] = {}  # its own first

    def open(self) -> Half:
        """Pass on the coordinator's key, and tell it how many sums each party needs."""
        party, exchange, limits = self._party, self._exchange, self._exchange.encryption
        yield from agreement(party.name, (NAME,), exchange.agreed)
        self.columns = yield from limits.receive_columns(party.cuts)
        counts = {party.name: party.data.width + 1, **self.columns}
        self._layouts = {name: exchange.layout(count, len(counts)) for name, count in counts.items()}
        check_adds_up(party)
        lengths = {name: exchange.bytes_of(name) for name in (*party.cuts, NAME)}
        said = yield from active_roll_call(party.name, lengths, exchange.vouching)
        public = limits.key_of(NAME, said[NAME][KEY_BYTES:], sender=NAME, receiver=party.name)
        self._evaluator = self._engine.evaluator(public, self._layouts[party.name])
        party.sums_parts = True
        yield Outbox(send=(Message(party.name, NAME, COLUMNS, 0, torch.tensor([*counts.values()])),))

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step; its result is NaN."""
        party, evaluator = self._party, self.evaluator
        width = evaluator.public.ciphertext_bytes
        own = ActiveCoefficients.of(party, batch, step)
        inbox = yield Outbox(
            send=(self._says(step),),
            wait=tuple(awaited_bytes(name, "logits", step, (batch.count, width)) for name in party.cuts),
        )
        for message in inbox.values():
            with refusing(message):
                check_ciphertexts(message.payload, evaluator.public)
            self.check_new(message, evaluator.public)
        parts = add_ciphertexts(evaluator.public, [inbox[name].payload for name in party.cuts])
        masked = evaluator.masked_sums([(parts, evaluator.layout.encode_weights(with_one(columns_of(batch)).cpu()))])
        coefficients = own.defended(party, batch, step)
        inbox = yield Outbox(
            send=scatter(self._encrypted(coefficients, parts, step), party.name, "residues", step),
            wait=tuple(
                awaited_bytes(name, "sums", step, (sealed_bytes((self._layouts[name].replies, width)),))
                for name in party.cuts
            ),
        )
        asked = torch.cat([masked.reply.flatten(), *(inbox[name].payload for name in party.cuts)])
        shape = evaluator.layout.opened_shape
        sizes = [math.prod(shape), *(sealed_bytes(self._layouts[name].opened_shape) for name in party.cuts)]
        inbox = yield Outbox(
            send=(Message(party.name, NAME, "asked", step, asked),),
            wait=(awaited_bytes(NAME, "answered", step, (sum(sizes),)),),
        )
        own_reply, *replies = inbox[NAME].payload.split(sizes)
        yield Outbox(send=scatter(dict(zip(party.cuts, replies, strict=True)), party.name, "opened", step))
        sums = self.unmasked(replace(inbox[NAME], payload=own_reply.reshape(shape)), evaluator, masked)
        self.remember(inbox[NAME], sums)
        # Of several partners their parts are known in sum only.
        tell_of_sums(party, batch, dict.fromkeys(party.cuts, sums) if len(party.cuts) == 1 else {}, coefficients)
        learned = coefficients if self._exchange.own_part == "sent" else own.coefficients
        own.learn(party, sums, batch, step, own=learned)
        return math.nan

    def leave(self) -> Half:
        """Tell the coordinator that no step comes any more."""
        yield Outbox(send=(self._says(_END),))

    def _says(self, turn: int) -> Message:
        return Message(self._party.name, NAME, "turn", 0, torch.tensor([turn]))

    def _encrypted(self, coefficients: Tensor, parts: Tensor, step: int) -> dict[str, Tensor]:
        """Return the coefficients for each passive party, encrypted: its own, defended, and the others' parts."""
        with self.counting(step):
            values = self._exchange.encode(coefficients, self._party.name, step)
        sent = add_ciphertexts(self.evaluator.public, [parts, self.evaluator.encrypt(values)])
        return dict.fromkeys(self._party.cuts, sent)


class _Passive(PassiveSide[Coordinator]):
    def __init__(self, party: PassiveParty, active: str, exchange: Coordinator) -> None:
        super().__init__(party, active, exchange)
        self._passed_on: PassedOn | None = None

    def open(self) -> Half:
        """Say how many columns it has, and receive the coordinator's key and the names of the parties."""
        party, active, exchange, limits = self._party, self._active, self._exchange, self._exchange.encryption
        width = self._engine.claimed(party.data.width, exchange.most_claimed, partial(exchange.layout, parties=_MANY))
        yield Outbox(send=self.to_active(COLUMNS, 0, torch.tensor([width])))
        agreement_key = AgreementKey()
        roll = yield from exchange.roll_call(party.name, active, agreement_key.public)
        if NAME not in roll.keys:
            raise ProtocolError(f"expected {active} to pass on the key of {NAME}, got those of others only")
        public = limits.key_of(NAME, roll.keys[NAME][KEY_BYTES:], sender=active, receiver=party.name)
        # Those of the roll call, without the coordinator and with the active party.
        self._evaluator = self._engine.evaluator(public, exchange.layout(width, len(roll.keys) + 1))
        peers = {name: said for name, said in roll.keys.items() if name != NAME}
        mask_parts(party, active, SumMasks(agreement_key), peers, roll.session)
        keys = {NAME: roll.keys[NAME][:KEY_BYTES]}
        self._passed_on = PassedOn(party.name, active, agreement_key, keys, roll.session)

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step."""
        party, evaluator, passed_on = self._party, self.evaluator, self._passed_on
        assert passed_on is not None, "keys cross first"
        layout, width = evaluator.layout, evaluator.public.ciphertext_bytes
        activation = party.activate(batch).detach()
        defended = party.defend_activation(activation, batch, step).squeeze(1).double().cpu()
        with self.counting(step):
            logits = evaluator.encrypt(self._exchange.encode(defended, party.name, step))
        sent = self.to_active("logits", step, logits)
        coefficients = yield from self.from_active("residues", step, (batch.count, width), send=sent)
        masked = self.masked_sums(coefficients, evaluator, layout.encode_weights(columns_of(batch).cpu()))
        shapes, counts = {NAME: layout.opened_shape}, {NAME: layout.outputs}
        sent = self.to_active("sums", step, passed_on.to_others({NAME: masked.reply}, "sums", step, counts))
        opened = yield from self.from_active("opened", step, (sealed_bytes(*shapes.values()),), send=sent)
        reply = passed_on.from_others(opened, "opened", shapes, counts)[NAME]
        sums = self.unmasked(reply, evaluator, masked)
        self.remember(opened, sums)
        learn_sum(party, activation, sums / (SCALE * batch.count), batch, step, self._active)
