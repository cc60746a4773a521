"""Numbers of every step of a run, in memory that does not grow with the steps."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from splitvfl.leakage.state import Stateful

Floats = npt.NDArray[np.float64]

MOST_KEPT = 1 << 13
"""Rows that are kept at most: of a longer run every second, every fourth, and so on, evenly."""

_RECENT = 10


class Thinned:
    """Rows of numbers, one per step: all of them up to 8192, and then every ``stride``-th, from the first one on.

    Once there is no more room, every second row is dropped; so half of 8192 are kept at least, evenly spaced. Which
    ones depends on their number only: a run that goes on from a checkpoint keeps what an uninterrupted one keeps.

    Args:
        columns: Numbers in a row.

    Attributes:
        stride: Steps from one kept row to the next.

    >>> rows = Thinned(1)
    >>> rows.append(0.5)
    >>> len(rows), rows.kept.tolist()
    (1, [[0.5]])
    """

    def __init__(self, columns: int) -> None:
        self.stride = 1
        self._count = 0
        # Taken once, and written to, so that memory is what it will be from the beginning.
        self._rows: Floats = np.full((MOST_KEPT, columns), math.nan)

    def __len__(self) -> int:
        """Number of rows that came, kept or not."""
        return self._count

    @property
    def kept(self) -> Floats:
        """The rows that are kept, in order, ``(kept, columns)``; a view."""
        return self._rows[: -(-self._count // self.stride)]

    def append(self, *values: float) -> None:
        """Add the row of the next step."""
        place, rest = divmod(self._count, self.stride)
        if rest == 0:
            if place == MOST_KEPT:
                self._rows[: MOST_KEPT // 2] = self._rows[::2].copy()
                self.stride *= 2
                place //= 2
            self._rows[place] = values
        self._count += 1

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers, fit for a checkpoint."""
        return {"count": self._count, "stride": self.stride, "kept": torch.from_numpy(self.kept.copy())}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._count, self.stride = state["count"], state["stride"]
        self._rows[: len(state["kept"])] = state["kept"].numpy()


class StepValues(Stateful):
    """One number per step: its mean over the run and over the last ten steps, and its quantiles.

    Number and mean are of all steps. Quantiles are of those that :class:`Thinned` keeps: exact up to 8192 steps;
    beyond, of an even sample of at least 4096, so that the share of steps below a quantile is off by .0034 or so (one
    standard error, at 95 %).
    """

    _kept: ClassVar[tuple[str, ...]] = ("total", "_recent", "_thinned")

    def __init__(self) -> None:
        self.total = 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._thinned = Thinned(1)

    def __len__(self) -> int:
        """Number of steps."""
        return len(self._thinned)

    @property
    def kept(self) -> Floats:
        """The values of the steps that are kept, in order, ``(kept,)``; a view."""
        return self._thinned.kept[:, 0]

    def append(self, value: float) -> None:
        """Add the value of the next step."""
        self.total += value
        self._recent.append(value)
        self._thinned.append(value)

    @property
    def mean(self) -> float:
        """Mean over all steps; NaN before any."""
        return self.total / len(self) if len(self) else math.nan

    @property
    def recent_mean(self) -> float:
        """Mean over the last ten steps; NaN before any."""
        return sum(self._recent) / len(self._recent) if self._recent else math.nan

    def quantile(self, share: float) -> float:
        """Return a quantile, interpolated; NaN before any step."""
        return float(np.quantile(self.kept, share)) if len(self) else math.nan

    def oriented_quantile(self, share: float) -> float:
        """Return a quantile of AUCs as they are turned round where their mean is below one half; NaN before any."""
        # The upper quantile of what is turned around is the lower one of what it was.
        return 1.0 - self.quantile(1.0 - share) if self.mean < 0.5 else self.quantile(share)

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            TypeError: If it is no such state: older versions kept a tensor of all values.
        """
        if not isinstance(state, dict):
            raise TypeError(f"expected sums and kept values of a series, got {type(state).__name__}")
        super().load_state_dict(state)
