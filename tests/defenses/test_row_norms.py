from __future__ import annotations

import numpy as np
import pytest
import torch

from splitvfl.defenses.row_norms import row_norms, rows_within


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("magnitude", [1e-36, 1e-25, 1e-12, 1.0, 1e6, 1e20, 1e36])
def test_norms_of_any_magnitude(dtype: torch.dtype, magnitude: float) -> None:
    rows = magnitude * torch.tensor([[3.0, 4.0], [0.0, 0.0], [-5.0, 12.0]], dtype=dtype)

    # A few roundings of the dtype.
    expected = magnitude * torch.tensor([5.0, 0.0, 13.0], dtype=dtype)
    torch.testing.assert_close(row_norms(rows), expected, rtol=8 * torch.finfo(dtype).eps, atol=0)


def test_rows_of_different_magnitude_do_not_disturb_each_other() -> None:
    rows = torch.diag(torch.tensor([1e-30, 1.0, 1e30, 0.0]))

    torch.testing.assert_close(row_norms(rows), torch.tensor([1e-30, 1.0, 1e30, 0.0]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("width", [1, 3])
def test_rows_are_scaled_down_to_a_norm_and_shorter_ones_stay(width: int) -> None:
    rows = torch.randn(50, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    bounded = rows_within(rows, row_norms(rows), 0.7)

    norms = np.linalg.norm(rows.numpy(), axis=1, keepdims=True)
    expected = np.where(norms > 0.7, rows.numpy() * 0.7 / np.maximum(norms, 1e-300), rows.numpy())
    np.testing.assert_allclose(bounded.numpy(), expected, rtol=1e-14)
