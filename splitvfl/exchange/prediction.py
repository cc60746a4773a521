"""Joint scoring: each passive party sends its activation, the active party computes scores, and may publish them.

Where somebody else computes the scores, its halves are those of :mod:`splitvfl.exchange.scoring`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from splitvfl.crypto.sum_masks import sum_of
from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError, DataError, ProtocolError, shown
from splitvfl.exchange.direction import receiving_direction, sending_direction
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.parts import checked_outputs, part_to_score
from splitvfl.exchange.scoring import (
    ACTIVE,
    COORDINATOR,
    CoordinatorSide,
    LabelSide,
    PassiveScorerSide,
    PassiveSide,
    ScoringTerms,
)
from splitvfl.hooks import all_finite
from splitvfl.learning.losses import loss_name
from splitvfl.messaging.conversation import Expected, Half, Inbox, Outbox, Recorder, converse
from splitvfl.messaging.messages import FLOATS, Message
from splitvfl.party.direction import awaits_direction
from splitvfl.party.memoised import MemoisedNoise, defended_scores
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.party.scorer import Scorer
from splitvfl.party.top_model import own_input

Part = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The result of joint scoring, at the active party.

    Attributes:
        outputs: The top's raw outputs, ``(n, k)``. They stay with the active party. ``(n, 0)`` where somebody else
            computes the scores: it has none.
        scores: What is published, if anything is, after the score defenses: ``(n,)`` or ``(n, k)``. Where somebody else
            computes them, what it answers.
    """

    outputs: Tensor
    scores: Tensor


def parts_of(party: ActiveParty, inbox: Inbox) -> list[Tensor]:
    """Return what every passive party sent of these records, as the top takes it.

    Raises:
        ProtocolError: If an activation holds NaN or infinite values.
    """
    return _summed(party, inbox) if party.sums_parts else _received(party, inbox)


def outputs_on(party: ActiveParty, activations: list[Tensor], batch: Records) -> Tensor:
    """Return the outputs of the top that predicts, ``(n, k)``, on activations of these records, one of each party.

    It is the private top where there is one.

    Raises:
        ProtocolError: If an output is NaN or infinite.
    """
    return checked_outputs(party, unchecked_outputs_on(party, activations, batch))


def unchecked_outputs_on(party: ActiveParty, activations: list[Tensor], batch: Records) -> Tensor:
    """Return what :func:`outputs_on` does, NaN and infinite values included."""
    with torch.no_grad():
        if not party.one_by_one:
            return _outputs(party, activations, batch)
        rows = range(batch.count)
        return torch.cat(
            [
                _outputs(party, [one[row : row + 1] for one in activations], batch.part(torch.tensor([row])))
                for row in rows
            ]
        )


def _outputs(party: ActiveParty, activations: list[Tensor], batch: Records) -> Tensor:
    if party.private_top is None:
        return party.run_top(activations, batch)
    return party.private_top.run(activations, own_input(batch))


def _received(party: ActiveParty, inbox: Inbox) -> list[Tensor]:
    for name in party.cuts:
        if not all_finite(inbox[name].payload):
            message = inbox[name]
            raise ProtocolError(f"the {message.kind} of step {message.step} from {name} holds NaN or infinite values")
    return [party.received(inbox[name].payload) for name in party.cuts]


def _summed(party: ActiveParty, inbox: Inbox) -> list[Tensor]:
    """Return the sum of masked parts in the place of the first, and zeros for the others: the top adds them up."""
    total = party.received(sum_of([inbox[name].payload for name in party.cuts]).float())
    one = next(iter(inbox.values()))
    party.remember(replace(one, sender=" and ".join(party.cuts), payload=total))
    return [total, *(torch.zeros_like(total) for _ in range(len(party.cuts) - 1))]


def active_prediction(party: ActiveParty, batch: Records, number: int, *, publish: bool = True) -> Half:
    """Return the active party's half of one prediction batch; its result is a :class:`Prediction`.

    With ``publish`` the passive parties get the scores.

    Raises:
        ProtocolError: If an activation holds NaN or infinite values.
    """
    inbox = yield Outbox(wait=party.await_parts("activation", number, batch.count))
    outputs = outputs_on(party, parts_of(party, inbox), batch)
    with torch.no_grad():
        scores = defended_scores(
            party.scores, party.score_noise, outputs, party.task.loss.scores, step=number, ids=batch.ids
        )
    receivers = party.cuts if publish else ()
    yield Outbox(send=tuple(Message(party.name, name, "scores", number, scores) for name in receivers))
    return Prediction(outputs, scores)


def passive_prediction(
    party: PassiveParty,
    batch: Records,
    number: int,
    *,
    active: str,
    outputs: int,
    publish: bool = True,
    piece: int = 0,
) -> Half:
    """Return a passive party's half of one prediction batch; its result is the published scores, or ``None``.

    The active party's task says how many ``outputs``, scores of a record, there are; ``piece`` tells batches apart that
    have one number, for their masks.

    Raises:
        ProtocolError: If the activation, which is not sent then, or a score is NaN or infinite.
    """
    part = part_to_score(party, batch, number, "prediction", kind="activation", piece=piece)
    if party.masks is None:
        party.send_to_watchers(part, batch, number, "prediction", number)
    shape = (batch.count,) if outputs == 1 else (batch.count, outputs)
    awaited = (Expected(active, "scores", number, FLOATS, shape),) if publish else ()
    inbox = yield Outbox(send=(Message(party.name, active, "activation", number, part),), wait=awaited)
    return _scores(inbox[active]) if publish else None


def _scores(message: Message) -> Tensor:
    if not all_finite(message.payload):
        raise ProtocolError(f"the scores of step {message.step} from {message.sender} hold NaN or infinite values")
    return message.payload


def predict(
    active: ActiveParty,
    passives: dict[str, PassiveParty],
    *,
    part: Part = "test",
    batch_size: int = 4096,
    scores_by: str = ACTIVE,
    direction_by: str | None = None,
) -> Prediction:
    """Score all records of one part jointly, in this process, with every model in evaluation mode.

    Parties that have never been trained together are connected, in the order given.

    Args:
        active: The party with the top model.
        passives: The other parties by name.
        part: ``"test"`` or ``"train"``.
        batch_size: Records in a message.
        scores_by: As for :func:`predict_records`.
        direction_by: Likewise.

    Returns:
        The active party's outputs and the published scores, in the order of the part's records.

    Raises:
        ArgumentError: If ``part`` is neither, or other parties are given than the active one is connected to.
        DataError: If there are no records of this part, or not the same at all parties.
    """
    if part not in ("train", "test"):
        raise ArgumentError(f"expected part train or test, got {shown(part)}")
    records = {party.name: getattr(party.data, part) for party in (active, *passives.values())}
    piece = 0 if part == "test" else 1
    return predict_records(
        active, passives, records, batch_size=batch_size, piece=piece, scores_by=scores_by, direction_by=direction_by
    )


def predict_records(
    active: ActiveParty,
    passives: Mapping[str, PassiveParty],
    records: Mapping[str, Records],
    *,
    batch_size: int = 4096,
    piece: int = 0,
    scores_by: str = ACTIVE,
    direction_by: str | None = None,
    record: Recorder | None = None,
) -> Prediction:
    """Score records jointly as :func:`predict` does, whether or not they are the parties' own.

    Args:
        active: The party with the top model.
        passives: The other parties by name; none if the active party's model takes its own columns only.
        records: Of each party by name, encoded as its training records were: the same ones in the same order.
        batch_size: Records in a message.
        piece: Tells conversations apart whose batches have one number, for masks.
        scores_by: Who computes the scores of a linear model: ``"active"``, ``"coordinator"``, which has no data, or a
            passive party's name. The active party's defenses of scores act there, with its ``score_noise``.
        direction_by: The passive party that sends the direction of noise (:mod:`splitvfl.party.direction`), if a
            defense of scores awaits one; ``None``: nobody does.
        record: Called with every message, in the order of sending.

    Raises:
        ArgumentError: If other parties are given than the active one is connected to, or nobody is called
            ``scores_by`` or ``direction_by``.
        ConfigError: If another party is to compute the scores, and the model is not linear.
        DataError: If there are no records, or not the same at all parties.
        LimitError: If a passive party that counts what it lets be scored lets no more of these.
    """
    _connected(active, passives)
    count = _common_count(active.name, records)
    if direction_by is not None and direction_by not in passives:
        raise ArgumentError(
            f"direction_by: expected a passive party ({', '.join(passives) or 'none'}), got {shown(direction_by)}"
        )
    direction_by = direction_by if any(map(awaits_direction, active.scores)) else None
    for passive in passives.values():
        if passive.tally is not None:
            passive.tally.begin()
    predicted: Callable[[Mapping[str, Records], int], Prediction] = partial(
        _predict_rows, active, passives, piece=piece, record=record
    )
    with ExitStack() as modes:
        for party in (active, *passives.values()):
            modes.enter_context(party.evaluating())
            modes.enter_context(_one_by_one(party, active.score_noise))
        modes.callback(setattr, active, "score_noise", active.score_noise)
        if scores_by != ACTIVE:
            predicted = _Elsewhere(
                active,
                passives,
                scores_by,
                direction_by=direction_by,
                count=count,
                rows=batch_size,
                piece=piece,
                record=record,
            )
        elif direction_by is not None:
            sending = sending_direction(passives[direction_by], active.name)
            converse({active.name: receiving_direction(active, direction_by), direction_by: sending}, record=record)
        chunks = [
            predicted({name: own.rows(rows) for name, own in records.items()}, number)
            for number, rows in enumerate(torch.arange(count).split(batch_size))
        ]
    return Prediction(torch.cat([chunk.outputs for chunk in chunks]), torch.cat([chunk.scores for chunk in chunks]))


@contextmanager
def _one_by_one(party: Party, noise: MemoisedNoise | None) -> Iterator[None]:
    """Let a party compute record by record within a block, if noise is memoised."""
    before, party.one_by_one = party.one_by_one, party.one_by_one or noise is not None
    try:
        yield
    finally:
        party.one_by_one = before


def _connected(active: ActiveParty, passives: Mapping[str, PassiveParty]) -> None:
    """Connect an active party that is not connected to anybody; of one that is, check to whom."""
    if not active.cuts:
        for name in passives:
            active.connect(name)
    if set(active.cuts) != set(passives):
        raise ArgumentError(
            f"expected the passive parties that {active.name} is connected to, {', '.join(active.cuts)}; got "
            f"{', '.join(passives) or 'none'}"
        )


def _common_count(name: str, records: Mapping[str, Records]) -> int:
    """Return how many records there are, the same at all parties."""
    ids = records[name].ids
    if not len(ids):
        raise DataError(f"{name} has no record to score")
    for other, own in records.items():
        if len(own.ids) != len(ids) or not torch.equal(own.ids.cpu().long(), ids.cpu().long()):
            raise DataError(f"{name} and {other} have other records, or the same in another order")
    return len(ids)


def _predict_rows(
    active: ActiveParty,
    passives: Mapping[str, PassiveParty],
    batches: Mapping[str, Records],
    number: int,
    *,
    piece: int,
    record: Recorder | None,
) -> Prediction:
    passive = partial(passive_prediction, active=active.name, outputs=active.task.outputs, piece=piece)
    halves = {
        active.name: active_prediction(active, batches[active.name].to(active.device), number),
        **{name: passive(party, batches[name].to(party.device), number) for name, party in passives.items()},
    }
    turns = {active.name: active.random, **{name: party.random for name, party in passives.items()}}
    result: Prediction = converse(halves, turns=turns, record=record)[active.name]
    return result


class _Elsewhere:
    """Joint scoring in this process where another party than the active one computes the scores.

    Raises:
        ArgumentError: If nobody is called so.
        ConfigError: If the model is not linear.
    """

    def __init__(
        self,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        scores_by: str,
        *,
        direction_by: str | None,
        count: int,
        rows: int,
        piece: int,
        record: Recorder | None,
    ) -> None:
        if scores_by != COORDINATOR and scores_by not in passives:
            named = f"a passive party ({', '.join(passives)})" if passives else "no other: there is no passive party"
            raise ArgumentError(f"scores_by: expected {ACTIVE}, {COORDINATOR} or {named}; got {shown(scores_by)}")
        self._parties = {active.name: active, **passives}
        task = active.task
        terms = ScoringTerms(
            scorer=scores_by,
            parties=tuple(active.cuts),
            learned=TaskSpec(task.name, task.outputs),
            loss=loss_name(task.loss),
            records=count,
            rows=rows,
            masked=active.sums_parts,
            memoised=active.score_noise is not None,
            direction_by=direction_by,
        )
        scorer = Scorer(scores_by, task, scores=active.scores, noise=active.score_noise)
        self._label = LabelSide(active, terms, piece=piece)
        self._coordinator = CoordinatorSide(active.name, scorer, piece=piece) if scores_by == COORDINATOR else None
        self._sides: dict[str, LabelSide | PassiveSide] = {active.name: self._label}
        for name, party in passives.items():
            self._sides[name] = (
                PassiveScorerSide(party, scorer, active.name, terms, piece=piece)
                if name == scores_by
                else PassiveSide(party, active.name, terms, piece=piece)
            )
        self._active, self._record, self._opened = active, record, False

    def __call__(self, batches: Mapping[str, Records], number: int) -> Prediction:
        """Return the scores of one batch."""
        third = {} if self._coordinator is None else {COORDINATOR: self._coordinator}
        if not self._opened:
            opening = {name: side.open() for name, side in self._sides.items()}
            opening |= {name: _opening(side) for name, side in third.items()}
            converse(opening, record=self._record)
            self._opened = True
        halves = {
            name: side.step(batches[name].to(self._parties[name].device), number) for name, side in self._sides.items()
        }
        halves |= {name: side.step(batches[self._active.name].count, number) for name, side in third.items()}
        turns = {name: party.random for name, party in self._parties.items()}
        scores: Tensor = converse(halves, turns=turns, record=self._record)[self._active.name]
        return Prediction(torch.zeros(len(scores), 0), scores)


def _opening(side: CoordinatorSide) -> Half:
    yield from side.open()
    yield from side.directed()
