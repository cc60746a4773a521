"""A coordinator that is killed and started again, and one that agreed on something else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from splitvfl.cli import main
from splitvfl.net.certs import make_certificates
from splitvfl.run import checkpoint
from tests.run.parties import SHORT_KEYS, finished, free_ports, same_weights, start_party, weights_of

EXPERIMENT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error", "worst *"]}
model: logistic-regression
exchange: {name: coordinator, encryption: {key_bits: 2048}}
train:
  epochs: 2
  batch_size: 32
  seed: 1
  private_seed_for_experiments: 1
  checkpoint_every_steps: 2
  optimizer: {name: sgd, lr: 0.02}
network: {listen: "127.0.0.1:PORT", certificates: certs, meeting_s: 60, message_s: 30}
"""
DEADLINE_S = 60


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path / "certs", ["clinic", "lab", "coordinator"])
    (tmp_path / "run.yaml").write_text(EXPERIMENT.replace("PORT", str(free_ports(1)[0])))
    return tmp_path


@pytest.mark.slow(reason="three processes, one of which is killed, and an undisturbed run")
def test_with_a_coordinator_that_is_killed_a_run_ends_as_without(workplace: Path, checkout: Path) -> None:
    names = ("clinic", "lab", "coordinator")
    processes = {name: start_party(checkout, workplace, "run.yaml", name, within=SHORT_KEYS) for name in names}
    deadline = time.monotonic() + DEADLINE_S
    while not checkpoint.steps(workplace / "runs" / "clinic" / "checkpoints").keys() - {0}:
        assert time.monotonic() < deadline, "no step in a minute"
        time.sleep(0.005)
    processes["coordinator"].kill()
    processes["coordinator"].communicate()
    # It has another key now.
    processes["coordinator"] = start_party(checkout, workplace, "run.yaml", "coordinator", within=SHORT_KEYS)
    said = finished(processes)
    assert "going back to the last checkpoint" in said["clinic"]

    with SHORT_KEYS():
        assert main(["train", "run.yaml", "--out", "runs/whole"]) == 0
    newest = checkpoint.latest(workplace / "runs" / "whole" / "checkpoints")
    assert newest is not None
    whole = checkpoint.load(newest)
    for name in ("clinic", "lab"):
        # Sums are exact, whatever the key.
        assert same_weights(weights_of(workplace / "runs" / name), whole[f"party-{name}"]["module"]), name


def test_a_coordinator_that_agreed_on_something_else_is_told(workplace: Path, checkout: Path) -> None:
    names = ("clinic", "lab")
    processes = {name: start_party(checkout, workplace, "run.yaml", name, within=SHORT_KEYS) for name in names}
    fewer = "exchange.encryption.most_columns=5"
    other = start_party(checkout, workplace, "run.yaml", "coordinator", fewer, within=SHORT_KEYS)
    _, errors = other.communicate(timeout=DEADLINE_S)
    assert other.returncode == 2
    assert "encryption: most columns: coordinator has 5, clinic has 4096" in errors
    for process in processes.values():
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 2
        # Which of the two that compare is the first to say so is a matter of the moment.
        told = ("the parties do not agree", "clinic has 4096", "another party ended the run for good")
        assert any(text in errors for text in told), errors
