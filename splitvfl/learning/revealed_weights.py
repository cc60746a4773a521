"""Weights that are shown in place of the passive party's own, so that who solves equations with them is misled.

Scores are computed with the true weights W; an attacker is shown others. Two ways: ``W Hᵀ``, as if the model had been
trained on columns that were turned by H, and ``W + Δ``. Both protect from who takes what is shown for true, and from
nobody else: scores of d known records give the true equations.

Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, remark 6. Which Δ to take, the paper leaves
open; the analysis here is this library's.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import scipy
import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

Misled = Literal["least-squares", "half-star"]

_STARTS = 8
_RANK_TOLERANCE = 1e-10


def rotated_weights(passive_weight: Tensor, H: Tensor) -> Tensor:
    """Return ``W Hᵀ``.

    Args:
        passive_weight: W, ``(k, d)`` or ``(d,)``.
        H: Orthonormal, ``(d, d)``: :attr:`splitvfl.data.transform.Rotation.matrix`.

    Raises:
        ArgumentError: If shapes do not fit.
    """
    if H.shape != (passive_weight.shape[-1],) * 2:
        raise ArgumentError(f"expected H (d, d) for weights {tuple(passive_weight.shape)}, got {tuple(H.shape)}")
    return passive_weight @ H.T.to(passive_weight)


def least_singular_value(passive_weight: Tensor) -> float:
    """Return the least singular value of the equations, above which a shift of weights has no largest error.

    The equations are ``A = J W`` with J of k − 1 orthonormal rows that sum to 0; of one sigmoid, W itself. As J takes
    away what all classes have in common, the smallest shift of W that moves A by E is ``Jᵀ E``, of the same norm.

    Args:
        passive_weight: W, ``(k, d)`` or ``(d,)``.

    Raises:
        ArgumentError: If an entry is not finite, or there is no such weight.
    """
    differences = _differences(passive_weight)
    A = differences @ _rows(passive_weight)
    return float(torch.linalg.svdvals(A)[-1])


def weight_shift(
    passive_weight: Tensor,
    second_moments: Tensor,
    mean: Tensor,
    *,
    norm: float,
    misled: Misled = "least-squares",
    seed: int = 0,
) -> Tensor:
    """Return the shift Δ of weights of this norm with which an estimate from ``W + Δ`` misses most.

    The attacker solves ``Ã t = b`` with ``Ã = A + E`` for what is ``b = A x``. With ``M = I − Ã⁺A``:

    - least squares misses ``x − Ã⁺b = M x``: ``d · MSE = Tr(M K_0 Mᵀ)``
    - Half* misses ``M (x − ½) + Ã⁺E ½``

    From ``norm ≥ σ_min(A)`` on there is no largest error: E can take the rank from Ã, and next to there ``Ã⁺`` is as
    large as one likes (Eckart and Young). Below that number the largest is attained. Of one equation ``aᵀx = b``, the
    estimates of least squares are ``y b`` with ``y = ã / ‖ã‖²``. The ball ``‖ã − a‖ ≤ δ`` becomes the ball of y around
    ``a / (‖a‖² − δ²)`` of radius ``δ / (‖a‖² − δ²)``, and ``d · MSE = q ‖y − g/q‖² + rest``, with ``g = K_0 a`` and
    ``q = aᵀ K_0 a``: Δ is found in closed form, in the point of that ball which is farthest from ``g/q``. Of more
    equations, and for Half*, it is searched for from several starts; the search promises a local maximum.

    What it does to others: estimates that are clipped to the box gain less, and those that look for a point of the box
    (constrained least squares, RCC2) meet equations without a solution in it, which shows that something is wrong. On
    three data sets, at .3, .6 and .9 of the least singular value, a shift for either estimate raised the errors of all
    six that were tried (docs/hiding-columns.md).

    Args:
        passive_weight: W, ``(k, d)`` or ``(d,)``.
        second_moments: ``K_0 = E x xᵀ`` of the columns, ``(d, d)``.
        mean: Means of the columns, ``(d,)``.
        norm: δ, Euclidean (Frobenius) norm of Δ, above 0 and below :func:`least_singular_value`.
        misled: Which estimate.
        seed: Of the starts of a search.

    Returns:
        Δ, like ``passive_weight``, float64.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, the norm is out of its range, or there is no such
            estimate.
    """
    if misled not in ("least-squares", "half-star"):
        raise ArgumentError(f"expected least-squares or half-star, got {misled!r}")
    weight, J = _rows(passive_weight), _differences(passive_weight)
    d = weight.shape[1]
    if second_moments.shape != (d, d) or mean.shape != (d,):
        raise ArgumentError(
            f"expected second moments ({d}, {d}) and means ({d},), got {tuple(second_moments.shape)} and "
            f"{tuple(mean.shape)}"
        )
    largest = least_singular_value(passive_weight)
    if not 0.0 < norm < largest:
        raise ArgumentError(
            f"expected a norm above 0 and below {largest:.4g}, the least singular value of the equations, from which "
            f"on the error has no bound, got {norm}"
        )
    A, K = J @ weight, second_moments.double()
    if len(A) == 1 and misled == "least-squares":
        moved = _of_one_equation(A[0], K, norm)[None]
    else:
        moved = _searched(A, K, mean.double(), norm, misled, seed)
    return (J.T @ moved).reshape(passive_weight.shape)


def shifted_error(
    passive_weight: Tensor, shift: Tensor, second_moments: Tensor, mean: Tensor, *, misled: Misled
) -> float:
    """Return the MSE per feature of an estimate from ``W + Δ``; arguments as of :func:`weight_shift`."""
    J = _differences(passive_weight)
    A, moved = J @ _rows(passive_weight), J @ _rows(shift)
    return _error(A, moved, second_moments.double(), mean.double(), misled).item()


def _rows(passive_weight: Tensor) -> Tensor:
    weight = passive_weight.detach().cpu().double()
    weight = weight[None] if weight.dim() == 1 else weight
    if weight.dim() != 2 or 0 in weight.shape or not torch.isfinite(weight).all():
        raise ArgumentError(f"expected finite weights (k, d) or (d,), got {tuple(passive_weight.shape)}")
    return weight


def _differences(passive_weight: Tensor) -> Tensor:
    """Return J with orthonormal rows that sum to 0, ``(k − 1, k)``; of one logit the number 1."""
    k = 1 if passive_weight.dim() == 1 else passive_weight.shape[0]
    if passive_weight.dim() == 2 and k < 2:
        raise ArgumentError(f"expected weights of k > 1 classes, or (d,) of one logit, got {k}")
    if k == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    _, _, right = torch.linalg.svd(torch.ones(1, k, dtype=torch.float64))
    rest: Tensor = right[1:]
    return rest


def _of_one_equation(a: Tensor, second_moments: Tensor, norm: float) -> Tensor:
    room = a @ a - norm**2
    centre, radius = a / room, norm / room
    pull = second_moments @ a
    away = centre * (a @ pull) - pull  # from g/q, times q, which may be 0
    length: Tensor = torch.linalg.vector_norm(away)
    unit = away / length if length > 0 else a / torch.linalg.vector_norm(a)
    y: Tensor = centre + radius * unit
    return y / (y @ y) - a


def _error(A: Tensor, moved: Tensor, second_moments: Tensor, mean: Tensor, misled: Misled) -> Tensor:
    d = A.shape[1]
    inverse: Tensor = torch.linalg.pinv(A + moved, rtol=_RANK_TOLERANCE)
    missed = torch.eye(d, dtype=torch.float64) - inverse @ A
    if misled == "least-squares":
        return ((missed @ second_moments) * missed).sum() / d
    half = torch.full((d,), 0.5, dtype=torch.float64)
    cross = torch.outer(half, mean)
    around = second_moments - cross - cross.T + torch.outer(half, half)
    constant = inverse @ moved @ half
    rest = 2.0 * (constant @ missed @ (mean - half)) + constant @ constant
    return (((missed @ around) * missed).sum() + rest) / d


def _searched(A: Tensor, second_moments: Tensor, mean: Tensor, norm: float, misled: Misled, seed: int) -> Tensor:
    def moved_by(flat: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(flat)
        return norm * (flat / length).reshape(A.shape)

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        flat = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        negative = -_error(A, moved_by(flat), second_moments, mean, misled).log()
        (gradient,) = torch.autograd.grad(negative, flat)
        return negative.item(), gradient.numpy()

    left, _, right = torch.linalg.svd(A, full_matrices=False)
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(A.shape, generator=generator, dtype=torch.float64) for _ in range(_STARTS)]
    # The first one takes most from the least singular value.
    starts = [-torch.outer(left[:, -1], right[-1]), torch.outer(left[:, -1], right[-1]), *drawn]
    best, found = math.inf, starts[0]
    for start in starts:
        solved = scipy.optimize.minimize(
            objective, start.flatten().numpy(), jac=True, method="L-BFGS-B", options={"maxiter": 500}
        )
        if solved.fun < best:
            best, found = solved.fun, torch.from_numpy(solved.x.copy())
    return moved_by(found.flatten())
