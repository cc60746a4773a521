"""What is written down of a run's steps: their log, means over the run, and the time that they took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from splitvfl.leakage.monitor import Monitor
from splitvfl.party.party import Party


class StepLog:
    """The log of a run, and what is added up beside it.

    Attributes:
        monitor: Writes the log; into no file before :meth:`begin_in`.
    """

    def __init__(self) -> None:
        self.monitor = Monitor(None)
        self._offset, self._seconds = 0, 0.0
        self._sums: dict[str, tuple[float, int]] = {}

    def begin_in(self, folder: Path | None, *, going_on_from: int | None) -> None:
        """Log into a folder from now on.

        Args:
            folder: The run's; ``None``: nothing is kept.
            going_on_from: The step from which the run goes on with the log that lies there; ``None``: it begins anew.
        """
        self.monitor = Monitor(folder, resume_at=None if going_on_from is None else (self._offset, going_on_from))

    def add(self, parties: Sequence[Party], seconds: float) -> dict[str, float]:
        """Count a step that was just done, and return what the defenses of these parties logged of it.

        Args:
            parties: Those that are trained here.
            seconds: That they took for it.
        """
        self._seconds += seconds
        measured = {tag: value for party in parties for tag, value in party.measurements.items()}
        totals = frozenset().union(*(party.running_totals for party in parties))
        for tag, value in measured.items():
            total, count = (0.0, 0) if tag.rpartition("/")[2] in totals else self._sums.get(tag, (0.0, 0))
            if math.isfinite(value):
                self._sums[tag] = (total + value, count + 1)
        return measured

    def flush(self) -> None:
        """Bring the log to disk, and note how long it is."""
        if self.monitor.is_open:
            self._offset = self.monitor.flush()

    def step_ms(self, steps: int) -> float:
        """Return the mean time of so many steps in milliseconds; NaN without one."""
        return 1000.0 * self._seconds / steps if steps else math.nan

    @property
    def means(self) -> dict[str, float]:
        """Means over the run of what defenses logged, of totals the last."""
        return {tag: total / count for tag, (total, count) in self._sums.items() if count}

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on needs."""
        return {"offset": self._offset, "seconds": self._seconds, "sums": dict(self._sums)}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._offset, self._seconds, self._sums = state["offset"], state["seconds"], dict(state["sums"])
