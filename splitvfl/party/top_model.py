"""A top model as the label party runs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from splitvfl.cut.split_model import call_top
from splitvfl.data.columns import Columns, Records
from splitvfl.learning.precision import widened
from splitvfl.learning.tasks import Task
from splitvfl.messaging.messages import FLOATS


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


def _rows_of(activations: list[Tensor], columns: Tensor | Columns | None) -> int:
    if activations:
        return activations[0].shape[0]
    assert columns is not None, "a model without activations takes columns"
    return columns.shape[0] if isinstance(columns, Tensor) else columns.count


def own_input(batch: Records) -> Tensor | Columns | None:
    """Return the label party's own columns as its top takes them; ``None`` if it has none."""
    columns = batch.columns
    return columns.module_input() if columns.numeric.shape[1] + columns.categorical.shape[1] else None
