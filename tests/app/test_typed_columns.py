"""Lists and declared categories from the first command to the scores, in estimators and over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from splitvfl import from_tables
from splitvfl.app.http_records import RequestMistake, RequestReader
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.errors import ArgumentError
from splitvfl.report.summary import read_summary
from splitvfl.sklearn import SplitClassifier, SplitRegressor

ROWS = 240
SMALL: dict[str, Any] = {"model": {"name": "mlp", "bottom": [8]}, "audit": False, "random_state": 0}
LEARN = "train.optimizer={name: adam, lr: 0.02}"
EFFECT = np.array([0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1])
CODES = np.random.default_rng(0).integers(0, 12, ROWS)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shop(declared: bool = True) -> pd.DataFrame:
    codes = pd.Categorical(CODES) if declared else CODES
    return pd.DataFrame({"id": np.arange(ROWS), "k": codes, "label": EFFECT[CODES]})


def club() -> pd.DataFrame:
    values = np.random.default_rng(1).normal(size=(ROWS, 5)).astype(np.float32)
    return pd.DataFrame({"id": np.arange(ROWS), "emb": list(values), "x": values[:, 0] / 2})


def test_files_with_lists_and_declared_categories_train_and_score(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop().to_parquet("shop.parquet")
    club().to_parquet("club.parquet")

    assert main(["init", "shop.parquet", "club.parquet", "--out", "e.yaml"]) == 0
    assert "numbers taken for categories: k (its type says so)" in capsys.readouterr().out
    assert load_config(here / "e.yaml").data.categorical_columns == ("k",)
    assert main(["check", "e.yaml"]) == 0
    quick = ("audit=false", "attacks=[]", "defenses=[]", "model={name: mlp, bottom: [8]}", "data.drop=[emb_2]")
    assert main(["train", "e.yaml", *quick, "data.categorical_columns=[]", "train.epochs=15", LEARN]) == 0
    metric = read_summary(here / "runs" / "e").test_metric
    assert metric is not None
    assert metric > 0.95

    shop(declared=False).drop(columns="label").to_parquet("later.parquet")
    words = ["predict", "runs/e", "--records", "shop=later.parquet", "--records", "club=club.parquet"]
    assert main([*words, "--out", "s.csv"]) == 0
    scores = pd.read_csv("s.csv")
    right = ((scores["score"] > 0.5) == (EFFECT[CODES][scores["id"]] == 1)).mean()
    assert right > 0.95

    shorter = club().assign(emb=[cells[:4] for cells in club()["emb"]])
    shorter.to_parquet("club.parquet")
    assert main([*words, "--out", "t.csv"]) != 0
    assert "holds lists of 4, and held lists of 5" in capsys.readouterr().err
    assert not (here / "t.csv").exists()


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([[1.0, 2.0], [3.0]] * 60, "different lengths: 1 in row 1"),
        ([{"a": 1}] * 120, "left out: odd (holds neither numbers nor text but struct<a: int64>"),
        ([["a"], ["b"]] * 60, "left out: odd (holds neither numbers nor text but list<"),
        ([[[1.0]], [[2.0]]] * 60, "left out: odd (holds lists of lists: expected (n, features), got 3 dimensions"),
    ],
)
def test_init_names_what_cannot_be_columns(
    cells: list[Any], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = np.random.default_rng(3).normal(size=(120, 2))
    columns = {"label": np.arange(120) % 2, "a": numbers[:, 0], "b": numbers[:, 1], "odd": cells}
    pq.write_table(pa.table(columns), "t.parquet")

    code = main(["init", "t.parquet"])

    said = "".join(capsys.readouterr())
    assert message in said
    assert (code == 0) == message.startswith("left out")
    if code == 0:
        assert main(["check", "t.yaml"]) == 0


def test_declared_categories_are_categories_in_estimators() -> None:
    frame = shop()[["k"]]
    model = SplitClassifier(epochs=20, **SMALL).fit(frame[:180], EFFECT[CODES][:180])

    assert model.score(frame[180:], EFFECT[CODES][180:]) > 0.95
    plain = shop(declared=False)[["k"]]
    np.testing.assert_array_equal(model.predict(plain[180:]), model.predict(frame[180:]))


def test_a_column_of_lists_is_at_one_position_of_an_estimator() -> None:
    frame = club()[["emb", "x"]]
    labels = frame["x"] > 0
    by_position = SplitClassifier({"lab": [0]}, epochs=1, **SMALL).fit(frame, labels)
    by_slice = SplitClassifier({"lab": slice(0, 1)}, epochs=1, **SMALL).fit(frame, labels)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        of_array = by_position.predict_proba(frame.to_numpy())
    np.testing.assert_array_equal(of_array, by_position.predict_proba(frame))
    by_pattern = SplitClassifier({"lab": "emb_*"}, epochs=1, **SMALL).fit(frame, labels)

    assert [party.columns for party in by_position._held] == [("x",), tuple(f"emb_{at}" for at in range(5))]
    expected = by_position.predict_proba(frame)
    for other in (by_slice, by_pattern):
        np.testing.assert_array_equal(other.predict_proba(frame), expected)


@pytest.mark.parametrize("given", [np.zeros((6, 2, 2, 2)), torch.zeros(6, 2, 2, 2), np.zeros((6, 2, 2, 2)).tolist()])
@pytest.mark.parametrize("estimator", [SplitClassifier, SplitRegressor])
def test_estimators_refuse_arrays_of_more_dimensions_in_words_that_help(estimator: Any, given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"X: expected \(n, features\), got 4 dimensions: flatten it .*Unflatten"):
        estimator(**SMALL).fit(given, [0, 1] * 3)


@pytest.mark.filterwarnings("ignore:columns may not be")
def test_an_estimator_whose_party_has_no_input_left_says_so() -> None:
    frame = pd.DataFrame({"a": np.arange(20.0), "c": np.ones(20)})

    with pytest.raises(ArgumentError, match="passive party 'lab' has no input left"):
        SplitClassifier({"lab": ["c"]}, epochs=1, **SMALL).fit(frame, np.arange(20) % 2)
    SplitClassifier({"lab": ["a"]}, epochs=1, **SMALL).fit(frame, np.arange(20) % 2)  # labels alone are enough


def test_records_over_http_have_lists_as_the_file_had() -> None:
    labels = shop(declared=False)[["id", "label"]]
    data = from_tables(active=labels.merge(club()), passive={"p": shop()[["id", "k"]]}, label="label", id="id")
    assert data.active.provenance is not None
    reader = RequestReader(data.active.provenance.encoding, run="a" * 32)
    cells = [float(cell) for cell in club()["emb"][0]]

    def read(**columns: Any) -> torch.Tensor:
        return reader.read(json.dumps({"id": "1", "x": 0.5, **columns}).encode()).question.records.columns.numeric

    apart = {f"emb_{at}": cell for at, cell in enumerate(cells)}
    torch.testing.assert_close(read(emb=cells), read(**apart))
    for given, message in (
        ({"emb": cells[:4]}, "emb: expected a list of 5 numbers, got 4"),
        ({"emb": 3.0}, "emb: expected a list of 5 numbers, got 3.0"),
        ({"emb": [*cells[:4], "a"]}, 'emb_4: expected a number, got "a"'),
        ({"emb": cells, "emb_1": 0.0}, "emb: expected emb or emb_1, got both"),
        ({"emb": None}, "emb_0: expected a number, got null"),
        ({}, "emb_0: expected a number, got no such key"),
    ):
        with pytest.raises(RequestMistake, match=f"^{message}"):
            read(**given)
