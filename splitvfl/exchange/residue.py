"""Logistic regression with encrypted residues: logits go one way in the clear, residues the other way encrypted.

The active party has the key. It learns every passive party's part of the logits; a passive party learns the gradients
of its own weights, and no residue, as long as the key is not broken. **That does not hide the labels**: as many
gradients as there are records in a batch give the residues by solving equations, and fewer add up over epochs.
Encryption does not help against either; defenses of the residues do.

``sum_noise`` adds noise to the masked sums before they are opened, so that one label of a whole run is hidden from a
passive party that multiplies residues with its columns and nothing else (:mod:`splitvfl.exchange.sum_noise`).

A step: logits → encrypted residues ``⟦f⟧`` → masked ``⟦Xᵀf + r⟧`` → masked plaintexts → the passive party unmasks.

Source: Yang et al., *Parallel distributed logistic regression for vertical federated learning without third-party
coordinator*, arXiv:1911.09824.
"""

from __future__ import annotations

import copy
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.data.columns import Records, columns_of, with_one
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Side, check_words
from splitvfl.exchange.linear import learn_sum
from splitvfl.exchange.noise import SumNoiseSettings, checked_noise
from splitvfl.exchange.paillier import COLUMNS, KEY, EncryptedExchange, PartySide, PassiveSide, awaited_bytes, scatter
from splitvfl.exchange.split_step import loss_and_gradients
from splitvfl.exchange.sum_noise import KEY_BYTES, SumNoise, largest_noise
from splitvfl.hooks import hook_name
from splitvfl.learning.losses import Approximation
from splitvfl.learning.randomness import derive_seed
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.party.own_part import OwnPart, set_own
from splitvfl.party.party import ActiveParty, PassiveParty

_E = TypeVar("_E", bound=EncryptedExchange)

# Of these residues lie in [-1, 1], and one label moves them by exactly 1.
_BOUNDED: tuple[Approximation, ...] = ("exact", "piecewise")


class Residue(EncryptedExchange):
    """Logistic regression whose residues cross under Paillier encryption.

    A run ends with the weights of :class:`~splitvfl.exchange.oracle.Oracle` up to fixed-point errors: each gradient
    errs by at most :attr:`Encryption.error <splitvfl.exchange.paillier.Encryption.error>`.

    Works with: model logistic-regression, numeric columns, labels 0 and 1.

    Cost: every step one encryption for each record, and a sum under encryption for each column of a passive party;
    compare ``python -m scripts.bench.encrypted_epoch`` on your own machine.

    In a file: ``exchange: {name: residue, encryption: {key_bits: 3072}}``

    Args:
        approximation: The sigmoid's in the loss of the active party's task; another one there is refused.
        sum_noise: Noise that is calculated for the privacy loss of a label, on the sums that are opened; ``null``:
            none. An experiment calculates it, and nothing else does. With ``own_part: sent`` the active party's own
            weights learn from a noisy sum of its own.
        common: As for :class:`~splitvfl.exchange.paillier.EncryptedExchange`; the key is the active party's.

    Raises:
        ConfigError: If there is noise, and the approximation's residues are not bounded, or ``value_limit`` is below 1.
    """

    name = "residue"
    seen = ("each passive party's logits", "the gradient of its weights")
    multiplied_by = frozenset({"passive"})
    passes_on_keys = False

    def __init__(
        self,
        *,
        approximation: Approximation = "exact",
        sum_noise: SumNoiseSettings | None = None,
        **common: Any,
    ) -> None:
        check_words(approximation=approximation)
        super().__init__(**common)
        self.approximation = approximation
        self.sum_noise = checked_noise("sum_noise", sum_noise, SumNoiseSettings)
        self._noise_seed: int | None = None
        if sum_noise is not None and approximation not in _BOUNDED:
            raise ConfigError(
                f"exchange.sum_noise: the {approximation} sigmoid's residues grow without a bound, and a run that ends "
                f"for a large one tells of its label; take approximation {' or '.join(_BOUNDED)}"
            )
        if sum_noise is not None and self.encryption.largest_value < 1.0:
            raise ConfigError(
                f"exchange.sum_noise: residues are up to 1, and a run that ends for one beyond encryption.value_limit "
                f"{self.encryption.largest_value:g} tells of its label; take a value_limit of 1 at least"
            )

    def repeatable(self, seed: int) -> Residue:
        """Return it with noise on sums that follows from a seed."""
        other = copy.copy(self)
        other._noise_seed = derive_seed(seed, "sum noise")
        return other

    def noise_key(self) -> bytes:
        """Return a new secret, from which all noise on sums of a run follows."""
        if self._noise_seed is None:
            return secrets.token_bytes(KEY_BYTES)
        return hashlib.blake2b(f"{self._noise_seed}/{self.name}".encode(), digest_size=KEY_BYTES).digest()

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party."""
        noise = {} if self.sum_noise is None else {"noise on sums": self.sum_noise.sigma}
        return {**super().terms(), "approximation": self.approximation, **noise}

    def sums_layout(self, outputs: int) -> ProductLayout:
        """Return the layout of the sums that a passive party asks for, with room for their noise."""
        layout = super().sums_layout(outputs)
        if self.sum_noise is None or self.sum_noise.sigma is None:
            return layout
        return replace(layout, plain_limit=largest_noise(self.sum_noise.sigma))

    def active_side(self, party: ActiveParty) -> Side:
        """Return the active party's side.

        Raises:
            ConfigError: If noise was agreed on, and none was calculated; or labels would move more than noisy sums.
        """
        if self.sum_noise is not None:
            _check_noisy(party, self.own_part, most_columns=self.encryption.most_columns)
            self._check_calculated(party.name)
        return _Active(party, self)

    def passive_side(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side.

        Raises:
            ConfigError: If noise was agreed on, and none was calculated.
        """
        self._check_calculated(party.name)
        return _Passive(party, active, self)

    def _check_calculated(self, name: str) -> None:
        if self.sum_noise is not None and self.sum_noise.sigma is None:
            raise ConfigError(
                f"exchange {self.name}: noise on sums is agreed on, and nothing has calculated it at {name}, so that "
                "labels would be protected by nothing: Trainer(exchange=..., epochs=...) has it calculated, and an "
                "experiment's file; take one of them, or give its sigma"
            )


def _check_noisy(party: ActiveParty, own_part: OwnPart, *, most_columns: int) -> None:
    """Refuse what lets labels move a run by another way than through noisy sums, or more of them than was counted.

    Raises:
        ConfigError: If the party's own weights learn from exact residues, a defense changes labels or residues, or it
            has more columns than a party may.
    """
    if party.data.width + 1 > most_columns:
        raise ConfigError(
            f"exchange.sum_noise: {party.name} has {party.data.width} columns, and with the intercept a party may have "
            f"{most_columns}, for which the noise is calculated (exchange.encryption.most_columns); take a larger one"
        )
    learns = any(weight.requires_grad for weight in party.top.parameters())
    if learns and own_part != "sent":
        raise ConfigError(
            f"exchange.sum_noise: with own_part: exact one label moves the own weights of {party.name}, and with them "
            "the later residues of every record, of which the noise knows nothing; write own_part: sent, with which "
            "they learn from a noisy sum of their own, or leave them out (no columns, and model.intercept: false)"
        )
    others = [
        hook_name(one) for chain in (party.labels, *(cut.gradient for cut in party.cuts.values())) for one in chain
    ]
    if others:
        raise ConfigError(
            f"exchange.sum_noise: {' and '.join(dict.fromkeys(others))} at {party.name} changes labels or residues, "
            "and the noise is calculated for residues as they are; leave one of them out"
        )


class ResidueActive(PartySide[ActiveParty, _E]):
    """The active party's side of an exchange that sends encrypted residues, and decrypts masked sums of them."""

    def __init__(self, party: ActiveParty, exchange: _E) -> None:
        super().__init__(party, exchange)

    def with_noise(self, opened: Tensor, receiver: str, step: int, layout: ProductLayout) -> Tensor:
        """Return the masked plaintexts that a party gets of what was decrypted for it: as they are, as a rule."""
        return opened

    def open(self) -> Half:
        """Send the public key, and learn how many columns each passive party has."""
        party, public = self._party, self.take_key().key_to_send()
        keys = scatter(dict.fromkeys(party.cuts, public), party.name, KEY, 0)
        self.columns = yield from self._exchange.encryption.receive_columns(party.cuts, send=keys)

    def send_residues(self, residues: Mapping[str, Tensor], step: int) -> Half:
        """Send each passive party its residues, encrypted, and decrypt the masked sums that it asks for.

        Args:
            residues: For each passive party, ``(n,)``, float64, on the CPU.
            step: Number of the step.
        """
        party, exchange, owner = self._party, self._exchange, self.owner
        layouts = {name: exchange.sums_layout(self.columns[name]) for name in residues}
        with self.counting(step):
            encoded = {name: exchange.encode(values, party.name, step) for name, values in residues.items()}
        encrypted = _encrypted_once(owner, encoded)
        width = owner.public.ciphertext_bytes
        inbox = yield Outbox(
            send=scatter(encrypted, party.name, "residues", step),
            wait=tuple(awaited_bytes(name, "sums", step, (layouts[name].replies, width)) for name in residues),
        )
        plain = {
            name: self.with_noise(self.decrypt_masked(inbox[name], layout), name, step, layout)
            for name, layout in layouts.items()
        }
        yield Outbox(send=scatter(plain, party.name, "opened", step))


class _Active(ResidueActive[Residue]):
    def __init__(self, party: ActiveParty, exchange: Residue) -> None:
        super().__init__(party, exchange)
        agreed = exchange.sum_noise
        self._noise = None if agreed is None or agreed.sigma is None else SumNoise(exchange.noise_key(), agreed.sigma)

    def with_noise(self, opened: Tensor, receiver: str, step: int, layout: ProductLayout) -> Tensor:
        """Return masked plaintexts with the agreed noise on their sums, if there is any."""
        if self._noise is None:
            return opened
        drawn = self._noise.on_integers(receiver, step, layout.outputs, bits=layout.sum_bits)
        return layout.add_to_opened(opened, drawn)

    def state_dict(self) -> dict[str, Any]:
        """Return the secret from which its noise follows: for its owner only."""
        if self._noise is None:
            return super().state_dict()
        return {**super().state_dict(), "sum noise": torch.frombuffer(bytearray(self._noise.key), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        if self._noise is not None:
            self._noise = replace(self._noise, key=bytes(state["sum noise"].tolist()))

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step; its result is the batch's loss."""
        party = self._party
        inbox = yield Outbox(wait=party.await_activations("activation", step, batch.count))
        value, gradients = loss_and_gradients(party, inbox, batch, step, own_part=self._exchange.own_part)
        # Times the batch's size: a residue is of the size of one, whatever the batch.
        residues = {name: column_of(gradient) * batch.count for name, gradient in gradients.items()}
        if self._noise is not None:
            self._learn_noisy(next(iter(residues.values())), batch, step, self._noise)
        yield from self.send_residues(residues, step)
        party.weights.update()
        return value

    def _learn_noisy(self, residues: Tensor, batch: Records, step: int, noise: SumNoise) -> None:
        """Let its own weights learn from a noisy sum: what they make of later residues tells no more than a release."""
        sums = noise.on_own(with_one(columns_of(batch)).cpu().T @ residues, step) / batch.count
        set_own(self._party, sums[:-1], sums[-1:])


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
        claimed = self._engine.claimed(party.data.width, exchange.most_claimed, exchange.sums_layout)
        self._layout = exchange.sums_layout(claimed)

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
