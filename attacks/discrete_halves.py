"""Sums of two that meet a target: the search for discrete values, with each half of the columns listed once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Pairs of one prediction that are listed; who has more of them knows little, and they fill the memory.
MOST_PAIRS = 1 << 13


class Pairs(NamedTuple):
    """Which pairs of parts meet the targets best.

    Attributes:
        record: ``(s,)``, int64: of which target each is.
        first: ``(s,)``, int64: place of the first part.
        second: ``(s,)``, int64: place of the second one.
        too_many: ``(n,)``, bool: there are more than ``MOST_PAIRS``, and none of them is listed.
    """

    record: Tensor
    first: Tensor
    second: Tensor
    too_many: Tensor


def closest_pairs(first: Tensor, second: Tensor, targets: Tensor, slack: Tensor, *, tie: float) -> Pairs:
    """Return all pairs with ``|first + second − target| <= slack``, or those that miss it least where there is none.

    Of C₁ and C₂ parts it takes C₁ searches in a sorted list of C₂, and not C₁ · C₂ sums, for each target.

    Source: Horowitz and Sahni, Journal of the ACM 21 (1974), on two lists.

    Args:
        first: ``(C₁,)``, float64.
        second: ``(C₂,)``, float64.
        targets: ``(n,)``.
        slack: ``(n,)``, >= 0.
        tie: How much further than the nearest, or than the slack, counts as equal.
    """
    ordered, places = second.sort()
    wanted = targets.unsqueeze(1) - first
    at = torch.searchsorted(ordered, wanted)
    below, above = ordered[(at - 1).clamp(min=0)], ordered[at.clamp(max=len(ordered) - 1)]
    nearest = torch.minimum((wanted - below).abs(), (wanted - above).abs()).amin(dim=1)
    reach = (torch.maximum(nearest, slack) + tie).unsqueeze(1)
    start = torch.searchsorted(ordered, wanted - reach)
    counts = torch.searchsorted(ordered, wanted + reach, right=True) - start
    too_many = counts.sum(dim=1) > MOST_PAIRS
    counts[too_many] = 0
    which = torch.repeat_interleave(counts.flatten())
    # Number of each pair among those of its target and first part.
    firsts = counts.flatten().cumsum(0) - counts.flatten()
    number = torch.arange(len(which), device=which.device) - firsts[which]
    return Pairs(which // len(first), which % len(first), places[start.flatten()[which] + number], too_many)
