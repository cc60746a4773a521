"""Label attack on multiplicative Laplace noise: log-likelihood ratios of what was sent, added up over epochs."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.additive_llr import check_releases
from splitvfl.attacks.noisy_residues import NoisyResidues
from splitvfl.errors import positive
from splitvfl.hooks import View
from splitvfl.privacy.laplace import MultiplicativeMode, checked_bounds, checked_mode

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
    mechanism = _Mechanism(epsilon, b1, b2, mode)
    one, zero = mechanism.likelihoods(noisy.double(), predictions.double())
    ratios: Tensor = (one - zero).sum(dim=0)
    return ratios


class _Mechanism:
    """The mechanism whose output is to be read; its arguments are checked."""

    def __init__(self, epsilon: float, b1: float, b2: float, mode: MultiplicativeMode) -> None:
        self._inner, self._outer = checked_bounds(b1, b2)
        self._scale = 2.0 * self._outer / (self._inner * positive("epsilon", epsilon))
        self._mode = checked_mode(mode)
        self._centre = 1.0 if self._mode == "centred_at_one" else 0.0

    def likelihoods(self, noisy: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log likelihoods under label 1 and under label 0."""
        z = noisy.clamp(-self._outer, self._outer)
        one, zero = (
            _log_likelihood(z, _kept(residue, self._inner, self._mode), self._centre, self._outer, self._scale)
            for residue in (1.0 - predictions, -predictions)
        )
        return one, zero


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


class MultiplicativeLLRAttack:
    """Score every record by the log-likelihood ratio of its label, from all multiplied residues that came of it.

    It knows the mechanism and its settings (:class:`~splitvfl.defenses.MultiplicativeLaplaceResidue`). The prediction
    that residues are of, and what is summed over the run, are as for :class:`~splitvfl.attacks.AdditiveLLRAttack`; so
    is what it does not promise. Ratios are those of :func:`multiplicative_noise_llr`: in the modes of mean 0 a sign
    tells nothing, and what is read is the size of the residue, f or 1 − f. Nothing is read there while f is ½.

    In a file: ``attacks: [{name: multiplicative-llr, epsilon: 5.0, b1: 0.5, b2: 1.0}]``

    Source: this project's, after the aggregation attack of *Residue-based Label Protection Mechanisms in Vertical
    Logistic Regression*.

    Args:
        epsilon: The nominal ε of the mechanism, > 0.
        b1: Its smallest size of a residue, in (0, 1].
        b2: Its largest size of what is sent, > 0.
        mode: Which mechanism.
        shift: The label party's part of the logits where it is known; ``None``: fitted.

    Raises:
        ArgumentError: If a setting is outside its range.
    """

    name: ClassVar[str] = "multiplicative-llr"
    explanation: ClassVar[str] = (
        "Knows how residues were multiplied with noise and, but for one number that it fits, the model's prediction. "
        "It then adds up over all epochs how much likelier what was sent is under one label than under the other."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "activation"})
    cumulative: ClassVar[bool] = True
    signed: ClassVar[bool] = True

    def __init__(
        self,
        *,
        epsilon: float,
        b1: float,
        b2: float,
        mode: MultiplicativeMode = "centred_at_one",
        shift: float | None = None,
    ) -> None:
        self._run = NoisyResidues(self.name, _Mechanism(epsilon, b1, b2, mode).likelihoods, shift)

    @property
    def shift(self) -> float:
        """The label party's part of the logits, as given or as last fitted."""
        return self._run.shift

    def __call__(self, view: View, /) -> Tensor:
        """Return each record's ratio of all that came of it, this release included.

        Args:
            view: Its ``gradient`` and ``activation``, each ``(n, 1)``, and ``ids`` are read.

        Returns:
            ``(n,)``, float64; 0 is undecided.

        Raises:
            HookError: If the cut is wider than 1.
        """
        return self._run.see(view)

    def state_dict(self) -> dict[str, Any]:
        """Return what steps told of the shift, and the ratios."""
        return self._run.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._run.load_state_dict(state)
