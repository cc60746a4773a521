"""Randomised response that lies mostly about the rarer class, asked once per record and remembered."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from splitvfl.claims import DetectionError, PureDP
from splitvfl.defenses.corrected_response import Corrected, CorrectedResponse, Flips
from splitvfl.defenses.remembered import Answers
from splitvfl.defenses.setting_checks import check_detection_error
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets

Rare = Literal["positive", "negative"]


class AsymmetricResponse(CorrectedResponse):
    """Train on labels of which the rarer class is mostly hidden among the other, drawn once: a bound for the whole run.

    With ``δ = 1 − 2L`` and ``s = δ / (1 − e^−ε)``, a record of the rarer class answers truthfully with probability
    ``s``, and one of the common class lies with probability ``s·e^−ε``. The loss is computed with the corrected target
    ``t = (ỹ − b) / δ`` (a, b: the probabilities that a positive and a negative label is flipped), for which
    ``E[t | y] = y``: the expected gradient at given weights is that of the true labels.

    Why: the noise of the targets has variance ``b(1 − b)/δ²`` on negatives and ``a(1 − a)/δ²`` on positives, and the
    learner pays its average over the records. Of all (a, b) with ``1 − a − b = δ`` and privacy loss at most ε, these
    have the least: the average is concave in b, so it is least at an end of the feasible interval, and on the rarer
    class lies cost less. With 7 % positives, ``L = .4`` and ``ε = 3`` it is .5, where the symmetric response of that L
    has 6.0 (its ε is .41: what is bought with the larger ε is the eleventh part of the variance). With ``epsilon=None``
    it is optimal among unbiased answers under an AUC promise; no more (:mod:`splitvfl.defenses.least_variance`, with
    the proof). Remembered Gaussian targets with the same promise have 7.8.

    What it promises, over all epochs together, towards everybody who sees anything that is computed from the targets
    (gradients, weights, scores), for labels drawn and answered independently:

    - every attacker's detection error ½(FPR + FNR) on a record, given its columns and all other records, is at least
      L, because the answers' total variation is δ; between a positive and a negative record that are alike in all
      else, every attacker's AUC is at most ``1 − L``;
    - each label is ε locally differentially private; with ``epsilon=None`` there is no such bound: a share δ of the
      rarer class is given away with certainty, and only the average attacker is held to L.

    What it does not: the AUC over *all* pairs can be far higher than 1 − L, because gradients also tell the model's own
    prediction of a record, as under every other defense here (:class:`~splitvfl.attacks.readout.ReadoutAttack`):
    whoever can predict a label still can. Void it: the same person under two ids, who answers twice; a second run,
    which draws anew; and whatever the partner sees that is made from true labels: early stopping or best weights by
    them, class weights, batches that are drawn by label. It rests on the secrecy of the answers kept here and of the
    keystream; a fixed seed is for experiments.

    Logs ``epsilon`` (not where it is infinite) and ``detection_error_bound``.

    Cost: on digits a test AUC of .955 for .997 undefended (private top: .982). Time: about 1 to 1.5 ms more
    in a step of about 2 ms, as for most defenses.

    In a file: ``defenses: [{name: asymmetric-response, detection_error: 0.4}]``

    Source: this project's, after Warner, JASA 60 (1965), asymmetric flips; unbiased targets of least variance as in
    Badanidiyuru et al., *Optimal Unbiased Randomizers for Regression with Label Differential Privacy*, NeurIPS 2023,
    here under a bound on the detection error besides ε; memoised as in RAPPOR, Erlingsson et al., CCS 2014.

    Args:
        detection_error: L, in (0, ½): nobody's ½(FPR + FNR) on a label is to be below it; ½ is a coin toss.
        epsilon: ε in nats, > 0, or ``None`` for no bound; large enough for the detection error:
            ``1 − 2L ≤ tanh(ε / 2)``, where equality is the symmetric response.
        rare: The class with fewer records.
        corrected: ``"targets"``: the task's loss at the corrected targets; ``"likelihood"``: that of the answers,
            :func:`~splitvfl.defenses.corrected_response.likelihood_loss`, which promises the same.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "asymmetric-response"
    recommended: ClassVar[str] = "for two classes, of which one is rarer"
    shifts_scores: ClassVar[str] = ""

    def __init__(
        self,
        *,
        detection_error: float,
        epsilon: float | None = 3.0,
        rare: Rare = "positive",
        corrected: Corrected = "targets",
    ) -> None:
        check_detection_error(detection_error)
        if rare not in ("positive", "negative"):
            raise ArgumentError(f"rare must be 'positive' or 'negative', got {rare!r}")
        shown, lie = _shares(1.0 - 2.0 * detection_error, epsilon)
        of_rare, of_common = 1.0 - shown, lie
        flips = (of_common, of_rare) if rare == "positive" else (of_rare, of_common)
        super().__init__(Flips(*flips), corrected=corrected)
        self.detection_error = detection_error

    def claims(self) -> tuple[PureDP | DetectionError, ...]:
        """Return what is claimed of everything that is computed from the answers."""
        least = self.detection_error
        return (*super().claims(), DetectionError(least, per="run", auc=1.0 - least, **self._words()))

    def _log(self, secrets: Secrets, answers: Answers) -> None:
        if math.isfinite(self.epsilon):
            secrets.log("epsilon", self.epsilon, per="run")
        secrets.log("detection_error_bound", self.detection_error, per="run")


def _shares(total_variation: float, epsilon: float | None) -> tuple[float, float]:
    """Return how often the rarer class tells the truth, and how often the common class lies."""
    check_reachable(total_variation, epsilon)
    if epsilon is None:
        return total_variation, 0.0
    shown = -total_variation / math.expm1(-epsilon)
    return shown, shown * math.exp(-epsilon)


def check_reachable(total_variation: float, epsilon: float | None) -> None:
    """Check that answers with this privacy loss can be as far apart as that.

    Args:
        total_variation: δ, in (0, 1).
        epsilon: ε in nats; ``None``: no bound.

    Raises:
        ArgumentError: If ε is not positive and finite, is too small for δ, or so large that no lie would be drawn.
    """
    if epsilon is None:
        return
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ArgumentError(f"epsilon must be positive and finite, or None for no bound, got {epsilon}")
    if total_variation > math.tanh(epsilon / 2.0):
        least, least_error = 2.0 * math.atanh(total_variation), (1.0 - math.tanh(epsilon / 2.0)) / 2.0
        raise ArgumentError(
            f"epsilon {epsilon:g} does not allow a detection error as low as {(1.0 - total_variation) / 2.0:g}; "
            f"raise epsilon to at least {_rounded_up(least)}, or the detection error to {_rounded_up(least_error)}"
        )
    # A generator's numbers are multiples of 2^-53; a probability below is not drawn as it is promised.
    if total_variation * math.exp(-epsilon) < 2.0**-53:
        raise ArgumentError(f"epsilon {epsilon:g} is too large: practically no answer would be a lie; None is no bound")


def _rounded_up(value: float) -> float:
    """Return a number of four decimals that is not below: what is advised must not be refused again."""
    return math.ceil(value * 1e4) / 1e4
