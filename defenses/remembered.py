"""One answer per record, drawn when the record is first met and given again from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from splitvfl.learning.records import RecordTable

Answers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]


class RememberedAnswers:
    """The memory of a label defense that must not answer twice for one record.

    An answer that were drawn anew in every epoch would average out to the truth. Memory grows with the number of
    records, by the fewest bytes that hold an answer, and never with time.

    Args:
        most: The largest answer, at least 0.
    """

    def __init__(self, *, most: int) -> None:
        # Kept as 1 + answer: new records start at 0, which says that there is none yet.
        kinds = (np.int8, np.int16, np.int32, np.int64)
        self._table = RecordTable(answer=next(kind for kind in kinds if most < np.iinfo(kind).max))

    def of(self, ids: Tensor, draw: Callable[[Positions], Answers]) -> Answers:
        """Return the answers of these records.

        Args:
            ids: Record ids, ``(n,)``, int64; a record may occur more than once.
            draw: Draws the answers of records that were never met. It gets the position of the first row of each in
                the batch, in an order that the ids alone decide, and is not called where all are known.

        Returns:
            ``(n,)`` answers, whole numbers of at least 0.
        """
        slots = self._table.slots(ids.detach().cpu().numpy())
        answers = self._table["answer"]
        new = np.flatnonzero(answers[slots] == 0)
        if new.size:
            unasked, first = np.unique(slots[new], return_index=True)
            answers[unasked] = 1 + draw(new[first])
        found: Answers = answers[slots].astype(np.int64) - 1
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the answers. They are as secret as the labels that they stand for."""
        return self._table.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._table.load_state_dict(state)
