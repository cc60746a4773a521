"""What training makes small, and what its outputs then say of a label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["ApproximateLogistic", "CrossEntropy", "Logistic", "Loss", "SquaredError", "link_of", "loss_name"]

Approximation = Literal["taylor", "minimax", "piecewise", "exact"]
"""What stands in for the sigmoid of the logistic loss where gradients are computed under encryption."""

Link = Literal["identity", "sigmoid", "softmax"]


class Loss(ABC):
    """A loss of outputs and labels.

    A loss of another kind than there is needs no other task: with labels that are counts, ``Regression(Poisson())``.

    Attributes:
        name: What it is called in experiments; one that needs what no file can hold has none.
        labels: The task whose labels it takes: ``"binary"``, ``"multiclass"`` or ``"regression"``; ``None``: any.
        link: What :meth:`scores` makes of the outputs, for those who read outputs off scores; ``None``: something else.
            It is not inherited by a class that has scores of its own (:func:`link_of`).
        metric: Name of the headline figure that :meth:`measure` returns; ``None``: the task's.
        linear_in_targets: Whether the gradient is linear in targets of any size, so that those that are right on
            average, as label defenses answer, train what the labels would.
        is_logistic: Whether it is the logistic loss, or an approximation for encryption: not inherited by a class that
            is derived from one.
        shifts_scores: Why :meth:`scores` are no probabilities of the labels, as a sentence; empty: they are.
        family: ``"poisson"`` or ``"gamma"``, whose deviance a standard model of these labels makes small; empty: the
            usual one of the task.
    """

    name: ClassVar[str]
    labels: ClassVar[str | None] = None
    link: Link | None = None
    metric: ClassVar[str | None] = None
    linear_in_targets: bool = True
    is_logistic: ClassVar[bool] = False
    shifts_scores: str = ""
    family: ClassVar[Literal["", "poisson", "gamma"]] = ""

    @abstractmethod
    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss of a batch.

        Args:
            outputs: ``(n, k)``, one column for each output of the task.
            targets: Labels, ``(n,)``, or what label defenses put in their place.
        """

    @abstractmethod
    def scores(self, outputs: Tensor) -> Tensor:
        """Return what is predicted of the labels, and published: ``(n,)`` or ``(n, k)``."""

    def check(self, labels: Tensor) -> None:  # noqa: B027  # most losses take all labels of a kind
        """Raise :class:`~splitvfl.errors.DataError` unless it takes these labels, which are of its task's kind."""

    def measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the headline figure over a test set, where :attr:`metric` names one.

        Args:
            outputs: ``(n, k)``.
            labels: ``(n,)``.
        """
        raise NotImplementedError(f"{type(self).__name__} names a metric and does not measure it")

    def measure_scores(self, scores: Tensor, labels: Tensor) -> float | None:
        """Return the same figure of predictions in the unit of :meth:`scores`, ``(n,)``.

        ``None``: it is measured of outputs only, so that no other model can be compared by it.
        """
        return self.measure(scores[:, None], labels) if link_of(self) == "identity" else None

    def weighs_classes(self, classes: int, *, outputs: int, device: torch.device) -> bool:
        """Return whether it weighs records by their class, by numbers of its own or by how many a batch has of each.

        At outputs of 0 no class is likelier, so that gradients of all records have one length unless classes have
        weights.

        Args:
            classes: Number of classes.
            outputs: Width of the top model's output.
            device: Where it computes.

        >>> Logistic().weighs_classes(2, outputs=1, device=torch.device("cpu"))
        False
        """
        labels = torch.tensor([0, *range(classes)], device=device)  # one class is commoner
        with torch.enable_grad():
            zero = torch.zeros(len(labels), outputs, device=device, requires_grad=True)
            (rows,) = torch.autograd.grad(self(zero, labels.float() if outputs == 1 else labels), zero)
        lengths = torch.linalg.vector_norm(rows.double(), dim=1)
        return not bool(torch.isclose(lengths, lengths[0], rtol=1e-4, atol=0.0).all())


def link_of(loss: Loss) -> Link | None:
    """Return what a loss's scores make of outputs; ``None`` where that is not known, or none of these."""
    for cls in type(loss).__mro__:
        if "link" in vars(cls):
            return loss.link
        if "scores" in vars(cls):
            return None
    return None


def loss_name(loss: Loss) -> str:
    """Return what a loss is called in messages: its name in experiments, or else that of its class."""
    return str(getattr(loss, "name", type(loss).__name__))


class Logistic(Loss):
    """Binary cross-entropy of one logit."""

    name = "logistic"
    labels = "binary"
    link = "sigmoid"
    is_logistic = True
    approximation = "exact"

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss."""
        return functional.binary_cross_entropy_with_logits(outputs.squeeze(1), targets.to(outputs.dtype))

    def scores(self, outputs: Tensor) -> Tensor:
        """Return sigmoid probabilities, ``(n,)``."""
        return torch.sigmoid(outputs.squeeze(1))


class ApproximateLogistic(Logistic):
    """The logistic loss as a computation under encryption can afford it, say.

    Args:
        record_loss: Returns each record's loss, ``(n,)``, of logits ``(n,)`` and labels −1 and +1, ``(n,)``.
        approximation: Name of the sigmoid's approximation in its gradient.
    """

    is_logistic = True

    @property
    def shifts_scores(self) -> str:  # type: ignore[override]  # the others' is one for all
        """Why scores are no probabilities with it."""
        return f"outputs are trained for the {self.approximation} sigmoid, and scores are the exact one of them"

    def __init__(self, record_loss: Callable[[Tensor, Tensor], Tensor], approximation: str = "custom") -> None:
        self._record_loss, self.approximation = record_loss, approximation

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss."""
        return self._record_loss(outputs.squeeze(1), 2 * targets.to(outputs.dtype) - 1).mean()


class CrossEntropy(Loss):
    """Cross-entropy of one logit for each class."""

    name = "cross-entropy"
    labels = "multiclass"
    link = "softmax"

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss."""
        return functional.cross_entropy(outputs, targets)

    def scores(self, outputs: Tensor) -> Tensor:
        """Return softmax probabilities, ``(n, k)``."""
        return torch.softmax(outputs, dim=1)


class SquaredError(Loss):
    """Squared difference of one output and the label."""

    name = "squared-error"
    labels = "regression"
    link = "identity"

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss."""
        return functional.mse_loss(outputs.squeeze(1), targets.to(outputs.dtype))

    def scores(self, outputs: Tensor) -> Tensor:
        """Return the predictions, ``(n,)``."""
        return outputs.squeeze(1)
