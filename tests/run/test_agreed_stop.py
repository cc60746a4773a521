"""A stop that follows from agreed numbers: every party ends after the same step, and no message says so."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from splitvfl.app import deployment
from splitvfl.config.sections import parse_config
from splitvfl.learning.batches import Batches
from splitvfl.learning.schedule import Schedule
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.net.link import Link
from splitvfl.run import checkpoint, plan
from splitvfl.run.networked import ActiveRun, PassiveRun
from splitvfl.run.plan import TrainingPlan
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status
from splitvfl.system.signals import Interrupted
from tests.builders import same, small_trainer, weights
from tests.run.parties import free_ports

STOP = 4  # in the middle of the second epoch of three batches


class EndsEarly(TrainingPlan):
    def schedule(self, batches: Batches, epochs: int, *, stop: Callable[[int], bool] | None = None) -> Schedule:
        return super().schedule(batches, epochs, stop=lambda done: done >= STOP)


def trainer_that_stops(folder: Path | None = None) -> tuple[Trainer, list[Message]]:
    crossed: list[Message] = []
    trainer = small_trainer(
        ("telecom", "shop"), dropout=0.2, log_dir=folder, checkpoint_every=None, record=crossed.append
    )
    given = trainer._training_plan
    trainer._training_plan = EndsEarly(**{one.name: getattr(given, one.name) for one in fields(given)})
    return trainer, crossed


def test_all_parties_of_one_process_stop_as_if_the_run_had_ended_there(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def until_then(status: Status) -> None:
        if status.step == STOP:
            raise Enough

    told: list[Status] = []
    trainer, crossed = trainer_that_stops(tmp_path)
    figures = trainer.fit(3, progress=told.append)
    recorded: list[Message] = []
    longer = small_trainer(("telecom", "shop"), dropout=0.2, record=recorded.append)
    with pytest.raises(Enough):
        longer.fit(3, progress=until_then)
    assert same(weights(trainer), weights(longer))
    assert [(one.sender, one.kind, one.step) for one in crossed] == [
        (one.sender, one.kind, one.step) for one in recorded
    ]
    assert [(status.step, status.steps) for status in told] == [(step, STOP) for step in range(1, STOP + 1)]
    assert figures["auc"] == told[-1].test  # it ends in an evaluation
    assert list(checkpoint.steps(tmp_path / "checkpoints")) == [STOP]
    assert trainer.fit(3) == figures  # nothing is left
    assert trainer.step == STOP


FILE = """
data: {{name: breast-cancer}}
parties:
  clinic: {{role: active, columns: ["mean *"], address: "127.0.0.1:{port}"}}
  lab: {{role: passive, columns: ["* error", "worst *"]}}
model: logistic-regression
train: {{epochs: 2, batch_size: 128, private_seed_for_experiments: 1}}
network: {{listen: "127.0.0.1:{port}", plaintext_on_loopback: true, meeting_s: 60, message_s: 60}}
audit: false
"""


def test_parties_over_a_network_stop_after_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ending(*given: Any, **settings: Any) -> Schedule:
        return Schedule(*given, **(settings | {"stop": lambda done: done >= STOP - 2}))

    monkeypatch.setattr(plan, "Schedule", ending)
    config = parse_config(FILE.format(port=free_ports(1)[0]), source=tmp_path / "run.yaml")
    kinds: set[str] = set()
    send = Link.send

    def noted(link: Link, message: Message, *, timeout: float) -> None:
        kinds.add(message.kind)
        send(link, message, timeout=timeout)

    monkeypatch.setattr(Link, "send", noted)
    runs: dict[str, ActiveRun | PassiveRun] = {}

    def take_part(name: str) -> None:
        runs[name], _ = deployment.run_party(config, name, tmp_path / name)

    lab = threading.Thread(target=take_part, args=("lab",))
    lab.start()
    take_part("clinic")
    lab.join(60)
    assert {run.step for run in runs.values()} == {STOP - 2}
    assert "test/auc" in runs["clinic"].training.figures
    talk = {"introduction", "agreement", "resuming", "farewell"}
    assert kinds == {"activation", "gradient", "evaluation", "verdict"} | talk


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_is_under_way_is_brought_to_an_end_before_a_checkpoint_and_the_end(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, _ = trainer_that_stops(tmp_path)
    done: list[str] = []

    def draining(name: str) -> Half:
        yield Outbox()
        done.append(f"{name} after {trainer.step}")

    for name, side in trainer._sides.items():
        monkeypatch.setattr(side, "drain", partial(draining, name))
    save = trainer.save_checkpoint
    monkeypatch.setattr(trainer, "save_checkpoint", lambda: (done.append(f"saved after {trainer.step}"), save()))

    def progress(status: Status) -> None:
        if interrupted and status.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def drained(step: int, *, counted: int) -> list[str]:
        return [*(f"{name} after {counted}" for name in ("telecom", "shop", "bank")), f"saved after {step}"]

    if interrupted:
        with pytest.raises(Interrupted):
            trainer.fit(3, progress=progress)
        assert done == drained(2, counted=2)
    else:
        trainer.fit(3, progress=progress)
        # Before an evaluation, and so before the step counts as done.
        assert done == drained(3, counted=2) + drained(STOP, counted=STOP - 1)


def test_what_is_done_between_steps_is_outside_of_every_partys_randomness(tmp_path: Path) -> None:
    """Nothing that is drawn there changes a party, and a checkpoint holds the state from which it goes on."""
    plain, disturbed = (small_trainer(dropout=0.3, log_dir=tmp_path / name) for name in ("plain", "disturbed"))
    plain.fit(2)
    disturbed.fit(2, progress=lambda status: torch.manual_seed(status.step))
    assert same(weights(plain), weights(disturbed))
    newest = checkpoint.latest(tmp_path / "disturbed" / "checkpoints")
    assert newest is not None
    for party in plain.training.parties:
        saved = checkpoint.load(newest, only=f"party-{party.name}")[f"party-{party.name}"]["random"]["cpu"]
        assert torch.equal(saved, party.random.state_dict()["cpu"])
