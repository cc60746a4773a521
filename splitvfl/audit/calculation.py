"""What a calculation says of a claim: of mechanisms whose law is known, from the settings that they really have."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from splitvfl.claims import Claim, Gaussian, GaussianDP, PureDP
from splitvfl.claims.asking import is_ours
from splitvfl.defenses import (
    GaussianIR,
    GaussianTargets,
    Isotropic,
    LaplaceResidue,
    MultiplicativeLaplaceResidue,
    RandomisedResponse,
    RecordGaussian,
)
from splitvfl.defenses.corrected_response import CorrectedResponse
from splitvfl.errors import from_zero, probability
from splitvfl.learning.gaussian_noise import gaussian_delta, gaussian_sigma
from splitvfl.privacy.laplace import multiplicative_laplace_epsilon

# Claims and calculations are sums and quotients of the same numbers, in another order.
ROUNDING = 1e-9
_SPAN = 2.0  # of clipped residues


class Calculated(NamedTuple):
    """What a calculation finds.

    Attributes:
        value: In the unit of the claim.
        by: How, in a few words.
    """

    value: float
    by: str


class GaussianVerdict(NamedTuple):
    """What a calculation says of one Gaussian release.

    Attributes:
        verdict: ``"proven"``, ``"not covered"`` or ``"violated"``.
        delta: The δ that it really has at the claimed ε.
        why: In a sentence.
    """

    verdict: Literal["proven", "not covered", "violated"]
    delta: float
    why: str


def audit_gaussian(
    epsilon: float, delta: float, *, sigma: float, sensitivity: float, unmatched: float = 0.0, classic: bool = False
) -> GaussianVerdict:
    """Return whether Gaussian noise of that standard deviation has the (ε, δ) that is claimed of it.

    Args:
        epsilon: ε of the claim in nats, > 0.
        delta: δ of the claim, in (0, 1).
        sigma: Standard deviation of the noise.
        sensitivity: L2 sensitivity of all that it is added to.
        unmatched: What is added to δ besides, from 0: that noise beyond some size is never drawn, say.
        classic: Whether the claim rests on the textbook's ``σ = Δ √(2 ln(1.25/δ)) / ε``. Its theorem ends at ε = 1:
            beyond it such a claim may be true, and is not covered.

    >>> audit_gaussian(10.0, 0.01, sigma=math.sqrt(2 * math.log(125)) / 10, sensitivity=1.0, classic=True).verdict
    'violated'
    """
    true = min(1.0, gaussian_delta(sigma, epsilon, sensitivity=sensitivity) + from_zero("unmatched", unmatched))
    promised = probability("delta", delta)
    if true > promised * (1.0 + 1e-6):
        needed = gaussian_sigma(epsilon, promised, sensitivity=sensitivity)
        found = f"δ = {true:.3g}" if true < 1.0 else "no δ below 1, so that the statement is void"
        why = (
            f"At ε = {epsilon:g} noise of σ = {sigma:.4g} has {found}, not {promised:g}; that takes σ = "
            f"{needed:.4g} (gaussian_sigma) or more."
        )
        return GaussianVerdict("violated", true, why)
    if classic and epsilon >= 1.0:
        why = (
            f"The textbook's noise is proven for ε below 1, and the claim is of {epsilon:g}. Its δ is {true:.3g} by "
            "the exact formula: claim that one (gaussian_sigma)."
        )
        return GaussianVerdict("not covered", true, why)
    return GaussianVerdict("proven", true, f"At ε = {epsilon:g} its δ is {true:.3g}, by the exact formula.")


def calculated(defense: object, claim: Claim, *, receivers: int = 1, epochs: int = 1) -> Calculated | None:
    """Return what is known of a claim by calculation: the ε or μ of the mechanism with the settings that it has.

    Of built-in defenses alone, and of classes made from them that leave ``__call__`` as it is.

    Args:
        defense: The defense.
        claim: What it claims.
        receivers: Passive parties that get a message together.
        epochs: Messages of a record in the run.
    """
    if not _calls_built_in(defense):
        return None
    draws = 1 if getattr(defense, "one_draw", False) else receivers
    releases = draws * (epochs if getattr(claim, "per", "message") == "run" else 1)
    match claim:
        case PureDP():
            return _pure(defense, claim, releases)
        case GaussianDP():
            return _gaussian(defense, claim, epochs)
        case Gaussian():
            return _rows(defense, claim)
        case _:
            return None


def _calls_built_in(defense: object) -> bool:
    """Return whether the ``__call__`` of a defense is written in splitvfl, whatever it calls."""
    author = next((base for base in type(defense).__mro__ if "__call__" in vars(base)), type(defense))
    return is_ours(author) and "__call__" not in getattr(defense, "__dict__", {})


def _pure(defense: object, claim: PureDP, releases: int) -> Calculated | None:
    match defense:
        case MultiplicativeLaplaceResidue():
            one = multiplicative_laplace_epsilon(defense.epsilon, defense.b1, defense.b2, mode=defense.mode)
            return Calculated(releases * one, _times("largest log ratio of its densities", releases))
        case LaplaceResidue():
            moves = defense.label_moves if claim.unit == "label of a record" else _SPAN
            return Calculated(releases * moves / defense.scale, _times("what moves over the scale", releases))
        case CorrectedResponse():
            return Calculated(defense.epsilon, "largest log ratio of an answer's probabilities")
        case RandomisedResponse():
            return Calculated(defense.epsilon, "log ratio of truth to any lie")
        case _:
            return None


def _gaussian(defense: object, claim: GaussianDP, epochs: int) -> Calculated | None:
    match defense:
        case GaussianTargets():
            spread = 1.0 if defense.remembered or claim.per == "message" else math.sqrt(epochs)
            return Calculated(spread * defense.sensitivity / defense.sigma, "distance of two labels over σ")
        case RecordGaussian():
            spread = math.sqrt(epochs) if claim.per == "run" else 1.0
            return Calculated(spread * defense.step_mu, "change of a row over its σ")
        case _:
            return None


def _rows(defense: object, claim: Gaussian) -> Calculated | None:
    if claim.bound is None:
        return Calculated(defense.sigma, "σ") if isinstance(defense, Isotropic) and defense.sigma is not None else None
    if isinstance(defense, GaussianIR):
        return Calculated(2.0 * defense.clip / defense.sigma, "distance of opposite rows at the clip over σ")
    return None


def _times(what: str, releases: int) -> str:
    return what if releases == 1 else f"{what}, {releases} releases"
