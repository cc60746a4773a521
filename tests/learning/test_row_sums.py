"""Sums row by row, beside a loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitvfl.learning.row_sums import NamedRows


def looped(numbers: Tensor, values: Tensor) -> dict[int, Tensor]:
    sums: dict[int, Tensor] = {}
    for row, value in zip(numbers.tolist(), values, strict=True):
        sums[row] = sums.get(row, torch.zeros_like(value)) + value
    return sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "rows", "dim"), [(0, 5, 3), (1, 1, 1), (500, 40, 12), (500, 10_000, 7)])
def test_sums_are_those_of_a_loop_in_the_order_of_the_list_to_the_bit(
    count: int, rows: int, dim: int, dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(count + rows)
    numbers = torch.randint(rows, (count,), generator=random)
    values = torch.randn(count, dim, generator=random, dtype=dtype)
    named = NamedRows.of(numbers)

    expected = looped(numbers, values)
    assert named.rows.tolist() == sorted(expected)
    sums = named.sums(values)
    assert sums.shape == (len(expected), dim)
    assert sums.dtype == dtype
    for row, total in zip(named.rows.tolist(), sums, strict=True):
        assert torch.equal(total, expected[row])


def test_every_place_finds_its_row_again() -> None:
    numbers = torch.randint(30, (200,), generator=torch.Generator().manual_seed(1))
    named = NamedRows.of(numbers)
    assert torch.equal(named.rows[named.slots], numbers)
