"""Weights from records whose columns are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.attacks import equations, estimate_weights, least_squares
from splitvfl.errors import ArgumentError


def problem(n: int, d: int, m: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    columns = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return columns, torch.randn(m, d, generator=generator, dtype=torch.float64)


@given(d=st.integers(1, 6), m=st.integers(1, 4), more=st.integers(0, 10), seed=st.integers(0, 500), own=st.booleans())
def test_the_bound_holds_the_true_weights_whatever_the_errors(d: int, m: int, more: int, seed: int, own: bool) -> None:
    columns, weight = problem(d + own + more, d, m, seed)
    intercept = torch.linspace(-1, 1, m, dtype=torch.float64) * own
    signs = torch.randint(2, (len(columns), m), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
    right = columns @ weight.T + intercept

    exact = estimate_weights(columns, right, intercept=own)
    off = estimate_weights(columns, right + 0.01 * signs, error=0.01, intercept=own)

    for found in (exact, off):
        assert ((found.A - weight).abs() <= found.error).all()
        assert ((found.intercept - intercept).abs() <= found.intercept_error + 1e-15).all()
    assert exact.error.max() < off.error.max()


@pytest.mark.parametrize("decimals", [2, 4])
def test_errors_fall_with_records_and_with_digits_of_scores(decimals: int) -> None:
    """Independent errors, as those of rounding nearly are: twice as small with four times the records."""
    means = []
    for n in (200, 3200):
        errors = []
        for seed in range(8):
            columns, known = problem(n, 4, 3, seed)
            known = 0.3 * known  # no score near 0, whose digits are few
            scores = torch.round(torch.softmax(columns @ known.T, dim=1), decimals=decimals)
            _, right = equations(scores, torch.zeros(n, 3, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64))
            errors.append((estimate_weights(columns, right).A - torch.diff(known, dim=0)).abs().mean().item())
        means.append(sum(errors) / len(errors))
    assert means[1] < 0.4 * means[0]  # a quarter is expected; 96 errors have a mean off by less than a tenth
    # Rounding errors are up to half a unit of a score of about a third: below 2 · 10^-decimals of its logit.
    assert means[0] < 2 * 10.0**-decimals


def test_estimated_weights_do_for_the_known_ones() -> None:
    columns, weight = problem(30, 3, 4, 0)
    found = estimate_weights(columns[:10], columns[:10] @ weight.T)
    others = columns[10:]
    torch.testing.assert_close(least_squares(found.A, others @ weight.T), others, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("columns", "b", "options", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 1), {}, "2 auxiliary records determine 1 of 3.*name more"),
        (torch.eye(3), torch.ones(3, 1), {"intercept": True}, "3 auxiliary records determine 3 of 4"),
        (torch.ones(5, 2), torch.ones(5, 1), {}, "determine 1 of 2 unknown weights"),
        (torch.ones(5, 1), torch.ones(5, 1), {"intercept": True}, "determine 1 of 2"),
        (torch.eye(3), torch.ones(2, 1), {}, r"got \(3, 3\) and \(2, 1\)"),
        (torch.ones(3, 0), torch.ones(3, 1), {}, "expected columns"),
        (torch.full((3, 2), math.nan), torch.ones(3, 1), {}, "NaN"),
        (torch.eye(3), torch.ones(3, 1), {"error": -1.0}, "at least 0"),
        (torch.eye(3), torch.ones(3, 1), {"error": torch.ones(4, 1)}, "extends to"),
    ],
)
def test_bad_input_is_refused(columns: torch.Tensor, b: torch.Tensor, options: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        estimate_weights(columns, b, **options)
