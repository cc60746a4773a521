"""The trainer that users import: its keyword arguments are a plan, each under its own name."""

from __future__ import annotations

from dataclasses import MISSING, fields
from inspect import signature
from typing import Any

import pytest
import torch

from splitvfl.app.trainer import Trainer
from splitvfl.exchange.split import Split
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.run.plan import TrainingPlan
from tests.builders import small_trainer

GIVEN: dict[str, Any] = {
    "exchange": Split(),
    "epochs": 4,
    "batch_size": 12,
    "drop_last": True,
    "block_rows": 2,
    "shards": 2,
    "seed": 5,
    "noise_seed_for_experiments": 7,
    "known_positives": 3,
    "known_negatives": 2,
    "audit": False,
    "log_every": 3,
    "checkpoint_every": 5,
    "evaluate_every": 2,
    "early_stopping": EarlyStopping(patience=2),
    "device": "cpu",
    "autocast": torch.bfloat16,
    "wire": torch.bfloat16,
}


def test_what_a_trainer_is_given_is_in_its_plan() -> None:
    plan = small_trainer(**GIVEN)._training_plan
    assert {name: getattr(plan, name) for name in GIVEN} == GIVEN
    audited = {"audit": True, "canaries": 20}
    plan = small_trainer(**audited)._training_plan
    assert {name: getattr(plan, name) for name in audited} == audited
    # Nothing else is in a plan but what follows from these.
    assert {one.name for one in fields(TrainingPlan)} == GIVEN.keys() | audited.keys() | {"noise_epochs"}


@pytest.mark.parametrize("name", sorted({*GIVEN, "canaries"} - {"exchange"}))
def test_a_trainer_and_a_plan_have_the_same_defaults(name: str) -> None:
    default = {one.name: one.default for one in fields(TrainingPlan)}[name]
    assert default is not MISSING
    assert signature(Trainer).parameters[name].default == default
