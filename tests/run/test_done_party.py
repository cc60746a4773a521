"""A party that has done everything keeps its trained half, whatever its partners do then."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from splitvfl.app.deployment import party_run, run_party
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.errors import LinkError, SplitVFLError
from splitvfl.exchange.handshake import HeldCheckpoints
from splitvfl.messaging.json_message import note
from splitvfl.run.networked import PassiveRun
from splitvfl.run.party_training import PassiveTraining
from tests.run.parties import free_ports

FILE = """
data: {{name: breast-cancer}}
parties:
  clinic: {{role: active, columns: ["mean *"], address: "127.0.0.1:{port}"}}
  lab: {{role: passive, columns: ["* error", "worst *"]}}
model: logistic-regression
train: {{epochs: 1, batch_size: 128}}
network:
  listen: "127.0.0.1:{port}"
  plaintext_on_loopback: true
  meeting_s: {patience}
  message_s: 10
  retries: 1
audit: false
"""


def garbage(run: PassiveRun) -> None:
    run._links["clinic"].send(note("lab", "clinic", "farewell", run.step, {"steps": 99}), timeout=10)


def of_another_run(run: PassiveRun) -> None:
    run._folder.held = lambda: HeldCheckpoints("f" * 32, (run.step,))  # type: ignore[method-assign]


def config_in(folder: Path, port: int, patience: int = 20) -> ExperimentConfig:
    return parse_config(FILE.format(port=port, patience=patience), source=folder / "run.yaml")


@pytest.mark.parametrize("do_wrong", [garbage, of_another_run])
def test_a_label_party_that_has_done_everything_keeps_its_half(
    do_wrong: Callable[[PassiveRun], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    config = config_in(tmp_path, port)
    (tmp_path / "lab").mkdir()
    lab = party_run(config, "lab", tmp_path / "lab")
    assert isinstance(lab, PassiveRun)

    def take_leave(own: PassiveTraining) -> None:
        do_wrong(lab)
        raise LinkError("and goes")

    monkeypatch.setattr(PassiveTraining, "_leave", take_leave)

    def act() -> None:
        with contextlib.suppress(SplitVFLError):
            lab.run()

    hostile = threading.Thread(target=act)
    hostile.start()
    told: list[str] = []
    try:
        run, summary = run_party(config, "clinic", tmp_path / "clinic", notify=told.append)
    finally:
        hostile.join(timeout=60)
    assert "clinic itself has done everything, and ends without them" in told[-1]
    assert run.step == run.settings.schedule.steps
    assert summary is not None
    assert (tmp_path / "clinic" / "model").exists()
