from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from splitvfl.defenses import AxisGaussian
from splitvfl.errors import ArgumentError
from splitvfl.hooks import call_defense
from splitvfl.metrics import leak_auc

SecretsFactory = Callable[..., Any]


def classes(n: int, width: int, *, distance: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two classes of one distribution, which is not Gaussian, shifted."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(n) % 2).double()
    gap = torch.zeros(width, dtype=torch.float64)
    gap[0] = distance
    common = torch.rand(n, width, generator=generator, dtype=torch.float64)
    return common + labels[:, None] * gap, labels


def test_noise_has_one_scale_and_one_direction(secrets_for_test: SecretsFactory) -> None:
    n = 50_000
    gradient, labels = classes(n, 3, distance=2.0)
    rows, truth = gradient.numpy(), labels.numpy()
    gap = rows[truth == 1].mean(axis=0) - rows[truth == 0].mean(axis=0)

    sent = call_defense(AxisGaussian(ratio=1.5), gradient, secrets_for_test(labels=labels))

    noise = (sent - gradient).numpy()
    along = noise @ gap / np.linalg.norm(gap)
    off = np.abs(noise - np.outer(along, gap / np.linalg.norm(gap)))
    assert off.max() < 1e-8  # sums are rounded to 2^-30 of the noise's scale, 3
    for label in (0, 1):
        part = along[truth == label]
        expected = 1.5 * np.linalg.norm(gap)
        # Five standard errors of a standard deviation and of a mean.
        assert part.std() == pytest.approx(expected, rel=5 / math.sqrt(n))
        assert part.mean() == pytest.approx(0.0, abs=5 * expected / math.sqrt(n / 2))


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_the_bound_is_the_overlap_of_two_gaussians(ratio: float, secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}
    gradient, labels = classes(200, 2, distance=1.0)

    call_defense(AxisGaussian(ratio=ratio), gradient, secrets_for_test(labels=labels, log=logged.__setitem__))

    def overlap(x: float) -> float:
        return min(stats.norm.pdf(x, 0, ratio), stats.norm.pdf(x, 1, ratio))

    error, _ = integrate.quad(overlap, -12 * ratio, 12 * ratio + 1, points=[0.5])
    assert logged["detection_error_bound"] == pytest.approx(error / 2, abs=1e-7)
    assert logged["power"] == pytest.approx(ratio**2, rel=0.2)  # the batch's gap is 1 up to sampling


def test_shifted_classes_are_not_detected_better_than_the_bound(secrets_for_test: SecretsFactory) -> None:
    gradient, labels = classes(100_000, 1, distance=1.0)

    # Another seed than the data: one stream would correlate the noise with the rows.
    sent = call_defense(AxisGaussian(detection_error=0.4), gradient, secrets_for_test(labels=labels, seed=1))

    scores = sent[:, 0]
    threshold = scores.median()
    error = 0.5 * float(
        (scores[labels == 0] > threshold).double().mean() + (scores[labels == 1] <= threshold).double().mean()
    )
    # .002 is one standard error of the mean of two shares at this size; the uniform classes add a little of their own.
    assert 0.4 - 0.01 < error < 0.43
    assert leak_auc(scores, labels) < 1 - 2 * 0.4**2


def test_the_detection_error_names_the_ratio() -> None:
    assert AxisGaussian(detection_error=0.4).ratio == pytest.approx(0.5 / stats.norm.ppf(0.6), rel=1e-9)


def test_sum_kl_is_that_of_the_noisy_classes(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(400) % 2).double()
    gradient = (torch.randn(400, 1, generator=generator, dtype=torch.float64) * (1 + labels[:, None])) + labels[:, None]

    call_defense(AxisGaussian(ratio=1.0), gradient, secrets_for_test(labels=labels, log=logged.__setitem__))

    rows, truth = gradient[:, 0].numpy(), labels.numpy()
    means = [rows[truth == label].mean() for label in (0, 1)]
    power = (means[1] - means[0]) ** 2
    spreads = [math.sqrt(rows[truth == label].var() + power) for label in (0, 1)]

    def divergence(first: int) -> float:
        one, other = (stats.norm(means[label], spreads[label]) for label in (first, 1 - first))
        return float(
            integrate.quad(
                lambda x: one.pdf(x) * (one.logpdf(x) - other.logpdf(x)), means[first] - 30, means[first] + 30
            )[0]
        )

    assert logged["sum_kl"] == pytest.approx(divergence(0) + divergence(1), rel=1e-6)


def test_a_batch_of_one_class_uses_earlier_statistics(secrets_for_test: SecretsFactory) -> None:
    gradient, labels = classes(400, 2, distance=3.0)
    defense = AxisGaussian(ratio=1.0)
    zeros = call_defense(defense, gradient[labels == 0], secrets_for_test(labels=labels[labels == 0]))
    call_defense(defense, gradient, secrets_for_test(labels=labels))

    sent = call_defense(defense, gradient[labels == 0], secrets_for_test(labels=labels[labels == 0]))

    assert not zeros.any()
    noise = (sent - gradient[labels == 0])[:, 0]
    # A batch of 200 of 400 rows sees means of twice the weight; its noise is of the gap's order in any case.
    assert noise.std() > 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of ratio and detection_error"),
        ({"ratio": 1.0, "detection_error": 0.4}, "exactly one"),
        ({"ratio": 0.0}, "positive and finite, got 0.0"),
        ({"detection_error": 0.5}, "strictly between 0 and 0.5, got 0.5"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AxisGaussian(**settings)


def test_rounding_off_the_line_does_not_tell_the_noise(secrets_for_test: SecretsFactory) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(4000) % 2).float()
    weight = torch.randn(16, generator=generator)
    # Below a linear top: every row a multiple of the weights.
    gradient = (0.2 - labels + 0.1 * torch.randn(4000, generator=generator))[:, None] * weight

    sent = call_defense(AxisGaussian(ratio=10.0), gradient, secrets_for_test(labels=labels, seed=1)).double()

    line = weight.double() / weight.double().norm()
    along = sent @ line
    off = sent - torch.outer(along, line)
    # An oracle's attack: the rounded axis lies off the line, so what is left off it tells how much noise a row got.
    drift = torch.linalg.svd(off, full_matrices=False).Vh[0]
    told = off @ drift
    noise = told * (told @ along) / (told @ told)
    # A shift of 1 under noise of 10 gives an AUC of .528; its standard error is .009.
    assert leak_auc(noise - along, labels) < 0.56
