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
from typing import Any, TypeVar

import torch
from torch import Tensor

from splitvfl.crypto.evaluator import Evaluator, MaskedSums
from splitvfl.crypto.key_agreement import KEY_BYTES, AgreementKey
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.crypto.sum_masks import SumMasks
from splitvfl.crypto.tags import TAG_BYTES
from splitvfl.cut.views import SUMS
from splitvfl.data.columns import Records
from splitvfl.errors import ConfigError, ProtocolError
from splitvfl.exchange.base import Side
from splitvfl.exchange.linear import SCALE, ActiveCoefficients, columns_of, with_one
from splitvfl.exchange.masking import check_adds_up, mask_parts
from splitvfl.exchange.noise import NoiseSettings
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
from splitvfl.exchange.passing_on import PassedOn, Shape, sealed_bytes
from splitvfl.exchange.roll_call import active_roll_call, member_roll_call
from splitvfl.exchange.split import update
from splitvfl.hooks import all_finite
from splitvfl.messaging.conversation import Expected, Half, Inbox, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, PassiveParty

_MOST_PEERS = 1 << 10

_T = TypeVar("_T")


class Taylor(EncryptedExchange):
    """Logistic regression with every part of the logits encrypted under its owner's key.

    A run ends with the weights of :class:`~splitvfl.exchange.oracle.Oracle` with the Taylor approximation up to
    fixed-point errors: each gradient errs by at most a quarter of :attr:`Encryption.error
    <splitvfl.exchange.paillier.Encryption.error>` for each other party.

    Args:
        loss: Whether the active party learns the loss of each step. With several passive parties each learns for that
            the inner product of its logits with each other's. ``None``: yes, and no with ``noise``, under which it
            would mean nothing.
        noise: What is agreed on noise before encryption.
        common: As for :class:`~splitvfl.exchange.paillier.EncryptedExchange`; the encryption's ``value_limit`` bounds
            parts of the logits, and these less ``2 y``.

    Raises:
        ConfigError: If the loss of noisy logits is asked for.
    """

    name = "taylor"
    approximation = "taylor"
    hides_parts = True
    seen = ("the gradient of its weights, the loss", "the gradient of its weights")

    def __init__(self, *, loss: bool | None = None, noise: NoiseSettings | None = None, **common: Any) -> None:
        super().__init__(**common)
        if loss and noise is not None:
            raise ConfigError("loss: computed from noisy logits it would mean nothing; leave it out")
        self.loss = noise is None if loss is None else loss
        self.noise = noise

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party."""
        return {**super().terms(), "loss of each step": self.loss}

    def active_side(self, party: ActiveParty) -> Side:
        """Return the active party's side."""
        return _Active(party, self)

    def passive_side(self, party: PassiveParty, active: str) -> Side:
        """Return a passive party's side."""
        return _Passive(party, active, self)

    @property
    def values(self) -> ProductLayout:
        """Sizes of what is encrypted: parts of the logits, and the helper of the loss."""
        return self.layout(1)

    def layout(self, outputs: int) -> ProductLayout:
        """Return the layout of so many sums over one batch and the helper of the loss."""
        limits = self.encryption
        helper = self.rows * limits.largest_value**2 / (8 * limits.feature_limit)
        return replace(
            limits.layout(self.rows + 1, outputs), value_limit=max(limits.largest_value, helper if self.loss else 0.0)
        )

    def encode(self, values: Tensor, owner: str, step: int) -> Tensor:
        """Return a party's values as integers.

        Raises:
            CryptoError: If one is NaN, infinite or larger than agreed: nothing is sent.
        """
        self.encryption.check_values(values, owner, step)
        return self.values.encode_values(values)


def _with_helper(logits: Tensor, exchange: Taylor) -> Tensor:
    """Return parts of the logits, and behind them a share of their squares, for the loss."""
    if not exchange.loss:
        return logits
    share = logits.square().sum() / (8 * exchange.encryption.feature_limit)
    return torch.cat([logits, share.reshape(1)])


# --- the active party


class _Active(EncryptedSide):
    def __init__(self, party: ActiveParty, exchange: Taylor) -> None:
        super().__init__(exchange)
        self._party, self._exchange = party, exchange
        self._evaluators: dict[str, Evaluator] = {}
        self._columns: dict[str, int] = {}

    @property
    def _sums(self) -> int:
        """Number of sums that it needs under each key: of its columns, of the intercept, and of the loss."""
        return self._party.data.width + 1 + self._exchange.loss

    def open(self) -> Half:
        """Hand out public keys and numbers of columns, its own and those of the passive parties."""
        party, exchange, limits = self._party, self._exchange, self._exchange.encryption
        owner = self.take_key()
        inbox = yield Outbox(wait=tuple(map(limits.awaited_columns, party.cuts)))
        self._columns = {name: limits.read_columns(inbox[name]) for name in party.cuts}
        sizes = {name: torch.tensor([self._sums, *_others(name, self._columns)]) for name in party.cuts}
        own = dict.fromkeys(party.cuts, owner.key_to_send())
        yield Outbox(send=scatter(sizes, party.name, "peers", 0) + scatter(own, party.name, KEY, 0))
        check_adds_up(party)
        lengths = dict.fromkeys(party.cuts, KEY_BYTES + limits.key_bytes)
        said = yield from active_roll_call(party.name, lengths, exchange.vouching)
        self._evaluators = {
            name: self._engine.evaluator(
                limits.key_of(name, said[name][KEY_BYTES:], sender=name, receiver=party.name),
                exchange.layout(self._sums),
            )
            for name in party.cuts
        }
        party.sums_parts = True

    def step(self, batch: Records, step: int) -> Half:
        """Return its half of one step; its result is the batch's loss, NaN if that is not agreed."""
        party, exchange, owner = self._party, self._exchange, self._owner
        assert owner is not None, "keys cross first"
        width, rows = owner.public.ciphertext_bytes, batch.count + exchange.loss
        own = ActiveCoefficients.of(party, batch, step)
        inbox = yield Outbox(wait=tuple(awaited_bytes(name, "logits", step, (rows, width)) for name in party.cuts))
        logits = {name: inbox[name].payload for name in party.cuts}
        relayed = (yield from self._relayed(logits, batch.count, step)) if len(logits) > 1 else {}
        coefficients = own.defended(party, batch, step)
        with counting(party, step):
            sent = owner.encrypt(exchange.encode(coefficients, party.name, step))
            weights = self._weights(own, batch)
        yield Outbox(send=scatter(dict.fromkeys(logits, sent), party.name, "residues", step))
        yield Outbox(send=scatter(relayed, party.name, "relayed", step))
        masked = {name: self._masked(inbox[name], weights) for name in logits}
        for name, evaluator in self._evaluators.items():
            self.check_new(inbox[name], evaluator.public)
        replies = {name: one.reply for name, one in masked.items()}
        inbox = yield Outbox(
            send=scatter(replies, party.name, "sums", step),
            wait=tuple(self._awaited_opened(name, step) for name in logits),
        )
        sums = torch.stack([self._unmasked(inbox[name], masked[name]) for name in logits]).sum(dim=0)
        inbox = yield Outbox(
            wait=tuple(
                awaited_bytes(name, "sums", step, (exchange.layout(self._columns[name]).replies, width))
                for name in logits
            )
        )
        plain = {name: decrypt_masked(owner, inbox[name], exchange.layout(self._columns[name])) for name in logits}
        yield Outbox(send=scatter(plain, party.name, "opened", step))
        cross = 0.0
        if len(logits) > 1:
            cross = yield from self._relay(step, width)
        return self._learn(own, sums, cross, batch, step)

    def _relayed(self, logits: Mapping[str, Tensor], count: int, step: int) -> Half:
        """Return for each passive party the logits of all others, each with its code for that party."""
        names = list(logits)
        inbox = yield Outbox(
            wait=tuple(awaited_bytes(name, "tags", step, (len(names) - 1, TAG_BYTES)) for name in names)
        )
        parts = {
            (sender, other): torch.cat([logits[sender][:count].flatten(), tag])
            for sender in names
            for other, tag in zip((one for one in names if one != sender), inbox[sender].payload, strict=True)
        }
        return {name: torch.cat([parts[other, name] for other in names if other != name]) for name in names}

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
        return self._exchange.layout(self._sums).encode_weights(weights)

    def _awaited_opened(self, name: str, step: int) -> Expected:
        layout = self._exchange.layout(self._sums)
        return awaited_bytes(name, "opened", step, (layout.replies, layout.opened_bytes))

    def _masked(self, logits: Message, weights: Tensor) -> MaskedSums:
        with refusing(logits):
            return self._evaluators[logits.sender].masked_sums([(logits.payload, weights)])

    def _unmasked(self, plain: Message, masked: MaskedSums) -> Tensor:
        sums = unmasked(self._party, plain, self._evaluators[plain.sender], masked)
        remembered(self._party, replace(plain, payload=sums))
        return sums

    def _relay(self, step: int, width: int) -> Half:
        """Pass on what passive parties ask of each other, and return the sum of their logits' products."""
        party, exchange = self._party, self._exchange
        names = list(party.cuts)
        layouts = {name: exchange.layout(self._columns[name] + exchange.loss) for name in names}
        asked = {name: one.replies * width + TAG_BYTES for name, one in layouts.items()}
        inbox = yield Outbox(
            wait=tuple(awaited_bytes(name, "asked", step, ((len(names) - 1) * asked[name],)) for name in names)
        )
        passed = _passed_on(inbox, names, lambda asker, keeper: asked[asker])
        sizes = {name: one.replies * one.opened_bytes + TAG_BYTES for name, one in layouts.items()}
        total = sum(sizes.values())
        inbox = yield Outbox(
            send=scatter(passed, party.name, "asked", step),
            wait=tuple(awaited_bytes(keeper, "answered", step, (total - sizes[keeper],)) for keeper in names),
        )
        back = _passed_on(inbox, names, lambda keeper, asker: sizes[asker])
        awaited = (
            tuple(Expected(name, "products", step, (torch.float64,), (1,)) for name in names) if exchange.loss else ()
        )
        inbox = yield Outbox(send=scatter(back, party.name, "answered", step), wait=awaited)
        for message in inbox.values():
            if not all_finite(message.payload):
                raise ProtocolError(f"products of step {step} from {message.sender} are NaN or infinite")
        return sum(inbox[name].payload.item() for name in names) / 2 if exchange.loss else 0.0

    def _learn(self, own: ActiveCoefficients, sums: Tensor, cross: float, batch: Records, step: int) -> float:
        width = self._party.data.width
        own.learn(self._party, sums[: width + 1], batch, step)
        if not self._exchange.loss:
            return math.nan
        alone = (own.logits.square() / 8 - own.labels * own.logits / 2).sum().item()
        return math.log(2) + (alone + sums[-1].item() + cross / 4) / batch.count


def _passed_on(inbox: Inbox, names: Sequence[str], size: Callable[[str, str], int]) -> dict[str, Tensor]:
    """Return what each party gets of messages in which every party has a part for each of the others, in their order.

    Args:
        inbox: The messages.
        names: The parties.
        size: Bytes of the part that one party has for another, with its code.
    """
    parts: dict[tuple[str, str], Tensor] = {}
    for sender in names:
        others = [name for name in names if name != sender]
        cut = inbox[sender].payload.split([size(sender, other) for other in others])
        parts |= {(sender, other): part for other, part in zip(others, cut, strict=True)}
    return {name: torch.cat([parts[other, name] for other in names if other != name]) for name in names}


def _others(name: str, things: Mapping[str, _T]) -> list[_T]:
    return [thing for other, thing in things.items() if other != name]


# --- a passive party


class _Passive(EncryptedSide):
    shown = SUMS

    def __init__(self, party: PassiveParty, active: str, exchange: Taylor) -> None:
        super().__init__(exchange)
        self._party, self._active, self._exchange = party, active, exchange
        self._asked = exchange.layout(1)  # by the active party, which says for how many sums
        self._evaluator: Evaluator | None = None  # under the active party's key
        self._peers: dict[str, Evaluator] = {}  # under their keys
        self._peer_layouts: dict[str, ProductLayout] = {}  # of what they ask
        self._passed_on: PassedOn | None = None  # there are codes where there are others

    def open(self) -> Half:
        """Hand out its public key and number of columns, and receive those of the others."""
        party, active, exchange, limits = self._party, self._active, self._exchange, self._exchange.encryption
        owner = self.take_key()
        width = party.data.width
        sizes = Expected(active, "peers", 0, (torch.int64,), (range(1, _MOST_PEERS),))
        inbox = yield Outbox(send=(Message(party.name, active, COLUMNS, 0, torch.tensor([width])),), wait=(sizes,))
        asked, *others = inbox[active].payload.tolist()
        self._asked = exchange.layout(limits.checked_columns(asked, active))
        layouts = [exchange.layout(limits.checked_columns(other, active) + exchange.loss) for other in others]
        inbox = yield Outbox(wait=(limits.awaited_key(active),))
        self._evaluator = self._engine.evaluator(limits.read_key(inbox[active]), exchange.layout(width))
        agreement = AgreementKey()
        roll = yield from member_roll_call(
            party.name,
            active,
            torch.cat([agreement.public, owner.key_to_send().flatten()]),
            subject=exchange.name,
            length_of=lambda other: KEY_BYTES + limits.key_bytes,
            vouching=exchange.vouching,
        )
        if len(roll.keys) != len(others):
            raise ProtocolError(f"{active} names {len(roll.keys)} other parties, and columns of {len(others)}")
        layout = exchange.layout(width + exchange.loss)
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
        party, active, exchange, owner = self._party, self._active, self._exchange, self._owner
        assert owner is not None, "keys cross first"
        assert self._evaluator is not None, "keys cross first"
        activation = party.activate(batch).detach()
        logits = activation.squeeze(1).double().cpu()
        defended = party.defend_activation(activation, batch, step).squeeze(1).double().cpu()
        with counting(party, step):
            exchange.encode(defended, party.name, step)  # its own limit, not the helper's
            sent = owner.encrypt(exchange.values.encode_values(_with_helper(defended, exchange)))
        width = owner.public.ciphertext_bytes
        inbox = yield Outbox(
            send=(Message(party.name, active, "logits", step, sent), *self._vouched(sent[: batch.count], step)),
            wait=(awaited_bytes(active, "residues", step, (batch.count, width)),),
        )
        residues = inbox[active]
        relayed = (yield from self._relayed(batch.count, width, step)) if self._passed_on is not None else None
        inbox = yield Outbox(wait=(awaited_bytes(active, "sums", step, (self._asked.replies, width)),))
        yield Outbox(
            send=(Message(party.name, active, "opened", step, decrypt_masked(owner, inbox[active], self._asked)),)
        )
        weights = self._evaluator.layout.encode_weights(columns_of(batch).cpu())
        with refusing(residues):
            masked = self._evaluator.masked_sums([(residues.payload, weights)])
        self.check_new(residues, self._evaluator.public)
        layout = self._evaluator.layout
        inbox = yield Outbox(
            send=(Message(party.name, active, "sums", step, masked.reply),),
            wait=(awaited_bytes(active, "opened", step, (layout.replies, layout.opened_bytes)),),
        )
        total = unmasked(party, inbox[active], self._evaluator, masked)
        if relayed is not None:
            total = total + (yield from self._ask_peers(relayed, weights, logits, step))
        remembered(party, replace(inbox[active], payload=total))
        total = (total + columns_of(batch).cpu().T @ logits) / (SCALE * batch.count)
        party.clear_gradients()
        party.learn_sum(activation, total.unsqueeze(1).to(activation.device), batch, step)
        update(party, step, active)

    def _vouched(self, sent: Tensor, step: int) -> tuple[Message, ...]:
        """Return the codes of its logits for the other passive parties, as a message; none if there is no other."""
        if self._passed_on is None:
            return ()
        tags = self._passed_on.tags(sent, "logits", step, len(sent))
        return (Message(self._party.name, self._active, "tags", step, tags),)

    def _relayed(self, count: int, width: int, step: int) -> Half:
        """Return the other passive parties' logits."""
        assert self._passed_on is not None
        shapes = dict.fromkeys(self._peers, (count, width))
        size = sealed_bytes(*shapes.values())
        inbox = yield Outbox(wait=(awaited_bytes(self._active, "relayed", step, (size,)),))
        return self._passed_on.from_others(inbox[self._active], "logits", shapes, dict.fromkeys(shapes, count))

    def _ask_peers(self, relayed: Mapping[str, Message], weights: Tensor, logits: Tensor, step: int) -> Half:
        """Have the other passive parties decrypt sums over their logits, decrypt theirs, and return the sum of all."""
        party, active, exchange, through = self._party, self._active, self._exchange, self._passed_on
        assert through is not None
        mine = next(iter(self._peers.values())).layout
        if exchange.loss:
            with counting(party, step):
                own = mine.encode_weights(logits.unsqueeze(1))
            weights = torch.cat([weights, own], dim=1)
        masked = {name: self._masked(relayed[name], weights) for name in self._peers}
        for name, peer in self._peers.items():
            self.check_new(relayed[name], peer.public)
        ours = dict.fromkeys(self._peers, mine.outputs)
        layouts = self._peer_layouts
        theirs = {name: layout.outputs for name, layout in layouts.items()}
        replies = {name: one.reply for name, one in masked.items()}
        shapes = {name: (one.replies, self.take_key().public.ciphertext_bytes) for name, one in layouts.items()}
        sent = through.to_others(replies, "asked", step, ours)
        asked = yield from self._passed(sent, "asked", step, shapes, theirs)
        plain = {name: decrypt_masked(self.take_key(), asked[name], layout) for name, layout in layouts.items()}
        shapes = dict.fromkeys(self._peers, (mine.replies, mine.opened_bytes))
        sent = through.to_others(plain, "answered", step, theirs)
        answers = yield from self._passed(sent, "answered", step, shapes, ours)
        sums = torch.stack(
            [unmasked(party, answers[name], peer, masked[name]) for name, peer in self._peers.items()]
        ).sum(dim=0)
        if not exchange.loss:
            return sums
        yield Outbox(send=(Message(party.name, active, "products", step, sums[-1:].clone()),))
        return sums[:-1]

    def _masked(self, logits: Message, weights: Tensor) -> MaskedSums:
        with refusing(logits):
            return self._peers[logits.sender].masked_sums([(logits.payload, weights)])

    def _passed(
        self, sent: Tensor, kind: str, step: int, shapes: Mapping[str, Shape], counts: Mapping[str, int]
    ) -> Half:
        """Send the others something, and return what each of them has sent of the same kind, about so many sums."""
        assert self._passed_on is not None
        inbox = yield Outbox(
            send=(Message(self._party.name, self._active, kind, step, sent),),
            wait=(awaited_bytes(self._active, kind, step, (sealed_bytes(*shapes.values()),)),),
        )
        return self._passed_on.from_others(inbox[self._active], kind, shapes, counts)
