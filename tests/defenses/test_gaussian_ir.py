from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from splitvfl.claims import claims_of, is_per_record
from splitvfl.defenses import GaussianIR
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, call_defense, crossing_of

SecretsFactory = Callable[..., Secrets]

# So small that only the clipped rows are left in float64.
SILENT = 1e-30


def test_long_rows_are_scaled_to_the_clip_and_short_ones_kept(secrets_for_test: SecretsFactory) -> None:
    activation = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-6e30, 8e30]], dtype=torch.float64)

    sent = call_defense(GaussianIR(clip=1.0, sigma=SILENT), activation, secrets_for_test())

    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [-0.6, 0.8]], dtype=torch.float64)
    torch.testing.assert_close(sent, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_row_is_longer_than_the_clip(dtype: torch.dtype, secrets_for_test: SecretsFactory) -> None:
    generator = torch.Generator().manual_seed(0)
    activation = torch.logspace(-30, 30, 2000, dtype=dtype).unsqueeze(1) * torch.randn(
        2000, 50, generator=generator, dtype=dtype
    )

    sent = call_defense(GaussianIR(clip=0.7, sigma=SILENT), activation, secrets_for_test())

    # Sums of 50 squares are off by a few roundings.
    assert sent.double().norm(dim=1).max().item() <= 0.7 * (1 + 16 * torch.finfo(dtype).eps)


def test_noise_has_the_given_deviation_whatever_the_row(secrets_for_test: SecretsFactory) -> None:
    activation = torch.zeros(4000, 16)
    activation[:2000] = 1000.0

    noise = call_defense(GaussianIR(clip=2.0, sigma=0.3), activation, secrets_for_test()) - activation * 0.0005 * (
        activation > 0
    )

    # The clipped rows are 2 / 4000 of 1000 in every coordinate. 32 000 draws each: standard error .4 %.
    assert noise[:2000].std().item() == pytest.approx(0.3, rel=0.016)
    assert noise[2000:].std().item() == pytest.approx(0.3, rel=0.016)
    assert noise.mean(dim=0).abs().max().item() < 5 * 0.3 / math.sqrt(4000)


def test_logs_power_and_share_of_clipped_rows(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}
    activation = torch.tensor([[2.0, 0.0], [0.5, 0.0], [1.0, 0.0], [3.0, 4.0]])

    call_defense(GaussianIR(clip=1.0, sigma=0.5), activation, secrets_for_test(log=logged.__setitem__))

    assert logged == pytest.approx({"power": 0.5, "clipped_share": 0.5})


def test_it_defends_activations_and_claims_a_guarantee_per_record() -> None:
    assert crossing_of(GaussianIR(clip=1.0, sigma=1.0)) == "activation"
    assert is_per_record(claims_of(GaussianIR(clip=1.0, sigma=0.5)))


@pytest.mark.parametrize(
    ("clip", "sigma", "message"),
    [(0.0, 1.0, "clip must be"), (1.0, 0.0, "sigma must be")],
)
def test_bad_settings_are_refused(clip: float, sigma: float, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        GaussianIR(clip=clip, sigma=sigma)
