"""Joint scoring: each passive party sends its activation, the active party computes scores, and may publish them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from splitvfl.crypto.sum_masks import sum_of
from splitvfl.data.columns import Records
from splitvfl.errors import CryptoError, ProtocolError
from splitvfl.hooks import Phase, all_finite
from splitvfl.messaging.conversation import Expected, Half, Inbox, Outbox, converse
from splitvfl.messaging.messages import FLOATS, Message
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.party.top_model import own_input

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
        raise ProtocolError(
            f"the outputs of {party.name} on what {' and '.join(party.cuts)} sent hold NaN or infinite values: "
            "a party sent too large values, or a model's weights are spoiled"
        )
    return outputs


def outputs_on(party: ActiveParty, activations: list[Tensor], batch: Records) -> Tensor:
    """Return the outputs of the top that predicts, ``(n, k)``, on activations of these records, one of each party.

    It is the private top where there is one.

    Raises:
        ProtocolError: If an output is NaN or infinite.
    """
    with torch.no_grad():
        if party.private_top is None:
            return checked_outputs(party, party.run_top(activations, batch))
        return checked_outputs(party, party.private_top.run(activations, own_input(batch)))


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

    Args:
        active: The party with the top model.
        passives: The other parties by name.
        part: ``"test"`` or ``"train"``.
        batch_size: Records in a message.

    Returns:
        The active party's outputs and the published scores, in the order of the part's records.
    """
    count = (active.data.test if part == "test" else active.data.train).count
    with ExitStack() as modes:
        for party in (active, *passives.values()):
            modes.enter_context(party.evaluating())
        chunks = [
            _predict_rows(active, passives, part, rows, number)
            for number, rows in enumerate(torch.arange(count).split(batch_size))
        ]
    return Prediction(torch.cat([chunk.outputs for chunk in chunks]), torch.cat([chunk.scores for chunk in chunks]))


def _predict_rows(
    active: ActiveParty, passives: dict[str, PassiveParty], part: Part, rows: Tensor, number: int
) -> Prediction:
    def batch(party: Party) -> Records:
        return party.test_batch(rows) if part == "test" else party.train_batch(rows)

    passive = partial(
        passive_prediction, active=active.name, outputs=active.task.outputs, piece=0 if part == "test" else 1
    )
    halves = {
        active.name: active_prediction(active, batch(active), number),
        **{name: passive(party, batch(party), number) for name, party in passives.items()},
    }
    turns = {active.name: active.random, **{name: party.random for name, party in passives.items()}}
    result: Prediction = converse(halves, turns=turns)[active.name]
    return result
