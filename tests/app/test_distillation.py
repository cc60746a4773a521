"""A run's student: from the command to scores without a partner, in one process and over a network."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from splitvfl.app import distillation
from splitvfl.app.distillation import Distilled, distill
from splitvfl.app.records import own_data
from splitvfl.app.saved_model import Origin, load_half, save_half
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.errors import ConfigError, DataError
from splitvfl.learning.bootstrap import Figure, paired_bootstrap
from splitvfl.learning.tasks import Binary
from splitvfl.report.summary import read_summary
from splitvfl.run import student
from tests.app.test_saved_run import EXPERIMENT, write_files

RUN = Path("runs/credit")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its student, which was made in the first of its tests."""
    folder = tmp_path_factory.mktemp("distilled")
    write_files(folder)
    (folder / "credit.yaml").write_text(EXPERIMENT)
    assert main(["train", str(folder / "credit.yaml"), "--out", str(folder / RUN)]) == 0
    return folder


@pytest.fixture
def folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, in which the test runs; training is short."""
    monkeypatch.chdir(trained)
    monkeypatch.setattr(student, "_MOST_EPOCHS", 2)
    return trained


def test_a_student_scores_records_without_the_partners_columns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["distill", str(RUN)]) == 0

    said, kept = capsys.readouterr().out, json.loads((RUN / "distillation.json").read_text())
    assert re.search(r"own columns alone +0\.\d{3}(.|\n)*student +0\.\d{3}(.|\n)*joint +0\.\d{3}", said)
    assert "splitvfl predict runs/credit/student --records FILE --out scores.csv" in said
    figures = kept["figures"]
    assert figures["joint"]["value"] == pytest.approx(read_summary(RUN).test_metric)
    labels = pd.read_csv("all.csv").set_index("customer")["default"]
    assert main(["predict", str(RUN), "--out", "joint.csv"]) == 0
    tested = pd.read_csv("joint.csv")["customer"]
    table = pd.read_csv("all.csv").set_index("customer").loc[tested, ["age", "sex"]].reset_index()
    table.to_csv("tested.csv", index=False)
    for name, model in (("student", "student"), ("own columns alone", "own-columns")):
        target = f"{model}.csv"
        assert main(["predict", str(RUN / model), "--records", "tested.csv", "--out", target]) == 0
        found = pd.read_csv(target)
        assert roc_auc_score(labels[found["customer"]], found["score"]) == pytest.approx(figures[name]["value"])
    half = load_half(RUN / "student/bank").schema
    assert [path.name for path in (RUN / "student").iterdir()] == ["bank"]
    assert (half.widths, half.column_names) == ({}, ("age", "sex"))
    difference = figures["student"]["value"] - figures["own columns alone"]["value"]
    assert kept["student less own columns alone"]["value"] == pytest.approx(difference)
    assert all(figure["low"] <= figure["value"] <= figure["high"] for figure in figures.values())
    assert stat.S_IMODE((RUN / "distillation.json").stat().st_mode) == 0o600


def test_a_run_that_begins_anew_takes_its_student_away(folder: Path) -> None:
    shutil.copytree(RUN, "runs/again")
    for name in ("student", "own-columns"):
        Path("runs/again", name).mkdir(exist_ok=True)
    Path("runs/again/distillation.json").write_text("{}")

    assert main(["train", "credit.yaml", "--out", "runs/again", "--overwrite", "train.epochs=1"]) == 0

    found = {path.name for path in Path("runs/again").iterdir()}
    assert not found & {"student", "own-columns", "distillation.json"}


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.01, 0.02, "is better than"), (-0.02, -0.01, "is worse than"), (-0.01, 0.01, "is no better than")],
)
def test_the_verdict_follows_the_interval_of_the_difference(low: float, high: float, said: str) -> None:
    found = Distilled("auc", {}, Figure((low + high) / 2, low, high), {}, RUN, "bank")

    assert f"The student {said} own columns alone" in found.verdict()


# --- over a network


def networked(folder: Path, role: str = "bank") -> Path:
    """The folder that one party would have after a run over a network."""
    run = folder / f"runs/credit-{role}"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(folder / RUN / "model" / role, run / "model")
    shutil.copy(folder / RUN / "experiment.yaml", run)
    return run


@pytest.fixture
def over_network(folder: Path) -> Path:
    """The same for the label party, whose own file its half would have been trained on, with a file of joint scores."""
    config = load_config(folder / "credit.yaml")
    own = own_data(config, "bank")
    half = folder / "half"
    shutil.rmtree(half, ignore_errors=True)
    run = networked(folder)
    # A party alone divides its records by their ids, so that it learns other means of them.
    saved = load_half(run / "model")
    party = saved.party(saved.columns(), device=torch.device("cpu"))
    origin = Origin(
        learned=saved.learned,
        model=config.model,
        run="a" * 32,
        step=1,
        epoch=1,
        encoding=own.encoding,
        id_column="customer",
    )
    save_half(run / "model", party, origin)
    table = pd.read_csv("all.csv")
    scores = 1 / (1 + np.exp(-0.3 * (table["age"] - 40)))
    pd.DataFrame({"customer": table["customer"], "score": scores})[::-1].to_csv("joint-scores.csv", index=False)
    return run


def test_over_a_network_scores_come_from_a_file(over_network: Path) -> None:
    found = distill(over_network, scores=Path("joint-scores.csv"))

    own = own_data(load_config("credit.yaml"), "bank").data.test
    assert own.labels is not None
    age = own.columns.numeric[:, 0]
    assert found.figures["joint"].value == pytest.approx(roc_auc_score(own.labels, age))
    assert (
        main(
            ["predict", str(over_network / "student"), "--records", "bank-new.csv", "--out", "alone.csv", "--overwrite"]
        )
        == 0
    )


WRONG: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "missing": (lambda scores: scores[50:], r"joint-scores.csv has no score for \d+ of \d+ training records"),
    "logits": (lambda scores: scores.assign(score=7.0), "joint scores are no probabilities: they go from 7 to 7"),
    "gaps": (lambda scores: scores.assign(score=np.nan), "joint scores hold NaN"),
    "other columns": (lambda scores: scores.rename(columns={"score": "p"}), "names the records and then score, as"),
    "twice": (lambda scores: pd.concat([scores, scores]), "ids must differ"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_scores_that_do_not_teach_are_refused(over_network: Path, wrong: str) -> None:
    change, message = WRONG[wrong]
    change(pd.read_csv("joint-scores.csv")).to_csv("joint-scores.csv", index=False)

    with pytest.raises(DataError, match=message):
        distill(over_network, scores=Path("joint-scores.csv"))


def test_what_cannot_be_distilled_says_why(over_network: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="is a run over a network; give the joint model's scores of the training"):
        distill(over_network)
    with pytest.raises(ConfigError, match="is the run of telecom, a passive party; the label party distils"):
        distill(networked(folder, "telecom"), scores=Path("joint-scores.csv"))
    with pytest.raises(ConfigError, match=r"--scores: .* is a run in one process, which scores its records itself"):
        distill(RUN, scores=Path("joint-scores.csv"))
    distill(RUN)
    with pytest.raises(ConfigError, match="is a model of one party, and there is nothing to distil"):
        distill(RUN / "student")


def test_a_label_party_without_columns_has_no_student(folder: Path) -> None:
    text = EXPERIMENT.replace("columns: [age, sex], ", "").replace("[calls, plan]", "rest")
    Path("bare.yaml").write_text(text)
    assert main(["train", "bare.yaml", "train.epochs=1"]) == 0

    with pytest.raises(ConfigError, match="bank has no columns of its own"):
        distill(Path("runs/bare"))


def test_an_aucs_interval_counts_the_records_of_the_rarer_class(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.zeros(60)
    labels[:6] = 1.0
    test = SimpleNamespace(labels=labels, real=None, count=60)
    data = SimpleNamespace(test=test)
    parties: Any = {name: SimpleNamespace(data=data) for name in ("own columns alone", "student")}
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(
        distillation, "outputs_alone", lambda party, records: torch.randn(60, 1, generator=generator) + labels[:, None]
    )
    asked: list[int] = []

    def noted(*args: Any, units: int, **more: Any) -> Any:
        asked.append(units)
        return paired_bootstrap(*args, units=units, **more)

    monkeypatch.setattr(distillation, "paired_bootstrap", noted)
    figures, gain = distillation._compared(parties, None, Binary(), 0)
    assert asked == [6]
    assert figures["student"].low < figures["student"].value < figures["student"].high
    assert gain.low < 0.0 < gain.high
