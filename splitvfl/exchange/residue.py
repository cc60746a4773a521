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

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from splitvfl.crypto.owner import Owner
from splitvfl.data.columns import Records
from splitvfl.exchange.base import Approximation, Side
from splitvfl.exchange.linear import columns_of, learn_sum
from splitvfl.exchange.paillier import COLUMNS, KEY, EncryptedExchange, PartySide, PassiveSide, awaited_bytes, scatter
from splitvfl.exchange.split import loss_and_gradients
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.party.party import ActiveParty, PassiveParty

_E = TypeVar("_E", bound=EncryptedExchange)


class Residue(EncryptedExchange):
    """Logistic regression whose residues cross under Paillier encryption.

    A run ends with the weights of :class:`~splitvfl.exchange.oracle.Oracle` up to fixed-point errors: each gradient
    errs by at most :attr:`Encryption.error <splitvfl.exchange.paillier.Encryption.error>`.

    Works with: model logistic-regression, numeric columns, labels 0 and 1.

    Cost: every step one encryption for each record, and a sum under encryption for each column of a passive party;
    compare ``python -m scripts.bench.encrypted_epoch`` on your own machine.

    In a file: ``exchange: {name: residue, encryption: {key_bits: 3072}}``

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


class ResidueActive(PartySide[ActiveParty, _E]):
    """The active party's side of an exchange that sends encrypted residues, and decrypts masked sums of them."""

    def __init__(self, party: ActiveParty, exchange: _E) -> None:
        super().__init__(party, exchange)
        self._columns: dict[str, int] = {}

    def open(self) -> Half:
        """Send the public key, and learn how many columns each passive party has."""
        party, public = self._party, self.take_key().key_to_send()
        keys = scatter(dict.fromkeys(party.cuts, public), party.name, KEY, 0)
        self._columns = yield from self._exchange.encryption.receive_columns(party.cuts, send=keys)

    def send_residues(self, residues: Mapping[str, Tensor], step: int) -> Half:
        """Send each passive party its residues, encrypted, and decrypt the masked sums that it asks for.

        Args:
            residues: For each passive party, ``(n,)``, float64, on the CPU.
            step: Number of the step.
        """
        party, exchange, owner = self._party, self._exchange, self.owner
        layouts = {name: exchange.encryption.layout(exchange.rows, self._columns[name]) for name in residues}
        with self.counting(step):
            encoded = {name: exchange.encode(values, party.name, step) for name, values in residues.items()}
        encrypted = _encrypted_once(owner, encoded)
        width = owner.public.ciphertext_bytes
        inbox = yield Outbox(
            send=scatter(encrypted, party.name, "residues", step),
            wait=tuple(awaited_bytes(name, "sums", step, (layouts[name].replies, width)) for name in residues),
        )
        plain = {name: self.decrypt_masked(inbox[name], layouts[name]) for name in residues}
        yield Outbox(send=scatter(plain, party.name, "opened", step))


class _Active(ResidueActive[Residue]):
    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step; its result is the batch's loss."""
        party = self._party
        inbox = yield Outbox(wait=party.await_activations("activation", step, batch.count))
        value, gradients = loss_and_gradients(party, inbox, batch, step, own_part=self._exchange.own_part)
        # Times the batch's size: a residue is of the size of one, whatever the batch.
        residues = {name: column_of(gradient) * batch.count for name, gradient in gradients.items()}
        yield from self.send_residues(residues, step)
        party.update()
        return value


def column_of(gradient: Tensor) -> Tensor:
    """Return a gradient of width 1 as ``(n,)``, float64, on the CPU."""
    return gradient.detach().cpu().double().squeeze(1)


def _encrypted_once(owner: Owner, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the encrypted values for each passive party; equal ones, as without defenses, are encrypted once."""
    contents = {name: plain.numpy().tobytes() for name, plain in values.items()}
    different = {contents[name]: plain for name, plain in values.items()}
    encrypted = {content: owner.encrypt(plain) for content, plain in different.items()}
    return {name: encrypted[content] for name, content in contents.items()}


class ResiduePassive(PassiveSide[_E]):
    """The passive party's side of such an exchange."""

    def __init__(self, party: PassiveParty, active: str, exchange: _E) -> None:
        super().__init__(party, active, exchange)
        self._layout = exchange.encryption.layout(exchange.rows, party.data.width)

    def open(self) -> Half:
        """Say how many columns it has, and receive the public key."""
        encryption = self._exchange.encryption
        columns = self.to_active(COLUMNS, 0, torch.tensor([self._layout.outputs]))
        inbox = yield Outbox(send=columns, wait=(encryption.awaited_key(self._active),))
        self._evaluator = self._engine.evaluator(encryption.read_key(inbox[self._active]), self._layout)

    def step_with(self, batch: Records, step: int, *, divisor: float) -> Half:
        """Return its half of a step with these records.

        Args:
            batch: Records whose part of the logits it sends, and of which it gets encrypted residues.
            step: Number of the step.
            divisor: What the sum of residue times row is divided by.
        """
        party, evaluator, layout = self._party, self.evaluator, self._layout
        activation = party.activate(batch).detach()
        sent = self.to_active("activation", step, party.defend_activation(activation, batch, step))
        shape = (batch.count, evaluator.public.ciphertext_bytes)
        residues = yield from self.from_active("residues", step, shape, send=sent)
        masked = self.masked_sums(residues, evaluator, layout.encode_weights(columns_of(batch).cpu()))
        sums = self.to_active("sums", step, masked.reply)
        opened = yield from self.from_active("opened", step, layout.opened_shape, send=sums)
        gradient = self.unmasked(opened, evaluator, masked) / divisor
        self.remember(opened, gradient)
        learn_sum(party, activation, gradient, batch, step, self._active)


class _Passive(ResiduePassive[Residue]):
    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step."""
        return self.step_with(batch, step, divisor=batch.count)
