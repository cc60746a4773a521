"""Experiments with Wide & Deep: cut anywhere, crossed, with sparse tables, in bfloat16; resumed like any other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.cli import main
from splitvfl.config.sections import parse_config
from splitvfl.errors import ConfigError
from splitvfl.learning.optimizers import RowWiseAdagrad
from splitvfl.messaging.messages import Message
from splitvfl.models import WideDeepBottom, WideDeepTop
from splitvfl.run.trainer import Trainer

EXPERIMENT = """
data: {name: table, path: clicks.csv, label: y, categorical_columns: [city, age, ad, day]}
parties:
  shop: {role: active, columns: [city, age, price]}
  paper: {role: passive, columns: [ad, day, hour]}
model: {name: wide-deep, embedding_dim: 3, bottom: [8, 6, 4]}
train: {epochs: 2, batch_size: 32, device: cpu}
attacks: [norm, residual]
"""


@pytest.fixture(autouse=True)
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    lines = ["city,age,price,ad,day,hour,y"]
    for _ in range(240):
        city, age, ad, day = (draw.randrange(size) for size in (5, 4, 9, 7))
        clicked = draw.random() < (0.9 if city < 2 else 0.1)
        lines.append(f"c{city},a{age},{draw.random()},n{ad},d{day},{draw.random()},{int(clicked)}")
    Path("clicks.csv").write_text("\n".join(lines) + "\n")
    Path("clicks.yaml").write_text(EXPERIMENT)


def trainer_of(*overrides: str, text: str = EXPERIMENT, folder: Path | None = None) -> Trainer:
    config = parse_config(text, source="clicks.yaml", overrides=overrides)
    return build_trainer(config, load_data(config), folder=folder)


def halves(trainer: Trainer) -> tuple[WideDeepTop, WideDeepBottom]:
    top, bottom = trainer.active.top, trainer.passives["paper"].bottom
    assert isinstance(top, WideDeepTop)
    assert isinstance(bottom, WideDeepBottom)
    return top, bottom


def weights(trainer: Trainer) -> dict[str, Tensor]:
    parties = (trainer.active, *trainer.passives.values())
    return {f"{party.name}/{name}": value for party in parties for name, value in party.module.state_dict().items()}


def parts_of(optimizer: Optimizer | None) -> list[type[Optimizer]]:
    """Every optimiser that is at work behind one."""
    assert optimizer is not None
    return [type(part) for part in getattr(optimizer, "_parts", {"": optimizer}).values()]


# --- the cut


@pytest.mark.parametrize(("after", "sent", "left"), [("1", 8, 2), ("2", 6, 1), ("3", 4, 0), ("null", 4, 0)])
def test_the_cut_is_where_the_experiment_says(after: str, sent: int, left: int) -> None:
    trainer = trainer_of(f"model.cut_after={after}")
    crossed: list[Message] = []
    trainer.record = crossed.append
    trainer.fit(1)
    assert {message.payload.shape[1] for message in crossed} == {sent}
    top, _ = halves(trainer)
    assert (0 if top.hidden is None else len(top.hidden.layers) // 2) == left
    assert trainer.worst_leak[0] > 0.9


def test_layers_behind_the_cut_take_all_parties() -> None:
    text = EXPERIMENT.replace("[ad, day, hour]", "[ad, day]").replace(
        "  paper", "  radio: {role: passive, columns: [hour]}\n  paper"
    )
    trainer = trainer_of("model.cut_after=2", text=text)
    top, _ = halves(trainer)
    assert top.hidden is not None
    assert next(top.hidden.parameters()).shape == (4, 2 * 6)
    trainer.fit(1)


# --- crosses


def test_crosses_are_found_by_name() -> None:
    trainer = trainer_of("model.crosses=[[age, city]]", "model.cross_buckets=100")
    top, _ = halves(trainer)
    assert top.crosses is not None
    assert top.crosses.fields == (tuple(trainer.active.data.field_names.index(name) for name in ("age", "city")),)
    trainer.fit(1)
    # Adam moves every weight that ever had a gradient by about the learning rate, and no other; five cities and four
    # ages make at most twenty combinations.
    assert 10 < (top.crosses.weights.table != 0).sum() <= 20


@pytest.mark.parametrize(
    ("cross", "message"),
    [
        ("[city, agge]", "model.crosses: shop has no categorical field 'agge'; did you mean age?"),
        (
            "[city, price]",
            r"no categorical field 'price' \(the column is not categorical; data.categorical_columns can",
        ),
        ("[city, ad]", "model.crosses: shop has no categorical field 'ad'"),
    ],
)
def test_fields_that_cannot_be_crossed_are_told(cross: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer_of(f"model.crosses=[{cross}]")


def test_a_party_without_categories_has_nothing_to_cross() -> None:
    text = EXPERIMENT.replace("[city, age, price]", "[price]").replace("columns: [ad, day, hour]", "columns: rest")
    with pytest.raises(ConfigError, match="shop has no categorical field 'city'; it has none"):
        trainer_of("model.crosses=[[city, age]]", text=text)


# --- optimisers


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], [Adam]),
        (["model.sparse=true"], [Adam, RowWiseAdagrad]),
        (["train.embedding_optimizer=rowwise-adagrad"], [Adam, RowWiseAdagrad]),
        (["train.embedding_optimizer=sparse-adam", "train.optimizer.weight_decay=0.1"], [Adam, SparseAdam]),
        (["train.embedding_optimizer=adagrad", "train.optimizer=sgd"], [SGD, Adagrad]),
        (["train.embedding_optimizer={name: sgd, lr: 0.5}"], [Adam, SGD]),
        (["model.sparse=false", "train.optimizer=adagrad"], [Adagrad]),
    ],
)
def test_tables_have_the_optimiser_that_is_asked_for(overrides: list[str], expected: list[type[Optimizer]]) -> None:
    trainer = trainer_of(*overrides)
    before = {name: value.clone() for name, value in weights(trainer).items()}
    for party in (trainer.active, trainer.passives["paper"]):
        assert parts_of(party.weights.optimizer) == expected
    trainer.fit(1)
    assert all(not torch.equal(value, before[name]) for name, value in weights(trainer).items())


def test_settings_reach_their_optimisers() -> None:
    trainer = trainer_of("train.lr=0.3", "train.optimizer.weight_decay=0.1", "train.embedding_optimizer.lr=0.7")
    optimizer = trainer.passives["paper"].weights.optimizer
    assert optimizer is not None
    dense, tables = optimizer.param_groups
    assert (dense["lr"], dense["weight_decay"], dense["fused"]) == (0.3, 0.1, True)
    assert tables["lr"] == 0.7
    _, bottom = halves(trainer)
    assert bottom.embeddings is not None
    assert tables["params"] == [bottom.embeddings.table]


def test_an_optimiser_for_tables_needs_tables() -> None:
    chosen = "train.embedding_optimizer=sparse-adam"
    with pytest.raises(ConfigError, match="the model mlp has no embeddings; leave it out"):
        trainer_of(chosen, "model=mlp", "data.categorical=onehot")
    with pytest.raises(ConfigError, match=r"model\.sparse is false"):
        trainer_of(chosen, "model.sparse=false")


@pytest.mark.parametrize(("optimizer", "precision"), [("rowwise-adagrad", "bf16"), ("sparse-adam", "null")])
def test_a_resumed_run_ends_with_the_same_weights(optimizer: str, precision: str, tmp_path: Path) -> None:
    settings = [
        f"train.embedding_optimizer={optimizer}",
        f"train.autocast={precision}",
        "model.crosses=[[age, city]]",
        "audit=false",
    ]
    straight = trainer_of(*settings)
    straight.fit(2)
    first = trainer_of(*settings, folder=tmp_path / "run")
    first.fit(1)
    second = trainer_of(*settings, folder=tmp_path / "run")
    assert second.resume() == first.step
    second.fit(2)
    assert all(torch.equal(value, weights(second)[name]) for name, value in weights(straight).items())
    assert straight.test == second.test


def test_a_run_is_not_resumed_in_another_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "clicks.yaml", "train.epochs=1", "train.autocast=bf16", "train.embedding_optimizer=sgd"]) == 0
    assert main(["train", "clicks.yaml", "train.epochs=2", "--resume"]) == 2
    told = capsys.readouterr().err
    assert "train.autocast" in told
    assert "train.embedding_optimizer" in told


# --- precision


@pytest.mark.slow(reason="two runs of ten epochs")
def test_bf16_crosses_in_both_directions_and_learns_the_same() -> None:
    crossed: list[Message] = []
    half, full = trainer_of("train.autocast=bf16", "train.lr=0.01"), trainer_of("train.lr=0.01")
    half.record = crossed.append
    half_test, full_test = half.fit(10), full.fit(10)
    assert {message.payload.dtype for message in crossed} == {torch.bfloat16}
    assert half_test["auc"] == pytest.approx(full_test["auc"], abs=0.05)
    assert full_test["auc"] > 0.75
    assert {value.dtype for value in weights(half).values()} == {torch.float32}
    assert half.worst_leak[0] == pytest.approx(full.worst_leak[0], abs=0.05)


def test_without_autocast_everything_crosses_in_float32() -> None:
    crossed: list[Message] = []
    trainer = trainer_of()
    trainer.record = crossed.append
    trainer.fit(1)
    assert {message.payload.dtype for message in crossed} == {torch.float32}


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["null", "bf16"])
def test_it_trains_on_a_gpu(precision: str) -> None:
    def trained(device: str) -> Any:
        chosen = ["train.embedding_optimizer=rowwise-adagrad", "model.crosses=[[age, city]]", "model.cut_after=2"]
        return trainer_of(*chosen, f"train.device={device}", f"train.autocast={precision}").fit(3)

    assert trained("cuda")["auc"] == pytest.approx(trained("cpu")["auc"], abs=0.02)
