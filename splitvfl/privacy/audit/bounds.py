"""What two samples prove of a privacy loss: Clopper and Pearson's bounds of an event's probability in two worlds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

from splitvfl.errors import probability
from splitvfl.learning.odds import Vector, share_bounds


class Direction(NamedTuple):
    """How often an event happened in one world, which is to make it likely, and in the other.

    Attributes:
        hits: In the first world.
        draws: Draws of the first world.
        other_hits: In the second world.
        other_draws: Draws of the second world.
    """

    hits: int
    draws: int
    other_hits: int
    other_draws: int


def epsilon_bound(event: Direction, *, delta: float = 0.0, confidence: float = 0.95) -> float:
    """Return an ε below which the two worlds are not (ε, δ)-indistinguishable, as proven by one event.

    With P(S) and Q(S) the event's probabilities in the two worlds, every (ε, δ) that holds has
    ``P(S) ≤ e^ε Q(S) + δ``, so that ``ε ≥ ln((P(S) − δ) / Q(S))``. The event must have been chosen on other draws.
    The other direction, of which this says nothing, is the event's complement with the worlds exchanged.

    Args:
        event: The counts.
        delta: δ, in [0, 1).
        confidence: Share of samples for which the bound holds, in (0, 1); what it leaves is split in two.

    Returns:
        ε in nats, ≥ 0; 0: nothing is proven.

    >>> round(epsilon_bound(Direction(9_000, 10_000, 1_000, 10_000)), 2)
    2.13
    """
    return max(0.0, float(epsilons(*_ends(event, confidence), delta)))


def delta_bound(event: Direction, *, epsilon: float, confidence: float = 0.95) -> float:
    """Return a δ below which the two worlds are not (ε, δ)-indistinguishable: ``P(S) − e^ε Q(S)``, at least 0.

    Arguments are those of :func:`epsilon_bound`.
    """
    return max(0.0, float(deltas(*_ends(event, confidence), epsilon)))


def mu_bound(event: Direction, *, confidence: float = 0.95) -> float:
    """Return a μ below which the two worlds are not μ-Gaussian indistinguishable: ``Φ⁻¹(P(S)) − Φ⁻¹(Q(S))``.

    It refutes a claim of μ-Gaussian differential privacy whatever the noise is. What ε(δ) follows from it is so for
    noise that is Gaussian, and has to be labelled as assuming that. Arguments are those of :func:`epsilon_bound`.

    Source: Dong, Roth and Su, arXiv:1905.02383, equation (6).
    """
    return max(0.0, float(mus(*_ends(event, confidence))))


def error_bound(event: Direction, *, confidence: float = 0.95) -> float:
    """Return a detection error ½(FPR + FNR) that the event's test is not above: ``½ (1 − P(S) + Q(S))``, at most ½."""
    low, high = _ends(event, confidence)
    return min(0.5, float(0.5 * (1.0 - low + high)))


def epsilons(low: Vector, high: Vector, delta: float) -> Vector:
    """Return the ε that P(S) ≥ low and Q(S) ≤ high prove at δ; minus infinity: none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Vector = np.where(low > delta, np.log(np.maximum(low - delta, 0.0) / high), -np.inf)
    return found


def deltas(low: Vector, high: Vector, epsilon: float) -> Vector:
    """Return the δ that P(S) ≥ low and Q(S) ≤ high prove at ε."""
    return low - math.exp(min(epsilon, 700.0)) * high


def mus(low: Vector, high: Vector) -> Vector:
    """Return the μ that P(S) ≥ low and Q(S) ≤ high prove; minus infinity: none."""
    found: Vector = np.where((low > 0.0) & (high < 1.0), scipy.special.ndtri(low) - scipy.special.ndtri(high), -np.inf)
    return found


def largest_refutable_epsilon(draws: int, *, delta: float = 0.0, confidence: float = 0.95) -> float:
    """Return the largest ε that one event of so many draws in each world can refute: a test that never errs.

    About ``ln(draws / 3.7)`` at 95 %. What is claimed above it, counting cannot refute.

    Args:
        draws: Of each world, those that are judged.
        delta: δ of the claim.
        confidence: As in :func:`epsilon_bound`.

    >>> [round(largest_refutable_epsilon(draws), 1) for draws in (10_000, 1_000_000)]
    [7.9, 12.5]
    """
    return epsilon_bound(_never_wrong(draws), delta=delta, confidence=confidence)


def largest_refutable_mu(draws: int, *, confidence: float = 0.95) -> float:
    """Return the largest μ that one event of so many draws in each world can refute.

    >>> round(largest_refutable_mu(10_000), 1)
    6.8
    """
    return mu_bound(_never_wrong(draws), confidence=confidence)


def _never_wrong(draws: int) -> Direction:
    return Direction(draws, draws, 0, draws)


def _ends(event: Direction, confidence: float) -> tuple[Vector, Vector]:
    alpha = (1.0 - probability("confidence", confidence)) / 2.0
    low, _ = share_bounds(event.hits, event.draws, lower_alpha=alpha, upper_alpha=alpha)
    _, high = share_bounds(event.other_hits, event.other_draws, lower_alpha=alpha, upper_alpha=alpha)
    return low, high
