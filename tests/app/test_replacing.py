"""``--overwrite``: a finished model is there until the run that replaces it has its first checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from splitvfl.app.checking import check_experiment, check_party
from splitvfl.app.deployment import run_party
from splitvfl.app.experiment import run_experiment
from splitvfl.app.run_folder import is_barely_begun, replacing, settle, written
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.errors import ConfigError, DataError, LinkError, SplitVFLError
from splitvfl.report.report import finished_runs, unfinished_runs
from splitvfl.report.summary import read_summary
from splitvfl.run.networked import PartyRun
from splitvfl.run.party_training import PartyTraining
from splitvfl.run.replacement import REPLACED, Replacement, earlier_stands, is_unsettled
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status, Training
from splitvfl.system.folder_lock import locked
from tests.commands import Command
from tests.run.parties import free_ports

EXPERIMENT = """
data: {name: table, path: all.csv, id_column: customer}
parties:
  bank: {role: active, columns: [age], label: default}
  telecom: {role: passive, columns: [calls]}
model: {name: mlp, bottom: [4]}
train: {epochs: 1, batch_size: 32, device: cpu}
audit: false
"""
PARTIES = """
data: {{name: table, path: all.csv, id_column: customer}}
parties:
  bank: {{role: active, columns: [age], label: default, address: "127.0.0.1:{port}"}}
  telecom: {{role: passive, columns: [calls]}}
model: {{name: mlp, bottom: [4]}}
train: {{epochs: {epochs}, batch_size: 32, device: cpu, threads: 1}}
network: {{listen: "127.0.0.1:{port}", plaintext_on_loopback: true, meeting_s: {meeting}, message_s: 20, retries: 0}}
audit: false
"""


def write_table(folder: Path) -> None:
    draw = np.random.default_rng(0)
    age, calls = draw.normal(size=120), draw.normal(size=120)
    columns = {"age": age, "calls": calls, "default": (age + calls > 0).astype(int)}
    table = pd.DataFrame({"customer": [f"c{number:03d}" for number in range(120)], **columns})
    table.to_csv(folder / "all.csv", index=False)
    table.drop(columns="default").to_csv(folder / "new.csv", index=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, an experiment, and its finished run ``runs/credit``."""
    folder = tmp_path_factory.mktemp("credit")
    write_table(folder)
    (folder / "credit.yaml").write_text(EXPERIMENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "credit.yaml"]) == 0
    return folder


@pytest.fixture
def folder(trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of it, in which the test runs."""
    shutil.copytree(trained, tmp_path / "credit")
    monkeypatch.chdir(tmp_path / "credit")
    return tmp_path / "credit"


def content(folder: Path) -> dict[str, bytes]:
    """All files in a folder, by name; the locks of those that are at work in it are none of a run."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def scores() -> str:
    assert main(["predict", "runs/credit", "--records", "new.csv", "--out", "scores.csv", "--overwrite"]) == 0
    return Path("scores.csv").read_text()


def failing(status: Status) -> None:
    raise RuntimeError("it fails in its first epoch")


# --- in one process


@pytest.mark.usefixtures("folder")
def test_a_run_that_fails_before_its_first_step_or_in_its_first_epoch_leaves_the_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, config, told = Path("runs/credit"), load_config("credit.yaml", ["train.seed=7"]), list[str]()
    earlier, before = scores(), content(run)
    with pytest.raises(RuntimeError, match="first epoch"):
        run_experiment(config, run, overwrite=True, progress=failing, notify=told.append)
    assert content(run) == before
    assert told[-1] == earlier_stands(run)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "begin", mock.Mock(side_effect=DataError("it cannot begin")))
        assert main(["train", "credit.yaml", "--overwrite"]) == 2
    assert content(run) == before
    assert scores() == earlier
    assert main(["train", "credit.yaml", "--overwrite", "train.seed=7"]) == 0
    assert scores() != earlier
    assert not list(run.glob(".*")), "nothing of the earlier run is left"


@contextmanager
def killed_in_the_first_step() -> Iterator[None]:
    def kill(*given: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(Training, "step_done", kill):
        yield


@pytest.mark.usefixtures("folder")
def test_a_run_that_was_killed_in_its_first_epoch_leaves_the_earlier_one_to_the_next_start(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path("runs/credit")
    earlier, before = scores(), content(run)
    killed = Command(["train", "credit.yaml", "--overwrite"], Path.cwd(), within=killed_in_the_first_step)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert is_unsettled(run)
    assert not is_barely_begun(run), "there is a run to lose"
    held = content(run)

    # Until then nobody takes what lies aside for a run, and what is asked of the folder says how it is.
    capsys.readouterr()
    assert main(["predict", "runs/credit", "--records", "new.csv", "--out", "other.csv"]) == 2
    assert "brings the earlier run back" in " ".join(capsys.readouterr().err.split())
    assert main(["report", "runs/credit"]) == 2
    assert "brings the earlier run back" in " ".join(capsys.readouterr().err.split())
    assert unfinished_runs([Path("runs")]) == [run]
    told, config = list[str](), load_config("credit.yaml", [f"data.path={trained / 'all.csv'}"])
    assert check_experiment(config, run, tell=told.append) == []
    assert any("brings the earlier run back, and resumes it with --resume" in line for line in told)
    assert "nothing is left to train" in told[-1]
    assert content(run) == held

    # Without --overwrite the next start changes nothing else.
    assert main(["train", "credit.yaml"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "holds the earlier run again" in said
    assert "already holds a finished run" in said
    assert content(run) == before
    assert scores() == earlier


@pytest.mark.usefixtures("folder")
def test_lists_of_runs_leave_out_what_is_replaced_or_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("runs/credit", "runs/other")
    for name in (".replaced", ".replaced.part", ".deleting"):
        shutil.copytree("runs/other", Path("runs/credit") / name)
    assert finished_runs([Path("runs")]) == [Path("runs/credit"), Path("runs/other")]
    assert unfinished_runs([Path("runs")]) == []
    assert main(["predict", "runs", "--records", "new.csv", "--out", "other.csv"]) == 2
    assert "one of the runs in it: runs/credit, runs/other" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("folder")
def test_a_comparison_that_replaces_runs_keeps_each_until_its_own_replacement_has_a_checkpoint() -> None:
    arguments = ["compare", "credit.yaml", "--defenses", "none", "--seeds", "2", "--out", "compared"]
    assert main(arguments) == 0
    runs = [Path("compared/none/seed-0"), Path("compared/none/seed-1")]
    before = [content(run) for run in runs]
    fit, count = Trainer.fit, 0

    def second_fails(self: Trainer, *given: object, **options: object) -> object:
        nonlocal count
        count += 1
        if count == 2:
            raise DataError("the second one cannot train")
        return fit(self, *given, **options)  # type: ignore[arg-type]

    with mock.patch.object(Trainer, "fit", second_fails):
        assert main([*arguments, "--overwrite"]) == 2
    assert content(runs[0]) != before[0]
    assert content(runs[1]) == before[1]
    with locked(runs[1]):
        assert main([*arguments, "--overwrite"]) == 2, "another process is at work in it"
    assert content(runs[1]) == before[1]


def test_a_folder_that_is_no_run_is_not_settled(tmp_path: Path) -> None:
    for name in (".replaced", ".replaced.part", ".deleting"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chapter.txt").write_text("years of work")
    before = content(tmp_path)
    settle(tmp_path, notify=lambda line: None)
    assert content(tmp_path) == before


def test_a_run_without_anything_worth_keeping_is_not_kept(folder: Path) -> None:
    run = folder / "runs/credit"
    for path in written(run):
        if path.name != "experiment.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with replacing(run, anew=True, notify=lambda line: None) as earlier:
        assert not earlier.is_aside
        assert written(run) == []


def test_the_earlier_run_waits_for_workers_that_are_still_at_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = folder / "runs/credit", list[str]()
    shutil.copytree(run, run / "worker-1")
    before = content(run)
    monkeypatch.setattr("splitvfl.app.run_folder._PATIENCE_S", 0.0)

    def replaced() -> None:
        with replacing(run, anew=True, notify=told.append):
            (run / "worker-1").mkdir()
            worker.enter_context(locked(run / "worker-1"))
            raise RuntimeError

    with ExitStack() as worker:
        with pytest.raises(RuntimeError):
            replaced()
        assert is_unsettled(run)
        assert "another process is at work" in told[0]
        with pytest.raises(ConfigError, match="another process is at work"):
            settle(run, notify=told.append)
    settle(run, notify=told.append)
    assert content(run) == before
    assert told[1:] == [earlier_stands(run)]


# --- over a network


def party_file(folder: Path, *, epochs: int = 2, meeting: float = 20) -> Path:
    file = folder / "parties.yaml"
    file.write_text(PARTIES.format(port=free_ports(1)[0], epochs=epochs, meeting=meeting))
    return file


def both(file: Path, folder: Path, *, other: Path | None = None, overwrite: tuple[str, ...] = ()) -> list[Exception]:
    """Let both parties take part, and return what ended them."""
    ended: list[Exception] = []

    def take_part(name: str, own: Path) -> None:
        try:
            run_party(load_config(own), name, folder / name, overwrite=name in overwrite)
        except SplitVFLError as error:
            ended.append(error)

    bank = threading.Thread(target=take_part, args=("bank", file))
    bank.start()
    take_part("telecom", other or file)
    bank.join(60)
    return ended


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished runs ``bank`` and ``telecom``."""
    folder = tmp_path_factory.mktemp("network")
    write_table(folder)
    assert both(party_file(folder), folder) == []
    return folder


@pytest.fixture
def runs(network: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(network, tmp_path / "network")
    return tmp_path / "network"


@pytest.mark.parametrize("name", ["bank", "telecom"])
def test_a_party_that_nobody_answers_leaves_its_earlier_run(runs: Path, name: str) -> None:
    before, told = content(runs / name), list[str]()
    config = load_config(party_file(runs, meeting=0.2))
    with pytest.raises(LinkError):
        run_party(config, name, runs / name, overwrite=True, notify=told.append)
    assert content(runs / name) == before
    assert told[-1] == earlier_stands(runs / name)


def test_a_party_that_cannot_listen_leaves_its_earlier_run(runs: Path) -> None:
    file, before = party_file(runs), content(runs / "bank")
    config = load_config(file)
    assert config.network is not None
    with socket.create_server(("127.0.0.1", int(str(config.network.listen).rpartition(":")[2]))):
        assert main(["party", str(file), "--as", "bank", "--out", str(runs / "bank"), "--overwrite"]) == 2
    assert content(runs / "bank") == before


def test_a_party_whose_partner_does_not_agree_leaves_its_earlier_run(runs: Path) -> None:
    file, other = party_file(runs), runs / "other.yaml"
    other.write_text(file.read_text().replace("batch_size: 32", "batch_size: 16"))
    before = {name: content(runs / name) for name in ("bank", "telecom")}
    ended = both(file, runs, other=other, overwrite=("bank", "telecom"))
    assert len(ended) == 2
    assert "batch size" in str(ended[0])
    assert {name: content(runs / name) for name in before} == before


def test_a_party_whose_partner_does_not_start_anew_leaves_its_earlier_run(runs: Path) -> None:
    file = party_file(runs, epochs=3)
    before = {name: content(runs / name) for name in ("bank", "telecom")}
    ended = both(file, runs, overwrite=("bank",))
    assert any("no checkpoint in common" in str(error) for error in ended)
    assert content(runs / "bank") == before["bank"]
    weights = "model/weights.safetensors"
    assert content(runs / "telecom")[weights] == before["telecom"][weights]


def test_a_run_over_a_network_replaces_the_earlier_one_when_all_have_agreed(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, seen = PartyTraining.steps, []

    def looked_at(self: PartyTraining[object]) -> object:  # type: ignore[type-var]
        seen.append((runs / self.party.name / REPLACED).exists())  # type: ignore[attr-defined]
        return (yield from steps(self))  # type: ignore[arg-type]

    monkeypatch.setattr(PartyTraining, "steps", looked_at)
    assert both(party_file(runs, epochs=3), runs, overwrite=("bank", "telecom")) == []
    assert seen == [False, False]
    assert read_summary(runs / "bank").epochs == 3
    for name in ("bank", "telecom"):
        assert not [path for path in (runs / name).glob(".*") if path.suffix != ".lock"]


def test_a_party_that_was_killed_before_it_agreed_has_its_earlier_run_at_the_next_start(runs: Path) -> None:
    run, told = runs / "bank", list[str]()
    before = content(run)
    Replacement(run, written).begin()
    shutil.copy(run / REPLACED / "experiment.yaml", run / "experiment.yaml")
    config, held = load_config(party_file(runs, meeting=0.2)), content(run)
    assert check_party(config, "bank", run, connect_s=None, tell=told.append) == []
    assert any("brings the earlier run back" in line for line in told)
    assert "nothing is left to train" in told[-1]
    assert content(run) == held
    told.clear()
    run_party(config, "bank", run, notify=told.append)  # it had finished, and still has
    assert told[0] == earlier_stands(run)
    now = content(run)
    assert now["model/weights.safetensors"] == before["model/weights.safetensors"]
    assert not is_unsettled(run)


def test_a_party_that_was_stopped_before_it_agreed_says_how_to_start_anew(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, command = runs / "bank", ["party", str(party_file(runs)), "--as", "bank", "--out", str(runs / "bank")]
    before = content(run)
    monkeypatch.setattr(PartyRun, "run", mock.Mock(side_effect=KeyboardInterrupt))
    assert main([*command, "--overwrite"]) == 130
    assert "start anew with: splitvfl party" in (said := " ".join(capsys.readouterr().err.split()))
    assert "--overwrite; state in" in said
    assert content(run) == before
    assert main(command) == 130
    assert "resume with: splitvfl party" in (said := " ".join(capsys.readouterr().err.split()))
    assert "--overwrite" not in said
