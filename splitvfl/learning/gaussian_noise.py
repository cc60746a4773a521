"""The Gaussian mechanism: noise for a privacy loss, exactly and by the textbook."""

from __future__ import annotations

import math

import numpy as np
import scipy

from splitvfl.errors import ArgumentError, positive, probability

_ROOT_TWO = math.sqrt(2.0)
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)

# Below this share of its larger term, a difference has lost four of sixteen digits, and the integral takes over.
_CANCELLED = 1e-4


def gaussian_delta(sigma: float, epsilon: float, *, sensitivity: float) -> float:
    """Return the smallest δ for which one Gaussian release is (ε, δ)-differentially private.

    With Δ the sensitivity: ``δ = Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ)``. This is exact, for every ε. Any number of
    adaptive releases with total L2 sensitivity Δ is one such release. Values below 1e-308 round to 0. Neighbouring data
    sets are whatever pairs the sensitivity was taken over; this function cannot know.

    Source: Balle and Wang, ICML 2018, arXiv:1805.06530, Theorem 8.

    Args:
        sigma: Standard deviation of the noise on every coordinate, above 0, in the unit of ``sensitivity``.
        epsilon: Privacy loss in nats, above 0.
        sensitivity: Largest L2 distance between the releases of two neighbouring data sets, above 0.

    Returns:
        δ in [0, 1), to about ten digits.

    Raises:
        ArgumentError: If an argument is not finite and above 0.

    >>> round(gaussian_delta(1.0, 1.0, sensitivity=1.0), 6)
    0.126937
    """
    ratio = positive("sensitivity", sensitivity) / positive("sigma", sigma)
    return math.exp(log_gaussian_delta(ratio, positive("epsilon", epsilon)))


def gaussian_sigma(epsilon: float, delta: float, *, sensitivity: float) -> float:
    """Return the smallest noise scale that makes one Gaussian release (ε, δ)-differentially private.

    The σ at which :func:`gaussian_delta` is δ: exact for every ε and δ, and smaller than the textbook's. Rounded up, to
    about ten digits. Composition is the caller's: pass the L2 sensitivity of all releases together.

    Source: Balle and Wang, ICML 2018, arXiv:1805.06530, Theorem 8.

    Args:
        epsilon: Privacy loss in nats, above 0.
        delta: Failure probability, in (0, 1).
        sensitivity: Largest L2 distance between the releases of two neighbouring data sets, above 0.

    Returns:
        Standard deviation of the noise on every coordinate, in the unit of ``sensitivity``.

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> round(gaussian_sigma(1.0, 1e-5, sensitivity=1.0), 4)
    3.7306
    """
    span, loss = positive("sensitivity", sensitivity), positive("epsilon", epsilon)
    target = math.log(probability("delta", delta))
    low, high = _bracket(loss, target)
    # Bisection of the logarithm, until the ends are neighbours to a few roundings; the upper end keeps the promise.
    while high - low > 1e-15 * max(1.0, abs(high)):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if log_gaussian_delta(math.exp(-middle), loss) <= target else (middle, high)
    return math.exp(high) * span


def classic_gaussian_sigma(epsilon: float, delta: float, *, sensitivity: float) -> float:
    """Return the textbook's noise scale, ``sqrt(2 ln(1.25/δ)) Δ / ε``, which holds for ε < 1 only.

    It is larger than needed for small ε, and at ε = 10, δ = .01 its true δ would be .04. :func:`gaussian_sigma` is
    smaller and holds everywhere; this one is for comparison with published numbers. Arguments and units are the same.

    Source: Dwork and Roth, *The Algorithmic Foundations of Differential Privacy*, Theorem A.1.

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> round(classic_gaussian_sigma(0.5, 1e-5, sensitivity=1.0), 3)
    9.69
    """
    loss = positive("epsilon", epsilon)
    if loss >= 1:
        raise ArgumentError(
            f"the textbook's noise scale holds for epsilon below 1, got {epsilon!r}; gaussian_sigma holds everywhere"
        )
    span = positive("sensitivity", sensitivity)
    return math.sqrt(2.0 * math.log(1.25 / probability("delta", delta))) * span / loss


def _bracket(epsilon: float, target: float) -> tuple[float, float]:
    """Return two logarithms of σ/Δ; log δ is above the target at the first and not at the second."""
    low = high = 0.0
    while log_gaussian_delta(math.exp(-high), epsilon) > target:
        high += 1.0
    while log_gaussian_delta(math.exp(-low), epsilon) <= target:
        low -= 1.0
    return low, high


def log_gaussian_delta(ratio: float, epsilon: float) -> float:
    """Return the logarithm of :func:`gaussian_delta` for ``ratio`` = Δ/σ, both arguments finite and above 0, unchecked.

    With a = Δ/2σ, b = εσ/Δ and φ the normal density, ``e^ε Φ(−a − b) = φ(b − a) M(a + b)`` where M is Mills' ratio, so
    that nothing overflows and small values keep their digits.
    """
    half, shift = ratio / 2.0, epsilon / ratio
    if shift > 1e150:
        return -math.inf
    log_density = -0.5 * (shift - half) ** 2 - _LOG_ROOT_TWO_PI
    if half > shift:
        log_first = float(scipy.special.log_ndtr(half - shift))
        kept = -math.expm1(log_density + math.log(_mills(half + shift)) - log_first)
    else:
        # The density, whose logarithm has few digits after its point, is in both and left out of the difference.
        first = _mills(shift - half)
        log_first = log_density + math.log(first)
        kept = (first - _mills(shift + half)) / first
    if kept > _CANCELLED:
        return log_first + math.log(kept)
    return log_density + math.log(_tail_integral(half, shift))


def _mills(x: float) -> float:
    """Return Mills' ratio ``Φ(−x) / φ(x)`` for x ≥ 0."""
    return math.sqrt(math.pi / 2.0) * float(scipy.special.erfcx(x / _ROOT_TWO))


def _tail_integral(half: float, shift: float) -> float:
    """Return ``M(b − a) − M(b + a) = 2 ∫ sinh(a t) exp(−b t − t²/2) dt`` over t > 0, in which nothing cancels."""
    width = 1.0 / max(shift, 1.0)  # the integrand lives within a few dozen of these

    def integrand(u: float) -> float:
        t = u * width
        return float(2.0 * np.sinh(half * t) * np.exp(-shift * t - 0.5 * t * t))

    value, _ = scipy.integrate.quad(integrand, 0.0, 50.0, epsabs=0.0, epsrel=1e-12, limit=200)
    return float(value) * width
