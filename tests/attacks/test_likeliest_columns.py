"""The likeliest columns for what a known model made of them, beside closed forms and a general optimiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from splitvfl.attacks.likeliest_columns import _step, likeliest
from splitvfl.errors import AttackRefused

N = 5


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("outputs", "columns"), [(1, 40), (3, 7), (7, 7), (9, 4)])
def test_a_step_is_that_of_the_whole_matrix(outputs: int, columns: int) -> None:
    slope, residual, found = drawn(0, N, outputs, columns), drawn(1, N, outputs), drawn(2, N, columns)
    damping = torch.tensor([0.0, 1e-6, 1e-2, 1.0, 100.0], dtype=torch.float64)
    whole = slope.mT @ slope + torch.eye(columns, dtype=torch.float64)
    damped = whole + damping[:, None, None] * torch.diag_embed(whole.diagonal(dim1=1, dim2=2))
    expected = torch.linalg.solve(damped, (slope.mT @ residual[:, :, None])[:, :, 0] + found)

    # Of matrices with a condition of some hundreds, in float64.
    assert torch.allclose(_step(slope, residual, found, damping), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("outputs", "columns"), [(2, 30), (6, 3)])
def test_of_a_linear_model_it_is_the_conditional_mean(outputs: int, columns: int) -> None:
    weight, truth, noise = drawn(0, outputs, columns), drawn(1, N, columns), 0.3
    seen = truth @ weight.T + noise * drawn(2, N, outputs)
    twice, start = torch.cat([seen, seen]), torch.zeros(N, columns, dtype=torch.float64)

    found = likeliest(lambda z: (z @ weight.T - twice) / noise, start, drawn(3, N, columns), steps=30)

    of_all = weight @ weight.T + noise**2 * torch.eye(outputs, dtype=torch.float64)
    assert torch.allclose(found, torch.linalg.solve(of_all, seen.T).T @ weight, rtol=0, atol=1e-7)


def test_of_a_model_that_bends_it_is_as_likely_as_what_a_general_optimiser_finds() -> None:
    first, second, truth = drawn(0, 6, 4), drawn(1, 3, 6), drawn(2, N, 4)

    def model(z: Tensor) -> Tensor:
        return torch.tanh(z @ first.T) @ second.T

    seen = model(truth)
    twice = torch.cat([seen, seen])
    starts = torch.zeros(N, 4, dtype=torch.float64), 0.5 * drawn(3, N, 4)
    found = likeliest(lambda z: (model(z) - twice) / 0.1, *starts, steps=100)

    for place in range(N):

        def unlikely(z: np.ndarray, place: int = place) -> float:
            given = torch.from_numpy(z)[None]
            return float(((model(given) - seen[place]) / 0.1).square().sum() + given.square().sum())

        others = [minimize(unlikely, start[place].numpy(), tol=1e-10).fun for start in starts]
        assert unlikely(found[place].numpy()) <= min(others) + 1e-3


def test_a_model_without_a_gradient_is_refused() -> None:
    start = torch.zeros(N, 2, dtype=torch.float64)
    with pytest.raises(AttackRefused, match="passes no gradient"):
        likeliest(torch.zeros_like, start, start, steps=1)
