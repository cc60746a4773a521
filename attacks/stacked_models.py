"""Equations of several models of the same columns, solved together: a partner's model that is trained again and again.

A record that is scored by T models gives each model's equations, ``A_t x = b_t``, in one and the same x. Stacked they
are one system, of as many independent equations as the models have together, which every attack on equations takes as
it is. Models that are the same add nothing. Nearly the same ones add equations that are off by much: the least singular
value says how much of an error in b comes to the columns.

Source: this project's; *Privacy Against Inference Attacks in Vertical Federated Learning* has one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from splitvfl.attacks.rcc1 import widening
from splitvfl.attacks.row_space import check_equations, row_space
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations
from splitvfl.leakage.score_equations import RANK_TOLERANCE, stacked

# A column is determined where its unit vector lies in the row space, up to what float64 rounds.
_DETERMINED_WITHIN = 1e-9


class StackedModels(NamedTuple):
    """The equations of several models as one system, and what follows from it.

    Attributes:
        known: All equations, model after model.
        ranks: Number of independent equations after each model, never falling; d where everything is determined.
        determined: Which columns the equations determine, ``(d,)``, bool: all of them from rank d on, some before.
        bound: How far the least-squares estimate of each such column lies from the truth at most, where right sides are
            off by no more than they say, ``(n, d)``, float64: ``|A⁺| error``; infinite of other columns. The truth need
            not be in the box.
    """

    known: Equations
    ranks: tuple[int, ...]
    determined: Tensor
    bound: Tensor


def stack_models(systems: Sequence[Equations]) -> StackedModels:
    """Return the equations of several models in the same columns of the same records as one system.

    Any attack on equations goes on from ``known``: least squares finds every determined column, to within ``bound``;
    RCC1, RCC2 and the Chebyshev centre take the errors for intervals, all of which the truth lies in.

    Args:
        systems: One for each model: A in the same columns, in the same units; b of the same records, in one order.

    Raises:
        ArgumentError: If there is none, they are of other columns or records, an entry is not finite, or an error is
            negative.

    >>> zero = torch.zeros(1, 1)
    >>> first = Equations(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.75]]), zero)
    >>> second = Equations(torch.tensor([[1.0, -1.0]]), torch.tensor([[0.25]]), zero)
    >>> stack_models([first, first, second]).ranks
    (1, 1, 2)
    """
    for number, (A, b, error) in enumerate(systems, start=1):
        try:
            check_equations(A, b)
        except ArgumentError as problem:
            raise ArgumentError(f"model {number} of {len(systems)}: {problem}") from problem
        if error.shape != b.shape or not bool((torch.isfinite(error) & (error >= 0)).all()):
            raise ArgumentError(
                f"model {number} of {len(systems)}: expected finite errors of at least 0, {tuple(b.shape)} "
                f"(Box.equations bounds infinite ones), got {tuple(error.shape)}"
            )
    known = stacked(systems)
    rows = known.A.double()
    ends = torch.tensor([len(one.A) for one in systems]).cumsum(dim=0).tolist()
    ranks = tuple(int(torch.linalg.matrix_rank(rows[:end], rtol=RANK_TOLERANCE)) for end in ends)
    space = row_space(rows)
    determined = space.null.square().sum(dim=1) < _DETERMINED_WITHIN
    bound = widening(space, known.error.double())
    return StackedModels(known, ranks, determined, torch.where(determined, bound, torch.inf))
