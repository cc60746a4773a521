"""Principal components as a fixed bottom model, fitted to a passive party's own columns without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from splitvfl.errors import ArgumentError, DataError
from splitvfl.learning.tasks import Task
from splitvfl.party.recipe import Recipe, Width

if TYPE_CHECKING:
    from splitvfl.data.columns import PartyData

_ROWS = 4096


class PCA(nn.Module):
    """Projections on the directions of largest variance: ``(x − mean) Vᵀ``, with orthonormal rows of V.

    It has no parameters, only buffers: nothing in it learns from labels, in any exchange. It hides nothing either: the
    projections are columns in another basis, and with as many components as columns they are the columns.

    Source: Pearson, Philosophical Magazine 1901; Hotelling, Journal of Educational Psychology 1933.

    Args:
        inputs: Number of numeric columns, at least 1.
        width: Number of components, 1 to ``inputs``.

    Attributes:
        mean: Means of the columns, ``(inputs,)``, float32.
        components: The directions, largest variance first, ``(width, inputs)``, float32; zeros until it is fitted.

    Raises:
        ArgumentError: If a size is out of its range.
    """

    mean: Tensor
    components: Tensor

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        if not 1 <= width <= inputs:
            raise ArgumentError(f"expected 1 to {inputs} principal components of {inputs} columns, got {width}")
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("components", torch.zeros(width, inputs))

    def forward(self, columns: Tensor) -> Tensor:
        """Return the projections, ``(n, width)``.

        Args:
            columns: ``(n, inputs)``.

        Raises:
            ArgumentError: If the number of columns does not fit.
        """
        if columns.dim() != 2 or columns.shape[1] != len(self.mean):
            raise ArgumentError(f"expected {len(self.mean)} numeric columns, got {tuple(columns.shape)}")
        return (columns - self.mean) @ self.components.T

    def fit(self, columns: Tensor) -> PCA:
        """Take mean and directions from columns, and return itself.

        Moments are added up in double precision, 4096 records at a time: it takes memory for these and for ``inputs²``
        numbers. Signs are fixed: in each component, the coordinate that is largest in size is positive.

        Args:
            columns: Of the records to fit to, ``(n, inputs)``; they may be backed by a file, and are read twice.

        Raises:
            DataError: If there is no record, or a number is NaN or infinite.
        """
        pieces = columns.split(_ROWS)
        total = self.mean.new_zeros(len(self.mean), dtype=torch.float64)
        for piece in pieces:
            total += piece.double().sum(dim=0)
        if not len(columns) or not torch.isfinite(total).all():
            raise DataError(f"principal components need records with finite numbers, got {len(columns)} records")
        mean = total / len(columns)
        scatter = total.new_zeros(len(mean), len(mean))
        # In a second pass: from sums of squares alone, little would be left of a small variance beside a large mean.
        for piece in pieces:
            centred = piece.double() - mean
            scatter += centred.T @ centred
        _, vectors = torch.linalg.eigh(scatter)
        components = vectors.T.flip(0)[: len(self.components)]
        largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
        self.mean.copy_(mean)
        self.components.copy_(components * largest.sign())
        return self


@dataclass(frozen=True, kw_only=True)
class PCARecipe(Recipe):
    """Principal components at the passive parties, as in exchange one-way with ``bottom: pca``; it has no top.

    Works with: loops of one's own; in a file, say it of the exchange, whose model then brings the top.

    In a file: ``exchange: {name: one-way, bottom: pca, width: 16}``

    Attributes:
        width: Number of components.
    """

    name: ClassVar[str] = "pca"

    width: Width

    def make_bottom(self, columns: PartyData, task: Task) -> PCA:
        """Return projections that are not fitted yet."""
        return PCA(columns.width, self.width)

    def fitted(self, bottom: nn.Module, columns: PartyData) -> nn.Module:
        """Return the projections, fitted to the party's training columns."""
        assert isinstance(bottom, PCA)
        return bottom.fit(columns.train.transformed.numeric)
