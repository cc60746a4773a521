"""AxisSumKL: its noise along and off the gap, and the residual attack that reads SumKL."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.defenses.axis_sumkl import AxisSumKL
from splitvfl.defenses.solve_sumkl import solve_sumkl
from splitvfl.defenses.sumkl import SumKL
from splitvfl.hooks import call_defense
from splitvfl.metrics import leak_auc

SecretsFactory = Callable[..., Any]


def two_classes(n: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(n) % 2).float()
    scale = 0.5 + 0.5 * labels[:, None]
    gap = torch.randn(width, generator=generator)
    return torch.randn(n, width, generator=generator) * scale + labels[:, None] * gap, labels


def axis_problem(gradient: Tensor, labels: Tensor) -> tuple[np.ndarray[Any, Any], tuple[float, float, float], float]:
    """The axis, (u, v, gap) along it, and the largest norm off it, in float64 numpy."""
    rows, truth = gradient.double().numpy(), labels.numpy()
    delta = rows[truth == 1].mean(axis=0) - rows[truth == 0].mean(axis=0)
    axis = delta / np.linalg.norm(delta)
    along = rows @ axis
    off = rows - np.outer(along, axis)
    variances = along[truth == 0].var(), along[truth == 1].var()
    return axis, (*variances, delta @ delta), np.linalg.norm(off, axis=1).max()


def sent_and_log(
    defense: AxisSumKL | SumKL, gradient: Tensor, labels: Tensor, make: SecretsFactory, seed: int = 0
) -> tuple[Tensor, dict[str, float]]:
    log: dict[str, float] = {}
    sent = call_defense(defense, gradient, make(labels=labels, seed=seed, log=log.__setitem__))
    return sent, log


def test_noise_is_classwise_along_the_axis_and_the_same_off_it(secrets_for_test: SecretsFactory) -> None:
    n, width = 100_000, 4
    gradient, labels = two_classes(n, width)
    axis, (u, v, gap), peak = axis_problem(gradient, labels)
    solution = solve_sumkl(u, v, gap, 1, 0.5, 3.0)
    sent, log = sent_and_log(AxisSumKL(power=3.0), gradient, labels, secrets_for_test)
    noise = (sent.double() - gradient.double()).numpy()
    off = 25.0 * peak**2 / (width - 1)

    for label, along in ((0, solution.parallel_negative), (1, solution.parallel_positive)):
        part = noise[labels.numpy() == label]
        covariance = part.T @ part / len(part)
        rest = np.eye(width) - np.outer(axis, axis)
        # Sample variances of 50 000 rows have a relative standard error of √(2/50 000) = 0.6 %; five of them. Off the
        # axis, entries of the covariance have at most that of the variance.
        assert axis @ covariance @ axis == pytest.approx(along, rel=0.032)
        np.testing.assert_allclose(rest @ covariance @ rest, off * rest, atol=0.032 * off)
        # Along and off are independent: √(along · off / rows).
        np.testing.assert_allclose(rest @ covariance @ axis, 0.0, atol=5 * math.sqrt(along * off / len(part)))
    energy = gradient.double().square().sum(dim=1).mean().item()
    # 1e-5: float32 statistics.
    assert log["sum_kl"] == pytest.approx(solution.sum_kl, rel=1e-5)
    assert log["noise_to_signal"] == pytest.approx((3.0 + (width - 1) * off) / energy, rel=1e-5)


def test_at_width_one_it_is_sumkl(secrets_for_test: SecretsFactory) -> None:
    gradient, labels = two_classes(300, 1)
    one, log = sent_and_log(AxisSumKL(detection_error=0.3), gradient, labels, secrets_for_test)
    other, other_log = sent_and_log(SumKL(detection_error=0.3), gradient, labels, secrets_for_test)

    assert log == pytest.approx(other_log, rel=1e-5)
    # Both draw once per row; float32 statistics.
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_equal_means_leave_only_the_noise_off_the_axis(secrets_for_test: SecretsFactory) -> None:
    gradient = torch.cat([torch.eye(3), -torch.eye(3)]).repeat(2, 1)
    labels = torch.tensor([0] * 6 + [1] * 6)
    sent, log = sent_and_log(AxisSumKL(ratio=1.0), gradient, labels, secrets_for_test)

    assert log["power"] == 0.0
    assert log["sum_kl"] == 0.0
    # All rows have norm 1, off the first coordinate four in six: 25 · 1 over an energy of 1.
    assert log["noise_to_signal"] == pytest.approx(25.0, rel=1e-5)
    torch.testing.assert_close(sent[:, 0], gradient[:, 0], rtol=0, atol=1e-5)


def test_off_axis_noise_without_a_class_covers_earlier_batches(secrets_for_test: SecretsFactory) -> None:
    gradient, labels = two_classes(200, 4)
    _, _, peak = axis_problem(gradient, labels)
    defense = AxisSumKL(power=0.0)
    sent_and_log(defense, gradient, labels, secrets_for_test)
    weak = 0.01 * gradient
    _, log = sent_and_log(defense, weak, torch.zeros(200), secrets_for_test)

    energy = weak.double().square().sum(dim=1).mean().item()
    assert log["noise_to_signal"] == pytest.approx(25.0 * peak**2 / energy, rel=1e-4)


def residual_scores(sent: Tensor) -> Tensor:
    """What is left of every row without the batch's first singular direction; needs no labels."""
    rows = sent.double().numpy()
    first = np.linalg.svd(rows, full_matrices=False)[2][0]
    return torch.from_numpy(np.linalg.norm(rows - np.outer(rows @ first, first), axis=1))


def top_gradients(n: int, width: int, seed: int, *, hidden: int | None) -> tuple[Tensor, Tensor]:
    """Cut gradients of a linear top, or of one with a hidden ReLU layer."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=generator) < 0.3).float()
    residues = torch.sigmoid(torch.randn(n, generator=generator) + 1.2 * labels - 0.6) - labels
    if hidden is None:
        return residues[:, None] * torch.randn(width, generator=generator) / n, labels
    active = (torch.rand(n, hidden, generator=generator) < 0.5).float() * torch.randn(hidden, generator=generator)
    return residues[:, None] * (active @ torch.randn(hidden, width, generator=generator)) / n, labels


@pytest.mark.parametrize("hidden", [None, 16], ids=["collinear", "generic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("detection_error", [0.2, 0.4])
def test_residual_attack_is_at_the_null(
    hidden: int | None, dtype: torch.dtype, detection_error: float, secrets_for_test: SecretsFactory
) -> None:
    aucs = []
    for seed in range(10):
        gradient, labels = top_gradients(400, 16, seed, hidden=hidden)
        sent, log = sent_and_log(
            AxisSumKL(detection_error=detection_error), gradient.to(dtype), labels, secrets_for_test, seed
        )
        assert log["detection_error_bound"] >= detection_error
        aucs.append(leak_auc(residual_scores(sent), labels))

    # Under the null one AUC has the standard error √((120 + 280 + 1) / (12 · 120 · 280)) = 0.0315: 3.5 of them for the
    # worst of ten on either side, and four of 0.0315/√10 for the mean.
    assert max(abs(auc - 0.5) for auc in aucs) < 0.11
    assert np.mean(aucs) == pytest.approx(0.5, abs=0.04)
