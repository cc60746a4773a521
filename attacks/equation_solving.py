"""Feature attack by solving the linear equations that published scores give."""

from __future__ import annotations

import warnings
from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Target, View

# Singular values below this share of the largest are treated as zero.
RANK_TOLERANCE = 1e-10


def equations(scores: Tensor, active_logits: Tensor, passive_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(A, b)`` with ``A x = b`` for the passive party's features x of every prediction.

    For ``scores = softmax(active_logits + W x)``: ``A = J W`` and ``b = J (ln scores − active_logits)``, where J takes
    differences of neighbouring classes. For one sigmoid: ``A = wᵀ`` and ``b = ln c − ln(1 − c) − active_logits``.

    Scores of exactly 0 (or a sigmoid of 1) have no logit; a ``RuntimeWarning`` counts them. Where two or more scores
    of a softmax row stay positive, the zeros' equations are dropped: as all rows share A, they are replaced by what
    the least-squares solution of the other equations predicts, which leaves that solution as it is. Elsewhere zeros
    are raised to half the rounding unit (eps of the scores' dtype, or the smallest positive score if that is less),
    which bounds the logit and does not measure it.

    Logits lose digits as scores saturate: in float64 they are off by about 1e-3 at 30, in float32 useless near 17.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the equation solving attack.

    Args:
        scores: Published predictions, ``(n, k)`` softmax or ``(n,)`` sigmoid, in [0, 1].
        active_logits: The active party's part of the logits, intercept included, of the same shape.
        passive_weight: The passive party's weights, ``(k, d)`` or ``(d,)``.

    Returns:
        ``A`` of shape ``(m, d)`` and ``b`` of shape ``(n, m)``, float64; m = k − 1, or 1.

    Raises:
        ArgumentError: If shapes do not fit, scores lie outside [0, 1], or an entry is not finite.
    """
    shares, known, weight = _softmax_form(scores, active_logits, passive_weight)
    saturated = (shares == 0).any(dim=1)
    if saturated.any():
        warnings.warn(
            f"{int(saturated.sum())} of {scores.shape[0]} predictions hold scores of exactly 0 or 1; "
            "their logits are bounded or left out, not known",
            RuntimeWarning,
            stacklevel=2,
        )
        shares = _raised_where_few(shares, torch.finfo(scores.dtype).eps)
    logits = _completed(shares.log() - known, weight)
    return torch.diff(weight, dim=0), torch.diff(logits, dim=1)


def _softmax_form(scores: Tensor, active_logits: Tensor, passive_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores ``(n, k)``, active logits ``(n, k)`` and weights ``(k, d)``, checked, in float64.

    A sigmoid becomes the softmax of two classes, the first of which has logit and weights zero.
    """
    _check(scores, active_logits, passive_weight)
    shares, known, weight = scores.double(), active_logits.double(), passive_weight.double()
    if shares.dim() == 2:
        return shares, known, weight
    return (
        torch.stack([1.0 - shares, shares], dim=1),
        torch.stack([torch.zeros_like(known), known], dim=1),
        torch.stack([torch.zeros_like(weight), weight]),
    )


def _check(scores: Tensor, active_logits: Tensor, passive_weight: Tensor) -> None:
    classes = scores.shape[1:]
    shapes = [tuple(tensor.shape) for tensor in (scores, active_logits, passive_weight)]
    fits = scores.dim() in (1, 2) and scores.shape == active_logits.shape and passive_weight.shape[:-1] == classes
    if not fits or passive_weight.dim() != scores.dim() or classes == (1,) or 0 in passive_weight.shape:
        raise ArgumentError(
            "expected scores and active logits (n,) with weights (d,), or (n, k) with (k, d) and k > 1, "
            f"got {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )
    for name, tensor in (("scores", scores), ("active_logits", active_logits), ("passive_weight", passive_weight)):
        if not tensor.is_floating_point():
            raise ArgumentError(f"expected {name} of a floating-point dtype, got {tensor.dtype}")
        if not torch.isfinite(tensor).all():
            raise ArgumentError(f"{name} holds NaN or infinite values")
    if scores.numel() and (scores.min() < 0 or scores.max() > 1):
        raise ArgumentError(f"scores must lie in [0, 1], got {scores.min().item()} to {scores.max().item()}")


def _raised_where_few(shares: Tensor, unit: float) -> Tensor:
    """Return scores with zeros raised to half the unit in rows with fewer than two positive ones."""
    positive = shares > 0
    few = positive.sum(dim=1, keepdim=True) < 2
    least = torch.where(positive, shares, unit).min().clamp(max=unit)
    return torch.where(few & ~positive, least / 2, shares)


def _completed(logits: Tensor, weight: Tensor) -> Tensor:
    """Return logits with every −∞ replaced by what its row's other logits predict by least squares."""
    missing = logits.isinf()
    complete = logits.clone()
    for pattern in torch.unique(missing[missing.any(dim=1)], dim=0):
        rows = (missing == pattern).all(dim=1)
        kept = logits[rows][:, ~pattern]
        features = least_squares(torch.diff(weight[~pattern], dim=0), torch.diff(kept, dim=1))
        offset = (kept - features @ weight[~pattern].T).mean(dim=1, keepdim=True)
        complete[rows] = torch.where(pattern, features @ weight.T + offset, complete[rows])
    return complete


def least_squares(A: Tensor, b: Tensor) -> Tensor:
    """Return the least-squares solution of smallest norm, ``A⁺ b``, for every prediction.

    Exact where the rank of A is d. Otherwise it is the projection of the truth on A's row space, off by
    ``(I − A⁺A) x``, and may leave [0, 1]. Singular values below ``1e-10 · σ_max`` count as zero.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the LS estimate (ESA).

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Returns:
        ``(n, d)``, float64.

    Raises:
        ArgumentError: If shapes do not fit or an entry is not finite.

    >>> least_squares(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0]])).tolist()
    [[0.5, 0.0]]
    """
    if A.dim() != 2 or b.dim() != 2 or b.shape[1] != A.shape[0]:
        raise ArgumentError(f"expected A (m, d) and b (n, m), got {tuple(A.shape)} and {tuple(b.shape)}")
    if not (torch.isfinite(A).all() and torch.isfinite(b).all()):
        raise ArgumentError("A or b holds NaN or infinite values")
    inverse: Tensor = torch.linalg.pinv(A.double(), rtol=RANK_TOLERANCE)
    return b.double() @ inverse.T


class LeastSquaresAttack:
    """Estimate the passive party's features from published scores: ``A⁺ b``.

    Promises the truth only where there are at least as many independent equations as features, k − 1 ≥ d; otherwise
    see :func:`least_squares`. The attacker is assumed to know the passive party's weights.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the LS estimate (ESA).
    """

    name: ClassVar[str] = "least-squares"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"scores", "active_logits", "passive_weight"})

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``scores``, ``active_logits`` and ``passive_weight`` are read, as :func:`equations` takes them.

        Returns:
            ``(n, d)``, float64.

        Raises:
            ArgumentError: As :func:`equations`.
        """
        return least_squares(*equations(view.scores, view.active_logits, view.passive_weight))
