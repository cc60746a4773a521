"""Linear equations in orthonormal form: what feature attacks that look for points of the unit box start from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.leakage.score_equations import RANK_TOLERANCE


class RowSpace(NamedTuple):
    """The singular value decomposition of the equations' matrix, ``A = left · diag(sizes) · rows``, zeros left out.

    Attributes:
        left: ``(m, rank)``, orthonormal columns.
        sizes: ``(rank,)``, positive, falling.
        rows: ``(rank, d)``, orthonormal rows: a basis of A's row space.
        null: ``(d, d − rank)``, orthonormal columns: a basis of A's null space.
    """

    left: Tensor
    sizes: Tensor
    rows: Tensor
    null: Tensor

    def targets(self, b: Tensor) -> Tensor:
        """Return c with ``rows · x = c`` for the x that fit ``b (n, m)`` best, ``(n, rank)``."""
        targets: Tensor = b.double() @ self.left / self.sizes
        return targets

    def contradiction(self, b: Tensor) -> Tensor:
        """Return what of ``b`` no x at all can give, ``(n,)``, in units of the features: a length over ``σ_max``."""
        b = b.double()
        outside = torch.linalg.vector_norm(b - b @ self.left @ self.left.T, dim=1)
        relative: Tensor = outside / self.sizes[0] if len(self.sizes) else outside
        return relative


def row_space(A: Tensor) -> RowSpace:
    """Return A in orthonormal form; singular values below ``1e-10 · σ_max`` count as zero, and so does all of a zero A.

    Args:
        A: Equations, ``(m, d)``, finite.

    Returns:
        Its parts, float64, on A's device.
    """
    # Complete, for the null space; of few rows and columns, once for all predictions.
    left, sizes, rows = torch.linalg.svd(A.double(), full_matrices=True)
    rank = int((sizes > RANK_TOLERANCE * sizes.max()).sum()) if sizes.numel() else 0
    return RowSpace(left[:, :rank], sizes[:rank], rows[:rank], rows[rank:].T.contiguous())


def check_equations(A: Tensor, b: Tensor) -> None:
    """Refuse equations whose shapes do not fit, that have no feature, or whose entries are not all finite.

    Raises:
        ArgumentError: In these cases, with what came.
    """
    if A.dim() != 2 or b.dim() != 2 or b.shape[1] != A.shape[0] or A.shape[1] == 0:
        raise ArgumentError(f"expected A (m, d) with d > 0 and b (n, m), got {tuple(A.shape)} and {tuple(b.shape)}")
    for name, tensor in (("A", A), ("b", b)):
        if not tensor.is_floating_point():
            raise ArgumentError(f"expected {name} of a floating-point dtype, got {tensor.dtype}")
        if not torch.isfinite(tensor).all():
            raise ArgumentError(f"{name} holds NaN or infinite values")
