"""The work for a column does not grow with the number of columns: what is counted are calls, Python's and C's.

The difference between 80 and 40 columns is twice that between 40 and 20 where work is linear, and four times where
each column looks at all.
"""

from __future__ import annotations

import cProfile
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from splitvfl import from_tables
from splitvfl.app.http_records import RequestReader
from splitvfl.cli import main
from splitvfl.sklearn import SplitClassifier

ROWS = 40
SIZES = (20, 40, 80)
MOST = 2.05  # of twice: so many calls are made each time that they differ by less than a hundredth
QUICK = ("audit=false", "attacks=[]", "train.epochs=1", "model={name: mlp, bottom: [2]}", "defenses=[]", "--overwrite")

Step = Callable[[], object]


def calls(step: Step) -> int:
    """Return how many functions are called in it."""
    profile = cProfile.Profile()
    gc.collect()
    gc.disable()  # what is thrown away of earlier work is none of this one's calls
    profile.enable()
    try:
        step()
    finally:
        profile.disable()
        gc.enable()
    return sum(one.callcount for one in profile.getstats())


def check_linear(make: Callable[[int], Step]) -> None:
    # What is imported or compiled once is in none of the counts, nor what Python looks up once more after an import.
    for _ in range(2):
        make(SIZES[0] - 1)()
    small, middle, large = (calls(make(size)) for size in SIZES)
    assert middle - small > SIZES[0]
    assert large - middle <= MOST * (middle - small), (small, middle, large)


def bank() -> pd.DataFrame:
    numbers = np.random.default_rng(0).normal(size=ROWS)
    return pd.DataFrame({"id": np.arange(ROWS), "label": np.arange(ROWS) % 2, "a": numbers, "b": -numbers})


def lab(columns: int) -> pd.DataFrame:
    """Numbers, and text in one column of ten."""
    numbers = np.random.default_rng(1).normal(size=(ROWS, columns)).round(3)
    cells = {f"c{at}": numbers[:, at] if at % 10 else np.where(numbers[:, at] > 0, "u", "v") for at in range(columns)}
    return pd.DataFrame({"id": np.arange(ROWS), **cells})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_tables() -> None:
    check_linear(lambda size: lambda: from_tables(active=bank(), passive={"lab": lab(size)}, label="label", id="id"))


def test_lists() -> None:
    def step(size: int) -> Step:
        table = pd.DataFrame({"id": np.arange(ROWS), "emb": list(np.random.default_rng(2).normal(size=(ROWS, size)))})
        return lambda: from_tables(active=bank(), passive={"lab": table}, label="label", id="id", drop="emb_*7")

    check_linear(step)


def command(*words: str) -> Step:
    def step() -> None:
        assert main(list(words)) == 0

    return step


def files(here: Path, size: int, suffix: str) -> tuple[str, str, str]:
    """Write both parties' files, and one of all columns, and return their names."""
    bank().to_csv(here / "bank.csv", index=False)
    for name, table in (("lab", lab(size)), ("one", bank().merge(lab(size)))):
        path = here / f"{name}{size}.{suffix}"
        table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    return "bank.csv", f"lab{size}.{suffix}", f"one{size}.{suffix}"


def test_init_of_a_file_of_all_columns_which_it_names_one_by_one(here: Path) -> None:
    def step(size: int) -> Step:
        one = files(here, size, "parquet")[2]
        (here / f"{size}.yaml").unlink(missing_ok=True)
        return command("init", one, "--label", "label", "--id", "id", "--out", f"{size}.yaml")

    check_linear(step)


@pytest.mark.slow(reason="trains four models, as the command does it")
def test_train_and_predict(here: Path) -> None:
    def step(size: int) -> Step:
        names = files(here, size, "csv")[:2]
        text = (
            "data: {name: table, task: binary, id_column: id}\n"
            f"parties:\n  bank: {{role: active, path: {names[0]}, label: label}}\n"
            f"  lab: {{role: passive, path: {names[1]}}}\n"
            "model: {name: mlp}\n"
            "train: {epochs: 1, batch_size: 16, optimizer: {name: adam, lr: 0.01}}\n"
        )
        (here / f"{size}.yaml").write_text(text)
        return command("train", f"{size}.yaml", *QUICK)

    check_linear(step)

    def predict(size: int) -> Step:
        out = ("--records=bank=bank.csv", f"--records=lab=lab{size}.csv", f"--out={size}.csv", "--overwrite")
        return command("predict", f"runs/{size}", *out)

    check_linear(predict)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_ingest_of_columns_that_are_named_one_by_one(suffix: str, here: Path) -> None:
    def step(size: int) -> Step:
        one = files(here, size, suffix)[2]
        named = ",".join(f"c{at}" for at in range(size) if at % 4)
        dropped = ",".join(f"c{at}" for at in range(0, size, 4))
        return command(
            *("ingest", one, "--label", "label", "--id", "id", "--active", "bank=a,b"),
            *("--passive", f"lab={named}", "--drop", dropped, "--out", f"tables{size}", "--overwrite"),
        )

    check_linear(step)


def test_records_that_are_scored_over_http() -> None:
    def step(size: int) -> Step:
        table = lab(size).assign(label=np.arange(ROWS) % 2)
        data = from_tables(active=table, passive={"bank": bank()[["id", "a"]]}, label="label", id="id")
        assert data.active.provenance is not None
        reader = RequestReader(data.active.provenance.encoding, run="a" * 32)
        rows = lab(size).astype({"id": str}).to_dict("records")
        body = json.dumps({"records": rows}).encode()
        return lambda: reader.read(body)

    check_linear(step)


def test_estimators() -> None:
    model: dict[str, Any] = {"model": {"name": "mlp", "bottom": [2]}, "epochs": 1, "audit": False}

    def step(size: int) -> Step:
        table = lab(size).drop(columns="id")
        held = list(table.columns[: size // 2])

        def fit() -> None:
            SplitClassifier({"lab": held}, **model).fit(table, np.arange(ROWS) % 2).predict(table)

        return fit

    check_linear(step)
