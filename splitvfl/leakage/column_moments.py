"""First and second moments of a party's columns, and what they say of a column's values."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError

_HALF = 0.5

# Of a mean of x (1 − x), in float64: roundings of sums, and less than one value of ½ in a thousand million records.
_TWO_VALUED = 1e-10


class ColumnMoments:
    """First and second moments of a party's columns, summed as rows come.

    Sums are kept in float64 around ½, so that columns of the unit box lose no digits.

    Args:
        columns: d, at least 1.

    Attributes:
        count: Rows so far.

    Raises:
        ArgumentError: If ``columns`` is below 1.

    >>> moments = ColumnMoments.of(torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    >>> moments.mean.tolist()
    [0.5, 1.0]
    >>> moments.around(0.0).tolist()
    [[0.5, 0.5], [0.5, 1.0]]
    """

    def __init__(self, columns: int) -> None:
        if columns < 1:
            raise ArgumentError(f"expected at least one column, got {columns}")
        self.count = 0
        self._sum = torch.zeros(columns, dtype=torch.float64)
        self._products = torch.zeros(columns, columns, dtype=torch.float64)

    @classmethod
    def of(cls, rows: Tensor | Iterable[Tensor]) -> ColumnMoments:
        """Return the moments of rows ``(n, d)``, or of the pieces of them that an iterable yields.

        Raises:
            ArgumentError: As :meth:`add`; if there is no row.
        """
        pieces = iter([rows] if isinstance(rows, Tensor) else rows)
        first = next(pieces, None)
        if first is None or first.dim() != 2:
            raise ArgumentError(f"expected rows (n, d), got {'none' if first is None else tuple(first.shape)}")
        found = cls(first.shape[1])
        found.add(first)
        for piece in pieces:
            found.add(piece)
        if not found.count:
            raise ArgumentError("expected at least one row, got none")
        return found

    @property
    def columns(self) -> int:
        """Number of columns, d."""
        return self._sum.shape[0]

    def add(self, rows: Tensor) -> None:
        """Take in rows.

        Args:
            rows: ``(n, d)``, floating point.

        Raises:
            ArgumentError: If the shape is another, or an entry is not finite.
        """
        if rows.dim() != 2 or rows.shape[1] != self.columns or not rows.is_floating_point():
            raise ArgumentError(
                f"expected rows (n, {self.columns}) of a floating-point dtype, got {tuple(rows.shape)}, {rows.dtype}"
            )
        around = rows.detach().cpu().double() - _HALF
        products = around.T @ around
        if not torch.isfinite(products).all():
            raise ArgumentError("rows hold NaN or infinite values")
        self.count += rows.shape[0]
        self._sum += around.sum(dim=0)
        self._products += products

    @property
    def mean(self) -> Tensor:
        """The mean of every column, ``(d,)``, float64."""
        return self._sum / self.count + _HALF

    def around(self, point: float | Tensor) -> Tensor:
        """Return ``K_m = E(x − m)(x − m)ᵀ``, ``(d, d)``, float64.

        Args:
            point: m, a number or ``(d,)``.
        """
        moved = torch.as_tensor(point, dtype=torch.float64).expand(self.columns) - _HALF
        mean = self._sum / self.count
        cross = torch.outer(moved, mean)
        return self._products / self.count - cross - cross.T + torch.outer(moved, moved)


def two_valued(moments: ColumnMoments) -> list[bool]:
    """Return which columns of the unit box have no values but 0 and 1: there, the mean of x (1 − x) is 0."""
    squares = moments.around(0.0).diagonal()
    found: list[bool] = ((moments.mean - squares).abs() <= _TWO_VALUED).tolist()
    return found
