"""A run that is trained further is the same run: its log of scores, its noise and its budgets go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch

from splitvfl.app import experiment as experiments
from splitvfl.app.deployment import Deployment, run_party
from splitvfl.app.saved_run import SavedRun, load_run
from splitvfl.app.serving import PredictionFiles, prepare_prediction
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.cut.chain import DefenseChain
from splitvfl.report.summary import read_summary
from splitvfl.run import checkpoint
from splitvfl.run.half_folder import read_half_schema
from splitvfl.run.saving_trainer import SavingTrainer
from tests.builders import small_trainer
from tests.commands import Command
from tests.run.parties import free_ports

EXPERIMENT = """
data: {{name: table, path: {folder}/all.csv, id_column: customer}}
parties:
  bank: {{role: active, columns: [age], label: default}}
  telecom: {{role: passive, columns: [calls]}}
model: {{name: mlp, bottom: [4]}}
train: {{epochs: 1, batch_size: 32, device: cpu}}
prediction: {{per_record: 3}}
audit: false
"""
RUN = Path("runs/credit")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, an experiment, and its finished run ``runs/credit``."""
    folder = tmp_path_factory.mktemp("credit")
    draw = np.random.default_rng(0)
    age, calls = draw.normal(size=120), draw.normal(size=120)
    columns = {"age": age, "calls": calls, "default": (age + calls > 0).astype(int)}
    table = pd.DataFrame({"customer": [f"c{number:03d}" for number in range(120)], **columns})
    table.to_csv(folder / "all.csv", index=False)
    table.drop(columns="default").to_csv(folder / "new.csv", index=False)
    (folder / "credit.yaml").write_text(EXPERIMENT.format(folder=folder))
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


def predict() -> int:
    return main(["predict", str(RUN), "--records", "new.csv", "--out", "scores.csv", "--overwrite"])


def train_further(epochs: int) -> int:
    return main(["train", "credit.yaml", f"train.epochs={epochs}", "--resume"])


def numbers() -> set[str]:
    return {read_half_schema(path).run for path in (RUN / "model").iterdir()}


def lines() -> list[dict[str, object]]:
    return [json.loads(line) for line in (RUN / "ledger/telecom/ledger.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("folder")
def test_counts_go_on_when_a_run_is_trained_further(capsys: pytest.CaptureFixture[str]) -> None:
    number = numbers()
    assert predict() == 0
    first = Path("scores.csv").read_text()
    assert train_further(2) == 0
    assert numbers() == number
    assert predict() == 0
    assert Path("scores.csv").read_text() != first, "other weights"
    assert train_further(2) == 0, "nothing is left to train"
    assert train_further(3) == 0
    assert predict() == 0
    assert [(line["what"], line.get("total", 0)) for line in lines()][1:] == [
        ("counted", 120),
        ("counted", 240),
        ("counted", 360),
    ]
    assert len({line["model"] for line in lines()[1:]}) == 3, "the log names each model by its digest"
    assert predict() == 2, "per_record: 3"
    assert "3 times" in capsys.readouterr().err


@contextmanager
def killed_before(name: str) -> Iterator[None]:
    def kill(*given: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    owner, _, method = name.rpartition(".")
    with mock.patch.object(SavingTrainer if owner == "Trainer" else experiments, method, kill):
        yield


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "moment",
    [
        "_write_run",
        pytest.param("_save_weights", marks=pytest.mark.slow(reason="a process, and two trainings")),
        pytest.param("Trainer.save", marks=pytest.mark.slow(reason="a process, and two trainings")),
        "show_on_board",
    ],
)
def test_a_run_that_is_killed_between_its_checkpoint_and_its_figures_is_finished_by_the_next_start(moment: str) -> None:
    number = numbers()
    assert predict() == 0
    killed = Command(
        ["train", "credit.yaml", "train.epochs=2", "--resume"], Path.cwd(), within=partial(killed_before, moment)
    )
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert predict() == 0, "with the weights that are there"
    assert train_further(2) == 0
    assert read_summary(RUN).epochs == 2
    assert {read_half_schema(path).epoch for path in (RUN / "model").iterdir()} == {2}
    assert numbers() == number
    assert predict() == 0
    assert lines()[-1]["total"] == 360


def without_number(run: Path) -> None:
    """Take the number out of the checkpoint, as versions that kept none wrote it."""
    path = checkpoint.latest(run / "checkpoints")
    assert path is not None
    state = torch.load(path / "run.pt", weights_only=True)
    del state["number"]
    torch.save(state, path / "run.pt")


@pytest.mark.usefixtures("folder")
def test_a_checkpoint_without_a_number_goes_on_under_that_of_the_model() -> None:
    number = numbers()
    without_number(RUN)
    assert train_further(2) == 0
    assert numbers() == number


@pytest.mark.usefixtures("folder")
def test_a_run_that_an_older_version_gave_another_number_takes_that_of_its_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (number,) = numbers()
    assert predict() == 0
    without_number(RUN)
    with mock.patch.object(SavingTrainer, "_number_of_older", return_value="f" * 32):
        assert train_further(2) == 0
    without_number(RUN)
    assert numbers() == {"f" * 32}
    assert predict() == 2
    assert "splitvfl train --resume" in capsys.readouterr().err
    assert train_further(2) == 0, "nothing is left to train, and the model gets its number back"
    assert numbers() == {number}
    assert predict() == 0
    assert lines()[-1]["total"] == 240


def test_a_trainer_saves_its_parties_under_one_number_which_its_checkpoints_keep(tmp_path: Path) -> None:
    trainer = small_trainer(log_dir=tmp_path / "run")
    trainer.fit(1)
    trainer.save(tmp_path / "first")
    again = small_trainer(log_dir=tmp_path / "run")
    again.resume()
    again.fit(2)
    again.save(tmp_path / "second")
    found = [read_half_schema(path) for name in ("first", "second") for path in sorted((tmp_path / name).iterdir())]
    assert len({schema.run for schema in found}) == 1
    assert found[0].files != found[2].files
    other = small_trainer()
    other.fit(1)
    other.save(tmp_path / "other")
    assert {read_half_schema(path).run for path in (tmp_path / "other").iterdir()}.isdisjoint({found[0].run})


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


@pytest.mark.usefixtures("folder")
def test_memoised_noise_keeps_its_key_and_follows_from_the_weights() -> None:
    noisy = [
        "defenses=[{name: score-noise, scheme: optimum, power: 2.0, direction: [1, -1]}]",
        "prediction={score_noise: memoised}",
    ]
    assert main(["train", "credit.yaml", *noisy, "--overwrite"]) == 0
    assert predict() == 0
    first, key = Path("scores.csv").read_bytes(), files_of(RUN / "score-noise")
    assert main(["train", "credit.yaml", *noisy, "--resume"]) == 0, "nothing is left to train"
    assert predict() == 0
    assert Path("scores.csv").read_bytes() == first, "the same weights"
    coins = load_run(RUN)
    before = noise_on(coins)
    assert main(["train", "credit.yaml", *noisy, "train.epochs=2", "--resume"]) == 0
    after = noise_on(load_run(RUN))
    assert before.abs() == pytest.approx(after.abs(), abs=1e-3)
    assert 20 < int((before.sign() != after.sign()).sum()) < 100, "120 coins that are tossed anew"
    assert files_of(RUN / "score-noise") == key


def noise_on(run: SavedRun) -> torch.Tensor:
    """Return the noise on the logit of each new record."""
    noisy = run.predict("new.csv").double()
    with mock.patch.object(run.active, "scores", DefenseChain("scores", run.active.name)):
        plain = run.predict("new.csv").double()
    return noisy.logit() - plain.logit()


NETWORK = """
name: credit
data: {{name: table, path: {folder}/all.csv, id_column: customer}}
parties:
  bank: {{role: active, columns: [age], label: default, address: "127.0.0.1:{port}"}}
  telecom: {{role: passive, columns: [calls]}}
model: {{name: mlp, bottom: [4]}}
train: {{epochs: 1, batch_size: 32, device: cpu, threads: 1}}
network: {{listen: "127.0.0.1:{port}", plaintext_on_loopback: true, message_s: 60, retries: 0}}
audit: false
"""


def both(begin: Callable[[str], object]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(begin, ("bank", "telecom")))


@pytest.mark.slow(reason="trains and predicts over a network, twice")
def test_over_a_network_counts_go_on_and_answers_of_two_models_share_no_noise(folder: Path, trained: Path) -> None:
    (port,) = free_ports(1)
    (folder / "party.yaml").write_text(NETWORK.format(folder=trained, port=port))
    for name, columns in (("bank", ["customer", "age"]), ("telecom", ["customer", "calls"])):
        pd.read_csv(trained / "new.csv")[columns].to_csv(folder / f"{name}.csv", index=False)

    def train(epochs: int) -> None:
        config = load_config(folder / "party.yaml", [f"train.epochs={epochs}"])
        both(lambda name: run_party(config, name, folder / name))

    def score(name: str) -> None:
        out = folder / "scores.csv" if name == "bank" else None
        files = PredictionFiles(
            model=folder / name / "model", records=folder / f"{name}.csv", out=out, overwrite=out is not None
        )
        prepare_prediction(load_config(folder / "party.yaml"), name, files).run()

    train(1)
    both(score)
    before = read_half_schema(folder / "telecom/model")
    # Killed between its last checkpoint and its half, telecom writes that at the next start.
    with (
        mock.patch.object(Deployment, "write_half"),
        mock.patch.object(Deployment, "keep_summary"),
        mock.patch("splitvfl.app.deployment.show_on_board"),
    ):
        train(2)
    assert read_half_schema(folder / "telecom/model").digest == before.digest
    train(2)
    after = read_half_schema(folder / "telecom/model")
    assert (after.run, after.epoch) == (before.run, 2)
    # Of answers on request the key is the same, and what noise follows from has the digest of the half in it.
    assert after.digest != before.digest
    both(score)
    kept = [json.loads(line) for line in (folder / "telecom/ledger/telecom/ledger.jsonl").read_text().splitlines()]
    assert [line.get("total", 0) for line in kept] == [0, 120, 240]
    assert [line.get("model") for line in kept] == [None, before.digest, after.digest]
