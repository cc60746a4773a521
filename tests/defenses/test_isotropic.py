from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from splitvfl.defenses import Isotropic
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, call_defense

SecretsFactory = Callable[..., Secrets]


def gradient_of(n: int, width: int, magnitude: float = 1.0) -> torch.Tensor:
    return magnitude * torch.randn(n, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("magnitude", [1e-30, 1e-12, 1.0, 1e6])
@pytest.mark.parametrize("settings", [{}, {"ratio": 0.5}])
def test_noise_scale_follows_the_largest_row(
    magnitude: float, settings: dict[str, float], secrets_for_test: SecretsFactory
) -> None:
    gradient = gradient_of(4000, 16, magnitude)

    noise = (call_defense(Isotropic(**settings), gradient, secrets_for_test()) - gradient).double() / magnitude

    peak = (gradient.double() / magnitude).norm(dim=1).max().item()
    expected = settings.get("ratio", 5.0) * peak / math.sqrt(16)
    # 64 000 draws: the standard deviation has a relative standard error of .3 %, means one of .4 % of sigma.
    assert noise.std().item() == pytest.approx(expected, rel=0.012)
    assert abs(noise.mean().item()) < 0.016 * expected
    assert noise.std(dim=0).tolist() == pytest.approx([expected] * 16, rel=0.06)


def test_sigma_is_the_deviation_of_every_coordinate(secrets_for_test: SecretsFactory) -> None:
    gradient = gradient_of(4000, 16)

    noise = call_defense(Isotropic(sigma=0.25), gradient, secrets_for_test()) - gradient

    # 64 000 draws: relative standard error .3 %.
    assert noise.std().item() == pytest.approx(0.25, rel=0.012)


def test_logs_power_and_ratio(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}
    gradient = torch.tensor([[3.0, 4.0], [0.0, 1.0]])

    call_defense(Isotropic(), gradient, secrets_for_test(log=logged.__setitem__))
    assert logged == pytest.approx({"power": 25.0**2, "noise_to_signal": 25.0**2 / 13})

    call_defense(Isotropic(sigma=2.0), gradient, secrets_for_test(log=logged.__setitem__))
    assert logged == pytest.approx({"power": 8.0, "noise_to_signal": 8.0 / 13})


def test_zeros_stay_zeros_under_a_ratio_and_not_under_sigma(secrets_for_test: SecretsFactory) -> None:
    zeros = torch.zeros(8, 4)

    assert torch.equal(call_defense(Isotropic(), zeros, secrets_for_test()), zeros)
    assert call_defense(Isotropic(sigma=1.0), zeros, secrets_for_test()).std().item() > 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 1.0, "sigma": 1.0}, "ratio or sigma, got both"),
        ({"ratio": 0.0}, "ratio must be positive and finite, got 0.0"),
        ({"sigma": -1.0}, "sigma must be positive and finite, got -1.0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Isotropic(**settings)
