from __future__ import annotations

import math

import pytest
import torch

from splitvfl.attacks import NormAttack
from splitvfl.hooks import View, call_attack
from splitvfl.metrics import leak_auc


def view_of(gradient: torch.Tensor) -> View:
    return View(party="telecom", step=0, ids=torch.arange(gradient.shape[0]), gradient=gradient)


@pytest.mark.parametrize("magnitude", [1e-12, 1.0, 1e6])
def test_score_is_the_root_of_the_sum_of_squares(magnitude: float) -> None:
    gradient = magnitude * torch.randn(7, 5, generator=torch.Generator().manual_seed(0))

    scores = call_attack(NormAttack(), view_of(gradient))

    expected = [math.sqrt(sum(entry * entry for entry in row)) for row in gradient.tolist()]
    # float32 keeps about seven digits.
    torch.testing.assert_close(scores.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_rare_positives_of_a_surprised_model_score_highest() -> None:
    labels = torch.tensor([0.0] * 95 + [1.0] * 5)
    prediction = 0.05
    gradient = torch.outer(prediction - labels, torch.tensor([0.3, -0.4]))

    assert leak_auc(call_attack(NormAttack(), view_of(gradient)), labels) == 1.0
