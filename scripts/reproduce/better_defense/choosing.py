"""For each defense and setting the number of epochs and the learning rate that are best on validation records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

RATES = (3e-3, 1e-2)
ANSWER_RATES = (1e-3, *RATES)
"""Learning rates that are tried; a trial of four chose them. Lies that are remembered are learned by heart, so that a
lower one is tried of them besides, which in the trial was never best of anything else."""

SILENT_RATES = (3e-3, 1e-2)
"""The same where nothing comes back to the partner, and only a head is trained."""


@dataclass(frozen=True)
class Choice:
    """What is best on validation records.

    Attributes:
        epochs: Number of epochs.
        rate: Learning rate.
        auc: AUC on the validation records.
        edge: Whether there is a larger or smaller number of epochs that was not tried beyond it: it is the largest or
            smallest of those tried.
    """

    epochs: int
    rate: float
    auc: float
    edge: str = ""


def best(epochs: Sequence[int], aucs: Mapping[float, Sequence[float]]) -> Choice:
    """Return the best of several numbers of epochs and rates; of equals the one with fewer epochs, then the lower rate.

    Args:
        epochs: The numbers that were tried, ascending.
        aucs: By rate, validation AUC after each number of epochs. NaN is never best.
    """
    tried = [
        (-math.inf if math.isnan(auc) else auc, -number, -rate)
        for rate, found in aucs.items()
        for number, auc in zip(epochs, found, strict=True)
    ]
    auc, number, rate = max(tried)
    edge = {epochs[0]: "fewest", epochs[-1]: "most"}.get(-number, "")
    return Choice(-number, -rate, auc, edge)


def counted_edges(choices: Iterable[Choice]) -> dict[str, int]:
    """Return how many of the choices are of the fewest and of the most epochs that were tried, and how many there are.

    >>> counted_edges([Choice(2, 0.1, 0.9, "fewest"), Choice(4, 0.1, 0.9)])
    {'fewest': 1, 'most': 0, 'all': 2}
    """
    found = list(choices)
    return {edge: sum(choice.edge == edge for choice in found) for edge in ("fewest", "most")} | {"all": len(found)}
