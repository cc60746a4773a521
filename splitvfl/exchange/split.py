"""Split learning in the clear: the activation goes one way, its gradient comes back.

Source: Vepakomma et al., arXiv:1812.00564; the setting of Li et al., ICLR 2022, arXiv:2102.08504.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from splitvfl.conversation import Expected, Half, Outbox
from splitvfl.data.columns import Records
from splitvfl.errors import ProtocolError
from splitvfl.hooks import all_finite, all_finite_together
from splitvfl.messages import Message
from splitvfl.party import ActiveParty, PassiveParty


def active_step(party: ActiveParty, batch: Records, step: int) -> Half:
    """Return the label party's half of one training step; its result is the batch's loss, a float.

    Raises:
        ProtocolError: If an activation, the loss or a gradient holds NaN or infinite values: no gradient is sent then,
            and no weight changes.
    """
    inbox = yield Outbox(wait=party.await_activations("activation", step, batch.count))
    leaves = {name: _leaf(party, inbox[name]) for name in party.cuts}
    targets, responses = party.answer(batch, step)
    crossed = [
        party.cuts[name](leaf, labels=batch.judged, responses=responses, ids=batch.ids, step=step)
        for name, leaf in leaves.items()
    ]
    loss = party.task.loss(party.run_top(crossed, batch), targets)
    value = loss.item()
    if not math.isfinite(value):
        raise ProtocolError(_spoiled(f"the loss of step {step} is {value}", leaves))
    party.clear_gradients()
    loss.backward()
    sent = [leaf.grad for leaf in leaves.values() if leaf.grad is not None]
    if not (party.has_finite_gradients() and all_finite_together(sent)):
        raise ProtocolError(_spoiled(f"gradients of step {step} are NaN or infinite", leaves))
    yield Outbox(
        send=tuple(
            Message(party.name, name, "gradient", step, party.narrowed(_gradient(leaf)))
            for name, leaf in leaves.items()
        )
    )
    party.update()
    return value


def passive_step(party: PassiveParty, batch: Records, step: int, *, active: str) -> Half:
    """Return a passive party's half of one training step; its result is ``None``.

    Args:
        party: The passive party.
        batch: Its records of the batch.
        step: Number of the step.
        active: Name of the active party.

    Raises:
        ProtocolError: If the activation, which is not sent then, the gradient, or what follows from it for a weight
            holds NaN or infinite values: no weight changes then.
    """
    activation = party.activate(batch)
    sent = party.defend_activation(activation.detach(), batch, step)
    awaited = Expected(active, "gradient", step, (party.wire or activation.dtype,), tuple(activation.shape))
    inbox = yield Outbox(send=(Message(party.name, active, "activation", step, sent),), wait=(awaited,))
    gradient = inbox[active].payload
    if not all_finite(gradient):
        raise ProtocolError(f"the gradient of step {step} from {active} holds NaN or infinite values")
    party.clear_gradients()
    party.learn(activation, party.received(gradient).to(activation.dtype), batch, step)
    if not party.has_finite_gradients():
        raise ProtocolError(_spoiled(f"gradients of the weights of {party.name} at step {step} overflow", (active,)))
    party.update()


def _leaf(party: ActiveParty, message: Message) -> Tensor:
    if not all_finite(message.payload):
        raise ProtocolError(f"the activation of step {message.step} from {message.sender} holds NaN or infinite values")
    return party.received(message.payload.detach()).requires_grad_()


def _spoiled(what: str, senders: Iterable[str]) -> str:
    return (
        f"{what}, with what {' and '.join(senders)} sent: a learning rate is too high, or a party sends what spoils "
        "the model; no weight was changed"
    )


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
