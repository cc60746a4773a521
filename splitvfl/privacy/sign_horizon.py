"""Number of steps of vertical logistic regression in which a residue's sign is provably the label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import scipy

from splitvfl.errors import ArgumentError, shown

# The logit at which a residue changes its sign; the minimax cubic crosses at 3.209. The others have no such logit.
_CROSSING: Final[Mapping[str, float | None]] = {
    "taylor": 2.0,
    "minimax": 3.2,
    "piecewise": None,
    "exact": None,
}

# The ratio of two logarithms is right to a few roundings; a step that is proven only by those is not counted.
_ROUNDINGS = 1e-12


def sign_attack_horizon(
    eta: float, margin: float, *, approximation: str = "taylor", radius: float = 1.0
) -> int | float:
    """Return T: in steps 1 to T of gradient descent, −sign(f) of every record is its label.

    ``T = ceil( ln((2 + c) / (2 + margin)) / ln(1 + eta radius² / 4) )``, with c = 2 (Taylor) or 3.2 (minimax), and 0
    where margin ≥ c. No step can make the largest logit M grow faster than ``2 + M → (1 + eta radius²/4) (2 + M)``. For
    exact and piecewise residues −sign(f) never expires; a piecewise residue of 0 carries no label.

    A lower bound: labels may leak for longer. It does not hold under noise on the residues
    (:func:`~splitvfl.privacy.label_attack_success`), nor with another optimiser than plain gradient descent or a lasso
    penalty.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the validity of the residue solving attack, in the
    form for rows of norm up to ``radius``.

    Args:
        eta: Learning rate, > 0.
        margin: Largest absolute logit before the first step, ≥ 0: 0 after zero initialisation, else
            :func:`initial_margin`.
        approximation: Whose residues are solved: ``taylor``, ``minimax``, ``piecewise`` or ``exact``.
        radius: Largest Euclidean norm of a record's row over all parties, the constant column of a trained intercept
            included, > 0.

    Returns:
        The number of steps, an ``int`` ≥ 0; ``math.inf`` for exact and piecewise.

    Raises:
        ArgumentError: If an argument is out of its range or not finite.

    >>> sign_attack_horizon(0.01, 0.0)
    278
    """
    _check(eta=eta, radius=radius)
    if not (math.isfinite(margin) and margin >= 0):
        raise ArgumentError(f"expected a finite margin of at least 0, got {margin}")
    if approximation not in _CROSSING:
        raise ArgumentError(f"approximation must be one of {', '.join(_CROSSING)}, got {shown(approximation)}")
    crossing = _CROSSING[approximation]
    if crossing is None:
        return math.inf
    if margin >= crossing:
        return 0
    growth = math.log1p(eta * radius * radius / 4)
    steps = math.log((2 + crossing) / (2 + margin)) / growth if growth > 0 else math.inf
    # The first step comes before any growth.
    return max(1, math.ceil(steps * (1 - _ROUNDINGS))) if math.isfinite(steps) else math.inf


def initial_margin(tau: float, radius: float, records: int, probability: float) -> float:
    """Return a bound on every record's first logit, from what is agreed upon: the attacker's own margin.

    ``tau · radius · Φ⁻¹(1 − probability / (2 records))``: with weights from N(0, tau²), no logit of ``records`` rows of
    norm up to ``radius`` is larger, except with that probability. Nothing of another party's columns or weights is
    needed. It is nothing for other than normal initialisations.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, with a union bound over the records.

    Args:
        tau: Standard deviation of the first weights, the largest of the parties', ≥ 0; 0 after zero initialisation.
        radius: As :func:`sign_attack_horizon`.
        records: Number of records that are trained on, at least 1.
        probability: Of the bound's failure, in (0, 1).

    Returns:
        The margin, in the unit of the logits.

    Raises:
        ArgumentError: If an argument is out of its range or not finite.

    >>> round(initial_margin(0.1, 1.0, 1000, 0.05), 4)
    0.4056
    """
    _check(radius=radius)
    if not (math.isfinite(tau) and tau >= 0):
        raise ArgumentError(f"expected a finite standard deviation tau of at least 0, got {tau}")
    if records < 1 or not 0 < probability < 1:
        raise ArgumentError(f"expected at least 1 record and a probability in (0, 1), got {records} and {probability}")
    # The lower tail: 1 − p would round to 1 for small p.
    return tau * radius * -float(scipy.special.ndtri(probability / (2 * records)))


def _check(**positive: float) -> None:
    for name, value in positive.items():
        if not (math.isfinite(value) and value > 0):
            raise ArgumentError(f"expected a finite {name} above 0, got {value}")
