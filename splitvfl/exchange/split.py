"""Split learning in the clear: the activation goes one way, its gradient comes back.

Source: Vepakomma et al., arXiv:1812.00564; the setting of Li et al., ICLR 2022, arXiv:2102.08504.
"""

from __future__ import annotations

import torch
from torch import Tensor

from splitvfl.conversation import Expected, Half, Outbox
from splitvfl.data.columns import Records
from splitvfl.errors import ProtocolError
from splitvfl.hooks import all_finite
from splitvfl.messages import Message
from splitvfl.party import ActiveParty, PassiveParty


def active_step(party: ActiveParty, batch: Records, step: int) -> Half:
    """Return the label party's half of one training step; its result is the batch's loss, a float.

    Raises:
        ProtocolError: If an activation holds NaN or infinite values.
    """
    inbox = yield Outbox(wait=party.await_activations("activation", step, batch.count))
    leaves = {name: _leaf(inbox[name], batch) for name in party.cuts}
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
        ProtocolError: If the gradient holds NaN or infinite values.
    """
    activation = party.activate(batch)
    sent = party.defend_activation(activation.detach(), batch, step)
    awaited = Expected(active, "gradient", step, (activation.dtype,), tuple(activation.shape))
    inbox = yield Outbox(send=(Message(party.name, active, "activation", step, sent),), wait=(awaited,))
    gradient = inbox[active].payload
    if not all_finite(gradient):
        raise ProtocolError(f"the gradient of step {step} from {active} holds NaN or infinite values")
    party.clear_gradients()
    party.learn(activation, gradient.to(activation.device), batch, step)
    party.update()


def _leaf(message: Message, batch: Records) -> Tensor:
    if not all_finite(message.payload):
        raise ProtocolError(f"the activation of step {message.step} from {message.sender} holds NaN or infinite values")
    return message.payload.detach().to(batch.ids.device).requires_grad_()


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
