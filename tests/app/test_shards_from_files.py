"""From a party's file to shards that its workers train on: divided, surveyed and ingested apart, as the pages say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from splitvfl.app.records import load_data, own_data
from splitvfl.cli import main
from splitvfl.config.sections import parse_config
from splitvfl.data.store import open_party
from tests.summaries import opened

SHARDS = 2
RUN = """
data: {name: tables, path: "tables-{worker}"}
parties: {clinic: {role: active}, lab: {role: passive}}
model: {name: wide-deep, bottom: [8]}
train: {epochs: 1, batch_size: 64, shards: 2}
audit: false
"""
COLUMNS = {"clinic": "mean *", "lab": "rest"}


def run(command: str) -> None:
    assert main(command.split()) == 0, command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two companies that have divided and ingested their files apart, and the same ingested at once."""
    place = tmp_path_factory.mktemp("files")
    frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame
    frame.columns = [name.replace(" ", "_") for name in frame.columns]
    frame.insert(0, "customer", [f"c{number}" for number in np.random.default_rng(0).permutation(10_000)[: len(frame)]])
    frame["stage"] = np.where(frame["worst_area"] > 700, "late", "early")
    clinic = ["customer", "target", *(name for name in frame if name.startswith("mean_"))]
    frame[clinic].to_csv(place / "clinic.csv", index=False)
    frame.drop(columns=clinic[1:]).to_csv(place / "lab.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for name, own in (("clinic", "--active clinic=rest --label target"), ("lab", "--passive lab=rest")):
            settings = f"--id customer {own}"
            run(f"shard {name}.csv --id customer --shards {SHARDS} --out sharded-{name}")
            for shard in range(SHARDS):
                file = f"sharded-{name}/shard-{shard}.parquet"
                run(f"ingest {file} {settings} --statistics-only {shard}/{SHARDS} --out stats-{name}/{shard}")
            for shard in range(SHARDS):
                run(f"ingest sharded-{name}/shard-{shard}.parquet --statistics stats-{name} --out {name}-{shard}")
                (place / f"tables-{shard}").mkdir(exist_ok=True)
                (place / f"{name}-{shard}" / name).rename(place / f"tables-{shard}" / name)
            run(f"ingest {name}.csv {settings} --out whole-{name}")
        (place / "run.yaml").write_text(RUN)
    return place


@pytest.mark.parametrize("name", ["clinic", "lab"])
def test_shards_are_the_records_of_one_ingest_of_all(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = own_data(parse_config(RUN, source="run.yaml"), name).data
    whole = open_party(folder / f"whole-{name}" / name)
    assert found.shards is not None
    assert found.shards.tests == tuple(
        own_data(parse_config(RUN, source="run.yaml"), name, worker=shard).data.test.count for shard in range(SHARDS)
    )
    for part in ("train", "test"):
        ours, theirs = getattr(found, part), getattr(whole, part)
        order, known = ours.ids.argsort(), theirs.ids.argsort()
        assert ours.ids[order].equal(theirs.ids[known])
        assert ours.columns.numeric[order].equal(theirs.columns.numeric[known])
        assert ours.columns.categorical[order].equal(theirs.columns.categorical[known])
        assert (ours.labels is None) == (name == "lab")
        assert ours.labels is None or ours.labels[order].equal(theirs.labels[known])


def test_both_companies_have_the_same_people_in_the_same_shards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    data = load_data(parse_config(RUN, source="run.yaml"))
    assert data.active.shards == data.passives["lab"].shards
    assert data.active.train.ids.equal(data.passives["lab"].train.ids)


def test_one_process_trains_on_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run("train run.yaml --out runs/once")
    summary = opened(folder / "runs" / "once" / "summary.json")
    assert summary["provenance"]["train"] + summary["provenance"]["test"] == 569
    assert summary["steps"] == -(-summary["provenance"]["train"] // 64)
