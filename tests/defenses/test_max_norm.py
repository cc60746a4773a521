from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from splitvfl.attacks import NormAttack
from splitvfl.defenses import MaxNorm
from splitvfl.hooks import Secrets, View, call_attack, call_defense
from splitvfl.metrics import leak_auc

SecretsFactory = Callable[..., Secrets]


def test_rows_share_the_expected_squared_norm_and_keep_their_mean(secrets_for_test: SecretsFactory) -> None:
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4], [-3.0, 0.0]])  # norms 5, 0.5 and 3

    draws = call_defense(MaxNorm(), gradient.repeat(10_000, 1), secrets_for_test()).reshape(10_000, 3, 2)

    squared_norms = draws.square().sum(dim=2).mean(dim=0)
    # Five standard errors: those of the second row's squared norm are 1.4 % of 25, of means 5 / sqrt(10 000).
    torch.testing.assert_close(squared_norms, torch.full((3,), 25.0), rtol=0.07, atol=0)
    torch.testing.assert_close(draws.mean(dim=0), gradient, rtol=0, atol=0.25)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-12, 1.0, 1e6])
def test_noise_is_along_the_row_with_the_written_scale(magnitude: float, secrets_for_test: SecretsFactory) -> None:
    gradient = magnitude * torch.randn(50, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    sent = call_defense(MaxNorm(), gradient, secrets_for_test(seed=7)) / magnitude

    z = secrets_for_test(seed=7).normal(50)
    rows = gradient / magnitude
    norms = rows.norm(dim=1)
    for i in range(50):
        scale = math.sqrt(max(norms.max().item() ** 2 - norms[i].item() ** 2, 0.0))
        expected = rows[i] * (1.0 + z[i] * scale / norms[i])
        # Near the peak the square root of the difference of squares loses half the digits; the sum is rounded to 2^-30.
        torch.testing.assert_close(sent[i], expected, rtol=0, atol=1e-7)


def test_tiny_rows_beside_large_ones_get_finite_noise_of_the_peak(secrets_for_test: SecretsFactory) -> None:
    gradient = torch.zeros(2001, 3)
    gradient[0] = 1.0
    gradient[1:, 1] = 1e-30  # squares vanish in float32

    sent = call_defense(MaxNorm(), gradient, secrets_for_test())

    # 2000 draws: five standard errors of a mean square are 16 %.
    assert sent[1:].square().sum(dim=1).mean().item() == pytest.approx(3.0, rel=0.16)
    assert 0 < sent[1:, [0, 2]].abs().max() < 1e-4  # covers roundings of numbers near 4, and no more


def test_zero_rows_and_the_largest_row_are_sent_as_they_are(secrets_for_test: SecretsFactory) -> None:
    gradient = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])

    sent = call_defense(MaxNorm(), gradient, secrets_for_test())

    assert torch.equal(sent[:2], gradient[:2])
    assert torch.equal(call_defense(MaxNorm(), torch.zeros(4, 2), secrets_for_test()), torch.zeros(4, 2))


def test_norms_give_less_away_and_direction_stays(secrets_for_test: SecretsFactory) -> None:
    labels = torch.tensor([1.0] * 100 + [0.0] * 900)
    gradient = torch.outer(0.1 - labels, torch.tensor([1.0, 2.0, -1.0]))

    sent = call_defense(MaxNorm(), gradient, secrets_for_test())

    view = View(party="telecom", step=0, ids=torch.arange(1000), gradient=sent)
    assert abs(leak_auc(call_attack(NormAttack(), view), labels) - 0.5) < 0.35
    cosines = torch.nn.functional.cosine_similarity(sent, gradient)
    torch.testing.assert_close(cosines.abs(), torch.ones(1000), rtol=0, atol=1e-4)


def test_logs_mean_power(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}

    call_defense(MaxNorm(), torch.tensor([[3.0, 4.0], [3.0, 0.0]]), secrets_for_test(log=logged.__setitem__))

    assert logged == pytest.approx({"power": 16.0 / 2, "noise_to_signal": 8.0 / ((25 + 9) / 2)})
