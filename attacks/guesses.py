"""Feature attacks that read nothing, for comparison: zero, and a uniform random guess."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Target, View


class ZeroAttack:
    """Answer 0 everywhere, in the unit box: the lower end of each column's range.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, the experiments' baseline.
    """

    name: ClassVar[str] = "zero"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"equations"})

    def __call__(self, view: View, /) -> Tensor:
        """Return zeros.

        Args:
            view: Of its ``equations`` only the shapes are read.

        Returns:
            ``(n, d)``, float64.
        """
        known = view.equations
        return known.b.new_zeros((known.b.shape[0], known.A.shape[1]), dtype=torch.float64)


class RandomGuessAttack:
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
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"equations"})

    def __init__(self, *, seed: int = 0) -> None:
        check_seed(seed)
        self._seed = seed

    def __call__(self, view: View, /) -> Tensor:
        """Return the guesses.

        Args:
            view: Of its ``equations`` only the shapes are read.

        Returns:
            ``(n, d)``, float64, in [0, 1).
        """
        known = view.equations
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
