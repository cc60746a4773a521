"""Judging attacks on membership: was a record in the training?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import scipy
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.learning.odds import share_bounds
from splitvfl.metrics import auc_interval, leak_auc

FALSE_ALARMS: Final = 0.01
"""Share of other records that may be taken for members where hits are counted."""

_LEVEL: Final = 0.95
# What the interval of the hits may miss is shared by four bounds: of the threshold and of the members above it, on
# either side.
_EACH: Final = (1.0 - _LEVEL) / 4.0

FEWEST_OTHERS: Final = math.ceil(math.log(_EACH) / math.log1p(-FALSE_ALARMS))
"""With fewer others, 437, no hits are counted: in one draw of eighty or more not one of them would score among the
highest 1 % of all others, so that none of their scores is a threshold that surely gives so few false alarms."""


@dataclass(frozen=True, slots=True)
class MembershipLeak:
    """How well one attack tells records that a model was trained on from others, in its own orientation.

    Attributes:
        attack: Its name.
        auc: Probability that a member scores higher than another record; 0.5 is blind.
        low: Lower end of its 95 % interval, of :func:`~splitvfl.metrics.auc_interval`.
        high: Upper end.
        hits: Share of members found where 1 % of the others are expected to be taken for members, of :func:`hits_at`;
            ``None``: there are fewer than :data:`FEWEST_OTHERS` others.
        hits_low: Lower end of its 95 % interval, of :func:`hits_interval`; ``None`` likewise.
        hits_high: Upper end; ``None`` likewise.
        members: Training records that it was judged by.
        others: Test records.
        known: Records of which it knew what they are, by which it was not judged.
        note: What it warned of.
    """

    attack: str
    auc: float
    low: float
    high: float
    hits: float | None
    hits_low: float | None
    hits_high: float | None
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
        >>> found.auc, found.hits is None
        (1.0, True)
        """
        low, high = auc_interval(scores, member, level=_LEVEL)
        auc, members = leak_auc(scores, member), int(member.sum())
        others = len(scores) - members
        hits = Hits(None, None, None) if others < FEWEST_OTHERS else Hits.of(scores, member)
        return cls(attack, auc, low, high, *hits, members=members, others=others, known=known, note=note)


class Hits(NamedTuple):
    """Share of members found at 1 % false alarms, and its 95 % interval."""

    share: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, scores: Tensor, member: Tensor) -> Hits:
        """Return them of scores ``(n,)`` of records of which some, ``(n,)`` bool, are members."""
        return cls(hits_at(scores, member, FALSE_ALARMS), *hits_interval(scores, member, FALSE_ALARMS))


def hits_at(scores: Tensor, member: Tensor, false_alarms: float) -> float:
    """Return the share of members that score above a threshold which this share of the others is expected to exceed.

    Of n others the j-th largest is exceeded by ``j / (n + 1)`` of all others, on average over draws of the n, if no two
    scores are equal. Hits are interpolated between the two j around ``false_alarms · (n + 1)``, so that who scores
    blindly is expected to find just that share. Who scores better is expected to find a little less than at a threshold
    that has exactly this share, as the curve of hits over false alarms is bent: .362 in place of .372 with 500 others
    and normal scores that are two standard deviations apart. Who scores equal of all finds nobody.

    Args:
        scores: ``(n,)``.
        member: ``(n,)``, bool; there is one at least.
        false_alarms: In (0, 1), at least ``1 / (n + 1)``.

    Raises:
        ArgumentError: If there are fewer others than that takes.

    >>> import torch
    >>> hits_at(torch.tensor([0.0, 1.0, 2.0, 1.5, 3.0]), torch.tensor([False, False, False, True, True]), 0.375)
    0.75
    """
    others, members = scores[~member].sort(descending=True).values, scores[member]
    place = false_alarms * (len(others) + 1)
    first = math.floor(place)
    if not 1 <= first < len(others):
        raise ArgumentError(f"hits at {false_alarms:g} false alarms need {math.ceil(1 / false_alarms)} others or more")
    strict, loose = (float((members > others[rank - 1]).double().mean()) for rank in (first, first + 1))
    return strict + (place - first) * (loose - strict)


def hits_interval(scores: Tensor, member: Tensor, false_alarms: float) -> tuple[float, float]:
    """Return a 95 % interval of the share of members above the threshold that this share of all others exceeds.

    Both are drawn, members and others, and the threshold is known by the others alone. It lies between two of their
    scores: how many of n draws exceed what a share exceeds is binomial. Above either of the two, hits are binomial
    again, with Clopper and Pearson's bound. Each of the four may be wrong in 1.25 % of all draws, so that the interval
    holds in 95 % at least, whatever the distributions, for records that are drawn independently; equal scores do no
    harm. It is wider than it need be: of normal scores it held in 99 % or more, 100 to 2 000 members and 437 to 2 000
    others. It says what other records of the same run would have given, and nothing of another run.

    Args:
        scores: ``(n,)``.
        member: ``(n,)``, bool; there is one at least.
        false_alarms: In (0, 1).

    Returns:
        Two floats in [0, 1]; the lower one is 0 with so few others that their largest score may well be below the
        threshold.

    >>> import torch
    >>> member = torch.arange(2_000) < 1_000
    >>> [round(end, 3) for end in hits_interval(torch.arange(2_000.0) * member, member, 0.01)]
    [0.994, 1.0]
    """
    others, members = scores[~member].sort(descending=True).values, scores[member]
    strict, loose = _ranks(len(others), false_alarms)
    low = _found(members, others[strict - 1])[0] if strict else 0.0
    high = _found(members, others[loose - 1])[1] if loose <= len(others) else 1.0
    return low, high


def _ranks(count: int, share: float) -> tuple[int, int]:
    """Return which largest of so many draws surely is no less, and which no more, than what this share exceeds.

    Each but for one draw in eighty. 0 and ``count + 1`` are no draw: there is none.
    """
    numbers = np.arange(count + 1)
    # The m-th largest is less where fewer than m draws exceed or reach that point, and more where m or more exceed it.
    strict = int((scipy.special.bdtr(numbers, count, share) <= _EACH).sum())
    return strict, int((scipy.special.bdtrc(numbers, count, share) > _EACH).sum()) + 1


def _found(members: Tensor, threshold: Tensor) -> tuple[float, float]:
    """Return Clopper and Pearson's bounds of the share of members above a threshold that others gave."""
    hits = int((members > threshold).sum())
    low, high = share_bounds(hits, len(members), lower_alpha=_EACH, upper_alpha=_EACH)
    return float(low), float(high)
