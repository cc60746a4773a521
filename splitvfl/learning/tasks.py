"""Learning tasks: their loss, checks of labels, and scores of outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.errors import ArgumentError, DataError
from splitvfl.metrics import leak_auc

RecordLoss = Callable[[Tensor, Tensor], Tensor]


class Task(ABC):
    """A loss with the meaning of its labels.

    Attributes:
        name: ``"binary"``, ``"multiclass"`` or ``"regression"``.
        outputs: Width of the top model's output.
        metric: Name of the headline figure that :meth:`measure` returns.
        variety: What is missing where all labels are the same.
        classes: Number of classes; ``None`` where labels are no classes.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    variety: ClassVar[str]
    outputs: int = 1
    classes: int | None = None

    @abstractmethod
    def check_values(self, labels: Tensor) -> None:
        """Raise :class:`DataError` unless every label is one that the loss takes."""

    def check(self, labels: Tensor) -> None:
        """Raise :class:`DataError` unless the labels are fit to train on: such values, and not all the same."""
        if labels.numel():
            self.check_values(labels)
        # Not torch.unique, which sorts: there may be many millions.
        if not labels.numel() or labels.min() == labels.max():
            found = labels[0].item() if labels.numel() else "missing"
            raise DataError(f"all {labels.numel()} labels are {found}; {self.variety}")

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch; ``outputs`` is ``(n, self.outputs)``."""

    @abstractmethod
    def scores(self, outputs: Tensor) -> Tensor:
        """Return what is published: ``(n,)`` or ``(n, k)``."""

    @abstractmethod
    def measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the headline figure over a test set."""

    def check_outputs(self, outputs: Tensor, rows: int) -> None:
        """Raise :class:`ArgumentError` unless the top model put out one row per record, as wide as the task needs."""
        if outputs.shape != (rows, self.outputs):
            raise ArgumentError(
                f"the top model must put out shape {(rows, self.outputs)} for a {self.name} task, "
                f"got {tuple(outputs.shape)}"
            )


class Binary(Task):
    """Labels in {0, 1}, one logit; measured by AUC.

    Args:
        record_loss: Returns each record's loss, ``(n,)``, of logits ``(n,)`` and labels −1 and +1, ``(n,)``: an
            approximation that a computation under encryption can afford, say. Default: the logistic loss.
    """

    name = "binary"
    metric = "auc"
    variety = "a binary task needs both classes"
    classes = 2

    def __init__(self, *, record_loss: RecordLoss | None = None) -> None:
        self._record_loss = record_loss

    def check_values(self, labels: Tensor) -> None:
        """Raise unless labels are 0 and 1."""
        if ((labels == 0) | (labels == 1)).all():
            return
        values = torch.unique(labels).tolist()
        hint = "; -1/+1 labels: map -1 to 0 (`positive: 1` in an experiment)" if set(values) == {-1, 1} else ""
        raise DataError(f"a binary task needs labels 0 and 1, got {values[:5]}{hint}")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        if self._record_loss is not None:
            return self._record_loss(outputs.squeeze(1), 2 * targets.to(outputs.dtype) - 1).mean()
        return functional.binary_cross_entropy_with_logits(outputs.squeeze(1), targets.to(outputs.dtype))

    def scores(self, outputs: Tensor) -> Tensor:
        """Return sigmoid probabilities, ``(n,)``."""
        return torch.sigmoid(outputs.squeeze(1))

    def measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the AUC."""
        return leak_auc(outputs.squeeze(1), labels)


class Multiclass(Task):
    """Labels 0 … k−1, k logits, cross-entropy; measured by accuracy.

    Args:
        classes: k, at least 2.
    """

    name = "multiclass"
    metric = "accuracy"
    variety = "a multi-class task needs more than one class"

    def __init__(self, classes: int) -> None:
        if classes < 2:
            raise ArgumentError(f"a multi-class task needs at least 2 classes, got {classes}")
        self.outputs = self.classes = classes

    def check_values(self, labels: Tensor) -> None:
        """Raise unless labels are whole numbers in 0 … k−1."""
        if labels.is_floating_point():
            raise DataError(f"a multi-class task needs whole-number labels, got dtype {labels.dtype}")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.outputs:
            raise DataError(
                f"a task with {self.outputs} classes needs labels 0 to {self.outputs - 1}, got {low} to {high}"
            )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return functional.cross_entropy(outputs, targets)

    def scores(self, outputs: Tensor) -> Tensor:
        """Return softmax probabilities, ``(n, k)``."""
        return torch.softmax(outputs, dim=1)

    def measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the accuracy."""
        return float((outputs.argmax(dim=1) == labels).float().mean())


class Regression(Task):
    """Real labels, one output, squared error; measured by R²."""

    name = "regression"
    metric = "r2"
    variety = "there is nothing to learn"

    def check_values(self, labels: Tensor) -> None:
        """Raise unless labels are finite."""
        if not torch.isfinite(labels).all():
            raise DataError("a regression task needs finite labels")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error."""
        return functional.mse_loss(outputs.squeeze(1), targets.to(outputs.dtype))

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the predictions, ``(n,)``."""
        return outputs.squeeze(1)

    def measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return R²; NaN where the labels do not vary."""
        truth = labels.double()
        spread = (truth - truth.mean()).square().sum().item()
        error = (outputs.squeeze(1).double() - truth).square().sum().item()
        return 1.0 - error / spread if spread > 0 else math.nan


def task_for(name: str, classes: int = 2) -> Task:
    """Return the task of that name.

    Raises:
        ArgumentError: If there is none.
    """
    if name == "binary":
        return Binary()
    if name == "multiclass":
        return Multiclass(classes)
    if name == "regression":
        return Regression()
    raise ArgumentError(f"no such task {name!r}; expected binary, multiclass or regression")
