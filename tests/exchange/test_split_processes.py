"""The same parties in one process, and each in its own with plain sockets between them, to the bit."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from splitvfl.defenses import GaussianIR, Isotropic
from splitvfl.exchange.prediction import predict
from tests.builders import ACTIVE, small_trainer
from tests.exchange.party_process import CLIP, RATIO, SIGMA, main
from tests.run.forked import FORKS

SETTINGS = {"dropout": 0.3, "seed": 7, "noise seed": 11, "batch size": 16}


def run_apart(passives: tuple[str, ...], settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run every party in its own process and return what each of them saved."""
    links = {name: socket.socketpair() for name in passives}
    ends: dict[str, dict[str, socket.socket]] = {ACTIVE: {name: pair[0] for name, pair in links.items()}}
    ends |= {name: {ACTIVE: pair[1]} for name, pair in links.items()}
    processes = {
        name: FORKS.Process(target=main, args=(name, settings, folder / f"{name}.pt", own))
        for name, own in ends.items()
    }
    for process in processes.values():
        process.start()
    for pair in links.values():
        for end in pair:
            end.close()
    for name, process in processes.items():
        process.join(120)
        assert process.exitcode == 0, name
    return {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in processes}


@pytest.mark.parametrize("passives", [("telecom",), ("telecom", "shop")], ids=["two parties", "three parties"])
def test_one_process_and_separate_processes_agree_to_the_bit(passives: tuple[str, ...], tmp_path: Path) -> None:
    apart = run_apart(passives, {**SETTINGS, "passives": passives}, tmp_path)
    trainer = small_trainer(
        passives,
        dropout=0.3,
        seed=7,
        noise_seed_for_experiments=11,
        defenses=[Isotropic(ratio=RATIO), GaussianIR(clip=CLIP, sigma=SIGMA)],
    )
    losses: list[float] = []
    trainer.fit(1, progress=lambda status: losses.append(status.loss))
    # Draws activation noise, as the processes do.
    published = predict(trainer.active, trainer.passives).scores
    for party in (trainer.active, *trainer.passives.values()):
        for name, weight in party.module.state_dict().items():
            assert torch.equal(weight, apart[party.name]["weights"][name]), f"{party.name}: {name}"
        assert torch.equal(published, apart[party.name]["scores"])
    assert losses == apart[ACTIVE]["losses"]


def test_with_one_shared_generator_they_would_not_agree() -> None:
    """Why each party swaps its own random state in: without it, dropout draws other numbers."""
    fitted = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        trainer = small_trainer(dropout=0.3)
        trainer.fit(1)
        fitted.append(predict(trainer.active, trainer.passives).outputs)
        assert torch.initial_seed() == seed
    assert torch.equal(*fitted)  # the global state outside has no part in it
    other = small_trainer(dropout=0.3, seed=0)
    other.passives["telecom"].random = other.active.random
    other.fit(1)
    assert not torch.equal(predict(other.active, other.passives).outputs, fitted[0])
