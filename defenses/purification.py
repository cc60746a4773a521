"""Published scores after a map of one's own."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.claims import NoPromise
from splitvfl.defenses.score_noise import as_classes, largest, like_scores
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, Scope, Secrets

# What the scores of a record may sum to, beside 1: sums of float32 numbers.
_SUM_WITHIN = 1e-4


class Purification:
    """Publish a map of the scores, which keeps the predicted class: a temperature, or a map of one's own.

    A map of one's own is a subclass with a method :meth:`purified`, which a file names as ``my_maps:Sharpened``. It
    sees one batch of scores of k classes; a sigmoid is two, ``(1 − c, c)``. What it returns is checked: numbers in
    [0, 1] that sum to one, and the same class, or classes, in front.

    Cost: what the map makes of the scores; a temperature changes calibration only. AUC is not measured here.

    In a file: ``defenses: [{name: purification, temperature: 4.0}]``

    Source: after Yang et al., *Defending Model Inversion and Membership Inference Attacks via Prediction Purification*,
    arXiv:2005.03915, where the map is a trained network.

    Args:
        temperature: T above 0: scores become ``∝ c^(1/T)``. Large ones come near to equal scores.

    Raises:
        ArgumentError: If the temperature is not positive and finite.
    """

    name: ClassVar[str] = "purification"
    crossing: ClassVar[Crossing] = "scores"
    needs_probabilities: ClassVar[bool] = True

    def __init__(self, *, temperature: float) -> None:
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ArgumentError(f"temperature must be positive and finite, got {temperature}")
        self.temperature = float(temperature)

    @property
    def scope(self) -> Scope:
        """Rows, but for a map of one's own, which sees a batch."""
        return "row" if type(self).purified is Purification.purified else "batch"

    def purified(self, shares: Tensor) -> Tensor:
        """Return the map of scores of k classes.

        Args:
            shares: ``(n, k)``, float64, its own copy.

        Returns:
            ``(n, k)``, in [0, 1], rows that sum to one, with the same classes in front.
        """
        return torch.softmax(shares.log() / self.temperature, dim=1)

    def claims(self) -> tuple[NoPromise]:
        """Return that nothing is promised, and why."""
        return (
            NoPromise(
                "The predicted class stays; a map that can be inverted, as a temperature can, hides nothing from who "
                "knows it."
            ),
        )

    @property
    def shifts_scores(self) -> str:
        """Why scores are no probabilities."""
        if type(self).purified is Purification.purified and self.temperature == 1:
            return ""
        return "scores are mapped to others of the same class, which are no probabilities"

    def __call__(self, scores: Tensor, _: Secrets, /) -> Tensor:
        """Return the mapped scores.

        Args:
            scores: ``(n,)`` sigmoid or ``(n, k)`` softmax, in [0, 1].

        Returns:
            A new tensor like ``scores``.

        Raises:
            ArgumentError: If the map returns no scores, or another class in front.
        """
        shares = as_classes(scores)
        top = largest(shares)
        mapped = self.purified(shares.clone())
        _check(mapped, shares, top)
        return like_scores(mapped.double(), scores, top=top)


def _check(mapped: Tensor, shares: Tensor, top: Tensor) -> None:
    if mapped.shape != shares.shape or not mapped.is_floating_point():
        raise ArgumentError(f"the map must return scores {tuple(shares.shape)}, got {tuple(mapped.shape)}")
    within = ((mapped >= 0) & (mapped <= 1)).all(dim=1) & ((mapped.sum(dim=1) - 1.0).abs() <= _SUM_WITHIN)
    if not within.all():  # NaN is not
        raise ArgumentError(
            f"the map must return scores in [0, 1] that sum to one, and {int((~within).sum())} of {len(mapped)} do not"
        )
    # Classes that rounding let come level with the largest are put behind it later; one that overtakes it is not.
    moved = (top & ~largest(mapped)).any(dim=1)
    if moved.any():
        raise ArgumentError(
            f"the map must keep the predicted class, and it changes {int(moved.sum())} of {len(mapped)}"
        )
