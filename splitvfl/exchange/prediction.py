"""Joint scoring: each passive party sends its activation, the active party computes scores, and may publish them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from splitvfl.crypto.sum_masks import sum_of
from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError, CryptoError, DataError, ProtocolError
from splitvfl.hooks import Phase, all_finite
from splitvfl.messaging.conversation import Expected, Half, Inbox, Outbox, Recorder, converse
from splitvfl.messaging.messages import FLOATS, Message
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.party.top_model import own_input
from splitvfl.wording import shown

Part = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The result of joint scoring, at the active party.

    Attributes:
        outputs: The top's raw outputs, ``(n, k)``. They stay with the active party.
        scores: What is published, if anything is, after the score defenses: ``(n,)`` or ``(n, k)``.
    """

    outputs: Tensor
    scores: Tensor


def part_to_score(
    party: PassiveParty, batch: Records, number: int, phase: Phase, *, kind: str, piece: int = 0
) -> Tensor:
    """Return what a passive party sends of records that are not trained on, after the phase's defenses, and masked.

    ``kind``, the number of the conversation and that of the piece in it name the message: masks are for one use.
    """
    with torch.no_grad():
        activation = party.defend_activation(party.activate(batch), batch, number, phase)
    if party.masks is None:
        return activation
    try:
        return party.masks.masked(activation, kind=kind, number=number, piece=piece)
    except CryptoError:  # others see it, and it follows from the weights, and so from what others opened
        party.refusals.note(f"{kind} of step {number}, too large for masks")
        raise


def parts_of(party: ActiveParty, inbox: Inbox) -> list[Tensor]:
    """Return what every passive party sent of these records, as the top takes it.

    Raises:
        ProtocolError: If an activation holds NaN or infinite values.
    """
    return _summed(party, inbox) if party.sums_parts else _received(party, inbox)


def checked_outputs(party: ActiveParty, outputs: Tensor) -> Tensor:
    """Return a top's outputs, ``(n, k)``, as they are.

    Raises:
        ProtocolError: If they hold NaN or infinite values.
    """
    if not all_finite(outputs):
        received = f" on what {' and '.join(party.cuts)} sent" if party.cuts else ""
        raise ProtocolError(
            f"the outputs of {party.name}{received} hold NaN or infinite values: "
            "a party sent too large values, or a model's weights are spoiled"
        )
    return outputs


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
        scores = party.scores.apply(party.task.loss.scores(outputs), step=number, ids=batch.ids, labels=None)
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
    shape = (batch.count,) if outputs == 1 else (batch.count, outputs)
    awaited = (Expected(active, "scores", number, FLOATS, shape),) if publish else ()
    inbox = yield Outbox(send=(Message(party.name, active, "activation", number, part),), wait=awaited)
    return _scores(inbox[active]) if publish else None


def _scores(message: Message) -> Tensor:
    if not all_finite(message.payload):
        raise ProtocolError(f"the scores of step {message.step} from {message.sender} hold NaN or infinite values")
    return message.payload


def predict(
    active: ActiveParty, passives: dict[str, PassiveParty], *, part: Part = "test", batch_size: int = 4096
) -> Prediction:
    """Score all records of one part jointly, in this process, with every model in evaluation mode.

    Parties that have never been trained together are connected, in the order given.

    Args:
        active: The party with the top model.
        passives: The other parties by name.
        part: ``"test"`` or ``"train"``.
        batch_size: Records in a message.

    Returns:
        The active party's outputs and the published scores, in the order of the part's records.

    Raises:
        ArgumentError: If ``part`` is neither, or other parties are given than the active one is connected to.
        DataError: If there are no records of this part, or not the same at all parties.
    """
    if part not in ("train", "test"):
        raise ArgumentError(f"expected part train or test, got {shown(part)}")
    records = {party.name: getattr(party.data, part) for party in (active, *passives.values())}
    return predict_records(active, passives, records, batch_size=batch_size, piece=0 if part == "test" else 1)


def predict_records(
    active: ActiveParty,
    passives: Mapping[str, PassiveParty],
    records: Mapping[str, Records],
    *,
    batch_size: int = 4096,
    piece: int = 0,
    record: Recorder | None = None,
) -> Prediction:
    """Score records jointly as :func:`predict` does, whether or not they are the parties' own.

    Args:
        active: The party with the top model.
        passives: The other parties by name; none if the active party's model takes its own columns only.
        records: Of each party by name, encoded as its training records were: the same ones in the same order.
        batch_size: Records in a message.
        piece: Tells conversations apart whose batches have one number, for masks.
        record: Called with every message, in the order of sending.

    Raises:
        ArgumentError: If other parties are given than the active one is connected to.
        DataError: If there are no records, or not the same at all parties.
    """
    _connected(active, passives)
    count = _common_count(active.name, records)
    with ExitStack() as modes:
        for party in (active, *passives.values()):
            modes.enter_context(party.evaluating())
        chunks = [
            _predict_rows(
                active, passives, {name: own.rows(rows) for name, own in records.items()}, number, piece, record
            )
            for number, rows in enumerate(torch.arange(count).split(batch_size))
        ]
    return Prediction(torch.cat([chunk.outputs for chunk in chunks]), torch.cat([chunk.scores for chunk in chunks]))


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
