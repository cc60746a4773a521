"""Feature attacks that read nothing, for comparison: zero, and a uniform random guess."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.equation_attack import EquationAttack
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Equations


class ZeroAttack(EquationAttack):
    """Answer 0 everywhere, in the unit box: the lower end of each column's range.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the experiments' baseline.
    """

    name: ClassVar[str] = "zero"
    weights_known: ClassVar[bool] = False

    def estimate(self, known: Equations) -> Tensor:
        """Return zeros; of the equations only the shapes are read."""
        return known.b.new_zeros((known.b.shape[0], known.A.shape[1]), dtype=torch.float64)


class RandomGuessAttack(EquationAttack):
    """Answer a uniform random number for every entry, in the unit box.

    Its expected squared error is 1/12 per feature more than that of ½, for any data: a guess is worse than its mean by
    its variance. The same view and seed give the same guess.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the random guess, and lemma 1.

    Args:
        seed: Of the guesses, at least 0.

    Raises:
        ArgumentError: If ``seed`` is no whole number of at least 0.
    """

    name: ClassVar[str] = "random-guess"
    weights_known: ClassVar[bool] = False

    def __init__(self, *, seed: int = 0) -> None:
        check_seed(seed)
        self._seed = seed

    def estimate(self, known: Equations) -> Tensor:
        """Return the guesses; of the equations only the shapes are read."""
        return uniform_points(known.b.shape[0], known.A.shape[1], seed=self._seed).to(known.b.device)


def check_seed(seed: int) -> None:
    """Check that a seed is a whole number of at least 0.

    Raises:
        ArgumentError: If not.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ArgumentError(f"seed must be a whole number of at least 0, got {seed!r}")


def uniform_points(count: int, width: int, *, seed: int) -> Tensor:
    """Return uniform points of the unit box, ``(count, width)`` float64, drawn on the CPU: the same on every device."""
    return torch.rand(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
