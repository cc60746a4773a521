"""Wide & Deep across parties: a deep tower at the passive party, the wide part at the active party."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from splitvfl.errors import ArgumentError, DataError
from splitvfl.models.mlp import MLP

if TYPE_CHECKING:
    from splitvfl.data.columns import Columns

_EMBEDDING_DEVIATION = 0.01


class FieldTable(nn.Module):
    """Vectors of the categories of several fields, kept in one table.

    Category c of field j is row ``offset_j + c``. One table costs a half to a third of one table per field.

    Args:
        field_sizes: Number of categories per field, each at least 1; at least one field.
        dim: Length of a vector.
        sparse: Whether the table's gradient is sparse; far cheaper for large tables, for optimisers that take it
            (SGD, Adagrad, SparseAdam).
        initialise: Fills the table in place.

    Attributes:
        table: All vectors, ``(sum(field_sizes), dim)``.

    Raises:
        ArgumentError: If there is no field, or a size is below 1.
    """

    offsets: Tensor
    sizes: Tensor

    def __init__(
        self, field_sizes: Sequence[int], dim: int, *, sparse: bool, initialise: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        if not field_sizes or min(*field_sizes, dim) < 1:
            raise ArgumentError(f"expected fields and a dimension of at least 1, got {list(field_sizes)} and {dim}")
        sizes = torch.tensor(field_sizes)
        self.sparse = sparse
        self.table = nn.Parameter(torch.empty(int(sizes.sum()), dim))
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)
        initialise(self.table)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the vectors, ``(n, fields, dim)``.

        Args:
            codes: ``(n, fields)``, int64, each from 0 to its field's size less one.

        Raises:
            ArgumentError: If the number of fields does not fit.
            DataError: If a code is out of range; the message names its field by position.
        """
        if codes.dim() != 2 or codes.shape[1] != self.sizes.numel():
            raise ArgumentError(f"expected codes (n, {self.sizes.numel()}), got {tuple(codes.shape)}")
        self._check_range(codes)
        return functional.embedding(codes + self.offsets, self.table, sparse=self.sparse)

    def _check_range(self, codes: Tensor) -> None:
        # A code out of its field's range would silently be a category of another field.
        wrong = (codes < 0) | (codes >= self.sizes)
        if wrong.any():
            row, field = wrong.nonzero()[0].tolist()
            raise DataError(
                f"categorical field {field} has codes 0 to {self.sizes[field].item() - 1}, "
                f"got {codes[row, field].item()} in row {row} of the batch"
            )


class WideDeepBottom(nn.Module):
    """The passive party's deep tower: embeddings of its categories and its numbers, through an MLP.

    ``MLP([numeric, e_1, …, e_f])`` with ReLU after every layer. Embeddings start from N(0, 0.01²).

    Source: Cheng et al., DLRS 2016, arXiv:1606.07792; split as in Li et al., ICLR 2022, arXiv:2102.08504, section 4.

    Args:
        numeric_inputs: Number of numeric columns, at least 0.
        field_sizes: Number of categories of every categorical field; may be empty.
        embedding_dim: Length of a category's embedding.
        widths: Widths of the deep layers; the last one is the width of the cut.
        sparse: Whether the embeddings have sparse gradients.

    Raises:
        ArgumentError: If there is neither a numeric nor a categorical column, or a size is too small.
    """

    def __init__(
        self,
        numeric_inputs: int,
        field_sizes: Sequence[int] = (),
        *,
        embedding_dim: int = 12,
        widths: Sequence[int] = (128, 128, 128, 128),
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self._numeric_inputs = _checked_count(numeric_inputs)
        self.embeddings = (
            FieldTable(field_sizes, embedding_dim, sparse=sparse, initialise=_small_normal) if field_sizes else None
        )
        self.deep = MLP(numeric_inputs + len(field_sizes) * embedding_dim, widths)

    def forward(self, columns: Tensor | Columns) -> Tensor:
        """Return the activation, ``(n, widths[-1])``.

        Args:
            columns: Numeric columns ``(n, numeric_inputs)`` and codes ``(n, fields)``; the numeric columns alone
                where there is no categorical field.

        Raises:
            ArgumentError: If the number of columns does not fit.
            DataError: If a code is out of range.
        """
        numeric, codes = _parts(columns, self._numeric_inputs, self.embeddings)
        if self.embeddings is not None and codes is not None:
            numeric = torch.cat([numeric, self.embeddings(codes).flatten(1)], dim=1)
        activation: Tensor = self.deep(numeric)
        return activation


class WideDeepTop(nn.Module):
    """The active party's half: the last layer of the deep part, and the whole wide part on its own columns.

    ``logits = V h + b + W x + Σ_j w_j[c_j]``, with h the activations, x the numeric columns and c_j the categories of
    the active party. The wide weights start from zero. It is called with the activations and the active party's
    columns apart (``separate_active``), as categories cannot be joined with activations.

    Source: Cheng et al., DLRS 2016, arXiv:1606.07792.

    Args:
        activation_inputs: Width of the joined activations.
        numeric_inputs: Number of the active party's numeric columns, at least 0.
        field_sizes: Number of categories of each of its categorical fields; may be empty.
        outputs: Number of logits.
        sparse: Whether the weights of categories have sparse gradients.

    Raises:
        ArgumentError: If a size is too small.
    """

    separate_active: ClassVar[bool] = True

    def __init__(
        self,
        activation_inputs: int,
        numeric_inputs: int = 0,
        field_sizes: Sequence[int] = (),
        outputs: int = 1,
        *,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        if min(activation_inputs, outputs) < 1:
            raise ArgumentError(f"expected at least 1 activation and 1 output, got {activation_inputs} and {outputs}")
        self._numeric_inputs = _checked_count(numeric_inputs)
        self.last = nn.Linear(activation_inputs, outputs)
        self.wide_numeric = nn.Linear(numeric_inputs, outputs, bias=False) if numeric_inputs else None
        if self.wide_numeric is not None:
            nn.init.zeros_(self.wide_numeric.weight)
        self.wide_fields = (
            FieldTable(field_sizes, outputs, sparse=sparse, initialise=nn.init.zeros_) if field_sizes else None
        )

    def forward(self, activation: Tensor, active: Tensor | Columns | None = None) -> Tensor:
        """Return the logits, ``(n, outputs)``.

        Args:
            activation: Joined activations, ``(n, activation_inputs)``.
            active: The active party's columns; ``None`` where it has none.

        Raises:
            ArgumentError: If the number of columns does not fit.
            DataError: If a code is out of range.
        """
        logits: Tensor = self.last(activation)
        if active is None:
            active = activation.new_empty(activation.shape[0], 0)
        numeric, codes = _parts(active, self._numeric_inputs, self.wide_fields)
        if self.wide_numeric is not None:
            logits = logits + self.wide_numeric(numeric)
        if self.wide_fields is not None and codes is not None:
            logits = logits + self.wide_fields(codes).sum(dim=1)
        return logits


def _small_normal(table: Tensor) -> Tensor:
    return nn.init.normal_(table, std=_EMBEDDING_DEVIATION)


def _checked_count(numeric_inputs: int) -> int:
    if numeric_inputs < 0:
        raise ArgumentError(f"expected at least 0 numeric inputs, got {numeric_inputs}")
    return numeric_inputs


def _parts(columns: Tensor | Columns, numeric_inputs: int, fields: FieldTable | None) -> tuple[Tensor, Tensor | None]:
    """Return numeric columns, and codes where there are fields, after a check that neither is missing or left over."""
    numeric, codes = (columns, None) if isinstance(columns, Tensor) else (columns.numeric, columns.categorical)
    expected = 0 if fields is None else fields.sizes.numel()
    given = 0 if codes is None else codes.shape[1]
    if numeric.shape[1] != numeric_inputs or given != expected:
        raise ArgumentError(
            f"expected {numeric_inputs} numeric columns and {expected} categorical fields, "
            f"got {numeric.shape[1]} and {given}"
        )
    return numeric, codes
