"""A party's weights at the best evaluation so far, kept beside those that go on training."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from splitvfl.learning.schedule import Verdict


class BestWeights:
    """A party's weights at the evaluation with the best verdict, which it takes back at the end.

    Checkpoints hold both: the weights as trained, with which training goes on to the bit, and the best ones.

    Args:
        module: The party's model.

    Attributes:
        epoch: The epoch, from 1, whose weights are kept; ``None`` while no evaluation was best.
        stopped: Whether a verdict has ended the training.
        in_use: Whether the model holds the kept weights, and those as trained are kept beside it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.epoch: int | None = None
        self.stopped = False
        self.in_use = False
        self._module = module
        self._aside: dict[str, Any] | None = None

    def apply(self, verdict: Verdict, *, epoch: int) -> None:
        """Keep a copy of the weights if the verdict on the evaluation after an epoch is the best, and note a stop."""
        if verdict.best:
            self.epoch, self._aside = epoch, copy.deepcopy(self._module.state_dict())
        self.stopped = verdict.stop

    def use(self) -> None:
        """Take the kept weights back, if there are any; the optimiser is not touched."""
        if self._aside is not None and not self.in_use:
            self._exchange()

    def restore_trained(self) -> None:
        """Return to the weights as trained, to go on."""
        if self.in_use:
            self._exchange()

    def _exchange(self) -> None:
        assert self._aside is not None
        current = copy.deepcopy(self._module.state_dict())
        self._module.load_state_dict(self._aside)
        self._aside, self.in_use = current, not self.in_use

    def state_dict(self) -> dict[str, Any]:
        """Return the weights as trained, the kept ones (``None``: there are none), and their epoch."""
        current = self._module.state_dict()
        trained, kept = (self._aside, current) if self.in_use else (current, self._aside)
        return {"module": trained, "kept": kept, "epoch": self.epoch, "stopped": self.stopped}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned; the model then holds the weights as trained."""
        self._module.load_state_dict(state["module"])
        self._aside, self.in_use = state["kept"], False
        self.epoch, self.stopped = state["epoch"], state["stopped"]
