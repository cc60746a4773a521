"""One training step in the clear: the label party's half, a passive party's, and what other exchanges take of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

from splitvfl.cut.chain import OneDraw
from splitvfl.cut.layer import Answer
from splitvfl.cut.views import ViewSource
from splitvfl.data.columns import Records
from splitvfl.errors import ProtocolError
from splitvfl.exchange.receiver_clips import NO_CLIPS, ReceiverClips
from splitvfl.hooks import all_finite
from splitvfl.messaging.conversation import Half, Inbox, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.party.own_part import OwnPart, learn_from_sent
from splitvfl.party.party import ActiveParty, PassiveParty

# Whatever the labels are, the loss of outputs up to it is finite in float32: their squares, summed over 10⁸ records.
_LARGEST_OUTPUT = 1e15


def active_step(
    party: ActiveParty,
    batch: Records,
    step: int,
    *,
    own_part: OwnPart = "exact",
    clips: ReceiverClips = NO_CLIPS,
    coming: Sequence[int] = (),
) -> Half:
    """Return the label party's half of one training step; its result is the batch's loss, a float.

    Args:
        party: The label party.
        batch: Its records.
        step: Number of the step.
        own_part: What its own weights learn from.
        clips: What receivers clip before use.
        coming: How many records the next steps have whose activations may come before this one is done.

    Raises:
        ProtocolError: If an activation, the loss or a gradient holds NaN or infinite values, or an output is beyond
            10¹⁵: no gradient is sent then, and no weight changes.
    """
    ahead = (party.await_activations("activation", later, count) for later, count in enumerate(coming, step + 1))
    inbox = yield Outbox(
        wait=party.await_activations("activation", step, batch.count), ahead=tuple(chain.from_iterable(ahead))
    )
    value, gradients = loss_and_gradients(party, inbox, batch, step, own_part=own_part, clips=clips)
    yield Outbox(
        send=tuple(
            Message(party.name, name, "gradient", step, party.narrowed(gradient))
            for name, gradient in gradients.items()
        )
    )
    (total,) = party.weights.update(torch.tensor(value, dtype=torch.float64))
    # Last, when all that others wait for is on its way.
    if party.private_top is not None:
        activations = [clips.used_activation(party.received(inbox[name].payload)) for name in party.cuts]
        party.private_top.learn(activations, batch, party.training_labels.true(batch))
    return total.item()


def loss_and_gradients(
    party: ActiveParty,
    inbox: Inbox,
    batch: Records,
    step: int,
    *,
    own_part: OwnPart,
    clips: ReceiverClips = NO_CLIPS,
) -> tuple[float, dict[str, Tensor]]:
    """Return the batch's loss, and the defended gradient for each passive party; the weights get theirs.

    Raises:
        ProtocolError: As :func:`active_step`.
    """
    leaves = {name: clips.used_activation(received_finite(party, inbox[name])).requires_grad_() for name in party.cuts}
    targets, responses = party.answer(batch, step)
    assert batch.labels is not None, "the label party's records have them"
    loss_of = party.labels.loss(party.task.loss)
    source = party.cuts.label_gradient_source(loss_of, targets, step=step, ids=batch.ids)
    answer = None if responses is None else Answer(batch.labels, targets, responses, in_loss=True)
    once = OneDraw()
    crossed = {
        name: party.cuts[name](
            leaf,
            labels=batch.judged,
            ids=batch.ids,
            step=step,
            view_source=ViewSource(activation=leaf),
            answer=answer,
            source=source,
            once=once,
        )
        for name, leaf in leaves.items()
    }
    outputs = party.run_top(list(crossed.values()), batch)
    # Before the loss, which is infinite under some labels and not under others: to be refused would tell which.
    if outputs.numel() and not (largest := outputs.detach().abs().max().item()) <= _LARGEST_OUTPUT:
        raise ProtocolError(spoiled(f"outputs of step {step} are up to {largest:.3g}, which no loss bears", leaves))
    if source is not None:
        classes = party.task.classes
        outputs = source.follow(outputs, crossed, classes=classes, values=party.labels.target_values(classes))
    # A worker's mean counts for its share of the step's records; of none the mean is no number.
    loss = loss_of(outputs, targets) if batch.count else outputs.sum() * 0.0
    if party.share != 1.0:
        loss = loss * party.share
    value = loss.item()
    if not math.isfinite(value):
        raise ProtocolError(spoiled(f"the loss of step {step} is {value}", leaves))
    party.weights.clear_gradients()
    loss.backward()
    sent = {name: _gradient(leaf) for name, leaf in leaves.items()}
    if own_part == "sent":
        learn_from_sent(party, {name: clips.used_gradient(gradient) for name, gradient in sent.items()}, batch)
    if not party.weights.has_finite_gradients(*sent.values()):
        raise ProtocolError(spoiled(f"gradients of step {step} are NaN or infinite", leaves))
    if party.told_of_steps and batch.count:
        party.tell_of_step(batch, leaves, {name: clips.used_gradient(gradient) for name, gradient in sent.items()})
    return value, sent


def passive_step(
    party: PassiveParty, batch: Records, step: int, *, active: str, clips: ReceiverClips = NO_CLIPS
) -> Half:
    """Return a passive party's half of one training step; its result is ``None``.

    Args:
        party: The passive party.
        batch: Its records.
        step: Number of the step.
        active: Name of the label party.
        clips: What receivers clip before use; its own attacks see what came.

    Raises:
        ProtocolError: If the activation, which is not sent then, the gradient, or what follows from it for a weight
            holds NaN or infinite values: no weight changes then.
    """
    activation = party.activate(batch)
    gradient = yield from gradient_of(party, activation.detach(), batch, step, active)
    learn_from(party, activation, gradient, batch, step, clips)
    update(party, step, active)


def learn_from(
    party: PassiveParty,
    activation: Tensor,
    gradient: Tensor,
    batch: Records,
    step: int,
    clips: ReceiverClips,
    source: ViewSource | None = None,
    share: float | None = None,
) -> None:
    """Let a passive party learn from a received gradient; its optimiser takes its step in :func:`update`.

    Args:
        party: The passive party.
        activation: What its bottom put out, with its graph.
        gradient: What came for it.
        batch: Its records.
        step: Number of the step.
        clips: What receivers clip before use.
        source: What it held when the activation was made, if it holds something else now.
        share: What share of that step's records these are, if another step is under way now.
    """
    party.weights.clear_gradients()
    received = gradient.to(activation.dtype)
    # Clipped last: a narrower type may round up what is at the bound.
    party.learn(activation, received, batch, step, used=clips.used_gradient(received), source=source, share=share)


def gradient_of(party: PassiveParty, activation: Tensor, batch: Records, step: int, active: str) -> Half:
    """Send an activation, defended, and return its gradient, on the party's device.

    Raises:
        ProtocolError: If the activation, which is not sent then, or the gradient holds NaN or infinite values.
    """
    sent = party.defend_activation(activation, batch, step)
    party.send_to_watchers(sent, batch, step)
    awaited = party.awaited_gradient(activation, step, active)
    inbox = yield Outbox(send=(Message(party.name, active, "activation", step, sent),), wait=(awaited,))
    return received_finite(party, inbox[active])


def update(party: PassiveParty, step: int, active: str) -> None:
    """Take the optimiser's step.

    Raises:
        ProtocolError: If a gradient of a weight is NaN or infinite: no weight changes then.
    """
    if not party.weights.has_finite_gradients():
        raise ProtocolError(spoiled(f"gradients of the weights of {party.name} at step {step} overflow", (active,)))
    party.weights.update()


def check_finite(message: Message) -> None:
    """Check what was received.

    Raises:
        ProtocolError: If it holds NaN or infinite values.
    """
    if not all_finite(message.payload):
        raise ProtocolError(
            f"the {message.kind} of step {message.step} from {message.sender} holds NaN or infinite values"
        )


def received_finite(party: ActiveParty | PassiveParty, message: Message) -> Tensor:
    """Return what came, on the party's device.

    Raises:
        ProtocolError: If it holds NaN or infinite values.
    """
    check_finite(message)
    return party.received(message.payload.detach())


def spoiled(what: str, senders: Iterable[str]) -> str:
    """Return what to say of numbers that are no longer finite."""
    return (
        f"{what}, with what {' and '.join(senders)} sent: a learning rate is too high, or a party sends what spoils "
        "the model; no weight was changed"
    )


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
