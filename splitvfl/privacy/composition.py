"""What several releases tell together: one (ε, δ) for all, exactly where a formula is known.

=================== =========================================================================================
what is composed    how ε(δ) is found
=================== =========================================================================================
Gaussian releases   exactly: they are one Gaussian release, whose μ is the root of the sum of squares
one pure ε, k times exactly, for the worst mechanism that is ε-private: the k-fold formula
one Laplace release exactly
all else            privacy-loss distributions (`dp-accounting`), rounded up; without it a sum over parts, looser
=================== =========================================================================================

**Nothing here is amplified** by subsampling or shuffling: the parties of a training know which records are in which
batch. Who sees the final model only, and no order, could claim it; no figure of this package does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
import scipy

from splitvfl.errors import ArgumentError, count, positive, probability
from splitvfl.privacy import loss_distributions
from splitvfl.privacy.gaussian_dp import gaussian_mu_delta, gaussian_mu_epsilon

_Counts = tuple[tuple[float, int], ...]

GAUSSIAN = "exact: Gaussian releases are one"
K_FOLD = "exact: the k-fold formula of a pure ε"
LAPLACE = "exact: one Laplace release"
DISTRIBUTIONS = "privacy-loss distributions of dp-accounting, rounded up"
SUM = "a sum over parts, which is looser"
SUM_WITHOUT = "a sum over parts, which is looser: dp-accounting, which would compose them, is not installed"
NOTHING = "nothing is released"


def k_fold_delta(epsilon: float, times: int, total: float) -> float:
    """Return the smallest δ for which k adaptive releases, each ε-private, are (total, δ)-private in every case.

    ``Σ_l C(k, l) [e^((k − l) ε) − e^(total + l ε)]₊ / (1 + e^ε)^k``: no mechanism that is ε-private tells more than
    randomised response does, and of k answers the number of honest ones says all.

    Source: Kairouz, Oh and Viswanath, ICML 2015, arXiv:1311.0776, theorem 3.3, at every ε and not only at (k − 2i) ε.

    Args:
        epsilon: ε of each release, > 0.
        times: k, from 1.
        total: ε of all together, from 0.

    >>> round(k_fold_delta(0.1, 100, 4.0), 5)
    3e-05
    """
    loss, k = positive("epsilon", epsilon), count("times", times)
    if not total >= 0:
        raise ArgumentError(f"total must be at least 0, got {total!r}")
    flipped = np.arange(k // 2 + 1, dtype=np.float64)  # with more, the answers speak for the other world
    beyond = (k - 2.0 * flipped) * loss - total
    flipped, beyond = flipped[beyond > 0], beyond[beyond > 0]
    logs = (
        scipy.special.gammaln(k + 1.0) - scipy.special.gammaln(flipped + 1.0) - scipy.special.gammaln(k - flipped + 1.0)
    )
    logs += (k - flipped) * loss - k * float(np.logaddexp(0.0, loss))
    return min(1.0, math.fsum(np.exp(logs) * -np.expm1(-beyond)))


def k_fold_epsilon(epsilon: float, times: int, delta: float) -> float:
    """Return the smallest ε for which k adaptive releases, each ε-private, are (ε, δ)-private in every case.

    Where :func:`k_fold_delta` is δ; with δ = 0 it is k times as much. Rounded up, to about ten digits.

    Args:
        epsilon: ε of each release, > 0.
        times: k, from 1.
        delta: δ, in [0, 1).

    >>> round(k_fold_epsilon(0.1, 100, 1e-5), 3)
    4.307
    """
    largest = positive("epsilon", epsilon) * count("times", times)
    if delta == 0:
        return largest
    return _least(lambda total: k_fold_delta(epsilon, times, total), probability("delta", delta), largest)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """(ε, δ), and how it was found.

    Attributes:
        epsilon: ε in nats; infinite where there is none.
        delta: δ.
        method: How it was composed, in words.
    """

    epsilon: float
    delta: float
    method: str


@dataclass(frozen=True, slots=True)
class PrivacyLoss:
    """What some releases tell about one of two neighbours, in any order and each depending on those before it.

    Losses are added with ``+``. Which neighbours are meant, whoever adds them has to know: it must be the same ones.

    Attributes:
        mu: μ of all Gaussian releases together: N(0, 1) against N(μ, 1), from 0.
        pure: ``(ε, how often)`` for releases of which nothing is known but that they are ε-private.
        laplace: ``(Δ₁ / scale, how often)`` for releases of one number each, with Laplace noise.
        distance: By how much the probability of any outcome may differ from that of the releases above, as the sampler
            is not exact or a condition may fail: δ grows by ``(1 + e^ε)`` times this.
        unmatched: Probability of what could not have been sent in the other world, as noise beyond some size is never
            drawn: δ grows by this.

    Raises:
        ArgumentError: If a number is out of its range.

    >>> day = PrivacyLoss.gaussian(0.3) + PrivacyLoss.gaussian(0.4)
    >>> day.mu, round(day.guarantee(1e-5).epsilon, 3), day.guarantee(1e-5).method
    (0.5, 1.993, 'exact: Gaussian releases are one')
    """

    mu: float = 0.0
    pure: _Counts = ()
    laplace: _Counts = ()
    distance: float = 0.0
    unmatched: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mu) and self.mu >= 0):
            raise ArgumentError(f"mu must be finite and at least 0, got {self.mu!r}")
        for name, value in (("distance", self.distance), ("unmatched", self.unmatched)):
            if not 0.0 <= value <= 1.0:
                raise ArgumentError(f"{name} must lie between 0 and 1, got {value!r}")
        for loss, times in (*self.pure, *self.laplace):
            positive("epsilon", loss)
            count("how often", times)

    @classmethod
    def gaussian(cls, mu: float) -> PrivacyLoss:
        """Return the loss of Gaussian releases whose total L2 sensitivity is μ standard deviations."""
        return cls(mu=mu)

    @classmethod
    def pure_releases(cls, epsilon: float, times: int = 1) -> PrivacyLoss:
        """Return the loss of so many releases, each ε-private."""
        return cls(pure=((float(epsilon), times),))

    @classmethod
    def laplace_releases(cls, epsilon: float, times: int = 1) -> PrivacyLoss:
        """Return the loss of so many releases of one number with Laplace noise of scale Δ / ε."""
        return cls(laplace=((float(epsilon), times),))

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        """Return the loss of both."""
        return PrivacyLoss(
            mu=math.hypot(self.mu, other.mu),
            pure=_merged((*self.pure, *other.pure)),
            laplace=_merged((*self.laplace, *other.laplace)),
            distance=min(1.0, self.distance + other.distance),
            unmatched=min(1.0, self.unmatched + other.unmatched),
        )

    def repeated(self, times: int) -> PrivacyLoss:
        """Return the loss of so many such rounds, each with noise of its own; of none, nothing."""
        if times == 0:
            return PrivacyLoss()
        k = count("times", times)
        return PrivacyLoss(
            mu=self.mu * math.sqrt(k),
            pure=tuple((loss, n * k) for loss, n in self.pure),
            laplace=tuple((loss, n * k) for loss, n in self.laplace),
            distance=min(1.0, self.distance * k),
            unmatched=min(1.0, self.unmatched * k),
        )

    def of_group(self, records: int) -> PrivacyLoss:
        """Return the loss for neighbours that differ in so many records of one entity."""
        g = count("records", records)
        return PrivacyLoss(
            mu=self.mu * g,
            pure=tuple((loss * g, n) for loss, n in self.pure),
            laplace=tuple((loss * g, n) for loss, n in self.laplace),
            distance=self.distance,
            unmatched=self.unmatched,
        )

    @property
    def zcdp(self) -> float:
        """ρ of zero-concentrated differential privacy: μ² / 2, and ε² / 2 for each other release.

        Source: Bun and Steinke, TCC 2016, arXiv:1605.02065, propositions 1.4 and 1.6. Where ``distance`` is above 0
        it is δ-approximate ρ-zCDP.
        """
        return math.fsum([self.mu**2 / 2, *(n * loss**2 / 2 for loss, n in (*self.pure, *self.laplace))])

    def guarantee(self, delta: float) -> Guarantee:
        """Return the smallest ε that is known for a δ in (0, 1), and how it was found."""
        allowed = probability("delta", delta)
        found = self._ideal(allowed)
        epsilon = found.epsilon
        while self.distance or self.unmatched:
            # What the sampler takes of δ grows with ε: from below, until both agree.
            left = allowed - self._added(epsilon)
            if left <= 0:
                return Guarantee(math.inf, delta, f"{found.method}; the sampler's own error is larger than δ")
            if left == allowed:  # too little to be told from nothing
                break
            found = self._ideal(left)
            if found.epsilon <= epsilon:
                break
            epsilon = found.epsilon * (1.0 + 1e-9)
        return Guarantee(epsilon, delta, found.method)

    def delta(self, epsilon: float) -> float:
        """Return the smallest δ that is known for an ε from 0, in nats."""
        if not epsilon >= 0:
            raise ArgumentError(f"epsilon must be at least 0, got {epsilon!r}")
        return min(1.0, self._ideal_delta(epsilon) + self._added(epsilon))

    def _added(self, epsilon: float) -> float:
        return self.unmatched + self.distance * (1.0 + math.exp(min(epsilon, 700.0)))

    def _ideal(self, delta: float) -> Guarantee:
        match self._kind():
            case "nothing":
                return Guarantee(0.0, delta, NOTHING)
            case "gaussian":
                return Guarantee(gaussian_mu_epsilon(self.mu, delta), delta, GAUSSIAN)
            case "pure":
                ((loss, times),) = self.pure
                return Guarantee(k_fold_epsilon(loss, times, delta), delta, K_FOLD)
            case "laplace":
                ((loss, _),) = self.laplace
                return Guarantee(max(0.0, loss + 2.0 * math.log1p(-delta)), delta, LAPLACE)
        summed = self._summed(delta)
        if not loss_distributions.available():
            return Guarantee(summed, delta, SUM_WITHOUT)
        composed = loss_distributions.distribution_epsilon(self.mu, self.pure, self.laplace, delta)
        # For a tiny δ the distributions, whose tails are cut, may know less.
        return Guarantee(composed, delta, DISTRIBUTIONS) if composed <= summed else Guarantee(summed, delta, SUM)

    def _ideal_delta(self, epsilon: float) -> float:
        match self._kind():
            case "nothing":
                return 0.0
            case "gaussian":
                return gaussian_mu_delta(self.mu, epsilon)
            case "pure":
                ((loss, times),) = self.pure
                return k_fold_delta(loss, times, epsilon)
            case "laplace":
                ((loss, _),) = self.laplace
                return max(0.0, -math.expm1((epsilon - loss) / 2.0))
        if loss_distributions.available():
            return loss_distributions.distribution_delta(self.mu, self.pure, self.laplace, epsilon)
        # The curve of −log δ, of which the largest is sought at which the sum is at most ε.
        low, high = 0.0, 700.0
        while high - low > 1e-9:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._summed(math.exp(-middle)) <= epsilon else (low, middle)
        return math.exp(-low)

    def _kind(self) -> str:
        if not (self.mu or self.pure or self.laplace):
            return "nothing"
        if not (self.pure or self.laplace):
            return "gaussian"
        if not self.mu and not self.laplace and len(self.pure) == 1:
            return "pure"
        if not self.mu and not self.pure and len(self.laplace) == 1 and self.laplace[0][1] == 1:
            return "laplace"
        return "mixed"

    def _summed(self, delta: float) -> float:
        """Return the smallest sum of the parts' ε, for some ways to divide δ among them; Laplace counts as pure."""
        parts: list[Callable[[float], float]] = [
            lambda share, loss=loss, times=times: k_fold_epsilon(loss, times, share)  # type: ignore[misc]
            for loss, times in _merged((*self.pure, *self.laplace))
        ]
        if self.mu:
            parts.append(lambda share: gaussian_mu_epsilon(self.mu, share) if share else math.inf)
        if len(parts) == 1:
            return parts[0](delta)
        # 0 is a share too: a pure ε does without. Beyond four parts the others get the share of the first.
        divisions = (each for each in product((0.0, 0.1, 1.0), repeat=min(len(parts), 4)) if any(each))
        return min(_sum_of(parts, each, delta) for each in divisions)


def _sum_of(parts: list[Callable[[float], float]], weights: tuple[float, ...], delta: float) -> float:
    spread = [*weights, *[weights[0]] * (len(parts) - len(weights))]
    whole = math.fsum(spread)
    return math.fsum(part(delta * weight / whole) for part, weight in zip(parts, spread, strict=True))


def _merged(counted: Iterable[tuple[float, int]]) -> _Counts:
    """Return how often each ε is spent, in the order of ε."""
    found: dict[float, int] = {}
    for loss, times in counted:
        found[loss] = found.get(loss, 0) + times
    return tuple(sorted(found.items()))


def _least(curve: Callable[[float], float], value: float, largest: float) -> float:
    """Return the least argument from 0 at which a falling curve is at most a value, rounded up."""
    low, high = 0.0, largest
    if curve(low) <= value:
        return low
    while high - low > 1e-12 * max(1e-9, high):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (low, middle) if curve(middle) <= value else (middle, high)
    return high
