"""Joint scoring: each passive party sends its activation, the active party computes and publishes the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from splitvfl.conversation import Expected, Half, Outbox, converse
from splitvfl.data.columns import Records
from splitvfl.errors import ProtocolError
from splitvfl.hooks import all_finite
from splitvfl.messages import FLOATS, Message
from splitvfl.party import ActiveParty, Party, PassiveParty

Part = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the active party has after joint scoring.

    Attributes:
        outputs: The top's raw outputs, ``(n, k)``. They stay with the active party.
        scores: What was published, after the score defenses: ``(n,)`` or ``(n, k)``.
    """

    outputs: Tensor
    scores: Tensor


def active_prediction(party: ActiveParty, batch: Records, number: int) -> Half:
    """Return the active party's half of one prediction batch; its result is a :class:`Prediction`."""
    inbox = yield Outbox(wait=party.await_activations("activation", number, batch.count))
    activations = []
    for name in party.cuts:
        payload = inbox[name].payload
        if not all_finite(payload):
            raise ProtocolError(f"the activation of prediction {number} from {name} holds NaN or infinite values")
        activations.append(payload.to(party.device))
    with torch.no_grad():
        outputs = party.run_top(activations, batch)
        scores = party.scores.apply(party.task.scores(outputs), step=number, ids=batch.ids, labels=None)
    yield Outbox(send=tuple(Message(party.name, name, "scores", number, scores) for name in party.cuts))
    return Prediction(outputs, scores)


def passive_prediction(party: PassiveParty, batch: Records, number: int, *, active: str, outputs: int) -> Half:
    """Return a passive party's half of one prediction batch; its result is the published scores.

    Args:
        party: The passive party.
        batch: Its records.
        number: Number of the batch.
        active: Name of the active party.
        outputs: Scores of a record, as the active party's task has them.
    """
    with torch.no_grad():
        activation = party.defend_activation(party.activate(batch), batch, number)
    shape = (batch.count,) if outputs == 1 else (batch.count, outputs)
    awaited = Expected(active, "scores", number, FLOATS, shape)
    inbox = yield Outbox(send=(Message(party.name, active, "activation", number, activation),), wait=(awaited,))
    return inbox[active].payload


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
    modules = [active.module, *(party.module for party in passives.values())]
    # Layer by layer: a layer that its owner froze in evaluation mode stays there.
    modes = [(layer, layer.training) for module in modules for layer in module.modules()]
    for module in modules:
        module.eval()
    try:
        chunks = [
            _predict_rows(active, passives, part, rows, number)
            for number, rows in enumerate(torch.arange(count).split(batch_size))
        ]
    finally:
        for layer, mode in modes:
            layer.training = mode
    return Prediction(torch.cat([chunk.outputs for chunk in chunks]), torch.cat([chunk.scores for chunk in chunks]))


def _predict_rows(
    active: ActiveParty, passives: dict[str, PassiveParty], part: Part, rows: Tensor, number: int
) -> Prediction:
    def batch(party: Party) -> Records:
        return party.test_batch(rows) if part == "test" else party.train_batch(rows)

    halves: dict[str, Half] = {active.name: active_prediction(active, batch(active), number)}
    for name, party in passives.items():
        halves[name] = passive_prediction(party, batch(party), number, active=active.name, outputs=active.task.outputs)
    turns = {active.name: active.random, **{name: party.random for name, party in passives.items()}}
    result: Prediction = converse(halves, turns=turns)[active.name]
    return result
