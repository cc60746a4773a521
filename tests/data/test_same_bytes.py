"""The same files give the same bytes as ever: what was trained on earlier tables goes on with later ones.

All numbers of :func:`table` are multiples of a quarter and 32 rows are trained on, so that no sum is rounded. Sums over
:func:`rough` are, and its columns have gaps: in memory its digests tell in which order numbers are added up, on disk
that it does not matter. They hold where sums of IEEE doubles are not contracted, and leave out logarithms, whose last
place differs between machines.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from splitvfl.data import arrow_source
from splitvfl.data.columns import VerticalData
from splitvfl.data.id_rules import FIRST_RULE
from splitvfl.data.load import load
from splitvfl.data.party_file import PartyFile
from splitvfl.system.untrusted_files import indented
from tests.tables import ingest, load_party

ROWS = 40


def table() -> pa.Table:
    rows = np.arange(ROWS)
    return pa.table(
        {
            "id": (rows * 37) % 101,
            "name": [f"customer {row}" for row in rows * 7 % 41],
            "y": rows % 3 // 2,
            "part": np.where(rows % 5 == 4, "test", "train"),
            "n1": (rows * 13 % 32) / 4,
            "n2": pa.array((rows % 8) / 4, mask=rows % 10 == 3),
            "n3": np.full(ROWS, 2.5),
            "c1": np.array(["", "b", "é", "rare"])[np.minimum(rows % 3 + (rows == 6) * 3, 3)],
            "c2": pa.array(rows % 4 - 1, mask=rows % 9 == 2),
            "c3": rows % 2 == 0,
        }
    )


def rough() -> pa.Table:
    """Return numbers whose sums are rounded, with gaps, and categories of all types, many of which are as frequent."""
    rows = np.arange(300)
    gap = {share: rows * 7919 % 100 < share for share in (1, 10, 60)}
    return pa.table(
        {
            "name": [f"customer {row}" for row in rows * 7 % 307],
            "y": rows % 7 // 4,
            "n1": rows * 613 % 1009 / 7 - 50,
            "n2": pa.array(rows * 104_729 % 997 / 3e5, mask=gap[10]),
            "n3": pa.array(rows * 31 % 11, mask=gap[60]),
            "n4": pa.array(np.full(300, 0.1), mask=gap[1]),
            "n5": pa.array(rows % 3 == 0, mask=gap[10]),
            "n6": pa.array((rows * 17 % 23 / 9).astype(np.float32)),
            "c1": pa.array(rows * 13 % 5 % 2 == 0, mask=gap[10]),
            "c2": pa.array([Decimal(row % 6) / 4 for row in rows.tolist()], pa.decimal128(9, 2), mask=gap[60]),
            "c3": np.array([0.0, -0.0, 1.5, np.inf, np.nan])[rows % 5],
            "c4": pa.array(rows % 4, pa.uint16()),
            "c5": pa.array(rows.astype(str)).cast(pa.large_string()),
            "c6": pa.array(np.array(["x", "yy", "é", "z"])[rows * 3 % 4], mask=gap[10]).dictionary_encode(),
            "c7": pa.nulls(300),
        }
    )


@pytest.fixture(params=["t.csv", "t.parquet"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    (pyarrow.csv.write_csv if path.suffix == ".csv" else pq.write_table)(table(), path)
    return path


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


# What later versions note beside what they encode: it moves no number.
ADDED = ("profiles", "counts")


def learned_of(found: PartyFile) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(found.encoding, profiles={}))


def on_disk(folder: Path) -> str:
    parts = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.suffix == ".json":
            noted = msgspec.json.decode(content)
            content = indented({key: value for key, value in noted.items() if key not in ADDED}) + b"\n"
        parts.append(path.name.encode() + content)
    return digest(*parts)


def in_memory(data: VerticalData) -> str:
    parts = []
    for party in (data.active, *data.passives.values()):
        parts.append(repr((party.name, party.column_names, party.numeric_names, party.field_sizes)).encode())
        for records in (party.train, party.test):
            arrays = [records.ids, *records.columns, *([] if records.labels is None else [records.labels])]
            parts += [str(array.dtype).encode() + array.numpy().tobytes() for array in arrays]
    return digest(*parts)


# What an earlier version began goes on by its rule for ids.
WANTED: dict[str, Any] = {
    "id_rule": FIRST_RULE,
    "label": "y",
    "missing": "indicator",
    "categorical_columns": "c2, c3",
    "min_count": 2,
}
PARTIES: dict[str, Any] = {"active": "n1, c1", "active_name": "shop", "passive": {"ads": "rest"}}


@pytest.mark.parametrize("categorical", ["onehot", "index"])
@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_tables_in_memory(file: Path, scale: str, categorical: str) -> None:
    settings = {**WANTED, "id_column": "id", "drop": "name", "split_column": "part", **PARTIES}

    data = load("table", path=file, scale=scale, categorical=categorical, **settings)

    assert in_memory(data) == DIGESTS[f"{file.name} {scale} {categorical}"]


@pytest.mark.parametrize("scale", ["minmax", "none"])
def test_one_partys_file_and_what_was_learned_of_it(file: Path, scale: str) -> None:
    found = load_party(file, name="shop", role="active", drop="part, id", id_column="name", scale=scale, **WANTED)

    parts = [records.columns.numeric.numpy().tobytes() for records in (found.data.train, found.data.test)]
    assert digest(learned_of(found), *parts) == DIGESTS[f"{file.name} {scale} party"]


@pytest.mark.parametrize("buckets", [None, 5])
@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_tables_on_disk(file: Path, scale: str, buckets: int | None, tmp_path: Path) -> None:
    settings = {**WANTED, "id_column": "name", "drop": "id", "split_column": "part", **PARTIES}

    ingest(file, out=tmp_path / "tables", scale=scale, buckets=buckets, **settings)

    assert on_disk(tmp_path / "tables") == DIGESTS[f"{file.name} {scale} {buckets}"]


ROUGH: dict[str, Any] = {
    "id_rule": FIRST_RULE,
    "label": "y",
    "id_column": "name",
    "missing": "indicator",
    "categorical_columns": [f"c{number}" for number in range(1, 8)],
    "scale_columns": {"none": "n6"},
}


@pytest.mark.parametrize("categorical", ["onehot", "index"])
@pytest.mark.parametrize("scale", ["standard", "minmax"])
def test_gaps_in_memory(scale: str, categorical: str, tmp_path: Path) -> None:
    pq.write_table(rough(), tmp_path / "t.parquet")
    how = {"scale": scale, "categorical": categorical, **ROUGH}

    found = load_party(tmp_path / "t.parquet", name="shop", role="active", **how)

    parts = [array.numpy().tobytes() for part in (found.data.train, found.data.test) for array in part.columns]
    learned = learned_of(found)
    assert digest(learned, *parts) == DIGESTS[f"rough {scale} {categorical}"]
    whole = load("table", path=tmp_path / "t.parquet", active="n*", **how)
    assert in_memory(whole) == DIGESTS[f"rough whole {scale} {categorical}"]


@pytest.mark.parametrize("rows", [37, 1000])
@pytest.mark.parametrize("scale", ["standard", "minmax"])
def test_gaps_on_disk(scale: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_source, "BATCH_ROWS", rows)
    pq.write_table(rough(), tmp_path / "t.parquet")

    ingest(tmp_path / "t.parquet", out=tmp_path / "tables", scale=scale, active="n*", passive={"ads": "rest"}, **ROUGH)

    assert on_disk(tmp_path / "tables") == DIGESTS[f"rough {scale}"]


DIGESTS = {
    "t.csv standard onehot": "c86e46fc664c968f",
    "t.csv standard index": "b07d8cf9cdca24df",
    "t.csv standard None": "e1534e35a31a20a9",
    "t.csv standard 5": "342ab8a5458c670b",
    "t.csv minmax onehot": "aa3549de8d687dd5",
    "t.csv minmax index": "bc141089e47b6ecc",
    "t.csv minmax None": "92e9fcfac13bfd0f",
    "t.csv minmax 5": "0756acb30b5ba0fc",
    "t.csv minmax party": "5545d23c57f9fd49",
    "t.csv none onehot": "c280a916fe8ad8d5",
    "t.csv none index": "4a746dc2be5387cb",
    "t.csv none None": "8c5c728637c0a576",
    "t.csv none 5": "767735b0ca946767",
    "t.csv none party": "646565569387f3da",
    "t.parquet standard onehot": "c86e46fc664c968f",
    "t.parquet standard index": "b07d8cf9cdca24df",
    "t.parquet standard None": "a22e5bb6a793611b",
    "t.parquet standard 5": "14819a24beb04f16",
    "t.parquet minmax onehot": "aa3549de8d687dd5",
    "t.parquet minmax index": "bc141089e47b6ecc",
    "t.parquet minmax None": "d83884903b7eec82",
    "t.parquet minmax 5": "eed5d66242c25545",
    "t.parquet minmax party": "5545d23c57f9fd49",
    "t.parquet none onehot": "c280a916fe8ad8d5",
    "t.parquet none index": "4a746dc2be5387cb",
    "t.parquet none None": "ca14c7d0bb8223c7",
    "t.parquet none 5": "51e70d49b38010c0",
    "t.parquet none party": "646565569387f3da",
    "rough standard onehot": "4b3100aee0f13122",
    "rough whole standard onehot": "5c99a2cee5e13cbb",
    "rough standard index": "524553f08946be26",
    "rough whole standard index": "40ffe6ace174d383",
    "rough minmax onehot": "73c5c460bb45853a",
    "rough whole minmax onehot": "be233c93f1a958e2",
    "rough minmax index": "f77f88b433004e88",
    "rough whole minmax index": "df8c1daf8c60e449",
    "rough standard": "da3f68afebc0ccad",
    "rough minmax": "431f4653ddb6e094",
}
