"""The benchmark of private steps, and that what it compares differs in what it says. How long it takes is no test's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scripts.bench import private_steps
from scripts.bench.measuring import main
from splitvfl.privacy import tight_hdp_sensitivity
from splitvfl.run.trainer import Trainer


def test_quick_run_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_steps, "QUICK_BATCH", 16)
    monkeypatch.setattr(private_steps, "EPOCHS", 1)
    out = tmp_path / "steps.json"

    assert main("steps", private_steps.measure, ["--quick", "--json", str(out)]) == 0

    rows = json.loads(out.read_text())["results"]
    assert [row["unit"] for row in rows] == ["of a step"] * 3 + ["ms"] * 3
    assert [row["target"] for row in rows] == [None, 0.1, None, None, None, None]


def test_without_noise_it_is_the_same_training_and_with_it_another() -> None:
    trainings = private_steps.Trainings(32)
    bare, hooked, clipped, noisy = (
        _weights(make()) for make in (trainings.bare, trainings.hooked, trainings.clipped, trainings.noisy)
    )

    assert torch.equal(bare, hooked)
    # Rows of norm 1 and weights in the ball of radius 1: no clip is reached, but for rounding.
    torch.testing.assert_close(clipped, bare, rtol=1e-5, atol=1e-6)
    assert (noisy - bare).norm() > 0.1


def _weights(trainer: Trainer) -> torch.Tensor:
    trainer.fit(private_steps.EPOCHS)
    return torch.cat([weight.detach().flatten() for weight in trainer.passives["shop"].module.parameters()])


def test_the_account_is_of_the_training_and_no_two_are_of_the_same() -> None:
    one, other = (private_steps.account(number, 64, 5, 2) for number in (0, 1))

    moved = tight_hdp_sensitivity(
        "passive", steps=10, epochs=2, batch_size=64, eta=0.1, k=1.0, lipschitz=1.0, weight_decay=1e-3
    )
    rounding = 2.0**-20 * (10 * 64) ** 0.5
    assert one.planned("shop").mu == pytest.approx(moved / private_steps.SIGMA + rounding, rel=1e-12)
    assert one.streams[1].terms() != other.streams[1].terms()
