from __future__ import annotations

import pytest
import torch

from splitvfl.attacks.leading_direction import leading_direction


@pytest.mark.parametrize("width", [1, 2, 30])
def test_it_is_the_first_right_singular_vector(width: int) -> None:
    rows = torch.randn(50, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    found = leading_direction(rows.T @ rows)

    expected = torch.linalg.svd(rows, full_matrices=False).Vh[0]
    # Squaring the rows loses half of the digits at worst.
    assert abs(float(found @ expected)) == pytest.approx(1.0, abs=1e-7)
    assert float(found.norm()) == pytest.approx(1.0, abs=1e-12)
