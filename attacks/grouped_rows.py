"""A sum of rows as equations for what multiplies them, one unknown for all rows that are equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from splitvfl.attacks.residue_solving import check_sum
from splitvfl.errors import ArgumentError

Vector = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GroupedRows:
    """``equationsᵀ u = total`` for the sums u of what multiplies identical rows.

    Attributes:
        equations: ``(g, r)``, orthonormal columns.
        total: ``(r,)``.
        counts: Records of each group, ``(g,)``.
        group: Of each record, ``(s,)``; -1 for a row of zeros, which enters no sum.
        rounding: How far an equation may be off, ``(r,)``, as a share of the largest multiplier: what adding up in the
            coarser input dtype is off, roundings of either sign.
    """

    equations: Vector
    total: Vector
    counts: Vector
    group: Whole
    rounding: Vector

    @classmethod
    def of(cls, features: Tensor, gradient: Tensor, *, unit: float = 1.0) -> GroupedRows:
        """Return the equations of ``featuresᵀ r = gradient``, for r in such a unit.

        Args:
            features: ``(s, d)``.
            gradient: ``(d,)``.
            unit: Of r, in that of the gradient, > 0.

        Raises:
            ArgumentError: If shapes do not fit, an entry is not finite, or every row is zero.
        """
        check_sum(features, gradient)
        rows = features.detach().cpu().double().numpy()
        total = gradient.detach().cpu().double().numpy() / unit
        group = np.full(len(rows), -1, dtype=np.int64)
        filled = rows.any(axis=1)
        if not filled.any():
            raise ArgumentError("every row of the features is zero: no residue enters the sum")
        distinct, group[filled], counts = np.unique(rows[filled], axis=0, return_inverse=True, return_counts=True)
        left, sizes, right = np.linalg.svd(distinct, full_matrices=False)
        eps = max(torch.finfo(tensor.dtype).eps for tensor in (features, gradient))
        kept = sizes > max(rows.shape) * eps * sizes[0]
        rounding = len(rows) ** 0.5 * eps * sizes[0] / sizes[kept]
        return cls(left[:, kept], right[kept] @ total / sizes[kept], counts.astype(np.float64), group, rounding)

    @property
    def rank(self) -> int:
        """Number of equations."""
        return self.total.size

    def of_records(self, sums: Vector) -> Vector:
        """Return what each record has of its group's sum, ``(s,)``: equal parts, and 0 for rows of zeros."""
        each = np.append(sums / self.counts, 0.0)
        return np.asarray(each[self.group])
