"""Experiments on tables that were ingested: they run, go on, and say what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitvfl.app.experiment import build_trainer, prepare, run_experiment
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.errors import ConfigError, DataError
from splitvfl.exchange.handshake import agreement, terms_of
from splitvfl.learning.batches import BLOCK_ROWS
from splitvfl.messaging.conversation import converse
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status
from tests.builders import same, weights
from tests.table_folders import click_data, write_tables
from tests.tables import ingest

EXPERIMENT = """
data: {name: tables, path: tables}
parties:
  shop: {role: active}
  bank: {role: passive}
  publisher: {role: passive}
model: {name: wide-deep, bottom: [8, 4], embedding_dim: 3, sparse: true}
train: {epochs: 3, batch_size: 32, block_rows: 4, optimizer: {name: sgd, lr: 0.1}}
attacks: [norm]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tables(tmp_path / "tables", click_data())
    return tmp_path


def experiment(folder: Path, *overrides: str, text: str = EXPERIMENT) -> ExperimentConfig:
    return parse_config(text, source=folder / "clicks.yaml", overrides=overrides)


def stopping_at(step: int) -> Any:
    def progress(status: Status) -> None:
        if status.step == step:
            raise RuntimeError("stopped")

    return progress


def test_an_experiment_on_tables_runs_and_writes_its_summary(folder: Path) -> None:
    summary = run_experiment(experiment(folder, "train.epochs=1"), folder / "run")

    assert summary.data == "clicks"
    assert summary.steps == -(-600 // 32)
    assert set(summary.parties) == {"bank", "publisher"}
    assert summary.parties["bank"].own_columns_auc is not None


def test_passive_parties_have_the_order_of_the_experiment(folder: Path) -> None:
    assert list(load_data(experiment(folder)).passives) == ["bank", "publisher"]


def test_a_run_on_tables_learns_what_a_run_in_memory_learns(folder: Path) -> None:
    config = experiment(folder, "audit=false")
    memory = click_data()
    ordered = {name: memory.passives[name] for name in ("bank", "publisher")}
    in_memory = type(memory)(memory.name, memory.task, memory.classes, memory.active, ordered, memory.description)

    stored, held = (build_trainer(config, data) for data in (load_data(config), in_memory))
    stored.fit(2)
    held.fit(2)

    assert same(weights(stored), weights(held))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Return a run that nothing stopped, and that kept nothing."""
    folder = tmp_path_factory.mktemp("straight")
    write_tables(folder / "tables", click_data())
    config = experiment(folder, "audit=false")
    trainer = build_trainer(config, load_data(config))
    trainer.fit(2)
    return trainer


# 19 steps make an epoch.
@pytest.mark.parametrize(
    "step", [30, *(pytest.param(step, marks=pytest.mark.slow(reason="one more run")) for step in (7, 19))]
)
def test_stopped_in_the_middle_of_an_epoch_and_resumed_it_ends_with_equal_weights(
    folder: Path, step: int, straight: Trainer
) -> None:
    def trainer() -> Trainer:
        config = experiment(folder, f"train.checkpoint_every_steps={step}", "audit=false")
        return build_trainer(config, load_data(config), folder=folder / "stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        # One step further: what the checkpoint does not hold is lost, and done again.
        trainer().fit(2, progress=stopping_at(step + 1))
    resumed = trainer()
    assert resumed.resume() == step
    resumed.fit(2)

    assert resumed.step == straight.step
    assert same(weights(resumed), weights(straight))
    assert resumed.test == straight.test


def test_a_run_is_not_resumed_with_blocks_of_another_size(folder: Path) -> None:
    config = experiment(folder, "train.checkpoint_every_steps=2")
    with pytest.raises(RuntimeError, match="stopped"):
        run_experiment(config, folder / "run", progress=stopping_at(3))

    with pytest.raises(ConfigError, match=r"other settings: train\.block_rows"):
        run_experiment(
            experiment(folder, "train.checkpoint_every_steps=2", "train.block_rows=8"), folder / "run", resume=True
        )


def test_tables_are_shuffled_in_blocks_and_other_data_are_not(folder: Path) -> None:
    unsaid = EXPERIMENT.replace("block_rows: 4, ", "")
    config = experiment(folder, text=unsaid)
    assert build_trainer(config, load_data(config)).batches.block_rows == BLOCK_ROWS

    digits = "data: digits\nparties: {a: {role: active}, b: {role: passive, columns: rest}}\n"
    config = experiment(folder, text=digits)
    assert build_trainer(config, load_data(config)).batches.block_rows == 1


def test_parties_that_shuffle_in_other_blocks_do_not_agree(folder: Path) -> None:
    halves = {}
    for name, other, rows in (("shop", "bank", 4), ("bank", "shop", 8)):
        config = experiment(folder, f"train.block_rows={rows}")
        data = load_data(config)
        terms = terms_of(data[name], build_trainer(config, data)._settings)
        halves[name] = agreement(name, (other,), terms)

    with pytest.raises(DataError, match=r"rows in a block: (shop has 4, bank has 8|bank has 8, shop has 4)"):
        converse(halves)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("bank: {role", "banc: {role", r"clicks.yaml: parties: .*tables holds no party 'banc'; did you mean 'bank'"),
        (
            "  shop: {role: active}\n  bank: {role: passive}",
            "  shop: {role: passive}\n  bank: {role: active}",
            "party 'shop' of .* was ingested as active, got passive",
        ),
        (", path: tables", "", "clicks.yaml: data: tables need the path of a folder"),
    ],
)
def test_parties_that_were_not_ingested_so(folder: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prepare(experiment(folder, text=EXPERIMENT.replace(old, new)))


def test_a_model_that_takes_no_categories_is_refused(folder: Path) -> None:
    config = experiment(folder, text=EXPERIMENT.replace(EXPERIMENT.splitlines()[6], "model: mlp"))

    with pytest.raises(ConfigError, match="mlp takes numbers only, and bank and publisher of clicks have categorical"):
        build_trainer(config, load_data(config))


def test_tables_without_training_records_are_not_trained_on(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", click_data(train=0))

    with pytest.raises(ConfigError, match="tables holds test records only"):
        load_data(experiment(tmp_path))


def test_a_code_beyond_its_field_is_told_by_the_model(folder: Path) -> None:
    file = folder / "tables" / "bank" / "train.codes.npy"
    codes = np.load(file)
    codes[:] = 7
    np.save(file, codes)
    config = experiment(folder)

    with pytest.raises(DataError, match="field 0 has codes 0 to 6, got 7"):
        build_trainer(config, load_data(config)).fit(1)


def test_a_file_is_ingested_and_trained_on(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    numbers = random.normal(size=400)
    labels = (numbers + 0.3 * random.normal(size=400) > 0).astype(int)
    words = random.choice(["red", "green", "blue"], 400)
    rows = [f"{i},{y},{x:.4f},{w}" for i, (y, x, w) in enumerate(zip(labels, numbers, words, strict=True))]
    (tmp_path / "clicks.csv").write_text("\n".join(["id,click,price,colour", *rows]) + "\n")
    claims = {"shop": "colour", "publisher": "price"}
    ingest(
        tmp_path / "clicks.csv",
        out=tmp_path / "tables",
        label="click",
        id_column="id",
        active=claims["shop"],
        active_name="shop",
        passive={"publisher": claims["publisher"]},
    )
    parties = "parties: {shop: {role: active}, publisher: {role: passive}}"
    text = f"data: {{name: tables, path: tables}}\n{parties}\nmodel: wide-deep\ntrain: {{epochs: 5, batch_size: 32}}\n"

    summary = run_experiment(experiment(tmp_path, text=text), tmp_path / "run")

    # 40 test records: the Bayes rule's AUC is .98, and chance is .5 with a standard error of .09.
    assert summary.test_metric is not None
    assert summary.test_metric > 0.85
