"""Label attack on a sum in which most residues are zero: the few that are not, by sparse recovery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linprog
from torch import Tensor

from splitvfl.attacks.residue_solving import check_sum
from splitvfl.errors import ArgumentError

Vector = npt.NDArray[np.float64]

# Below this share of the bound a residue counts as small, and the next round would rather have it zero.
_SMALL: Final = 0.05


def sparse_residues(features: Tensor, gradient: Tensor, bound: float = 1.0, *, rounds: int = 4) -> Tensor:
    """Return residues r with ``featuresᵀ r = gradient`` and ``|r| <= bound``, of which few are not zero.

    Minimises ``Σ w_i |r_i|``, at first with equal weights, and then with ``w_i = 1 / (|r_i| + .05 bound)`` of the round
    before. Where k of s residues are not zero and the columns' rank is well above k, these are they: s
    unknowns are found from fewer equations, which least squares cannot do. With as many equations as records there is
    one solution, and this is it.

    Identical rows share what the sum tells, which is the sum of their residues, and get equal ones. A row of zeros
    enters no sum, and its residue is returned as 0. It does not promise that there is no other sparse solution.

    Source: this project's, against the hybrid mechanism of *Residue-based Label Protection Mechanisms in Vertical
    Logistic Regression*. The weights are those of Candès, Wakin and Boyd, Journal of Fourier Analysis and Applications
    14 (2008).

    Args:
        features: ``(s, d)``, the columns of one batch, of any unit.
        gradient: ``(d,)``, the sum over the batch of residue times row.
        bound: The largest size of a residue, > 0, in the unit of the gradient.
        rounds: How often it minimises, ≥ 1; a fifth round changes hardly a sign any more.

    Returns:
        ``(s,)``, float64, in the unit of the residues in ``gradient``.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, the bound or the number of rounds is not positive,
            or no residues within the bound give the sum.

    >>> x = torch.tensor([[1.0, 0.2], [0.3, 1.0], [-0.8, 0.5], [0.1, -0.9]])
    >>> sparse_residues(x, 0.5 * x[2]).round(decimals=6).tolist()
    [0.0, 0.0, 0.5, 0.0]
    """
    check_sum(features, gradient)
    if not 0.0 < bound < np.inf:
        raise ArgumentError(f"expected a bound above 0, the largest size of a residue, got {bound!r}")
    if rounds < 1:
        raise ArgumentError(f"expected at least one round, got {rounds}")
    problem = _Problem.of(features, gradient, bound)
    found = problem.solution(np.ones(problem.counts.size))
    for _ in range(rounds - 1):
        found = problem.solution(1.0 / (np.abs(found) / problem.counts + _SMALL))
    return torch.from_numpy(problem.of_records(found)).to(features.device)


@dataclass(frozen=True)
class _Problem:
    """``equationsᵀ u = total`` for the sums u of the residues of identical rows, in units of the bound."""

    equations: Vector  # (g, r), orthonormal columns
    total: Vector  # (r,)
    counts: Vector  # (g,), records of each group
    group: npt.NDArray[np.int64]  # of each record; -1 for a row of zeros
    bound: float

    @classmethod
    def of(cls, features: Tensor, gradient: Tensor, bound: float) -> _Problem:
        rows = features.detach().cpu().double().numpy()
        total = gradient.detach().cpu().double().numpy() / bound
        group = np.full(len(rows), -1, dtype=np.int64)
        filled = rows.any(axis=1)
        if not filled.any():
            raise ArgumentError("every row of the features is zero: no residue enters the sum")
        distinct, group[filled], counts = np.unique(rows[filled], axis=0, return_inverse=True, return_counts=True)
        left, sizes, right = np.linalg.svd(distinct, full_matrices=False)
        eps = max(torch.finfo(tensor.dtype).eps for tensor in (features, gradient))
        kept = sizes > max(rows.shape) * eps * sizes[0]
        return cls(left[:, kept], right[kept] @ total / sizes[kept], counts.astype(np.float64), group, bound)

    def solution(self, weights: Vector) -> Vector:
        """Return the sums of least weighted size, ``(g,)``."""
        both = np.concatenate([weights, weights])  # of positive and of negative parts
        limits = np.concatenate([self.counts, self.counts])
        solved = linprog(
            both,
            A_eq=np.hstack([self.equations.T, -self.equations.T]),
            b_eq=self.total,
            bounds=np.stack([np.zeros_like(limits), limits], axis=1),
            method="highs",
        )
        if solved.x is None:
            raise ArgumentError(
                f"no residues of size at most {self.bound:g} give this sum ({solved.message.strip()}): it is not the "
                "sum of these rows, or the bound is too small"
            )
        positive, negative = np.split(solved.x, 2)
        return np.asarray(positive - negative)

    def of_records(self, sums: Vector) -> Vector:
        """Return each record's residue, ``(s,)``."""
        each = np.append(sums / self.counts, 0.0) * self.bound  # the last one is for rows of zeros
        return np.asarray(each[self.group])
