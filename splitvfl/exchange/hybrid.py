"""Logistic regression in which only the label party knows which records of a batch are used: the hybrid mechanism.

As :mod:`splitvfl.exchange.residue`, but of the agreed batch only some records are used. The label party draws them
(:mod:`splitvfl.exchange.selection`), and hides them among others: it asks for the logits of all of these, and encrypts
a residue for those that are used and a zero for every other. A passive party learns a gradient in more unknowns than it
has columns, without knowing which are zero.

A step: selection ``RR(m)`` → logits of its L records → L encrypted numbers ``⟦f / k⟧`` or ``⟦0⟧`` → masked
``⟦Xᵀf / k + r⟧`` → masked plaintexts → the passive party unmasks.

**That does not hide the labels either**: few numbers that are not zero are found by sparse recovery from fewer
equations than unknowns. :meth:`Hybrid.notes` says what is left.

Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, table I, with the gradient divided
by the number of records that are used, k, and not by the batch's size, which would train at another rate.
"""

from __future__ import annotations

import copy
import hashlib
import math
import secrets
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError, ConfigError, ProtocolError
from splitvfl.exchange.base import Side, check_words
from splitvfl.exchange.paillier import EncryptedExchange, scatter
from splitvfl.exchange.residue import ResidueActive, ResiduePassive, column_of
from splitvfl.exchange.selection import (
    KEY_BYTES,
    Draw,
    SecretBatch,
    epochs_for_success,
)
from splitvfl.exchange.split_step import check_finite, loss_and_gradients, spoiled
from splitvfl.learning.losses import Approximation
from splitvfl.learning.odds import sign_success, unknowns_for_success
from splitvfl.learning.randomness import derive_seed
from splitvfl.messaging.conversation import Expected, Half, Inbox, Outbox
from splitvfl.party.party import ActiveParty, PassiveParty

SELECTION = "selection"

# Far below the outputs that no loss bears (exchange.split), which are looked at of the records that are used only.
_LARGEST_LOGIT = 1e14


class Hybrid(EncryptedExchange):
    """Logistic regression on some records of each batch, which the label party alone knows.

    A run ends with the weights of plain gradient descent on the records that were used, up to fixed-point errors: each
    gradient errs by at most :attr:`error`.

    ``train.batch_size`` is the size of the batch, of which ``share · p`` is used on average. A shorter batch at the end
    of an epoch that cannot hide what is used of it is left out.

    Works with: model logistic-regression, numeric columns, labels 0 and 1.

    Cost: that of exchange residue for each record that is sent, of which ``share · p`` of ``share · p + (1 − share) (1
    − p)`` are used; one byte more for each record of a batch. Compare ``python -m scripts.bench.encrypted_epoch`` on
    your own machine.

    In a file: ``exchange: {name: hybrid, epsilon: 1.0, share: 0.3}``

    Also called: hybrid mechanism.

    Args:
        epsilon: ε of the randomised response on which records are used: a bit is kept with ``p = e^ε / (1 + e^ε)``,
            which rounds to 1 above 36. It is no ε of labels.
        share: What share of a batch is meant to be used, q, below ½.
        approximation: The sigmoid's in the loss of the active party's task; another one there is refused.
        selection_seed_for_experiments: Makes the label party's draws repeatable, and no secret to who knows it;
            ``null``: they follow from a key that it draws from the operating system's entropy; in one process
            ``train.noise_seed_for_experiments``, where it is set, fixes them with the noise.
        common: As for :class:`~splitvfl.exchange.paillier.EncryptedExchange`; the key is the active party's.

    Raises:
        ArgumentError: If ε is not positive and finite, q not between 0 and ½, or so small that no record is used.
    """

    name = "hybrid"
    seen = (
        "each passive party's logits of the records that are sent",
        "the gradient of its weights, and which records are sent, not which of them are used",
    )
    draws_records = True
    multiplied_by = frozenset({"passive"})
    passes_on_keys = False
    secret_batch: SecretBatch

    def __init__(
        self,
        *,
        epsilon: Annotated[float, Field(gt=0, le=36)],
        share: Annotated[float, Field(gt=0, lt=0.5)],
        approximation: Approximation = "exact",
        selection_seed_for_experiments: Annotated[int, Field(ge=0)] | None = None,
        **common: Any,
    ) -> None:
        check_words(approximation=approximation)
        super().__init__(**common)
        self.secret_batch = SecretBatch(epsilon, share)
        self.approximation = approximation
        self._seed = selection_seed_for_experiments
        if not self.secret_batch.ones(self.rows):
            raise ArgumentError(
                f"share {share:g} of train.batch_size {self.rows} is no record at all, so that none would be used "
                "(k = 0): take larger batches, or a larger share"
            )

    def repeatable(self, seed: int) -> Hybrid:
        """Return it with draws that follow from a seed, unless one was given that is for them alone."""
        if self._seed is not None:
            return self
        other = copy.copy(self)
        other._seed = derive_seed(seed, "selection")
        return other

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party."""
        own = {"epsilon of the selection": self.secret_batch.epsilon, "share": self.secret_batch.share}
        return {**super().terms(), **own, "approximation": self.approximation}

    @property
    def error(self) -> float:
        """Largest error of a passive party's gradient by fixed point.

        As many products err as there are ones in ``m``, at most: zeros are exact, and nothing is divided afterwards.
        """
        return self.secret_batch.ones(self.rows) * self.encryption.error

    def selection_key(self) -> bytes:
        """Return a new secret, from which all draws of a run follow."""
        if self._seed is None:
            return secrets.token_bytes(KEY_BYTES)
        return hashlib.blake2b(f"{self._seed}/{self.name}".encode(), digest_size=KEY_BYTES).digest()

    @property
    def most_claimed(self) -> int:
        """Largest number of sums that a party may ask for: beside so many, records are still hidden from it."""
        counts = range(1, self.encryption.most_columns + 1)
        return bisect_left(counts, True, key=lambda count: not self.secret_batch.is_likely(self.rows, count))

    def check_columns(self, owner: str, columns: int, records: int) -> None:
        """Check that records can be hidden from a passive party of so many columns, in a draw out of two at least.

        Args:
            owner: The passive party.
            columns: How many it has.
            records: How many training records there are.

        Raises:
            ConfigError: If that is not so.
        """
        size, drawn = self.rows, self.secret_batch
        if drawn.is_likely(size, columns):
            return
        if columns + 1 >= size:
            why = f"train.batch_size is {size}, and more than {columns + 1} are needed"
        else:
            why = (
                f"with |S| = {size} (train.batch_size), q = {drawn.share:g} and p = {drawn.kept:.3f}, "
                f"{drawn.expected_sent(size):.1f} are sent and {drawn.expected_used(size):.1f} used on average, and a "
                f"draw counts with a probability of {drawn.acceptance(size, columns):.2g}; from ½ on it will do"
            )
        remedies = drawn.remedies(size, columns, records)
        advice = " or ".join(remedies) if remedies else f"larger batches with a smaller epsilon, out of {records}"
        raise ConfigError(
            f"exchange {self.name}: more records must be sent than {owner} has columns ({columns}), fewer than the "
            f"batch has, and one used at least: {why}. Take {advice}"
        )

    def passive(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side.

        Raises:
            ConfigError: If its bottom is not one linear layer without intercept, or it has too many columns for batches
                of this size.
            DataError: If an entry of its columns exceeds the agreed limit.
        """
        side = super().passive(party, active)
        self.check_columns(party.name, party.data.width, party.data.train.count)
        return side

    def notes(self, columns: Mapping[str, int], *, records: int) -> list[str]:
        """Return what it does not hide, in sentences."""
        drawn, size = self.secret_batch, self.rows
        used, sent = drawn.expected_used(size), drawn.expected_sent(size)
        said = [
            f"Hybrid: of each batch of {size} records {sent:.1f} are sent and {used:.1f} used on average. Its epsilon "
            f"({drawn.epsilon:g}) is of which records are used, which has nothing to do with labels: it protects none.",
            "What is not used is sent as a zero, and sparse recovery (attack sparse-residues) finds the few residues "
            "that are not zero, and with them labels, from fewer equations than records. Who knows the predictions, as "
            "where the label party has neither columns nor an intercept, reads more "
            "(secret-batch-likelihood). Labels stay the same over a run, and what gradients tell of them adds up.",
        ]
        if self._seed is not None:
            said.append("Its draws follow from a seed, for experiments: who knows it knows which records are used.")
        said += [sentence for name, width in columns.items() for sentence in self._read_by(name, width, records)]
        return [
            *said,
            "No batch size, share or epsilon hides labels over a run of any length: take a label defense besides, "
            "whose epsilon is of labels (defenses: [{name: memoised-response, epsilon: 1.0}]).",
        ]

    def _read_by(self, name: str, width: int, records: int) -> list[str]:
        """Return what a passive party of so many columns reads in one step, and over a run."""
        drawn, size = self.secret_batch, self.rows
        used = drawn.expected_used(size)
        found = (
            f"solve for all residues from its {width} columns, as many equations as there are"
            if used <= width
            else f"read a sign from its {width} columns with a probability of "
            f"{sign_success(width, used):.2f} in one step"
        )
        needed = ", ".join(self._needed(below, width, records) for below in (0.6, 0.55))
        after = {success: self._epochs_for(success, width) for success in (0.6, 0.9)}
        return [
            f"If {name} knew which records are used, least squares would {found}; {needed}.",
            f"If it knows the predictions, it reads 0.6 of labels after about {after[0.6]} and 0.9 after about "
            f"{after[0.9]}, whoever is used.",
        ]

    def _epochs_for(self, success: float, width: int) -> str:
        drawn, size = self.secret_batch, self.rows
        epochs = epochs_for_success(
            success, size=size, used=drawn.expected_used(size), sent=drawn.expected_sent(size), columns=width
        )
        return "1 epoch" if epochs <= 1 else f"{math.ceil(epochs):,} epochs"

    def _needed(self, below: float, width: int, records: int) -> str:
        """Return which batches, q and p leave less than a success in one step, or that none within the data does."""
        used, drawn = unknowns_for_success(below, width), self.secret_batch
        size, within = drawn.size_for(used), f"no batch of the {records:,} records"
        if size <= records:
            within = f"train.batch_size {size:,} with this share and epsilon"
        elif used < records / 2:
            # q below ½ and p below 1.
            within = f"train.batch_size {records:,}, all records, with share times p above {used / records:.2f}"
        return f"below {below:g} from {used:,.0f} used records on ({within})"

    def active_side(self, party: ActiveParty) -> Side:
        """Return the active party's side."""
        return _Active(party, self)

    def passive_side(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side."""
        return _Passive(party, active, self)


class _Active(ResidueActive[Hybrid]):
    def __init__(self, party: ActiveParty, exchange: Hybrid) -> None:
        super().__init__(party, exchange)
        self._secret = exchange.selection_key()
        self._left_out = False

    def open(self) -> Half:
        """Send the public key, learn how many columns each passive party has, and check that records can be hidden."""
        yield from super().open()
        for name, columns in self.columns.items():
            self._exchange.check_columns(name, columns, self._party.data.train.count)

    def notes(self) -> list[str]:
        """Return what is not hidden from those who have said how many columns they have."""
        return self._exchange.notes(self.columns, records=self._party.data.train.count)

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step; its result is the loss of the records that were used, if there were any."""
        draw = self._drawn(batch, step)
        selection = torch.zeros(batch.count, dtype=torch.uint8) if draw is None else draw.sent.to(torch.uint8)
        sent = int(selection.sum())
        asked = scatter(dict.fromkeys(self._party.cuts, selection), self._party.name, SELECTION, step)
        if draw is None:
            yield Outbox(send=asked)
            return None
        inbox = yield Outbox(send=asked, wait=self._party.await_activations("activation", step, sent))
        self._check_logits(inbox, step)
        self._party.zeros = batch.ids[(draw.sent & ~draw.used).to(batch.ids.device)]
        places = draw.used[draw.sent].nonzero().squeeze(1)
        rows = draw.used.nonzero().squeeze(1)
        kept = {name: replace(one, payload=one.payload[places]) for name, one in inbox.items()}
        self._tell_of_unused(inbox, batch, draw)
        value, gradients = loss_and_gradients(
            self._party, kept, batch.part(rows), step, own_part=self._exchange.own_part
        )
        # Of a mean over the records that are used: they are divided by k here, which nobody else knows.
        residues = {name: _among_zeros(column_of(gradient), places, sent) for name, gradient in gradients.items()}
        yield from self.send_residues(residues, step)
        self._party.weights.update()
        return value

    def _tell_of_unused(self, inbox: Inbox, batch: Records, draw: Draw) -> None:
        """Tell of the parts of records that are sent and not used: nobody learns from these."""
        unused = (draw.sent & ~draw.used).nonzero().squeeze(1)
        if not self._party.told_of_steps or not len(unused):
            return
        received = {name: one.payload[~draw.used[draw.sent]] for name, one in inbox.items()}
        nothing = {name: torch.zeros_like(parts) for name, parts in received.items()}
        self._party.tell_of_step(batch.part(unused), received, nothing)

    def _drawn(self, batch: Records, step: int) -> Draw | None:
        """Return the step's draw; ``None`` of a batch at the end of an epoch that cannot hide what is used."""
        drawn, most = self._exchange.secret_batch, max(self.columns.values())
        self._left_out, before = not drawn.is_likely(batch.count, most), self._left_out
        if not self._left_out:
            return drawn.draw(self._secret, step, batch.count, self.columns.values())
        if before or batch.count == self._exchange.rows:
            raise ArgumentError(
                f"batches of {batch.count} records hide nothing, and only the last one of an epoch is left out: "
                f"expected batches of {self._exchange.rows}, as the exchange was made for"
            )
        return None

    def _check_logits(self, inbox: Inbox, step: int) -> None:
        """Check all logits, of whatever records: a run that ended for those that are used only would tell them.

        Raises:
            ProtocolError: If logits are NaN, infinite or beyond 10¹⁴ together.
        """
        for message in inbox.values():
            check_finite(message)
        total = torch.stack([message.payload.detach().double().abs() for message in inbox.values()]).sum(dim=0)
        if (largest := total.max().item()) > _LARGEST_LOGIT:
            raise ProtocolError(spoiled(f"logits of step {step} are up to {largest:.3g}, which no loss bears", inbox))

    def state_dict(self) -> dict[str, Any]:
        """Return the secret from which its draws follow: for its owner only."""
        return {**super().state_dict(), "selection": torch.frombuffer(bytearray(self._secret), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._secret = bytes(state["selection"].tolist())


def _among_zeros(values: Tensor, places: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.float64).index_copy(0, places, values)


class _Passive(ResiduePassive[Hybrid]):
    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step."""
        awaited = Expected(self._active, SELECTION, step, (torch.uint8,), (batch.count,))
        inbox = yield Outbox(wait=(awaited,))
        rows = self._selected(inbox[self._active].payload, step)
        if len(rows):
            yield from self.step_with(batch.part(rows), step, divisor=1)

    def _selected(self, bits: Tensor, step: int) -> Tensor:
        """Return the positions of what is to be sent.

        Raises:
            ProtocolError: If these are no bits, or there are too few or too many ones.
        """
        if bool((bits > 1).any()):
            raise ProtocolError(
                f"{SELECTION} of step {step} from {self._active}: expected bytes 0 and 1, got {int(bits.max())}"
            )
        rows, size, columns = bits.nonzero().squeeze(1), len(bits), self._layout.outputs
        if not len(rows) and size < self._exchange.rows:  # the last one of an epoch, left out
            return rows
        if not columns < len(rows) < size:
            raise ProtocolError(
                f"{SELECTION} of step {step} from {self._active}: expected {columns + 1} to {size - 1} ones for "
                f"{self._party.name} with its {columns} columns, got {len(rows)}"
            )
        return rows
