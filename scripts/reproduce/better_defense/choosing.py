"""For each defense and setting the number of epochs and the learning rate that are best on validation records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

RATES = (3e-3, 1e-2)
ANSWER_RATES = (1e-3, *RATES)
"""Learning rates that are tried; a trial of four chose them. Lies that are remembered are learned by heart, so that a
lower one is tried of them besides, which in the trial was never best of anything else."""

SILENT_RATES = (3e-3, 1e-2)
"""The same where nothing comes back to the partner, and only a head is trained."""

DOUBLINGS = 2
"""How often twice as many epochs are tried, each time only of what was best with the most epochs until then."""


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


def extended(choice: Choice, epochs: int, auc: float) -> Choice:
    """Return the choice after its rate was tried with more epochs than any before.

    >>> extended(Choice(8, 0.01, 0.7, "most"), 16, 0.75)
    Choice(epochs=16, rate=0.01, auc=0.75, edge='most')
    >>> extended(Choice(8, 0.01, 0.7, "most"), 16, 0.7)
    Choice(epochs=8, rate=0.01, auc=0.7, edge='')

    Raises:
        ValueError: If it is not of the most epochs until then: nothing would be learned from more.
    """
    if choice.edge != "most" or epochs <= choice.epochs:
        raise ValueError(f"more epochs are tried of the most alone, got {epochs} for {choice}")
    return Choice(epochs, choice.rate, auc, "most") if auc > choice.auc else replace(choice, edge="")


def counted_edges(choices: Iterable[Choice]) -> dict[str, int]:
    """Return how many of the choices are of the fewest and of the most epochs that were tried, and how many there are.

    >>> counted_edges([Choice(2, 0.1, 0.9, "fewest"), Choice(4, 0.1, 0.9)])
    {'fewest': 1, 'most': 0, 'all': 2}
    """
    found = list(choices)
    return {edge: sum(choice.edge == edge for choice in found) for edge in ("fewest", "most")} | {"all": len(found)}
