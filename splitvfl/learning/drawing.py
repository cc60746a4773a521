"""Which records of a run figures about labels are made of: the same ones wherever labels and seed are the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FOLDS = 5
"""Folds of the cross-validation, and so the least number of records of each class."""

MOST_RECORDS = 20_000
"""Enough records for an AUC to two digits, and few enough to take seconds."""

# Labels are looked through in pieces of so many.
_PIECE = 1 << 20


def drawn(count: int, seed: int) -> Tensor:
    """Return positions of at most 20 000 of so many records, in order, drawn whatever their labels."""
    if count <= MOST_RECORDS:
        return torch.arange(count)
    chosen = np.random.default_rng(seed).choice(count, MOST_RECORDS, replace=False, shuffle=False)
    return torch.from_numpy(np.sort(chosen))


def drawn_of_classes(labels: Tensor, seed: int) -> npt.NDArray[np.int64]:
    """Return positions of at most half the limit of each class; AUC does not depend on the share of a class."""
    generator = np.random.default_rng(seed)
    return np.sort(np.concatenate([_sample_of(labels, label, generator) for label in (0, 1)]))


def _sample_of(labels: Tensor, label: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return positions of records of one class: those with the least of random keys, found piece by piece."""
    limit = MOST_RECORDS // 2
    keys, chosen = np.zeros(0), np.zeros(0, np.int64)
    for start in range(0, labels.numel(), _PIECE):
        rows = start + np.flatnonzero(labels[start : start + _PIECE].cpu().numpy() == label)
        keys = np.concatenate([keys, generator.random(rows.size)])
        chosen = np.concatenate([chosen, rows])
        if keys.size > limit:
            kept = np.argpartition(keys, limit)[:limit]
            keys, chosen = keys[kept], chosen[kept]
    return chosen
