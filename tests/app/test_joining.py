"""The joint model beside the label owner's own one: figures and intervals by hand, and reasons where there are none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from splitvfl.app.experiment import build_trainer, run_experiment
from splitvfl.app.joining import with_own_model
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import Shards
from splitvfl.exchange.evaluation import EvaluatedOutputs
from splitvfl.leakage.own_model import own_model
from splitvfl.learning.losses import SquaredError
from splitvfl.learning.tasks import Regression
from splitvfl.report.comparison import joining_sentence
from splitvfl.report.summary import OwnModelResult, RunSummary, read_summary
from splitvfl.run import checkpoint
from splitvfl.run.saving_trainer import SavingTrainer
from tests.report.test_tables import run as summary_of
from tests.summaries import opened

FILE = """
data: DATA
parties:
  bank: {role: active, columns: OWN}
  telecom: {role: passive, columns: rest}
model: {name: mlp, bottom: [8], top_hidden: []}
train: {epochs: 1, batch_size: 64, seed: 1}
attacks: []
"""


def config_of(folder: Path, data: str = "breast-cancer", own: str = '["mean *"]', more: str = "") -> ExperimentConfig:
    text = FILE.replace("DATA", data).replace("OWN", own) + more
    return parse_config(text, source=folder / "bank.yaml")


def trained(folder: Path, **settings: Any) -> SavingTrainer:
    config = config_of(folder, more="audit: false\n", **settings)
    trainer = build_trainer(config, load_data(config))
    trainer.fit(1)
    return trainer


def compared(trainer: SavingTrainer) -> RunSummary:
    return with_own_model(summary_of(), trainer.training, trainer.active)


def test_figures_of_classes_are_scikit_learns_and_the_interval_is_paired(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    train, test = trainer.active.data.train, trainer.active.data.test
    assert train.labels is not None
    assert test.labels is not None
    labels = test.labels.numpy()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    model.fit(train.columns.numeric.numpy(), train.labels.numpy())
    alone = model.decision_function(test.columns.numeric.numpy())
    joint = trainer.predict().numpy()

    found = compared(trainer).own_model

    assert found is not None
    assert (found.party, found.metric, found.model, found.records, found.of) == (
        "bank",
        "auc",
        "logistic regression",
        len(labels),
        len(labels),
    )
    assert found.alone == pytest.approx(roc_auc_score(labels, alone), abs=1e-3)
    assert found.joint == pytest.approx(roc_auc_score(labels, joint), abs=1e-9)
    assert found.joint == pytest.approx(trainer.test["auc"], abs=1e-9)
    assert found.difference == pytest.approx(found.joint - found.alone, abs=1e-12)
    low, high = delong(labels == 1, joint, alone)
    assert found.low == pytest.approx(low, abs=0.25 * (high - low))
    assert found.high == pytest.approx(high, abs=0.25 * (high - low))


def delong(positive: Any, joint: Any, alone: Any) -> tuple[float, float]:
    """The 95 % interval of the difference of two AUCs on the same records: DeLong et al., Biometrics 44 (1988)."""
    places = []
    for scores in (joint, alone):
        above = scores[positive][:, None] > scores[~positive]
        level = scores[positive][:, None] == scores[~positive]
        places.append(above + 0.5 * level)
    apart = places[0] - places[1]
    variance = sum(apart.mean(axis=axis).var(ddof=1) / apart.shape[1 - axis] for axis in (0, 1))
    half = 1.96 * math.sqrt(variance)
    return float(apart.mean() - half), float(apart.mean() + half)


@pytest.mark.parametrize(
    ("data", "own", "metric"),
    [
        ("{name: digits, digit: null}", "0.5", "accuracy"),
        ("diabetes", "[age, sex, bmi]", "r2"),
    ],
)
def test_of_classes_and_numbers_too(data: str, own: str, metric: str, tmp_path: Path) -> None:
    trainer = trained(tmp_path, data=data, own=own)
    assert trainer.training.tested is not None
    labels = trainer.active.data.test.labels
    assert labels is not None
    found = compared(trainer).own_model
    assert found is not None
    assert found.metric == metric
    assert found.joint == pytest.approx(trainer.test[metric], abs=1e-6)
    assert found.low < found.difference < found.high
    if metric == "accuracy":
        # The t-interval of the records' own differences: −1, 0 and 1.
        own_scores = own_model(trainer.active.data.train, trainer.active.data.test, trainer.active.task).scores
        right = [(scores.argmax(1) == labels).double() for scores in (trainer.training.tested.outputs, own_scores)]
        apart = right[0] - right[1]
        half = 1.97 * apart.std().item() / math.sqrt(len(apart))
        assert found.difference == pytest.approx(apart.mean().item(), abs=1e-6)
        assert found.low == pytest.approx(found.difference - half, abs=0.2 * half)
        assert found.high == pytest.approx(found.difference + half, abs=0.2 * half)


@pytest.mark.parametrize("early", [False, True])
def test_a_run_that_goes_on_has_the_same(early: bool, tmp_path: Path) -> None:
    text = FILE.replace(
        "seed: 1", "seed: 1, early_stopping: {patience: 2, validation_every: 5}" if early else "seed: 1"
    )
    text = text.replace("DATA", "breast-cancer").replace("OWN", '["mean *"]').replace("epochs: 1", "epochs: 3")
    config = parse_config(text, source=tmp_path / "bank.yaml")
    whole = run_experiment(config, tmp_path / "whole")
    assert whole.own_model is not None
    assert whole.own_model.joint == pytest.approx(whole.test_metric, abs=1e-9)

    trainer = build_trainer(config, load_data(config), folder=tmp_path / "whole")
    trainer.resume()
    trainer.fit(3)
    assert compared(trainer).own_model == whole.own_model


def test_a_checkpoint_of_an_older_version_has_a_reason(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    run_experiment(config, tmp_path / "run")
    newest = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    state = checkpoint.load(newest, only="run")["run"]
    older = {key: value for key, value in state.items() if key not in ("tested", "kept tested")}
    assert len(older) == len(state) - 2
    torch.save(older, newest / "run.pt")
    trainer = build_trainer(config, load_data(config), folder=tmp_path / "run")
    trainer.resume()
    found = compared(trainer)
    assert found.own_model is None
    assert found.no_own_model.startswith("What bank alone reaches was not measured: nobody has kept the joint model's")


class Fragile(SquaredError):
    """Its figure needs the first test record to be there."""

    metric = "own"

    def measure(self, outputs: Any, labels: Any) -> float:
        if len(labels.unique()) < 40:
            raise ZeroDivisionError("too few")
        return 1.0


def test_what_cannot_be_compared_has_a_reason_and_loses_nothing(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    active, tested = trainer.active, trainer.training.tested
    assert tested is not None
    data = active.data

    def reason() -> str:
        found = compared(trainer)
        assert found.own_model is None
        assert found.test_metric == summary_of().test_metric
        return found.no_own_model.removeprefix("What bank alone reaches was not measured: ")

    trainer.training.tested = EvaluatedOutputs(tested.outputs.clone().fill_(math.nan), tested.positions)
    assert reason() == "outputs of the joint model are NaN or infinite."
    trainer.training.tested = tested
    active.data = replace(data, shards=Shards((440,), (129,), 0))
    assert reason() == "its records lie apart, a part of them at each worker."
    assert data.train.labels is not None
    active.data = replace(data, train=replace(data.train, labels=torch.zeros(data.train.count)))
    assert reason() == "each class needs at least 5 training records, got [440, 0]."
    active.data, active.task = data, Regression(Fragile())
    assert reason() == "ZeroDivisionError: too few."


def test_a_label_owner_without_columns_is_not_asked(tmp_path: Path) -> None:
    trainer = trained(tmp_path, own="[]")
    found = compared(trainer)
    assert (found.own_model, found.no_own_model) == (None, "")
    assert joining_sentence([found]) == ""


def test_without_an_audit_nobody_asks_and_older_summaries_are_read(tmp_path: Path) -> None:
    quiet = run_experiment(config_of(tmp_path, more="audit: false\n"), tmp_path / "quiet")
    assert (quiet.own_model, quiet.no_own_model) == (None, "")
    found = run_experiment(config_of(tmp_path), tmp_path / "run")
    assert isinstance(found.own_model, OwnModelResult)
    assert read_summary(tmp_path / "run").own_model == found.own_model
    path = tmp_path / "run" / "summary.json"
    written = opened(path)
    del written["own_model"]
    path.write_text(json.dumps(written))
    older = read_summary(tmp_path / "run")
    assert older.own_model is None
