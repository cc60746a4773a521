"""The stage of a test with hostile peers: every half of every exchange, and what it heard when all was well."""

from __future__ import annotations

import copy
import random
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from splitvfl.crypto import owner
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.obfuscators import FixedBase
from splitvfl.crypto.paillier import generate_keys
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.data.id_column import id_digest
from splitvfl.defenses import ScoreNoise
from splitvfl.exchange.direction import receiving_direction, sending_direction
from splitvfl.exchange.evaluation import EvaluationPlan, active_evaluation, passive_evaluation
from splitvfl.exchange.handshake import (
    HeldCheckpoints,
    TaskSpec,
    active_introduction,
    active_resuming,
    agreement,
    farewell,
    passive_introduction,
    passive_resuming,
    terms_of,
)
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.exchange.prediction import active_prediction, passive_prediction
from splitvfl.exchange.psi import Terms, align
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.scoring import (
    COORDINATOR,
    CoordinatorSide,
    LabelSide,
    PassiveScorerSide,
    PassiveSide,
    ScoringTerms,
)
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.exchange.taylor import Taylor
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.messaging.conversation import Expected, Half, converse
from splitvfl.messaging.messages import Message
from splitvfl.messaging.transcript import Transcript
from splitvfl.models import Linear, LinearTop
from splitvfl.net import frames
from splitvfl.net.driver import Correspondent, drive
from splitvfl.net.link import Link, Stream, greeted
from splitvfl.net.pipes import Pipe
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.party.refusals import Refusals
from splitvfl.party.scorer import Scorer

ACTIVE, PASSIVES = "bank", ("telecom", "shop")
RUN = "0123456789abcdef" * 2
RECORDS, WIDTH, STEP = 12, 4, 7


class Fixed:
    """Entered while a party acts: what it draws from the operating system is the same in every run."""

    def __init__(self, party: str) -> None:
        drawn = random.Random(party)
        self._functions: dict[str, Any] = {
            "token_bytes": drawn.randbytes,
            "randbits": drawn.getrandbits,
            "randbelow": drawn.randrange,
        }
        self._stack = ExitStack()

    def __enter__(self) -> None:
        self._stack.enter_context(mock.patch.multiple(secrets, **self._functions))
        self._stack.enter_context(mock.patch.object(owner, "FixedBase", tables_of))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class Parties:
    """A label party and two passive ones, and a half of each exchange for each of them."""

    plan = EvaluationPlan(range(0, RECORDS, 2), RECORDS, rows=5)
    width = WIDTH

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.active = ActiveParty(_data(ACTIVE, labels=True), self._top())
            self.passives = {name: PassiveParty(_data(name), self._bottom()) for name in PASSIVES}
            # Who has no data has no weights either: in its place something that must not change.
            self.third = PassiveParty(_data(COORDINATOR), nn.Linear(2, 1))
        for name in PASSIVES:
            self.active.connect(name)
        self.active.widths = dict.fromkeys(PASSIVES, self.width)
        self.active.stop_early_by(EarlyStopping(), self.plan.validation)
        for party in (self.active, *self.passives.values(), self.third):
            party.prepare(seed=0, device=torch.device("cpu"))

    def _top(self) -> nn.Module:
        return nn.Sequential(nn.Linear(len(PASSIVES) * WIDTH + 2, 3), nn.ReLU(), nn.Linear(3, 1))

    def _bottom(self) -> nn.Module:
        return nn.Linear(2, WIDTH)

    def party(self, name: str) -> Party:
        """Return a party by its name."""
        return {ACTIVE: self.active, COORDINATOR: self.third, **self.passives}[name]

    def half(self, exchange: str, name: str) -> Half:
        """Return one party's half of an exchange."""
        half: Half = getattr(self, f"_{exchange.split()[0]}")(name, *exchange.split()[1:])
        return half

    def _agreement(self, name: str) -> Half:
        return agreement(name, peers_of(name), terms_of(self.party(name).data, {"batch size": RECORDS, "seed": 0}))

    def _introduction(self, name: str) -> Half:
        if name == ACTIVE:
            return active_introduction(name, PASSIVES, TaskSpec("binary", 1))
        return passive_introduction(name, ACTIVE, lambda learned: WIDTH)

    def _resuming(self, name: str) -> Half:
        if name == ACTIVE:
            return active_resuming(name, PASSIVES, HeldCheckpoints(RUN, (0, 3, 6)))
        return passive_resuming(name, ACTIVE, HeldCheckpoints(RUN, (3, 6, 9)))

    def _training(self, name: str) -> Half:
        batch = self.party(name).train_batch(torch.arange(RECORDS))
        if name == ACTIVE:
            return active_step(self.active, batch, STEP)
        return passive_step(self.passives[name], batch, STEP, active=ACTIVE)

    def _evaluation(self, name: str) -> Half:
        if name == ACTIVE:
            return active_evaluation(self.active, self.plan, step=STEP, epoch=1)
        return passive_evaluation(self.passives[name], self.plan, step=STEP, epoch=1, active=ACTIVE)

    def _prediction(self, name: str) -> Half:
        batch = self.party(name).test_batch(torch.arange(RECORDS))
        if name == ACTIVE:
            return active_prediction(self.active, batch, STEP)
        return passive_prediction(self.passives[name], batch, STEP, active=ACTIVE, outputs=1)

    def _farewell(self, name: str) -> Half:
        return farewell(name, peers_of(name), STEP)

    def _alignment(self, name: str, mode: Any) -> Half:
        first = (ACTIVE, *PASSIVES).index(name)
        ids = b"".join(id_digest(f"p{number}") for number in range(first, first + 5))
        digests = np.frombuffer(ids, np.uint8).reshape(-1, 64)
        terms = Terms(active=ACTIVE, mode=mode, padding=0.5 if mode == "padded" else 0.0)
        return align(name, peers_of(name), digests, terms, threads=1)


class LogisticParties(Parties):
    """The same with linear models, and a half of each exchange of logistic regression: keys, and one step.

    And of predictions whose scores a passive party or a third one computes, which is told a direction of noise.
    """

    width = 1

    def __init__(self) -> None:
        super().__init__()
        # Made before anybody acts: what a party draws is then the same the first time and every other time.
        self._keys = {name: key_of(name) for name in (ACTIVE, *PASSIVES)}
        self.active.scores.attach(_awaiting())

    def _top(self) -> nn.Module:
        return LinearTop(len(PASSIVES), active_inputs=2)

    def _bottom(self) -> nn.Module:
        return Linear(2)

    def _residue(self, name: str) -> Half:
        return self._keys_and_step(name, Residue(rows=RECORDS, encryption=ENCRYPTION, key=self._keys[name]))

    def _hybrid(self, name: str) -> Half:
        # The same records are drawn for every half.
        drawn: dict[str, Any] = {"epsilon": 1.0, "share": 0.4, "selection_seed_for_experiments": 0}
        exchange = Hybrid(rows=RECORDS, encryption=ENCRYPTION, key=self._keys[name], **drawn)
        return self._keys_and_step(name, exchange)

    def _taylor(self, name: str) -> Half:
        return self._keys_and_step(name, Taylor(rows=RECORDS, encryption=ENCRYPTION, key=self._keys[name]))

    def _scoring(self, name: str, scorer: str) -> Half:
        terms = ScoringTerms(
            scorer=scorer,
            parties=PASSIVES,
            learned=TaskSpec("binary", 1),
            loss="usual",
            records=RECORDS,
            rows=RECORDS,
            direction_by=PASSIVES[0],
        )
        here = Scorer(scorer, self.active.task)
        here.scores.attach(_awaiting())
        self._unmask(name)
        if name == COORDINATOR:
            third = CoordinatorSide(ACTIVE, here)
            yield from third.open()
            yield from third.directed()
            return (yield from third.step(RECORDS, STEP))
        side: LabelSide | PassiveSide
        if name == ACTIVE:
            side = LabelSide(self.active, terms)
        elif name == scorer:
            side = PassiveScorerSide(self.passives[name], here, ACTIVE, terms)
        else:
            side = PassiveSide(self.passives[name], ACTIVE, terms)
        yield from side.open()
        return (yield from side.step(self.party(name).test_batch(torch.arange(RECORDS)), STEP))

    def _directed(self, name: str, _: str) -> Half:
        self._unmask(name)
        if name == ACTIVE:
            yield from receiving_direction(self.active, PASSIVES[0])
        elif name == PASSIVES[0]:
            yield from sending_direction(self.passives[name], ACTIVE)
        return (yield from self._prediction(name))

    def _unmask(self, name: str) -> None:
        """Take from a party the masks of another scene's training."""
        if name == ACTIVE:
            self.active.sums_parts = False
        elif name in self.passives:
            self.passives[name].masks = None

    def _keys_and_step(self, name: str, exchange: Hybrid | Residue | Taylor) -> Half:
        side = exchange.active(self.active) if name == ACTIVE else exchange.passive(self.passives[name], ACTIVE)
        yield from side.open()
        return (yield from side.step(self.party(name).train_batch(torch.arange(RECORDS)), STEP))


def _awaiting() -> ScoreNoise:
    return ScoreNoise(scheme=2, power=1.0, direction="sent")


# As short as sums fit: what is looked for here does not depend on the length of a key.
ENCRYPTION = InsecureEncryption(key_bits=256)


@cache
def key_of(name: str) -> PrivateKey:
    """Return a party's key, the same for every half."""
    key = generate_keys(ENCRYPTION.key_bits, insecure_for_tests=True)
    tables_of(key)
    return key


@cache
def tables_of(key: PrivateKey) -> FixedBase:
    """Return what a key's owner prepares, which takes longer than all the rest of a step."""
    return FixedBase(key)


ENCRYPTED = ("residue", "hybrid", "taylor")
# Who computes the scores, if it is not the label party.
SCORING = ("scoring telecom", "scoring shop", f"scoring {COORDINATOR}")
LINEAR = (*ENCRYPTED, *SCORING, "directed prediction")
EXCHANGES = (
    "introduction",
    "agreement",
    "resuming",
    "training",
    "evaluation",
    "prediction",
    "farewell",
    "alignment both",
    "alignment padded",
    "alignment size-only",
    *LINEAR,
)


def members_of(exchange: str) -> tuple[str, ...]:
    """Return all that take part in an exchange, the label party first."""
    return (ACTIVE, *PASSIVES, *([COORDINATOR] if exchange == f"scoring {COORDINATOR}" else []))


def peers_of(name: str, exchange: str = "") -> tuple[str, ...]:
    """Return whom a party talks to."""
    return members_of(exchange)[1:] if name == ACTIVE else (ACTIVE,)


def _data(name: str, *, labels: bool = False) -> PartyData:
    def records(first: int) -> Records:
        ids = torch.arange(first, first + RECORDS)
        return Records(ids, Columns.of(torch.randn(RECORDS, 2)), (ids // 2 % 2).float() if labels else None)

    return PartyData(name, ("a", "b"), ("a", "b"), (), records(0), records(100))


@dataclass(frozen=True)
class Heard:
    """What one party sent another in one exchange.

    Attributes:
        messages: The messages.
        frames: The frames of its hello, and theirs.
        pool: Frames of all exchanges.
    """

    messages: tuple[Message, ...]
    frames: tuple[bytes, ...]
    pool: tuple[bytes, ...]


@dataclass
class Scene:
    """One half of one exchange, with what its peers sent it.

    Attributes:
        parties: Whose halves they are.
        exchange: One of :data:`EXCHANGES`.
        name: The party that runs the half.
        heard: What it heard, by sender.
    """

    parties: Parties
    exchange: str
    name: str
    heard: dict[str, Heard]

    def __post_init__(self) -> None:
        """Note the state that every attempt begins with."""
        self._before = copy.deepcopy(self._party.state_dict())

    @property
    def _party(self) -> Party:
        return self.parties.party(self.name)

    def is_unchanged(self) -> bool:
        """Return whether weights, optimiser and everything else of the party are as before."""
        return same(self._before, self._party.state_dict())

    def reset(self) -> None:
        """Take the party back to its state before."""
        self._party.load_state_dict(copy.deepcopy(self._before))

    def is_sound(self) -> bool:
        """Return whether the party's weights are all finite."""
        return all(bool(torch.isfinite(weight).all()) for weight in self._party.module.state_dict().values())

    def attempt(self, heard: Mapping[str, Sequence[bytes]]) -> Any:
        """Run the half on frames, and return its result."""
        return self.drive({sender: _Recorded(self.name, sender, said) for sender, said in heard.items()})

    def drive(self, links: Mapping[str, Correspondent]) -> Any:
        """Run the half over links, in a run of its own, and return its result."""
        self._party.refusals = Refusals(self.name)  # those of other runs would end this one
        turn = Fixed(self.name)
        self._party.refusals = Refusals(self.name)  # every attempt is the first: at the third nothing more is looked at
        with turn:
            half = self.parties.half(self.exchange, self.name)
        return drive(half, party=self.name, links=links, turn=turn, timeout=0.0)


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal to the bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


class _Recorded:
    """A link on which everything has arrived; what is sent on it goes nowhere."""

    def __init__(self, own: str, peer: str, said: Sequence[bytes]) -> None:
        stream = Stream()
        stream.incoming = Pipe(len(said) + 1)
        stream.read(said)
        greeting = hello_of(own)
        theirs = greeted(stream, greeting, peer, 0.0)
        self._link = Link(stream, own=greeting, theirs=theirs, hang_up=lambda: None)

    def send(self, message: Message, *, timeout: float) -> None:
        """Drop it."""

    def receive(self, expected: Expected, *, timeout: float) -> Message:
        """Return the next message, after a look of our own at whether it is the one awaited."""
        message = self._link.receive(expected, timeout=timeout)
        if not obeys(message, expected):
            raise AssertionError(f"let through {message}, and awaited {expected}")
        return message


def obeys(message: Message, expected: Expected) -> bool:
    """Return whether a message is the one that is awaited."""
    address = (message.sender, message.kind, message.step) == (expected.sender, expected.kind, expected.step)
    sizes = [range(size, size + 1) if isinstance(size, int) else size for size in expected.shape]
    payload = message.payload
    fits = payload.dim() == len(sizes) and all(size in sizes[place] for place, size in enumerate(payload.shape))
    return address and fits and payload.dtype in expected.dtypes


def hello_of(name: str) -> frames.Hello:
    """Return what a party says of itself first."""
    return frames.Hello(name, "a run", "active" if name == ACTIVE else "passive")


def scenes(exchanges: Sequence[str] = EXCHANGES) -> list[Scene]:
    """Go through every one of these exchanges once, and return each half with what it heard."""
    parties = {linear: _parties(linear) for linear in (False, True)}
    recorded = {exchange: _transcript(exchange) for exchange in exchanges}
    said = {
        (exchange, sender, name): [one for one in transcript if (one.sender, one.receiver) == (sender, name)]
        for exchange, transcript in recorded.items()
        for name in members_of(exchange)
        for sender in peers_of(name, exchange)
    }
    pool = tuple(frame for (_, sender, _), messages in said.items() for frame in framed(sender, messages))
    return [
        Scene(
            parties[exchange in LINEAR],
            exchange,
            name,
            {
                sender: Heard(tuple(messages), tuple(framed(sender, messages)), pool)
                for sender in peers_of(name, exchange)
                for messages in (said[exchange, sender, name],)
            },
        )
        for exchange in exchanges
        for name in members_of(exchange)
        if name != PASSIVES[1]
    ]


def _parties(linear: bool) -> Parties:
    return LogisticParties() if linear else Parties()


def _transcript(exchange: str) -> Transcript:
    parties, transcript = _parties(exchange in LINEAR), Transcript()
    turns = {name: Fixed(name) for name in members_of(exchange)}
    halves = {}
    for name, turn in turns.items():
        with turn:
            halves[name] = parties.half(exchange, name)
    converse(halves, turns=turns, record=transcript.record)
    return transcript


def framed(sender: str, messages: Sequence[Message]) -> list[bytes]:
    """Return the frames of a hello and of messages."""
    packed = (frames.pack(message, number) for number, message in enumerate(messages))
    return [frames.hello_frame(hello_of(sender)), *(frame for one in packed for frame in one.frames())]
