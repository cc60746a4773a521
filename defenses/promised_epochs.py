"""Epochs that a promise is made for, and how often each record was sent in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from splitvfl.errors import ArgumentError, ConfigError, PrivacyError
from splitvfl.learning.records import RecordTable


class PromisedEpochs:
    """The number of epochs that a promise is for; a message of a record beyond them is refused.

    Memory grows with the number of records, by four bytes for each (more for ids that are no small numbers), and never
    with time.

    Args:
        who: The defense.
        number: How many; ``None`` where the trainer says it.
    """

    def __init__(self, who: str, number: int | None) -> None:
        self.number = number
        self._who = who
        self._table = RecordTable(sent=np.int32)

    def known(self, what: str) -> int:
        """Return the number; raise :class:`PrivacyError` where it is not known and ``what`` divides μ by it."""
        if self.number is None:
            raise PrivacyError(
                f"{self._who}: {what} divides μ among the epochs, and their number is not known, so nothing was "
                "sent; in a loop of your own say epochs=..."
            )
        return self.number

    def plan(self, number: int, *, instead: str = "") -> None:
        """Take the number from a run, or raise :class:`ConfigError` if another one was promised for."""
        if self.number is not None and self.number != number:
            raise ConfigError(
                f"{self._who}: μ was promised over {self.number} epochs, and the run has {number}; "
                f"a run that goes on for longer promises less{instead}"
            )
        self.number = number

    def spend(self, ids: Tensor) -> None:
        """Count one message for every record of a batch, however often the batch holds it.

        Args:
            ids: Record ids, ``(n,)``, int64.

        Raises:
            PrivacyError: If a record was sent in as many epochs as are promised for; nothing is counted then.
        """
        assert self.number is not None
        slots = np.unique(self._table.slots(ids.detach().cpu().numpy()))
        sent = self._table["sent"]
        if slots.size and int(sent[slots].max()) >= self.number:
            raise PrivacyError(
                f"{self._who}: what was promised is for {self.number} messages of a record, one in each epoch, and a "
                "record of this batch has had them, so nothing was sent; say the number of epochs that the loop has"
            )
        sent[slots] += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the number and the counts."""
        return {"epochs": self.number, "sent": self._table.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ArgumentError: If it was for another number of epochs.
        """
        if None not in (state["epochs"], self.number) and state["epochs"] != self.number:
            raise ArgumentError(
                f"{self._who}: μ was promised over {state['epochs']} epochs, and now the run has {self.number}; "
                "a run that goes on for longer promises less"
            )
        self.number = state["epochs"] if self.number is None else self.number
        self._table.load_state_dict(state["sent"])
