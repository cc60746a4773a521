"""Figures of attacks where a step uses only some of the records that it sends: of those used, and of the zeros."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from splitvfl.leakage.state import Stateful
from splitvfl.learning.records import Ids, RecordTable

_RECENT: Final = 10
_MOST_RECORDS: Final = 1 << 21
# Below this share of a step's largest score one is as good as zero.
_NOTHING: Final = 1e-4

Floats = npt.NDArray[np.float64]


class MemberKeeper(Stateful):
    """Judges an attack whose score's sign is the label, where some residues of a step are zeros by design.

    A record whose residue is a zero by design has no label in that step's message. It counts in :attr:`zeros_found`
    alone. Of the others, the step's *members*, an undecided sign counts one half, and the share of right ones is that
    of both classes alike (balanced): where one class has 93 % of the records, calling everybody by it gets one half.

    A score of 0 decides nothing. A zero by design is found where a score's size is at most 10⁻⁴ of the step's largest:
    solvers and float32 are as coarse. Where all scores of a step are 0 none is found: nobody was told apart.

    Args:
        last: Whether a score is of all that came of its record so far: its last sign is then its only vote, and a score
            of 0 no claim about this step.
    """

    _kept = ("_credit", "_members", "_found", "_zeros", "_recent", "_records")

    def __init__(self, *, last: bool = False) -> None:
        self.last = last
        # Of negative and of positive members: right signs, halves of undecided ones included, and all.
        self._credit, self._members = np.zeros(2), np.zeros(2)
        self._found = self._zeros = 0
        self._recent: deque[tuple[float, ...]] = deque(maxlen=_RECENT)
        self._records = RecordTable(votes=np.int64, label=np.int8, member=np.bool_)

    def add(self, ids: Tensor | None, scores: Tensor, labels: Tensor, zeros: Tensor) -> None:
        """Judge one step.

        Args:
            ids: Record ids, ``(n,)``; ``None`` when nobody knows them, and nothing is added up.
            scores: ``(n,)``; NaN is a score of 0.
            labels: ``(n,)`` in {0, 1}; NaN marks records that are not judged.
            zeros: Whose residue is a zero by design, ``(n,)``, bool.
        """
        truth = labels.detach().cpu().double().reshape(-1).numpy()
        given = np.nan_to_num(scores.detach().cpu().double().reshape(-1).numpy(), nan=0.0)
        largest = np.abs(given).max(initial=0.0)
        nothing = (np.abs(given) <= _NOTHING * largest) & (largest > 0.0)
        signs = np.sign(given).astype(np.int64)
        zero, judged = zeros.cpu().numpy(), ~np.isnan(truth)
        credit, members = np.zeros(2), np.zeros(2)
        for label in (0, 1):
            own = signs[judged & ~zero & (truth == label)] * (2 * label - 1)
            credit[label], members[label] = (1 + own).sum() / 2, own.size
        found, there = int(nothing[zero].sum()), int(zero.sum())
        self._credit, self._members = self._credit + credit, self._members + members
        self._found, self._zeros = self._found + found, self._zeros + there
        self._recent.append((*credit.tolist(), *members.tolist(), found, there))
        if ids is not None:
            self._count_votes(ids.detach().cpu().numpy()[judged], signs[judged], truth[judged] == 1, ~zero[judged])

    def _count_votes(
        self, ids: Ids, signs: Ids, positive: npt.NDArray[np.bool_], member: npt.NDArray[np.bool_]
    ) -> None:
        known = len(self._records) < _MOST_RECORDS
        slots = (self._records.slots if known else self._records.find)(ids)
        kept = slots >= 0
        slots, signs = slots[kept], signs[kept]
        if self.last:
            self._records["votes"][slots] = signs
        else:
            np.add.at(self._records["votes"], slots, signs)
        # Labels are kept as -1 and +1: 0 is a record that was never met.
        self._records["label"][slots] = np.where(positive, 1, -1)[kept]
        self._records["member"][slots] |= member[kept]

    @property
    def has_met(self) -> bool:
        """Whether there was any step with zeros by design, or with members."""
        return bool(self._zeros or self._members.any())

    @property
    def balanced(self) -> float:
        """Balanced accuracy on the members of all steps, an undecided sign counting one half; NaN without both classes.

        Every member counts once for each step that used it.
        """
        return _balanced(self._credit, self._members)

    @property
    def recent_balanced(self) -> float:
        """The same of the last ten steps."""
        return _balanced(*self._of_recent()[:2])

    @property
    def accumulated_balanced(self) -> float:
        """Balanced accuracy on the records that any step used, by most of their signs, or the last one; NaN likewise.

        All signs of a record vote, those of steps that did not use it too: who attacks does not know which did.
        """
        labels, votes = self._records["label"], np.sign(self._records["votes"])
        used = self._records["member"] & (labels != 0)
        credit, members = np.zeros(2), np.zeros(2)
        for place, label in enumerate((-1, 1)):
            own = votes[used & (labels == label)] * label
            credit[place], members[place] = (1 + own).sum() / 2, own.size
        return _balanced(credit, members)

    @property
    def base_rate(self) -> float:
        """The commoner label's share of the members of all steps; NaN if there were none."""
        return float(self._members.max() / self._members.sum()) if self._members.any() else math.nan

    @property
    def zeros_found(self) -> float:
        """The share of zeros by design that scored nothing; NaN without any, and where scores are of a whole run."""
        return _share(self._found, self._zeros) if not self.last else math.nan

    @property
    def recent_zeros_found(self) -> float:
        """The same of the last ten steps."""
        found, there = self._of_recent()[2]
        return _share(found, there) if not self.last else math.nan

    def _of_recent(self) -> Floats:
        """Return sums of the last steps: credit and members by class, zeros found and zeros; ``(3, 2)``."""
        return np.asarray(np.array(list(self._recent) or [(0.0,) * 6]).sum(axis=0).reshape(3, 2))


def _balanced(credit: Floats, members: Floats) -> float:
    return float((credit / members).mean()) if members.all() else math.nan


def _share(found: float, there: float) -> float:
    return found / there if there else math.nan
