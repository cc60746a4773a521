"""What a party does with what it kept: of a run that goes back, that has other settings now, or that broke off last."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from splitvfl.app.deployment import party_run
from splitvfl.config.sections import parse_config
from splitvfl.cut.chain import DefenseChain
from splitvfl.defenses import GaussianIR
from splitvfl.errors import CheckpointError, LinkError
from splitvfl.messaging.conversation import Half
from splitvfl.run import checkpoint
from splitvfl.run.networked import ActiveRun, PassiveRun
from splitvfl.run.party_training import ActiveTraining
from splitvfl.run.written_files import FAREWELL_FILE
from tests.run.parties import free_ports

FILE = """
data: {{name: breast-cancer}}
parties:
  clinic: {{role: active, columns: ["mean *"], address: "127.0.0.1:{port}"}}
  lab: {{role: passive, columns: ["* error", "worst *"]}}
model: logistic-regression
train: {{epochs: 2, batch_size: 128, seed: {seed}, checkpoint_every_steps: 1, loss: {loss}}}
network: {{listen: "127.0.0.1:{port}", plaintext_on_loopback: true, retries: 0, meeting_s: 60, message_s: 60}}
audit: false
"""


@pytest.fixture
def party(tmp_path: Path) -> Callable[..., ActiveRun | PassiveRun]:
    """``party(name, *changes, seed=0, loss="null")``: a party's run, in the folder of its name."""
    (port,) = free_ports(1)

    def make(name: str, *changes: str, seed: int = 0, loss: str = "null") -> ActiveRun | PassiveRun:
        (tmp_path / name).mkdir(exist_ok=True)
        text = FILE.format(port=port, seed=seed, loss=loss)
        config = parse_config(text, source=tmp_path / "run.yaml", overrides=changes)
        return party_run(config, name, tmp_path / name)

    return make


def run_together(*runs: ActiveRun | PassiveRun) -> None:
    with ThreadPoolExecutor(len(runs)) as pool:
        for done in [pool.submit(run.run) for run in runs]:
            done.result()


def checkpoints(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "checkpoints"))


def test_checkpoints_after_the_step_that_all_go_back_to_are_gone(
    party: Callable[..., ActiveRun | PassiveRun], tmp_path: Path
) -> None:
    run_together(party("clinic"), party("lab"))
    whole = checkpoints(tmp_path / "lab")
    newest = checkpoint.latest(tmp_path / "clinic" / "checkpoints")
    assert newest is not None
    checkpoint.remove(newest)
    for name in ("clinic", "lab"):
        (tmp_path / name / FAREWELL_FILE).unlink()

    run_together(party("clinic"), party("lab"))

    # One that had stayed would have its name still, and the new one of the same step another.
    assert checkpoints(tmp_path / "clinic") == checkpoints(tmp_path / "lab") == whole


def test_a_run_does_not_go_on_with_other_settings(party: Callable[..., ActiveRun | PassiveRun], tmp_path: Path) -> None:
    run_together(party("clinic"), party("lab"))

    for name in ("clinic", "lab"):
        with pytest.raises(CheckpointError, match="seed of the order was 0 and is 1; start anew with --overwrite"):
            party(name, seed=1).run()


def test_a_run_does_not_go_on_with_another_loss(party: Callable[..., ActiveRun | PassiveRun], tmp_path: Path) -> None:
    """Not one that has ended either: its saved half would get scores of a loss that it was not trained with."""
    run_together(party("clinic"), party("lab"))

    with pytest.raises(CheckpointError, match=r'loss was the usual one and is \{"name": "logistic"\}; start anew'):
        party("clinic", loss="logistic").run()
    # It is the label party's own business.
    party("lab", loss="logistic").run()


def test_a_checkpoint_from_before_a_loss_could_be_named_is_of_the_usual_one(
    party: Callable[..., ActiveRun | PassiveRun], tmp_path: Path
) -> None:
    run_together(party("clinic"), party("lab"))
    newest = checkpoint.latest(tmp_path / "clinic" / "checkpoints")
    assert newest is not None
    parts = checkpoint.load(newest)
    del parts["run"]["terms"]["loss"]
    checkpoint.remove(newest)
    checkpoint.save(newest.parent, parts["run"]["step"], parts)

    party("clinic").run()
    with pytest.raises(CheckpointError, match="loss was the usual one"):
        party("clinic", loss="logistic").run()


NOISE = "defenses=[{{name: gaussian-ir, clip: 1.0, sigma: {}}}]"


def test_of_one_noise_on_two_scales_the_message_is_read() -> None:
    """Why the settings behind noise must not change between two looks at one step."""
    message = torch.linspace(-0.5, 0.5, 6).unsqueeze(1)
    state, sent = None, []
    for sigma in (1.0, 2.0):
        chain = DefenseChain("activation", "lab")
        chain.attach(GaussianIR(clip=1.0, sigma=sigma))
        if state is None:
            chain.draw_generators(message.device)
            state = chain.state_dict()
        chain.load_state_dict(state)
        sent.append(chain.apply(message, step=0, ids=None, labels=None).double())
    read = 2 * sent[0] - sent[1]
    # The grid of the noise is 2^-20 of sigma, and float32 has 24 bits of sums of a few units.
    assert (read - message).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ((NOISE.format(2.0),), "defenses"),
        ((NOISE.format(1.0), "train.optimizer.lr=0.5"), "optimizer"),
        ((NOISE.format(1.0), "train.optimizer={name: proximal-sgd, lr: 0.01, l1: 0.5}"), "optimizer"),
        ((NOISE.format(1.0), "model={name: logistic-regression, init: zero}"), "model"),
    ],
)
def test_a_run_with_noise_does_not_go_on_with_other_settings_behind_it(
    changes: tuple[str, ...], name: str, party: Callable[..., ActiveRun | PassiveRun], tmp_path: Path
) -> None:
    before = (NOISE.format(1.0), "train.optimizer={name: sgd, lr: 0.01}", "train.epochs=1")
    run_together(party("clinic", "train.epochs=1"), party("lab", *before))

    changed = [*before[1:], *changes] if "optimizer=" not in changes[-1] else ["train.epochs=1", *changes]
    with pytest.raises(CheckpointError, match=rf"belongs to another run: {name} was .* and is .*; start anew"):
        party("lab", *changed).run()


def test_a_run_without_noise_does_not_go_on_with_another_rate_either(
    party: Callable[..., ActiveRun | PassiveRun], tmp_path: Path
) -> None:
    run_together(party("clinic"), party("lab"))

    before = checkpoints(tmp_path / "lab")
    with pytest.raises(
        CheckpointError, match=r"optimizer was .* and is .*0\.5"
    ):  # that of the checkpoint would be used
        party("lab", "train.optimizer={name: sgd, lr: 0.5}").run()
    assert checkpoints(tmp_path / "lab") == before


def test_a_checkpoint_from_before_the_settings_behind_noise_were_kept_is_taken(
    party: Callable[..., ActiveRun | PassiveRun], tmp_path: Path
) -> None:
    run_together(party("clinic"), party("lab", NOISE.format(1.0)))
    newest = checkpoint.latest(tmp_path / "lab" / "checkpoints")
    assert newest is not None
    parts = checkpoint.load(newest)
    for name in ("defenses", "model", "optimizer", "embedding_optimizer"):
        del parts["run"]["terms"][name]
    checkpoint.remove(newest)
    checkpoint.save(newest.parent, parts["run"]["step"], parts)

    party("lab", NOISE.format(1.0)).run()


def test_nobody_has_taken_leave_who_has_not_heard_the_last_word(
    party: Callable[..., ActiveRun | PassiveRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang_up(own: ActiveTraining) -> Half:
        raise LinkError("and goes")

    monkeypatch.setattr(ActiveTraining, "_leave", hang_up)
    run_together(party("clinic"), party("lab"))

    assert not (tmp_path / "lab" / FAREWELL_FILE).exists()
    assert not (tmp_path / "clinic" / FAREWELL_FILE).exists()
