"""The same files give the same bytes as ever: what was trained on earlier tables goes on with later ones.

All numbers are multiples of a quarter and 32 rows are trained on, so that no sum is rounded: the digests do not depend
on the order of additions, and so not on the machine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from splitvfl.data import VerticalData, load
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


@pytest.fixture(params=["t.csv", "t.parquet"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    (pyarrow.csv.write_csv if path.suffix == ".csv" else pq.write_table)(table(), path)
    return path


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def in_memory(data: VerticalData) -> str:
    parts = []
    for party in (data.active, *data.passives.values()):
        parts.append(repr((party.name, party.column_names, party.numeric_names, party.field_sizes)).encode())
        for records in (party.train, party.test):
            arrays = [records.ids, *records.columns, *([] if records.labels is None else [records.labels])]
            parts += [str(array.dtype).encode() + array.numpy().tobytes() for array in arrays]
    return digest(*parts)


WANTED: dict[str, Any] = {"label": "y", "missing": "indicator", "categorical_columns": "c2, c3", "min_count": 2}
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
    assert digest(msgspec.json.encode(found.encoding), *parts) == DIGESTS[f"{file.name} {scale} party"]


@pytest.mark.parametrize("buckets", [None, 5])
@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_tables_on_disk(file: Path, scale: str, buckets: int | None, tmp_path: Path) -> None:
    settings = {**WANTED, "id_column": "name", "drop": "id", "split_column": "part", **PARTIES}

    ingest(file, out=tmp_path / "tables", scale=scale, buckets=buckets, **settings)

    files = sorted(path for path in (tmp_path / "tables").rglob("*") if path.is_file())
    assert (
        digest(*(path.name.encode() + path.read_bytes() for path in files)) == DIGESTS[f"{file.name} {scale} {buckets}"]
    )


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
}
