"""What a guarantee allows: how many of a hundred labels anybody gets right at the most, and the largest AUC.

A label is one of two values of even odds, everything else is known, and nobody knows more than the messages tell. All
formulas are of that case: a partner who predicts labels from columns of its own gets more of them right, and no
guarantee about messages says how many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import msgspec

from splitvfl.claims import auc_of_epsilon, auc_of_mu
from splitvfl.errors import ArgumentError, positive
from splitvfl.privacy.gaussian_dp import gaussian_mu

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that anybody learns, where a guarantee holds.

    Attributes:
        right: Share of labels of even odds that anybody gets right at the most, from ½ to 1.
        auc: Largest AUC between records that are alike in all else; ``None``: not said.
        quantity: ``"ε"``, ``"μ"`` or ``"detection error"``.
        value: Of the guarantee.
        by: What it follows from, in a sentence.
        verdict: What the audit found of it; empty: it was not claimed.
    """

    right: float
    auc: float | None
    quantity: str
    value: float
    by: str
    verdict: str = ""


def plain(found: Any) -> Any:
    """Return dataclasses and what is in them as JSON has it; an infinite number is ``null``."""
    return msgspec.json.decode(msgspec.json.encode(found))


def pure_ceiling(epsilon: float, by: str) -> Ceiling:
    """Return what ε-differential privacy allows: ``e^ε / (1 + e^ε)``, of labels that are right and of the AUC.

    Both worlds are told apart no better than the two answers of randomised response, whose ROC has that area.

    Args:
        epsilon: ε in nats, > 0.
        by: What it follows from, in a sentence.

    >>> round(pure_ceiling(0.5, "").right, 3)
    0.622
    """
    right = auc_of_epsilon(positive("epsilon", epsilon))
    return Ceiling(right, right, "ε", epsilon, by)


def gaussian_ceiling(mu: float, by: str, *, unmatched: float = 0.0) -> Ceiling:
    """Return what μ-Gaussian differential privacy allows: ``Φ(μ/2)`` of the labels right, and an AUC of ``Φ(μ/√2)``.

    Source: Dong, Roth and Su, arXiv:1905.02383, equation (6).

    Args:
        mu: μ, from 0.
        by: What it follows from, in a sentence.
        unmatched: Probability of what the other world cannot lead to, which tells everything, from 0.

    >>> found = gaussian_ceiling(0.5067, "")
    >>> round(found.right, 3), round(found.auc, 3)
    (0.6, 0.64)
    """
    if not mu >= 0.0:
        raise ArgumentError(f"mu must be at least 0, got {mu!r}")
    right, auc = _NORMAL.cdf(mu / 2.0), auc_of_mu(mu)
    return Ceiling(min(1.0, right + unmatched), min(1.0, auc + unmatched), "μ", mu, by)


def error_ceiling(bound: float, by: str, *, auc: float | None = None) -> Ceiling:
    """Return what a least detection error L allows: ``1 − L`` of the labels right.

    Args:
        bound: L, from 0 to ½.
        by: What it follows from, in a sentence.
        auc: Largest AUC, where that is promised too.
    """
    return Ceiling(1.0 - bound, auc, "detection error", bound, by)


def right_allowed(quantity: str, value: float | None) -> float | None:
    """Return the share of labels, or of two rows, of even odds that anybody gets right where a claim holds.

    Claims of ε and δ are of Gaussian noise here, whose μ is the one that has this ε at this δ.

    Args:
        quantity: As :class:`~splitvfl.audit.ClaimAudit` has it: ``"ε"``, ``"μ"``, ``"detection error"``, ``"δ at ε 1"``
            or ``"ε at δ 1e-05"``.
        value: Its value; ``None``: none.

    Returns:
        From ½ to 1; ``None`` of other quantities, and where there is no value.

    >>> round(right_allowed("ε", 0.5), 3), right_allowed("norm", 1.0), round(right_allowed("δ at ε 1", 1e-5), 3)
    (0.622, None, 0.553)
    """
    if value is None or math.isnan(value):
        return None
    name, _, given = quantity.partition(" at ")
    match name:
        case "μ":
            return gaussian_ceiling(max(0.0, value), "").right
        case "detection error":
            return error_ceiling(value, "").right
        case "ε" if not given:
            return auc_of_epsilon(value)
        case "ε" | "δ":
            other = float(given.split()[1])
            epsilon, delta = (value, other) if name == "ε" else (other, value)
            if not (epsilon > 0.0 and 0.0 < delta < 1.0):
                return 1.0 if delta >= 1.0 else None
            return gaussian_ceiling(gaussian_mu(epsilon=epsilon, delta=delta), "").right
        case _:
            return None
