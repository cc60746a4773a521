"""Feature attack: the solution within the features' range that is nearest to the middle (RCC2)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from splitvfl.attacks.box_projection import nearest_solution
from splitvfl.hooks import Target, View


def rcc2(A: Tensor, b: Tensor) -> Tensor:
    """Return the nearest point to ½ in all coordinates among those of [0, 1]^d with ``A x = b``, for every prediction.

    It is the maximiser of ``Σ x_i (1 − x_i)`` over the solutions: the centre that a relaxation of the Chebyshev centre
    gives when the constraints of each coordinate are used alone. For every truth in the box its error is at most that
    of Half*, and that at most the error of Half. ``Σ x_i (1 − x_i)`` at it bounds the squared distance from the
    Chebyshev centre of the solutions to any of them.

    Where no point of the box satisfies the equations, ``A x`` of the constrained least-squares solution takes the place
    of b; :func:`~splitvfl.attacks.box_projection.nearest_solution` says where.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the RCC2 estimate.

    Args:
        A: Equations, ``(m, d)``.
        b: Right-hand sides, ``(n, m)``.

    Returns:
        ``(n, d)``, float64, in [0, 1].

    Raises:
        ArgumentError: If shapes do not fit, there is no feature, or an entry is not finite.

    >>> import torch
    >>> rcc2(torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0], [3.8], [9.0]])).round(decimals=9)
    tensor([[0.5000, 0.5000],
            [1.0000, 0.8000],
            [1.0000, 1.0000]], dtype=torch.float64)
    """
    return nearest_solution(A, b, 0.5).points


class RCC2Attack:
    """Estimate a party's features by the solution in their range that is nearest to its middle (RCC2).

    Promises, for every record whose features lie in their range and equations without error: a squared error of at
    most that of guessing ½ for every feature, and of at most that of Half*. The truth where there are as many
    independent equations as features. Not promised: anything of records outside the range.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*; see :func:`rcc2`.
    """

    name: ClassVar[str] = "rcc2"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"equations"})

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``equations`` are read.

        Returns:
            ``(n, d)``, float64, in [0, 1].

        Raises:
            ArgumentError: As :func:`rcc2`.
        """
        return rcc2(view.equations.A, view.equations.b)
