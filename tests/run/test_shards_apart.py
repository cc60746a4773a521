"""Workers whose records lie apart: each reads its own shard, and all end with the weights of one process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from splitvfl.app.records import load_data, own_data
from splitvfl.app.workers import shards_of
from splitvfl.config.sections import load_config, parse_config
from splitvfl.data.columns import Shards
from splitvfl.data.ingest.run import ingest
from splitvfl.data.schema import PartySchema
from splitvfl.data.shards import ShardFacts, checked_sizes, facts_of
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.errors import ConfigError, DataError
from splitvfl.team.team import Alone
from tests.run.parties import finished, free_ports, newest_of, same_weights, start, weights_of
from tests.run.test_workers import PARTIES, STEPS, TEXT, WORKERS, largest_difference, place, start_worker
from tests.summaries import opened

APART = (
    TEXT.replace("data: {name: breast-cancer}", 'data: {name: tables, path: "tables-{worker}"}')
    .replace('columns: ["mean *"], ', "")
    .replace(", columns: rest", "")
    .replace("audit: false", "audit: {canaries: 60}\nattacks: [norm]")
)


def ingested(folder: Path, *, id_column: str | None = "id") -> Path:
    """Breast cancer as tables of two parties."""
    found = load_breast_cancer(as_frame=True)
    frame: pd.DataFrame = found.frame
    frame.insert(0, "id", np.random.default_rng(0).permutation(10_000)[: len(frame)])
    claims = [PartyClaim("clinic", "active", "mean *"), PartyClaim("lab", "passive")]
    spec = TableSpec(source=frame, label="target", id_column=id_column, drop=() if id_column else "id")
    ingest(spec, claims, folder / "tables")
    return folder / "tables"


def cut(tables: Path, bounds: Sequence[float]) -> None:
    """Cut the tables of both parties at these shares of their rows into folders of shards beside them."""
    for party in PARTIES:
        schema = msgspec.json.decode((tables / party / "schema.json").read_bytes(), type=PartySchema)
        for shard in range(len(bounds) - 1):
            target = tables.with_name(f"tables-{shard}") / party
            target.mkdir(parents=True)
            rows, prints = {}, {}
            for part in ("train", "test"):
                for file in sorted((tables / party).glob(f"{part}.*.npy")):
                    values = np.load(file)
                    first, last = (round(bound * len(values)) for bound in bounds[shard : shard + 2])
                    np.save(target / file.name, values[first:last])
                    rows[part], prints[part] = last - first, f"{part} {first} {last}"
            own = msgspec.structs.replace(schema, rows=rows, id_fingerprints=prints)
            (target / "schema.json").write_bytes(msgspec.json.encode(own))
    for shard in range(len(bounds) - 1):
        whole = json.loads((tables / "schema.json").read_bytes())
        whole["rows"] = rows_of(tables.with_name(f"tables-{shard}") / "lab")
        (tables.with_name(f"tables-{shard}") / "schema.json").write_text(json.dumps(whole))


def rows_of(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "schema.json").read_bytes())["rows"]
    return found


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables in two uneven shards, and a file that trains on them."""
    folder = tmp_path_factory.mktemp("apart")
    place(folder, APART)
    cut(ingested(folder), (0.0, 0.37, 1.0))
    return folder


def homes_of(folder: Path, name: str) -> list[Path]:
    """Where the workers of a party keep what is their own, each on a machine of its own."""
    return [folder / "machine-0" / "runs" / name, folder / "machine-1" / "runs" / name / "worker-1"]


def test_workers_on_shards_of_their_own_end_with_the_weights_of_one_process(apart: Path, checkout: Path) -> None:
    """Each starts where the other's shard is not."""
    finished({"whole": start(checkout, ["train", "run.yaml", "--out", "runs/whole"], apart)})
    workers = {}
    for rank in range(WORKERS):
        home = apart / f"machine-{rank}"
        home.mkdir()
        for name in ("certs", "run.yaml", f"tables-{rank}"):
            (shutil.copytree if (apart / name).is_dir() else shutil.copy)(apart / name, home / name)
    for name, port in zip(PARTIES, free_ports(len(PARTIES)), strict=True):
        for rank in range(WORKERS):
            home, own = apart / f"machine-{rank}", ["audit=false"] if name == "lab" else []
            workers[f"{name} {rank}"] = start_worker(checkout, home, name, rank, port, *own)
    finished(workers)

    whole = newest_of(apart / "runs" / "whole")
    assert whole["run"]["step"] == STEPS
    for name in PARTIES:
        homes = homes_of(apart, name)
        weights = [weights_of(home, homes[0]) for home in homes]
        assert same_weights(*weights)
        assert largest_difference(weights[0], whole[f"party-{name}"]["module"]) < 1e-5
    together, one = (
        opened(run / "summary.json") for run in (apart / "machine-0" / "runs" / "clinic", apart / "runs" / "whole")
    )
    for figure in ("train", "test", "held_out"):
        assert together["provenance"][figure] == one["provenance"][figure] > 50
    for figure in ("test_metric", "test_loss", "validation_metric", "steps"):
        assert together[figure] == pytest.approx(one[figure], abs=1e-5), figure
    assert one["own_model"]["joint"] == pytest.approx(one["test_metric"], abs=1e-9)
    assert together["no_own_model"].endswith("its records lie apart, a part of them at each worker.")
    # A figure of ranks changes by a pair where rounding swaps two scores.
    ours, theirs = (found["parties"]["lab"]["attacks"] for found in (together, one))
    assert {"norm", "auditor-likelihood"} <= ours.keys() == theirs.keys()
    for attack in ours:
        for figure in ("auc", "accumulated_auc", "steps", "positives", "negatives"):
            assert ours[attack][figure] == pytest.approx(theirs[attack][figure], abs=2e-3), (attack, figure)
    ours, theirs = (found["parties"]["lab"]["canaries"] for found in (together, one))
    for attack in ours:
        assert ours[attack] == pytest.approx(theirs[attack], abs=5e-3), attack
    homes = homes_of(apart, "clinic")
    coins = [newest_of(home, homes[0])["hooks"]["canaries"] for home in homes]
    known = whole["hooks-clinic"]["canaries"]
    assert [len(one["coins"]) for one in coins] != [0, 60]
    assert torch.equal(torch.cat([one["ids"] for one in coins]), known["ids"])
    assert torch.equal(torch.cat([one["coins"] for one in coins]), known["coins"])
    assert all(torch.equal(one["all_ids"], known["all_ids"]) for one in coins)


def text_of(*changes: tuple[str, str]) -> str:
    text = APART.replace("PORT", "7000")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            (("name: tables", "name: table, label: y"),),
            r"data\.path: \{worker\} stands for the number of a worker in the path of tables only.*--statistics",
        ),
        ((("team: {workers: 2}\n", ""),), r"data\.path: \{worker\} .* each party is one process; write team: "),
    ],
)
def test_a_number_in_a_path_where_it_means_nothing_is_refused(changes: Any, complaint: str) -> None:
    config = parse_config(text_of(*changes), source="shop.yaml")
    for load in (load_data, lambda config: own_data(config, "lab")):
        with pytest.raises(ConfigError, match=f"shop.yaml: {complaint}"):
            load(config)


def test_one_process_takes_all_shards_one_behind_the_other(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(apart)
    config = load_config("run.yaml")
    whole, lab = load_data(config), own_data(config, "lab").data
    for data, party in ((whole.active, "clinic"), (whole.passives["lab"], "lab"), (lab, "lab")):
        assert data.shards is not None
        assert data.training_records == data.train.count == rows_of(apart / "tables" / party)["train"]
        assert data.shards.sizes == tuple(rows_of(apart / f"tables-{shard}" / party)["train"] for shard in range(2))
        for part in ("train", "test"):
            known = torch.from_numpy(np.load(apart / "tables" / party / f"{part}.numeric.npy"))
            assert torch.equal(getattr(data, part).columns.numeric, known)
            assert torch.equal(
                getattr(data, part).ids, torch.from_numpy(np.load(apart / "tables" / party / f"{part}.ids.npy"))
            )


def test_a_worker_knows_its_shard_among_all(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(apart)
    path = load_config("run.yaml").data.path
    facts = [facts_of(apart / f"tables-{shard}" / "lab") for shard in range(WORKERS)]

    class Second(Alone):
        rank, size = 1, WORKERS

        def collect(self, content: bytes) -> list[bytes]:
            assert ShardFacts(**json.loads(content)) == facts[1]
            return [json.dumps(asdict(facts[0])).encode(), content]

    assert shards_of(path, "lab", Second(), source="run.yaml") == Shards(
        (facts[0].rows, facts[1].rows), (facts[0].tests, facts[1].tests), here=1
    )
    assert shards_of(path, "lab", Alone(), source="run.yaml") is None


@pytest.mark.parametrize(("path", "has"), [("tables-{worker}", "a shard"), ("tables", "the whole table")])
def test_a_worker_whose_fellow_has_the_other_kind_of_records_is_told(
    path: str, has: str, apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(apart)
    config = parse_config(text_of(("tables-{worker}", path)), source="run.yaml")
    facts = json.dumps(asdict(facts_of(apart / "tables-0" / "lab"))).encode()

    class First(Alone):
        size = WORKERS

        def collect(self, content: bytes) -> list[bytes]:
            return [content, b"null" if has == "a shard" else facts]

    with pytest.raises(ConfigError, match=rf"run.yaml: data\.path: worker 0 of lab has {has}, and worker 1 not; give"):
        shards_of(config.data.path, "lab", First(), source="run.yaml")


def changed(**changes: Any) -> Callable[[ShardFacts], ShardFacts]:
    return lambda facts: replace(facts, **changes)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (changed(rows=0), r"shard 1 \(.*tables-1/lab\) has no training records"),
        (changed(encoding="0" * 64), r"shards 0 \(.*tables-0/lab\) and 1 .* are encoded otherwise.*--statistics"),
        (changed(records="train 0 169"), "hold the same records: one is there twice"),
    ],
)
def test_what_are_no_parts_of_one_table_is_refused(
    change: Callable[[ShardFacts], ShardFacts], complaint: str, apart: Path
) -> None:
    facts = [facts_of(apart / f"tables-{shard}" / "lab") for shard in range(WORKERS)]
    assert checked_sizes(facts) == Shards((facts[0].rows, facts[1].rows), (facts[0].tests, facts[1].tests))
    assert facts[0].records == "train 0 169"
    with pytest.raises(DataError, match=complaint):
        checked_sizes([facts[0], change(facts[1])])


def test_scales_and_categories_of_a_shard_are_seen_to_be_others(apart: Path, tmp_path: Path) -> None:
    """And what belongs to the shard alone is none of that."""
    shutil.copytree(apart / "tables-1" / "lab", tmp_path / "lab")
    known, schema = facts_of(tmp_path / "lab").encoding, tmp_path / "lab" / "schema.json"
    assert known == facts_of(apart / "tables-0" / "lab").encoding
    found = json.loads(schema.read_bytes())
    schema.write_text(json.dumps({**found, "agreed": "of another alignment"}))
    assert facts_of(tmp_path / "lab").encoding == known
    found["encoders"][0]["offset"] += 1e-9
    schema.write_text(json.dumps(found))
    scaled = facts_of(tmp_path / "lab").encoding
    (tmp_path / "lab" / "vocabulary.safetensors").write_bytes(b"other categories")
    assert len({known, scaled, facts_of(tmp_path / "lab").encoding}) == 3


def test_records_that_are_called_by_their_numbers_lie_in_no_shards(tmp_path: Path) -> None:
    """Record 7 of one shard would be taken for record 7 of another, in answers that are remembered and in figures."""
    facts = []
    for shard in range(2):
        (tmp_path / str(shard)).mkdir()
        facts.append(facts_of(ingested(tmp_path / str(shard), id_column=None) / "lab"))
    with pytest.raises(DataError, match=r"are called by their numbers, so that .*--id"):
        checked_sizes([facts[0], replace(facts[1], records="other")])
