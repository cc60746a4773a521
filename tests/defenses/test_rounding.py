from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from splitvfl.attacks import equations, least_squares
from splitvfl.defenses import Rounding
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, call_defense, crossing_of
from splitvfl.metrics import reconstruction_mse

SecretsFactory = Callable[..., Secrets]


@pytest.mark.parametrize("decimals", [0, 1, 3, 8, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(200,), (100, 3)])
def test_scores_are_rounded_as_numpy_rounds(
    decimals: int, dtype: torch.dtype, shape: tuple[int, ...], secrets_for_test: SecretsFactory
) -> None:
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)

    published = call_defense(Rounding(decimals=decimals), scores, secrets_for_test())

    assert crossing_of(Rounding(decimals=decimals)) == "scores"
    expected = np.round(scores.numpy().astype(np.float64), decimals).astype(scores.numpy().dtype)
    np.testing.assert_array_equal(published.numpy(), expected)


def test_halves_go_to_the_even_neighbour(secrets_for_test: SecretsFactory) -> None:
    published = call_defense(Rounding(decimals=1), torch.tensor([0.25, 0.75, 0.5]), secrets_for_test())

    torch.testing.assert_close(published, torch.tensor([0.2, 0.8, 0.5]), rtol=0, atol=0)


def test_fewer_decimals_cost_equation_solving_more(secrets_for_test: SecretsFactory) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(300, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    known = torch.zeros(300, 4, dtype=torch.float64)
    scores = torch.softmax(features @ weight.T, dim=1)

    errors = [
        reconstruction_mse(
            least_squares(*equations(call_defense(Rounding(decimals=d), scores, secrets_for_test()), known, weight)),
            features,
        )
        for d in (12, 6, 3, 2)
    ]

    assert errors == sorted(errors)
    assert errors[0] < 1e-15 < 1e-5 < errors[-1]


@pytest.mark.parametrize("decimals", [-1, 16, 2.0, True, "3"])
def test_bad_decimals_are_refused(decimals: Any) -> None:
    with pytest.raises(ArgumentError, match="whole number from 0 to 15"):
        Rounding(decimals=decimals)
