"""State of what adds up over a run, as a checkpoint keeps it."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor


class Stateful:
    """Something whose state are some of its attributes: numbers, arrays, tensors, and what has a state of its own.

    Attributes:
        _kept: Their names; in the state they have no underscore in front.
    """

    _kept: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and numbers, fit for a checkpoint."""
        return {name.removeprefix("_"): _saved(getattr(self, name)) for name in self._kept}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        for name in self._kept:
            own, saved = getattr(self, name), state[name.removeprefix("_")]
            if hasattr(own, "load_state_dict"):
                own.load_state_dict(saved)
            else:
                setattr(self, name, _restored(saved, own))


def _saved(value: Any) -> Any:
    if hasattr(value, "state_dict"):
        return value.state_dict()
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return value.clone() if isinstance(value, Tensor) else value


def _restored(value: Any, own: Any) -> Any:
    if isinstance(own, deque):
        return deque(value, maxlen=own.maxlen)
    if isinstance(own, np.ndarray):
        return value.numpy().copy()
    return value.clone() if isinstance(value, Tensor) else value
