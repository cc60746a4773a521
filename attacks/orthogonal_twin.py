"""Limit of feature attacks: with two or more columns, another data set gives the same messages."""

from __future__ import annotations

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError


def orthogonal_twin(features: Tensor, weights: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return another data set and other first weights that show the label party exactly the same messages.

    With a random orthogonal Q: features ``X Q`` and weights ``Qᵀ w``. Inner products ``X Q Qᵀ w = X w`` agree, the
    gradient ``(X Q)ᵀ f = Qᵀ (Xᵀ f)`` turns along, and so do the next weights: by induction every message of every step
    agrees (in floating point up to rounding), whatever the residues are. From the transcript of a passive party with
    d ≥ 2 columns its features therefore follow up to an orthogonal map only; row norms and inner products between rows
    do not hide behind it.

    It holds for gradient descent with any learning rates, batches, momentum and L2 penalty: steps that turn with the
    weights. It does not hold for L1 penalties or for Adam and Adagrad, which treat each coordinate apart. A label party
    that knows how first weights are drawn learns no more from it where the distribution turns into itself: all zero,
    and normal with one variance for all coordinates, are such; uniform ones (Xavier or Kaiming uniform) are not. Nor is
    it a protection against side knowledge: that columns are binary, or known rows, single out a Q.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the feature attack and its limit of one column.

    Args:
        features: X, ``(n, d)`` with d ≥ 2.
        weights: w, ``(d,)``, before the first step.
        seed: Of Q, which is uniform among all orthogonal matrices.

    Returns:
        ``X Q`` of shape ``(n, d)`` and ``Qᵀ w`` of shape ``(d,)``, float64.

    Raises:
        ArgumentError: If shapes do not fit, d is 1 (where only the sign is free), or an entry is not finite.
    """
    _check(features, weights)
    turn = _random_orthogonal(features.shape[1], seed).to(features.device)
    return features.double() @ turn, turn.T @ weights.double()


def _random_orthogonal(size: int, seed: int) -> Tensor:
    """Return a uniform orthogonal matrix: QR of a normal one, with the signs that make it unique."""
    normal = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    turn, triangle = torch.linalg.qr(normal)
    turned: Tensor = turn * torch.where(triangle.diagonal() < 0, -1.0, 1.0)
    return turned


def _check(features: Tensor, weights: Tensor) -> None:
    if features.dim() != 2 or weights.shape != features.shape[1:]:
        raise ArgumentError(
            f"expected features (n, d) and weights (d,), got {tuple(features.shape)} and {tuple(weights.shape)}"
        )
    if features.shape[1] < 2:
        raise ArgumentError(f"expected two columns or more, got {features.shape[1]}: one is determined up to its sign")
    for name, tensor in (("features", features), ("weights", weights)):
        if not tensor.is_floating_point():
            raise ArgumentError(f"expected {name} of a floating-point dtype, got {tensor.dtype}")
        if not torch.isfinite(tensor).all():
            raise ArgumentError(f"{name} holds NaN or infinite values")
