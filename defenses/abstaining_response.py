"""Randomised response of a drawn share of the records, and silence of all others, for the whole run."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.claims import DetectionError, PureDP
from splitvfl.defenses.asymmetric_response import check_reachable
from splitvfl.defenses.corrected_response import (
    Corrected,
    CorrectedResponse,
    Flips,
    Truth,
    one_logit,
)
from splitvfl.defenses.remembered import Answers
from splitvfl.defenses.setting_checks import check_detection_error
from splitvfl.errors import ArgumentError
from splitvfl.hooks import RecordLoss, Secrets

# What is remembered of a record: the answers 0 and 1, or that it says nothing.
_SILENT = 2
# The target that stands for it, from which no loss is computed.
_NOTHING = 0.5


class AbstainingResponse(CorrectedResponse):
    """Train on randomised answers of a random share of the records; the others say nothing in the whole run.

    With ``δ = 1 − 2L``, a record speaks with probability ``ρ = δ / tanh(ε / 2)``, whatever its label: its label,
    flipped with probability ``π = 1 / (1 + e^ε)``. It counts ``1/ρ`` in the loss, with the corrected target ``(ỹ − π) /
    (1 − 2π)``. All others have no loss, and so zero gradient: in what is sent, and in the label party's own weights.
    What was drawn is remembered, and the same in every epoch. The expected gradient at given weights is that of the
    true labels. At ``L = .4`` and ``ε = 3``, 22 % of the records speak.

    What it promises, over all epochs together, towards everybody who sees anything that is computed from the targets
    (gradients, weights, scores), for labels drawn and answered independently:

    - every attacker's detection error ½(FPR + FNR) on a record, given its columns and all other records, is at least
      L, because what it says has total variation δ between the labels;
    - each label is ε locally differentially private; with ``epsilon=None`` the records that speak tell the truth;
    - of all answers for which this holds, none tell more that is of use: whatever can be learned from others, with
      whatever loss, can be learned from these (:mod:`splitvfl.defenses.least_variance`).

    What it does not: an AUC of ``1 − L``. Who is silent shows, as a zero row, and tells nothing of the label; but those
    that speak are known to be right with probability ``1 − π``. The AUC of a reader of all answers, between a positive
    and a negative record that are alike in all else, is ``½ + δ (1 − b) − δ² / 2`` with ``b = δ / (e^ε − 1)``: .678 at
    ``L = .4`` and ``ε = 3``, where that of :class:`~splitvfl.defenses.asymmetric_response.AsymmetricResponse`, which
    merges silence and the commoner answer, is .60. Nor that labels cannot be predicted, from columns or from the
    model's own prediction, which gradients tell. Void it: the same person under two ids, who answers twice; a second
    run, which draws anew; and whatever the partner sees that is made from true labels: early stopping or best weights
    by them, class weights, batches that are drawn by label. It rests on the secrecy of the answers kept here and of the
    keystream; a fixed seed is for experiments.

    A gradient defense that comes after it gets 0 in place of the label of a record that is silent. Its noise may hide
    who speaks, or leave zero rows as they are (``max-norm``); nothing above depends on that.

    Logs ``epsilon`` (not where it is infinite), ``detection_error_bound``, ``answers_auc`` and ``silent``, the share of
    the batch.

    Cost: on digits a test AUC of .966 for .997 undefended (private top: .987). Time: about 1 to 1.5 ms more
    in a step of about 2 ms, as for most defenses.

    In a file: ``defenses: [{name: abstaining-response, detection_error: 0.4}]``

    Source: this project's; the answers are Warner's, JASA 60 (1965), of a random subset, memoised as in RAPPOR,
    Erlingsson et al., CCS 2014.

    Args:
        detection_error: L, in (0, ½): nobody's ½(FPR + FNR) on a label is to be below it; ½ is a coin toss.
        epsilon: ε in nats, > 0, or ``None`` for no bound; large enough for the detection error:
            ``1 − 2L ≤ tanh(ε / 2)``, where equality is randomised response of all records.
        corrected: ``"targets"``: the task's loss at the corrected targets; ``"likelihood"``: that of the answers,
            :func:`~splitvfl.defenses.corrected_response.likelihood_loss`, which promises the same.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "abstaining-response"
    shifts_scores: ClassVar[str] = ""

    def __init__(
        self, *, detection_error: float, epsilon: float | None = 3.0, corrected: Corrected = "targets"
    ) -> None:
        check_detection_error(detection_error)
        self.total_variation = 1.0 - 2.0 * detection_error
        check_reachable(self.total_variation, epsilon)
        self.detection_error = detection_error
        self.flip = 0.0 if epsilon is None else math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
        self.speaking = min(1.0, self.total_variation / (1.0 - 2.0 * self.flip))
        super().__init__(Flips(self.flip, self.flip), corrected=corrected, most=_SILENT)
        self._epsilon = math.inf if epsilon is None else epsilon

    @property
    def epsilon(self) -> float:
        """Privacy loss of a label over the whole run, in nats."""
        return self._epsilon

    def claims(self) -> tuple[PureDP | DetectionError, ...]:
        """Return what is claimed of everything that is computed from the answers."""
        words = self._words(f"An AUC of 1 − L: that of a reader of all answers is {self.answers_auc:.3f}.")
        error = DetectionError(self.detection_error, per="run", auc=self.answers_auc, **words)
        return (*super().claims(), error)

    @property
    def answers_auc(self) -> float:
        """AUC of a reader of all answers and silences, and of nothing else."""
        delta, lie = self.total_variation, self.speaking * self.flip
        return 0.5 + delta * (1.0 - lie) - delta**2 / 2.0

    @property
    def notes(self) -> tuple[str]:
        """Remark on what its answers tell, for readers of a run's figures."""
        return (
            f"{self.name}: {1.0 - self.speaking:.0%} of the records say nothing in the whole run; from what the others "
            f"answer alone labels are read with an AUC of {self.answers_auc:.3f}.",
        )

    @property
    def target_values(self) -> tuple[float, ...]:
        """The targets of the answer 0, of silence, and of the answer 1."""
        apart = 1.0 - 2.0 * self.flip
        return -self.flip / apart, _NOTHING, (1.0 - self.flip) / apart

    def _draw(self, asked: Truth, secrets: Secrets) -> Answers:
        speaks, lies = secrets.uniform(2, asked.size).cpu().numpy()
        answers: Answers = np.where(speaks < self.speaking, asked ^ (lies < self.flip), _SILENT).astype(np.int64)
        return answers

    def _targets(self, answers: Tensor) -> Tensor:
        no, nothing, yes = self.target_values
        return torch.tensor([no, yes, nothing], dtype=torch.float64)[answers]

    def _log(self, secrets: Secrets, answers: Answers) -> None:
        if math.isfinite(self.epsilon):
            secrets.log("epsilon", self.epsilon, per="run")
        secrets.log("detection_error_bound", self.detection_error, per="run")
        secrets.log("answers_auc", self.answers_auc, per="run")
        secrets.log("silent", float(np.mean(answers == _SILENT)) if answers.size else 0.0)

    @property
    def record_loss(self) -> RecordLoss:
        """The loss of each record: zero, with zero gradient, where it is silent; else divided by ρ."""
        return self._loss

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits, targets = one_logit(outputs), targets.reshape(-1)
        if self.corrected == "likelihood":
            losses = self._likelihood(logits, targets)
        else:
            losses = functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
        return losses * ((targets != _NOTHING).to(logits.dtype) / self.speaking)

    def state_dict(self) -> dict[str, Any]:
        """Return ρ, π and the answers. They are secret: whoever knows them knows the labels up to the lies."""
        return {"speaking": self.speaking, "flip": self.flip, "answers": self._answers.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ArgumentError: If the answers were drawn with other shares, so that what is promised would be wrong.
        """
        if (state["speaking"], state["flip"]) != (self.speaking, self.flip):
            raise ArgumentError(
                f"expected answers of a share {self.speaking:g} of the records, each a lie with probability "
                f"{self.flip:g}, got a share {state['speaking']:g} and a probability {state['flip']:g}"
            )
        self._answers.load_state_dict(state["answers"])
