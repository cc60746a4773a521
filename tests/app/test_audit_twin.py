"""The audit twin: it measures the excess leakage of a run whose model has no canaries, and leaves nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitvfl.app.deployment import Deployment
from splitvfl.app.experiment import Experiment, Workbench, run_experiment
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.errors import ConfigError, DataError
from splitvfl.leakage.canaries import MOST_TWIN_CANARIES, twin_canaries
from splitvfl.report.findings import label_notes
from splitvfl.report.summary import RunSummary, read_summary
from splitvfl.run.training import Status

FILE = """
name: twin
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean*"]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [8], top_hidden: []}
train: {epochs: 2, batch_size: 64, noise_seed_for_experiments: 5}
attacks: [norm, ridge]
"""
TWIN = "audit.twin=true"


def experiment(*overrides: str) -> ExperimentConfig:
    return parse_config(
        FILE, source="twin.yaml", overrides=["audit={}", *overrides] if TWIN in overrides else overrides
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without a twin, with one, and with one that was broken off in its second step."""
    folder = tmp_path_factory.mktemp("runs")
    alone = run_experiment(experiment(), folder / "alone")
    run_experiment(experiment(TWIN), folder / "twin")
    steps = 0

    def stop(status: Status) -> None:
        nonlocal steps
        steps += 1
        if steps == alone.steps + 2:
            raise Stopped

    with pytest.raises(Stopped):
        run_experiment(experiment(TWIN), folder / "stopped", progress=stop)
    return folder


def resumed(runs: Path, folder: Path, *overrides: str, **more: Any) -> RunSummary:
    shutil.copytree(runs, folder)
    return run_experiment(experiment(*overrides), folder, resume=True, **more)


def test_the_model_and_the_log_of_the_run_are_those_of_a_run_without_a_twin(runs: Path) -> None:
    alone, twin = files(runs / "alone"), files(runs / "twin")
    kept = [name for name in alone if name.startswith(("weights/", "model/")) and not name.endswith(".json")]
    assert kept
    assert all(alone[name] == twin[name] for name in [*kept, "metrics.jsonl"])
    assert {name for name in alone if "tfevents" not in name} == {name for name in twin if "tfevents" not in name}


def test_its_excess_is_the_run_s_and_the_verdict_follows_from_it(runs: Path) -> None:
    alone, twin = read_summary(runs / "alone"), read_summary(runs / "twin")
    excess = twin.parties["lab"].excess
    assert excess is not None
    assert excess.twin
    assert excess.count == 220  # half of 441
    assert excess.low > 0.6
    assert twin.verdict["lab"].labels is not None
    assert twin.verdict["lab"].labels.row == "excess-above"
    assert "220 canaries of the audit twin" in twin.verdict["lab"].labels.reason
    assert twin.canaries == twin.parties["lab"].worst_canaries is not None
    assert all(found.twin and found.count == 220 for found in twin.parties["lab"].canaries.values())
    assert set(twin.parties["lab"].canaries) == {"auditor-linear", "auditor-likelihood", "auditor-ratio", "norm"}
    assert "the test figure is of the model without canaries" in label_notes([twin])[0]
    assert alone.parties["lab"].excess is None
    assert twin.test_metric == alone.test_metric


def test_a_run_that_ends_before_its_twin_is_finished_and_resuming_trains_the_twin_alone(
    runs: Path, tmp_path: Path
) -> None:
    before = files(runs / "stopped")
    assert read_summary(runs / "stopped").parties["lab"].excess is None
    assert before["weights/lab.safetensors"] == files(runs / "alone")["weights/lab.safetensors"]
    steps: list[int] = []
    found = resumed(runs / "stopped", tmp_path / "run", TWIN, progress=lambda status: steps.append(status.step))
    assert steps == list(range(1, found.steps + 1))  # the twin's
    assert found.parties == read_summary(runs / "twin").parties == read_summary(tmp_path / "run").parties
    after = files(tmp_path / "run")
    assert {name for name in after if after[name] != before.get(name)} == {"summary.json"}


def test_a_twin_is_no_other_setting_of_the_run_and_is_trained_once(runs: Path, tmp_path: Path) -> None:
    assert resumed(runs / "alone", tmp_path / "late", TWIN).has_twin
    told: list[str] = []
    assert resumed(runs / "twin", tmp_path / "again", TWIN, notify=told.append).has_twin
    assert "nothing is left to train" in told[-1]
    assert resumed(runs / "twin", tmp_path / "without", notify=told.append).has_twin
    settings = [read_summary(runs / name).provenance for name in ("alone", "twin")]
    assert settings[0] is not None
    assert settings[1] is not None
    assert settings[0].settings == settings[1].settings


def test_a_twin_is_attacked_for_labels_alone() -> None:
    config = experiment(TWIN)
    found = Experiment(config, Workbench(load_data(config), {}))
    trainer = found.trainer()
    twin = found.audit_twin(trainer)
    assert twin is not None
    assert trainer.watch.readers["lab"].keys() == {"ridge"}
    assert not twin.watch.readers["lab"]
    assert twin.watch.leaks["lab"].keys() == trainer.watch.leaks["lab"].keys() == {"norm"}


def test_more_epochs_make_a_new_twin(runs: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    found = resumed(
        runs / "twin", tmp_path / "run", TWIN, "train.epochs=3", progress=lambda status: steps.append(status.step)
    )
    assert found.epochs == 3
    assert len(steps) == found.steps // 3 + found.steps
    assert found.has_twin


@pytest.mark.parametrize("exchange", ["one-way", "residue"])
def test_a_protocol_without_a_message_per_record_has_no_twin(exchange: str, tmp_path: Path) -> None:
    linear = ["model={name: logistic-regression}"] if exchange == "residue" else []
    with pytest.raises(ConfigError, match=r"audit\.twin: the excess leakage cannot be measured in this protocol"):
        run_experiment(experiment(f"exchange={exchange}", "attacks=[]", *linear, TWIN), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_over_a_network_a_twin_is_refused_as_a_second_release() -> None:
    networked = experiment(TWIN, "parties.clinic.address=127.0.0.1:1", "network={plaintext_on_loopback: true}")
    for name in ("clinic", "lab"):
        with pytest.raises(ConfigError, match="second release"):
            Deployment(networked, name)


def test_canaries_of_the_run_and_a_twin_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="take one of them"):
        experiment(TWIN, "audit.canaries=20")


def test_half_of_the_records_are_canaries_up_to_what_decides() -> None:
    assert [twin_canaries(records) for records in (40, 1_439, 6_000, 24_000)] == [20, 719, 3_000, MOST_TWIN_CANARIES]
    with pytest.raises(DataError, match="40 training records, and there are 39"):
        twin_canaries(39)


def test_too_few_records_are_refused_before_the_first_step(tmp_path: Path) -> None:
    rows = [f"{row},{row % 7},{row % 5},{row % 2}" for row in range(45)]  # of which 38 are trained on
    (tmp_path / "few.csv").write_text("\n".join(["id,mean,more,label", *rows]))
    data = f"data={{name: table, path: {tmp_path / 'few.csv'}, id_column: id}}"
    few = experiment(TWIN, data, "parties.clinic.label=label", "train.batch_size=8")
    with pytest.raises(DataError, match="an audit twin needs 40 training records, and there are 38"):
        run_experiment(few, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_takes_up_another_goal_and_keeps_its_figures(runs: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = resumed(runs / "twin", tmp_path / "run", TWIN, "goal=0.7", notify=said.append)
    assert found.goal == read_summary(tmp_path / "run").goal == 0.7
    assert replace(found, goal=0.6) == read_summary(runs / "twin")
    assert any("the goal is 0.7 from now on" in line for line in said)


def test_a_twin_of_fewer_epochs_than_its_run_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an audit twin is trained like its run, of 2; got 1"):
        resumed(runs / "alone", tmp_path / "run", TWIN, "train.epochs=1")
