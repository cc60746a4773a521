from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from splitvfl.defenses import Discretise
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, call_defense, crossing_of

SecretsFactory = Callable[..., Secrets]


def nearest_ends(gradient: torch.Tensor, bins: int) -> np.ndarray[Any, Any]:
    """List the ends of the bins; give each entry the one at the least distance."""
    values = gradient.numpy().astype(np.float64)
    ends = np.linspace(values.mean() - 2 * values.std(), values.mean() + 2 * values.std(), bins + 1)
    nearest = np.abs(values[..., None] - ends).argmin(axis=-1)
    found: np.ndarray[Any, Any] = ends[nearest]
    return found


@pytest.mark.parametrize("bins", [1, 2, 5, 6, 24])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
def test_every_entry_becomes_the_nearest_end(bins: int, scale: float, secrets_for_test: SecretsFactory) -> None:
    # Heavy tails: some entries lie far outside of the interval.
    rows = torch.randn(200, 5, generator=torch.Generator().manual_seed(bins), dtype=torch.float64)
    gradient = scale * (rows**3 + 0.3)

    sent = call_defense(Discretise(bins=bins), gradient, secrets_for_test())

    np.testing.assert_allclose(sent.numpy(), nearest_ends(gradient, bins), rtol=1e-9, atol=1e-9 * scale)
    assert len(np.unique(np.round(sent.numpy() / scale, 6))) == bins + 1


def test_entries_outside_become_the_ends(secrets_for_test: SecretsFactory) -> None:
    gradient = torch.zeros(100, 1)
    gradient[0], gradient[1] = 50.0, -50.0  # mean 0, deviation sqrt(50)

    sent = call_defense(Discretise(bins=4), gradient, secrets_for_test())

    end = 2 * 50.0**0.5
    # A few roundings of float32.
    torch.testing.assert_close(sent[:2, 0], torch.tensor([end, -end]), rtol=1e-6, atol=0)
    torch.testing.assert_close(sent[2:], torch.zeros(98, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.3, -1e-30])
def test_equal_entries_go_out_as_they_are(value: float, secrets_for_test: SecretsFactory) -> None:
    gradient = torch.full((4, 3), value)

    sent = call_defense(Discretise(), gradient, secrets_for_test())

    torch.testing.assert_close(sent, gradient, rtol=1e-6, atol=0)


def test_more_bins_change_less_and_it_is_logged(secrets_for_test: SecretsFactory) -> None:
    gradient = torch.randn(300, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(-1.5, 1.5)
    powers = []
    for bins in (2, 8, 32, 128):
        logged: dict[str, float] = {}
        sent = call_defense(Discretise(bins=bins), gradient, secrets_for_test(log=logged.__setitem__))
        powers.append(logged["power"])
        changed = (sent - gradient).square().sum(dim=1).mean().item()
        assert logged["power"] == pytest.approx(changed, rel=1e-9)
        assert logged["noise_to_signal"] == pytest.approx(changed / gradient.square().sum(dim=1).mean().item())

    assert powers == sorted(powers, reverse=True)
    # Rounding to steps of s leaves s² / 12 per entry; the clamped ends weigh little among 128 bins.
    step = 4 * gradient.std(correction=0).item() / 128
    assert powers[-1] == pytest.approx(4 * step**2 / 12, rel=0.2)
    assert crossing_of(Discretise()) == "gradient"


@pytest.mark.parametrize("bins", [0, -1, 2.0, True, "6"])
def test_bad_bins_are_refused(bins: Any) -> None:
    with pytest.raises(ArgumentError, match="whole number of at least 1"):
        Discretise(bins=bins)
