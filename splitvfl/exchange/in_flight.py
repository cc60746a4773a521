"""Batches in flight: a passive party sends the activations of later steps before the gradients of earlier ones come.

With k batches in flight the activation of step t comes from weights that have seen the gradients of all steps up to
t − k − 1, and of no later one, whatever the network does: how stale it is is a number that the parties agree on, and no
race. So a run is deterministic, and equal to one in one process with the same k. Each gradient is taken at the weights
that made its activation. Before every checkpoint, and so before every evaluation, which comes at the end of an epoch,
what is under way is brought to an end; the first activations after it have seen all gradients before. The active party
notices nothing: it computes each step's gradient at its newest weights.

A passive party's own attacks look at a gradient when it is learned from, with the weights that made the activation. So
in one process a line of the log between two checkpoints leaves out the messages that are under way; over a network the
active party, which watches what it sends, has them in it. At the end of an epoch both have all.

Source: pipelined steps with weights kept for each batch are those of PipeDream, Harlap et al., arXiv:1806.03377.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from splitvfl.cut.views import ViewSource
from splitvfl.data.columns import Records
from splitvfl.exchange.base import Side
from splitvfl.exchange.receiver_clips import ReceiverClips
from splitvfl.exchange.split_step import learn_from, received_finite, update
from splitvfl.learning.kept_weights import keeping_weights
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.party import PassiveParty


@dataclass(frozen=True)
class _Sent:
    """One batch under way.

    Attributes:
        step: Number of its step.
        batch: Its records.
        activation: What the bottom put out, with its graph and the weights of that moment.
        source: What the party's own attacks are shown, with weights of that moment too.
        gradient: What is awaited of it.
        share: What share of the step's records these are.
    """

    step: int
    batch: Records
    activation: Tensor
    source: ViewSource
    gradient: Expected
    share: float


class PassiveInFlight(Side):
    """A passive party's side with several batches under way.

    Args:
        party: The party.
        active: Name of the active party.
        clips: What it clips of what it receives, before use.
        in_flight: How many batches may be under way when a step is done, from 1.
    """

    def __init__(self, party: PassiveParty, active: str, clips: ReceiverClips, in_flight: int) -> None:
        super().__init__()
        self._party, self._active, self._clips, self._most = party, active, clips, in_flight
        self._sent: deque[_Sent] = deque()

    @property
    def under_way(self) -> bool:
        """Whether gradients are still to come."""
        return bool(self._sent)

    def open(self) -> Half:
        """Forget what was under way when a link broke: the run goes back to a checkpoint, where nothing was."""
        self._sent.clear()
        yield from super().open()

    def step(self, batch: Records, step: int) -> Half:
        """Send the activation of a step; where enough are under way, learn from the oldest one's gradient.

        Raises:
            ProtocolError: As :func:`splitvfl.exchange.split_step.passive_step`.
        """
        party = self._party
        with keeping_weights(party.bottom):
            activation = party.activate(batch)
        source = party.view_source(activation, batch).kept(weights=party.attacks_read("weights"))
        message = party.defend_activation(activation.detach(), batch, step)
        party.send_to_watchers(message, batch, step)
        gradient = party.awaited_gradient(activation, step, self._active)
        self._sent.append(_Sent(step, batch, activation, source, gradient, party.share))
        first = Outbox(send=(Message(party.name, self._active, "activation", step, message),), ahead=(gradient,))
        if len(self._sent) > self._most:
            yield from self._learn(first)
        else:
            yield first

    def drain(self) -> Half:
        """Learn from the gradients that are still to come, oldest first.

        Raises:
            ProtocolError: As :func:`splitvfl.exchange.split_step.passive_step`.
        """
        while self._sent:
            yield from self._learn(Outbox())

    def _learn(self, first: Outbox) -> Half:
        oldest, party = self._sent[0], self._party
        inbox = yield Outbox(send=first.send, wait=(oldest.gradient,), ahead=first.ahead)
        gradient = received_finite(party, inbox[self._active])
        step, batch, activation = oldest.step, oldest.batch, oldest.activation
        learn_from(party, activation, gradient, batch, step, self._clips, oldest.source, oldest.share)
        update(party, step, self._active)
        self._sent.popleft()
