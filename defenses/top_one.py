"""Published scores of which only the largest is told."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.claims import NoPromise
from splitvfl.defenses.score_noise import as_classes, largest, like_scores
from splitvfl.hooks import Crossing, Scope, Secrets


class TopOne:
    """Publish the largest score of every record as it is, and divide the rest evenly among the other classes.

    Of a sigmoid, and of two classes, nothing is hidden: the second score is one minus the first.

    Cost: what the other classes score is lost, and with it every cost or ranking beyond the first.

    In a file: ``defenses: [top-one]``

    Source: the usual restriction of answers to the first class: Shokri et al., IEEE S&P 2017, arXiv:1610.05820, section
    IX.
    """

    name: ClassVar[str] = "top-one"
    shifts_scores: ClassVar[str] = (
        "of three classes or more only the largest score is a probability; the others share the rest evenly"
    )
    crossing: ClassVar[Crossing] = "scores"
    scope: ClassVar[Scope] = "row"
    needs_probabilities: ClassVar[bool] = True

    def claims(self) -> tuple[NoPromise]:
        """Return that nothing is promised, and why."""
        return (
            NoPromise(
                "Of k − 1 equations in the columns of a partner one is left, that of the largest score, and an "
                "attacker who guesses how the others share the rest has all of them back."
            ),
        )

    def __call__(self, scores: Tensor, _: Secrets, /) -> Tensor:
        """Return scores of which the largest alone are told.

        Args:
            scores: ``(n,)`` sigmoid or ``(n, k)`` softmax, in [0, 1].

        Returns:
            A new tensor like ``scores``.
        """
        shares = as_classes(scores)
        top = largest(shares)
        others = (~top).sum(dim=1, keepdim=True).clamp(min=1)
        rest = shares.masked_fill(top, 0.0).sum(dim=1, keepdim=True)
        return like_scores(torch.where(top, shares, rest / others), scores, top=top)
