"""What a passive party says of its own columns where little could be judged, or a partner left before the end."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from splitvfl.app import column_auditing
from splitvfl.app.deployment import run_party
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, load_config
from splitvfl.errors import CheckpointError, LinkError
from splitvfl.exchange.split import Split
from splitvfl.hooks import Attack
from splitvfl.report.own_seat import seat_lines, seat_verdict
from splitvfl.report.summary import RunSummary, read_summary
from splitvfl.run.training import Status, TrainingProgress
from tests.builders import small_trainer
from tests.run.parties import free_ports
from tests.summaries import opened

FILE = """
data: {{name: breast-cancer}}
parties:
  clinic: {{role: active, columns: ["mean *"], address: "127.0.0.1:{port}"}}
  lab: {{role: passive, columns: ["* error", "worst *"]}}
model: {{name: mlp, bottom: [8], top_hidden: []}}
train: {{epochs: {epochs}, batch_size: {batch}, private_seed_for_experiments: 1, threads: 1}}
network: {{listen: "127.0.0.1:{port}", plaintext_on_loopback: true, meeting_s: {meeting}, message_s: 60, retries: 0}}
"""


def written(
    folder: Path, *, text: str = FILE, epochs: int = 2, batch: int = 64, meeting: float = 60
) -> ExperimentConfig:
    file = folder / "run.yaml"
    file.write_text(text.format(port=free_ports(1)[0], epochs=epochs, batch=batch, meeting=meeting))
    return load_config(file)


def both(
    config: ExperimentConfig, folder: Path, *, partner: TrainingProgress = lambda status: None, **lab: Any
) -> RunSummary:
    """Let both parties take part, the label party in a thread that may end as it likes."""
    left: list[BaseException] = []

    def take_part() -> None:
        try:
            run_party(config, "clinic", folder / "clinic", progress=partner)
        except Exception as error:
            left.append(error)

    clinic = threading.Thread(target=take_part)
    clinic.start()
    try:
        _, found = run_party(config, "lab", folder / "lab", **lab)
    finally:
        clinic.join(60)
    assert found is not None
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the readers of the finished model the quick one."""
    whole = column_auditing.thorough_readers

    def ridge(*given: Any) -> list[Attack]:
        return whole(*given)[:1]

    monkeypatch.setattr("splitvfl.app.own_columns.thorough_readers", ridge)


def leaving_at(step: int) -> TrainingProgress:
    def leave(status: Status) -> None:
        if status.step == step:
            raise RuntimeError("it has seen enough")

    return leave


@pytest.mark.usefixtures("quick")
def test_where_messages_are_too_small_to_be_judged_the_finished_model_and_evaluations_are_read(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.normal(size=(150, 4)), columns=["mean a", "b error", "worst c", "worst d"])
    table.assign(label=np.arange(150) % 2).to_csv(tmp_path / "table.csv", index=False)
    text = FILE.replace("{{name: breast-cancer}}", "{{name: table, path: table.csv, label: label}}")
    config = written(tmp_path, text=text, epochs=1, batch=2)
    summary = both(config, tmp_path)
    found = summary.parties["lab"]
    evaluated, finished = found.readings
    assert evaluated.evaluation_only
    assert not finished.evaluation_only
    assert evaluated.share == evaluated.evaluation.share  # type: ignore[union-attr]
    assert evaluated.worst is evaluated.accumulated is None
    assert finished.standing_still
    assert finished.known_share == 0.5
    assert finished.records == summary.steps, "one of two records in each step, none of which was left out"
    assert min(evaluated.share, finished.share) > 0.3
    never = f"never judged by what was sent in training: {summary.steps} of {summary.steps} messages"
    assert never in found.unavailable["ridge"]
    kept = read_summary(tmp_path / "lab")
    assert kept.parties["lab"].readings == found.readings
    assert kept.planned_steps is None
    assert f"ridge {never}" in seat_verdict(kept)
    alone = replace(kept, parties={"lab": replace(found, readings=[evaluated])})
    assert seat_lines(alone)[0].startswith("Features of lab: of records that were evaluated ridge recovers")
    assert "From what you sent of records that were evaluated, ridge recovers" in seat_verdict(alone)
    assert main(["report", str(tmp_path / "lab")]) == 0
    assert "of records that were evaluated" in (tmp_path / "lab" / "report.html").read_text()


@pytest.mark.parametrize("size", [1, 2, 5, 10, 23, 24, 64, 512])
def test_of_a_model_that_stands_still_twelve_records_of_what_is_read_at_once_are_known(size: int) -> None:
    party = small_trainer(attacks=[]).passives["telecom"]
    ridge = column_auditing.thorough_readers(SimpleNamespace(batch_size=size, exchange=Split()), party)[0]  # type: ignore[arg-type]
    together = size * -(-24 // size)  # so many messages that they have 24 records
    assert ridge.known_share == max(0.05, 12 / together)  # type: ignore[attr-defined]
    assert ridge.known_share <= 0.5  # type: ignore[attr-defined]


def test_a_party_that_looks_at_nothing_says_that_nothing_is_known(tmp_path: Path) -> None:
    found = both(written(tmp_path, text=FILE + "audit: false\n", epochs=1), tmp_path)
    assert found.parties["lab"].readings == []
    assert seat_verdict(found) == "What your features leak is not known."
    assert read_summary(tmp_path / "lab").seat == "lab"


@pytest.mark.usefixtures("quick")
def test_a_partner_that_leaves_at_the_last_step_leaves_the_reading_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path)
    told: list[str] = []
    with pytest.raises(LinkError):  # after 13 of 14 steps; the last activation was sent
        both(config, tmp_path, partner=leaving_at(13), notify=told.append)
    found = read_summary(tmp_path / "lab")
    assert (found.steps, found.planned_steps) == (13, 14)
    live, now = found.parties["lab"].readings
    assert live.most > 0.3
    assert now.standing_still
    lines = opened(tmp_path / "lab" / "summary.json")
    assert lines["planned_steps"] == 14
    said = " ".join(told)
    assert "Not finished: 13 of 14 steps were done" in said
    assert f"more of it: splitvfl report {tmp_path / 'lab'}" in said
    assert main(["report", str(tmp_path / "lab")]) == 0
    assert "Not finished: 13 of 14 steps" in (tmp_path / "lab" / "report.html").read_text()
    assert main(["train", str(config.source), "--out", str(tmp_path / "lab")]) == 2
    assert "a run of lab that has not finished" in " ".join(capsys.readouterr().err.split())

    # It goes on as if nobody had looked, and is finished then.
    gone_on = both(written(tmp_path), tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    undisturbed = both(written(other), other)
    assert gone_on.planned_steps is None
    assert gone_on.steps == 14
    assert gone_on.parties == undisturbed.parties


@pytest.mark.usefixtures("quick")
def test_what_an_earlier_process_has_sent_is_read_from_the_last_checkpoint(tmp_path: Path) -> None:
    def stopped(status: Status) -> None:
        if status.step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        both(written(tmp_path), tmp_path, progress=stopped)
    with pytest.raises(CheckpointError, match="go on by starting that party again, as it was started"):
        read_summary(tmp_path / "lab")
    with pytest.raises(LinkError):
        run_party(written(tmp_path, meeting=0.2), "lab", tmp_path / "lab")
    found = read_summary(tmp_path / "lab")
    assert (found.steps, found.planned_steps) == (7, 14)
    assert found.parties["lab"].readings[0].records > 0


def test_before_anything_was_sent_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(LinkError):
        run_party(written(tmp_path, meeting=0.2), "lab", tmp_path / "lab")
    assert not (tmp_path / "lab" / "summary.json").exists()
