"""The division that papers use: the classes keep their proportions, so labels decide which records are tested.

Studies that repeat a paper's protocol keep it. The product divides by ids alone (:mod:`splitvfl.data.split`): a partner
that sees which records are tested infers labels from a stratified division.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

Rows = npt.NDArray[np.int64]


def stratified_split(
    labels: npt.NDArray[np.generic], *, test_fraction: float, seed: int, by_class: bool = True
) -> tuple[Rows, Rows]:
    """Return positions of training and test rows, each ascending.

    Args:
        labels: One per row.
        test_fraction: Fraction of test rows, in (0, 1).
        seed: Decides which.
        by_class: Keep the classes' proportions; amounts have no classes.
    """
    train, test = train_test_split(
        np.arange(len(labels)), test_size=test_fraction, random_state=seed, stratify=labels if by_class else None
    )
    return np.sort(train), np.sort(test)
