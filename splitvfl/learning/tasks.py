"""What is learned: a kind of label, the loss of them, and the figure by which a model is judged."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, DataError, shown
from splitvfl.learning.losses import CrossEntropy, Logistic, Loss, SquaredError, loss_name
from splitvfl.metrics import leak_auc, saturated

_TAKES = {"binary": "0 and 1", "multiclass": "classes 0, 1, and so on", "regression": "numbers"}


class Task(ABC):
    """A kind of label, with a loss.

    Args:
        loss: What training makes small.

    Raises:
        ArgumentError: If the loss is one of other labels.

    Attributes:
        loss: Returns the mean loss of a batch, and the scores of outputs.
        name: ``"binary"``, ``"multiclass"`` or ``"regression"``.
        outputs: Width of the top model's output.
        metric: Name of the headline figure that :meth:`measure` returns: the loss's own, if it has one.
        variety: What is missing where all labels are the same.
        usual_loss: The loss unless another is given.
        classes: Number of classes; ``None`` where labels are no classes.
    """

    name: ClassVar[str]
    usual_metric: ClassVar[str]
    variety: ClassVar[str]
    usual_loss: ClassVar[type[Loss]]
    outputs: int = 1
    classes: int | None = None

    def __init__(self, loss: Loss | None = None) -> None:
        self.loss = loss or self.usual_loss()
        if self.loss.labels is not None and self.loss.labels != self.name:
            taken = _TAKES.get(self.loss.labels, f"{self.loss.labels} labels")
            raise ArgumentError(
                f"the {loss_name(self.loss)} loss takes {taken}, and this is a {self.name} task: take another loss, or "
                f"labels that it takes with data.task: {self.loss.labels}"
            )
        self.metric: str = self.loss.metric or self.usual_metric

    @abstractmethod
    def check_kind(self, labels: Tensor) -> None:
        """Raise :class:`DataError` unless all labels are of this kind."""

    def check_values(self, labels: Tensor) -> None:
        """Raise :class:`DataError` unless every label is of this kind, and one that the loss takes."""
        self.check_kind(labels)
        self.loss.check(labels)

    def check(self, labels: Tensor) -> None:
        """Raise :class:`DataError` unless the labels are fit to train on: such values, and not all the same."""
        if labels.numel():
            self.check_values(labels)
        # Not torch.unique, which sorts: there may be many millions.
        if not labels.numel() or labels.min() == labels.max():
            found = labels[0].item() if labels.numel() else "missing"
            raise DataError(f"all {labels.numel()} labels are {found}; {self.variety}")

    def measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the headline figure over a test set."""
        if self.loss.metric is not None:
            return self.loss.measure(outputs, labels)
        return self.usual_measure(outputs, labels)

    def measure_scores(self, scores: Tensor, labels: Tensor) -> float | None:
        """Return the same figure of predictions of another model; ``None`` where the loss's own metric takes outputs.

        Args:
            scores: In the unit of the loss's scores: ``(n,)``, or ``(n, k)`` of k classes. Of classes their order
                counts, so that log odds do as well.
            labels: ``(n,)``.
        """
        if self.loss.metric is not None:
            return self.loss.measure_scores(scores, labels)
        return self._usual_measure(scores, labels)

    def saturation(self, outputs: Tensor) -> float:
        """Return the fraction of records whose score has a probability of exactly 0 or 1."""
        return saturated(self.loss.scores(outputs).cpu().numpy())

    @abstractmethod
    def usual_measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the headline figure of a loss that has none of its own."""

    @abstractmethod
    def _usual_measure(self, scores: Tensor, labels: Tensor) -> float:
        """Return the same of scores."""

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
        loss: Default: the logistic loss.
    """

    name = "binary"
    usual_metric = "auc"
    usual_loss = Logistic
    variety = "a binary task needs both classes"
    classes = 2

    def check_kind(self, labels: Tensor) -> None:
        """Raise unless labels are 0 and 1."""
        if ((labels == 0) | (labels == 1)).all():
            return
        values = torch.unique(labels).tolist()
        hint = "; -1/+1 labels: map -1 to 0 (`positive: 1` in an experiment)" if set(values) == {-1, 1} else ""
        raise DataError(f"a binary task needs labels 0 and 1, got {values[:5]}{hint}")

    def usual_measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the AUC."""
        return self._usual_measure(outputs.squeeze(1), labels)

    def _usual_measure(self, scores: Tensor, labels: Tensor) -> float:
        return leak_auc(scores, labels)


class Multiclass(Task):
    """Labels 0 … k−1, k logits; measured by accuracy.

    Args:
        classes: k, at least 2.
        loss: Default: cross-entropy.
    """

    name = "multiclass"
    usual_metric = "accuracy"
    usual_loss = CrossEntropy
    variety = "a multi-class task needs more than one class"

    def __init__(self, classes: int, loss: Loss | None = None) -> None:
        super().__init__(loss)
        if classes < 2:
            raise ArgumentError(f"a multi-class task needs at least 2 classes, got {classes}")
        self.outputs = self.classes = classes

    def check_kind(self, labels: Tensor) -> None:
        """Raise unless labels are whole numbers in 0 … k−1."""
        if labels.is_floating_point():
            raise DataError(f"a multi-class task needs whole-number labels, got dtype {labels.dtype}")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.outputs:
            raise DataError(
                f"a task with {self.outputs} classes needs labels 0 to {self.outputs - 1}, got {low} to {high}"
            )

    def usual_measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the accuracy."""
        return self._usual_measure(outputs, labels)

    def _usual_measure(self, scores: Tensor, labels: Tensor) -> float:
        return float((scores.argmax(dim=1) == labels).float().mean())


class Regression(Task):
    """Real labels, one output; measured by R².

    Args:
        loss: Default: squared error.
    """

    name = "regression"
    usual_metric = "r2"
    usual_loss = SquaredError
    variety = "there is nothing to learn"

    def check_kind(self, labels: Tensor) -> None:
        """Raise unless labels are finite."""
        if not torch.isfinite(labels).all():
            raise DataError("a regression task needs finite labels")

    def usual_measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return R²; NaN where the labels do not vary."""
        return self._usual_measure(self.loss.scores(outputs), labels)

    def _usual_measure(self, scores: Tensor, labels: Tensor) -> float:
        truth = labels.double()
        spread = (truth - truth.mean()).square().sum().item()
        error = (scores.double() - truth).square().sum().item()
        return 1.0 - error / spread if spread > 0 else math.nan


def task_for(name: str, classes: int = 2, loss: Loss | None = None) -> Task:
    """Return the task of that name, with its usual loss unless another is given.

    Raises:
        ArgumentError: If there is none, or the loss is one of other labels.
    """
    if name == "binary":
        return Binary(loss)
    if name == "multiclass":
        return Multiclass(classes, loss)
    if name == "regression":
        return Regression(loss)
    raise ArgumentError(f"no such task {name!r}; expected binary, multiclass or regression")


def check_loss(task: Task) -> None:
    """Try the loss of a task on two made-up records, before anything is trained with one of a user's.

    Raises:
        ArgumentError: If it fails, or returns anything but the mean loss, with a gradient, and a score for each output.
    """
    name = type(task.loss).__name__
    outputs = torch.zeros(2, task.outputs, requires_grad=True)
    labels = torch.tensor([0, 1]) if task.name == "multiclass" else torch.tensor([0.0, 1.0])
    try:
        loss, scores = task.loss(outputs, labels), task.loss.scores(outputs.detach())
    except Exception as error:  # a user's class may fail in any way
        raise ArgumentError(f"{name} fails on two records: {type(error).__name__}: {error}") from error
    if not (isinstance(loss, Tensor) and loss.shape == () and loss.requires_grad):
        raise ArgumentError(
            f"{name} must return the mean loss of a batch, one number with a gradient, got {shown(loss)}"
        )
    expected = (2, task.outputs) if task.outputs > 1 else (2,)
    if not (isinstance(scores, Tensor) and scores.shape == expected):
        found = tuple(scores.shape) if isinstance(scores, Tensor) else shown(scores)
        raise ArgumentError(
            f"{name}.scores must return shape {expected} for outputs {tuple(outputs.shape)}, got {found}"
        )
