"""Binary answers that are sometimes a lie, remembered per record, with targets that correct for the lies."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.claims import DetectionError, PureDP
from splitvfl.defenses.claim_words import ANSWERS_ALONE, GENERATOR, ONE_RECORD, PREDICTION
from splitvfl.defenses.remembered import Answers, RememberedAnswers
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, RecordLoss, Secrets
from splitvfl.learning.precision import widened

Corrected = Literal["targets", "likelihood"]
Truth = npt.NDArray[np.bool_]


class Flips(NamedTuple):
    """Probabilities that an answer is a lie.

    Attributes:
        negative: P(answer 1 | label 0), in [0, 1).
        positive: P(answer 0 | label 1), in [0, 1).
    """

    negative: float
    positive: float

    @property
    def total_variation(self) -> float:
        """Distance of the two labels' answers, ``δ = 1 − negative − positive``."""
        return 1.0 - self.negative - self.positive

    @property
    def epsilon(self) -> float:
        """Privacy loss of a label in nats: the largest log ratio of an answer's probabilities, maybe infinite."""
        yes = _log_ratio(self.positive, self.negative)
        no = _log_ratio(self.negative, self.positive)
        return max(yes, no)


def likelihood_loss(logits: Tensor, yes: Tensor, flips: Flips) -> Tensor:
    """Return each record's ``−ln P(answer | logit)``, the likelihood of the answers as a loss.

    With ``p = sigmoid(logit)`` the probability of the label, the answer is 1 with probability ``q = b + δ p`` and 0
    with ``1 − q = a + δ (1 − p)``; a, b: the flips, ``δ = 1 − a − b``. The gradient at the logit is ``(q − ỹ) δ p (1 −
    p) / (q (1 − q))``: next to nothing where the model is sure and the answer may be a lie, where that of a corrected
    target is largest. Its expectation is zero at the true probability, and at no other finite logit, so that the model
    learns the labels' distribution; elsewhere it is not the gradient that the labels would give, and the loss is not
    convex in the logit.

    Computed from logarithms: no probability is subtracted from another, and nothing overflows at any finite logit.

    Source: the likelihood of Warner's model, JASA 60 (1965); as a loss for noisy labels ("forward correction") Patrini
    et al., *Making Deep Neural Networks Robust to Label Noise*, CVPR 2017, arXiv:1609.03683.

    Args:
        logits: ``(n,)``, float32 or wider.
        yes: ``(n,)``, bool: whether the answer is 1.
        flips: a and b.

    Returns:
        ``(n,)`` losses, with a graph behind them.

    >>> round(likelihood_loss(torch.zeros(1), torch.ones(1, dtype=torch.bool), Flips(0.0, 0.5)).item(), 4)
    1.3863
    """
    along = torch.where(yes, logits, -logits)
    negative, positive = (torch.full_like(logits, _log(share)) for share in flips)
    lie = torch.where(yes, negative, positive)
    return -torch.logaddexp(lie, math.log(flips.total_variation) + functional.logsigmoid(along))


def _log(share: float) -> float:
    return math.log(share) if share > 0 else -math.inf


def one_logit(outputs: Tensor) -> Tensor:
    """Return outputs ``(n, 1)`` or ``(n,)`` as logits ``(n,)``, in float32 where they are in half precision.

    Raises:
        ArgumentError: If there are more than one for a record.
    """
    if outputs.numel() != len(outputs):
        raise ArgumentError(f"expected one logit for each record, (n, 1), got outputs of shape {tuple(outputs.shape)}")
    return widened(outputs.reshape(-1))


def _checked_correction(corrected: str) -> Corrected:
    """Return how the loss allows for lies.

    Raises:
        ArgumentError: If there is no such way.
    """
    for known in get_args(Corrected):
        if corrected == known:
            return known  # type: ignore[no-any-return]  # of Literal's values
    raise ArgumentError(f"corrected must be 'targets' or 'likelihood', got {corrected!r}")


class CorrectedResponse:
    """Common part of the label defenses that flip binary labels once per record and correct the targets for it.

    The first time that a record is met its answer ỹ is drawn; later the same answer is given again, whatever the
    label. The corrected target is ``t = (ỹ − b) / (1 − a − b)``, with a and b the probabilities that a positive and a
    negative label is flipped, for which ``E[t | y] = y``.

    The loss is the task's at the corrected targets, or that of :func:`likelihood_loss`. What is drawn and remembered is
    the same, and so is what is promised, as either is computed from the answers.

    Args:
        flips: a and b; their sum is below 1.
        corrected: ``"targets"`` or ``"likelihood"``: where the loss allows for the lies.
        most: The largest answer.
    """

    name: ClassVar[str]
    crossing: ClassVar[Crossing] = "labels"
    needs_binary_labels: ClassVar[bool] = True

    def __init__(self, flips: Flips, *, corrected: Corrected, most: int = 1) -> None:
        self.flips = flips
        self.corrected = _checked_correction(corrected)
        self._answers = RememberedAnswers(most=most)

    @property
    def epsilon(self) -> float:
        """Privacy loss of a label over the whole run, in nats."""
        return self.flips.epsilon

    def claims(self) -> tuple[PureDP | DetectionError, ...]:
        """Return what is claimed of everything that is computed from the answers: no ε where it is infinite."""
        return (PureDP(self.epsilon, per="run", **self._words()),) if math.isfinite(self.epsilon) else ()

    def _words(self, *more: str) -> dict[str, Any]:
        """Return mechanism, conditions and limits of its claims; ``more``: what else is not covered."""
        return {
            "mechanism": "an answer that is sometimes a lie, drawn once for each record and remembered",
            "conditions": (ANSWERS_ALONE, ONE_RECORD),
            "not_covered": (*more, PREDICTION, GENERATOR),
        }

    @property
    def target_values(self) -> tuple[float, ...]:
        """The targets of the answers 0 and 1, ``−b / (1 − a − b)`` and ``(1 − b) / (1 − a − b)``."""
        delta = self.flips.total_variation
        return -self.flips.negative / delta, (1.0 - self.flips.negative) / delta

    @property
    def record_loss(self) -> RecordLoss | None:
        """Loss of the answers, where it is not the task's."""
        return self._likelihood if self.corrected == "likelihood" else None

    def _likelihood(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return likelihood_loss(one_logit(outputs), targets.reshape(-1) > 0.5, self.flips)

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the corrected targets.

        Args:
            labels: ``(n,)`` in {0, 1}, of a floating-point dtype, as targets are no whole numbers.
            secrets: The label party's; its record ids, generator and log are used.

        Returns:
            A new tensor like ``labels``, with :attr:`target_values`.

        Raises:
            ArgumentError: If labels are not 0 and 1, or not floating point.
            PrivacyError: If the ids of the records are not known.
        """
        _check_labels(labels)
        truth = labels.detach().cpu().numpy() == 1
        answers = self._answers.of(secrets.ids, lambda first: self._draw(truth[first], secrets))
        self._log(secrets, answers)
        return self._targets(torch.from_numpy(answers)).to(device=labels.device, dtype=labels.dtype)

    def _draw(self, asked: Truth, secrets: Secrets) -> Answers:
        flipped = secrets.uniform(asked.size).cpu().numpy() < np.where(asked, self.flips.positive, self.flips.negative)
        answers: Answers = (asked ^ flipped).astype(np.int64)
        return answers

    def _targets(self, answers: Tensor) -> Tensor:
        return (answers.double() - self.flips.negative) / self.flips.total_variation

    def _log(self, secrets: Secrets, answers: Answers) -> None:
        secrets.log("epsilon", self.epsilon, per="run")

    def state_dict(self) -> dict[str, Any]:
        """Return the flips and the answers. They are secret: whoever knows them knows the labels up to the flips."""
        return {"flips": list(self.flips), "answers": self._answers.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ArgumentError: If the answers were drawn with other flips, so that what is promised would be wrong.
        """
        if tuple(state["flips"]) != tuple(self.flips):
            raise ArgumentError(f"expected answers drawn with {self.flips}, got {Flips(*state['flips'])}")
        self._answers.load_state_dict(state["answers"])


def _log_ratio(lie_of_the_likely: float, lie_of_the_other: float) -> float:
    """Return ``ln((1 − lie) / other lie)``, infinite where the other class never gives this answer."""
    if lie_of_the_other == 0.0:
        return math.inf
    return math.log1p(-lie_of_the_likely) - math.log(lie_of_the_other)


def _check_labels(labels: Tensor) -> None:
    """Raise :class:`ArgumentError` unless labels are 0 and 1, of a floating-point dtype."""
    if not labels.is_floating_point():
        raise ArgumentError(f"expected labels of a floating-point dtype, got {labels.dtype}; pass labels.float()")
    if not ((labels == 0) | (labels == 1)).all():
        raise ArgumentError(f"labels must be 0 or 1, got {torch.unique(labels)[:5].tolist()}")
