"""Scores that another party computes than the one with the labels, which then sees no activation and no logit.

The *scorer* is a passive party, or a third party without data (``coordinator``). Each party sends it its part of the
logits of a linear model; it adds them up, makes scores of them, applies the defenses of scores, and answers the label
party alone. Parties are a star around the label party: a passive party's part goes through it, sealed for the scorer
(:mod:`splitvfl.crypto.seals`) under keys that all of them have exchanged in a roll call.

To a sealed part is bound what it is: everything that was agreed (run and step of the halves, task, loss, numbers of
records and rows, order of the parties), the number of the conversation, and a digest of the ids of its records. So the
label party cannot read parts, change them, mix those of other records or parties, or send old ones again. It can hold
parts back, and then nobody gets scores; and what it sends as its own part is its word: with another one, and the same
record in another prediction, it gets other scores of the same parts.

Ids reach a third party as digests with a salt that it is not told, so that it cannot try ids that it can guess.

Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, section II, where a coordinator adds up what
parties send; there parts have links of their own.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from splitvfl.crypto.key_agreement import KEY_BYTES, AgreementKey
from splitvfl.crypto.pair_keys import framed
from splitvfl.crypto.seals import SEAL_BYTES, Seals
from splitvfl.crypto.sum_masks import SumMasks, sum_of
from splitvfl.data.columns import Records
from splitvfl.errors import ConfigError, CryptoError, DataError, ProtocolError, shown
from splitvfl.exchange.handshake import TaskSpec, stated_task
from splitvfl.exchange.masking import check_adds_up, mask_parts
from splitvfl.exchange.parts import checked_outputs, computed, part_to_score
from splitvfl.exchange.roll_call import UNSIGNED, RollCall, Vouching, active_roll_call, member_roll_call, vouching_terms
from splitvfl.hooks import all_finite
from splitvfl.messaging.conversation import Expected, Half, Inbox, Outbox
from splitvfl.messaging.json_message import Note, awaited_note, note, read_note
from splitvfl.messaging.messages import FLOATS, Message
from splitvfl.party.direction import DIRECTION, direction_shape, own_direction
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.party.scorer import Scorer

ACTIVE: Final = "active"
"""In the place of a scorer's name: the party with the labels computes the scores."""
COORDINATOR: Final = "coordinator"
"""The scorer that has no data."""

# Kinds of messages; a share is the label party's part.
SCORING, PART, PARTS, SHARE, SCORES = "scoring", "part", "parts", "share", "scores"

_FACTS: Final = (
    "scorer",
    "parties",
    "task",
    "outputs",
    "loss",
    "records",
    "rows",
    "masked",
    "memoised",
    "direction_by",
    "run",
    "step",
    "epoch",
)
_SUBJECT: Final = "parts of scores"
_DIGEST_BYTES: Final = 32
_SALT_BYTES: Final = 32
_MOST_NUMBERS: Final = 1 << 28
"""In one part, to one that is only told how many records there are: room is made before they come."""


@dataclass(frozen=True, kw_only=True)
class ScoringTerms:
    """What all parties of a prediction must mean alike, where another one computes the scores.

    Attributes:
        scorer: Who does: a passive party's name, or :data:`COORDINATOR`.
        parties: The passive parties, in the order in which the label party's model takes them.
        learned: What was learned.
        loss: The loss whose scores are computed, in words: the same at the label party and the scorer.
        records: Number of records.
        rows: Records in a message.
        masked: Whether the scorer learns only the sum of the passive parties' parts.
        memoised: Whether its noise on scores is memoised: who sends a part relies on it.
        direction_by: The passive party that sends a direction of noise (:mod:`splitvfl.exchange.direction`); ``None``:
            nobody does.
        run: Number of the run that the halves are of.
        step: Training steps that were done with them.
        epoch: Epoch whose weights they are.
    """

    scorer: str
    parties: tuple[str, ...]
    learned: TaskSpec
    loss: str
    records: int
    rows: int
    masked: bool = False
    memoised: bool = False
    direction_by: str | None = None
    run: str = ""
    step: int = 0
    epoch: int = 0

    @property
    def members(self) -> tuple[str, ...]:
        """Those that have keys for each other: all but the label party."""
        return self.parties if self.scorer in self.parties else (*self.parties, self.scorer)

    def facts(self) -> dict[str, Any]:
        """Return them as plain values."""
        learned = {"parties": [*self.parties], "task": self.learned.task, "outputs": self.learned.outputs}
        return {name: learned[name] if name in learned else getattr(self, name) for name in _FACTS}


@dataclass(frozen=True)
class _Binding:
    """What is bound to the parts of one meeting: the agreed facts, and the salt of digests of ids."""

    facts: bytes
    salt: bytes

    @classmethod
    def of(cls, facts: Note, salt: bytes) -> _Binding:
        return cls(hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).digest(), salt)

    def digest_of(self, ids: Tensor) -> bytes:
        """Return the salted digest of records' ids, in their order."""
        held = ids.cpu().contiguous().numpy().astype("<i8", copy=False)
        return hashlib.sha256(self.salt + held.tobytes()).digest()

    def context(self, number: int, piece: int, digest: bytes) -> bytes:
        place = (number.to_bytes(8, "big"), piece.to_bytes(8, "big"))
        return b"".join(map(framed, (self.facts, PART.encode(), *place, digest)))

    @property
    def of_direction(self) -> bytes:
        return b"".join(map(framed, (self.facts, DIRECTION.encode())))


def scorer_terms(loss: str) -> dict[str, object]:
    """Return what the scorer and the label party alone must have alike: the loss is nobody else's business."""
    return {"loss of the scores": loss}


def third_terms(
    loss: str, vouching: Vouching, *, memoised: bool = False, direction_by: str | None = None
) -> dict[str, object]:
    """Return what a third party that computes the scores, and the label party, must have alike before all else."""
    return {
        "what is done": "prediction",
        "scores are computed by": COORDINATOR,
        **scorer_terms(loss),
        **noise_terms(memoised=memoised, direction_by=direction_by),
        **vouching_terms(vouching),
    }


def noise_terms(*, memoised: bool, direction_by: str | None = None) -> dict[str, object]:
    """Return what all parties must have alike of the noise on scores: memoised, all compute parts record by record."""
    return {
        **({"noise of scores": "memoised"} if memoised else {}),
        **({} if direction_by is None else {"direction of noise is sent by": direction_by}),
    }


def check_scored_elsewhere(party: ActiveParty) -> None:
    """Check that somebody else can add up the parts of this party's model.

    Raises:
        ConfigError: If it does anything else with the passive parties' activations, or another model predicts.
    """
    check_adds_up(
        party,
        what="only the scores of linear models can be computed by another party",
        remedy="; take model logistic-regression or glm, or let the label party compute them "
        "(prediction.scores_by: active)",
    )
    if party.private_top is not None:
        raise ConfigError(
            f"the private top of {party.name} predicts, and takes the parts one by one: nobody else can compute its "
            "scores; let the label party compute them (prediction.scores_by: active)"
        )


def own_part(party: ActiveParty, batch: Records) -> Tensor:
    """Return the label party's own part of the logits, ``(n, k)``: what is left where all others' parts are zero.

    Raises:
        ProtocolError: If it is NaN or infinite.
    """

    def run(records: Records) -> Tensor:
        nothing = torch.zeros(records.count, party.task.outputs, device=party.device)
        return party.run_top([nothing] * len(party.cuts), records)

    with torch.no_grad():
        return checked_outputs(party, computed(party, run, batch))


class LabelSide:
    """The label party's place in a prediction whose scores somebody else computes.

    Args:
        party: The party.
        terms: What was agreed.
        vouching: How members vouch for their keys, which it passes on.
        piece: Tells conversations apart whose batches have one number.

    Raises:
        ConfigError: If its model does not add up parts.
    """

    def __init__(
        self, party: ActiveParty, terms: ScoringTerms, *, vouching: Vouching = UNSIGNED, piece: int = 0
    ) -> None:
        check_scored_elsewhere(party)
        self._party, self._terms, self._vouching, self._piece = party, terms, vouching, piece
        self._binding: _Binding | None = None

    def open(self) -> Half:
        """Pass on keys, and say what the parts are of."""
        name, terms = self._party.name, self._terms
        yield from active_roll_call(name, dict.fromkeys(terms.members, KEY_BYTES), self._vouching)
        salt = secrets.token_bytes(_SALT_BYTES)
        self._binding = _Binding.of(terms.facts(), salt)
        # A third party that has the salt could try ids that it can guess.
        salts = {member: {"salt": salt.hex()} if member in terms.parties else {} for member in terms.members}
        yield Outbox(send=tuple(note(name, one, SCORING, 0, terms.facts() | salts[one]) for one in terms.members))
        sender = terms.direction_by
        if sender is not None and sender != terms.scorer:
            size = _sealed_direction_bytes(terms)
            inbox = yield Outbox(wait=(Expected(sender, DIRECTION, 0, (torch.uint8,), (size,)),))
            yield Outbox(send=(Message(name, terms.scorer, DIRECTION, 0, inbox[sender].payload),))

    def step(self, batch: Records, number: int) -> Half:
        """Return its half of one batch; its result is the scores, ``(n,)`` or ``(n, k)``.

        Raises:
            ProtocolError: If its own part, or a score, is NaN or infinite.
        """
        party, terms, binding = self._party, self._terms, self._binding
        assert binding is not None, "keys cross first"
        own = _narrow(own_part(party, batch), party.name)
        others = [name for name in terms.parties if name != terms.scorer]
        size = _sealed_bytes(terms, batch.count)
        inbox = yield Outbox(wait=tuple(Expected(one, PART, number, (torch.uint8,), (size,)) for one in others))
        digest = torch.frombuffer(bytearray(binding.digest_of(batch.ids)), dtype=torch.uint8)
        passed = torch.cat([digest, *(inbox[other].payload for other in others)])
        outputs = terms.learned.outputs
        shape = (batch.count,) if outputs == 1 else (batch.count, outputs)
        inbox = yield Outbox(
            send=(
                Message(party.name, terms.scorer, PARTS, number, passed),
                Message(party.name, terms.scorer, SHARE, number, own),
            ),
            wait=(Expected(terms.scorer, SCORES, number, FLOATS, shape),),
        )
        return _finite(inbox[terms.scorer])


class _Member:
    """What a passive party and a third one have in common: keys for each other, and what parts are bound to."""

    def __init__(self, name: str, active: str, vouching: Vouching, piece: int) -> None:
        self.name, self._active, self._vouching, self._piece = name, active, vouching, piece
        self._seals: Seals | None = None

    def _called(self, key: AgreementKey) -> Half:
        """Return its half of the roll call; its result is that."""
        roll: RollCall = yield from member_roll_call(
            self.name,
            self._active,
            key.public,
            subject=_SUBJECT,
            length_of=lambda other: KEY_BYTES,
            vouching=self._vouching,
        )
        others = {other: bytes(public.tolist()) for other, public in roll.keys.items()}
        try:
            self._seals = Seals(self.name, self._active, key, others, session=roll.session)
        except CryptoError as error:
            raise ProtocolError(f"keys passed on by {self._active}: {error}") from error
        return roll

    @property
    def seals(self) -> Seals:
        assert self._seals is not None, "keys cross first"
        return self._seals

    def _told(self) -> Half:
        """Return its half of what the label party says of the parts; its result is that."""
        inbox = yield Outbox(wait=(awaited_note(self._active, SCORING, 0),))
        return read_note(inbox[self._active])


class PassiveSide(_Member):
    """A passive party's place, where somebody else computes the scores and it is not this one.

    Args:
        party: The party.
        active: The label party's name.
        terms: What it takes for agreed.
        vouching: How it proves that its key is its own, and whose keys it takes.
        piece: Tells conversations apart whose batches have one number.
    """

    def __init__(
        self,
        party: PassiveParty,
        active: str,
        terms: ScoringTerms,
        *,
        vouching: Vouching = UNSIGNED,
        piece: int = 0,
    ) -> None:
        super().__init__(party.name, active, vouching, piece)
        self._party, self._terms = party, terms
        self._binding: _Binding | None = None

    def open(self) -> Half:
        """Meet those that have keys, and check what the label party says of the parts.

        Raises:
            DataError: If it says something else than was agreed, or names other parties.
        """
        key = AgreementKey()
        roll = yield from self._called(key)
        facts = yield from self._told()
        salt = _salt_of(facts, self._active)
        self._terms = _checked_terms(facts, self._terms, {self.name, *roll.keys}, self._active, self.name)
        self._binding = _Binding.of(self._terms.facts(), salt)
        if self._terms.masked and self._party.masks is None:
            peers = {name: public for name, public in roll.keys.items() if name in self._terms.parties}
            mask_parts(self._party, self._active, SumMasks(key), peers, roll.session)
        yield from self._directed()

    def _directed(self) -> Half:
        """Return its half of what is sent before parts: the direction of noise, if it is the one to send it."""
        if self._terms.direction_by == self.name:
            made, context = own_direction(self._party), self.binding.of_direction
            sealed = self.seals.sealed(self._terms.scorer, made, context=context)
            yield Outbox(send=(Message(self.name, self._active, DIRECTION, 0, sealed),))

    def step(self, batch: Records, number: int) -> Half:
        """Return its half of one batch; its result is ``None``."""
        part, context = self.part(batch, number), self.context(batch.ids, number)
        sealed = self.seals.sealed(self._terms.scorer, part, context=context)
        yield Outbox(send=(Message(self.name, self._active, PART, number, sealed),))

    def part(self, batch: Records, number: int) -> Tensor:
        """Return its part of the logits of these records, ``(n, k)``, after its defenses, and masked if that is agreed.

        Raises:
            ConfigError: If its model puts out anything else.
            ProtocolError: If it is NaN or infinite.
        """
        part = part_to_score(self._party, batch, number, "prediction", kind=PART, piece=self._piece)
        if part.shape[1] != self._terms.learned.outputs:
            raise ConfigError(
                f"{self.name} puts out {part.shape[1]} numbers of a record, and its part of the logits is "
                f"{self._terms.learned.outputs}: its model is not linear in the logits"
            )
        return part.cpu() if self._terms.masked else _narrow(part, self.name)

    def context(self, ids: Tensor, number: int) -> bytes:
        """Return what is bound to a part of these records."""
        return self.binding.context(number, self._piece, self.binding.digest_of(ids))

    @property
    def binding(self) -> _Binding:
        """What is bound to its parts of this meeting."""
        assert self._binding is not None, "keys cross first"
        return self._binding


class PassiveScorerSide(PassiveSide):
    """A passive party's place that computes the scores, and learns them.

    It learns more than them: the label party's part of the logits, and of the other passive parties' parts each one,
    or, if parts are masked, their sum.

    Args:
        party: The party.
        scorer: Its defenses of scores, and what is predicted.
        active: The label party's name.
        terms: What it takes for agreed.
        vouching: How it proves that its key is its own, and whose keys it takes.
        piece: Tells conversations apart whose batches have one number.
    """

    def __init__(
        self,
        party: PassiveParty,
        scorer: Scorer,
        active: str,
        terms: ScoringTerms,
        *,
        vouching: Vouching = UNSIGNED,
        piece: int = 0,
    ) -> None:
        super().__init__(party, active, terms, vouching=vouching, piece=piece)
        self._scorer = scorer

    def _directed(self) -> Half:
        terms = self._terms
        if terms.direction_by == self.name:
            self._scorer.take_direction(Message(self.name, self.name, DIRECTION, 0, own_direction(self._party)))
        elif terms.direction_by is not None:
            yield from _taken_direction(self, self._scorer, terms, self._active, self.binding.of_direction)

    def step(self, batch: Records, number: int) -> Half:
        """Return its half of one batch; its result is what the label party was told.

        Raises:
            DataError: If the label party asks for other records.
            ForgedError: If it passes on what another party did not send.
            ProtocolError: If parts or logits are NaN or infinite.
        """
        own, terms = self.part(batch, number), self._terms
        count = batch.count
        received = yield from _received_parts(self, terms, number, count, self._active)
        digest, sealed, label_part = received
        if digest != self.binding.digest_of(batch.ids):
            raise DataError(f"{self._active} asks for the scores of other records than {self.name} has agreed to")
        parts = _opened_parts(self, terms, sealed, number, count, self.binding.context(number, self._piece, digest))
        found = {name: own if name == self.name else parts[name].payload for name in terms.parties}
        scores = _answered(self._scorer, terms, found, parts, label_part, number, ids=batch.ids)
        yield Outbox(send=(Message(self.name, self._active, SCORES, number, scores),))
        return scores


class CoordinatorSide(_Member):
    """The place of a third party that computes the scores, and has no data.

    It learns the parties' parts of the logits, or, if they are masked, the sum of the passive parties' and the label
    party's; how many records there are; and no id.

    Args:
        active: The label party's name.
        scorer_of: Returns its defenses of scores, by what the label party says is predicted; asked once a meeting.
        name: What it is called.
        vouching: How it proves that its key is its own, and whose keys it takes.
        piece: Tells conversations apart whose batches have one number.

    Attributes:
        terms: What the label party said; ``None`` before.
    """

    def __init__(
        self,
        active: str,
        scorer: Scorer | None = None,
        *,
        name: str = COORDINATOR,
        vouching: Vouching = UNSIGNED,
        piece: int = 0,
    ) -> None:
        super().__init__(name, active, vouching, piece)
        self.scorer = scorer
        self.terms: ScoringTerms | None = None
        self._facts = b""

    def open(self) -> Half:
        """Meet those that have keys, and learn what the parts are of."""
        roll = yield from self._called(AgreementKey())
        facts = yield from self._told()
        self.terms = _stated_terms(facts, self._active)
        if self.terms.scorer != self.name or {*self.terms.members} != {self.name, *roll.keys}:
            raise ProtocolError(
                f"expected {self._active} to name {self.name} as the scorer of {', '.join(roll.keys)}, got "
                f"{shown(self.terms.scorer)} of {shown(', '.join(self.terms.parties))}"
            )

    def directed(self) -> Half:
        """Return its half of what comes before parts: the direction of noise, if a passive party sends one.

        Raises:
            DataError: If the label party has told the others something else of the noise than what it is here.
            ForgedError: If the label party passes on what that party did not send.
            ProtocolError: If it is no direction.
        """
        terms, scorer = self.terms, self.scorer
        assert terms is not None, "keys cross first"
        assert scorer is not None, "what is predicted is known"
        if terms.memoised != (scorer.noise is not None):
            words = {True: "memoised", False: "drawn anew for each prediction"}
            raise DataError(
                f"{self._active} says that noise on scores is {words[terms.memoised]}, and at {self.name} it is "
                f"{words[not terms.memoised]}; write the same prediction.score_noise at all parties"
            )
        if terms.direction_by is not None:
            context = _Binding.of(terms.facts(), b"").of_direction
            yield from _taken_direction(self, scorer, terms, self._active, context)

    def step(self, count: int, number: int) -> Half:
        """Return its half of one batch of so many records; its result is ``None``.

        Raises:
            ForgedError: If the label party passes on what another party did not send.
            ProtocolError: If parts or logits are NaN or infinite.
        """
        terms = self.terms
        assert terms is not None, "keys cross first"
        assert self.scorer is not None, "what is predicted is known"
        binding = _Binding.of(terms.facts(), b"")
        digest, sealed, label_part = yield from _received_parts(self, terms, number, count, self._active)
        context = binding.context(number, self._piece, digest)
        parts = _opened_parts(self, terms, sealed, number, count, context)
        found = {name: message.payload for name, message in parts.items()}
        scores = _answered(self.scorer, terms, found, parts, label_part, number, ids=None)
        yield Outbox(send=(Message(self.name, self._active, SCORES, number, scores),))


# --- at the scorer


def _taken_direction(member: _Member, scorer: Scorer, terms: ScoringTerms, active: str, context: bytes) -> Half:
    """Return a scorer's half of a direction of noise that comes from another passive party."""
    sender = terms.direction_by
    assert sender is not None, "somebody sends it"
    inbox = yield Outbox(wait=(Expected(active, DIRECTION, 0, (torch.uint8,), (_sealed_direction_bytes(terms),)),))
    content = member.seals.opened(sender, inbox[active].payload, context=context, what="a direction of noise")
    found = torch.frombuffer(bytearray(content), dtype=torch.float64)
    scorer.take_direction(Message(sender, member.name, DIRECTION, 0, found))


def _received_parts(member: _Member, terms: ScoringTerms, number: int, count: int, active: str) -> Half:
    """Return a scorer's half of what it receives: the digest of ids, sealed parts by sender, and the label party's."""
    others = [name for name in terms.parties if name != member.name]
    size = _sealed_bytes(terms, count)
    total = _DIGEST_BYTES + len(others) * size
    inbox: Inbox = yield Outbox(wait=(Expected(active, PARTS, number, (torch.uint8,), (total,)),))
    digest, *sealed = inbox[active].payload.split([_DIGEST_BYTES, *[size] * len(others)])
    shape = (count, terms.learned.outputs)
    inbox = yield Outbox(wait=(Expected(active, SHARE, number, (torch.float32,), shape),))
    return bytes(digest.tolist()), dict(zip(others, sealed, strict=True)), inbox[active]


def _opened_parts(
    member: _Member, terms: ScoringTerms, sealed: Mapping[str, Tensor], number: int, count: int, context: bytes
) -> dict[str, Message]:
    found = {}
    for other, part in sealed.items():
        content = member.seals.opened(other, part, context=context, what=f"a part of scores of step {number}")
        values = torch.frombuffer(bytearray(content), dtype=_dtype(terms)).reshape(count, terms.learned.outputs)
        found[other] = Message(other, member.name, PART, number, values)
    return found


def _answered(
    scorer: Scorer,
    terms: ScoringTerms,
    parts: Mapping[str, Tensor],
    received: Mapping[str, Message],
    label_part: Message,
    number: int,
    *,
    ids: Tensor | None,
) -> Tensor:
    """Return the scores, after whoever sent a part has been held to what it sent before."""
    scorer.remember(label_part)
    own = _finite(label_part)
    ordered = [parts[name] for name in terms.parties]
    if terms.masked:
        # Parts differ at every meeting, by their masks: their sum is what must not.
        total = sum_of(ordered).float()
        # The order is the label party's to say, and may be another one when it begins again.
        whole = Message(" and ".join(sorted(terms.parties)), scorer.name, PART, number, total)
        scorer.remember(whole)
        ordered = [_finite(whole)]
    else:
        scorer.remember(_order(terms, label_part))
        for message in received.values():
            scorer.remember(message)
            _finite(message)
    return scorer.answer(ordered, own, number=number, ids=ids)


def _order(terms: ScoringTerms, label_part: Message) -> Message:
    """Return in which order parts are added up, as if it had been sent with a part.

    The label party says it. In another order a sum may have other last bits, for which memoised noise is drawn anew.
    """
    named = torch.frombuffer(bytearray(b"".join(framed(name.encode()) for name in terms.parties)), dtype=torch.uint8)
    return replace(label_part, kind="order of parties", payload=named)


# --- what is said before


def _salt_of(facts: dict[str, Any], active: str) -> bytes:
    salt = facts.pop("salt", None)
    try:
        found = bytes.fromhex(salt) if isinstance(salt, str) else b""
    except ValueError:
        found = b""
    if len(found) != _SALT_BYTES:
        raise ProtocolError(f"expected {active} to send a salt of {_SALT_BYTES} bytes, got {shown(salt)}")
    return found


def _stated_terms(facts: dict[str, Any], active: str) -> ScoringTerms:
    """Return what the label party says of the parts, to one that has nothing to compare it with.

    Raises:
        ProtocolError: If it says nothing of the kind.
    """
    learned = stated_task(facts, active)
    numbers = {"records": 1 << 53, "rows": 1 << 24, "step": 1 << 53, "epoch": 1 << 53}
    lowest = {"step": 0, "epoch": 0}
    wrong = [
        name
        for name, most in numbers.items()
        if type(facts.get(name)) is not int or not lowest.get(name, 1) <= facts[name] <= most
    ]
    if not wrong and min(facts["records"], facts["rows"]) * learned.outputs > _MOST_NUMBERS:
        wrong += ["rows"]
    wrong += [name for name in ("scorer", "loss", "run") if not isinstance(facts.get(name), str)]
    wrong += [name for name in ("masked", "memoised") if not isinstance(facts.get(name), bool)]
    parties = facts.get("parties")
    wrong += [] if _names_a_party(facts.get("direction_by"), parties) else ["direction_by"]
    named = isinstance(parties, list) and all(isinstance(one, str) for one in parties)
    if wrong or not named or not parties or len({*parties}) < len(parties) or {*facts} != {*_FACTS}:
        what = ", ".join(wrong) or "parties, or more than is known here"
        raise ProtocolError(f"{active} did not say what the parts of scores are of: {what}")
    del facts["task"], facts["outputs"]
    return ScoringTerms(**{**facts, "parties": tuple(parties)}, learned=learned)


def _checked_terms(facts: dict[str, Any], own: ScoringTerms, members: set[str], active: str, name: str) -> ScoringTerms:
    """Return what the label party says of the parts, which must be what this party takes for agreed.

    The order of the parties is the label party's to say: a passive party need not know it; nor the loss, but if it
    computes the scores.
    """
    said = _stated_terms(facts, active)
    if {*said.members} != members:
        raise ProtocolError(
            f"{active} names {', '.join(map(shown, said.members))} as those that scores are of, and passed on keys of "
            f"{', '.join(sorted(members))}"
        )
    expected = replace(own, parties=said.parties, loss=own.loss if own.scorer == name else said.loss)
    if said != expected:
        theirs, ours = said.facts(), expected.facts()
        lines = "; ".join(
            f"{key}: {name} has {shown(ours[key])}, {active} has {shown(theirs[key])}"
            for key in ours
            if ours[key] != theirs[key]
        )
        raise DataError(f"{active} and {name} do not agree on what scores are of: {lines}")
    return said


def _names_a_party(given: object, parties: object) -> bool:
    """Return whether what was said is one of some parties, or none."""
    return given is None or (isinstance(given, str) and isinstance(parties, list) and given in parties)


# --- numbers


def _dtype(terms: ScoringTerms) -> torch.dtype:
    return torch.int64 if terms.masked else torch.float32


def _sealed_bytes(terms: ScoringTerms, count: int) -> int:
    return count * terms.learned.outputs * _dtype(terms).itemsize + SEAL_BYTES


def _sealed_direction_bytes(terms: ScoringTerms) -> int:
    return direction_shape(terms.learned.outputs)[0] * torch.float64.itemsize + SEAL_BYTES


def _narrow(part: Tensor, name: str) -> Tensor:
    """Return a part as it is sent, on the CPU."""
    if part.dtype != torch.float32:
        raise ConfigError(
            f"the model of {name} puts out {str(part.dtype).removeprefix('torch.')}, and parts of scores that another "
            "party computes are float32; leave autocast out, or let the label party compute them"
        )
    return part.detach().cpu()


def _finite(message: Message) -> Tensor:
    if not all_finite(message.payload):
        raise ProtocolError(
            f"the {message.kind} of step {message.step} from {message.sender} holds NaN or infinite values"
        )
    return message.payload
