"""What ``splitvfl train`` leaves predicts as the trained model did, and new records of any form get the same scores."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import safetensors.torch
import torch
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from torch import nn

import splitvfl
from splitvfl.app.records import load_data
from splitvfl.app.saved_run import SavedRun, load_run
from splitvfl.app.trainer import Trainer
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.data.doubts import DoubtWarning
from splitvfl.data.ingest.run import ingest_like
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, DataError, DriftError
from splitvfl.learning.losses import Logistic
from splitvfl.learning.randomness import PartyRandom
from splitvfl.learning.tasks import Binary
from splitvfl.models import MLP
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.report.summary import _beyond, read_summary
from splitvfl.run.half_folder import HalfSchema, _signed, is_half
from tests.summaries import opened
from tests.tables import ingest

EXPERIMENT = """
data: {name: table, path: all.csv, id_column: customer, missing: indicator}
parties:
  bank: {role: active, columns: [age, sex], label: default}
  telecom: {role: passive, columns: [calls, plan]}
model: {name: mlp, bottom: [6, 4], top_hidden: [5]}
train: {epochs: 2, batch_size: 32, device: cpu}
audit: false
"""
OWN = ("bank", "telecom")


def write_files(folder: Path) -> None:
    draw = np.random.default_rng(0)
    age, calls = draw.normal(40, 9, 260), draw.normal(size=260)
    sex, plan = draw.choice(["f", "m"], 260), draw.choice(["a", "b", "c"], 260)
    label = (0.1 * (age - 40) + calls + (plan == "b") > 0).astype(int)
    columns = {"age": age, "sex": sex, "calls": calls, "plan": plan, "default": label}
    table = pd.DataFrame({"customer": [f"c{number:03d}" for number in range(260)], **columns})
    table[:220].to_csv(folder / "all.csv", index=False)
    new = table[220:].drop(columns="default")
    new.to_csv(folder / "new.csv", index=False)
    new[["customer", "age", "sex"]].to_csv(folder / "bank-new.csv", index=False)
    shuffled = new[["customer", "calls", "plan"]].sample(frac=1, random_state=3)
    stranger = pd.DataFrame({"customer": ["c999"], "calls": [0.0], "plan": ["a"]})
    pd.concat([stranger, shuffled]).to_csv(folder / "telecom-new.csv", index=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files, an experiment, and its finished run ``runs/credit``."""
    folder = tmp_path_factory.mktemp("credit")
    write_files(folder)
    (folder / "credit.yaml").write_text(EXPERIMENT)
    assert main(["train", str(folder / "credit.yaml"), "--out", str(folder / "runs/credit")]) == 0
    return folder


@pytest.fixture
def folder(trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of it, in which the test runs."""
    shutil.copytree(trained, tmp_path / "credit")
    settings = tmp_path / "credit/runs/credit/experiment.yaml"
    settings.write_text(settings.read_text().replace(str(trained), str(tmp_path / "credit")))
    monkeypatch.chdir(tmp_path / "credit")
    return tmp_path / "credit"


def scored(*arguments: str) -> pd.DataFrame:
    assert main(["predict", "runs/credit", *arguments, "--out", "scores.csv", "--overwrite"]) == 0
    return pd.read_csv("scores.csv")


# --- new records


def by_hand(trained: Path) -> np.ndarray[Any, Any]:
    """Scores of ``new.csv`` out of the experiment's numbers, with none of its code but the division of records."""
    train_ids = load_data(load_config(trained / "credit.yaml")).active.train.ids.numpy()
    train, new = pd.read_csv(trained / "all.csv").iloc[train_ids], pd.read_csv(trained / "new.csv")

    def scaled(name: str) -> list[np.ndarray[Any, Any]]:
        return [((new[name] - train[name].mean()) / train[name].std(ddof=0)).to_numpy()]

    def onehot(name: str) -> list[np.ndarray[Any, Any]]:
        return [(new[name] == value).to_numpy(float) for value in sorted(train[name].unique())]

    def weights(party: str) -> list[np.ndarray[Any, Any]]:
        found = safetensors.torch.load_file(trained / f"runs/credit/weights/{party}.safetensors")
        return [found[f"layers.{layer}.{what}"].double().numpy() for layer in (0, 2) for what in ("weight", "bias")]

    own = np.stack([*scaled("age"), *onehot("sex")], axis=1)
    theirs = np.stack([*scaled("calls"), *onehot("plan")], axis=1)
    first, shift, second, other = weights("telecom")
    sent = np.maximum(np.maximum(theirs @ first.T + shift, 0) @ second.T + other, 0)
    first, shift, second, other = weights("bank")
    logits = np.maximum(np.concatenate([sent, own], axis=1) @ first.T + shift, 0) @ second.T + other
    return 1 / (1 + np.exp(-logits[:, 0]))


def test_new_records_get_the_scores_that_the_weights_say(folder: Path) -> None:
    found = scored("--records", "new.csv")

    assert found.columns.tolist() == ["customer", "score"]
    assert found["customer"].tolist() == [f"c{number}" for number in range(220, 260)]
    np.testing.assert_allclose(found["score"], by_hand(folder), atol=2e-6)
    assert stat.S_IMODE(Path("scores.csv").stat().st_mode) == 0o600


def test_files_of_each_party_are_joined_by_id(folder: Path) -> None:
    expected = scored("--records", "new.csv")

    found = scored("--records", "bank=bank-new.csv", "--records", "telecom=telecom-new.csv")

    pd.testing.assert_frame_equal(found, expected)


def with_formulas() -> pd.DataFrame:
    """New records, of which two have ids that a spreadsheet takes for formulas, and one is called by a number."""
    new = pd.read_csv("new.csv").astype({"customer": str})
    new.loc[[2, 5, 7], "customer"] = ["=1+1", "＠SUM(A1)", "-5"]
    new.to_csv("new.csv", index=False)
    return new


def test_ids_that_spreadsheets_calculate_are_told_and_stay_as_they_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = with_formulas()
    found = scored("--records", "new.csv")
    said = capsys.readouterr().err
    assert "2 of 40 ids in 'customer' begin as a formula does, the first at row 2 (from 0): '=1+1'" in said
    assert found["customer"].tolist() == new["customer"].tolist()
    run = splitvfl.load_run("runs/credit")
    assert run.score("new.csv").formulas.startswith("2 of 40 ids")
    assert run.score(pd.read_csv("new.csv")[:2]).formulas == ""
    assert main(["predict", "runs/credit", "--records", "new.csv", "--out", "scores.parquet"]) == 0
    assert "formula" not in capsys.readouterr().err, "no spreadsheet calculates a cell of such a file"


def test_strict_ids_are_refused_before_anything_is_counted_or_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_formulas()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for out in ("scores.csv", "scores.parquet"):
        assert main(["predict", "runs/credit", "--records", "new.csv", "--out", out, "--strict-ids"]) == 2
        assert "row 2 (from 0): '=1+1'" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(DataError, match="begin as a formula does"):
        splitvfl.load_run("runs/credit").score("new.csv", strict_ids=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    pd.read_csv("new.csv")[:2].to_csv("new.csv", index=False)
    assert len(scored("--records", "new.csv", "--strict-ids")) == 2
    assert list((folder / "runs/credit/ledger").iterdir()), "now they are counted"


TABLES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "arrow": pa.Table.from_pandas,
    "dict": lambda frame: {name: frame[name].to_numpy() for name in frame},
    "of each party": lambda frame: {"telecom": frame[["customer", "calls", "plan"]][::-1], "bank": frame},
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_in_memory_are_scored_as_files(folder: Path, kind: str) -> None:
    run = splitvfl.load_run("runs/credit")

    found = run.score(TABLES[kind](pd.read_csv("new.csv")))

    assert torch.equal(found.scores, run.predict("new.csv"))
    assert (found.name_column, found.names.to_pylist()[:2]) == ("customer", ["c220", "c221"])


def test_the_runs_own_test_records_need_no_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scored()

    labels = pd.read_csv("all.csv").set_index("customer")["default"]
    auc = roc_auc_score(labels[found["customer"]], found["score"])
    assert auc == pytest.approx(read_summary(folder / "runs/credit").test_metric)
    assert "the run's own test records: 40 records scored" in capsys.readouterr().out


def test_categories_that_training_did_not_know_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = pd.read_csv("new.csv")
    new.loc[[3, 5], "plan"] = "z"
    new.to_csv("new.csv", index=False)

    scored("--records", "new.csv")

    assert "telecom: plan: 2 records have a value that training did not know" in capsys.readouterr().err


def test_unknown_categories_are_counted_among_the_records_that_are_scored(folder: Path) -> None:
    bank, telecom = pd.read_csv("bank-new.csv"), pd.read_csv("telecom-new.csv").set_index("customer")
    telecom.loc[["c221", "c222", "c239"], "plan"] = "z"
    telecom.reset_index().to_csv("telecom-new.csv", index=False)
    run = splitvfl.load_run("runs/credit")

    few = run.score({"bank": bank[:2], "telecom": "telecom-new.csv"})
    every = run.score({"bank": bank, "telecom": "telecom-new.csv"})

    assert (few.unknown, every.unknown) == ({"telecom": {"plan": 1}}, {"telecom": {"plan": 3}})
    assert torch.allclose(few.scores, every.scores[:2])


# --- records that differ from the training


def test_another_unit_is_said_and_refused_on_request(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = pd.read_csv("new.csv")
    new.assign(age=100 * new["age"]).to_csv("cents.csv", index=False)

    scored("--records", "new.csv")
    assert "drift: none beyond chance in 4 columns of 40 records" in capsys.readouterr().err
    scored("--records", "cents.csv")
    said = capsys.readouterr().err
    assert "drift: 1 of 4 columns of 40 records differ from the training" in said
    assert re.search(r"bank: age +100.0% +0.0% +0.0% +0.0% +\d", said)

    Path("scores.csv").unlink()
    for option in (["--fail-on-drift"], ["--fail-on-drift", "0.5"], ["--fail-on-drift=0.5"]):
        assert main(["predict", "runs/credit", "--records", "cents.csv", *option, "--out", "scores.csv"]) == 4
        assert "bank: age: 100.0% outside the training range" in capsys.readouterr().err
        assert not Path("scores.csv").exists()
    scored("--records", "new.csv", "--fail-on-drift")


def test_drift_is_beside_the_scores_and_a_warning_where_only_scores_are_returned(folder: Path) -> None:
    new, run = pd.read_csv("new.csv"), splitvfl.load_run("runs/credit")
    found = run.score(new.assign(calls=np.nan)).drift
    assert [one.column for own in found.values() for one in own if one.level == "drift"] == ["calls"]
    assert (found["telecom"][0].missing, found["telecom"][0].missing_in_training) == (1.0, 0.0)
    with pytest.warns(DoubtWarning, match="telecom: calls"):
        run.predict(new.assign(calls=np.nan))
    run.predict(new)  # says nothing
    parts = {"bank": new[["customer", "age", "sex"]], "telecom": new[["customer", "calls", "plan"]].assign(plan="z")}
    assert {name: own[0].level for name, own in run.score(parts).drift.items()} == {"bank": "none", "telecom": "drift"}
    with pytest.raises(DriftError, match="telecom: calls"):
        run.score(new.assign(calls=np.nan), fail_on_drift=0.25)


def test_a_run_without_profiles_predicts_and_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for party in OWN:  # as earlier versions wrote it
        path = folder / f"runs/credit/model/{party}/half.json"
        content = json.loads(path.read_text())
        del content["encoding"]["profiles"]
        content.pop("saturated", None), content.pop("score_shifts", None)
        content["digest"] = ""
        schema = _signed(msgspec.convert(content, HalfSchema))
        path.write_bytes(msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n")
    scored()  # the run's own records are still its own
    assert scored("--records", "new.csv").shape == (40, 2)
    assert "no bins: trained by an earlier version" in capsys.readouterr().err


# --- what the parts of an experiment leave


KINDS = {
    "early stopping": "train: {epochs: 4, early_stopping: {patience: 1}, lr: 0.5, LESS}",
    "private top": "model: {name: mlp, bottom: [4], private_top: true}\ntrain: {epochs: 1, LESS}",
    "one-way": "exchange: {name: one-way, bottom: pca, width: 3}\ntrain: {epochs: 2, LESS}",
    "short rows": "model: {name: logistic-regression, row_norm: 0.5}\ntrain: {epochs: 1, LESS}",
    "wide-deep": "model: {name: wide-deep, bottom: [4], embedding_dim: 2}\ntrain: {epochs: 1, LESS}",
    "bf16": "exchange: {name: split, wire: bf16}\ntrain: {epochs: 1, autocast: bf16, LESS}",
    "multiclass": "data: {name: digits, digit: null}\ntrain: {epochs: 1, LESS}",
    "one's own": "model: {name: 'own_model:Net', hidden: 3}\ntrain: {epochs: 1, LESS}",
}
OWN_MODEL = """
from torch import nn
from splitvfl.models import Recipe

class Net(Recipe):
    def __init__(self, *, hidden: int = 2) -> None:
        self.hidden = hidden

    def make_bottom(self, columns, task):
        return nn.Sequential(nn.Linear(columns.width, self.hidden), nn.Tanh())

    def make_top(self, columns, task, widths):
        return nn.Linear(sum(widths) + columns.width, task.outputs)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_test_figure_comes_back_from_the_saved_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    Path("own_model.py").write_text(OWN_MODEL)
    data = "" if "data:" in KINDS[kind] else "data: {name: breast-cancer}\n"
    claims = "parties: {clinic: {role: active, columns: 0.4}, lab: {role: passive, columns: rest}}\naudit: false\n"
    more = KINDS[kind].replace("LESS", "batch_size: 64, device: cpu")
    Path("one.yaml").write_text(data + claims + more)
    assert main(["train", "one.yaml"]) == 0

    run = load_run("runs/one")

    summary, labels = read_summary(Path("runs/one")), run.own_data.active.test.labels
    assert labels is not None
    outputs = run.outputs(run.own_tests().records).outputs.numpy()
    many = outputs.shape[1] > 1
    found = accuracy_score(labels, outputs.argmax(axis=1)) if many else roc_auc_score(labels, outputs[:, 0])
    assert found == pytest.approx(summary.test_metric, abs=1e-6)
    assert run.predict().shape == ((len(labels), 10) if many else (len(labels),))
    assert summary.kept_epoch is None or run.halves["lab"].schema.epoch == summary.kept_epoch


def test_tables_are_scored_by_tables_that_were_ingested_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    settings: dict[str, Any] = {
        "id_column": "customer",
        "label": "default",
        "active": "age, sex",
        "active_name": "bank",
    }
    settings["passive"] = {"telecom": "calls, plan"}
    ingest("all.csv", out="tables", **settings)
    ingest_like("new.csv", out="more", like="tables")
    config = (
        "data: {name: tables, path: tables}\nparties: {bank: {role: active}, telecom: {role: passive}}\n"
        "model: {name: wide-deep, bottom: [4]}\ntrain: {epochs: 1, batch_size: 64, device: cpu}\naudit: false\n"
    )
    Path("one.yaml").write_text(config)
    assert main(["train", "one.yaml"]) == 0

    assert main(["predict", "runs/one", "--records", "more", "--out", "scores.parquet"]) == 0
    assert main(["predict", "runs/one", "--out", "own.csv"]) == 0

    assert pd.read_parquet("scores.parquet").shape == (40, 2)
    like_training = load_run("runs/one").score("more").drift
    assert {one.level for own in like_training.values() for one in own} == {"none"}
    pd.read_csv("new.csv").assign(age=4000.0, plan="z").to_csv("cents.csv", index=False)
    ingest_like("cents.csv", out="cents", like="tables")
    drift = load_run("runs/one").score("cents").drift
    assert {name: (own[0].column, own[0].level) for name, own in drift.items()} == {
        "bank": ("age", "drift"),
        "telecom": ("plan", "drift"),
    }
    assert main(["predict", "runs/one", "--records", "cents", "--out", "none.csv", "--fail-on-drift"]) == 4
    with pytest.raises(DataError, match="expected the folder of new ones, as `splitvfl ingest FILES --like TABLES`"):
        load_run("runs/one").predict("new.csv")
    other = pd.read_csv("all.csv").assign(age=lambda table: 2 * table["age"])
    other.to_csv("other.csv", index=False)
    ingest("other.csv", out="others", **settings)
    with pytest.raises(DataError, match="has other encoders than the tables that bank was trained on"):
        load_run("runs/one").predict("others")


def test_defenses_of_predictions_act(folder: Path) -> None:
    path = Path("runs/credit/experiment.yaml")
    path.write_text(path.read_text().replace("defenses: []", "defenses: [{name: rounding, decimals: 1}]"))

    found = load_run("runs/credit").predict("new.csv")

    torch.testing.assert_close(found, (found * 10).round() / 10)


def test_attacks_that_are_gone_do_not_matter_and_models_that_are_gone_are_named(folder: Path) -> None:
    path = Path("runs/credit/experiment.yaml")
    text = path.read_text()
    path.write_text(text.replace("attacks: []", "attacks: [{name: 'gone:Attack'}]"))
    load_run("runs/credit")

    path.write_text(text.replace("defenses: []", "defenses: [{name: 'gone:Defense'}]"))
    with pytest.raises(ConfigError, match=r"no module 'gone' in .*--modules FOLDER"):
        load_run("runs/credit")


EVIL = "from pathlib import Path\nPath('executed').touch()\nclass X:\n    def __call__(self, *_): ...\n"
# The constructor of this installed class evaluates text.
LAMBDA = "name: 'sympy:Lambda', signature: x, expr: \"__import__('pathlib').Path('executed').touch()\""
NAMED = {
    "in the run": ("defenses: []", "defenses: [{name: 'runs.credit.evil:X'}]"),
    "above it": ("defenses: []", "defenses: [{name: 'runs.credit.evil.x:X'}]"),
    "installed": ("defenses: []", f"defenses: [{{{LAMBDA}}}]"),
    "a model": ("name: mlp", LAMBDA.replace(", ", "\n  ")),
    "an optimiser": ("name: adam", LAMBDA),
    "in short": ("attacks: []", "attacks: ['runs.credit.evil:X']"),
    "a model in short": ("exchange: {name: split, own_part: exact, in_flight: 0}", "exchange: 'runs.credit.evil:X'"),
}
COMMANDS = {
    "predict": ["predict", "runs/credit", "--records", "new.csv", "--out", "s.csv"],
    "audit": ["audit", "runs/credit", "--draws", "10"],
    "reconstruct": ["reconstruct", "runs/credit"],
    "distill": ["distill", "runs/credit"],
    "serve": ["serve", "runs/credit"],
    "check": ["check", "runs/credit/experiment.yaml"],
    "train": ["train", "runs/credit/experiment.yaml", "--out", "runs/again"],
    "resume": ["train", "credit.yaml", "--out", "runs/credit", "--resume"],
}


@pytest.mark.parametrize(
    ("named", "command"),
    [
        # With attacks, which have no use there, this one does what it is for.
        pytest.param(named, command, marks=pytest.mark.slow(reason="a student"))
        if (named, command) == ("in short", "distill")
        else (named, command)
        for named in NAMED
        for command in COMMANDS
    ],
)
def test_no_command_executes_what_the_settings_of_a_run_name(
    named: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (folder / "runs/credit/evil.py").write_text(EVIL)
    settings = folder / "runs/credit/experiment.yaml"
    before = settings.read_text()
    settings.write_text(before.replace(*NAMED[named]))
    assert settings.read_text() != before

    code = main(COMMANDS[command])
    assert not list(folder.rglob("executed"))
    if named == "in short" and command in ("predict", "reconstruct", "distill"):
        return  # there is no use for attacks, and those of a run need not be there any more
    assert code == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert "evil" in told or "sympy" in told


@pytest.mark.parametrize(
    "name", ["../../../victim/pwn", "/tmp/pwn", ".", "..", "a\x1b[31mb", "tel\u202e", "", "a/b", "x" * 101]
)
def test_no_name_in_a_half_leads_out_of_the_folder(name: str, folder: Path) -> None:
    for party in OWN:
        path = folder / "runs/credit/model" / party / "half.json"
        half = msgspec.json.decode(path.read_bytes(), type=HalfSchema)
        if party == "telecom":
            half = msgspec.structs.replace(half, party=name)
        else:
            half = msgspec.structs.replace(half, widths={name: half.widths["telecom"]})
        path.write_bytes(msgspec.json.encode(_signed(half)))  # the digest has no secret

    before = set(folder.rglob("*"))
    with pytest.raises(CheckpointError, match="expected a party's name that a folder can have"):
        load_run("runs/credit")
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [("own_columns_auc", 7), ("goal", 5), ("steps", -1), ("batch_size", -2)],
)
def test_figures_that_no_run_has_are_refused(key: str, value: float, folder: Path) -> None:
    path = folder / "runs/credit/summary.json"

    def changed(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: value if name == key else changed(inner) for name, inner in node.items()}
        return [changed(inner) for inner in node] if isinstance(node, list) else node

    found = opened(path)
    for party in found["parties"].values():
        party.setdefault("own_columns_auc", 0.5)
    text = json.dumps(changed(found))
    assert f'"{key}": {value}' in text
    path.write_text(text)
    with pytest.raises(CheckpointError, match=rf"is damaged: {key} is {value}"):
        read_summary(folder / "runs/credit")


@pytest.mark.parametrize(("key", "value"), [("worst_auc", -5.0), ("auc", 1.7), ("epsilon", -3.0)])
def test_figures_are_looked_at_wherever_they_stand(key: str, value: float) -> None:
    deep = {"parties": {"lab": {"leaks": [{"attack": "norm", key: value}]}}}
    assert [*_beyond(deep)]
    assert not [*_beyond({"parties": {"lab": {"leaks": [{"attack": "norm", key: 0.5}]}}})]
    assert not [*_beyond({key: math.nan})]


def test_own_hooks_of_a_run_are_found_where_the_command_runs(folder: Path) -> None:
    settings = folder / "runs/credit/experiment.yaml"
    settings.write_text(settings.read_text().replace("defenses: []", "defenses: [{name: 'my_round_off:Halved'}]"))
    code = (
        "class Halved:\n    crossing = 'activation'\n    def __call__(self, message, secrets, /): return message / 2\n"
    )
    (folder / "own").mkdir()
    (folder / "own/my_round_off.py").write_text(code)

    with pytest.raises(ConfigError, match=r"no module 'my_round_off'"):
        load_run("runs/credit")
    elsewhere = load_run("runs/credit", modules="own").predict("new.csv")
    (folder / "my_round_off.py").write_text(code)
    assert torch.equal(load_run("runs/credit").predict("new.csv"), elsewhere)
    assert main([*COMMANDS["predict"], "--modules", "own"]) == 0


def test_what_draws_from_torchs_own_generator_draws_numbers_that_nobody_knows(folder: Path) -> None:
    drawn = []
    for random in (load_run("runs/credit").active.random, load_run("runs/credit").active.random, PartyRandom(0)):
        with random:
            drawn.append(tuple(torch.rand(4).tolist()))

    assert len(set(drawn)) == 3


def test_a_run_that_names_no_module_is_read_from_within(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("runs/credit")
    assert load_run(".").predict("../../new.csv").shape == (40,)


# --- in Python


def python_trainer(loss: Any = None) -> Trainer:
    data = splitvfl.load(
        "table",
        path="all.csv",
        label="default",
        id_column="customer",
        active=["age", "sex"],
        active_name="bank",
        passive={"telecom": ["calls", "plan"]},
    )
    bottom, top = modules()
    return Trainer(
        ActiveParty(data.active, top, task=Binary(loss)),
        {"telecom": PassiveParty(data["telecom"], bottom)},
        batch_size=32,
        audit=False,
    )


def modules() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh()), MLP(6, [4, 1], final_activation=False)


class Squared(Logistic):
    """Predicts otherwise than its parent."""

    def scores(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return squares."""
        return super().scores(outputs) ** 2


def test_a_trainer_of_modules_is_saved_and_read_into_modules(folder: Path) -> None:
    trainer = python_trainer()
    trainer.fit(1)
    state = torch.get_rng_state()
    trainer.save("mine")
    assert torch.equal(torch.get_rng_state(), state)
    bottom, top = modules()

    run = load_run("mine", models={"bank": top, "telecom": bottom})

    assert torch.equal(run.predict("new.csv"), trainer.predict("new.csv"))
    assert torch.equal(run.predict(pd.read_csv("new.csv")), trainer.predict("new.csv"))
    assert trainer.predict().shape == (40,)
    assert trainer.predict(part="train").shape == (180,)
    assert not list(Path("mine").rglob("*.p*"))
    with pytest.raises(ConfigError, match=r"made in Python; give it again: .*models=\{'bank': module\}"):
        load_run("mine")
    with pytest.raises(CheckpointError, match="the weights do not fit the model"):
        load_run("mine", models={"bank": top, "telecom": nn.Linear(4, 3)})
    with pytest.raises(ArgumentError, match="models: mine has no party shop; it has bank, telecom"):
        load_run("mine", models={"shop": top})
    with pytest.raises(DataError, match="does not say which records it was tested on"):
        run.predict()


def test_a_loss_made_in_python_is_given_again(folder: Path) -> None:
    trainer = python_trainer(Squared())
    trainer.fit(1)
    trainer.save("mine")
    bottom, top = modules()
    models = {"bank": top, "telecom": bottom}

    with pytest.raises(ConfigError, match=r"from a loss that was made in Python; give it again: .*loss=loss"):
        load_run("mine", models=models)

    assert torch.equal(load_run("mine", models=models, loss=Squared()).predict("new.csv"), trainer.predict("new.csv"))


def test_an_earlier_save_is_replaced_and_other_folders_are_left_alone(folder: Path) -> None:
    trainer = python_trainer()
    trainer.save("mine")
    first = json.loads(Path("mine/bank/half.json").read_text())
    trainer.fit(1)
    trainer.save("mine")

    second = json.loads(Path("mine/telecom/half.json").read_text())
    assert (first["step"], second["step"]) == (0, trainer.step)
    assert second["run"] == first["run"] == trainer.number
    with pytest.raises(DataError, match="exists and holds no trained halves; it is left alone"):
        trainer.save("runs")


def test_columns_that_came_as_numbers_are_not_encoded(folder: Path) -> None:
    trainer = python_trainer()
    for party in (trainer.active, *trainer.passives.values()):
        party.data = dataclasses.replace(party.data, provenance=None)

    with pytest.raises(ArgumentError, match="the columns of bank and telecom came as numbers"):
        trainer.predict("new.csv")


def test_values_of_a_regression_come_back(folder: Path) -> None:
    text = EXPERIMENT.replace("label: default", "label: calls").replace("[calls, plan]", "[default, plan]")
    Path("value.yaml").write_text(text.replace("missing:", "task: regression, missing:"))
    assert main(["train", "value.yaml", "train.lr=0.02", "train.epochs=4"]) == 0

    run = load_run("runs/value")

    labels = run.own_data.active.test.labels
    assert labels is not None
    expected = read_summary(Path("runs/value")).test_metric
    assert r2_score(labels.numpy(), run.predict().numpy()) == pytest.approx(expected, abs=1e-5)


# --- mistakes


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no target": (["runs/credit", "--records", "new.csv"], "--out: say where the scores go"),
    "a party": (["runs/credit", "--as", "bank", "--out", "s.csv"], "--as: means nothing of a run in one process"),
    "a limit": (
        ["runs/credit", "prediction.per_record=9", "--out", "s.csv"],
        "prediction.per_record=9: a run in one process is scored with the settings in its folder",
    ),
    "no party": (["credit.yaml", "--out", "s.csv"], "--as: say which party of credit.yaml this is"),
    "a column": (
        ["runs/credit", "--records", "bank-new.csv", "--out", "s.csv"],
        "give each party its own (--records PARTY=FILE, or {party: table})",
    ),
    "an id column": (["runs/credit", "--records", "new.csv", "--id", "cust", "--out", "s.csv"], "no column 'cust'"),
    "the records": (["runs/credit", "--records", "new.csv", "--out", "new.csv", "--overwrite"], "holds the records"),
    "another party": (["runs/credit", "--records", "shop=new.csv", "--out", "s.csv"], "there is none"),
    "one of two": (["runs/credit", "--records", "bank=bank-new.csv", "--out", "s.csv"], "no records of telecom"),
    "twice": (["runs/credit", *["--records", "bank=new.csv"] * 2, "--out", "s.csv"], "PARTY=FILE once for each"),
    "modules": (["credit.yaml", "--as", "bank", "--modules", ".", "--out", "s.csv"], "--modules: means nothing over a"),
    "a run": (["runs/none", "--records", "new.csv", "--out", "s.csv"], "runs/none: no such file"),
    "nothing there": (["runs", "--records", "new.csv", "--out", "s.csv"], "expected the folder of a finished run"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_in_the_words_of_the_command(
    folder: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = MISTAKES[mistake]

    assert main(["predict", *arguments]) == 2

    assert message in capsys.readouterr().err
    assert not Path("s.csv").exists()


def test_records_that_a_partner_lacks_are_named(folder: Path) -> None:
    pd.read_csv("telecom-new.csv").query("customer not in ['c223', 'c230']").to_csv("telecom-new.csv", index=False)

    with pytest.raises(
        DataError, match=r"telecom-new.csv lacks 2 of the 40 records of bank-new.csv, such as 'c223', 'c230'"
    ):
        load_run("runs/credit").predict({"bank": "bank-new.csv", "telecom": "telecom-new.csv"})


def older(run: Path) -> None:
    shutil.rmtree(run / "model")


def changed(run: Path) -> None:
    table = pd.read_csv("all.csv")
    table["calls"] = table["calls"] + 1
    table.to_csv("all.csv", index=False)


def mixed(run: Path) -> None:
    assert main(["train", "credit.yaml", "train.seed=1", "--out", "other"]) == 0
    shutil.rmtree(run / "model/telecom")
    shutil.copytree("other/model/telecom", run / "model/telecom")


def networked(run: Path) -> None:
    for path in (run / "model/bank").iterdir():
        path.rename(run / "model" / path.name)


FOLDERS: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "older": (older, CheckpointError, "holds no trained halves: .* then train again"),
    "changed": (changed, DataError, "the records of telecom are not those of the run in"),
    "mixed": (mixed, CheckpointError, "are of different runs"),
    "of one party": (networked, CheckpointError, "is one party's run over a network"),
    "half missing": (lambda run: shutil.rmtree(run / "model/telecom"), CheckpointError, "trained with telecom, and in"),
    "no label party": (lambda run: shutil.rmtree(run / "model/bank"), CheckpointError, "half of one label party"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_that_do_not_predict_say_why(folder: Path, kind: str) -> None:
    harm, error, message = FOLDERS[kind]
    harm(Path("runs/credit"))

    with pytest.raises(error, match=message):
        load_run("runs/credit").predict()


def test_a_folder_of_runs_names_them(folder: Path) -> None:
    for number in range(6):
        (folder / f"many/seed-{number}/model/bank").mkdir(parents=True)
        (folder / f"many/seed-{number}/model/bank/half.json").touch()

    with pytest.raises(CheckpointError, match=r"no trained halves in runs; name one of the runs in it: runs/credit$"):
        load_run("runs")
    with pytest.raises(CheckpointError, match=r"in it: many/seed-0, many/seed-1, .*many/seed-4 and 1 more$"):
        load_run("many")


def test_a_half_without_end_is_damaged(folder: Path) -> None:
    half = Path("runs/credit/model/telecom/half.json")
    half.write_text("[" * 100_000)

    assert not is_half(half.parent)
    with pytest.raises(CheckpointError, match=r"half\.json is damaged"):
        load_run("runs/credit")


def test_the_halves_of_all_parties_lie_side_by_side_for_their_owner_only(folder: Path) -> None:
    model = Path("runs/credit/model")

    found = {str(path.relative_to(model)): stat.S_IMODE(path.stat().st_mode) for path in sorted(model.rglob("*"))}

    files = {f"{name}/{file}": 0o600 for name in OWN for file in ("half.json", "weights.safetensors")}
    assert found == dict.fromkeys(OWN, 0o700) | files
    assert stat.S_IMODE(model.stat().st_mode) == 0o700
    described = json.loads((model / "telecom/half.json").read_text())
    assert [one["column"] for one in described["encoding"]["columns"]] == ["calls", "plan"]


def test_a_run_says_what_it_is(folder: Path) -> None:
    run = load_run("runs/credit")

    assert repr(run) == "SavedRun('runs/credit', bank, telecom)"
    assert isinstance(run, SavedRun)
    assert tuple(run.halves) == OWN
