"""Laplace noise on residues, so that no single one tells a label."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from splitvfl.claims import PureDP
from splitvfl.defenses.claim_words import GENERATOR, PREDICTION, ROUNDED_NOISE
from splitvfl.defenses.residue_release import (
    CONDITIONS,
    MANY_RELEASES,
    ResidueNoise,
    checked_epsilon,
    largest_with_laplace,
    residues_of,
    sent_for,
)
from splitvfl.hooks import Secrets
from splitvfl.privacy.laplace import laplace_scale


class LaplaceResidue(ResidueNoise):
    """Send every residue with Laplace noise of scale 2/ε.

    A residue ``r = y − f``, clipped to [−1, 1], becomes ``r + Lap(2/ε)``. Any two residues of a record are at most 2
    apart, so that one release is ε-differentially private in the residue. If the partner knows the prediction f, only
    the label is left to tell, which moves the residue by 1: one release is ε/2-differentially private in the label,
    and read right with probability ``1 − e^(−ε/4) / 2`` (:func:`~splitvfl.privacy.laplace_label_success`).

    **Noise is fresh in every epoch, and adds up**: E releases cost E times as much, and no attack on them is right more
    often than ``e^x / (1 + e^x)``, x = E ε/2. At ε = 1 adding up log ratios
    (:func:`~splitvfl.attacks.additive_noise_llr`) reads .61 of all labels after one epoch, .77 after 10 and .90 after
    30. On labels of two classes a memoised response of the same ε over the whole run is as good or better: what this
    defense sends can be computed from its answers.

    Behind a label defense that corrects targets for its lies (``memoised-response``) a label moves the residue by more
    than 1, and after the clip by 2 at most: so much is charged, up to ε for a label.

    It is drawn once for all passive parties. A promise over a run needs more than one over a release: where the label
    party learns its own columns or intercept from exact residues, one label moves the later residues of every record.

    Logs ``power`` and ``noise_to_signal`` of the row, ``epsilon_spent`` (by label, of the record that was sent most
    often) and ``label_success_bound``, what any attack on that many releases can reach.

    Cost: not measured here. Time: one number for each record.

    In a file: ``defenses: [{name: laplace-residue, epsilon: 1.0}]``

    Also called: additive mechanism.

    Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, the additive mechanism; Dwork
    and Roth, *The Algorithmic Foundations of Differential Privacy*, theorem 3.6.

    Args:
        epsilon: ε of one release by residue in nats, from 10^-6 to 10^6.

    Raises:
        ArgumentError: If ε is out of range.
    """

    name: ClassVar[str] = "laplace-residue"
    shifts_scores: ClassVar[str] = ""

    def __init__(self, *, epsilon: float) -> None:
        self.epsilon = checked_epsilon(epsilon)
        self.scale = laplace_scale(epsilon)
        super().__init__()

    @property
    def label_epsilon(self) -> float:
        """ε of one release in the label of a record, whose prediction is known."""
        return self.epsilon * self.label_moves / 2.0

    def claims(self) -> tuple[PureDP, ...]:
        """Return what is claimed of one release: by label, and by residue."""
        words: dict[str, Any] = {
            "mechanism": f"Laplace noise of scale 2/ε on each residue, clipped to [−1, 1], of which a label moves "
            f"{self.label_moves:.3g}",
            "conditions": CONDITIONS,
            "not_covered": (MANY_RELEASES, PREDICTION, ROUNDED_NOISE, GENERATOR),
        }
        return (
            PureDP(self.label_epsilon, "label of a record", **words),
            PureDP(self.epsilon, "residue of a record", **words),
        )

    def largest_residue(self, residues: int) -> float:
        """Return a size that so many residues, as sent, exceed in one run of 10^8."""
        return largest_with_laplace(self.scale, residues)

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
        residues = residues_of(gradient, self.name)
        noisy = secrets.add_laplace(residues, self.scale)
        self.log_spent(secrets)
        return sent_for(noisy, gradient, secrets, scale=self.scale)
