"""What attacks on scores of a known model have in common: outputs read off scores, and known records among them."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.hooks import View

# Where no score is strictly between 0 and 1 nobody knows how fine scores are.
_COARSEST: Final = 1e-3


def outputs_of_scores(scores: Tensor, classes: int | None) -> Tensor:
    """Return the outputs that scores are made of: log odds, or of k classes logarithms less their mean.

    A score of 0 or 1, which has no logarithm, is taken for half of the least distance from 0 and 1 that another has.

    Args:
        scores: ``(n,)`` in [0, 1] or ``(n, k)``; of a regression ``(n,)``, which are the outputs.
        classes: Number of classes; ``None`` of a regression.

    Returns:
        ``(n, k)``, float64; k = 1 of two classes and of a regression.

    Raises:
        ArgumentError: If a score is not finite, or no probability where it should be one.

    >>> outputs_of_scores(torch.tensor([0.5, 0.0, 0.9]), 2).squeeze(1).round(decimals=2).tolist()
    [0.0, -2.94, 2.2]
    """
    seen = scores.double().reshape(len(scores), -1)
    if not bool(torch.isfinite(seen).all()):
        raise ArgumentError("scores hold NaN or infinite values")
    if classes is None:
        return seen
    if bool((seen < 0).any() or (seen > 1).any()):
        raise ArgumentError("expected scores in [0, 1]")
    if seen.shape[1] == 1:
        least = _least(torch.cat([seen, 1.0 - seen]))
        seen = seen.clamp(least, 1.0 - least)
        return seen.log() - (1.0 - seen).log()
    return told_apart(seen.clamp_min(_least(seen)).log(), classes)


def told_apart(outputs: Tensor, classes: int | None) -> Tensor:
    """Return outputs ``(n, k)`` less what scores do not tell of them: of more than two classes their mean."""
    return outputs if outputs.shape[1] == 1 or classes is None else outputs - outputs.mean(dim=1, keepdim=True)


def known_places(view: View) -> tuple[Tensor, Tensor]:
    """Return the columns that are known, ``(m, d)``, and the places of their records in a view, ``(m,)``.

    Raises:
        ArgumentError: If there are fewer than two, or a record that is not in the view.
    """
    known = view.known_columns
    if len(known.ids) < 2:
        raise ArgumentError(f"expected at least 2 known records, got {len(known.ids)}")
    same = view.ids[:, None] == known.ids
    if not bool(same.any(dim=0).all()):
        raise ArgumentError("a known record is not among those that were scored")
    return known.columns, same.int().argmax(dim=0)


def _least(shares: Tensor) -> float:
    positive = shares[shares > 0]
    return 0.5 * float(positive.min()) if len(positive) and positive.min() < 0.5 else _COARSEST
