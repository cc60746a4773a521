"""The length of a training and its batches, for which noise is calculated, and records that are used once an epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError

# Records of which it is looked up whether one is there twice; more of them were ingested, where none is.
_LOOKED_UP = 1 << 24


@dataclass(frozen=True)
class Batching:
    """How long a training is, and in batches of how many.

    Attributes:
        epochs: How often each record is used.
        each: Batches in an epoch.
        size: Records in a batch.
        last: Records in the last batch of an epoch.
        records: Training records.
        evaluated: How often it is evaluated.
        every: Epochs from one evaluation to the next.
        tested: Test records.
    """

    epochs: int
    each: int
    size: int
    last: int
    records: int
    evaluated: int
    every: int
    tested: int

    @classmethod
    def of(cls, *, epochs: int, size: int, drop_last: bool, records: int, every: int, tested: int) -> Batching:
        """Return that of a training.

        Args:
            epochs: How often each record is used.
            size: Records in a batch.
            drop_last: Whether what does not fill a batch is left out.
            records: Training records.
            every: Epochs from one evaluation to the next.
            tested: Test records.
        """
        each = max(1, records // size) if drop_last else math.ceil(records / size)
        # Everybody knows the order: a record may be known to sit in the smaller last batch.
        last = size if drop_last else records - (each - 1) * size
        return cls(epochs, each, size, last, records, math.ceil(epochs / every), every, tested)

    @property
    def evaluated_after(self) -> tuple[int, ...]:
        """After how many steps it is evaluated, each time."""
        epochs = {*range(self.every, self.epochs + 1, self.every), self.epochs}
        return tuple(epoch * self.each for epoch in sorted(epochs))

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * self.each

    @property
    def described(self) -> str:
        """How many records are in a batch, in words."""
        last = "" if self.last == self.size else f" (the last of each epoch {self.last})"
        return f"{self.size} records{last}"


def check_used_once(data: PartyData, key: str) -> None:
    """Refuse records that are used more often than once an epoch.

    Args:
        data: A party's data.
        key: The setting whose noise was calculated for records that are not.

    Raises:
        ConfigError: If a record is there twice, or stands in for another.
    """
    if data.train.real is not None:
        raise ConfigError(
            f"{key}: it was calculated for records that are used once an epoch, and dummies of the padded "
            f"alignment repeat records of {data.name}; align without padding"
        )
    ids = data.train.ids
    if len(ids) <= _LOOKED_UP and len(ids.unique()) < len(ids):
        raise ConfigError(
            f"{key}: it was calculated for records that are used once an epoch, and an id is there twice among the "
            f"training records of {data.name}"
        )
