"""The order in which records are visited, agreed without a message."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, DataError


class Batches:
    """Shuffled batches that every party computes alike from four numbers.

    Batch ``k`` of epoch ``e`` is a pure function of ``(count, batch_size, seed, e, k)``: nothing is exchanged, and a
    run resumes at any place by asking for it. The order sorts the records by 64-bit keys drawn from PCG64, whose
    stream NumPy promises to keep, so that two organisations agree even with different versions of torch and NumPy.
    The order is public to the parties; it hides nothing.

    Args:
        count: Number of records.
        batch_size: Records in a batch, 1 to ``count``.
        seed: Any whole number.
        drop_last: Leave out the records of an epoch that do not fill a batch.

    Raises:
        DataError: If the batch size is below 1 or above the number of records.

    >>> [batch.tolist() for batch in Batches(5, 2, seed=0).epoch(0)]
    [[3, 0], [1, 4], [2]]
    """

    def __init__(self, count: int, batch_size: int, *, seed: int, drop_last: bool = False) -> None:
        if not 1 <= batch_size <= count:
            raise DataError(f"expected a batch size from 1 to the {count} records there are, got {batch_size}")
        self.count = count
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self.count // self.batch_size if self.drop_last else -(-self.count // self.batch_size)

    def epoch(self, number: int) -> tuple[Tensor, ...]:
        """Return the batches of an epoch: positions of records, int64, each position at most once.

        Args:
            number: The epoch, from 0.
        """
        order = _order(self.count, self.seed, number)
        size = self.batch_size
        return tuple(order[start : start + size] for start in range(0, len(self) * size, size))


def _order(count: int, seed: int, epoch: int) -> Tensor:
    if epoch < 0:
        raise ArgumentError(f"expected an epoch from 0, got {epoch}")
    # Hashed together: with seed + epoch, epoch 1 of seed 0 would be epoch 0 of seed 1.
    digest = hashlib.blake2b(f"splitvfl batches {seed} {epoch}".encode(), digest_size=16).digest()
    keys = np.random.PCG64(int.from_bytes(digest, "little")).random_raw(count)
    return torch.from_numpy(np.argsort(keys, kind="stable"))
