"""How much leaked: rank statistics and errors of reconstruction.

Leak AUC is computed here, exactly and with midranks, on any device and dtype. scikit-learn's is the oracle in the
tests; a library that squashes scores above one before it ranks them would not do for gradient norms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

Array = npt.NDArray[np.floating[Any]]


def leak_auc(scores: Tensor, labels: Tensor) -> float:
    """Return the probability that a random positive's score exceeds a random negative's, ties counting one half.

    0.5 is a blind attacker, 1 a perfect one, 0 a perfect one with the sign reversed. Exact for any number of ties.

    Args:
        scores: ``(n,)`` or ``(n, 1)``, any real dtype and device; higher means "more likely positive".
        labels: ``n`` labels in {0, 1}, any dtype.

    Returns:
        A float in [0, 1]; NaN with one class only, where no such probability exists.

    Raises:
        ArgumentError: If lengths differ, labels lie outside {0, 1}, or a score is NaN.
    """
    return rank_auc(*scores_and_positives(scores, labels))


def rank_auc(scores: Array, positive: npt.NDArray[np.bool_]) -> float:
    """Return :func:`leak_auc` of arrays that :func:`scores_and_positives` made."""
    positives, negatives = np.sort(scores[positive]), np.sort(scores[~positive])
    if positives.size == 0 or negatives.size == 0:
        return math.nan
    below = np.searchsorted(negatives, positives, side="left").sum(dtype=np.int64)
    not_above = np.searchsorted(negatives, positives, side="right").sum(dtype=np.int64)
    return float((below + not_above) / (2.0 * positives.size * negatives.size))


def detection_error(scores: Tensor, labels: Tensor, *, threshold: float) -> float:
    """Return ½(FPR + FNR) of calling a record positive when its score exceeds a threshold.

    0.5 is a blind attacker, 0 a perfect one. The least over all thresholds would be smaller, but a threshold chosen on
    the very records that it is measured on flatters the attacker; hand in one that was fixed before.

    Source: the detection error of Li et al., ICLR 2022, arXiv:2102.08504, section 3.2.

    Args:
        scores: ``(n,)``, any real dtype and device.
        labels: ``n`` labels in {0, 1}.
        threshold: In the unit of the scores.

    Returns:
        A float in [0, 1]; NaN with one class only.

    Raises:
        ArgumentError: As :func:`leak_auc`.
    """
    values, positive = scores_and_positives(scores, labels)
    if positive.all() or not positive.any():
        return math.nan
    called = values > threshold
    return float(0.5 * (called[~positive].mean() + (~called[positive]).mean()))


def scores_and_positives(scores: Tensor, labels: Tensor) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Return scores and "is positive" as flat arrays of one length, checked.

    Raises:
        ArgumentError: As :func:`leak_auc`.
    """
    values = _numpy(scores)
    truth = _numpy(labels)
    if values.shape != truth.shape:
        raise ArgumentError(f"expected one score per label, got {values.size} scores and {truth.size} labels")
    positive = truth == 1
    if np.count_nonzero(positive) + np.count_nonzero(truth == 0) != truth.size:
        raise ArgumentError(f"labels must be 0 or 1, got {np.unique(truth)[:5].tolist()}")
    # A sum is NaN where an entry is, and also where infinities cancel; only then is a second look needed.
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    if math.isnan(total) and np.isnan(values).any():
        raise ArgumentError(f"{int(np.isnan(values).sum())} of {values.size} scores are NaN")
    return values, positive


def _numpy(values: Tensor) -> Array:
    flat = values.detach().reshape(-1)
    if flat.dtype in (torch.bfloat16, torch.float16):
        flat = flat.float()
    array: npt.NDArray[Any] = flat.cpu().numpy()
    return array if array.dtype.name == "float32" else array.astype(np.float64, copy=False)


def reconstruction_mse(estimate: Tensor, truth: Tensor) -> float:
    """Return the mean squared error per feature: the squared distance of every record, averaged over n·d entries.

    Args:
        estimate: ``(n, d)`` or ``(n,)``.
        truth: The same shape.

    Raises:
        ArgumentError: If shapes differ, are empty, or an entry is not finite.
    """
    if estimate.shape != truth.shape or estimate.numel() == 0:
        raise ArgumentError(
            f"expected estimate and truth of one shape, got {tuple(estimate.shape)} and {tuple(truth.shape)}"
        )
    error = (estimate.double() - truth.double().to(estimate.device)).square().mean().item()
    if not math.isfinite(error):
        raise ArgumentError("estimate or truth holds NaN or infinite values")
    return error
