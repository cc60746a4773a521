"""All that one party sends in a training, as one Gaussian release, and the least noise that makes it (ε, δ)-private."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from splitvfl.errors import PrivacyError
from splitvfl.learning.discrete_noise import GRID_BITS, discrete_gaussian
from splitvfl.privacy.gaussian_dp import gaussian_mu, gaussian_mu_delta

GRID: Final = 2.0**-GRID_BITS
"""The grid of the noise, at most, in standard deviations; it is a power of two."""

# Parties compare noise, and their machines may round differently: so many digits, rounded up, for it is a promise.
_DIGITS = 8


@dataclass(frozen=True)
class Stream:
    """What one party sends in a training, and the noise on it.

    Attributes:
        sensitivity: How far one changed row moves all of it, in L2.
        sigma: Standard deviation of the noise on each number.
        delta: The δ that this is at the agreed ε, all told.
        numbers: How many numbers it sends.
        clip: The largest of them, before noise; or half of the farthest that two can be apart.
        evaluations: What it sends for evaluations, where that has noise.
        predictions: What it sends for predictions after the training, likewise.
    """

    sensitivity: float
    sigma: float
    delta: float
    numbers: float
    clip: float
    evaluations: Stream | None = None
    predictions: Stream | None = None

    @property
    def mu(self) -> float:
        """How hard the two are to tell apart: as N(0, 1) from N(μ, 1)."""
        return math.hypot(self.sensitivity / self.sigma + self.rounding, *(one.mu for one in self._besides.values()))

    @property
    def _besides(self) -> Mapping[str, Stream]:
        found = {"evaluations": self.evaluations, "predictions": self.predictions}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def rounding(self) -> float:
        """What rounding to the grid of the noise, before it, adds to μ at most."""
        return GRID * math.sqrt(self.numbers)

    @property
    def unmatched(self) -> float:
        """What is added to δ because noise beyond some size is never drawn, by the number."""
        return discrete_gaussian(self.sigma).unmatched(2.0 * self.clip)

    def delta_at(self, epsilon: float) -> float:
        """Return the δ that this is at an ε."""
        return min(1.0, gaussian_mu_delta(self.mu, epsilon) + self.missing)

    @property
    def missing(self) -> float:
        """What is added to δ because noise beyond some size is never drawn, of all numbers."""
        return self.numbers * self.unmatched + math.fsum(one.missing for one in self._besides.values())

    @property
    def void(self) -> bool:
        """Whether nothing is guaranteed at any ε: what is never drawn is all of δ."""
        return self.missing >= 1.0

    def with_sigma(self, sigma: float) -> Stream:
        """Return it with another noise, and that of evaluations and predictions in proportion."""
        besides: dict[str, Any] = {
            name: replace(one, sigma=one.sigma * (sigma / self.sigma)) for name, one in self._besides.items()
        }
        return replace(self, sigma=sigma, **besides)

    def rounded_up(self) -> Stream:
        """Return it with noise of so few digits that all parties find the same."""
        besides: dict[str, Any] = {name: one.rounded_up() for name, one in self._besides.items()}
        return replace(self, sigma=rounded_up(self.sigma), **besides)


def least_sigma(stream: Stream, epsilon: float, delta: float) -> float:
    """Return the least noise with which a stream is (ε, δ)-private, rounding and all that the noise is not included."""
    if gaussian_mu_delta(stream.rounding, epsilon) >= delta:
        raise PrivacyError(
            f"rounding {stream.numbers:,.0f} numbers to the grid of the noise spends more than ε {epsilon:g} at δ "
            f"{delta:g}, however large the noise is; take a larger epsilon or delta, or fewer epochs"
        )
    # No less than an exact Gaussian would take, to which little is to be added.
    low = math.log(stream.sensitivity / gaussian_mu(epsilon=epsilon, delta=delta))
    high, step = low, 1e-6
    while stream.with_sigma(math.exp(high)).delta_at(epsilon) > delta:
        low, high, step = high, high + step, 2.0 * step
    while high - low > 1e-12:
        middle = 0.5 * (low + high)
        enough = stream.with_sigma(math.exp(middle)).delta_at(epsilon) <= delta
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def rounded_up(sigma: float) -> float:
    """Return a noise in so many digits that machines which round differently find the same, never below it."""
    unit = 10.0 ** (math.floor(math.log10(sigma)) - _DIGITS + 1)
    return float(f"{math.ceil(sigma / unit) * unit:.{_DIGITS - 1}e}")


def success(mu: float, missing: float = 0.0) -> float:
    """Return how often N(0, 1) and N(μ, 1) are told apart rightly at most, at even odds: ``Φ(μ/2)``.

    Args:
        mu: μ, from 0.
        missing: What is added to δ besides, and tells everything, from 0.
    """
    return min(1.0, 0.5 * math.erfc(-mu / math.sqrt(8)) + missing)


def void_at(epsilon: float, delta: float) -> str:
    """Return in a clause that nothing is guaranteed where δ, in three digits, reaches 1; empty below."""
    if float(f"{delta:.3g}") < 1.0:
        return ""
    return f"nothing is guaranteed at ε {epsilon:g}: δ reaches 1, so that the statement is void"


def cut_tail(missing: float) -> str:
    """Return in a clause what noise that is cut at 13 σ adds to δ; from 1 on, which is no probability, nothing holds.

    Args:
        missing: What is added to δ, from 0: a sum over all numbers that are sent, so that it may exceed 1.
    """
    if missing < 1:
        return f"(up to {missing:.2g} of δ)"
    return "(over so many numbers that δ reaches 1: the statement in ε and δ is void here)"
