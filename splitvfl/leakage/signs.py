"""Share of right labels, for attacks whose score's sign is the label."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import torch
from torch import Tensor

from splitvfl.leakage.series import Thinned
from splitvfl.leakage.state import Stateful
from splitvfl.learning.records import RecordTable

_RECENT = 10
_MOST_RECORDS = 1 << 21


class SignKeeper(Stateful):
    """Counts right signs, step by step, and each record's votes over the run.

    A score of 0 or NaN decides nothing, and a record whose label is NaN is not judged. Votes are kept of about the
    first two million records that are met.

    Args:
        last: Whether a score is of all that came of its record so far: its last sign is then its only vote.
    """

    _kept = ("_right", "_decided", "_recent", "_course", "_votes")

    def __init__(self, *, last: bool = False) -> None:
        self.last = last
        self._right = self._decided = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT)
        # Right and decided signs up to and with each step.
        self._course = Thinned(2)
        self._votes = RecordTable(votes=np.int64, label=np.int8)

    def add(self, ids: Tensor | None, scores: Tensor, labels: Tensor, *, zeros: Tensor | None = None) -> None:
        """Judge one step.

        Args:
            ids: Record ids, ``(n,)``; ``None`` when nobody knows them, and no votes are counted.
            scores: ``(n,)``.
            labels: ``(n,)`` in {0, 1}.
            zeros: Whose residue is a zero by design, ``(n,)``, bool: their signs are counted as votes only, as who
                attacks does not know them. ``None``: nobody's is.
        """
        truth = labels.detach().cpu().double().reshape(-1)
        given = scores.detach().cpu().double().reshape(-1)
        decided = (given != 0) & ~torch.isnan(given) & ~torch.isnan(truth)
        positive, truth = given[decided] > 0, truth[decided] == 1
        told = torch.ones_like(truth) if zeros is None else ~zeros.cpu()[decided]
        right, count = int(((positive == truth) & told).sum()), int(told.sum())
        self._recent.append((right, count))
        self._right, self._decided = self._right + right, self._decided + count
        self._course.append(self._right, self._decided)
        if ids is not None:
            self._count_votes(ids.detach().cpu().reshape(-1)[decided], positive, truth)

    def _count_votes(self, ids: Tensor, positive: Tensor, truth: Tensor) -> None:
        known = len(self._votes) < _MOST_RECORDS
        slots = (self._votes.slots if known else self._votes.find)(ids.numpy().astype(np.int64))
        kept = slots >= 0
        signs = np.where(positive.numpy(), 1, -1)[kept]
        if self.last:
            self._votes["votes"][slots[kept]] = signs
        else:
            np.add.at(self._votes["votes"], slots[kept], signs)
        # Labels are kept as -1 and +1: 0 is a record that was never met.
        self._votes["label"][slots[kept]] = np.where(truth.numpy(), 1, -1)[kept]

    def share(self, steps: float = math.inf) -> float:
        """Return the share of right signs in so many first steps; NaN if nothing was decided.

        Of a run of more than 8192 steps, in up to so many: to the last one before that is kept
        (:class:`~splitvfl.leakage.series.Thinned`).
        """
        if steps >= len(self._course):
            return _share(self._right, self._decided)
        if steps < 1:
            return math.nan
        return _share(*self._course.kept[(int(steps) - 1) // self._course.stride].tolist())

    @property
    def recent_share(self) -> float:
        """The share of right signs in the last ten steps."""
        return _share(sum(right for right, _ in self._recent), sum(decided for _, decided in self._recent))

    @property
    def records(self) -> tuple[int, int]:
        """Records whose label most of their signs told, and all that any sign was seen of."""
        labels, votes = self._votes["label"], self._votes["votes"]
        return int((np.sign(votes) * labels == 1).sum()), int((labels != 0).sum())

    @property
    def commoner(self) -> float:
        """The commoner label's share of these records: what a guess gets right; NaN if there is none."""
        labels = self._votes["label"]
        seen = int((labels != 0).sum())
        return max(int((labels == sign).sum()) for sign in (-1, 1)) / seen if seen else math.nan


def _share(right: float, decided: float) -> float:
    return right / decided if decided else math.nan
