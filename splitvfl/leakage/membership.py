"""Judging attacks on membership: was a record in the training?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from splitvfl.metrics import auc_interval, leak_auc
from splitvfl.privacy.audit.bounds import share_bounds

FALSE_ALARMS: Final = 0.01
"""Share of other records that may be taken for members where hits are counted."""

_LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class MembershipLeak:
    """How well one attack tells records that a model was trained on from others, in its own orientation.

    Attributes:
        attack: Its name.
        auc: Probability that a member scores higher than another record; 0.5 is blind.
        low: Lower end of its 95 % interval, of :func:`~splitvfl.metrics.auc_interval`.
        high: Upper end.
        hits: Share of members found where at most 1 % of the others are taken for members.
        hits_low: Lower end of its 95 % interval, Clopper and Pearson's, with the threshold taken for fixed.
        hits_high: Upper end.
        members: Training records that it was judged by.
        others: Test records.
        known: Records of which it knew what they are, by which it was not judged.
        note: What it warned of.
    """

    attack: str
    auc: float
    low: float
    high: float
    hits: float
    hits_low: float
    hits_high: float
    members: int
    others: int
    known: int = 0
    note: str = ""

    @property
    def blind(self) -> bool:
        """Whether the interval of the AUC holds one half."""
        return self.low <= 0.5 <= self.high

    @classmethod
    def of(cls, attack: str, scores: Tensor, member: Tensor, *, known: int = 0, note: str = "") -> MembershipLeak:
        """Return the figures of scores ``(n,)`` of records of which some, ``(n,)`` bool, are members.

        >>> import torch
        >>> found = MembershipLeak.of("any", torch.arange(4.0), torch.tensor([False, False, True, True]))
        >>> found.auc, found.hits
        (1.0, 1.0)
        """
        low, high = auc_interval(scores, member, level=_LEVEL)
        found, of = hits_at(scores, member, FALSE_ALARMS)
        alpha = (1.0 - _LEVEL) / 2.0
        ends = share_bounds(found, of, lower_alpha=alpha, upper_alpha=alpha)
        hits_low, hits_high = (float(end) for end in ends)
        auc = leak_auc(scores, member)
        sizes = {"members": of, "others": len(scores) - of, "known": known}
        return cls(attack, auc, low, high, found / of, hits_low, hits_high, note=note, **sizes)


def hits_at(scores: Tensor, member: Tensor, false_alarms: float) -> tuple[int, int]:
    """Return how many members score above a threshold that at most this share of the others exceeds, and of how many.

    The threshold is one of the others' scores, so that equal scores are no hits.

    Args:
        scores: ``(n,)``.
        member: ``(n,)``, bool; of each kind there is one at least.
        false_alarms: In [0, 1).

    >>> import torch
    >>> hits_at(torch.tensor([0.0, 1.0, 2.0, 1.5, 3.0]), torch.tensor([False, False, False, True, True]), 0.34)
    (2, 2)
    """
    others = scores[~member].sort(descending=True).values
    threshold = others[math.floor(false_alarms * len(others))]
    return int((scores[member] > threshold).sum()), int(member.sum())
