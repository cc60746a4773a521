"""Rounding of published scores to fewer decimals."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.claims import NoPromise
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, Scope, Secrets

_FAITHFUL = 3  # decimals that leave the mean of scores within half a thousandth
_MOST_DECIMALS = 15  # more than a float64 in [0, 1] holds


class Rounding:
    """Round every published score to a number of decimals, halves to even.

    No formal guarantee: rounding bounds the digits that one score gives away, and equation solving still finds
    features to about that precision. Rounded probabilities of several classes need not sum to one.

    Cost: published scores have no more digits. Time: one rounding of each score.

    In a file: ``defenses: [{name: rounding, decimals: 3}]``

    Source: the usual baseline against equation solving; *Privacy Against Inference Attacks in Vertical Federated
    Learning*.

    Args:
        decimals: Digits kept after the point, 0 to 15.

    Raises:
        ArgumentError: If ``decimals`` is no whole number from 0 to 15.
    """

    name: ClassVar[str] = "rounding"
    crossing: ClassVar[Crossing] = "scores"
    scope: ClassVar[Scope] = "row"

    def __init__(self, *, decimals: int) -> None:
        if not isinstance(decimals, int) or isinstance(decimals, bool) or not 0 <= decimals <= _MOST_DECIMALS:
            raise ArgumentError(f"decimals must be a whole number from 0 to {_MOST_DECIMALS}, got {decimals!r}")
        self.decimals = decimals

    @property
    def resolution(self) -> float:
        """The unit in which scores are published."""
        return float(10**-self.decimals)

    def claims(self) -> tuple[NoPromise]:
        """Return that nothing is promised, and why."""
        return (NoPromise("Equations in columns are still solved, to about the precision that is left."),)

    @property
    def shifts_scores(self) -> str:
        """Why scores are no probabilities, of few decimals."""
        few = self.decimals < _FAITHFUL
        return f"scores are rounded to {self.decimals} decimals, and rare classes to 0" if few else ""

    def __call__(self, scores: Tensor, _: Secrets, /) -> Tensor:
        """Return the rounded scores.

        Args:
            scores: Any shape, floating point.

        Returns:
            A new tensor like ``scores``.
        """
        return torch.round(scores.double(), decimals=self.decimals).to(scores.dtype)
