"""How often something is right: bounds of a share that was counted, and signs that too few equations tell."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import scipy

from splitvfl.errors import ArgumentError, count, probability

Vector = npt.NDArray[np.float64]


def share_bounds(hits: npt.ArrayLike, draws: int, *, lower_alpha: float, upper_alpha: float) -> tuple[Vector, Vector]:
    """Return a lower and an upper bound of a probability, each wrong at most as often as its alpha says.

    Source: Clopper and Pearson, Biometrika 26 (1934).

    Args:
        hits: How often the event happened; any shape.
        draws: Independent draws, ≥ 1.
        lower_alpha: Share of samples for which the lower bound may be above the probability, in (0, 1).
        upper_alpha: Likewise, of the upper bound.

    >>> low, high = share_bounds(0, 100, lower_alpha=0.025, upper_alpha=0.025)
    >>> float(low), round(float(high), 4)
    (0.0, 0.0362)
    """
    n = count("draws", draws)
    k = np.asarray(hits, dtype=np.float64)
    if bool(np.any((k < 0) | (k > n) | (k != np.floor(k)))):
        raise ArgumentError(f"hits must be whole numbers from 0 to {n}, the number of draws, got {hits!r}")
    below, above = probability("lower_alpha", lower_alpha), probability("upper_alpha", upper_alpha)
    # At the ends the other parameter would be 0, where the distribution is a point.
    low = np.where(k == 0, 0.0, scipy.special.betaincinv(np.maximum(k, 1.0), n - k + 1.0, below))
    high = np.where(k == n, 1.0, scipy.special.betaincinv(k + 1.0, np.maximum(n - k, 1.0), 1.0 - above))
    return low, high


def sign_success(equations: float, unknowns: float) -> float:
    """Return how often a sign is right in the smallest solution: ``Φ(√(e / (n − e)))``, and 1 from e = n on.

    Of e generic equations in n unknowns of one size, which do not follow the features: where features predict labels,
    the smallest solution is a model of labels, and its signs are right as often as such a model is. With unknowns of
    several sizes it is an approximation.

    Args:
        equations: e, at least 0.
        unknowns: n, above 0.

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> round(sign_success(30, 100), 3)
    0.744
    """
    if not (equations >= 0 and unknowns > 0):
        raise ArgumentError(f"expected equations from 0 and unknowns above 0, got {equations} and {unknowns}")
    if equations >= unknowns:
        return 1.0
    return NormalDist().cdf(math.sqrt(equations / (unknowns - equations)))


def unknowns_for_success(success: float, equations: float) -> float:
    """Return from how many unknowns on a sign is right at most so often: ``e (1 + 1 / z²)`` with ``Φ(z) = success``.

    Args:
        success: Above 0.5 and below 1.
        equations: e, at least 0.

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> round(unknowns_for_success(0.6, 1), 1)
    16.6
    """
    if not (0.5 < success < 1 and equations >= 0):
        raise ArgumentError(f"expected a success in (0.5, 1) and equations from 0, got {success} and {equations}")
    return equations * (1 + NormalDist().inv_cdf(success) ** -2)
