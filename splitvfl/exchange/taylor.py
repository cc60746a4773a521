"""Protocol 1: logistic regression where no party sees another's part of the logits. Every party has a key of its own.

With the Taylor approximation a residue is linear in the logits, ``f = z - 2y``, so each party can compute its gradient
from the encrypted parts of the others: ``Xᵀf = Xᵀg + Σ Xᵀ⟦g'⟧``. A step: every party encrypts its part under its own
key, the active party its logits less twice the labels; whoever needs a sum over another's part computes it under that
key, masked, and has it decrypted. Passive parties talk through the active party, which passes on ciphertexts and masked
plaintexts that it cannot read, and can neither change nor make in another's name (:mod:`splitvfl.exchange.passing_on`).

What it reveals: to each party the gradients of its own weights, one sum for each key; and to the active party the loss
of each step, if that is agreed. Gradients give labels and logits away by solving equations, as without encryption. Keys
that the active party passes on are vouched for by their owners (:mod:`splitvfl.exchange.roll_call`).

In evaluations and predictions the active party learns the logits, and so the sum of the passive parties' parts: these
cross under masks that cancel in the sum (:mod:`splitvfl.crypto.sum_masks`). With one passive party that sum is its
part.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, protocol 1; with Gaussian noise on what is encrypted it
is its DP-Paillier-MGD (algorithm 3, corrected).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from splitvfl.crypto.evaluator import Evaluator, MaskedSums
from splitvfl.crypto.key_agreement import KEY_BYTES, AgreementKey
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.crypto.sum_masks import SumMasks
from splitvfl.crypto.tags import TAG_BYTES
from splitvfl.data.columns import Records, columns_of, with_one
from splitvfl.errors import ConfigError, ProtocolError
from splitvfl.exchange.base import Side
from splitvfl.exchange.linear import SCALE, ActiveCoefficients, learn_sum, tell_of_sums
from splitvfl.exchange.masking import check_adds_up, mask_parts
from splitvfl.exchange.noise import NoiseSettings, checked_noise
from splitvfl.exchange.paillier import (
    COLUMNS,
    KEY,
    EncryptedExchange,
    PartySide,
    PassiveSide,
    awaited_bytes,
    scatter,
)
from splitvfl.exchange.passing_on import PassedOn, Shape, sealed_bytes
from splitvfl.exchange.roll_call import active_roll_call
from splitvfl.hooks import all_finite
from splitvfl.messaging.conversation import Expected, Half, Inbox, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, PassiveParty

_MOST_PEERS = 1 << 10


class Taylor(EncryptedExchange):
    """Logistic regression with every part of the logits encrypted under its owner's key.

    A run ends with the weights of :class:`~splitvfl.exchange.oracle.Oracle` with the Taylor approximation up to
    fixed-point errors: each gradient errs by at most a quarter of :attr:`Encryption.error
    <splitvfl.exchange.paillier.Encryption.error>` for each other party.

    Works with: model logistic-regression, numeric columns, labels 0 and 1.

    Cost: every step one encryption for each record and party, and for every pair of parties sums under encryption for
    each column; compare ``python -m scripts.bench.encrypted_epoch`` on your own machine.

    In a file: ``exchange: {name: taylor, encryption: {key_bits: 3072}}``

    Args:
        loss: Whether the active party learns the loss of each step. With several passive parties each learns for that
            the inner product of its logits with each other's. ``None``: yes, and no with ``noise``, under which it
            would mean nothing.
        noise: What is agreed on noise before encryption. An experiment plans and attaches it, and
            :class:`~splitvfl.app.trainer.Trainer` with ``epochs``; nothing else does.
        common: As for :class:`~splitvfl.exchange.paillier.EncryptedExchange`; the encryption's ``value_limit`` bounds
            parts of the logits, and these less ``2 y``.

    Raises:
        ConfigError: If the loss of noisy logits is asked for.
    """

    name = "taylor"
    approximation = "taylor"
    hides_parts = True
    residue_unit = SCALE
    seen = ("the gradient of its weights, the loss", "the gradient of its weights")

    def __init__(self, *, loss: bool | None = None, noise: NoiseSettings | None = None, **common: Any) -> None:
        super().__init__(**common)
        self.noise = checked_noise("noise", noise, NoiseSettings)
        if loss and noise is not None:
            raise ConfigError("loss: computed from noisy logits it would mean nothing; leave it out")
        self.loss = noise is None if loss is None else loss

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party."""
        return {**super().terms(), "loss of each step": self.loss}

    def active_side(self, party: ActiveParty) -> Side:
        """Return the active party's side.

        Raises:
            ConfigError: If noise was agreed on, and nobody has planned it.
        """
        self._check_planned(party)
        return _Active(party, self)

    def passive_side(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side.

        Raises:
            ConfigError: If noise was agreed on, and nobody has planned it.
        """
        self._check_planned(party)
        return _Passive(party, active, self)

    def _check_planned(self, party: ActiveParty | PassiveParty) -> None:
        # Where one party is protected the other attaches none: whether some is attached does not tell.
        if self.noise is None or self.noise_is_planned:
            return
        raise ConfigError(
            f"exchange {self.name}: noise is agreed on, and nothing has planned it, so that what {party.name} sends "
            "would be protected by nothing: Trainer(exchange=..., epochs=...) plans and attaches it, and an "
            "experiment's file; take one of them, or leave noise out and give defenses of your own"
        )

    def sums_layout(self, outputs: int) -> ProductLayout:
        """Return the layout of so many sums over the parts of a batch's logits and the helper of the loss."""
        limits = self.encryption
        helper = self.rows * limits.largest_value**2 / (8 * limits.feature_limit)
        return replace(
            limits.layout(self.rows + 1, outputs), value_limit=max(limits.largest_value, helper if self.loss else 0.0)
        )


def _with_helper(logits: Tensor, exchange: Taylor) -> Tensor:
    """Return parts of the logits, and behind them a share of their squares, for the loss."""
    if not exchange.loss:
        return logits
    share = logits.square().sum() / (8 * exchange.encryption.feature_limit)
    return torch.cat([logits, share.reshape(1)])


# --- the active party


class _Active(PartySide[ActiveParty, Taylor]):
    def __init__(self, party: ActiveParty, exchange: Taylor) -> None:
        super().__init__(party, exchange)
        self._evaluators: dict[str, Evaluator] = {}

    @property
    def _sums(self) -> int:
        """Number of sums that it asks for under each key: of its columns, of the intercept, and of the loss."""
        needed, exchange = self._party.data.width + 1 + self._exchange.loss, self._exchange
        return self._engine.claimed(needed, exchange.most_claimed, exchange.sums_layout)

    def open(self) -> Half:
        """Hand out public keys and numbers of columns, its own and those of the passive parties."""
        party, exchange, limits = self._party, self._exchange, self._exchange.encryption
        owner = self.take_key()
        self.columns = yield from limits.receive_columns(party.cuts)
        others = {name: [self.columns[other] for other in party.cuts if other != name] for name in party.cuts}
        sizes = {name: torch.tensor([self._sums, *counts]) for name, counts in others.items()}
        own = dict.fromkeys(party.cuts, owner.key_to_send())
        yield Outbox(send=scatter(sizes, party.name, "peers", 0) + scatter(own, party.name, KEY, 0))
        check_adds_up(party)
        lengths = {name: exchange.bytes_of(name) for name in party.cuts}
        said = yield from active_roll_call(party.name, lengths, exchange.vouching)
        keys = {
            name: limits.key_of(name, said[name][KEY_BYTES:], sender=name, receiver=party.name) for name in party.cuts
        }
        layout = exchange.sums_layout(self._sums)
        self._evaluators = {name: self._engine.evaluator(key, layout) for name, key in keys.items()}
        party.sums_parts = True

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step; its result is the batch's loss, NaN if that is not agreed."""
        party, exchange, owner = self._party, self._exchange, self.owner
        width, rows = owner.public.ciphertext_bytes, batch.count + exchange.loss
        layouts = {name: exchange.sums_layout(columns) for name, columns in self.columns.items()}
        own = ActiveCoefficients.of(party, batch, step)
        logits = yield Outbox(wait=tuple(awaited_bytes(name, "logits", step, (rows, width)) for name in party.cuts))
        relayed = (yield from self._relayed(logits, batch.count, step)) if len(layouts) > 1 else {}
        coefficients = own.defended(party, batch, step)
        with self.counting(step):
            sent = owner.encrypt(exchange.encode(coefficients, party.name, step))
            weights = self._weights(own, batch)
        yield Outbox(send=scatter(dict.fromkeys(layouts, sent), party.name, "residues", step))
        yield Outbox(send=scatter(relayed, party.name, "relayed", step))
        masked = {name: self.masked_sums(logits[name], one, weights) for name, one in self._evaluators.items()}
        replies = {name: one.reply for name, one in masked.items()}
        shape = exchange.sums_layout(self._sums).opened_shape
        inbox = yield Outbox(
            send=scatter(replies, party.name, "sums", step),
            wait=tuple(awaited_bytes(name, "opened", step, shape) for name in layouts),
        )
        opened = {name: self._unmasked(inbox[name], masked[name]) for name in layouts}
        inbox = yield Outbox(
            wait=tuple(awaited_bytes(name, "sums", step, (one.replies, width)) for name, one in layouts.items())
        )
        plain = {name: self.decrypt_masked(inbox[name], layout) for name, layout in layouts.items()}
        yield Outbox(send=scatter(plain, party.name, "opened", step))
        cross = (yield from self._relay(step, width)) if len(layouts) > 1 else 0.0
        learned = coefficients if exchange.own_part == "sent" else own.coefficients
        tell_of_sums(
            party, batch, {name: sums[: self._party.data.width + 1] for name, sums in opened.items()}, coefficients
        )
        return self._learn(own, learned, torch.stack([*opened.values()]).sum(dim=0), cross, batch, step)

    def _relayed(self, logits: Inbox, count: int, step: int) -> Half:
        """Return for each passive party the logits of all others, each with its code for that party."""
        names = list(self._party.cuts)
        tags = yield Outbox(
            wait=tuple(awaited_bytes(name, "tags", step, (len(names) - 1, TAG_BYTES)) for name in names)
        )
        return _by_receiver(
            {
                name: [torch.cat([logits[name].payload[:count].flatten(), tag]) for tag in tags[name].payload]
                for name in names
            }
        )

    def _weights(self, own: ActiveCoefficients, batch: Records) -> Tensor:
        """Return what the parts of the logits are multiplied with: columns, one, and what the loss needs."""
        columns = columns_of(batch)
        parts = [with_one(columns)]
        if self._exchange.loss:
            parts.append((own.logits / 4 - own.labels / 2).unsqueeze(1))
        weights = torch.cat(parts, dim=1).cpu()
        if self._exchange.loss:
            helper = torch.zeros(1, weights.shape[1], dtype=weights.dtype)
            helper[0, -1] = self._exchange.encryption.feature_limit
            weights = torch.cat([weights, helper])
        return self._exchange.sums_layout(self._sums).encode_weights(weights)

    def _unmasked(self, plain: Message, masked: MaskedSums) -> Tensor:
        sums = self.unmasked(plain, self._evaluators[plain.sender], masked)
        self.remember(plain, sums)
        return sums

    def _relay(self, step: int, width: int) -> Half:
        """Pass on what passive parties ask of each other, and return the sum of their logits' products."""
        party, exchange = self._party, self._exchange
        names = list(party.cuts)
        layouts = {name: exchange.sums_layout(self.columns[name] + exchange.loss) for name in names}
        asked = {name: sealed_bytes((one.replies, width)) for name, one in layouts.items()}
        inbox = yield Outbox(
            wait=tuple(awaited_bytes(name, "asked", step, ((len(names) - 1) * asked[name],)) for name in names)
        )
        passed = _passed_on(inbox, names, lambda asker, keeper: asked[asker])
        sizes = {name: sealed_bytes(one.opened_shape) for name, one in layouts.items()}
        total = sum(sizes.values())
        inbox = yield Outbox(
            send=scatter(passed, party.name, "asked", step),
            wait=tuple(awaited_bytes(keeper, "answered", step, (total - sizes[keeper],)) for keeper in names),
        )
        back = _passed_on(inbox, names, lambda keeper, asker: sizes[asker])
        products = tuple(Expected(name, "products", step, (torch.float64,), (1,)) for name in names)
        inbox = yield Outbox(send=scatter(back, party.name, "answered", step), wait=products if exchange.loss else ())
        for message in inbox.values():
            if not all_finite(message.payload):
                raise ProtocolError(f"products of step {step} from {message.sender} are NaN or infinite")
        return sum(message.payload.item() for message in inbox.values()) / 2

    def _learn(
        self, own: ActiveCoefficients, learned: Tensor, sums: Tensor, cross: float, batch: Records, step: int
    ) -> float:
        width = self._party.data.width
        own.learn(self._party, sums[: width + 1], batch, step, own=learned)
        if not self._exchange.loss:
            return math.nan
        alone = (own.logits.square() / 8 - own.labels * own.logits / 2).sum().item()
        return math.log(2) + (alone + sums[-1].item() + cross / 4) / batch.count


def _passed_on(inbox: Inbox, names: Sequence[str], size: Callable[[str, str], int]) -> dict[str, Tensor]:
    """Return what each party gets of messages in which every party has a part for each of the others, in their order.

    ``size`` is that of the part which one party has for another, in bytes, with its code.
    """
    return _by_receiver(
        {
            sender: inbox[sender].payload.split([size(sender, other) for other in names if other != sender])
            for sender in names
        }
    )


def _by_receiver(parts: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """Return for each party what the others have for it, out of what each has for each of the others, in one order."""
    by_pair = {
        (sender, other): part
        for sender, its in parts.items()
        for other, part in zip((name for name in parts if name != sender), its, strict=True)
    }
    return {name: torch.cat([by_pair[other, name] for other in parts if other != name]) for name in parts}


# --- a passive party


class _Passive(PassiveSide[Taylor]):
    def __init__(self, party: PassiveParty, active: str, exchange: Taylor) -> None:
        super().__init__(party, active, exchange)
        self._asked = exchange.sums_layout(1)  # by the active party, which says for how many sums
        self._peers: dict[str, Evaluator] = {}  # under their keys
        self._peer_layouts: dict[str, ProductLayout] = {}  # of what they ask
        self._passed_on: PassedOn | None = None  # there are codes where there are others

    def open(self) -> Half:
        """Hand out its public key and number of columns, and receive those of the others."""
        party, active, exchange, limits = self._party, self._active, self._exchange, self._exchange.encryption
        owner = self.take_key()
        width = self._engine.claimed(party.data.width, exchange.most_claimed, exchange.sums_layout)
        sizes = Expected(active, "peers", 0, (torch.int64,), (range(1, _MOST_PEERS),))
        inbox = yield Outbox(send=self.to_active(COLUMNS, 0, torch.tensor([width])), wait=(sizes,))
        asked, *others = inbox[active].payload.tolist()
        self._asked = exchange.sums_layout(limits.checked_columns(asked, active))
        layouts = [exchange.sums_layout(limits.checked_columns(other, active) + exchange.loss) for other in others]
        inbox = yield Outbox(wait=(limits.awaited_key(active),))
        self._evaluator = self._engine.evaluator(limits.read_key(inbox[active]), exchange.sums_layout(width))
        agreement = AgreementKey()
        own = torch.cat([agreement.public, owner.key_to_send().flatten()])
        roll = yield from exchange.roll_call(party.name, active, own)
        if len(roll.keys) != len(others):
            raise ProtocolError(f"{active} names {len(roll.keys)} other parties, and columns of {len(others)}")
        layout = exchange.sums_layout(width + exchange.loss)
        self._peers = {
            name: self._engine.evaluator(
                limits.key_of(name, keys[KEY_BYTES:], sender=active, receiver=party.name), layout
            )
            for name, keys in roll.keys.items()
        }
        # The active party says how many sums each asks for; each says so itself in the code of what it asks.
        self._peer_layouts = dict(zip(roll.keys, layouts, strict=True))
        keys = {name: keys[:KEY_BYTES] for name, keys in roll.keys.items()}
        mask_parts(party, active, SumMasks(agreement), keys, roll.session)
        self._passed_on = PassedOn(party.name, active, agreement, keys, roll.session) if keys else None

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step."""
        party, exchange, limits = self._party, self._exchange, self._exchange.encryption
        owner, evaluator = self.owner, self.evaluator
        activation = party.activate(batch).detach()
        logits = activation.squeeze(1).double().cpu()
        defended = party.defend_activation(activation, batch, step).squeeze(1).double().cpu()
        with self.counting(step):
            limits.check_values(defended, party.name, step)  # their own limit, not the helper's
            sent = owner.encrypt(exchange.sums_layout(1).encode_values(_with_helper(defended, exchange)))
        width = owner.public.ciphertext_bytes
        parts = (*self.to_active("logits", step, sent), *self._vouched(sent[: batch.count], step))
        residues = yield from self.from_active("residues", step, (batch.count, width), send=parts)
        relayed = (yield from self._relayed(batch.count, width, step)) if self._passed_on is not None else None
        asked = yield from self.from_active("sums", step, (self._asked.replies, width))
        yield Outbox(send=self.to_active("opened", step, self.decrypt_masked(asked, self._asked)))
        weights = evaluator.layout.encode_weights(columns_of(batch).cpu())
        masked = self.masked_sums(residues, evaluator, weights)
        sums = self.to_active("sums", step, masked.reply)
        opened = yield from self.from_active("opened", step, evaluator.layout.opened_shape, send=sums)
        total = self.unmasked(opened, evaluator, masked)
        if relayed is not None:
            total = total + (yield from self._ask_peers(relayed, weights, logits, step))
        self.remember(opened, total)
        total = (total + columns_of(batch).cpu().T @ logits) / (SCALE * batch.count)
        learn_sum(party, activation, total, batch, step, self._active)

    def _vouched(self, sent: Tensor, step: int) -> tuple[Message, ...]:
        """Return the codes of its logits for the other passive parties, as a message; none if there is no other."""
        if self._passed_on is None:
            return ()
        return self.to_active("tags", step, self._passed_on.tags(sent, "logits", step, len(sent)))

    def _relayed(self, count: int, width: int, step: int) -> Half:
        """Return the other passive parties' logits."""
        shapes = dict.fromkeys(self._peers, (count, width))
        passed = yield from self.from_active("relayed", step, (sealed_bytes(*shapes.values()),))
        assert self._passed_on is not None
        return self._passed_on.from_others(passed, "logits", shapes, dict.fromkeys(shapes, count))

    def _ask_peers(self, relayed: Mapping[str, Message], weights: Tensor, logits: Tensor, step: int) -> Half:
        """Have the other passive parties decrypt sums over their logits, decrypt theirs, and return the sum of all."""
        exchange, width = self._exchange, self.owner.public.ciphertext_bytes
        mine = next(iter(self._peers.values())).layout
        if exchange.loss:
            with self.counting(step):
                own = mine.encode_weights(logits.unsqueeze(1))
            weights = torch.cat([weights, own], dim=1)
        masked = {name: self.masked_sums(relayed[name], peer, weights) for name, peer in self._peers.items()}
        ours = dict.fromkeys(self._peers, mine.outputs)
        layouts = self._peer_layouts
        theirs = {name: layout.outputs for name, layout in layouts.items()}
        replies = {name: one.reply for name, one in masked.items()}
        shapes = {name: (one.replies, width) for name, one in layouts.items()}
        asked = yield from self._swap("asked", step, replies, ours, shapes, theirs)
        plain = {name: self.decrypt_masked(asked[name], layout) for name, layout in layouts.items()}
        shapes = dict.fromkeys(self._peers, mine.opened_shape)
        answers = yield from self._swap("answered", step, plain, theirs, shapes, ours)
        sums = torch.stack(
            [self.unmasked(answers[name], peer, masked[name]) for name, peer in self._peers.items()]
        ).sum(dim=0)
        if not exchange.loss:
            return sums
        yield Outbox(send=self.to_active("products", step, sums[-1:].clone()))
        return sums[:-1]

    def _swap(
        self,
        kind: str,
        step: int,
        parts: Mapping[str, Tensor],
        about: Mapping[str, int],
        shapes: Mapping[str, Shape],
        counts: Mapping[str, int],
    ) -> Half:
        """Send each of the others a part about so many sums, and return the parts about ``counts`` that they send."""
        through = self._passed_on
        assert through is not None
        sent = self.to_active(kind, step, through.to_others(parts, kind, step, about))
        passed = yield from self.from_active(kind, step, (sealed_bytes(*shapes.values()),), send=sent)
        return through.from_others(passed, kind, shapes, counts)
