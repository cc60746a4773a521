"""What attacks have in common that estimate columns from the equations of a prediction alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from splitvfl.hooks import Equations, Target, View


class EquationAttack(ABC):
    """A feature attack that reads ``view.equations`` and nothing else."""

    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"equations"})

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``equations`` are read.

        Returns:
            ``(n, d)``, float64, of columns in the unit box.

        Raises:
            ArgumentError: If an entry of the equations is not finite.
        """
        return self.estimate(view.equations)

    @abstractmethod
    def estimate(self, known: Equations) -> Tensor:
        """Return the estimate that these equations allow, ``(n, d)``, float64."""
