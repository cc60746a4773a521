"""How many labels an attack has right, for attacks whose score's sign is the label."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splitvfl.records import RecordTable

_RECENT = 10
_MOST_RECORDS = 1 << 21


class SignKeeper:
    """Counts right signs, step by step, and each record's votes over the run.

    A score of 0 or NaN decides nothing, and a record whose label is NaN is not judged. Votes are kept of about the
    first two million records that are met.
    """

    def __init__(self) -> None:
        self._right: list[int] = []
        self._decided: list[int] = []
        self._votes = RecordTable(votes=np.int64, label=np.int8)

    def add(self, ids: Tensor | None, scores: Tensor, labels: Tensor) -> None:
        """Judge one step.

        Args:
            ids: Record ids, ``(n,)``; ``None`` when nobody knows them, and no votes are counted.
            scores: ``(n,)``.
            labels: ``(n,)`` in {0, 1}.
        """
        truth = labels.detach().cpu().double().reshape(-1)
        given = scores.detach().cpu().double().reshape(-1)
        decided = (given != 0) & ~torch.isnan(given) & ~torch.isnan(truth)
        positive, truth = given[decided] > 0, truth[decided] == 1
        self._right.append(int((positive == truth).sum()))
        self._decided.append(int(decided.sum()))
        if ids is not None:
            self._count_votes(ids.detach().cpu().reshape(-1)[decided], positive, truth)

    def _count_votes(self, ids: Tensor, positive: Tensor, truth: Tensor) -> None:
        known = len(self._votes) < _MOST_RECORDS
        slots = (self._votes.slots if known else self._votes.find)(ids.numpy().astype(np.int64))
        kept = slots >= 0
        np.add.at(self._votes["votes"], slots[kept], np.where(positive.numpy(), 1, -1)[kept])
        # Labels are kept as -1 and +1: 0 is a record that was never met.
        self._votes["label"][slots[kept]] = np.where(truth.numpy(), 1, -1)[kept]

    def share(self, steps: float = math.inf) -> float:
        """Return the share of right signs in so many first steps; NaN if nothing was decided."""
        end = len(self._right) if steps >= len(self._right) else int(steps)
        decided = sum(self._decided[:end])
        return sum(self._right[:end]) / decided if decided else math.nan

    @property
    def recent_share(self) -> float:
        """The share of right signs in the last ten steps."""
        decided = sum(self._decided[-_RECENT:])
        return sum(self._right[-_RECENT:]) / decided if decided else math.nan

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

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers, fit for a checkpoint."""
        return {
            "right": torch.tensor(self._right, dtype=torch.int64),
            "decided": torch.tensor(self._decided, dtype=torch.int64),
            "votes": self._votes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._right, self._decided = state["right"].tolist(), state["decided"].tolist()
        self._votes.load_state_dict(state["votes"])
