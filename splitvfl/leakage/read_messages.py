"""With which messages a reader is called that takes no more than its part of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

_CALLED = 64  # records of a message so large that a sampled attack is called with each

HELD = 512
"""Known records of messages with which it is not called, that are held for the next, at most: the latest."""


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """With which messages an attack is called, and of which known records are held for it.

    Attributes:
        epoch_steps: Steps of an epoch.
        every: It is called with one message of so many.
        ahead: Of so many messages before that one known records are held.
    """

    epoch_steps: int = 1
    every: int = 1
    ahead: int = 0

    @classmethod
    def of(cls, records: int, epoch_steps: int | None, known_share: float) -> ReadMessages:
        """Return those of an attack that may be sampled.

        Args:
            records: Of an epoch.
            epoch_steps: Its steps; ``None``: the attack is called with each.
            known_share: Share of the records that the attack knows.
        """
        if epoch_steps is None:
            return cls()
        size = records / epoch_steps
        # The last message of an epoch may be a small one.
        every = max(1, min(math.ceil(size / _CALLED), epoch_steps - 1))
        return cls(epoch_steps, every, math.ceil(HELD / max(known_share * size, 1.0)))

    def calls(self, step: int) -> bool:
        """Return whether it is called with the message of a step."""
        return self._left(step) == 0

    def holds(self, step: int) -> bool:
        """Return whether known records of that message are held for the next with which it is called."""
        return self._left(step) <= self.ahead

    def _left(self, step: int) -> int:
        return self.every - 1 - step % self.epoch_steps % self.every
