"""Label differential privacy by randomised response: train on answers that are sometimes a lie."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.claims import PureDP, auc_of_randomised_classes
from splitvfl.defenses.claim_words import ANSWERS_ALONE, GENERATOR, ONE_RECORD, PREDICTION
from splitvfl.defenses.remembered import Answers, RememberedAnswers
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, RecordLoss, Secrets
from splitvfl.learning.precision import widened


class RandomisedResponse:
    """Train on answers: the label with probability ``e^ε / (e^ε + k − 1)``, else another of the k ``classes``; once.

    The first time that a record is met its answer is drawn, all other classes being equally likely, and later the same
    answer is given again, whatever the label. The loss is that of the answers as they are. So the model learns their
    distribution and not that of the labels: ``P(ỹ = c) = a + b · P(y = c)`` with ``a = 1 / (e^ε + k − 1)`` and
    ``b = (e^ε − 1) · a``. The classes keep their order; probabilities are drawn towards 1/k. With
    ``corrected="likelihood"`` the loss allows for that: it is ``−ln(a + b · p_ỹ)`` of the answer ỹ, with p the model's
    probabilities of the labels, which then are what it learns; what is drawn, remembered and promised is the same.
    (:class:`~splitvfl.defenses.memoised_response.MemoisedResponse` can correct binary targets as well.)

    Every label is ε locally differentially private (neighbours differ in one label), over all epochs together, towards
    everybody who sees anything that is computed from the answers: gradients, weights, scores. This ε is the whole run's
    and not a step's. Nobody tells two of the k classes apart with an AUC above the exact one of the answers,
    :func:`~splitvfl.claims.auc_of_randomised_classes`.
    It says nothing about what the columns give away: whoever can predict a label from them still can.
    Measurements with the true labels are outside of it too, where the partner learns of them (early stopping or best
    weights by them), class weights and batches made from labels, a person under two ids, and a second run, which
    answers once more. It rests on the secrecy of the answers kept here and of the keystream; a fixed seed is for
    experiments.

    Logs ``epsilon``.

    Cost: on digits a test AUC of .981 for .997 undefended (private top: .988). Time: about 1 to 1.5 ms more
    in a step of about 2 ms, as for most defenses.

    In a file: ``defenses: [{name: randomised-response, epsilon: 1.5}]``

    Also called: KRR, randomized response, RandResponse, LP-1ST.

    Source: Warner, JASA 60 (1965); k classes, and training on the answers: Ghazi et al., *Deep Learning with Label
    Differential Privacy*, NeurIPS 2021, arXiv:2102.06062 (``RandResponse``, which is ``LP-1ST`` under a uniform prior);
    the likelihood as "forward correction": Patrini et al., CVPR 2017, arXiv:1609.03683.

    Args:
        epsilon: ε in nats, > 0.
        classes: k, at least 2: that of the task.
        corrected: ``"nothing"``: the task's loss of the answers; ``"likelihood"``: that of the answers given the
            labels' probabilities.

    Raises:
        ArgumentError: If one of them is out of range, or ε so large that no answer would ever be a lie.
    """

    name: ClassVar[str] = "randomised-response"
    crossing: ClassVar[Crossing] = "labels"

    def __init__(
        self, *, epsilon: float, classes: int = 2, corrected: Literal["nothing", "likelihood"] = "nothing"
    ) -> None:
        if not isinstance(classes, int) or isinstance(classes, bool) or classes < 2:
            raise ArgumentError(f"classes must be a whole number of at least 2, got {classes!r}")
        if not epsilon > 0:
            raise ArgumentError(f"epsilon must be greater than 0, got {epsilon}")
        if corrected not in ("nothing", "likelihood"):
            raise ArgumentError(f"corrected must be 'nothing' or 'likelihood', got {corrected!r}")
        self.epsilon = epsilon
        self.corrected = corrected
        self.classes = classes
        self._lie = _lie_of(epsilon, classes)
        self._answers = RememberedAnswers(most=classes - 1)

    @property
    def truth(self) -> float:
        """Probability that an answer is the label."""
        return 1.0 - self._lie

    def claims(self) -> tuple[PureDP]:
        """Return what is claimed of everything that is computed from the answers."""
        return (
            PureDP(
                float(self.epsilon),
                per="run",
                auc=auc_of_randomised_classes(self.epsilon, self.classes),
                mechanism="an answer that is sometimes another class, drawn once for each record and remembered",
                conditions=(ANSWERS_ALONE, ONE_RECORD),
                not_covered=(PREDICTION, GENERATOR),
            ),
        )

    @property
    def target_values(self) -> tuple[float, ...]:
        """The answers."""
        return tuple(map(float, range(self.classes)))

    @property
    def shifts_scores(self) -> str:
        """Why scores are no probabilities of the labels."""
        if self.corrected == "likelihood":
            return ""
        return (
            f"scores are probabilities of answers, of which {self._lie:.0%} are lies, and lie nearer 1/{self.classes}; "
            "their order stays. corrected: likelihood makes them probabilities of the labels"
        )

    @property
    def record_loss(self) -> RecordLoss | None:
        """The loss, where it is not the task's."""
        return self._likelihood if self.corrected == "likelihood" else None

    def _likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        flat = widened(outputs.reshape(len(outputs), -1))
        if flat.shape[1] == 1 and self.classes == 2:  # one logit stands for two
            flat = torch.cat([torch.zeros_like(flat), flat], dim=1)
        if flat.shape[1] != self.classes:
            raise ArgumentError(f"expected {self.classes} outputs for each record, one per class, got {flat.shape[1]}")
        named = functional.log_softmax(flat, dim=1).gather(1, targets.reshape(-1, 1).long())[:, 0]
        other = self._lie / (self.classes - 1)
        return -torch.logaddexp(torch.full_like(named, math.log(other)), math.log(self.truth - other) + named)

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the answers.

        Args:
            labels: ``(n,)`` whole numbers from 0 to k − 1, of any dtype.
            secrets: The label party's; its record ids, generator and log are used.

        Returns:
            A new tensor like ``labels``, of such numbers too.

        Raises:
            ArgumentError: If a label is no class.
            PrivacyError: If the ids of the records are not known.
        """
        _check(labels, self.classes)
        truth = labels.detach().cpu().numpy().astype(np.int64)
        answers = self._answers.of(secrets.ids, lambda first: self._draw(truth[first], secrets))
        secrets.log("epsilon", self.epsilon, per="run")
        return torch.from_numpy(answers).to(device=labels.device, dtype=labels.dtype)

    def _draw(self, truth: Answers, secrets: Secrets) -> Answers:
        lied, which = secrets.uniform(2, truth.size).cpu().numpy()
        # Below 1 by 2^-53 at least, so that the product stays below k − 1.
        others = 1 + np.floor(which * (self.classes - 1)).astype(np.int64)
        answers: Answers = np.where(lied < self._lie, (truth + others) % self.classes, truth)
        return answers

    def state_dict(self) -> dict[str, Any]:
        """Return ε, k and the answers. They are secret: whoever knows them knows most labels."""
        return {"epsilon": self.epsilon, "classes": self.classes, "answers": self._answers.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ArgumentError: If the answers were drawn with another ε or k, so that ε would be wrong.
        """
        if (state["epsilon"], state["classes"]) != (self.epsilon, self.classes):
            raise ArgumentError(
                f"expected answers drawn with epsilon {self.epsilon} and {self.classes} classes, "
                f"got epsilon {state['epsilon']} and {state['classes']}"
            )
        self._answers.load_state_dict(state["answers"])


def _lie_of(epsilon: float, classes: int) -> float:
    """Return the probability of a lie, ``(k − 1) / (e^ε + k − 1)``."""
    # exp(−ε) cannot overflow, and the small probability is computed, not its difference from 1.
    others = (classes - 1) * math.exp(-epsilon)
    lie = others / (1.0 + others)
    # A generator's numbers are multiples of 2^-53; a probability below is not drawn as it is promised.
    if lie < 2.0**-53:
        raise ArgumentError(f"epsilon {epsilon} is too large: practically no answer would be a lie")
    return lie


def _check(labels: Tensor, classes: int) -> None:
    known = (labels >= 0) & (labels < classes)
    if labels.is_floating_point():
        known &= labels == labels.round()
    if not known.all():
        raise ArgumentError(
            f"labels must be whole numbers from 0 to {classes - 1}, got {torch.unique(labels[~known])[:5].tolist()}; "
            "`classes` is the number of classes"
        )
