"""Binary answers that are sometimes a lie, remembered per record, with targets that correct for the lies."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from splitvfl.defenses.remembered import Answers, Positions, RememberedAnswers
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, Secrets


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


class CorrectedResponse:
    """What the label defenses share that flip binary labels once per record and correct the targets for it.

    The first time that a record is met its answer ỹ is drawn; later the same answer is given again, whatever the
    label. The corrected target is ``t = (ỹ − b) / (1 − a − b)``, with a and b the probabilities that a positive and a
    negative label is flipped, for which ``E[t | y] = y``.

    Args:
        flips: a and b; their sum is below 1.
    """

    name: ClassVar[str]
    crossing: ClassVar[Crossing] = "labels"
    needs_binary_labels: ClassVar[bool] = True

    def __init__(self, flips: Flips) -> None:
        self.flips = flips
        self._answers = RememberedAnswers(most=1)

    @property
    def epsilon(self) -> float:
        """Privacy loss of a label over the whole run, in nats."""
        return self.flips.epsilon

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the corrected targets.

        Args:
            labels: ``(n,)`` in {0, 1}, of a floating-point dtype, as targets are no whole numbers.
            secrets: The label party's; its record ids, generator and log are used.

        Returns:
            A new tensor like ``labels``, with values ``−b / (1 − a − b)`` and ``(1 − b) / (1 − a − b)``.

        Raises:
            ArgumentError: If labels are not 0 and 1, or not floating point.
            PrivacyError: If the ids of the records are not known.
        """
        _check(labels)
        truth = labels.detach().cpu().numpy() == 1
        answers = self._answers.of(secrets.ids, lambda first: self._draw(truth, first, secrets))
        self._log(secrets)
        targets = (torch.from_numpy(answers).double() - self.flips.negative) / self.flips.total_variation
        return targets.to(device=labels.device, dtype=labels.dtype)

    def _draw(self, truth: np.ndarray[Any, np.dtype[np.bool_]], first: Positions, secrets: Secrets) -> Answers:
        asked = truth[first]
        flipped = secrets.uniform(first.size).cpu().numpy() < np.where(asked, self.flips.positive, self.flips.negative)
        answers: Answers = (asked ^ flipped).astype(np.int64)
        return answers

    def _log(self, secrets: Secrets) -> None:
        secrets.log("epsilon", self.epsilon)

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


def _check(labels: Tensor) -> None:
    if not labels.is_floating_point():
        raise ArgumentError(f"expected labels of a floating-point dtype, got {labels.dtype}; pass labels.float()")
    if not ((labels == 0) | (labels == 1)).all():
        raise ArgumentError(f"labels must be 0 or 1, got {torch.unique(labels)[:5].tolist()}")
