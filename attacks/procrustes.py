"""Undoing a secret orthonormal transform of the passive columns, from records that the attacker knows.

The model was trained on ``z = H x``, the attacker takes z for x, and least squares returns ``ẑ = H P x``, with P the
projector on the row space of the equations (:mod:`splitvfl.data.transform`). From d records x that are known, in
general position, follows ``M = H P``: as much of H as matters. ``Mᵀ ẑ = P x`` is what least squares gives without a
transform.
"""

from __future__ import annotations

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

_RANK_TOLERANCE = 1e-8


def recover_transform(estimates: Tensor, known: Tensor, *, rank: int | None = None) -> Tensor:
    """Return ``H P`` from estimates of known records.

    ``ẑ = x Mᵀ`` is solved by least squares, and the solution replaced by the nearest partial isometry of its rank: the
    orthogonal Procrustes problem. Exact where estimates are; of noisy ones more records than d give better answers. A
    permutation is such a transform. So is a flip, around ½: take ½ from the known records, and solve ``b − A ½`` for
    the estimates.

    Source: Schönemann, Psychometrika 31 (1966); *Privacy Against Inference Attacks in Vertical Federated Learning* on
    orthonormal transforms.

    Args:
        estimates: Least-squares estimates ẑ of the known records, ``(N, d)``.
        known: These records x, ``(N, d)``, N at least d, in general position.
        rank: Number of independent equations. Default: that of the solution; to be named where estimates are noisy.

    Returns:
        ``(d, d)``, float64.

    Raises:
        ArgumentError: If shapes differ, an entry is not finite, known records span fewer than d dimensions, or the rank
            is not from 0 to d.

    >>> recover_transform(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.eye(2)).round().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    if estimates.shape != known.shape or known.dim() != 2 or not known.shape[1]:
        raise ArgumentError(f"expected estimates and known records (N, d), got {estimates.shape} and {known.shape}")
    if not (torch.isfinite(estimates).all() and torch.isfinite(known).all()):
        raise ArgumentError("estimates or known records hold NaN or infinite values")
    d, spanned = known.shape[1], int(torch.linalg.matrix_rank(known.double()))
    if spanned < d:
        raise ArgumentError(
            f"expected known records that span all {d} columns, got {len(known)} that span {spanned}; without "
            "that many the transform is not determined"
        )
    if rank is not None and not 0 <= rank <= d:
        raise ArgumentError(f"expected a rank from 0 to {d}, got {rank}")
    fitted = torch.linalg.lstsq(known.double(), estimates.double(), driver="gelsd" if known.is_cpu else None).solution
    left, sizes, right = torch.linalg.svd(fitted.T)
    kept = int((sizes > _RANK_TOLERANCE * max(1.0, sizes[0].item())).sum()) if rank is None else rank
    found: Tensor = left[:, :kept] @ right[:kept]
    return found


def undo_transform(estimates: Tensor, recovered: Tensor) -> Tensor:
    """Return what least squares would give without the transform: ``Mᵀ ẑ = P x``.

    Args:
        estimates: Least-squares estimates ẑ, ``(n, d)``.
        recovered: M of :func:`recover_transform`, ``(d, d)``.

    Returns:
        ``(n, d)``, float64.

    Raises:
        ArgumentError: If shapes do not fit.
    """
    if estimates.dim() != 2 or recovered.shape != (estimates.shape[1],) * 2:
        raise ArgumentError(
            f"expected estimates (n, d) and a transform (d, d), got {tuple(estimates.shape)} and "
            f"{tuple(recovered.shape)}"
        )
    return estimates.double() @ recovered.double().to(estimates.device)
