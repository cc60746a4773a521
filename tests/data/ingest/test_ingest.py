from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from splitvfl.data import arrow_source, csv_source
from splitvfl.data.columns import TaskName, VerticalData
from splitvfl.data.encoding import Scale
from splitvfl.data.hashing import are_tested, bucket_codes, hash_key, text_ids
from splitvfl.data.ingest import survey
from splitvfl.data.ingest.progress import IngestStatus
from splitvfl.data.ingest.run import ingest_like
from splitvfl.data.load import load
from splitvfl.data.schema import read_data_schema, read_party_schema
from splitvfl.data.store import open_tables
from splitvfl.errors import ArgumentError, DataError
from tests.tables import ingest

ROWS = 400
PARTIES: dict[str, Any] = {"active": "n*", "active_name": "shop", "passive": {"ads": "rest"}}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(arrow_source, "BATCH_ROWS", 37)
    # Nearly all counts then pass through files.
    monkeypatch.setattr(survey, "COUNT_BUDGET", 500)


def table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return numbers with and without gaps, counts down to -3, a constant, text with and without gaps, and codes."""
    rng = np.random.default_rng(seed)
    gappy = rng.normal(size=rows) * 10
    gappy[rng.random(rows) < 0.2] = np.nan
    words = rng.choice(["", "b", "é", "Z", "rare"], rows, p=[0.3, 0.3, 0.2, 0.19, 0.01])
    return pa.table(
        {
            "id": pa.array(rng.permutation(rows) * 7 - 100),
            "y": rng.integers(0, 2, rows),
            "part": rng.choice(["train", "test"], rows, p=[0.8, 0.2]),
            "n1": rng.lognormal(size=rows),
            "n2": pa.array(gappy, from_pandas=True),
            "n3": rng.poisson(2, rows) - 3,
            "n4": np.full(rows, 0.1),
            "c1": words,
            "c2": pa.array(rng.integers(-5, 60, rows), mask=rng.random(rows) < 0.1),
            "c3": pa.array(rng.choice(["x", "y", None], rows), pa.string()),
            "t": rng.random(rows) < 0.5,
        }
    )


def write(path: Path, content: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(content, path, row_group_size=150)
    else:
        with pa.output_stream(path, compression="detect") as stream:
            pyarrow.csv.write_csv(content, stream)
    return path


def parts_of(data: VerticalData) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for party in (data.active, *data.passives.values()):
        for part, records in (("train", party.train), ("test", party.test)):
            found[f"{party.name} {part} ids"] = records.ids.numpy()
            found[f"{party.name} {part} numeric"] = records.columns.numeric.numpy()
            found[f"{party.name} {part} codes"] = records.columns.categorical.numpy()
            if records.labels is not None:
                found[f"{party.name} {part} labels"] = records.labels.numpy()
    return found


# Every form, and every scale: how cells are read does not depend on how they are scaled.
@pytest.mark.parametrize(
    ("suffix", "scale", "min_count"),
    [
        (".csv", "standard", 1),
        (".csv", "minmax", 3),
        (".csv.gz", "log1p", 1),
        (".parquet", "none", 3),
        (".parquet", "standard", 1),
    ],
)
def test_the_same_numbers_come_out_as_of_a_small_file_that_is_loaded(
    suffix: str, scale: Scale, min_count: int, tmp_path: Path
) -> None:
    path = write(tmp_path / f"t{suffix}", table())
    settings: dict[str, Any] = {
        "label": "y",
        "id_column": "id",
        "split_column": "part",
        "missing": "indicator",
        "categorical_columns": "c2, t",
        "scale": scale,
        "min_count": min_count,
        **PARTIES,
    }

    report = ingest(path, out=tmp_path / "tables", **settings)

    ours = open_tables(tmp_path / "tables")
    theirs = load("table", path=path, categorical="index", **settings)
    for party in ("shop", "ads"):
        assert ours[party].column_names == theirs[party].column_names
        assert ours[party].numeric_names == theirs[party].numeric_names
        assert ours[party].field_names == theirs[party].field_names
        assert ours[party].field_sizes == theirs[party].field_sizes
    expected = parts_of(theirs)
    for name, array in parts_of(ours).items():
        # Means and deviations are summed in another order: 1e-16 before rounding to float32, which steps by 1.2e-7.
        np.testing.assert_allclose(array, expected[name], rtol=2.4e-7, atol=1e-7, err_msg=name)
    assert report.rows == {"train": theirs.active.train.count, "test": theirs.active.test.count}
    assert report.parties["ads"].unknown == {
        field: int((theirs["ads"].test.columns.categorical[:, position] == 0).sum())
        for position, field in enumerate(theirs["ads"].field_names)
    }


@pytest.mark.slow(reason="ten thousand real records")
def test_real_clicks_come_out_as_they_are_loaded(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data_folder / "criteo_head_10k.parquet"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    monkeypatch.setattr(arrow_source, "BATCH_ROWS", 3000)
    cells = pq.read_table(path)
    tested = are_tested(np.arange(cells.num_rows), seed=5, fraction=0.1)
    split = write(tmp_path / "split.parquet", cells.append_column("part", pa.array(np.where(tested, "test", "train"))))
    settings: dict[str, Any] = {"label": "label", "scale": "log1p", "missing": "indicator", "min_count": 4}
    settings |= {"active": "I[1-6]", "passive": {"publisher": "rest"}}

    ingest(path, out=tmp_path / "tables", split_seed=5, **settings)

    ours = open_tables(tmp_path / "tables")
    theirs = load("table", path=split, categorical="index", split_column="part", **settings)
    expected = parts_of(theirs)
    assert ours["publisher"].field_sizes == theirs["publisher"].field_sizes
    for name, array in parts_of(ours).items():
        np.testing.assert_allclose(array, expected[name], rtol=2.4e-7, atol=1e-7, err_msg=name)


def test_many_files_are_one_table_whatever_their_form(tmp_path: Path) -> None:
    whole = table()
    pieces = [
        write(tmp_path / "1.csv", whole.slice(0, 100)),
        write(tmp_path / "2.parquet", whole.slice(100, 200).select(whole.column_names[::-1])),
        write(tmp_path / "3.csv.gz", whole.slice(300)),
    ]
    settings: dict[str, Any] = {"label": "y", "missing": "indicator", "drop": "part, c3", "id_column": "id", **PARTIES}

    ingest(pieces, out=tmp_path / "many", **settings)
    ingest(write(tmp_path / "whole.csv", whole), out=tmp_path / "one", **settings)

    expected = parts_of(open_tables(tmp_path / "one"))
    for name, array in parts_of(open_tables(tmp_path / "many")).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_each_party_alone_splits_as_the_other_does(tmp_path: Path) -> None:
    cells = table().set_column(0, "id", pa.array([f"user {number}" for number in range(ROWS)]))
    shop = write(tmp_path / "shop.csv", cells.select(["n1", "id", "y"]))
    ads = write(tmp_path / "ads.parquet", cells.select(["id", "c1", "n2"]))
    agreed: dict[str, Any] = {"id_column": "id", "test_fraction": 0.25, "split_seed": 11, "missing": "indicator"}

    ingest(shop, out=tmp_path / "a", label="y", active="rest", active_name="shop", **agreed)
    report = ingest(ads, out=tmp_path / "b", passive={"ads": "rest"}, **agreed)

    ours, theirs = read_party_schema(tmp_path / "a/shop"), read_party_schema(tmp_path / "b/ads")
    assert ours.agreed == theirs.agreed
    assert ours.id_fingerprints == theirs.id_fingerprints
    assert report.active is None
    assert read_data_schema(tmp_path / "b").classes == 0
    ids = text_ids([f"user {number}" for number in range(ROWS)])
    tested = are_tested(ids, seed=11, fraction=0.25)
    for folder in (tmp_path / "a/shop", tmp_path / "b/ads"):
        np.testing.assert_array_equal(np.load(folder / "train.ids.npy", allow_pickle=False), ids[~tested])
        np.testing.assert_array_equal(np.load(folder / "test.ids.npy", allow_pickle=False), ids[tested])
    assert not list((tmp_path / "b").rglob("*labels*"))
    ingest(ads, out=tmp_path / "c", passive={"ads": "rest"}, **{**agreed, "split_seed": 12})
    assert read_party_schema(tmp_path / "c/ads").agreed != ours.agreed


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_folders_of_parties_that_ingested_apart_are_opened_together(task: TaskName, tmp_path: Path) -> None:
    def joined(name: str, order: pa.Table, **settings: Any) -> Path:
        agreed: dict[str, Any] = {"id_column": "id", "test_fraction": 0.25, "missing": "indicator"}
        shop = write(tmp_path / f"{name}-shop.parquet", table().select(["id", "n1", "y"]))
        ads = write(tmp_path / f"{name}-ads.parquet", order.select(["id", "c1", "n2"]))
        ingest(shop, out=tmp_path / f"{name}-a", label="y", task=task, active="rest", active_name="shop", **agreed)
        ingest(ads, out=tmp_path / f"{name}-b", passive={"ads": "rest"}, **{**agreed, **settings})
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}-a/shop").rename(tmp_path / name / "shop")
        (tmp_path / f"{name}-b/ads").rename(tmp_path / name / "ads")
        return tmp_path / name

    data = open_tables(joined("well", table()))
    assert (data.name, data.task, data.classes, data.active.name) == ("well", task, 2, "shop")
    assert torch.equal(data.active.train.ids, data["ads"].train.ids)

    with pytest.raises(DataError, match="ads and shop did not agree on the kind of ids, the split seed"):
        open_tables(joined("badly", table(), split_seed=1))
    with pytest.raises(DataError, match="expected the ids of shop, in their order"):
        open_tables(joined("backwards", table().take(list(range(ROWS))[::-1])))
    with pytest.raises(DataError, match="expected rows"):
        open_tables(joined("fewer", table().slice(1)))


def test_records_for_prediction_are_opened_without_labels(tmp_path: Path) -> None:
    old_tables(tmp_path)
    new = write(tmp_path / "new.csv", table().drop_columns(["y"]))

    ingest_like(new, out=tmp_path / "new", like=tmp_path / "old")
    data = open_tables(tmp_path / "new")

    assert (data.active.train.count, data.active.test.count) == (0, ROWS)
    assert data.active.test.labels is None


def test_numbers_that_are_categories_are_taken_by_their_value(tmp_path: Path) -> None:
    cells = pa.array([1.5, float("nan"), -0.0, None, 0.0, -2.0] * 10)
    content = pa.table({"y": [0, 1] * 30, "part": ["train"] * 48 + ["test"] * 12, "c": cells})
    path = write(tmp_path / "t.parquet", content)

    ingest(path, out=tmp_path / "tables", label="y", split_column="part", active="c", categorical_columns="c")

    codes = np.load(tmp_path / "tables/active/test.codes.npy", allow_pickle=False)
    # −2, 0 and 1.5 have the codes 1, 2 and 3; NaN is a missing value, and the last.
    assert codes.ravel().tolist() == [3, 4, 2, 4, 2, 1] * 2


def test_a_disk_without_room_is_noticed_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.csv", table())
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10_000))

    with pytest.raises(DataError, match="nothing was written"):
        ingest(path, out=tmp_path / "tables", label="y", missing="indicator", **PARTIES)
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


def test_a_partys_folder_says_nothing_of_the_other(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table())

    ingest(path, out=tmp_path / "tables", label="y", missing="indicator", **PARTIES)

    text = b"".join(file.read_bytes() for file in (tmp_path / "tables/ads").iterdir())
    assert not any(name in text for name in (b"shop", b'"n1"', b'"y"'))
    assert {file.name for file in (tmp_path / "tables/shop").iterdir()} == {
        "schema.json",
        *(f"{part}.{name}.npy" for part in ("train", "test") for name in ("ids", "numeric", "codes", "labels")),
    }


@pytest.mark.parametrize("secret", [None, b"a key of many bytes"])
def test_fields_are_hashed_by_the_formula(secret: bytes | None, tmp_path: Path) -> None:
    cells = table()
    path = write(tmp_path / "t.parquet", cells)
    settings: dict[str, Any] = {
        "label": "y",
        "missing": "indicator",
        "categorical_columns": "c2",
        "hash_secret": secret,
    }

    ingest(path, out=tmp_path / "tables", buckets=9, hash_fields="c2, c3", split_column="part", **settings, **PARTIES)

    data = open_tables(tmp_path / "tables")["ads"]
    assert data.field_names == ("c1", "c2", "c3")
    assert data.field_sizes[1:] == (11, 11)
    tested = np.array(cells["part"].to_pylist()) == "test"
    for position, name in ((1, "c2"), (2, "c3")):
        texts = ["" if cell is None else str(cell) for cell in cells[name].to_pylist()]
        codes = bucket_codes(texts, column=name, key=hash_key(secret), buckets=9)
        codes[np.array([cell is None for cell in cells[name].to_pylist()])] = 10
        np.testing.assert_array_equal(data.test.columns.categorical[:, position], codes[tested])
    written = b"".join(file.read_bytes() for file in (tmp_path / "tables").rglob("*") if file.is_file())
    assert hash_key(secret).hex().encode() not in written
    assert secret is None or secret not in written


def test_a_look_that_learns_nothing_reads_ids_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.csv", table())
    ingest(path, out=tmp_path / "old", label="y", id_column="id", missing="indicator", **PARTIES)
    ingest(path, out=tmp_path / "unnamed", label="y", missing="indicator", **PARTIES)
    asked: list[set[str]] = []
    read = survey.chunks
    monkeypatch.setattr(
        survey, "chunks", lambda sources, types, **how: asked.append({*types}) or read(sources, types, **how)
    )

    ingest_like(path, out=tmp_path / "new", like=tmp_path / "old")
    ingest_like(path, out=tmp_path / "numbered", like=tmp_path / "unnamed")

    assert asked[0] == {"id"}
    assert asked[1] > {"n1", "c1", "y"}  # rows are counted as a file shows them


def test_columns_are_scaled_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table())

    ingest(
        path,
        out=tmp_path / "tables",
        label="y",
        missing="indicator",
        scale="none",
        scale_columns={"log1p": "n3", "minmax": ["n1"]},
        **PARTIES,
    )

    scales = {
        encoder.column: getattr(encoder, "scale", None)
        for encoder in read_party_schema(tmp_path / "tables/shop").encoders
    }
    assert scales == {"n1": "minmax", "n2": "none", "n3": "log1p", "n4": "none"}


def test_later_files_are_encoded_as_earlier_ones(tmp_path: Path) -> None:
    cells = table()
    settings: dict[str, Any] = {"label": "y", "missing": "indicator", "categorical_columns": "c2,t", "id_column": "id"}
    settings |= {"drop": "part", "buckets": 30, "hash_fields": "c3", "min_count": 2}
    ingest(write(tmp_path / "t.csv", cells), out=tmp_path / "old", **settings, **PARTIES)
    tested = are_tested(np.array(cells["id"]), seed=0, fraction=0.1)
    later = cells.filter(pa.array(tested))
    strange = pa.array(["never seen", *later["c1"].to_pylist()[1:]])
    later = later.set_column(later.column_names.index("c1"), "c1", strange)

    report = ingest_like(write(tmp_path / "later.csv", later), out=tmp_path / "new", like=tmp_path / "old")

    old, new = parts_of(open_tables(tmp_path / "old")), parts_of(open_tables(tmp_path / "new"))
    for name in ("shop test ids", "shop test numeric", "ads test numeric", "shop test labels"):
        np.testing.assert_array_equal(new[name], old[name], err_msg=name)
    np.testing.assert_array_equal(new["ads test codes"][1:], old["ads test codes"][1:])
    assert new["ads test codes"][0, 0] == 0
    unknown = int((old["ads test codes"][1:, 0] == 0).sum()) + 1
    assert report.parties["ads"].unknown["c1"] == unknown
    assert report.rows == {"train": 0, "test": int(tested.sum())}
    assert (tmp_path / "new/ads/vocabulary.safetensors").read_bytes() == (
        tmp_path / "old/ads/vocabulary.safetensors"
    ).read_bytes()


def test_files_for_prediction_need_no_label(tmp_path: Path) -> None:
    ingest(write(tmp_path / "t.csv", table()), out=tmp_path / "old", label="y", missing="indicator", **PARTIES)
    unlabelled = write(tmp_path / "u.csv", table(seed=1).drop_columns(["y"]))

    report = ingest_like(unlabelled, out=tmp_path / "new", like=tmp_path / "old")

    assert report.positive_share is None
    assert not list((tmp_path / "new").rglob("*labels*"))
    # And files with labels may follow those.
    ingest_like(tmp_path / "t.csv", out=tmp_path / "newer", like=tmp_path / "new")


def old_tables(folder: Path, **settings: Any) -> Path:
    chosen: dict[str, Any] = {"label": "y", "missing": "indicator", "drop": "part", **settings}
    ingest(write(folder / "old.csv", table()), out=folder / "old", **chosen, **PARTIES)
    return folder / "old"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.drop_columns(["n2"]),
            r"t.parquet has no column 'n2', which the files .* before had; there are",
        ),
        (lambda t: t.append_column("n5", t["n1"]), r"t.parquet has 'n5', which the files .* before had not"),
        (lambda t: t.set_column(3, "n1", t["c1"]), r"'n1' of t.parquet holds text, and numbers in"),
        (lambda t: t.set_column(7, "c1", t["n1"]), r"'c1' of t.parquet holds numbers, and text in"),
        (lambda t: t.set_column(1, "y", pa.array([2] * ROWS)), r"t.parquet, row 0 \(from 0\), column 'y': 2.0 is none"),
    ],
)
def test_a_schema_that_changed_is_an_error(
    change: Callable[[pa.Table], pa.Table], message: str, tmp_path: Path
) -> None:
    old = old_tables(tmp_path)

    with pytest.raises(DataError, match=message):
        ingest_like(write(tmp_path / "t.parquet", change(table())), out=tmp_path / "new", like=old)

    assert not (tmp_path / "new").exists()


def test_tables_are_not_replaced_by_records_encoded_like_them(tmp_path: Path) -> None:
    old = old_tables(tmp_path)

    with pytest.raises(DataError, match="cannot be replaced by records that are encoded like its own"):
        ingest_like(tmp_path / "old.csv", out=tmp_path / "." / "x" / ".." / old.name, like=old, overwrite=True)


def test_another_key_than_before_is_an_error(tmp_path: Path) -> None:
    old = old_tables(tmp_path, buckets=5, hash_secret=b"0123456789abcdef")

    with pytest.raises(DataError, match="was hashed with another key"):
        ingest_like(tmp_path / "old.csv", out=tmp_path / "new", like=old)
    ingest_like(tmp_path / "old.csv", out=tmp_path / "new", like=old, hash_secret=b"0123456789abcdef")


@pytest.mark.parametrize("damage", ["vocabulary", "schema", "version"])
def test_damaged_tables_are_an_error(damage: str, tmp_path: Path) -> None:
    old = old_tables(tmp_path)
    if damage == "vocabulary":
        path = old / "ads/vocabulary.safetensors"
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path = old / "ads/schema.json"
        schema = json.loads(path.read_bytes())
        schema[damage if damage == "version" else "rows"] = 99
        path.write_text(json.dumps(schema))

    with pytest.raises(DataError, match=f"{path.name} (is damaged|has version 99, expected 1|cannot be read)"):
        ingest_like(tmp_path / "old.csv", out=tmp_path / "new", like=old)


def lines(path: Path, *rows: str, header: str = "id,y,n,c") -> Path:
    path.write_text("\n".join([header, *rows, ""]))
    return path


GOOD = tuple(f"{number},{number % 2},{number}.5,x" for number in range(60))


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ((*GOOD, "7,1,1.5,x"), {}, r"t.csv, line 62, column 'id': id '7' is there already in t.csv, line 9"),
        ((*GOOD, ",1,1.5,x"), {}, r"t.csv, line 62, column 'id': there is no id"),
        (
            (*GOOD, "99,1,,x"),
            {"missing": "error"},
            r"t.csv, line 62, column 'n': there is no value; missing='indicator'",
        ),
        ((*GOOD, "99,1,inf,x"), {}, r"t.csv, line 62, column 'n': expected a finite number, got inf"),
        (
            (*GOOD, "99,1,1e60,x"),
            {"scale": "none", "active": "c", "passive": {"ads": "n"}},
            r"t.csv, line 62, column 'n': 1e\+60 is too large for float32",
        ),
        ((*GOOD, "99,,1.5,x"), {}, r"t.csv, line 62, column 'y': there is no label"),
        ((*GOOD, "99,2,1.5,x"), {}, r"label column 'y' holds 0, 1, 2; a binary task needs 0 and 1"),
        ((*GOOD * 9, "99,1,word,x"), {}, r"t.csv, line 542, column 'n': expected a number, .*, got 'word'"),
        ((*GOOD, "99,1,word,x"), {}, r"t.csv, line 62, column 'n': 'word' among numbers"),
        ((*GOOD, "99,1,1.5"), {}, r"t.csv, line 62: expected 4 cells as in the header, got 3"),
        (
            [f"{number},{number % 2},,x" for number in range(60)],
            {},
            r"column 'n' has no value in any of \d+ training rows",
        ),
        (
            [f"{number},{number % 2},{(-1) ** number}e200,x" for number in range(60)],
            {},
            r"column 'n' holds values too large to be scaled \(-1e\+200 to 1e\+200\); try scale log1p",
        ),
        ((), {}, "t.csv has a header and no rows"),
        (GOOD[:2], {}, "no test record among 2"),
        (GOOD, {"label": "why"}, r"no column 'why' in t.csv, which should be the label; did you mean 'y'|there are"),
        (GOOD, {"passive": {}}, "no party claims 'c'"),
        (GOOD, {"passive": {"ads": "nothing*"}}, r"no column 'nothing\*' in t.csv"),
        (GOOD, {"active": "n, c"}, "passive party 'ads' is left without a column"),
        (GOOD, {"split_column": "c", "passive": {}}, "split column 'c': all 60 rows are training rows"),
        (GOOD, {"label": "c", "active": "n, y", "passive": {}, "task": "regression"}, "label column 'c' holds text;"),
        (GOOD, {"positive": "yes"}, "expected a number as in the column, got 'yes'"),
        (GOOD, {"categorical_columns": "c9"}, "no column 'c9' in t.csv"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    rows: tuple[str, ...], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = lines(tmp_path / "t.csv", *rows)
    chosen: dict[str, Any] = {"label": "y", "id_column": "id", "active": "n", "passive": {"ads": "rest"}}

    with pytest.raises(DataError, match=message):
        ingest(path, out=tmp_path / "tables", **{"missing": "indicator", **chosen, **settings})

    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


def test_two_texts_with_one_hash_are_told_from_a_repeated_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lines(tmp_path / "t.csv", *(f"id{row}" for row in GOOD))
    monkeypatch.setattr("splitvfl.data.id_column.text_ids", lambda values: np.array([int(v[2:]) // 2 for v in values]))

    with pytest.raises(
        DataError, match=r"line 3, column 'id': 'id1' has the same 63-bit hash as 'id0' in t.csv, line 2"
    ):
        ingest(path, out=tmp_path / "tables", label="y", id_column="id", active="rest")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": None}, "the active party 'active' holds the labels"),
        ({"label": None, "active": None}, "got neither"),
        ({"passive": {"active": "c"}}, "the active party's name and a passive party's"),
        ({"passive": {"../out": "c"}}, "of up to 100 letters, digits, _ and -, got '../out'"),
        ({"passive": {"schema.json": "c"}}, "of up to 100 letters, digits, _ and -, got 'schema.json'"),
        ({"passive": {"x" * 300: "c"}}, "of up to 100 letters, digits, _ and -, got 'xxx"),
        ({"scale": "log"}, "expected scale one of standard, minmax, log1p, none, got 'log'"),
        ({"missing": "drop"}, "expected missing one of"),
        ({"task": "ranking"}, "expected task one of"),
        ({"test_fraction": 1.0}, r"expected test_fraction in \(0, 1\), got 1.0"),
        ({"split_seed": -1}, "expected split_seed from 0"),
        ({"min_count": 0}, "expected min_count from 1"),
        ({"buckets": 0}, "expected buckets from 1"),
        ({"hash_fields": "c"}, "no number of buckets"),
        ({"id_column": "y"}, "column 'y' cannot be both"),
        ({"scale_columns": {"log1p": "n", "minmax": "n"}}, "cannot be scaled both"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "t.csv", *GOOD)

    with pytest.raises(ArgumentError, match=message):
        ingest(path, out=tmp_path / "tables", **{"label": "y", "active": "rest", **settings})


def test_nothing_is_left_wherever_it_is_interrupted(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table())
    moments: list[IngestStatus] = []
    chosen: dict[str, Any] = {"label": "y", "missing": "indicator", **PARTIES}
    ingest(path, out=tmp_path / "whole", progress=moments.append, **chosen)
    done = [moment.done for moment in moments]
    assert done == sorted(done)
    assert done[-1] == 1.0
    assert [moment.rows for moment in moments if moment.phase == "reading"][-1] == ROWS

    for stop in (0, len(moments) // 2 - 1, len(moments) // 2, len(moments) - 1):
        left = iter(range(stop + 1))

        def interrupt(status: IngestStatus, left: Any = left, stop: int = stop) -> None:
            if next(left) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ingest(path, out=tmp_path / "tables", progress=interrupt, **chosen)
        assert {file.name for file in tmp_path.iterdir()} == {"t.csv", "whole"}


def test_files_that_change_in_between_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table())

    def grow(status: IngestStatus) -> None:
        if status.phase == "writing" and status.rows < 50:
            path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[-1])

    with pytest.raises(DataError, match="the files had 400 rows, and another number at the second look"):
        ingest(path, out=tmp_path / "tables", label="y", missing="indicator", progress=grow, **PARTIES)
    assert not (tmp_path / "tables").exists()


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table())

    def digest(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setattr(csv_source, "BLOCK_BYTES", chunk)
        ingest(path, out=tmp_path / name / "tables", label="y", missing="indicator", scale="none", **PARTIES)
        files = sorted(file for file in (tmp_path / name).rglob("*.*") if file.is_file() and "npy" in file.name)
        return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        assert digest("a", 500, patch) == digest("b", 5000, patch)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_records_without_a_label_are_left_out_and_counted(suffix: str, tmp_path: Path) -> None:
    content, gaps = table(), np.arange(ROWS) % 40 == 3
    labels = pa.array(np.where(content["y"].to_numpy() == 1, "yes", "no"))
    whole = content.set_column(1, "y", labels).filter(pa.array(~gaps))
    blank = pa.array(np.where(gaps, " " if suffix == "csv" else None, labels.to_numpy(zero_copy_only=False)))
    gappy = content.set_column(1, "y", blank)
    settings: dict[str, Any] = {**PARTIES, "label": "y", "positive": "yes", "id_column": "id", "missing": "indicator"}

    found = ingest(write(tmp_path / f"t.{suffix}", gappy), out=tmp_path / "gappy", unlabelled="drop", **settings)
    expected = ingest(write(tmp_path / f"u.{suffix}", whole), out=tmp_path / "whole", **settings)

    assert (found.unlabelled, expected.unlabelled) == (10, 0)
    ours, theirs = (parts_of(open_tables(tmp_path / name)) for name in ("gappy", "whole"))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert "left out: 10" in open_tables(tmp_path / "gappy").description
    # Partners see which records are there, and that is made from labels.
    assert [open_tables(tmp_path / name).active.selected_by_label for name in ("gappy", "whole")] == [True, False]
    with pytest.raises(DataError, match=r"column 'y': there is no label \(see unlabelled\)"):
        ingest(tmp_path / f"t.{suffix}", out=tmp_path / "refused", **settings)


def test_one_party_alone_leaves_no_record_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table())

    with pytest.raises(ArgumentError, match=r"would keep these records, and see whose outcome is not known"):
        ingest(path, out=tmp_path / "out", active="n*", label="y", drop="c*", unlabelled="drop")
