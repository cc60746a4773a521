from __future__ import annotations

import numpy as np
import pytest
import torch

from splitvfl.attacks import ResidualAttack
from splitvfl.hooks import View, call_attack
from splitvfl.metrics import leak_auc


def scores_of(gradient: torch.Tensor) -> torch.Tensor:
    view = View(party="telecom", step=0, ids=torch.arange(gradient.shape[0]), gradient=gradient)
    return call_attack(ResidualAttack(), view)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("magnitude", [1e-200, 1e-12, 1.0, 1e6, 1e200])
def test_score_is_what_the_first_singular_direction_leaves(magnitude: float) -> None:
    # A mean far from zero, so that centring the batch first would give another direction.
    gradient = noise(40, 6) + 3.0 * noise(6, seed=1)

    scores = scores_of(magnitude * gradient)

    _, _, right = np.linalg.svd(gradient.numpy(), full_matrices=False)
    rest = gradient.numpy() - np.outer(gradient.numpy() @ right[0], right[0])
    # The eigenvector of a Gram matrix with a clear gap is right to about 1e-14.
    np.testing.assert_allclose(scores.numpy() / magnitude, np.linalg.norm(rest, axis=1), rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [2, 16, 128])
def test_collinear_gradients_give_ties(dtype: torch.dtype, width: int) -> None:
    residues = noise(500, dtype=dtype) * torch.logspace(-6, 0, 500, dtype=dtype)
    gradient = torch.outer(residues, noise(width, seed=1, dtype=dtype))

    scores = scores_of(gradient)

    assert scores.tolist() == [0.0] * 500
    assert leak_auc(scores, (residues > 0).double()) == 0.5


def test_residuals_above_rounding_are_kept() -> None:
    gradient = torch.outer(noise(50, dtype=torch.float32).abs() + 1.0, torch.tensor([1.0, 2.0, 2.0]))
    marked = gradient.clone()
    marked[7] += torch.tensor([0.0, 1e-4, -1e-4])  # a hundred roundings, off the axis

    scores = scores_of(marked)

    assert scores.nonzero().flatten().tolist() == [7]


def test_noise_on_one_class_only_marks_it() -> None:
    labels = torch.tensor([1.0] * 10 + [0.0] * 90)
    axis = noise(8, seed=1, dtype=torch.float32)
    gradient = torch.outer(0.1 - labels, axis)
    sent = gradient + 0.05 * labels.unsqueeze(1) * noise(100, 8, seed=2, dtype=torch.float32)

    assert leak_auc(scores_of(sent), labels) > 0.95


@pytest.mark.parametrize("gradient", [torch.randn(5, 1, generator=torch.Generator().manual_seed(0)), torch.zeros(5, 3)])
def test_width_one_and_zeros_say_nothing(gradient: torch.Tensor) -> None:
    assert scores_of(gradient).tolist() == [0.0] * 5


def test_the_received_gradient_is_left_alone() -> None:
    gradient = noise(6, 3)
    before = gradient.clone()

    scores_of(gradient)

    assert torch.equal(gradient, before)


@pytest.mark.parametrize("marked", [0.0, 1.0])
def test_whichever_class_is_marked_the_rarer_one_scores_higher(marked: float) -> None:
    labels = torch.tensor([1.0] * 10 + [0.0] * 90)
    axis = noise(8, seed=1)
    off_axis = noise(100, 8, seed=2)
    sent = torch.outer(0.1 - labels, axis) + 0.05 * (labels == marked).unsqueeze(1) * off_axis

    assert leak_auc(scores_of(sent), labels) == 1.0
