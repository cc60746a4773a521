"""The label party's top models: the one whose gradients cross, and a private one that learns from true labels.

Beside the first, which learns from whatever the label defenses answer, the label party may train another one, the
private top, on true labels, over the same activations and its own columns. The first alone decides what crosses:
gradients, and the verdicts of early stopping. The second predicts. Nothing flows back from it, so that a partner gets
the same messages, to the bit, as if it did not exist, and every claim about them stands
(``tests/exchange/test_private_top.py``). It draws its numbers (dropout) from a state of its own, works on copies of
what arrived, and where it diverges it stands still, which the partner does not see.

What is not promised: a prediction that a partner gets to see, or that follows from what is done with it, is a release
of its own, of a model that learned from true labels. No claim about training messages covers it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from splitvfl.cut.split_model import call_top
from splitvfl.data.columns import Columns, Records
from splitvfl.errors import ArgumentError
from splitvfl.hooks import all_finite_together
from splitvfl.learning.optimizers import OptimizerFactory, PerParameter, fused_adam, optimizer_of
from splitvfl.learning.precision import widened
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.learning.tasks import Task
from splitvfl.messaging.messages import FLOATS

PRIVATE_RATE = 1e-2
"""Learning rate of Adam, by which a private top learns unless something else is said: ten times the usual one.

A head is small, and has to follow bottoms that go on learning. At their rate it was hardly better than the top that
sends; docs/reference/experiments.md has figures.
"""


def private_adam(parameters: list[nn.Parameter]) -> Optimizer:
    """Return Adam at :data:`PRIVATE_RATE`."""
    return fused_adam(parameters, lr=PRIVATE_RATE)


class TopModel:
    """A model of the label party's, run on activations and its own columns, and held to what the task needs.

    Args:
        module: The model.
        task: What is learned.
        computing: Returns the block in which it is called.
    """

    def __init__(self, module: nn.Module, task: Task, computing: Callable[[], AbstractContextManager[object]]) -> None:
        self.module = module
        self._weights = list(module.parameters())
        self._task = task
        self._computing = computing

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes of activations that it can take."""
        own = {weight.dtype for weight in self._weights}
        return tuple(dtype for dtype in FLOATS if dtype in own) or FLOATS

    @property
    def output_dtype(self) -> torch.dtype:
        """The dtype of its outputs: that of its weights, in float32 at least."""
        return torch.promote_types(self._weights[0].dtype if self._weights else torch.float32, torch.float32)

    def run(self, activations: list[Tensor], columns: Tensor | Columns | None) -> Tensor:
        """Return its outputs, ``(n, k)``; in float32 where it computes in half precision.

        Args:
            activations: One ``(n, width)`` from each passive party; none if the model takes the columns alone.
            columns: The label party's, as :func:`own_input` returns them.

        Raises:
            ArgumentError: If outputs have not the shape that the task needs.
        """
        with self._computing():
            outputs = call_top(self.module, activations, columns)
        self._task.check_outputs(outputs, _rows_of(activations, columns))
        return widened(outputs)


class PrivateTop(TopModel):
    """The second top with its optimiser and its randomness; weights are kept and saved with those of its party.

    Args:
        module: The model, called as the first top is. It shares no weight and no buffer with it.
        factory: Makes its optimiser. ``None``: :func:`private_adam`, and row-wise Adagrad for sparse tables.
        task: What is learned.
        computing: Returns the block in which it is called.
        sending: The first top.

    Attributes:
        module: As given.
        random: Its random state.
        left_out: Steps in which its loss or a gradient was NaN or infinite, and its weights stayed as they were.

    Raises:
        ArgumentError: If the two share weights or buffers: what it learns from labels would cross then.
    """

    def __init__(
        self,
        module: nn.Module,
        factory: OptimizerFactory | None,
        *,
        task: Task,
        computing: Callable[[], AbstractContextManager[object]],
        sending: nn.Module,
    ) -> None:
        shared = {_place(tensor) for tensor in _tensors(sending)} & {_place(tensor) for tensor in _tensors(module)}
        if shared:
            raise ArgumentError(
                "the private top shares weights or buffers with the top that sends, so that what it learns from true "
                "labels would cross; build it of layers of its own (copy.deepcopy of a top will do)"
            )
        super().__init__(module, task, computing)
        self.random = PartyRandom(0)
        self.left_out = 0
        self._factory = factory or PerParameter(dense=private_adam)
        self._optimizer = optimizer_of(module, self._factory)

    def prepare(self, *, seed: int, device: torch.device) -> None:
        """Move to a device, and set the randomness."""
        self.module.to(device)
        self._optimizer = optimizer_of(self.module, self._factory)
        self.random = PartyRandom(derive_seed(seed, "private top"))
        if device.type == "cuda":
            self.random.use_cuda()

    def run(self, activations: list[Tensor], columns: Tensor | Columns | None) -> Tensor:
        """Return its outputs as :meth:`TopModel.run`, on copies of what is given."""
        with self.random:
            return super().run(*own_copies(activations, columns))

    def learn(self, activations: list[Tensor], batch: Records, labels: Tensor) -> None:
        """Take a step on true labels; weights stay as they are where the loss or a gradient is NaN or infinite.

        Dummies have no label. Canaries have theirs, and no coin: nothing that is learned here crosses, so that there is
        nothing to test on it.

        Args:
            activations: As they arrived.
            batch: The label party's records of the batch.
            labels: Their true labels, ``(n,)``.

        Raises:
            ArgumentError: If outputs have not the shape that the task needs.
        """
        outputs = self.run(activations, own_input(batch))
        # All rows went in: what a layer does to a batch, or says of it, must not depend on how many records are real.
        counted = slice(None) if batch.real is None else batch.real
        if self._optimizer is not None and len(labels[counted]):
            self._step(self._optimizer, self._task.loss(outputs[counted], labels[counted]))

    def _step(self, optimizer: Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with self.random:
            loss.backward()
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        if all_finite_together([loss.detach(), *gradients]):
            optimizer.step()
        else:
            self.left_out += 1

    def state_dict(self) -> dict[str, Any]:
        """Return optimiser, random state and the number of steps left out."""
        optimizer = None if self._optimizer is None else self._optimizer.state_dict()
        return {"optimizer": optimizer, "random": self.random.state_dict(), "left_out": self.left_out}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        self.random.load_state_dict(state["random"])
        self.left_out = state["left_out"]


def own_input(batch: Records) -> Tensor | Columns | None:
    """Return the label party's own columns as its top takes them; ``None`` if it has none."""
    columns = batch.columns
    return columns.module_input() if columns.numeric.shape[1] + columns.categorical.shape[1] else None


def own_copies(activations: list[Tensor], columns: Tensor | Columns | None) -> tuple[list[Tensor], Any]:
    """Return copies that nothing flows back from: a layer that works in place changes nobody else's numbers."""
    own = None if columns is None else columns.clone() if isinstance(columns, Tensor) else Columns(*map(_copy, columns))
    return [_copy(activation) for activation in activations], own


def _rows_of(activations: list[Tensor], columns: Tensor | Columns | None) -> int:
    if activations:
        return activations[0].shape[0]
    assert columns is not None, "a model without activations takes columns"
    return columns.shape[0] if isinstance(columns, Tensor) else columns.count


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return (tensor for tensor in itertools.chain(module.parameters(), module.buffers()) if tensor.numel())


def _place(tensor: Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()
