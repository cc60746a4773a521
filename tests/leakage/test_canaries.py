"""Canaries: coin-toss labels in training, and what attacks read of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from splitvfl import checkpoint
from splitvfl.attacks import NormAttack
from splitvfl.training import Trainer
from tests.builders import ACTIVE, small_trainer, weights

SIZES = {"train": 400, "test": 40}


def trainer(**settings: Any) -> Trainer:
    return small_trainer(sizes=SIZES, **{"canaries": 60, "batch_size": 50, **settings})


def coins_of(run: Trainer) -> tuple[list[int], list[int]]:
    """Positions and coins."""
    assert run.active.canaries is not None
    state = run.active.canaries.state_dict()
    return state["positions"].tolist(), state["coins"].tolist()


def trained_labels(run: Trainer) -> Tensor:
    labels = run.active.train_batch(torch.arange(run.active.data.train.count)).labels
    assert labels is not None
    return labels


def test_only_the_chosen_records_have_a_coin_for_a_label_and_always_the_same() -> None:
    run = trainer()
    positions, coins = coins_of(run)
    true = run.active.data.train.labels
    assert true is not None
    expected = true.clone()
    expected[positions] = torch.tensor(coins, dtype=expected.dtype)
    assert torch.equal(trained_labels(run), expected)
    assert torch.equal(trained_labels(run), expected)
    assert not torch.equal(expected, true)
    assert len(set(positions)) == 60
    assert 0 < sum(coins) < 60


def test_they_come_from_entropy_unless_an_experiment_fixes_them() -> None:
    assert coins_of(trainer(seed=3)) != coins_of(trainer(seed=3))
    fixed = coins_of(trainer(seed=3, noise_seed_for_experiments=5))
    assert fixed == coins_of(trainer(seed=4, noise_seed_for_experiments=5))
    assert fixed != coins_of(trainer(seed=3, noise_seed_for_experiments=6))


def test_a_run_goes_on_with_its_own_to_the_bit(tmp_path: Any) -> None:
    def make(folder: Any) -> Trainer:
        return trainer(attacks=[NormAttack()], log_dir=folder)

    straight = make(tmp_path / "straight")
    straight.fit(1)
    parts = checkpoint.load(checkpoint.latest(tmp_path / "straight" / "checkpoints"))  # type: ignore[arg-type]
    resumed = make(tmp_path / "straight")
    assert coins_of(resumed) != coins_of(straight)
    resumed.resume()
    assert coins_of(resumed) == coins_of(straight)
    assert torch.equal(trained_labels(resumed), trained_labels(straight))
    straight.fit(3)
    resumed.fit(3)
    assert {name: value.tolist() for name, value in weights(resumed).items()} == {
        name: value.tolist() for name, value in weights(straight).items()
    }
    assert resumed.watch.canaries("telecom") == straight.watch.canaries("telecom")
    # Nowhere else than in the label party's own part.
    holders = [part for part, state in parts.items() if "coins" in repr(state)]
    assert holders == [f"hooks-{ACTIVE}"]
