"""What attacks found in several trainings, beside what a guarantee allows: the second half of an audit.

An attack that found little proves nothing: its figures are of what was tried. They stand beside what anybody would
guess, beside what a partner predicts from its own columns, and beside what is guaranteed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy

from splitvfl.audit.ceilings import Ceiling, plain
from splitvfl.errors import ArgumentError

Relation = Literal["label of a record", "row of a record", "record at all parties"]

Scores = npt.NDArray[np.float64]
Coins = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Figure:
    """The mean of a figure over trainings.

    Attributes:
        mean: Over the trainings that have it.
        low: Lower end of its interval; ``None`` of fewer than three trainings.
        high: Upper end.
        trainings: How many have it.
    """

    mean: float
    low: float | None
    high: float | None
    trainings: int


def figure_of(values: Iterable[float | None], *, confidence: float) -> Figure | None:
    """Return the mean of shares with its t-interval, cut at 0 and 1; ``None`` if there are none.

    Trainings are taken for independent draws of a normal distribution. It says nothing of other data. Of one or two
    there is no interval: shares of few coins are equal too often, and nothing would be said to be known exactly.

    Args:
        values: One for each training; ``None`` and NaN are left out.
        confidence: Of this one interval, in (0, 1).

    >>> found = figure_of([0.5, 0.6, 0.7, None], confidence=0.95)
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3), found.trainings
    (0.6, 0.352, 0.848, 3)
    """
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) < 3:
        return Figure(mean, None, None, len(known))
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1))
    quantile = float(scipy.stats.t.ppf(0.5 + confidence / 2.0, len(known) - 1))
    half = quantile * deviation / math.sqrt(len(known))
    return Figure(mean, max(0.0, mean - half), min(1.0, mean + half), len(known))


@dataclass(frozen=True, slots=True)
class AttackFigures:
    """What one attack found.

    Attributes:
        attack: Its name.
        auc: Of the scores that it added up, on records with their true labels.
        right: Share of coins that it guessed right, of labels that were tossed; ``None`` where there are no coins.
        by_messages: Whether it reads any message.
    """

    attack: str
    auc: Figure | None
    right: Figure | None
    by_messages: bool = True


@dataclass(frozen=True, slots=True)
class ProvenLoss:
    """What right guesses of coins prove of the ε of a training.

    Attributes:
        epsilon: It is at least so much.
        refutable: The largest claim that so many guesses could refute.
        right: Right guesses, of all trainings together.
        guesses: Guesses.
        attack: Whose.
        confidence: Of this bound.
    """

    epsilon: float
    refutable: float
    right: int
    guesses: int
    attack: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What was to be had after so many epochs.

    Attributes:
        epochs: How many.
        guarantee: What anybody gets at the most, if the guarantee holds; ``None``: there is none.
        why: Why there is none, or what refutes or voids it, in whole sentences; empty where one holds.
        noise_alone: What the noise on a record's own messages allows, whatever else the label moves; ``None``: unknown.
        proven: What the coins prove; ``None`` without coins.
        attacks: What attacks found, the best first.
    """

    epochs: int
    guarantee: Ceiling | None = None
    why: tuple[str, ...] = ()
    noise_alone: Ceiling | None = None
    proven: ProvenLoss | None = None
    attacks: tuple[AttackFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class Seat:
    """What somebody could learn of somebody else.

    Attributes:
        readers: Who reads: one party, or several who put together what they received.
        owners: Whose data it is about.
        relation: What of them.
        own_columns: AUC of what the reader predicts of the labels from its own columns; ``None``: not known.
        after: After how many epochs what was to be had, in their order.
    """

    readers: tuple[str, ...]
    owners: tuple[str, ...]
    relation: Relation
    own_columns: float | None
    after: tuple[Reading, ...]

    def as_json(self) -> Any:
        """Return it as what JSON has."""
        return plain(self)


@dataclass(frozen=True, slots=True)
class Trainings:
    """The trainings that attacks were tried on.

    Attributes:
        count: How many.
        coins: Records in each of them whose label was a coin toss.
        base_rate: Share of the commonest label; ``None`` of numbers.
        confidence: Share of audits in which all intervals of one moment hold.
        figures: Intervals of a moment, among which what may be wrong is divided.
    """

    count: int
    coins: int
    base_rate: float | None
    confidence: float
    figures: int

    def as_json(self) -> Any:
        """Return it as what JSON has."""
        return plain(self)


def reading_epochs(epochs: int) -> tuple[int, ...]:
    """Return after how many epochs is read: the first, the tenth and the last.

    >>> reading_epochs(15), reading_epochs(3), reading_epochs(1)
    ((1, 10, 15), (1, 3), (1,))
    """
    if epochs < 1:
        raise ArgumentError(f"epochs must be at least 1, got {epochs}")
    return tuple(sorted({epoch for epoch in (1, 10, epochs) if epoch <= epochs}))


def right_guesses(scores: Scores, coins: Coins) -> float:
    """Return the share of coins that are right where the upper half of the scores is taken for ones.

    Neither the middle nor the scores know a coin; a score in the middle is a guess like any other.

    Args:
        scores: ``(m,)``, higher for one.
        coins: ``(m,)`` in {0, 1}.

    >>> right_guesses(np.array([0.1, 0.9, 0.2, 0.8]), np.array([0, 1, 1, 0]))
    0.5
    """
    return float(np.mean((scores > np.median(scores)) == (coins > 0)))


def standardised(scores: Scores) -> Scores:
    """Return scores with zero median and unit deviation, so that those of several trainings or readers add up."""
    shifted: Scores = scores - np.median(scores)
    deviation = float(np.sqrt(np.mean(np.square(shifted))))
    return shifted / deviation if deviation > 0.0 and math.isfinite(deviation) else np.zeros_like(shifted)


def together(parts: Sequence[Scores]) -> Scores:
    """Return scores of the same records by several readers, put together: the mean of the standardised ones."""
    found: Scores = np.mean([standardised(part) for part in parts], axis=0)
    return found
