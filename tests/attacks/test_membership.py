"""Attacks on membership: the threshold is the loss, and what activations say of difficulty is taken off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.attacks import CalibratedLossAttack, LossThresholdAttack
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, call_attack
from splitvfl.metrics import leak_auc

RECORDS = 600


def seen(*, fitted: float, seed: int = 0) -> tuple[View, Tensor]:
    """Records of which some are hard, as two of three activations say; members' losses are smaller by a factor."""
    random = torch.Generator().manual_seed(seed)
    activation = torch.randn(RECORDS, 3, generator=random)
    member = torch.rand(RECORDS, generator=random) < 0.5
    hard = 2.0 * activation[:, 0] - activation[:, 1] + 0.5 * torch.randn(RECORDS, generator=random)
    ids = torch.randperm(RECORDS, generator=random) * 3
    known = torch.arange(RECORDS) < 100
    view = View(
        party="bank",
        step=0,
        ids=ids,
        losses=(hard - fitted * member).exp().double(),
        received_activation=activation,
        known_others=ids[known & ~member],
    )
    return view, member


def auc(attack: Any, view: View, member: Tensor) -> float:
    return leak_auc(call_attack(attack, view)[100:], member[100:])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_activations_say_how_hard_a_record_is_calibration_tells_members(seed: int) -> None:
    """Φ(1 / (.5 √2)) = .92, with difficulty known exactly; and by the loss alone Φ(1 / √10.5) = .62.

    Five hundred records leave a standard error of .013 and .025.
    """
    view, member = seen(fitted=1.0, seed=seed)
    assert auc(CalibratedLossAttack(), view, member) == pytest.approx(0.92, abs=0.04)
    assert auc(LossThresholdAttack(), view, member) == pytest.approx(0.62, abs=0.07)


@pytest.mark.parametrize("make", [LossThresholdAttack, CalibratedLossAttack])
def test_of_a_model_that_fits_all_alike_nothing_is_read(make: Any) -> None:
    """Five hundred records: .05 is two standard errors, of a fixed seed."""
    view, member = seen(fitted=0.0)
    assert auc(make(), view, member) == pytest.approx(0.5, abs=0.05)


def test_losses_of_zero_are_scored() -> None:
    view, _ = seen(fitted=1.0)
    losses = view.losses
    losses[:50] = 0.0
    found = call_attack(CalibratedLossAttack(), view.granting(losses=losses))
    assert bool(torch.isfinite(found).all())


def test_settings_and_known_records_have_limits() -> None:
    with pytest.raises(ArgumentError, match=r"known_share must be above 0 and below 1, got 1.0"):
        CalibratedLossAttack(known_share=1.0)
    view, _ = seen(fitted=1.0)
    with pytest.raises(ArgumentError, match="at least 2 known records"):
        call_attack(CalibratedLossAttack(), view.granting(known_others=view.known_others[:1]))
