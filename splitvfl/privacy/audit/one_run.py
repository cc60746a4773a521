"""What one run proves of its ε: guesses of many independent coins, all thrown before it."""

from __future__ import annotations

import math

import numpy as np
import scipy

from splitvfl.errors import ArgumentError, count, probability

_LARGEST = 700.0  # e to this is a float64 still


def one_run_refutes(
    epsilon: float, *, right: int, guesses: int, canaries: int | None = None, delta: float = 0.0, confidence: float
) -> bool:
    """Return whether so many right guesses refute that a run is (ε, δ)-differentially private.

    Each of m canaries is a record for which a fair coin decides between two neighbours. From what the run sent, r coins
    are guessed, v of them rightly. Under the claim, v is not above a binomial number of r and ``e^ε / (1 + e^ε)``, but
    for δ: the claim is refuted where ``P[Bin ≥ v] + 2 m δ max_i P[v − i ≤ Bin < v] / i`` is at most 1 − confidence.

    Source: Steinke, Nasr and Jagielski, NeurIPS 2023, arXiv:2305.08846, theorem 5.2.

    Args:
        epsilon: ε of the claim in nats, ≥ 0.
        right: v.
        guesses: r. Which canaries are guessed, and how many, is settled before anybody looks.
        canaries: m; default: r.
        delta: δ of the claim, in [0, 1).
        confidence: Share of runs in which a claim that holds is not refuted.

    Raises:
        ArgumentError: If there are more right guesses than guesses, or more guesses than canaries.
    """
    r, m = count("guesses", guesses), count("canaries", guesses if canaries is None else canaries)
    if not 0 <= right <= r <= m:
        raise ArgumentError(f"expected right <= guesses <= canaries, got {right}, {r} and {m}")
    if not 0.0 <= delta < 1.0:
        raise ArgumentError(f"delta must be at least 0 and below 1, got {delta!r}")
    alpha = 1.0 - probability("confidence", confidence)
    success = 1.0 / (1.0 + math.exp(-min(epsilon, _LARGEST)))
    tail = float(scipy.stats.binom.sf(right - 1, r, success))
    if delta == 0.0 or right == 0:
        return tail <= alpha
    # P[v − i ≤ Bin ≤ v − 1] for i = 1 … v
    below = np.cumsum(scipy.stats.binom.pmf(np.arange(right - 1, -1, -1), r, success))
    return tail + 2.0 * m * delta * float(np.max(below / np.arange(1, right + 1))) <= alpha


def one_run_epsilon(
    *, right: int, guesses: int, canaries: int | None = None, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return the ε below which no claim of (ε, δ)-differential privacy of the whole run holds; 0: nothing is proven.

    The largest ε that :func:`one_run_refutes`, whose arguments these are. It needs no theory of what was sent.

    >>> [round(one_run_epsilon(right=m, guesses=m), 1) for m in (200, 1000, 5000)]
    [4.2, 5.8, 7.4]
    """

    def refuted(epsilon: float) -> bool:
        return one_run_refutes(
            epsilon, right=right, guesses=guesses, canaries=canaries, delta=delta, confidence=confidence
        )

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2.0 * high
    # The lower end is refuted, and so is every claim below it, as each would imply this one.
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
