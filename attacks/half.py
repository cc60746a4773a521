"""Feature attacks that start from one half: the middle of the box, and the solution nearest to it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.attacks.least_squares import least_squares
from splitvfl.attacks.row_space import check_equations
from splitvfl.hooks import Equations


def half(A: Tensor, b: Tensor) -> Tensor:
    """Return ½ for every column: what who knows only the box answers.

    Its mean squared error is at most ¼ per feature, and that of a uniform random guess is 1/12 more, for any data.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the Half estimate and lemma 1.

    Args:
        A: Equations, ``(m, d)``; only d is read.
        b: Right-hand sides, ``(n, m)``; only n is read.

    Returns:
        ``(n, d)``, float64.

    Raises:
        ArgumentError: If shapes do not fit or an entry is not finite.
    """
    check_equations(A, b)
    return torch.full((b.shape[0], A.shape[1]), 0.5, dtype=torch.float64, device=b.device)


def half_star(A: Tensor, b: Tensor) -> Tensor:
    """Return the solution of ``A x = b`` nearest to ½, ``A⁺ b + (I − A⁺A) ½``.

    For a truth x in the box and exact equations ``‖x − ½‖² = ‖x − Half*‖² + ‖Half* − ½‖²``: it is never worse than
    :func:`half`. It may leave [0, 1]. Where A x = b has no solution, it is the least-squares solution nearest to ½.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the Half* estimate.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Returns:
        ``(n, d)``, float64.

    Raises:
        ArgumentError: If shapes do not fit or an entry is not finite.

    >>> half_star(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.5]])).tolist()
    [[0.25, 0.5]]
    """
    check_equations(A, b)
    return 0.5 + least_squares(A, b.double() - 0.5 * A.double().sum(dim=1))


class HalfAttack(EquationAttack):
    """Answer ½ everywhere, in the unit box: the middle of each column's range, for comparison.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the Half estimate.
    """

    name: ClassVar[str] = "half"
    weights_known: ClassVar[bool] = False

    def estimate(self, known: Equations) -> Tensor:
        """Return ½ everywhere; of the equations only the shapes are read."""
        return half(known.A, known.b)


class HalfStarAttack(EquationAttack):
    """Estimate the other parties' columns as the solution nearest to ½.

    Promises a squared error of no more than that of ½, for every record in the box, where the equations are exact; see
    :func:`half_star`. The attacker is assumed to know the weights and the range of each column.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the Half* estimate.
    """

    name: ClassVar[str] = "half-star"

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`half_star` of them."""
        return half_star(known.A, known.b)
