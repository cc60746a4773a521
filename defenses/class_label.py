"""Published scores that tell the predicted class, and nothing else."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.claims import NoPromise
from splitvfl.defenses.score_noise import as_classes, largest, like_scores
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, Scope, Secrets


class ClassLabel:
    """Publish ``1 − (k − 1) ε`` for the class with the largest score, and ε for all others.

    Of several largest, each gets an equal share of what the others leave. A sigmoid is two classes: ε or 1 − ε.

    Cost: scores are no probabilities any more: nothing but the class is left for a threshold, a ranking or a cost.
    Accuracy stays. AUC becomes that of the decision.

    In a file: ``defenses: [{name: class-label, epsilon: 0.01}]``

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, section VII, the class label.

    Args:
        epsilon: ε, what the other classes get, at least 0 and below 1 / k. Attacks that take logarithms of scores have
            the more to do the smaller it is: with 0 there are none.

    Raises:
        ArgumentError: If ``epsilon`` is not in [0, ½).
    """

    name: ClassVar[str] = "class-label"
    shifts_scores: ClassVar[str] = "scores say which class is largest, and not how likely it is"
    crossing: ClassVar[Crossing] = "scores"
    scope: ClassVar[Scope] = "row"
    needs_probabilities: ClassVar[bool] = True

    def __init__(self, *, epsilon: float) -> None:
        if not 0.0 <= epsilon < 0.5:
            raise ArgumentError(f"epsilon must lie in [0, 0.5), got {epsilon}")
        self.epsilon = float(epsilon)

    def claims(self) -> tuple[NoPromise]:
        """Return that nothing is promised, and why."""
        return (
            NoPromise(
                "One record's scores tell which of k classes is predicted, so on which side of the decision it lies; "
                "an attacker who asks for records of their choice learns the boundary."
            ),
        )

    def __call__(self, scores: Tensor, _: Secrets, /) -> Tensor:
        """Return what tells the class.

        Args:
            scores: ``(n,)`` sigmoid or ``(n, k)`` softmax, in [0, 1].

        Returns:
            A new tensor like ``scores``.

        Raises:
            ArgumentError: If ``epsilon`` is 1 / k or more: another class would have the larger score.
        """
        shares = as_classes(scores)
        top, k = largest(shares), shares.shape[1]
        if self.epsilon * k >= 1.0:
            raise ArgumentError(f"epsilon must be below 1 / {k}, one over the number of classes, got {self.epsilon}")
        count = top.sum(dim=1, keepdim=True)
        told = torch.where(top, (1.0 - (k - count) * self.epsilon) / count, self.epsilon)
        return like_scores(told, scores, top=top)
