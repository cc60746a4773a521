"""Residues times Laplace noise, within bounds."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from splitvfl.claims import PureDP
from splitvfl.defenses.claim_words import FLOATING_POINT, GENERATOR, PREDICTION
from splitvfl.defenses.residue_release import (
    CONDITIONS,
    MANY_RELEASES,
    ResidueNoise,
    checked_epsilon,
    residues_of,
    sent_for,
)
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets
from splitvfl.privacy.laplace import MultiplicativeMode, checked_mode, multiplicative_laplace_epsilon

# What is sent is rounded to float32, and on a grid far finer than the noise.
_ROUNDED = 1e-3


class MultiplicativeLaplaceResidue(ResidueNoise):
    """Send every residue times Laplace noise, kept away from 0 before and within bounds after.

    A residue ``r = y − f``, clipped to [−1, 1], is kept at least ``b1`` from 0, multiplied by Laplace noise of scale
    ``λ = 2 b2 / (b1 ε)``, and clipped at ``b2``:

    - ``"centred_at_one"``, the default: ``r' (1 + λ L)`` with signs kept at both bounds. The only one that learns.
    - ``"sign_preserving"``: ``r' λ L``. Noise that is as often negative as positive takes every sign away: what is sent
      has mean 0 whatever the residue, and nothing is learned (test AUC about .5).
    - ``"as_printed"``: likewise, with small residues put to +b1, and both tails to +b2. Large residues of either sign
      are clipped more often, so that what is learned is the wrong way round (test AUC below .5).

    **The nominal ε is not the true one.** The true one, ``true_epsilon``, is what is claimed, logged and printed: at
    b1 = .1 and nominal ε = .01 it is 2.3. Any two residues of a record are apart by it; the label alone, its prediction
    known, by no more. :func:`~splitvfl.privacy.choose_multiplicative_bounds` finds bounds for a given true one.

    Noise is fresh in every epoch, and adds up: E releases cost E times as much. It is drawn once for all passive
    parties. What is said of runs in :class:`~splitvfl.defenses.LaplaceResidue` holds here too.

    Logs ``power`` and ``noise_to_signal`` of the row, ``epsilon_spent`` of the record that was sent most often, and
    ``label_success_bound``, what any attack on that many releases can reach.

    Cost: not measured here. Time: one number for each record.

    In a file: ``defenses: [{name: multiplicative-laplace-residue, epsilon: 5.0, b1: 0.5, b2: 1.0}]``

    Also called: multiplicative mechanism.

    Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, the multiplicative mechanism,
    corrected: its noise of mean 0 teaches nothing, and the proof of its ε leaves out the factor ``1 / |r|``.

    Args:
        epsilon: The nominal ε, from 10^-6 to 10^6, which fixes the scale of the noise.
        b1: Smallest size of a residue before noise, from 10^-6 to 1.
        b2: Largest size of what is sent, from 10^-6 to 10^6, in the unit of residues.
        mode: Which mechanism.

    Raises:
        ArgumentError: If a setting is outside its range.
    """

    name: ClassVar[str] = "multiplicative-laplace-residue"
    shifts_scores: ClassVar[str] = "residues are kept away from 0, which draws what is learned of them towards 1/2"

    def __init__(self, *, epsilon: float, b1: float, b2: float, mode: MultiplicativeMode = "centred_at_one") -> None:
        nominal = checked_epsilon(epsilon)
        self.true_epsilon = multiplicative_laplace_epsilon(nominal, b1, b2, mode=mode)
        if not self.true_epsilon > 0.0:
            raise ArgumentError(
                f"b1 = {b1:g} with mode {mode} sends noise alone, of no residue at all: take a smaller b1, or mode "
                "centred_at_one"
            )
        self.epsilon, self.b1, self.b2, self.mode = nominal, float(b1), float(b2), checked_mode(mode)
        self.scale = 2.0 * b2 / (b1 * nominal)
        super().__init__()

    @property
    def label_epsilon(self) -> float:
        """ε of one release in the label of a record: the true one."""
        return self.true_epsilon

    @property
    def notes(self) -> tuple[str, ...]:
        """That its true ε is larger than the nominal one, where it is; and what the releases have come to."""
        spent = super().notes
        if self.true_epsilon <= self.epsilon:
            return spent
        return (
            f"{self.name}: one release costs ε = {self.true_epsilon:.3g}, more than the nominal {self.epsilon:.3g} of "
            "its setting; choose_multiplicative_bounds finds bounds for a true one.",
            *spent,
        )

    def claims(self) -> tuple[PureDP, ...]:
        """Return what is claimed of one release: by label and by residue, the same."""
        nominal = (f"The nominal ε of its setting, {self.epsilon:g}.",) if self.true_epsilon > self.epsilon else ()
        words: dict[str, Any] = {
            "mechanism": f"residues times Laplace noise ({self.mode}), at least b1 before and at most b2 after",
            "conditions": CONDITIONS,
            "not_covered": (*nominal, MANY_RELEASES, PREDICTION, FLOATING_POINT, GENERATOR),
        }
        return (
            PureDP(self.true_epsilon, "label of a record", **words),
            PureDP(self.true_epsilon, "residue of a record", **words),
        )

    def largest_residue(self, residues: int) -> float:
        """Return the size that no residue, as sent, exceeds, however many there are: b2, and what rounding adds."""
        return self.b2 * (1.0 + _ROUNDED)

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the noisy gradient.

        Args:
            gradient: ``(n, 1)``, float32 or wider: −r / n.
            secrets: The sender's; its generator, ids and log are used, and labels to check what they are.

        Returns:
            A new tensor like ``gradient``.

        Raises:
            PrivacyError: If the cut is wider than 1, a residue is NaN or infinite, or labels are not 0 and 1.
        """
        self.check_labels(secrets)
        kept = self._kept(residues_of(gradient, self.name))
        centre = 1.0 if self.mode == "centred_at_one" else 0.0
        sent = self._bounded(kept * (centre + self.scale * secrets.laplace(len(kept))))
        self.log_spent(secrets)
        return sent_for(sent, gradient, secrets, scale=self.b1 * self.scale)

    def _kept(self, residues: Tensor) -> Tensor:
        """Return residues of size at least b1: as printed on the positive side, else each on its own."""
        own = torch.where(residues < 0, -self.b1, self.b1).double()
        least = torch.full_like(residues, self.b1) if self.mode == "as_printed" else own
        return torch.where(residues.abs() <= self.b1, least, residues)

    def _bounded(self, sent: Tensor) -> Tensor:
        if self.mode == "as_printed":
            return torch.where(sent.abs() >= self.b2, self.b2, sent)
        return sent.clamp(-self.b2, self.b2)
