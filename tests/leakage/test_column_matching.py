"""The error after the best permutation of columns, against all permutations."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from splitvfl.errors import ArgumentError
from splitvfl.leakage.column_matching import best_order, matched_mse


def uniform(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_least_error_of_all_permutations(seed: int) -> None:
    estimate, truth = uniform(seed, 7, 4), uniform(seed + 10, 7, 4)
    errors = {order: (estimate[:, list(order)] - truth).square().mean().item() for order in permutations(range(4))}
    assert matched_mse(estimate, truth) == pytest.approx(min(errors.values()), rel=1e-12)
    assert tuple(best_order(estimate, truth).tolist()) == min(errors, key=lambda order: errors[order])


def test_columns_in_another_order_are_put_back() -> None:
    truth, order = uniform(1, 50, 6), [3, 0, 5, 1, 4, 2]
    shuffled = truth[:, order]
    assert matched_mse(shuffled, truth) == 0.0
    # Column j of the truth stands at the place of j in the order.
    assert best_order(shuffled, truth).tolist() == [order.index(column) for column in range(6)]
    assert matched_mse(truth, truth) == 0.0


def test_the_columns_scale_hides_no_order() -> None:
    truth = 1e6 * uniform(2, 40, 3)
    assert best_order(truth.flip(1), truth).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("estimate", "truth"),
    [
        (torch.zeros(2, 2), torch.zeros(2, 3)),
        (torch.zeros(0, 2), torch.zeros(0, 2)),
        (torch.zeros(3), torch.zeros(3)),
        (torch.full((1, 1), torch.nan), torch.zeros(1, 1)),
    ],
)
def test_what_are_no_columns_is_refused(estimate: torch.Tensor, truth: torch.Tensor) -> None:
    with pytest.raises(ArgumentError):
        best_order(estimate, truth)
