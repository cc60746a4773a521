"""What an earlier version began or wrote goes on by its own rule for ids: folders that name no rule keep the first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import torch

from splitvfl.app.beginning import BEGUN_FILE, Beginning
from splitvfl.app.experiment import run_experiment
from splitvfl.app.saved_run import load_run
from splitvfl.config.sections import ExperimentConfig, load_config
from splitvfl.data.alignment import ALIGNMENT_FILE, aligned_rows, read_alignment
from splitvfl.data.hashing import text_ids
from splitvfl.data.id_column import fingerprint, id_digest
from splitvfl.data.id_rules import FIRST_RULE, ID_RULE
from splitvfl.data.ingest.run import ingest_like
from splitvfl.data.record_index import RecordIndex, asked_digests
from splitvfl.data.schema import SCHEMA_FILE, read_data_schema
from splitvfl.data.shard_files import ShardNote, held_shards, shard_file
from splitvfl.data.shard_writing import shard
from splitvfl.data.sharding import id_hashes, shard_of
from splitvfl.errors import CheckpointError, DataError
from splitvfl.run.half_folder import HALF_FILE
from splitvfl.run.record_counts import record_forms
from tests.tables import align_rows, ingest, load_party

ROWS = 60
NUMBERS = range(5, ROWS + 5)
KEYS = [str(UUID(int=(0xABCDEF << 96) + number)).upper() for number in range(ROWS)]
EXPERIMENT = """
data: {name: table, path: all.csv, id_column: id, label: y}
parties:
  bank: {role: active, columns: [a]}
  lab: {role: passive, columns: [b]}
model: {name: logistic-regression}
train: {epochs: 1, batch_size: 16, device: cpu}
audit: false
"""


def write(path: Path, ids: list[str]) -> Path:
    rows = [f"{one},{row * 7 % 11}.5,{row * 5 % 13}.5,{row % 2}" for row, one in enumerate(ids)]
    path.write_text("\n".join(["id,a,b,y", *rows]) + "\n")
    return path


def padded() -> list[str]:
    return [f"{number:03d}" for number in NUMBERS]


def without(path: Path, *keys: str) -> None:
    """Take out what an earlier version did not write."""
    kept: dict[str, Any] = {key: value for key, value in json.loads(path.read_text()).items() if key not in keys}
    path.write_text(json.dumps(kept))


# --- runs


@pytest.fixture
def old_run(tmp_path: Path) -> tuple[ExperimentConfig, Path]:
    """Return an experiment, and the folder of its run, as an earlier version left it: 007 in a CSV file was 7."""
    write(tmp_path / "all.csv", padded())
    (tmp_path / "old.yaml").write_text(EXPERIMENT)
    config, folder = load_config(tmp_path / "old.yaml"), tmp_path / "run"
    run_experiment(config.keeping_ids(FIRST_RULE), folder)
    without(folder / BEGUN_FILE, "id_rule")
    return config, folder


def test_an_old_run_predicts_its_own_records_and_goes_on(old_run: tuple[ExperimentConfig, Path]) -> None:
    config, folder = old_run
    assert all("id_rule" not in json.loads(path.read_text()) for path in folder.rglob(HALF_FILE))

    tests = load_run(folder).own_tests()
    longer = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 2})})
    summary = run_experiment(longer, folder, resume=True)

    assert set(tests.names.to_pylist()) < set(NUMBERS)
    assert summary.epochs == 2
    assert "id_rule" not in json.loads(next(folder.rglob(HALF_FILE)).read_text())


def test_a_new_run_names_its_rule_and_its_records_as_they_stand(tmp_path: Path) -> None:
    write(tmp_path / "all.csv", padded())
    (tmp_path / "new.yaml").write_text(EXPERIMENT)
    config = load_config(tmp_path / "new.yaml")
    run_experiment(config, tmp_path / "run")

    found = {
        path.name: json.loads(path.read_text())["id_rule"]
        for path in (tmp_path / "run").rglob("*.json")
        if path.name in (BEGUN_FILE, HALF_FILE)
    }
    names = load_run(tmp_path / "run").own_tests().names.to_pylist()

    assert found == {BEGUN_FILE: str(ID_RULE), HALF_FILE: ID_RULE}
    assert set(names) < set(padded())


def test_the_other_rule_would_not_know_an_old_runs_records(old_run: tuple[ExperimentConfig, Path]) -> None:
    config, folder = old_run
    noted = json.loads((folder / BEGUN_FILE).read_text())
    (folder / BEGUN_FILE).write_text(json.dumps({**noted, "id_rule": str(ID_RULE)}))

    longer = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 2})})
    with pytest.raises(DataError, match="records"):
        run_experiment(longer, folder, resume=True)


def test_a_rule_of_a_newer_version_is_refused(old_run: tuple[ExperimentConfig, Path], tmp_path: Path) -> None:
    _, folder = old_run
    noted = json.loads((folder / BEGUN_FILE).read_text())
    (folder / BEGUN_FILE).write_text(json.dumps({**noted, "id_rule": "3"}))
    path = tmp_path / "own.csv"
    path.write_text("customer,a\nk1,1\n")
    aligned = align_rows(tmp_path / "aligned", path, rows=[0], ids=[5], id_rule=3).folder

    with pytest.raises(CheckpointError, match="id_rule"):
        Beginning.read(folder / BEGUN_FILE)
    with pytest.raises(DataError, match="id_rule"):
        read_alignment(aligned)


def test_a_partys_own_file_has_the_numbers_and_the_split_that_it_had(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", padded())
    settings: dict[str, Any] = {"name": "bank", "role": "active", "label": "y", "id_column": "id"}

    before, now = (load_party(path, id_rule=rule, **settings).data for rule in (FIRST_RULE, ID_RULE))

    def all_ids(data: Any) -> set[int]:
        return set(torch.cat([data.train.ids, data.test.ids]).tolist())

    assert all_ids(before) == set(NUMBERS)
    assert all_ids(now) == set(text_ids(padded()).tolist())


# --- noise and score logs


def test_noise_is_drawn_by_what_it_was_drawn_by_and_records_are_found_by_the_new_rule() -> None:
    large = str(2**63 + 5)
    names = pa.array(["7", "007", KEYS[3], large])
    old = RecordIndex.of(names, run="r", case="kept", source="own", rule=FIRST_RULE)
    new = RecordIndex.of(names, run="r", case="kept", source="own")

    forms = [b"i7", b"t%d" % text_ids(["007"])[0], b"t%d" % text_ids([KEYS[3]])[0], b"i" + large.encode()]
    assert [bytes(row) for row in old.own] == [digest_of(form) for form in forms]
    assert [bytes(row) for row in new.own[:2]] == [digest_of(form) for form in forms[:2]]
    for index in (old, new):
        assert index.find(asked_digests(["7", "007", KEYS[3].lower(), large, "07"], run="r")).tolist() == [
            0,
            1,
            2,
            3,
            -1,
        ]
    assert old.find(old.own).tolist() == [0, 1, 2, 3]  # an earlier version asks so


def digest_of(form: bytes) -> bytes:
    return hashlib.sha256(b"splitvfl.serve.1\0r\0" + form).digest()


def test_records_are_counted_under_the_forms_that_they_had() -> None:
    texts = ["007", " K\u00c4 ", KEYS[0], "7.0", "99999999999999999999"]
    expected = text_ids(["007", "k\u00e4", KEYS[0].lower(), "7.0", texts[-1]]).tolist()

    assert record_forms(pa.array(texts), rows=False).tolist() == [[1, number] for number in expected]
    assert record_forms(pa.array(["7", "-3"]), rows=False).tolist() == [[0, 7], [0, -3]]
    assert record_forms(pa.array([7, -3]), rows=False).tolist() == [[0, 7], [0, -3]]


# --- alignments, shards and tables


def test_an_old_alignment_knows_its_file_again(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("customer,a\n" + "".join(f"{key},1\n" for key in KEYS))
    as_they_stood = np.frombuffer(b"".join(map(id_digest, KEYS)), np.uint8).reshape(-1, 64)
    folder = align_rows(tmp_path / "aligned", path, rows=[0], ids=[5], source=fingerprint(as_they_stood)).folder
    without(folder / ALIGNMENT_FILE, "id_rule")

    assert read_alignment(folder).schema.id_rule == FIRST_RULE
    assert aligned_rows(folder, path).rows.tolist() == [0]

    noted = json.loads((folder / ALIGNMENT_FILE).read_text())
    (folder / ALIGNMENT_FILE).write_text(json.dumps({**noted, "id_rule": ID_RULE}))
    with pytest.raises(DataError, match="is not the one that was aligned"):
        aligned_rows(folder, path)


def test_an_old_shard_is_checked_by_the_rule_that_it_was_divided_by(tmp_path: Path) -> None:
    sharding = shard(write(tmp_path / "all.csv", KEYS), tmp_path / "shards", id_column="id", shards=2).sharding
    assert sharding.id_rule == ID_RULE
    old = msgspec.convert(
        {k: v for k, v in msgspec.to_builtins(ShardNote.of(sharding, 0)).items() if k != "id_rule"}, ShardNote
    )
    own = [key for key, number in zip(KEYS, shard_of(id_hashes(KEYS), 2), strict=True) if number == 0]
    table = pa.table({"id": own}, schema=old_schema(old, len(own)))
    pa.parquet.write_table(table, tmp_path / "old.parquet")

    held = held_shards([tmp_path / "old.parquet"], id_column="id", case="kept")

    assert held is not None
    held.check([tmp_path / "old.parquet"], "id")
    with pytest.raises(DataError, match="belongs to shard 1"):
        held_shards([shard_file(tmp_path / "shards", 0)], id_column="id", case="kept").check(  # type: ignore[union-attr]
            [tmp_path / "old.parquet"], "id"
        )


def old_schema(note: ShardNote, records: int) -> pa.Schema:
    return msgspec.structs.replace(note, records=records).added_to(pa.schema([("id", pa.string())]))


@pytest.mark.parametrize(
    ("rule", "ids", "said"),
    [
        (FIRST_RULE, list(NUMBERS), {"column": "id", "rule": "integer", "digest": None}),
        (
            ID_RULE,
            text_ids(padded()).tolist(),
            {"column": "id", "rule": "blake2b-63", "digest": None, "id_rule": ID_RULE},
        ),
    ],
)
def test_files_that_are_ingested_like_others_follow_their_rule(
    rule: int, ids: list[int], said: Mapping[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "all.csv", padded())
    ingest(path, out=tmp_path / "tables", label="y", id_column="id", active="rest", id_rule=rule)

    ingest_like(path, tmp_path / "more", like=tmp_path / "tables")

    for folder in ("tables", "more"):
        assert json.loads((tmp_path / folder / SCHEMA_FILE).read_text())["ids"] == said
        assert read_data_schema(tmp_path / folder).ids.as_written == (rule == ID_RULE)
    assert np.load(tmp_path / "more" / "active" / "test.ids.npy").tolist() == ids
