"""Gaussian differential privacy: one number μ for what a shift of Gaussian noise tells."""

from __future__ import annotations

import math
from statistics import NormalDist

import scipy

from splitvfl.errors import ArgumentError, positive, probability
from splitvfl.learning.gaussian_noise import gaussian_delta, gaussian_sigma, log_gaussian_delta

_NORMAL = NormalDist()
# Of Newton's method, which takes three to eight.
_MOST_STEPS = 100


def gaussian_mu(
    *,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    detection_error: float | None = None,
) -> float:
    """Return μ, given in one of three ways.

    What is μ-Gaussian differentially private is as hard to tell apart as N(0, 1) and N(μ, 1) from one draw, whatever is
    computed from it. Any number of adaptive releases of μ₁, μ₂, … is one of ``√(μ₁² + μ₂² + …)``.

    Source: Dong, Roth and Su, *Gaussian Differential Privacy*, JRSS B 84 (2022), arXiv:1905.02383, definition 2.6,
    corollaries 2.13 and 3.3.

    Args:
        mu: μ itself, > 0.
        epsilon: With ``delta``: the largest μ that is (ε, δ)-differentially private, ε > 0 in nats.
        delta: δ, in (0, 1).
        detection_error: The least ½(FPR + FNR) that an attacker is to have, L in (0, ½): ``μ = 2 Φ⁻¹(1 − L)``.

    Raises:
        ArgumentError: Unless exactly one of the three is given, in its range.

    >>> round(gaussian_mu(detection_error=0.4), 4)
    0.5067
    >>> round(gaussian_mu(epsilon=1.0, delta=1e-5), 4)
    0.2681
    """
    values = {"mu": mu, "epsilon": epsilon, "delta": delta, "detection_error": detection_error}
    named = [name for name, value in values.items() if value is not None]
    if named not in (["mu"], ["epsilon", "delta"], ["detection_error"]):
        raise ArgumentError(
            "expected exactly one of mu, epsilon together with delta, and detection_error, "
            f"got {' and '.join(named) or 'none'}{' without delta' if named == ['epsilon'] else ''}"
        )
    if detection_error is not None:
        if not 0.0 < detection_error < 0.5:
            raise ArgumentError(f"detection_error must lie strictly between 0 and 0.5, got {detection_error!r}")
        return 2.0 * _NORMAL.inv_cdf(1.0 - detection_error)
    if epsilon is not None and delta is not None:
        return 1.0 / gaussian_sigma(epsilon, delta, sensitivity=1.0)
    assert mu is not None
    return positive("mu", mu)


def least_detection_error(mu: float) -> float:
    """Return the least ½(FPR + FNR) that anyone has who tells two labels apart by what is μ-private: ``Φ(−μ/2)``.

    No attacker's AUC, between two such records, is above ``Φ(μ/√2)``.

    Source: Dong, Roth and Su, arXiv:1905.02383, equation (6), at the point where both errors are equal.

    Args:
        mu: μ, at least 0.

    >>> round(least_detection_error(0.5067), 4)
    0.4
    """
    if not mu >= 0.0:
        raise ArgumentError(f"mu must be at least 0, got {mu!r}")
    return _NORMAL.cdf(-mu / 2.0) if math.isfinite(mu) else 0.0


def gaussian_mu_delta(mu: float, epsilon: float) -> float:
    """Return the smallest δ for which what is μ-Gaussian differentially private is (ε, δ)-private, exactly.

    Source: Dong, Roth and Su, arXiv:1905.02383, corollary 2.13.

    Args:
        mu: μ, from 0.
        epsilon: ε in nats, from 0.

    >>> round(gaussian_mu_delta(0.2681, 1.0), 7)
    1e-05
    """
    if not (math.isfinite(mu) and mu >= 0.0 and epsilon >= 0.0):
        raise ArgumentError(f"expected mu and epsilon from 0, got {mu!r} and {epsilon!r}")
    if mu == 0.0:
        return 0.0
    if epsilon == 0.0:
        return math.erf(mu / math.sqrt(8.0))
    return gaussian_delta(1.0, epsilon, sensitivity=mu) if math.isfinite(epsilon) else 0.0


def gaussian_mu_epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε for which what is μ-Gaussian differentially private is (ε, δ)-private.

    Rounded up, to about ten digits. :func:`gaussian_mu` with ε and δ is its inverse.

    Args:
        mu: μ, from 0.
        delta: δ, in (0, 1).

    >>> round(gaussian_mu_epsilon(0.2681, 1e-5), 3)
    1.0
    """
    allowed = probability("delta", delta)
    if gaussian_mu_delta(mu, 0.0) <= allowed:
        return 0.0
    # log δ(ε) is concave: δ is what e^-s, s > 0, and the tail of the loss come to when they are convolved, and the
    # logarithms of both are. No tangent is below it anywhere, so that Newton's method ends every step at the ε that is
    # sought or above, and comes down to it. The loss is N(μ²/2, μ²), and above this with a probability below δ.
    found, target = mu**2 / 2.0 + mu * math.sqrt(-2.0 * math.log(allowed)), math.log(allowed)
    for _ in range(_MOST_STEPS):
        there = log_gaussian_delta(mu, found)
        # The slope of δ is −e^ε Φ(−μ/2 − ε/μ).
        falls = found + float(scipy.special.log_ndtr(-mu / 2.0 - found / mu)) - there
        nearer = found + (there - target) * math.exp(-falls)
        if not 0.0 < nearer < found * (1.0 - 1e-12):
            break
        found = nearer
    # Where rounding has taken the last step too far.
    more = 1e-14
    while gaussian_mu_delta(mu, found) > allowed:
        found, more = found * (1.0 + more), 2.0 * more
    return found
