"""The direction of noise on scores, where the label party computes them: it crosses once, before parts do."""

from __future__ import annotations

import torch

from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.direction import DIRECTION, checked_direction, direction_shape, give_direction, own_direction
from splitvfl.party.party import ActiveParty, PassiveParty


def sending_direction(party: PassiveParty, active: str) -> Half:
    """Return the half of the passive party that sends its direction."""
    yield Outbox(send=(Message(party.name, active, DIRECTION, 0, own_direction(party)),))


def receiving_direction(party: ActiveParty, sender: str) -> Half:
    """Return the active party's half; its defenses of scores take the direction.

    Raises:
        ProtocolError: If what comes is none.
        ConfigError: If no defense awaits one.
    """
    shape = direction_shape(party.task.outputs)
    inbox = yield Outbox(wait=(Expected(sender, DIRECTION, 0, (torch.float64,), shape),))
    found = checked_direction(inbox[sender].payload, sender)
    party.score_noise = give_direction(party.scores, party.score_noise, found, sender)
