"""What an attacker answers who only suspects that the passive columns were flipped."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.attacks.white_box import WhiteBox, white_box
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations


def suspect_flip(estimate: Tensor, *, belief: float | Tensor = 0.5) -> Tensor:
    """Return the answer between an estimate and its flip, ``(1 − q) x̂ + q (1 − x̂)``, for a flip of probability q.

    It is the answer of least mean squared error for an attacker who would take x̂ for the truth without a flip, and
    1 − x̂ with one. Who knows nothing, q = ½, answers ½ whatever x̂ is: then neither the scores nor the weights are of
    any use, and the error is that of Half. Columns may each have their own q.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, section VIII-D.

    Args:
        estimate: x̂, of columns of the unit box, ``(n, d)``.
        belief: q in [0, 1], a number or ``(d,)``.

    Returns:
        ``(n, d)``, float64.

    Raises:
        ArgumentError: If a belief is not in [0, 1], or shapes do not fit.

    >>> suspect_flip(torch.tensor([[0.25, 1.0]]), belief=0.5).tolist()
    [[0.5, 0.5]]
    """
    q = torch.as_tensor(belief, dtype=torch.float64, device=estimate.device)
    if estimate.dim() != 2 or q.shape not in (torch.Size([]), estimate.shape[1:]):
        raise ArgumentError(f"expected estimates (n, d) and a belief or (d,), got {estimate.shape} and {q.shape}")
    if not ((q >= 0) & (q <= 1)).all():  # NaN is not
        raise ArgumentError(f"expected a belief in [0, 1], got {belief}")
    return q + (1.0 - 2.0 * q) * estimate.double()


class SuspectedFlipAttack(EquationAttack):
    """Estimate a party's columns as one who only suspects that they were flipped: between an estimate and its flip.

    Promises the least mean squared error between the two for its belief; with ½ it answers ½, whatever the equations
    tell, and is as wrong as :class:`HalfAttack`, flip or none.

    In a file: ``attacks: [{name: suspected-flip, belief: 0.5}]``

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, section VIII-D.

    Args:
        belief: How likely it holds a flip to be, in [0, 1].
        then: The attack on equations whose estimate it takes for the truth without a flip.

    Raises:
        ArgumentError: If the belief is not in [0, 1], or there is no such attack.
    """

    name: ClassVar[str] = "suspected-flip"

    def __init__(self, *, belief: float, then: WhiteBox = "rcc2") -> None:
        if not 0.0 <= belief <= 1.0:
            raise ArgumentError(f"expected a belief in [0, 1], got {belief}")
        self._belief = float(belief)
        self._then = white_box(then)

    def estimate(self, known: Equations) -> Tensor:
        """Return :func:`suspect_flip` of the other attack's estimate."""
        return suspect_flip(self._then.estimate(known), belief=self._belief)
