from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from splitvfl.data import arrow_source, csv_source, fitting
from splitvfl.data.ingest import statistics, survey
from splitvfl.data.ingest.plan import Hashing
from splitvfl.data.ingest.progress import IngestStatus
from splitvfl.data.ingest.run import ingest, ingest_shard
from splitvfl.data.ingest.shards import Shard, shard_statistics
from splitvfl.data.ingest.statistics import COUNTS_FILE, STATISTICS_FILE, ShardFolder
from splitvfl.data.schema import read_party_schema
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.store import open_tables
from splitvfl.errors import ArgumentError, DataError
from splitvfl.learning.batches import MOST_SHARDS
from tests.tables import align_rows

PARTIES = (PartyClaim("shop", "active", "n*"), PartyClaim("ads", "passive", "rest"))
ARRAYS = ("ids", "numeric", "codes", "labels")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 400)
    monkeypatch.setattr(arrow_source, "BATCH_ROWS", 7)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as Parquet, columns typed by what these rows hold, or as CSV."""
    table = pa.table({name: pa.array([row[name] for row in rows]) for name in sorted(rows[0])})
    (pyarrow.csv.write_csv if path.suffix == ".csv" else pq.write_table)(table, path)
    return path


def spec_of(source: object, **settings: Any) -> TableSpec:
    chosen: dict[str, Any] = {"label": "y", "id_column": "id", "missing": "indicator", "test_fraction": 0.3}
    return TableSpec(source=source, **chosen | settings)


def take(files: Sequence[Path], out: Path, *, parties: Sequence[PartyClaim] = PARTIES, **settings: Any) -> list[Path]:
    """Take the statistics of files as those of all shards, and return their folders."""
    hashing = settings.pop("hashing", None)
    folders = []
    for number, file in enumerate(files):
        folders.append(out / f"{number}")
        shard = Shard(number, len(files))
        shard_statistics(spec_of(file, **settings), parties, folders[-1], shard=shard, hashing=hashing)
    return folders


def told(folder: Path) -> bytes:
    """Return what a party's folder says of how cells became numbers."""
    schema = read_party_schema(folder)
    vocabulary = folder / "vocabulary.safetensors"
    kept = (schema.encoders, schema.label, schema.numeric_names, schema.field_names, schema.field_sizes, schema.agreed)
    return msgspec.json.encode(kept) + (vocabulary.read_bytes() if vocabulary.exists() else b"")


def arrays(folder: Path) -> dict[tuple[str, str], np.ndarray[Any, Any]]:
    found = {}
    for part in ("train", "test"):
        for name in ARRAYS:
            path = folder / f"{part}.{name}.npy"
            if path.exists():
                found[part, name] = np.load(path, allow_pickle=False)
    return found


def assert_equal_to_the_whole(whole: Path, shards: Sequence[Path]) -> None:
    """Compare tables of shards with those of one ingest of all, byte by byte and row by row."""
    for party in ("shop", "ads"):
        assert {told(shard / party) for shard in shards} == {told(whole / party)}
        expected, found = arrays(whole / party), [arrays(shard / party) for shard in shards]
        for part in ("train", "test"):
            ids = np.concatenate([shard[part, "ids"] for shard in found])
            row_of = {number: row for row, number in enumerate(expected[part, "ids"].tolist())}
            order = [row_of[number] for number in ids.tolist()]
            assert sorted(order) == list(range(len(row_of)))
            for kind, name in expected:
                together = np.concatenate([shard[kind, name] for shard in found])
                assert kind != part or together.tobytes() == expected[kind, name][order].tobytes(), (party, part, name)


CELLS = st.fixed_dictionaries(
    {
        "n1": st.one_of(
            st.none(), st.sampled_from([0.0, -0.0, 1 / 3, 5e-324, 1e9]), st.floats(-1e6, 1e6), st.integers(-9, 9)
        ),
        "n2": st.integers(0, 4),
        "n3": st.one_of(st.none(), st.integers(0, 3)),
        "c1": st.one_of(st.none(), st.sampled_from(["a", "b", "é", "", "NA"])),
        "c2": st.one_of(st.none(), st.integers(-2, 2), st.sampled_from([0.5, -0.0, 2.0])),
        "c3": st.one_of(st.none(), st.text("xy", min_size=1, max_size=2)),
    }
)
ROWS = st.lists(st.tuples(CELLS, st.integers(0, 2)), min_size=8, max_size=30)


@settings(max_examples=12)
@given(
    ROWS,
    st.sampled_from(["standard", "log1p", "minmax", "none"]),
    st.integers(1, 3),
    st.sampled_from([".parquet", ".csv"]),
    st.sampled_from([None, Hashing(buckets=5, fields="c2")]),
    st.sampled_from([1 << 16, 3]),
)
@pytest.mark.slow(reason="ingests tables of many kinds, each twice")
def test_shards_get_what_one_ingest_of_all_gives(
    divided: list[tuple[dict[str, Any], int]], scale: Any, min_count: int, suffix: str, hashing: Any, exact: int
) -> None:
    rows = [{"id": 7 * number - 30, "y": number % 2, **row} for number, (row, _) in enumerate(divided)]
    used = sorted({shard for _, shard in divided})
    wanted: dict[str, Any] = {"scale": scale, "min_count": min_count, "categorical_columns": "c2"}
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        folder = Path(scratch)
        patch.setattr(fitting, "EXACT_VALUES", exact)
        patch.setattr(survey, "COUNT_BUDGET", 200)
        spec = spec_of(write(folder / f"all{suffix}", rows), **wanted)
        files = [
            write(
                folder / f"{number}{suffix}",
                [row for row, (_, shard) in zip(rows, divided, strict=True) if shard == one],
            )
            for number, one in enumerate(used)
        ]
        (folder / "stats").mkdir()
        try:
            ingest(spec, PARTIES, folder / "whole", hashing=hashing)
        except DataError:
            with pytest.raises(DataError):
                sharded(files, take(files, folder / "stats", hashing=hashing, **wanted), folder)
            return
        folders = take(files, folder / "stats", hashing=hashing, **wanted)
        tables = sharded(files, folders, folder)
        assert_equal_to_the_whole(folder / "whole", tables)


def sharded(files: Sequence[Path], folders: Sequence[Path], out: Path) -> list[Path]:
    tables = []
    for number, file in enumerate(files):
        tables.append(out / f"tables-{number}")
        # Each is given the statistics in another order.
        order = [*folders[number:], *folders[:number]]
        ingest_shard(file, tables[-1], statistics=order)
    return tables


def test_other_tasks_splits_and_columns_in_another_order_come_to_the_same(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"customer {number}",
            "y": "yes" if number % 3 else "no",
            "part": "test" if number % 4 == 1 else "train",
            "n1": True if number % 3 == 0 else number / 3,
            "c2": 2**53 + number % 2 if number % 3 == 1 else 0.5,
            "c3": number % 2 == 0,
        }
        for number in range(60)
    ]
    wanted: dict[str, Any] = {"positive": "no", "split_column": "part", "categorical_columns": "c*"}
    (tmp_path / "stats").mkdir()
    files = []
    for number in range(3):
        table = pa.table({name: pa.array([row[name] for row in rows[number::3]]) for name in rows[0]})
        names = table.column_names if number == 0 else table.column_names[::-1]
        files.append(tmp_path / f"{number}.parquet")
        pq.write_table(table.select(names), files[-1])
    ingest(spec_of(files, **wanted), PARTIES, tmp_path / "whole")

    tables = sharded(files, take(files, tmp_path / "stats", **wanted), tmp_path)

    assert_equal_to_the_whole(tmp_path / "whole", tables)
    kinds = [encoder.kind for encoder in read_party_schema(tables[0] / "ads").encoders]
    assert kinds == ["number", "truth"]


def test_all_shards_together_need_training_and_test_rows(tmp_path: Path) -> None:
    rows = [{**row, "part": "train", "y": number // 3 % 2} for number, row in enumerate(ROWS_OF_THREE)]
    files = shards_of(tmp_path, rows)
    (tmp_path / "stats").mkdir()
    folders = take(files, tmp_path / "stats", split_column="part")

    with pytest.raises(DataError, match="split column 'part': all 90 rows are training rows"):
        ingest_shard(files[0], tmp_path / "tables", statistics=folders)

    write(files[2], [{**row, "part": "test"} for row in rows[2::3]])
    (tmp_path / "more").mkdir()
    folders = take(files, tmp_path / "more", split_column="part")
    tables = sharded(files, folders, tmp_path)
    counts = [open_tables(table).active for table in tables]
    assert [(party.train.count, party.test.count) for party in counts] == [(30, 0), (30, 0), (0, 30)]


# --- what is refused

ROWS_OF_THREE = [
    {
        "id": number,
        "y": number % 3 // 2,
        "n1": number / 7,
        "n2": None if number % 5 == 0 else number % 4,
        "c1": "abcdé"[number % 5] * (1 + number % 2),
        "c2": number % 6,
    }
    for number in range(90)
]
SETTINGS: dict[str, Any] = {"categorical_columns": "c2", "scale": "log1p", "min_count": 2}


def shards_of(folder: Path, rows: Sequence[dict[str, Any]] = ROWS_OF_THREE, suffix: str = ".parquet") -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [write(folder / f"shard-{number}{suffix}", rows[number::3]) for number in range(3)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three shards, and their statistics in ``stats``."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "stats").mkdir()
    take(shards_of(folder), folder / "stats", **SETTINGS)
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Path:
    """A copy of that folder for one test."""
    shutil.copytree(made, tmp_path / "work")
    return tmp_path / "work"


def encode(work: Path, *statistics: str | Path, shard: int = 0, **others: Any) -> None:
    """Ingest a shard by statistics in the folder; nothing may be left if it is refused."""
    try:
        ingest_shard(
            work / f"shard-{shard}.parquet",
            work / "tables",
            statistics=[work / one for one in statistics or ("stats",)],
            **others,
        )
    except (ArgumentError, DataError):
        assert not list(work.glob("*tables*"))
        raise


def retake(work: Path, out: str, *, number: int = 1, of: int = 3, source: int = 1, **settings: Any) -> None:
    """Take statistics anew, of the second shard unless it is said otherwise."""
    hashing = settings.pop("hashing", None)
    parties = settings.pop("parties", PARTIES)
    spec = spec_of(work / f"shard-{source}.parquet", **SETTINGS | settings)
    shutil.rmtree(work / out, ignore_errors=True)
    shard_statistics(spec, parties, work / out, shard=Shard(number, of), hashing=hashing)


def test_statistics_are_found_by_folder_pattern_and_name(work: Path) -> None:
    found = set()
    for wanted in (["stats"], ["stats/*"], ["stats/2", "stats/0", "stats/1"]):
        encode(work, *wanted)
        found.add(b"".join(told(work / "tables" / party) for party in ("shop", "ads")))
        shutil.rmtree(work / "tables")

    assert len(found) == 1


def test_missing_and_repeated_statistics_are_named(work: Path) -> None:
    with pytest.raises(DataError, match=r"the statistics of shard 1 of 3 \(from 0\) are missing"):
        encode(work, "stats/0", "stats/2")
    with pytest.raises(DataError, match=r"stats/1 and .*stats/1 are both of shard 1"):
        encode(work, "stats", "stats/1")
    with pytest.raises(DataError, match=r"expected statistics of shards at .*nothing, as"):
        encode(work, "stats", "nothing")
    retake(work, "stats/1", source=2)
    with pytest.raises(DataError, match=r"stats/1 and .*stats/2 are of the same records"):
        encode(work)
    retake(work, "stats/1", of=4)
    with pytest.raises(DataError, match=r"stats/1 is of one of 4 shards, and .*stats/0 of one of 3"):
        encode(work)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": "standard"}, "stats/1 was made with scale='standard', and .*stats/0 with scale='log1p'"),
        ({"missing": "error", "drop": "n2"}, "stats/1 was made with drop='n2', and .*stats/0 with no drop"),
        ({"min_count": 3}, "min_count=3, and .*min_count=2"),
        ({"split_seed": 5}, "split_seed=5, and .*split_seed=0"),
        ({"test_fraction": 0.2}, "test_fraction=0.2, and"),
        ({"categorical_columns": "c*"}, r"categorical_columns='c\*', and"),
        ({"scale_columns": {"minmax": "n1"}}, "minmax='n1', and .* with one scale for all"),
        ({"positive": 1.0}, "positive=1.0, and .* with no positive"),
        ({"ranges": {"n1": (0, 99), "n2": (0, 9)}}, "ranges of 'n1', 'n2', and .* with no ranges"),
        ({"hashing": Hashing(buckets=9)}, "buckets=9, and .* with no buckets"),
        (
            {"parties": (*PARTIES[:1], PartyClaim("us", "passive"))},
            r"us \(passive: rest\), and .*ads \(passive: rest\)",
        ),
        ({"label": None, "drop": "y", "parties": [PartyClaim("ads", "passive")]}, "no label, and .*label='y'"),
    ],
)
def test_statistics_of_other_settings_are_refused_by_the_setting(
    settings: dict[str, Any], message: str, work: Path
) -> None:
    retake(work, "stats/1", **settings)

    with pytest.raises(DataError, match=message):
        encode(work)


def test_secret_keys_must_be_the_same(work: Path) -> None:
    ours, other = (Hashing(buckets=50, secret=key * 16) for key in (b"k", b"o"))
    for number in range(3):
        retake(work, f"stats/{number}", number=number, source=number, hashing=ours)
    encode(work, hash_secret=b"k" * 16)
    ingest(
        spec_of([work / f"shard-{number}.parquet" for number in range(3)], **SETTINGS),
        PARTIES,
        work / "w",
        hashing=ours,
    )
    assert told(work / "tables/ads") == told(work / "w/ads")
    shutil.rmtree(work / "tables")
    kept = b"".join(path.read_bytes() for path in (work / "stats").rglob("*") if path.is_file())
    assert b"k" * 16 not in kept

    for wrong in (b"o" * 16, None):
        with pytest.raises(DataError, match=r"hashed with another key in .*stats/0; give the same key file"):
            encode(work, hash_secret=wrong)
    retake(work, "stats/1", hashing=other)
    with pytest.raises(DataError, match="stats/1 was made with the hash key of fingerprint"):
        encode(work, hash_secret=b"k" * 16)


def test_only_records_that_statistics_were_taken_of_are_encoded(work: Path) -> None:
    write(work / "shard-0.parquet", ROWS_OF_THREE[0:60:3])

    with pytest.raises(DataError, match=r"shard-0.parquet': none of the 3 statistics is of these records"):
        encode(work)
    write(work / "shard-0.parquet", [{**row, "n9": 1} for row in ROWS_OF_THREE[::3]])
    with pytest.raises(DataError, match=r"shard-0.parquet and the files of .*stats/0 do not both have 'n9'"):
        encode(work)
    write(work / "shard-0.parquet", [{**row, "n1": "x"} for row in ROWS_OF_THREE[::3]])
    with pytest.raises(DataError, match=r"column 'n1' of shard-0.parquet holds text"):
        encode(work)


def test_columns_are_those_of_all_shards(work: Path) -> None:
    write(work / "shard-1.parquet", [{**row, "n9": 1} for row in ROWS_OF_THREE[1::3]])
    retake(work, "stats/1")

    with pytest.raises(DataError, match=r"stats/1 is of files with 'n9', and .*stats/0 is not"):
        encode(work)


def test_text_in_one_shard_and_numbers_in_another_are_refused_by_name(work: Path) -> None:
    write(work / "shard-1.parquet", [{**row, "c1": number} for number, row in enumerate(ROWS_OF_THREE[1::3])])
    retake(work, "stats/1")

    with pytest.raises(
        DataError, match=r"'c1' holds text in .*stats/0, and whole numbers in .*stats/1; .*text_columns"
    ):
        encode(work)


def test_numbers_without_a_value_in_one_shard_are_missing_there(tmp_path: Path) -> None:
    rows = [{**row, "n2": None if number % 3 == 1 else 1.5} for number, row in enumerate(ROWS_OF_THREE)]
    files = shards_of(tmp_path, rows, ".csv")
    for missing, message in (("error", "column 'n2' of .*1 has no value in any row"), ("indicator", None)):
        (tmp_path / missing).mkdir()
        # A setting may name the column wherever it is empty.
        folders = take(files, tmp_path / missing, **SETTINGS, missing=missing, scale_columns={"minmax": "n2"})
        if message is not None:
            with pytest.raises(DataError, match=message):
                ingest_shard(files[0], tmp_path / "tables", statistics=folders)
    tables = sharded(files, folders, tmp_path)

    assert ShardFolder(folders[1]).statistics.blank == ("n2",)
    assert np.load(tables[1] / "shop/train.numeric.npy", allow_pickle=False)[:, 2].all()


# --- what is damaged, or made to do harm


def rewritten(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a folder says, and have its digest say so too."""
    path = folder / STATISTICS_FILE
    content = json.loads(path.read_bytes())
    change(content)
    path.write_bytes(msgspec.json.encode(content))
    try:
        told = msgspec.convert(content, statistics.ShardStatistics)
    except msgspec.ValidationError:
        return
    path.write_bytes(msgspec.json.encode({**content, "digest": statistics._digest(told)}))


def recounted(folder: Path, **arrays: Any) -> None:
    """Change tensors, and have the digests say so too; ``None`` removes one."""
    kept = load_file(folder / COUNTS_FILE) | {name.replace("_", "."): array for name, array in arrays.items()}
    save_file({name: array for name, array in kept.items() if array is not None}, folder / COUNTS_FILE)
    digest = hashlib.sha256((folder / COUNTS_FILE).read_bytes()).hexdigest()
    rewritten(folder, lambda content: content.update(counts_digest=digest))


@pytest.mark.parametrize("name", [STATISTICS_FILE, COUNTS_FILE])
def test_no_bit_may_be_another(name: str, work: Path) -> None:
    path = work / "stats/1" / name
    whole = path.read_bytes()
    for position in np.random.default_rng(0).integers(0, len(whole), 60).tolist():
        if whole[position : position + 1].isspace():  # between two tokens of JSON they mean nothing
            continue
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DataError, match="stats"):
            encode(work)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DataError, match=r"stats/1.* is damaged.*; take the shard's statistics anew|expected statistics"
    ):
        encode(work, "stats/0", "stats/1", "stats/2")
    path.unlink()
    with pytest.raises(DataError, match="stats/1"):
        encode(work, "stats/0", "stats/1", "stats/2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda told: told.update(version=2), "has version 2, expected 1"),
        (lambda told: told.update(format="other"), "belongs to something else"),
        (lambda told: told.update(more=1), "damaged"),
        (lambda told: told.update(training_rows=-1), "damaged"),
        (lambda told: told.update(training_rows=10**30), "damaged"),
        (lambda told: told.update(shard=3), "there is no shard 3 of 3"),
        (lambda told: told["sums"]["n1"].update(known=0), "the sums of column 'n1'"),
        (lambda told: told["sums"]["n1"].update(gaps=10**9), "the sums of column 'n1'"),
        (lambda told: told["sums"]["n1"].update(total="f" * 900), "the sums of column 'n1'"),
        (lambda told: told["sums"]["n1"].update(squares="-1"), "the sums of column 'n1'"),
        (lambda told: told["sums"]["n1"].update(total="f" * 2000), "damaged"),
        (lambda told: told["sums"]["n1"].update(total=None), "the sums of column 'n1'"),
        (lambda told: told["sums"]["n1"].update(low=1e9), "the sums of column 'n1'"),
        (lambda told: told["sums"]["n1"].update(low=None), "the sums of column 'n1'"),
        (lambda told: told["sums"]["n1"].update(level=None), "the sums of column 'n1'"),
        (lambda told: told["sums"]["n1"].update(level=99), "kept for the median of column 'n1'"),
        (lambda told: told["sums"]["n1"].update(different=10**9), "damaged"),
        (lambda told: told["sums"].pop("n1"), "the columns are not those"),
        (lambda told: told["counts"].update(c9={"missing": 0, "different": 0}), "the columns are not those"),
        (
            lambda told: told["counts"]["c1"].update(missing=5),
            "counts of column 'c1' are not those of its training rows",
        ),
        (lambda told: told["counts"]["c1"].update(different=10**11), "damaged"),
        (lambda told: told["kinds"].pop("c1"), "the columns are not those"),
        (lambda told: told["labels"].pop(), "the labels are not those"),
        (lambda told: told["labels"][0].__setitem__(1, -5), "the labels are not those"),
        (lambda told: told["settings"]["parties"][1].update(name="../out"), "damaged: expected a party's name"),
        (lambda told: told["settings"].update(min_count=0), "damaged: expected min_count from 1"),
        (lambda told: told["settings"].update(buckets=0), "damaged: expected buckets from 1"),
    ],
)
def test_what_was_made_to_do_harm_is_refused_by_its_place(
    change: Callable[[dict[str, Any]], object], message: str, work: Path
) -> None:
    for number in range(3):  # at all of them: else they would not be alike
        rewritten(work / f"stats/{number}", change)

    with pytest.raises(DataError, match=message):
        encode(work)


@pytest.mark.parametrize(
    "arrays",
    [
        {"c1_offsets": None},
        {"c1_counts": np.ones(3, np.int64)},
        {"c1_counts": np.ones(9, np.float64)},
        {"c1_counts": np.array([2**63 - 1] * 2 + [1] * 7)},
        {"c1_counts": np.array([-4] + [3] * 8)},
        {"c1_offsets": np.arange(10)[::-1].copy()},
        {"c1_offsets": np.array([-(2**40)] + [0] * 9)},
        {"c1_offsets": np.array([0] * 9 + [2**40])},
        {"c1_offsets": np.array([0] * 9 + [2**62])},
        {"c1_bytes": np.full(99, 0xFF, np.uint8)},
        # Arrow's offsets have 32 bits.
        {"c1_bytes": np.full(9, 97, np.uint8), "c1_offsets": np.array([0, 2**32 + 1, *range(2, 10)])},
        {"n1_values": np.full(20, np.nan)},
        {"n1_counts": np.zeros(20, np.int64)},
        {"n1_values": np.zeros((4, 5))},
    ],
)
def test_lists_that_are_none_are_refused(arrays: dict[str, Any], work: Path) -> None:
    rows = len(load_file(work / "stats/1" / COUNTS_FILE)["n1.values"])
    assert (rows, len(load_file(work / "stats/1" / COUNTS_FILE)["c1.counts"])) == (20, 9)
    recounted(work / "stats/1", **arrays)

    with pytest.raises(DataError, match=r"stats/1 is damaged: .*; take the shard's statistics anew"):
        encode(work)


def test_a_large_file_is_not_read(work: Path) -> None:
    os.truncate(work / "stats/1" / STATISTICS_FILE, (1 << 28) + 1)

    with pytest.raises(DataError, match=r"statistics\.json is larger than 256 MiB"):
        encode(work)


# --- how they are taken


def test_they_are_for_their_owner_only(made: Path) -> None:
    for folder in (made / "stats").iterdir():
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {path.name for path in folder.iterdir()} == {STATISTICS_FILE, COUNTS_FILE}
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


def test_they_do_not_depend_on_how_rows_are_cut_or_ordered(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_source, "BATCH_ROWS", 3)
    monkeypatch.setattr(survey, "COUNT_BUDGET", 100)
    monkeypatch.setattr(statistics, "_SLICE", 3)
    write(tmp_path / "shard-1.parquet", ROWS_OF_THREE[1::3][::-1])

    retake(tmp_path, "again")

    assert (tmp_path / "again" / COUNTS_FILE).read_bytes() == (made / "stats/1" / COUNTS_FILE).read_bytes()
    (ours, theirs) = (
        json.loads((one / STATISTICS_FILE).read_bytes()) for one in (tmp_path / "again", made / "stats/1")
    )
    assert {name for name in ours if ours[name] != theirs[name]} == {"digest", "records"}
    assert sum(int(counts.sum()) for _, counts in ShardFolder(tmp_path / "again").counts("c1")) == ours["training_rows"]


@pytest.mark.parametrize(
    ("settings", "shard", "message"),
    [
        ({"id_column": None, "drop": "id"}, Shard(0, 3), r"shards need a column that names the records \(id_column\)"),
        ({}, Shard(3, 3), "expected a shard from 0 to one below their number, .*, got 3 of 3"),
        ({}, Shard(0, 0), "got 0 of 0"),
        ({}, Shard(0, MOST_SHARDS + 1), "got 0 of 4097"),
        ({"categorical": "onehot"}, Shard(0, 3), "hold codes"),
    ],
)
def test_what_cannot_be_a_shard_is_refused(settings: dict[str, Any], shard: Shard, message: str, work: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        shard_statistics(spec_of(work / "shard-0.parquet", **settings), PARTIES, work / "new", shard=shard)


def test_an_id_that_comes_twice_in_a_shard_is_named(work: Path) -> None:
    write(work / "shard-1.parquet", [*ROWS_OF_THREE[1::3], ROWS_OF_THREE[4]])

    with pytest.raises(DataError, match=r"row 30 \(from 0\), column 'id': id 4 is there already in .*row 1"):
        retake(work, "stats/1")
    assert not (work / "stats/1").exists()


def test_nothing_is_left_wherever_it_is_interrupted(work: Path) -> None:
    moments: list[IngestStatus] = []
    encode(work, progress=moments.append)
    assert [moment.done for moment in moments] == sorted(moment.done for moment in moments)
    assert moments[-1].done == 1.0
    assert [(moment.rows, moment.done) for moment in moments if moment.phase == "merging"][-1] == (90, 0.5)
    before = {path.name for path in work.iterdir()}

    for phase in ("reading", "merging", "writing"):

        def interrupt(status: IngestStatus, phase: str = phase) -> None:
            if status.phase == phase:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            encode(work, progress=interrupt, overwrite=True)
        assert {path.name for path in work.iterdir()} == before
    shutil.rmtree(work / "stats/1")
    with pytest.raises(KeyboardInterrupt):
        shard_statistics(
            spec_of(work / "shard-1.parquet"),
            PARTIES,
            work / "stats/1",
            shard=Shard(1, 3),
            progress=lambda status: (_ for _ in ()).throw(KeyboardInterrupt()),
        )
    assert {path.name for path in (work / "stats").iterdir()} == {"0", "2"}


def test_only_statistics_are_replaced_and_only_when_asked(work: Path) -> None:
    encode(work)
    spec = spec_of(work / "shard-1.parquet", **SETTINGS)

    with pytest.raises(DataError, match="stats/1 holds statistics of a shard already"):
        shard_statistics(spec, PARTIES, work / "stats/1", shard=Shard(1, 3))
    with pytest.raises(DataError, match="tables exists and holds no statistics of a shard; it is left alone"):
        shard_statistics(spec, PARTIES, work / "tables", shard=Shard(1, 3), overwrite=True)
    shard_statistics(spec, PARTIES, work / "stats/1", shard=Shard(1, 3), overwrite=True)
    with pytest.raises(DataError, match="stats/1 exists and holds no tables"):
        ingest_shard(work / "shard-1.parquet", work / "stats/1", statistics=[work / "stats"], overwrite=True)


# --- two companies


def test_parties_that_ingest_shards_apart_are_compared_shard_by_shard(tmp_path: Path) -> None:
    whole = [{**row, "id": f"customer {row['id']}"} for row in ROWS_OF_THREE]
    parts: dict[str, Any] = {
        "shop": (("id", "y", "n1"), [PartyClaim("shop", "active")], {}),
        "ads": (("id", "c1", "n2"), [PartyClaim("ads", "passive")], {"label": None}),
    }
    for name, (columns, parties, others) in parts.items():
        (tmp_path / name).mkdir()
        files = shards_of(tmp_path / name, [{column: row[column] for column in columns} for row in whole])
        (tmp_path / name / "stats").mkdir()
        folders = take(files, tmp_path / name / "stats", parties=parties, **others)
        sharded(files, folders, tmp_path / name)

    for number in range(3):
        ours, theirs = (read_party_schema(tmp_path / name / f"tables-{number}" / name) for name in ("shop", "ads"))
        assert (ours.agreed, ours.id_fingerprints, ours.rows) == (theirs.agreed, theirs.id_fingerprints, theirs.rows)
        (tmp_path / f"{number}").mkdir()
        for name in ("shop", "ads"):
            (tmp_path / name / f"tables-{number}" / name).rename(tmp_path / f"{number}" / name)
        assert open_tables(tmp_path / f"{number}").active.train.count == ours.rows["train"]
    (tmp_path / "2/ads").rename(tmp_path / "2/theirs")
    (tmp_path / "1/ads").rename(tmp_path / "2/ads")
    shutil.rmtree(tmp_path / "2/theirs")
    with pytest.raises(DataError, match="expected"):
        open_tables(tmp_path / "2")


def test_aligned_shards_are_ingested_by_their_own_alignments(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"id_column": "customer", "missing": "indicator", "test_fraction": 0.4}
    parties = [PartyClaim("bank", "active", "rest")]
    shards = []
    for number in range(2):
        rows = [{"customer": 100 * number + row, "y": row % 2, "n1": (row + 0.5) ** number} for row in range(40)]
        file = write(tmp_path / f"{number}.parquet", rows)
        kept = list(range(number, 40, 2 + number))
        aligned = align_rows(tmp_path / f"aligned-{number}", file, rows=[*kept, -1], ids=range(len(kept) + 1))
        shards.append((file, aligned, [rows[row] for row in kept]))
        out = tmp_path / f"stats-{number}"
        shard_statistics(spec_of(file, **spec), parties, out, shard=Shard(number, 2), aligned=aligned)

    means = set()
    for number, (file, aligned, _) in enumerate(shards):
        out = tmp_path / f"tables-{number}"
        with pytest.raises(ArgumentError, match="taken with an alignment: name this shard's own"):
            ingest_shard(file, out, statistics=[tmp_path / "stats-*"])
        ingest_shard(file, out, statistics=[tmp_path / "stats-*"], aligned=aligned)
        schema = read_party_schema(out / "bank")
        assert sum(schema.dummies.values()) == 1
        means.add(schema.encoders[0])

    # New ids are given in the files' order, from 0: they say which of the kept rows are training rows.
    kept_rows = []
    for number, (_, _, rows) in enumerate(shards):
        trained = set(np.load(tmp_path / f"tables-{number}/bank/train.ids.npy", allow_pickle=False).tolist())
        kept_rows += [row["n1"] for place, row in enumerate(rows) if place in trained]
    (encoder,) = means
    assert encoder.offset == pytest.approx(np.mean(kept_rows), rel=1e-15)
