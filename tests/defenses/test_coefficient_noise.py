from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from scipy.stats import kstest, norm

from splitvfl.claims import NoPromise
from splitvfl.defenses import CoefficientNoise
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, call_defense

SecretsFactory = Callable[..., Secrets]


@pytest.mark.parametrize("n", [20_000, 30_000])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_coefficients_get_noise_of_sigma_whatever_the_batch(
    n: int, scale: float, secrets_for_test: SecretsFactory
) -> None:
    coefficients = torch.linspace(-2, 2, n, dtype=torch.float64)
    defense = CoefficientNoise(sigma=3.0, clip=5.0, scale=scale)
    sent = call_defense(defense, (coefficients / (scale * n)).unsqueeze(1), secrets_for_test())
    noise = sent[:, 0] * scale * n - coefficients
    # One test in a thousand fails where all is well; the seed is fixed.
    assert kstest(noise.numpy(), "norm", args=(0, 3.0)).pvalue > 0.001


def test_coefficients_are_clipped_first(secrets_for_test: SecretsFactory) -> None:
    coefficients = torch.tensor([-9.0, -1.0, 0.0, 4.0], dtype=torch.float64)
    logged: dict[str, float] = {}
    defense = CoefficientNoise(sigma=1e-9, clip=2.0, scale=4.0)
    sent = call_defense(defense, (coefficients / 16).unsqueeze(1), secrets_for_test(log=logged.__setitem__))
    # Noise of 1e-9, four draws.
    torch.testing.assert_close(sent[:, 0] * 16, coefficients.clamp(-2, 2), rtol=0, atol=1e-8)
    assert logged["clipped_share"] == 0.5
    assert logged["power"] == pytest.approx((1e-9 / 16) ** 2)


@pytest.mark.parametrize("settings", [{"sigma": 0.0}, {"clip": -1.0}, {"scale": math.inf}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="must be positive and finite"):
        CoefficientNoise(**({"sigma": 1.0, "clip": 1.0} | settings))


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_an_average_reads_as_many_labels_as_is_said(scale: float, secrets_for_test: SecretsFactory) -> None:
    """The logistic loss's own gradient at logits of 0, through four draws of the noise."""
    n, epochs, sigma = 20_000, 4, scale * 2.0
    labels = torch.arange(n).remainder(2).double()
    logits = torch.zeros(n, 1, dtype=torch.float64, requires_grad=True)
    # At logits of 0 Taylor's sigmoid has the same derivative.
    torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels).backward()
    assert logits.grad is not None
    defense = CoefficientNoise(sigma=sigma, clip=scale, scale=scale)
    secrets = secrets_for_test()
    seen = sum(call_defense(defense, logits.grad, secrets) for _ in range(epochs))
    read = ((seen[:, 0] < 0) == labels.bool()).double().mean().item()
    (said,) = [claim for claim in defense.claims() if isinstance(claim, NoPromise)]
    (factor,) = re.findall(r"Φ\(([\d.]+)√E/σ\)", str(said))
    # A share of 20,000 is known to .0033.
    assert read == pytest.approx(norm.cdf(float(factor) * math.sqrt(epochs) / sigma), abs=0.012)
