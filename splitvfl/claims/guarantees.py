"""What a claim about labels comes to as one figure: the AUC that nobody is expected to exceed.

>>> found = guarantee_of(PureDP(0.405465, per="run"), "asymmetric-response")
>>> round(found.auc, 3), found.of_run
(0.6, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import assert_never

from splitvfl.claims.kinds import DetectionError, GaussianDP, Per, PureDP
from splitvfl.errors import ArgumentError

UNCHECKED = ", not checked"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A theorem about a record's own label whose conditions hold in this run.

    Attributes:
        auc: Nobody's AUC is expected to exceed it, from 0.5 to 1.
        scope: Of one message, or of all of the run together.
        source: What guarantees it, by name.
        void: What voids a guarantee of the whole run, by name: what else the partner sees that is made from labels, and
            a class outside splitvfl that claims it.
    """

    auc: float
    scope: Per
    source: str
    void: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.5 <= self.auc <= 1.0:
            raise ArgumentError(f"auc must be from 0.5 to 1, got {self.auc!r}")

    @property
    def of_run(self) -> bool:
        """Whether it bounds what the whole run reveals."""
        return self.scope == "run" and not self.void

    @property
    def why_void(self) -> str:
        """What voids it, as a clause; empty if nothing does."""
        unchecked = [name for name in self.void if name.endswith(UNCHECKED)]
        seen = " and ".join(name for name in self.void if name not in unchecked)
        return "; ".join([*unchecked, *([f"the partner sees {seen}, made from labels"] if seen else [])])


def guarantee_of(claim: GaussianDP | PureDP | DetectionError, source: str, *, void: tuple[str, ...] = ()) -> Guarantee:
    """Return what a claim about the label of a record guarantees.

    Args:
        claim: The claim. Of a residue it says nothing about a label.
        source: Who claims it.
        void: What voids it for a whole run, by name.
    """
    match claim:
        case GaussianDP():
            auc = auc_of_mu(claim.mu)
        case PureDP():
            auc = auc_of_epsilon(claim.epsilon) if claim.auc is None else claim.auc
        case DetectionError():
            auc = auc_of_detection_error(claim.bound) if claim.auc is None else claim.auc
        case _:
            assert_never(claim)
    return Guarantee(max(0.5, auc), claim.per, source, void)


def auc_of_detection_error(error: float) -> float:
    """Return the largest AUC that a least detection error ½(FPR + FNR) allows: 1 − 2L².

    The curve of true against false positives stays below min(1, 1 − 2L + FPR), which encloses this area.

    >>> auc_of_detection_error(0.5), auc_of_detection_error(0.0)
    (0.5, 1.0)
    """
    if not 0.0 <= error <= 0.5:
        raise ArgumentError(f"error must be from 0 to 0.5, got {error!r}")
    return 1.0 - 2.0 * error * error


def auc_of_epsilon(epsilon: float) -> float:
    """Return the largest AUC that pure ε-differential privacy of a label allows: e^ε / (1 + e^ε).

    >>> auc_of_epsilon(0.0)
    0.5
    """
    return 1.0 / (1.0 + math.exp(-epsilon))


def auc_of_randomised_classes(epsilon: float, classes: int) -> float:
    """Return the largest AUC between two of k classes that k-ary randomised response allows.

    A record answers its class with probability p = e^ε / (e^ε + k − 1), and each other with q = p e^−ε. Between two
    classes an answer that is neither tells nothing, which happens with m = (k − 2) q: the AUC is ½ + ½ (p − q) (1 + m).

    >>> round(auc_of_randomised_classes(1.5, 2), 6) == round(auc_of_epsilon(1.5), 6)
    True
    >>> round(auc_of_randomised_classes(1.5, 10), 3)
    0.706
    """
    weight = math.exp(-epsilon)
    truth = 1.0 / (1.0 + (classes - 1) * weight)
    neither = (classes - 2) * truth * weight
    return 0.5 + 0.5 * truth * -math.expm1(-epsilon) * (1.0 + neither)


def auc_of_mu(mu: float) -> float:
    """Return the largest AUC that μ-Gaussian differential privacy of a label allows: Φ(μ / √2).

    >>> auc_of_mu(0.0)
    0.5
    """
    return NormalDist().cdf(mu / math.sqrt(2.0))


def tightest(*guarantees: Guarantee) -> Guarantee | None:
    """Return the guarantee that says most: one of the whole run before one of a message, then the least AUC."""
    return min(guarantees, key=lambda one: (not one.of_run, one.auc), default=None)
