"""Label attack on multiplicative Laplace noise: log-likelihood ratios of what was sent, added up over epochs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splitvfl.attacks.additive_llr import check_releases
from splitvfl.privacy import MultiplicativeMode, checked_bounds, checked_mode
from splitvfl.privacy.checking import positive

# What was clipped crosses in float32, as part of a mean: it is at the bound up to a few roundings.
_ROUNDING = 1e-5


def multiplicative_noise_llr(
    noisy: Tensor, predictions: Tensor, epsilon: float, *, b1: float, b2: float, mode: MultiplicativeMode
) -> Tensor:
    """Return each record's log-likelihood ratio of label 1 against label 0, summed over epochs.

    The residue is 1 − f under one label and −f under the other; both are kept away from 0 as the mechanism does it.
    What was sent is compared by densities inside (−b2, b2), and by the probabilities of ±b2 at them. It works on the
    mechanisms of mean 0 too, whose signs tell nothing: through the residue's size, unless f = ½.

    Source: this project's, after the aggregation attack of *Residue-based Label Protection Mechanisms in Vertical
    Logistic Regression*.

    Args:
        noisy: ``(E, n)``, what was sent of n records in E epochs, floating point.
        predictions: ``(E, n)``, f in [0, 1].
        epsilon: The nominal ε of the mechanism, > 0.
        b1: Its smallest size of a residue, in (0, 1].
        b2: Its largest size of what is sent, > 0.
        mode: Which mechanism, see :class:`~splitvfl.defenses.MultiplicativeLaplaceResidue`.

    Returns:
        ``(n,)``, float64; 0 says nothing.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, or a parameter is outside its range.
    """
    check_releases(noisy, predictions)
    inner, outer = checked_bounds(b1, b2)
    scale = 2.0 * outer / (inner * positive("epsilon", epsilon))
    known = checked_mode(mode)
    z, f = noisy.double().clamp(-outer, outer), predictions.double()
    under = [_kept(residue, inner, known) for residue in (1.0 - f, -f)]
    centre = 1.0 if known == "centred_at_one" else 0.0
    one, zero = (_log_likelihood(z, kept, centre, outer, scale) for kept in under)
    ratios: Tensor = (one - zero).sum(dim=0)
    return ratios


def _kept(residue: Tensor, inner: float, mode: MultiplicativeMode) -> Tensor:
    """Return residues kept away from 0: as printed on the positive side, else each on its own."""
    sign = torch.where(residue < 0, -1.0, 1.0).double()
    least = torch.full_like(residue, inner) if mode == "as_printed" else sign * inner
    return torch.where(residue.abs() <= inner, least, residue)


def _log_likelihood(z: Tensor, kept: Tensor, centre: float, outer: float, scale: float) -> Tensor:
    """Return the log of the density of z, or of the probability of the bound at which it is, but for a constant.

    The printed mechanism sends both tails to +b2, twice the probability of one: a constant, as they are alike.
    """
    width = kept.abs() * scale
    location = centre * kept
    inside = -width.log() - (z - location).abs() / width
    sign = torch.where(z < 0, -1.0, 1.0).double()
    beyond = _log_tail((outer - sign * location) / width)
    return torch.where(z.abs() >= outer * (1.0 - _ROUNDING), beyond, inside)


def _log_tail(distance: Tensor) -> Tensor:
    """Return the log probability that a standard Laplace number is at least so large."""
    near = torch.log1p(-0.5 * distance.clamp(max=0.0).exp())
    return torch.where(distance < 0, near, -distance - math.log(2.0))
