"""Distance correlation beside its definition, written as loops over pairs of records, and beside closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitvfl.errors import ArgumentError
from splitvfl.penalties import DistanceCorrelation, distance_correlation

sizes = given(m=st.integers(2, 9), d=st.integers(1, 4), width=st.integers(1, 4), seed=st.integers(0, 1000))


def by_definition(x: np.ndarray, y: np.ndarray) -> float:
    """Definitions 4 and 5 of Székely, Rizzo and Bakirov, pair by pair."""
    m = len(x)
    centred = []
    for rows in (x, y):
        a = [[float(np.sqrt(((rows[k] - rows[j]) ** 2).sum())) for j in range(m)] for k in range(m)]
        whole = sum(a[k][j] for k in range(m) for j in range(m)) / m**2
        one = [[0.0] * m for _ in range(m)]
        for k in range(m):
            for j in range(m):
                of_row = sum(a[k]) / m
                of_column = sum(a[i][j] for i in range(m)) / m
                one[k][j] = a[k][j] - of_row - of_column + whole
        centred.append(one)

    def covariance(left: list[list[float]], right: list[list[float]]) -> float:
        return sum(left[k][j] * right[k][j] for k in range(m) for j in range(m)) / m**2

    shared, own, other = (covariance(*two) for two in ((centred[0], centred[1]), (centred[0],) * 2, (centred[1],) * 2))
    return float(np.sqrt(shared / np.sqrt(own * other))) if own * other > 0 else 0.0


def drawn(m: int, d: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(m, d, generator=random, dtype=torch.float64)
    return x, torch.tanh(x[:, :1]) + torch.randn(m, width, generator=random, dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@sizes
def test_it_is_what_the_definition_says(m: int, d: int, width: int, seed: int) -> None:
    x, y = drawn(m, d, width, seed)
    # A root of a sum of m² products in float64, of which nearly all may cancel.
    assert distance_correlation(x, y).item() == pytest.approx(by_definition(x.numpy(), y.numpy()), abs=1e-7)
    single = distance_correlation(x.float(), y.float()).item()
    assert single == pytest.approx(by_definition(x.numpy(), y.numpy()), abs=2e-3)


@settings(max_examples=10, deadline=None)
@sizes
def test_its_gradient_is_that_of_differences(m: int, d: int, width: int, seed: int) -> None:
    x, y = drawn(m + 2, d, width, seed)
    assert torch.autograd.gradcheck(lambda sent: distance_correlation(x, sent), y.requires_grad_())


@settings(max_examples=20, deadline=None)
@sizes
def test_shifts_rotations_and_units_change_nothing(m: int, d: int, width: int, seed: int) -> None:
    x, y = drawn(m + 2, d, width, seed)
    turned = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(1), dtype=x.dtype)).Q
    found = distance_correlation(x, y).item()
    for unit in (1e-9, 1.0, 1e9):
        assert distance_correlation(x, unit * (y @ turned) + 3.0 * unit).item() == pytest.approx(found, abs=1e-6)
    assert distance_correlation(7.0 - 1e4 * x, y).item() == pytest.approx(found, abs=1e-6)


def test_a_straight_line_is_one_and_another_record_nearly_nothing() -> None:
    x, other = torch.randn(2, 2000, 1, generator=torch.Generator().manual_seed(0))
    assert distance_correlation(x, 3 - 2 * x).item() == pytest.approx(1.0, abs=1e-5)
    # Of 2 000 independent pairs; m V / (mean distances) has a mean of 1 (theorem 5), so that R is about 1 / sqrt(m V).
    assert distance_correlation(x, other).item() < 0.1


def test_what_has_no_correlation_but_depends_is_found() -> None:
    x = torch.linspace(-1, 1, 201)[:, None]
    assert abs(torch.corrcoef(torch.stack([x[:, 0], x[:, 0].square()]))[0, 1]) < 1e-6
    assert distance_correlation(x, x.square()).item() > 0.4


@pytest.mark.parametrize("what", ["same", "one", "none of the columns"])
def test_where_nothing_varies_it_is_zero_without_a_gradient(what: str) -> None:
    x, y = torch.randn(6, 2), torch.ones(6, 3, requires_grad=True)
    if what == "one":
        x, y = torch.randn(1, 2), torch.randn(1, 3, requires_grad=True)
    if what == "none of the columns":
        x, y = torch.ones(6, 2), torch.randn(6, 3, requires_grad=True)
    found = distance_correlation(x, y)
    (gradient,) = torch.autograd.grad(found, y)
    assert found.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(y))


def test_records_that_fall_together_leave_the_gradient_finite() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = (torch.randn(40, 4, generator=torch.Generator().manual_seed(1)).relu() + 5).requires_grad_()
    with torch.no_grad():
        y[:20] = y[0]
        y[1] += 1e-7
    (gradient,) = torch.autograd.grad(distance_correlation(x, y), y)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() < 1.0


@pytest.mark.parametrize("records", [1, 4097])
def test_the_number_of_records_has_limits(records: int) -> None:
    with pytest.raises(ArgumentError, match="records must be 2 to 4,096"):
        DistanceCorrelation(records=records)
