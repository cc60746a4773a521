"""Privacy-loss distributions of `dp-accounting`: the only module that imports it, and only when it is needed.

It comes with ``pip install splitvfl[accounting]``. Without it the :class:`~splitvfl.privacy.composition.PrivacyLoss`
of a mixture is a looser sum, and says so.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

Counted = Sequence[tuple[float, int]]
"""Pairs of an ε and how often it is spent."""

# Losses are rounded up to multiples of this, or of a share of the largest one, so that a distribution stays small.
_INTERVAL = 1e-4
_CELLS = 200_000


def available() -> bool:
    """Return whether dp-accounting is installed."""
    return importlib.util.find_spec("dp_accounting") is not None


def distribution_epsilon(mu: float, pure: Counted, laplace: Counted, delta: float) -> float:
    """Return an ε for a δ in (0, 1): the smallest, up to rounding, which is upwards; infinite where δ is too small.

    Args:
        mu: μ of all Gaussian releases together, from 0.
        pure: ε of releases of which nothing else is known.
        laplace: Sensitivity over scale, in L1, of releases with one Laplace number each.
        delta: δ.
    """
    return float(_composed(mu, tuple(pure), tuple(laplace)).get_epsilon_for_delta(delta))


def distribution_delta(mu: float, pure: Counted, laplace: Counted, epsilon: float) -> float:
    """Return a δ for an ε from 0: the smallest, up to rounding, which is upwards. As :func:`distribution_epsilon`."""
    return float(_composed(mu, tuple(pure), tuple(laplace)).get_delta_for_epsilon(epsilon))


@lru_cache(maxsize=64)
def _composed(mu: float, pure: tuple[tuple[float, int], ...], laplace: tuple[tuple[float, int], ...]) -> Any:
    # Slow to import, and an extra of the package.
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as library

    # Gaussian losses beyond ten standard deviations are rare enough to be counted as infinite.
    largest = mu**2 / 2 + 10 * mu + math.fsum(loss * times for loss, times in (*pure, *laplace))
    grid = {"value_discretization_interval": max(_INTERVAL, largest / _CELLS)}
    parts = [
        library.from_privacy_parameters(common.DifferentialPrivacyParameters(loss, 0.0), **grid).self_compose(times)
        for loss, times in pure
    ]
    parts += [library.from_laplace_mechanism(1.0 / loss, **grid).self_compose(times) for loss, times in laplace]
    if mu:
        parts.append(library.from_gaussian_mechanism(1.0 / mu, **grid))
    whole, *rest = parts
    for part in rest:
        whole = whole.compose(part)
    return whole
