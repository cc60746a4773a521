from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from splitvfl.attacks import orthogonal_twin
from splitvfl.errors import ArgumentError
from splitvfl.learning.losses import Approximation
from splitvfl.learning.sigmoid_coefficients import sigmoid_coefficients


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def transcript(
    features: Tensor, weights: Tensor, *, approximation: Approximation = "taylor", l2: float = 0.1, l1: float = 0.0
) -> Tensor:
    """Every inner product that the passive party sends in 3 epochs of batches of 8, with momentum and penalties."""
    own, labels = draw(40, 3, seed=1), torch.sign(draw(40, seed=2))
    own_weights, weights, velocity = draw(3, seed=3), weights.clone(), torch.zeros_like(weights)
    sent = []
    for step in range(15):
        batch = torch.arange(40)[step * 8 % 40 :][:8]
        products = features[batch] @ weights
        sent.append(products)
        residues = sigmoid_coefficients(own[batch] @ own_weights + products, labels[batch], approximation=approximation)
        own_weights = own_weights - 0.05 * own[batch].T @ residues / 8
        velocity = 0.5 * velocity + features[batch].T @ residues / 8 + l2 * weights + l1 * torch.sign(weights)
        weights = weights - 0.05 * velocity
    return torch.stack(sent)


@pytest.mark.parametrize("approximation", ["taylor", "piecewise", "exact"])
@pytest.mark.parametrize("width", [2, 5])
def test_the_twin_sends_the_same_messages_from_other_features(approximation: Approximation, width: int) -> None:
    features, weights = 0.3 * draw(40, width, seed=4), 0.1 * draw(width, seed=5)

    twin, turned = orthogonal_twin(features, weights, seed=6)

    # 15 steps of sums of eight products: roundings of 1e-16 each, on messages of size 1.
    torch.testing.assert_close(
        transcript(twin, turned, approximation=approximation),
        transcript(features, weights, approximation=approximation),
        rtol=0,
        atol=1e-13,
    )
    assert (twin - features).abs().max() > 0.1
    assert (twin.abs() - features.abs()).abs().max() > 0.1


def test_weights_of_zero_stay_zero_and_normal_ones_keep_their_norm() -> None:
    zeros = orthogonal_twin(draw(5, 3), torch.zeros(3, dtype=torch.float64), seed=0)[1]
    normal = orthogonal_twin(draw(5, 3), draw(3, seed=1), seed=0)[1]

    assert zeros.tolist() == [0.0, 0.0, 0.0]
    # The density of independent normal weights depends on the norm alone.
    assert normal.norm().item() == pytest.approx(draw(3, seed=1).norm().item(), rel=1e-14)


def test_uniform_first_weights_tell_a_twin_from_the_truth() -> None:
    # A corner of the square that Kaiming's uniform weights fill: turned, it sticks out.
    corner = torch.ones(2, dtype=torch.float64)

    outside = [orthogonal_twin(draw(3, 2), corner, seed=seed)[1].abs().max().item() > 1 + 1e-9 for seed in range(20)]

    assert sum(outside) >= 19  # only turns by multiples of a right angle would not


def test_an_l1_penalty_tells_them_apart() -> None:
    features, weights = 0.3 * draw(40, 3, seed=4), 0.1 * draw(3, seed=5)

    twin, turned = orthogonal_twin(features, weights, seed=6)

    assert (transcript(twin, turned, l1=0.1) - transcript(features, weights, l1=0.1)).abs().max() > 1e-4


def test_turns_are_uniform() -> None:
    rows = torch.stack([orthogonal_twin(torch.eye(3), torch.zeros(3), seed=seed)[0] for seed in range(2000)])

    # Every entry has mean 0 and variance 1/3; the standard errors of 2000 are .013 and about .007. Four of them.
    assert rows.mean(dim=0).abs().max() < 4 * math.sqrt(1 / 3 / 2000)
    assert (rows.square().mean(dim=0) - 1 / 3).abs().max() < 0.03
    assert (torch.linalg.det(rows) > 0).double().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("features", "weights", "message"),
    [
        (draw(4, 1), draw(1), "expected two columns or more, got 1"),
        (draw(4, 3), draw(2), r"got \(4, 3\) and \(2,\)"),
        (draw(4), draw(4), r"expected features \(n, d\)"),
        (torch.full((2, 2), math.nan), torch.zeros(2), "features holds NaN"),
        (torch.zeros(2, 2), torch.tensor([0.0, math.inf]), "weights holds NaN or infinite"),
        (torch.ones(2, 2, dtype=torch.int64), torch.zeros(2), "features of a floating-point dtype"),
    ],
)
def test_bad_input_is_refused(features: Tensor, weights: Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        orthogonal_twin(features, weights, seed=0)
