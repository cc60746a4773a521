from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from splitvfl.defenses import ClipGradient
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, call_defense, crossing_of

SecretsFactory = Callable[..., Secrets]


def gradient(rows: int = 50, width: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 3
    return lengths * torch.randn(rows, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("bound", [0.01, 1.0, 4.0, 1e6])
def test_rows_are_scaled_as_torch_clips_them_one_by_one(bound: float, secrets_for_test: SecretsFactory) -> None:
    rows = gradient()

    sent = call_defense(ClipGradient(bound=bound), rows, secrets_for_test())

    for row, got in zip(rows, sent, strict=True):
        parameter = torch.nn.Parameter(torch.zeros_like(row))
        parameter.grad = row.clone()
        torch.nn.utils.clip_grad_norm_([parameter], bound)
        # torch divides by the norm plus 1e-6.
        torch.testing.assert_close(got, parameter.grad, rtol=1e-4, atol=0)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.5, 0.99])
def test_a_quantile_is_that_of_the_batch(quantile: float, secrets_for_test: SecretsFactory) -> None:
    rows = gradient()
    norms = np.linalg.norm(rows.numpy(), axis=1)
    bound = np.quantile(norms, quantile)

    sent = call_defense(ClipGradient(quantile=quantile), rows, secrets_for_test())

    np.testing.assert_allclose(np.linalg.norm(sent.numpy(), axis=1), np.minimum(norms, bound), rtol=1e-12)
    # Directions stay.
    np.testing.assert_allclose(
        np.sum(sent.numpy() * rows.numpy(), axis=1), np.minimum(norms, bound) * norms, rtol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_and_huge_rows_are_scaled_right(dtype: torch.dtype, secrets_for_test: SecretsFactory) -> None:
    rows = torch.tensor([[3e-25, 4e-25], [3e25, 4e25], [0.0, 0.0]], dtype=dtype)

    sent = call_defense(ClipGradient(bound=1.0), rows, secrets_for_test())

    # Two roundings of float32.
    torch.testing.assert_close(sent[1], torch.tensor([0.6, 0.8], dtype=dtype), rtol=1e-6, atol=0)
    assert torch.equal(sent[[0, 2]], rows[[0, 2]])


def test_a_bound_of_zero_sends_zeros(secrets_for_test: SecretsFactory) -> None:
    rows = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]])

    assert torch.equal(call_defense(ClipGradient(quantile=0.5), rows, secrets_for_test()), torch.zeros(3, 2))


def test_what_was_cut_off_is_logged(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}
    rows = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.5], [0.0, 0.0]])

    call_defense(ClipGradient(bound=2.0), rows, secrets_for_test(log=logged.__setitem__))

    power, signal = 3.0**2 / 4, (25.0 + 1.0 + 0.25) / 4
    assert logged == pytest.approx({"clipped_share": 0.25, "power": power, "noise_to_signal": power / signal})
    assert crossing_of(ClipGradient(bound=1.0)) == "gradient"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of bound and quantile"),
        ({"bound": 1.0, "quantile": 0.5}, "exactly one of bound and quantile"),
        ({"bound": 0.0}, "bound must be positive and finite, got 0.0"),
        ({"quantile": 1.0}, r"quantile must lie in \[0, 1\), got 1.0"),
        ({"quantile": -0.1}, r"quantile must lie in \[0, 1\)"),
        ({"quantile": math.nan}, r"quantile must lie in \[0, 1\)"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ClipGradient(**settings)
