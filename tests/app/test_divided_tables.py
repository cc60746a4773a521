"""Which tables and other weights are divided among workers, and which are refused to be: before anybody is met."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from splitvfl.app.assembly import Assembly
from splitvfl.app.workers import check_replicable, said_of_divided
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError
from splitvfl.learning.tasks import Binary
from splitvfl.models import WideDeepRecipe
from splitvfl.models.wide_deep import SPARSE_ROWS
from splitvfl.party.party import PassiveParty
from splitvfl.team.divided import sharded_tables
from splitvfl.team.team import Alone, FirstWorker
from tests.table_folders import click_data

TEXT = """
data: {name: tables, path: tables}
parties: {shop: {role: active}, publisher: {role: passive}, bank: {role: passive}}
model: {name: wide-deep, bottom: [8, 4], embedding_dim: 3, sparse: true}
exchange: split
train: {batch_size: 32}
"""
OWN_OPTIMIZER = """
import torch

class Own(torch.optim.SGD):
    def __init__(self, params, *, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)

class RowByRow(Own):
    row_by_row = True
"""
DATA = click_data()


@pytest.fixture(autouse=True)
def own_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_steps.py").write_text(OWN_OPTIMIZER)


def config_of(*overrides: str) -> ExperimentConfig:
    return parse_config(TEXT, source=Path("clicks.yaml"), overrides=overrides)


def publisher(*overrides: str, workers: int = 4) -> PassiveParty:
    team = FirstWorker(workers) if workers > 1 else Alone()
    assembly = Assembly(config_of(*overrides), DATA.active, team=team)
    return assembly.passive(DATA["publisher"], Binary(), seed=0)


def rows_of(party: PassiveParty) -> list[int]:
    return [len(table.rows) for table in sharded_tables(party.bottom).values()]


@pytest.mark.parametrize(
    ("overrides", "workers", "rows"),
    [
        ((), 4, [9]),
        (("model.tables=sharded",), 4, [9]),
        (("model.tables=sharded",), 1, []),
        (("model.tables=replicated",), 4, []),
        (("model.sparse=null",), 4, []),  # a small table, whose gradient is dense
        (("model.sparse=null", "model.tables=sharded"), 4, []),
        (("model.sparse=null", "train.embedding_optimizer=sparse-adam"), 4, [9]),
        (("model.sparse=false",), 4, []),
        (("train.embedding_optimizer={name: 'own_steps:Own'}",), 4, []),
        (("train.embedding_optimizer={name: 'own_steps:RowByRow'}", "model.tables=sharded"), 4, [9]),
    ],
)
def test_tables_with_sparse_gradients_are_divided_where_there_are_workers(
    overrides: Sequence[str], workers: int, rows: list[int]
) -> None:
    assert rows_of(publisher(*overrides, workers=workers)) == rows


def test_one_process_draws_the_table_of_which_a_worker_has_a_part() -> None:
    whole, own = (publisher(workers=workers).bottom.embeddings.table for workers in (1, 4))  # type: ignore[union-attr]
    assert isinstance(whole, nn.Parameter)
    assert torch.equal(own.rows, whole[::4])  # type: ignore[union-attr, index]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            ("train.embedding_optimizer={name: 'own_steps:Own'}", "model.tables=sharded"),
            r"clicks\.yaml: train\.embedding_optimizer: nothing says that own_steps:Own moves each row.*row_by_row",
        ),
        (
            ("exchange=one-way", "model.tables=sharded"),
            r"clicks\.yaml: model\.tables: sharded: .*exchange one-way: takes no shards",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(overrides: Sequence[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Assembly(config_of(*overrides), DATA.active)


def test_models_without_tables_do_not_know_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"model\.tables: no such key.*keys of mlp"):
        parse_config(TEXT, source="clicks.yaml", overrides=["model={name: mlp, tables: sharded}"])


def test_memory_for_a_part_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a whole table is larger than the machine's memory, one process refuses it, and of four workers none."""
    data = PartyData("bank", ("a",), (), (SPARSE_ROWS,), DATA["bank"].train, DATA["bank"].test, ("a",))
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": SPARSE_ROWS, "SC_PHYS_PAGES": 4}[name])
    recipe = WideDeepRecipe(embedding_dim=2, bottom=(3,))
    with pytest.raises(ConfigError, match=r"model\.embedding_dim: with the columns of bank it makes 200,000 weights"):
        recipe.make_bottom(data, Binary())
    bottom: Any = recipe.among(FirstWorker(4)).make_bottom(data, Binary())
    assert len(bottom.embeddings.table.rows) == SPARSE_ROWS // 4
    with pytest.raises(ConfigError, match="200,000 weights"):
        WideDeepRecipe(embedding_dim=2, bottom=(3,), tables="replicated").among(FirstWorker(4)).make_bottom(
            data, Binary()
        )


def test_what_is_divided_is_said_and_that_nothing_is() -> None:
    assert said_of_divided(publisher(), config_of().model.recipe) == [
        "tables are divided: this worker holds 9 of 35 rows"
    ]
    small = ("model.sparse=null", "model.tables=sharded")
    assert said_of_divided(publisher(*small), config_of(*small).model.recipe) == [
        "model.tables: sharded: publisher has no table with a sparse gradient, and nothing is divided"
    ]
    assert said_of_divided(publisher("model.sparse=null"), config_of("model.sparse=null").model.recipe) == []


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (("exchange.in_flight=1",), r"clicks\.yaml: model\.dense: sharded: not with exchange\.in_flight"),
        (("exchange=one-way",), r"clicks\.yaml: model\.dense: sharded: .*exchange one-way: takes no shards"),
    ],
)
def test_other_weights_are_not_divided_where_they_cannot_be(overrides: Sequence[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Assembly(config_of("model.dense=sharded", *overrides), DATA.active)


def test_a_ball_of_all_weights_is_not_that_of_a_part() -> None:
    overrides = ("model.dense=sharded", "model.sparse=null", "train.optimizer={name: sgd, lr: 0.1, radius: 1}")
    with pytest.raises(ConfigError, match=r"model\.dense: sharded: train\.optimizer\.radius bounds all weights of pub"):
        check_replicable(publisher(*overrides), config_of(*overrides).source)


def test_it_is_said_whose_weights_are_divided() -> None:
    recipe = config_of("model.dense=sharded", "model.sparse=null").model.recipe
    party = publisher("model.dense=sharded", "model.sparse=null")
    assert said_of_divided(party, recipe) == [
        "model.dense: sharded: each worker keeps a part of every weight of the bottom model"
    ]
    active = Assembly(config_of("model.dense=sharded", "model.sparse=null"), DATA.active, team=FirstWorker(4)).active(
        DATA.active, Binary(), [4, 4], seed=0
    )
    assert said_of_divided(active, recipe) == [
        f"model.dense: sharded: {active.name} has no bottom model, and its workers hold all of what it trains"
    ]
