"""Feature attack: the least-squares solution within the features' range."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from splitvfl.attacks.box_projection import nearest_solution
from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.hooks import Equations


def constrained_least_squares(A: Tensor, b: Tensor) -> Tensor:
    """Return the minimiser of ``‖A x − b‖`` over [0, 1]^d that is nearest to 0 (CLS), for every prediction.

    The truth satisfies the equations, so where it lies in the box the minimum is 0, reached by all of the box's
    solutions: then the choice decides, and the one nearest to 0 is what :func:`least_squares` would choose. A solver
    that stops where it meets the first one gives another estimate.

    Promises no error below that of any other estimate; exact where the rank of A is d.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the CLS estimate; the choice is ours.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, or an entry is not finite.

    >>> import torch
    >>> constrained_least_squares(torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0], [3.5], [9.0]])).round(decimals=9)
    tensor([[0.6000, 0.2000],
            [1.0000, 0.5000],
            [1.0000, 1.0000]], dtype=torch.float64)
    """
    return nearest_solution(A, b, 0.0).points


class ConstrainedLeastSquaresAttack(EquationAttack):
    """Estimate a party's features by least squares within their range, nearest to its lower end (CLS).

    Promises: features in [0, 1] of which the equations hold as well as they can; the truth where there are as many
    independent equations as features. Not promised: an error below that of guessing ½.

    Also called: CLS.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*; see :func:`constrained_least_squares`.
    """

    name: ClassVar[str] = "constrained-least-squares"

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`constrained_least_squares` of them; least squares are meant for what errors they have."""
        return constrained_least_squares(known.A, known.b)
