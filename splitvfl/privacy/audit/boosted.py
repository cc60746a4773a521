"""A likelihood ratio of wide messages that is learned by boosting: for what neither means nor covariances show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Messages = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]

MOST_TAUGHT: Final = 20_000
"""Messages of each world that it is taught with, at most: more of them cost seconds and change little."""

_ROUNDS, _LEAVES, _RATE = 60, 15, 0.15


def boosted(first: Messages, second: Messages) -> Callable[[Messages], Vector]:
    """Return a log likelihood ratio of the first world to the second, by gradient boosting of small trees.

    It is fitted in about a second to 16 columns, and draws nothing by chance.

    Args:
        first: Messages of one world, ``(n, d)``.
        second: Messages of the other.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # which takes half a second to import

    taught = [world[:MOST_TAUGHT] for world in (first, second)]
    worlds = np.repeat([1, 0], [len(world) for world in taught])
    model = HistGradientBoostingClassifier(
        max_iter=_ROUNDS, max_leaf_nodes=_LEAVES, learning_rate=_RATE, early_stopping=False, random_state=0
    ).fit(np.concatenate(taught), worlds)
    ratio: Callable[[Messages], Vector] = model.decision_function
    return ratio
