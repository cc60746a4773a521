"""Ridge regression whose estimates stay within what is known of each column."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks import RidgeAttack
from splitvfl.hooks import View


class BoundedRidge(RidgeAttack):
    """The attack ``ridge``; an estimate beyond all known values of its column becomes the nearest of them.

    Of an activation far from all known ones a line goes anywhere, and a few such records can hide in a mean squared
    error what all others tell. Where the columns are linear in the activation, it loses what the outermost records say.

    Args:
        known_share: As of ``ridge``.
    """

    name: ClassVar[str] = "bounded-ridge"

    def __init__(self, *, known_share: float) -> None:
        super().__init__(known_share=known_share)
        self._low: Tensor | None = None
        self._high: Tensor | None = None

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate, as ``ridge`` does."""
        estimate = super().__call__(view)
        for known in (view.auxiliary.columns, view.earlier_auxiliary.columns):
            self._widen(known.to(estimate))
        return estimate.clamp(self._low, self._high)

    def _widen(self, known: Tensor) -> None:
        """Take known values of the columns into account."""
        if not len(known):
            return
        low, high = known.aminmax(dim=0)
        self._low = low if self._low is None else torch.minimum(self._low, low)
        self._high = high if self._high is None else torch.maximum(self._high, high)
