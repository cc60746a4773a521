"""Label attack on additive Laplace noise: log-likelihood ratios of noisy residues, added up over epochs."""

from __future__ import annotations

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.privacy import laplace_scale


def additive_noise_llr(noisy: Tensor, predictions: Tensor, epsilon: float) -> Tensor:
    """Return each record's log-likelihood ratio of label 1 against label 0, summed over epochs.

    ``Σ_e (ε/2) (|z_e + f_e| − |z_e − 1 + f_e|)``, where z is a residue with Laplace noise of scale 2/ε and f the
    prediction that it is of: the residue is 1 − f under one label and −f under the other. Its sign is the best guess of
    a label of even odds, and right with probability ``1 − e^(−ε/4) / 2`` after one epoch
    (:func:`~splitvfl.privacy.laplace_label_success`). It does not promise that much where f is known roughly only.

    Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, the aggregation attack.

    Args:
        noisy: ``(E, n)``, noisy residues y − f of n records in E epochs, floating point.
        predictions: ``(E, n)``, f in [0, 1].
        epsilon: The mechanism's ε of one release, > 0.

    Returns:
        ``(n,)``, float64; 0 says nothing.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, a prediction lies outside [0, 1], or ε is not
            positive.

    >>> additive_noise_llr(torch.tensor([[0.75, -0.25]]), torch.tensor([[0.5, 0.5]]), 2.0).tolist()
    [1.0, -0.5]
    """
    check_releases(noisy, predictions)
    scale = laplace_scale(epsilon)
    z, f = noisy.double(), predictions.double()
    ratios: Tensor = ((z + f).abs() - (z - 1 + f).abs()).sum(dim=0) / scale
    return ratios


def check_releases(noisy: Tensor, predictions: Tensor) -> None:
    """Raise :class:`ArgumentError` unless noisy residues and the predictions that they are of, ``(E, n)``, fit."""
    if noisy.dim() != 2 or noisy.shape != predictions.shape or noisy.numel() == 0:
        raise ArgumentError(
            f"expected noisy residues and predictions of one shape (epochs, records), got {tuple(noisy.shape)} and "
            f"{tuple(predictions.shape)}"
        )
    for name, tensor in (("noisy", noisy), ("predictions", predictions)):
        if not tensor.is_floating_point():
            raise ArgumentError(f"expected {name} of a floating-point dtype, got {tensor.dtype}")
        if not torch.isfinite(tensor).all():
            raise ArgumentError(f"{name} holds NaN or infinite values")
    if predictions.min() < 0 or predictions.max() > 1:
        raise ArgumentError("expected predictions in [0, 1]: the sigmoid of the logits that the residues are of")
