"""What a passive party is told, before and after training, of what its activations tell of its columns."""

from __future__ import annotations

import json
import stat
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from splitvfl.app import activation_forecast
from splitvfl.app.activation_forecast import forecast_activations
from splitvfl.app.experiment import build_trainer, run_experiment
from splitvfl.app.records import load_data
from splitvfl.cli import main
from splitvfl.config.sections import load_config, parse_config

READERS = ("ridge", "inverse-network", "white-box-inversion")
DRAWS = 2  # of first weights: one fewer than users have
FILE = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["* error", "worst *"]}
model: {name: mlp, bottom: [64], top_hidden: [8]}
train: {epochs: 2, batch_size: 64}
"""


TABLE = """
data: {name: table, path: all.csv, label: y, id_column: id}
parties:
  clinic: {role: active, columns: [a]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [4], top_hidden: [4]}
train: {epochs: 1, batch_size: 32}
"""


def write_table(folder: Path) -> pd.DataFrame:
    """Write four columns and a label that follows from them, and return the table."""
    drawn = np.random.default_rng(0).normal(size=(240, 4))
    table = pd.DataFrame(drawn, columns=["a", "b", "c", "d"])
    table = table.assign(y=(drawn.sum(axis=1) > 0).astype(int), id=range(240))
    table.to_csv(folder / "all.csv", index=False)
    return table


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forecast")
    (folder / "lab.yaml").write_text(FILE)
    assert main(["train", str(folder / "lab.yaml"), "--out", str(folder / "run")]) == 0
    return folder


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_forecast, "DRAWS", DRAWS)


@pytest.fixture
def ridge_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the readers the quick one."""
    whole = activation_forecast.thorough_readers
    monkeypatch.setattr(activation_forecast, "thorough_readers", lambda *given: whole(*given)[:1])


def share(*changes: tuple[str, str]) -> float:
    text = FILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    found = forecast_activations(parse_config(text, source="lab.yaml"), "lab")
    assert [one.attack for one in found.readings] == ["ridge"] * DRAWS
    assert found.width == (64 if "bottom: [64]" in text else 2)
    return sum(one.share for one in found.readings) / DRAWS


@pytest.mark.usefixtures("ridge_alone")
def test_a_narrow_cut_and_noise_tell_less_and_nothing_tells_more_than_there_is() -> None:
    """64 numbers of 20 columns hold all of them, if bent; two cannot hold more than two directions of columns' 20.

    The two directions that hold most of these columns hold .59 of their variance (singular values of the columns).
    """
    wide, narrow = share(), share(("bottom: [64]", "bottom: [2]"))
    assert 0.59 < wide < 1.0
    assert narrow < 0.59
    noise = "defenses: [{name: gaussian-ir, clip: 1.0, sigma: 10.0}]\ntrain:"
    assert share(("train:", noise)) < 0.02


@pytest.mark.parametrize(("bottom", "draws", "words"), [("random", DRAWS, "random weights"), ("pca", 1, "principal")])
def test_a_one_way_run_will_tell_as_much_as_its_forecast(bottom: str, draws: int, words: str) -> None:
    text = FILE.replace("[64]", "[8]")
    config = parse_config(f"{text}exchange: {{name: one-way, bottom: {bottom}}}\n", source="lab.yaml")
    found = forecast_activations(config, "lab")
    assert Counter(one.attack for one in found.readings) == dict.fromkeys(READERS, draws)
    assert found.sentence.startswith(f"From what lab sends once, with {words}")
    assert "nothing trains this bottom model" in found.notes[0]
    ridge = [one for one in found.readings if one.attack == "ridge"]
    # All 440 records are one message, and 5 % of them are known; it is computed again, and no round of epochs.
    assert {(one.known_share, one.records) for one in ridge} == {(0.05, 418)}
    if bottom == "pca":
        trainer = build_trainer(config, load_data(config))
        trainer.fit(1)
        (read,) = trainer.column_readings("lab")
        assert read.share == pytest.approx(ridge[0].share, abs=0.05), "other records are known"


def test_it_is_the_same_each_time_and_other_weights_tell_otherwise(tmp_path: Path) -> None:
    write_table(tmp_path)
    config = parse_config(TABLE, source=tmp_path / "run.yaml")
    run_experiment(config, tmp_path / "run")
    first, again = (forecast_activations(config, "lab") for _ in range(2))
    assert first == again
    assert len({one.share for one in first.readings}) == DRAWS * len(READERS)
    told: list[str] = []
    trained = forecast_activations(config, "lab", model=tmp_path / "run", notify=told.append)
    assert [line.partition(":")[0] for line in told] == ["the trained half"]  # it may take a while
    assert "white-box-inversion" in told[0]
    assert trained.trained
    assert [one.attack for one in trained.readings] == list(READERS)
    reading = max(trained.readings, key=lambda one: one.share)
    assert reading.share not in {one.share for one in first.readings}
    assert trained.sentence.startswith("From what lab sends with its trained model part, 4 numbers a record")
    assert trained.most == reading
    most = max(first.readings, key=lambda one: one.share)
    assert first.most == most
    assert f"{most.share:.0%} of the variance" in first.sentence
    assert ("knows its model part and" in first.sentence) == most.knows_model == (most.attack == READERS[2])


def test_records_that_are_encoded_otherwise_than_in_training_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half was trained on columns less their means over its own records; of fewer records these are others."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path).iloc[:150].to_csv("fewer.csv", index=False)
    Path("run.yaml").write_text(TABLE)
    assert main(["train", "run.yaml", "--out", "run"]) == 0
    notes = {
        path: forecast_activations(load_config(Path("run.yaml"), [f"data.path={path}"]), "lab", model=Path("run")).notes
        for path in ("all.csv", "fewer.csv")
    }
    assert not any("encoded otherwise" in note for note in notes["all.csv"])
    assert any("encoded otherwise than those of the training" in note for note in notes["fewer.csv"])


def test_what_is_printed_and_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = here / "said.json"
    words = ["forecast", str(here / "lab.yaml"), "--as", "lab", "--model", str(here / "run"), "--json", str(out)]
    assert main(words) == 0
    said = json.loads(out.read_text())
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert said["format"] == "splitvfl activation forecast"
    printed = " ".join(capsys.readouterr().out.split())
    assert said["sentence"] in printed
    reading = max(said["readings"], key=lambda one: one["share"])
    assert reading["share"] == pytest.approx(sum(one["share"] for one in reading["columns"]) / 20)
    assert f"{reading['columns'][0]['column']} {reading['columns'][0]['share']:.0%}" in printed
    assert "no upper bound" in printed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--as", "clinic"], "there are lab"),
        (["--as", "lab", "--classes", "2"], "is not linear: further models and --classes"),
        (["--as", "lab", "--model", "nowhere"], "expected a trained half"),
        (["--as", "lab", "exchange=oracle"], "oracle"),
    ],
)
def test_mistakes_are_told_in_a_line(
    here: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", str(here / "lab.yaml"), *words]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert expected in said
