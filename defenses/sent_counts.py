"""Counts of how often each record was sent, where a promise is for so many times."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from splitvfl.errors import PrivacyError
from splitvfl.learning.records import RecordTable


class SentCounts:
    """Counts a record's messages, and refuses the one that was not promised for.

    Memory grows with the number of records, by four bytes for each (more for ids that are no small numbers), and never
    with time.
    """

    def __init__(self) -> None:
        self._table = RecordTable(sent=np.int32)

    def spend(self, ids: Tensor, most: int, *, who: str) -> None:
        """Count one message for every record of a batch, however often the batch holds it.

        Args:
            ids: Record ids, ``(n,)``, int64.
            most: How many messages of a record were promised for.
            who: The defense.

        Raises:
            PrivacyError: If a record has had as many; nothing is counted then.
        """
        slots = np.unique(self._table.slots(ids.detach().cpu().numpy()))
        sent = self._table["sent"]
        if slots.size and int(sent[slots].max()) >= most:
            raise PrivacyError(
                f"{who}: what was promised is for {most} messages of a record, one in each epoch, and a record of this "
                "batch has had them, so nothing was sent; say the number of epochs that the loop has"
            )
        sent[slots] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return self._table.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._table.load_state_dict(state)
