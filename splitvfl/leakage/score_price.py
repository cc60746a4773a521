"""What a defense of published scores costs who uses them: the other side of what it hides."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.metrics import calibration_error, leak_auc, macro_auc, mean_divergence, mean_known, scores_and_classes
from splitvfl.metrics import top_shares as right_shares


@dataclass(frozen=True, slots=True)
class ScoreQuality:
    """How good scores are.

    Attributes:
        accuracy: Share of records whose class has the largest score; 1/j where j are level.
        calibration_error: Expected calibration error of the largest score.
        auc: Of two classes the AUC, of more the mean of each class against the rest; NaN with one class.
    """

    accuracy: float
    calibration_error: float
    auc: float


@dataclass(frozen=True, slots=True)
class ScorePrice:
    """What a defense changed.

    Attributes:
        divergence: Mean ``KL(c ‖ c̃)``, in nats; infinite where a class that was possible is told to be none.
        before: Of the scores.
        after: Of what was published.
    """

    divergence: float
    before: ScoreQuality
    after: ScoreQuality


def score_quality(scores: Tensor, labels: Tensor) -> ScoreQuality:
    """Return how good scores are.

    Args:
        scores: ``(n,)`` sigmoid or ``(n, k)``, in [0, 1], of at least one record.
        labels: Classes from 0, ``(n,)``.

    Raises:
        ArgumentError: If shapes do not fit, a score is not in [0, 1], or a label is no class.
    """
    error = calibration_error(scores, labels)
    shares = scores if scores.dim() == 2 else _of_two(scores)
    values, truth = scores_and_classes(shares, labels)
    if not len(values):
        raise ArgumentError("expected at least one record, got none")
    auc = leak_auc(shares[:, 1], labels) if shares.shape[1] == 2 else macro_auc(shares, labels)
    return ScoreQuality(mean_known(right_shares(values, truth)), error, auc)


def score_price(scores: Tensor, published: Tensor, labels: Tensor) -> ScorePrice:
    """Return what a defense of scores changed; see :class:`ScorePrice`.

    Args:
        scores: As computed.
        published: What the defense made of them, of the same shape.
        labels: Classes from 0, ``(n,)``.

    Raises:
        ArgumentError: As :func:`score_quality`; if shapes differ.
    """
    divergence = mean_divergence(scores, published)
    return ScorePrice(divergence, score_quality(scores, labels), score_quality(published, labels))


def _of_two(scores: Tensor) -> Tensor:
    wide = scores.double()
    return torch.stack([1.0 - wide, wide], dim=1)
