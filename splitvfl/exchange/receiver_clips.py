"""Bounds that a receiver puts on what it receives, before use: what a sender promised is not relied on."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from splitvfl.learning.settings import Settings

Bound = Annotated[float, Field(gt=0)]


class ReceiverClips(Settings):
    """What receivers clip before use, whatever the sender has done to it: noise makes rows longer, and so may malice.

    What a party promises of its own records rests on how far its weights can move in a step, and so on how large what
    it *uses* can be. A row that is too long is scaled down to the bound, and so is every row after noise.

    Attributes:
        activation: Largest norm of a row of an activation that the label party uses; ``null``: any.
        coefficient: Largest norm of a record's row of a gradient that a passive party uses, times the number of records
            in the batch, which makes it the loss's derivative at the record; ``null``: any.
    """

    activation: Bound | None = None
    coefficient: Bound | None = None

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party, by the names under which it is compared."""
        return {
            "receivers clip activations to": self.activation,
            "receivers clip coefficients to": self.coefficient,
        }

    def used_activation(self, received: Tensor) -> Tensor:
        """Return what the label party uses of an activation ``(n, width)``."""
        return received if self.activation is None else bounded_rows(received, self.activation)

    def used_gradient(self, received: Tensor) -> Tensor:
        """Return what a passive party, or a label party that learns from what it sent, uses of a gradient."""
        if self.coefficient is None or not len(received):
            return received
        return bounded_rows(received, self.coefficient / len(received))


NO_CLIPS = ReceiverClips()


def bounded_rows(rows: Tensor, bound: float) -> Tensor:
    """Return the rows ``(n, width)``, the longer ones scaled down to a norm, which none exceeds once it is rounded."""
    if rows.shape[1] == 1:
        limit = _largest_below(bound, rows.dtype)
        return rows.clamp(-limit, limit)
    # Squares of float32 numbers overflow in float32.
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    # Rounding to the nearest makes an entry longer by half of eps: 1 in 512 of bfloat16.
    shortened = bound * (1.0 - 4.0 * torch.finfo(rows.dtype).eps)
    bounded: Tensor = (rows * torch.where(norms > bound, shortened / norms, 1.0)).to(rows.dtype)
    return bounded


@lru_cache(maxsize=64)
def _largest_below(bound: float, dtype: torch.dtype) -> float:
    """Return the largest number of a type that is not above a bound, to which the type may round it up."""
    nearest = torch.tensor(bound, dtype=torch.float64).to(dtype)
    if nearest.double().item() > bound:
        nearest = torch.nextafter(nearest, torch.zeros_like(nearest))
    return nearest.item()
