"""Split learning in the clear: the activation goes one way, its gradient comes back.

Source: Vepakomma et al., arXiv:1812.00564; the setting of Li et al., ICLR 2022, arXiv:2102.08504.
"""

from __future__ import annotations

import torch
from torch import Tensor

from splitvfl.conversation import Half, Outbox, expect
from splitvfl.data.columns import Records
from splitvfl.errors import ProtocolError
from splitvfl.hooks import all_finite
from splitvfl.messages import Message
from splitvfl.party import ActiveParty, PassiveParty


def active_step(party: ActiveParty, batch: Records, step: int) -> Half:
    """Return the label party's half of one training step; its result is the batch's loss, a float.

    Raises:
        ProtocolError: If an activation does not fit the batch.
    """
    inbox = yield Outbox(wait=tuple(party.cuts))
    leaves = {name: _leaf(expect(inbox, name, "activation", step), batch) for name in party.cuts}
    targets, responses = party.answer(batch, step)
    crossed = [
        party.cuts[name](leaf, labels=batch.labels, responses=responses, ids=batch.ids, step=step)
        for name, leaf in leaves.items()
    ]
    loss = party.task.loss(party.run_top(crossed, batch), targets)
    party.clear_gradients()
    loss.backward()
    yield Outbox(
        send=tuple(Message(party.name, name, "gradient", step, _gradient(leaf)) for name, leaf in leaves.items())
    )
    party.update()
    return loss.item()


def passive_step(party: PassiveParty, batch: Records, step: int, *, active: str) -> Half:
    """Return a passive party's half of one training step; its result is ``None``.

    Args:
        party: The passive party.
        batch: Its records of the batch.
        step: Number of the step.
        active: Name of the active party.

    Raises:
        ProtocolError: If the gradient does not fit the activation.
    """
    activation = party.activate(batch)
    sent = party.defend_activation(activation.detach(), batch, step)
    inbox = yield Outbox(send=(Message(party.name, active, "activation", step, sent),), wait=(active,))
    gradient = expect(inbox, active, "gradient", step).payload
    if gradient.shape != activation.shape or gradient.dtype != activation.dtype:
        raise ProtocolError(
            f"expected a gradient of shape {tuple(activation.shape)} and {activation.dtype} from {active}, "
            f"got {tuple(gradient.shape)} and {gradient.dtype}"
        )
    if not all_finite(gradient):
        raise ProtocolError(f"the gradient of step {step} from {active} holds NaN or infinite values")
    party.clear_gradients()
    party.learn(activation, gradient.to(activation.device), batch, step)
    party.update()


def _leaf(message: Message, batch: Records) -> Tensor:
    payload = message.payload
    if payload.dim() != 2 or payload.shape[0] != batch.count or not payload.is_floating_point():
        raise ProtocolError(
            f"expected an activation of {batch.count} rows from {message.sender}, "
            f"got shape {tuple(payload.shape)} and {payload.dtype}"
        )
    if not all_finite(payload):
        raise ProtocolError(f"the activation of step {message.step} from {message.sender} holds NaN or infinite values")
    return payload.detach().to(batch.ids.device).requires_grad_()


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
