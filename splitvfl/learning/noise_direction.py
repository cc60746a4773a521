"""The direction in which noise on logits hides a passive party's columns best, from its weights."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

_RANK_TOLERANCE: Final = 1e-10


def noise_direction(passive_weight: Tensor, *, differences: Tensor | None = None) -> tuple[Tensor, float]:
    """Return the direction of noise on logits that raises the error of least squares most, and its gain per power.

    Noise n on the logits moves ``A⁺b`` by ``A⁺J n``. The direction v is the top right singular vector of ``A⁺J``, and
    noise of power t along it raises the MSE per feature by ``t σ₁² / d``: theorem 4. Its largest entry is positive; its
    sign does not matter. The passive party computes it from its weights; from v alone these are not found.

    Args:
        passive_weight: ``(k, d)``, or ``(d,)`` of one sigmoid: two classes, of which the first has weights 0.
        differences: J, ``((k−1), k)``, whose rows sum to 0. It matters only where A = J W has a rank below k − 1.
            Default: neighbouring classes, as in :func:`splitvfl.attacks.equations`.

    Returns:
        v, ``(k,)``, float64, of length one; and ``σ₁² / d``.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, or classes do not differ in their weights.
    """
    weight = _class_weights(passive_weight)
    k, d = weight.shape
    J = torch.diff(torch.eye(k, dtype=torch.float64), dim=0) if differences is None else differences.double()
    if J.shape != (k - 1, k) or not torch.allclose(J.sum(dim=1), J.new_zeros(k - 1), atol=1e-9):
        raise ArgumentError(f"expected differences ({k - 1}, {k}) with rows that sum to 0, got {tuple(J.shape)}")
    A = J @ weight
    if not A.any():
        raise ArgumentError("all classes have the same weights: scores tell nothing of the columns, and need no noise")
    moved = torch.linalg.pinv(A, rtol=_RANK_TOLERANCE) @ J
    _, sizes, right = torch.linalg.svd(moved, full_matrices=False)
    v = right[0] * torch.where(right[0, right[0].abs().argmax()] < 0, -1.0, 1.0)
    return v, (sizes[0].square() / d).item()


def _class_weights(passive_weight: Tensor) -> Tensor:
    """Return weights ``(k, d)``; of one sigmoid those of two classes."""
    weight = passive_weight.detach().cpu().double()
    if weight.dim() == 1:
        weight = torch.stack([torch.zeros_like(weight), weight])
    if weight.dim() != 2 or weight.shape[0] < 2 or not weight.shape[1] or not torch.isfinite(weight).all():
        raise ArgumentError(
            f"expected finite weights (k, d) with k > 1, or (d,), got {tuple(passive_weight.shape)}; of one logit "
            "drop the first dimension"
        )
    return weight
