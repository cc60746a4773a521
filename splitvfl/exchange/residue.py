"""Logistic regression with encrypted residues: logits go one way in the clear, residues the other way encrypted.

The active party has the key. It learns every passive party's part of the logits; a passive party learns the gradients
of its own weights, and no residue, as long as the key is not broken. **That does not hide the labels**: as many
gradients as there are records in a batch give the residues by solving equations, and fewer add up over epochs.
Encryption does not help against either; defenses of the residues do.

A step: logits → encrypted residues ``⟦f⟧`` → masked ``⟦Xᵀf + r⟧`` → masked plaintexts → the passive party unmasks.

Source: Yang et al., *Parallel distributed logistic regression for vertical federated learning without third-party
coordinator*, arXiv:1911.09824.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.owner import Owner
from splitvfl.cut.views import SUMS
from splitvfl.data.columns import Records
from splitvfl.exchange.base import Approximation, Side
from splitvfl.exchange.linear import columns_of
from splitvfl.exchange.paillier import (
    COLUMNS,
    KEY,
    EncryptedExchange,
    EncryptedSide,
    awaited_bytes,
    counting,
    decrypt_masked,
    refusing,
    remembered,
    scatter,
    unmasked,
)
from splitvfl.exchange.split import loss_and_gradients, update
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, PassiveParty


class Residue(EncryptedExchange):
    """Logistic regression whose residues cross under Paillier encryption.

    A run ends with the weights of :class:`~splitvfl.exchange.oracle.Oracle` up to fixed-point errors: each gradient
    errs by at most :attr:`Encryption.error <splitvfl.exchange.paillier.Encryption.error>`.

    Args:
        approximation: The sigmoid's in the loss of the active party's task.
        common: As for :class:`~splitvfl.exchange.paillier.EncryptedExchange`; the key is the active party's.
    """

    name = "residue"
    seen = ("each passive party's logits", "the gradient of its weights")
    computes_at_active = False
    passes_on_keys = False

    def __init__(self, *, approximation: Approximation = "exact", **common: Any) -> None:
        super().__init__(**common)
        self.approximation = approximation

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party."""
        return {**super().terms(), "approximation": self.approximation}

    def active_side(self, party: ActiveParty) -> Side:
        """Return the active party's side."""
        return _Active(party, self)

    def passive_side(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side."""
        return _Passive(party, active, self)


class _Active(EncryptedSide):
    def __init__(self, party: ActiveParty, exchange: Residue) -> None:
        super().__init__(exchange)
        self._party, self._exchange = party, exchange
        self._columns: dict[str, int] = {}

    def open(self) -> Half:
        """Send the public key, and learn how many columns each passive party has."""
        party, encryption = self._party, self._exchange.encryption
        public = self.take_key().key_to_send()
        inbox = yield Outbox(
            send=scatter(dict.fromkeys(party.cuts, public), party.name, KEY, 0),
            wait=tuple(map(encryption.awaited_columns, party.cuts)),
        )
        self._columns = {name: encryption.read_columns(inbox[name]) for name in party.cuts}

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step; its result is the batch's loss."""
        party, owner = self._party, self._owner
        assert owner is not None, "keys cross first"
        inbox = yield Outbox(wait=party.await_activations("activation", step, batch.count))
        value, gradients = loss_and_gradients(party, inbox, batch, step)
        layouts = {
            name: self._exchange.encryption.layout(self._exchange.rows, self._columns[name]) for name in gradients
        }
        # Times the batch's size: a residue is of the size of one, whatever the batch.
        residues = {name: _column(gradient) * batch.count for name, gradient in gradients.items()}
        with counting(party, step):
            for values in residues.values():
                self._exchange.encryption.check_values(values, party.name, step)
        encrypted = _encrypted_once(
            owner, {name: layouts[name].encode_values(values) for name, values in residues.items()}
        )
        width = owner.public.ciphertext_bytes
        inbox = yield Outbox(
            send=scatter(encrypted, party.name, "residues", step),
            wait=tuple(awaited_bytes(name, "sums", step, (layouts[name].replies, width)) for name in gradients),
        )
        plain = {name: decrypt_masked(owner, inbox[name], layouts[name]) for name in gradients}
        yield Outbox(send=scatter(plain, party.name, "opened", step))
        party.update()
        return value


def _column(gradient: Tensor) -> Tensor:
    return gradient.detach().cpu().double().squeeze(1)


def _encrypted_once(owner: Owner, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the encrypted values for each passive party; equal ones, as without defenses, are encrypted once."""
    made: list[tuple[Tensor, Tensor]] = []
    found = {}
    for name, plain in values.items():
        ready = next((sent for known, sent in made if torch.equal(known, plain)), None)
        if ready is None:
            ready = owner.encrypt(plain)
            made.append((plain, ready))
        found[name] = ready
    return found


class _Passive(EncryptedSide):
    shown = SUMS

    def __init__(self, party: PassiveParty, active: str, exchange: Residue) -> None:
        super().__init__(exchange)
        self._party, self._active, self._exchange = party, active, exchange
        self._layout = exchange.encryption.layout(exchange.rows, party.data.train.columns.numeric.shape[1])
        self._evaluator: Evaluator | None = None

    def open(self) -> Half:
        """Say how many columns it has, and receive the public key."""
        party, encryption = self._party, self._exchange.encryption
        columns = torch.tensor([self._layout.outputs])
        inbox = yield Outbox(
            send=(Message(party.name, self._active, COLUMNS, 0, columns),),
            wait=(encryption.awaited_key(self._active),),
        )
        self._evaluator = self._engine.evaluator(encryption.read_key(inbox[self._active]), self._layout)

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step."""
        party, active, evaluator, layout = self._party, self._active, self._evaluator, self._layout
        assert evaluator is not None, "keys cross first"
        activation = party.activate(batch).detach()
        sent = party.defend_activation(activation, batch, step)
        shape = (batch.count, evaluator.public.ciphertext_bytes)
        inbox = yield Outbox(
            send=(Message(party.name, active, "activation", step, sent),),
            wait=(awaited_bytes(active, "residues", step, shape),),
        )
        weights = layout.encode_weights(columns_of(batch).cpu())
        with refusing(inbox[active]):
            masked = evaluator.masked_sums([(inbox[active].payload, weights)])
        self.check_new(inbox[active], evaluator.public)
        inbox = yield Outbox(
            send=(Message(party.name, active, "sums", step, masked.reply),),
            wait=(awaited_bytes(active, "opened", step, (layout.replies, layout.opened_bytes)),),
        )
        sums = unmasked(party, inbox[active], evaluator, masked) / batch.count
        remembered(party, replace(inbox[active], payload=sums))
        party.clear_gradients()
        party.learn_sum(activation, sums.unsqueeze(1).to(activation.device), batch, step)
        update(party, step, active)
