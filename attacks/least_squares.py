"""Feature attacks by least squares: the solution of smallest norm, as it is or clamped to the unit box."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.attacks.row_space import check_equations
from splitvfl.hooks import Equations
from splitvfl.leakage.score_equations import RANK_TOLERANCE


def least_squares(A: Tensor, b: Tensor) -> Tensor:
    """Return the least-squares solution of smallest norm, ``A⁺ b``, for every prediction.

    Exact where the rank of A is d. Otherwise it is the projection of the truth on A's row space, off by
    ``(I − A⁺A) x``, and may leave [0, 1]. Singular values below ``1e-10 · σ_max`` count as zero; of a zero matrix it is
    0.

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
    check_equations(A, b)
    inverse: Tensor = torch.linalg.pinv(A.double(), rtol=RANK_TOLERANCE)
    return b.double() @ inverse.T


def clamped_least_squares(A: Tensor, b: Tensor) -> Tensor:
    """Return :func:`least_squares`, each entry clamped to [0, 1].

    Never farther from a truth in the box than the least-squares solution; it need not solve the equations any more.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the clamped LS estimate.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit or an entry is not finite.

    >>> clamped_least_squares(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0]])).tolist()
    [[1.0, 0.0]]
    """
    return least_squares(A, b).clamp(0.0, 1.0)


class LeastSquaresAttack(EquationAttack):
    """Estimate the other parties' columns as the smallest solution of the equations that a prediction gives.

    Promises the truth only where there are at least as many independent equations as columns: k − 1 of k classes'
    scores, k of the activation. Otherwise see :func:`least_squares`. The attacker is assumed to know the weights and
    the range of each column.

    Also called: ESA, equation solving, equality solving.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the LS estimate (ESA).
    """

    name: ClassVar[str] = "least-squares"

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`least_squares` of them."""
        return least_squares(known.A, known.b)


class ClampedLeastSquaresAttack(EquationAttack):
    """Estimate the other parties' columns as the smallest solution of the equations, clamped to the unit box.

    Promises what :func:`clamped_least_squares` does; the attacker is assumed to know the weights and the range of each
    column.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the clamped LS estimate.
    """

    name: ClassVar[str] = "clamped-least-squares"

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`clamped_least_squares` of them."""
        return clamped_least_squares(known.A, known.b)
