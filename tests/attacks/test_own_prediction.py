from __future__ import annotations

import pytest
import torch
from torch import nn

from splitvfl.attacks import OwnPredictionAttack
from splitvfl.errors import HookError
from splitvfl.hooks import moment_of
from splitvfl.leakage.after_training import view_after_training
from splitvfl.models import Linear


def test_scores_are_the_own_part_of_the_logits() -> None:
    bottom = Linear(2, init="zero")
    nn.init.constant_(bottom.weight, 1.0)
    columns = torch.tensor([[1.0, 2.0], [-0.5, 0.25]])
    nothing = torch.zeros(0, dtype=torch.int64)
    view = view_after_training(bottom, columns, ids=torch.arange(2), known_positives=nothing, known_negatives=nothing)
    assert moment_of(OwnPredictionAttack()) == "after-training"
    assert OwnPredictionAttack()(view).tolist() == [3.0, -0.25]


def test_wider_outputs_are_refused() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    view = view_after_training(
        Linear(2, 3), torch.ones(4, 2), ids=torch.arange(4), known_positives=nothing, known_negatives=nothing
    )
    with pytest.raises(HookError, match=r"width 1, got shape \(4, 3\)"):
        OwnPredictionAttack()(view)
