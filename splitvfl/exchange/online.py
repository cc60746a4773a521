"""Joint scoring of a few records at a time, asked for by their ids, for as long as the parties are linked.

The active party asks every passive party for the same records (:mod:`splitvfl.data.record_index`); each answers with a
standing for every one of them, and then with the activations of those that it holds. A record that a party does not
hold is an answer like another, and so is one that it does not want to answer for now. Scores stay with the active
party.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.data.record_index import ID_BYTES
from splitvfl.errors import ProtocolError
from splitvfl.exchange.prediction import parts_of, unchecked_outputs_on
from splitvfl.messaging.conversation import Expected, Half, Inbox, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty

# Kinds of messages.
REQUEST, STANDING, ACTIVATION = "request", "standing", "activation"


class Standing(IntEnum):
    """What a party says of a record that it is asked for."""

    NOT_HELD = 0
    HELD = 1
    REFUSED = 2  # more was asked for than the party answers in a time
    SCORED_ENOUGH = 3  # held, and scored as often as the party lets it be


@dataclass(frozen=True, slots=True)
class Answers:
    """What a passive party answers.

    Attributes:
        standing: A :class:`Standing` for each record, ``(n,)`` uint8.
        activation: Of those that are held, in their order, ``(held, width)``, as it crosses.
    """

    standing: Tensor
    activation: Tensor


@dataclass(frozen=True, slots=True)
class Scored:
    """What came of one message, at the active party.

    Attributes:
        scores: Scores of the records that everybody holds, in their order, after the score defenses: ``(k,)``, or
            ``(k, outputs)``. Those of a record are NaN where the outputs are not finite on activations that are: some
            value is too large, which is that record's matter and nobody else's.
        standing: By passive party, its :class:`Standing` for each record, ``(n,)`` uint8.
    """

    scores: Tensor
    standing: Mapping[str, Tensor]

    @property
    def held(self) -> Tensor:
        """Which records have a score, ``(n,)`` bool."""
        return torch.stack([one == Standing.HELD for one in self.standing.values()]).all(dim=0)


def asking(party: ActiveParty, batch: Records, digests: Tensor, number: int) -> Half:
    """Return the active party's half of one message; its result is :class:`Scored`.

    Args:
        party: The active party, in evaluation mode.
        batch: Its own columns of the records.
        digests: Digests of their ids, ``(n, 32)`` uint8.
        number: Number of the message since the parties met, from 0.

    Raises:
        ProtocolError: If what a party says of a record is no standing, or an activation holds NaN or infinite values.
    """
    names, count = tuple(party.cuts), batch.count
    inbox = yield Outbox(
        send=tuple(Message(party.name, name, REQUEST, number, digests) for name in names),
        wait=tuple(Expected(name, STANDING, number, (torch.uint8,), (count,)) for name in names),
    )
    standing = {name: _checked_standing(inbox[name]) for name in names}
    awaited = [
        replace(one, shape=(_held_by(standing[one.sender]), one.shape[1]))
        for one in party.await_activations(ACTIVATION, number, count)
    ]
    # Of a party that holds none of them nothing more comes.
    inbox = yield Outbox(wait=tuple(one for one in awaited if one.shape[0]))
    return Scored(_scores(party, batch, standing, inbox, number), standing)


def _checked_standing(message: Message) -> Tensor:
    standing = message.payload
    if standing.numel() and int(standing.max()) > max(Standing):
        raise ProtocolError(
            f"expected {message.sender} to say of each record 0 (not held), 1 (held), 2 (refused) or 3 (scored "
            f"enough), got {int(standing.max())}"
        )
    return standing


def _held_by(standing: Tensor) -> int:
    return int((standing == Standing.HELD).sum())


def _scores(party: ActiveParty, batch: Records, standing: Mapping[str, Tensor], inbox: Inbox, number: int) -> Tensor:
    everybody = Scored(torch.zeros(0), standing).held
    received = {message.sender: message for message in inbox.values()}
    for name, message in received.items():
        wanted = everybody[standing[name] == Standing.HELD]
        received[name] = replace(message, payload=message.payload[wanted])
    rows = torch.nonzero(everybody)[:, 0]
    outside = () if party.task.outputs == 1 else (party.task.outputs,)
    scores = torch.full((len(rows), *outside), torch.nan)
    if not len(rows):
        return scores
    joint = batch.rows(rows).to(party.device)
    outputs = unchecked_outputs_on(party, parts_of(party, received), joint)
    finite = torch.isfinite(outputs).flatten(1).all(dim=1)
    if not finite.any():
        return scores
    with torch.no_grad():
        found = party.task.loss.scores(outputs[finite])
        found = party.scores.apply(found, step=number, ids=joint.ids[finite], labels=None)
    if len(found) == len(rows):
        return found
    scores[finite.cpu()] = found.to(scores)
    return scores


def answering(name: str, active: str, answer: Callable[[Tensor], Answers], number: int, *, most: int) -> Half:
    """Return a passive party's half of one message.

    Args:
        name: The party.
        active: Who asks.
        answer: What is answered to digests of ids, ``(n, 32)`` uint8.
        number: Number of the message since the parties met, from 0.
        most: Records that may be asked for in one message.
    """
    shape = (range(1, most + 1), ID_BYTES)
    inbox = yield Outbox(wait=(Expected(active, REQUEST, number, (torch.uint8,), shape),))
    answers = answer(inbox[active].payload)
    parts = [(STANDING, answers.standing)]
    if len(answers.activation):
        parts.append((ACTIVATION, answers.activation))
    yield Outbox(send=tuple(Message(name, active, kind, number, payload) for kind, payload in parts))
