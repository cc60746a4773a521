"""Every record is in the shard that its id says, once, in the files' order, whatever form the files have."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import resource
import stat
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitvfl.data import arrow_source, csv_source, shard_writing
from splitvfl.data.id_column import read_digests
from splitvfl.data.shard_files import read_sharding, shard_file
from splitvfl.data.shard_writing import shard
from splitvfl.data.sources import infer_kinds, open_all
from splitvfl.data.store import open_tables
from splitvfl.errors import ArgumentError, DataError
from tests.tables import ingest

Row = Mapping[str, Any]


def as_rows(folder: Path, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(shard_file(folder, number)).to_pylist()
    return rows


def expected_shard(name: str, shards: int, *, fold: bool = False) -> int:
    """What the rule says, by nothing of the project's."""
    text = unicodedata.normalize("NFC", name)
    text = unicodedata.normalize("NFC", text.casefold()).strip() if fold else text.strip()
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % shards


def csv_text(rows: Sequence[Row], *, delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, quoting=csv.QUOTE_MINIMAL)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def write_file(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows in the form that the name says."""
    if path.suffix in (".parquet", ".arrow"):
        table = pa.Table.from_pylist(list(rows))
        if path.suffix == ".arrow":
            pyarrow.feather.write_feather(table, path)
        else:
            pq.write_table(table, path)
        return path
    data = csv_text(rows, delimiter="\t" if ".tsv" in path.name else ",")
    if path.suffix == ".zst":
        with pa.output_stream(path, compression="zstd") as file:
            file.write(data)
    else:
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks, loads and row groups so small that a few rows are several of them."""
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 64)
    monkeypatch.setattr(arrow_source, "BATCH_ROWS", 7)
    monkeypatch.setattr(shard_writing, "LOAD_BYTES", 500)
    monkeypatch.setattr(shard_writing, "GROUP_ROWS", 5)


ENDINGS = (".csv", ".csv.gz", ".csv.zst", ".tsv", ".parquet", ".arrow")
# Ids that differ and are not empty once they are written as they are compared.
IDS = st.one_of(
    st.lists(st.integers(-(10**18), 10**18).map(str), min_size=1, max_size=40, unique=True),
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), min_size=1, max_size=6),
        min_size=1,
        max_size=40,
        unique_by=lambda text: unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).strip(),
    ).filter(lambda names: all(unicodedata.normalize("NFC", name).strip() for name in names)),
)


@given(IDS, st.integers(1, 9), st.sampled_from(ENDINGS), st.booleans(), st.integers(1, 3))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_is_once_in_its_shard_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    small_pieces: None,
    names: list[str],
    shards: int,
    ending: str,
    fold: bool,
    files: int,
) -> None:
    folder = tmp_path_factory.mktemp("f")
    rows = [{"place": place, "id": name, "word": f"w{name}"} for place, name in enumerate(names)]
    cuts = [rows[number::files] for number in range(files)]
    paths = [write_file(folder / f"{number}{ending}", cut) for number, cut in enumerate(cuts) if cut]
    in_order = [row for cut in cuts for row in cut]

    found = shard(paths, folder / "out", id_column="id", shards=shards, case="folded" if fold else "kept")

    expected: list[list[Row]] = [[] for _ in range(shards)]
    for row in in_order:
        expected[expected_shard(row["id"], shards, fold=fold)].append(row)
    # Whole numbers of a CSV file are numbers in the shards: the same ids to all parties.
    shown = [[{**row, "id": str(row["id"])} for row in as_rows(folder / "out", number)] for number in range(shards)]
    assert shown == expected
    assert found.sharding.records == tuple(map(len, expected))
    assert found.rows == len(rows)


def test_rows_keep_their_order_in_large_pieces_too(tmp_path: Path) -> None:
    rows = [{"id": f"c{number}", "place": number} for number in range(5000)]
    shard(write_file(tmp_path / "a.parquet", rows), tmp_path / "out", id_column="id", shards=2)
    for number in (0, 1):
        places = [row["place"] for row in as_rows(tmp_path / "out", number)]
        assert places == sorted(places)


def test_row_groups_are_cut_and_files_can_be_read_in_any_order(tmp_path: Path, small_pieces: None) -> None:
    path = write_file(tmp_path / "a.parquet", [{"id": number, "x": number / 3} for number in range(100)])
    shard(path, tmp_path / "out", id_column="id", shards=3)
    files = [pq.ParquetFile(shard_file(tmp_path / "out", number)) for number in range(3)]
    assert all(file.metadata.num_row_groups > 4 for file in files)
    assert all(file.metadata.row_group(0).num_rows <= 7 for file in files)


# Cells of CSV files whose looks deceive: numbers that become fractions late, text that looks like numbers in some rows,
# a column without a value for long.
DECEIVING = [
    {
        "id": number,
        "late": number if number < 150 else number + 0.5,
        "code": f"{number:03d}" if number % 3 else f"x{number}",
        "seldom": "" if number != 140 else 2.5,
        "truth": "true" if number % 2 else "false",
        "word": ["red", "green", "7"][number % 3],
        "label": number % 2,
    }
    for number in range(200)
]


@pytest.fixture
def deceived(tmp_path: Path, small_pieces: None) -> Path:
    return write_file(tmp_path / "deceiving.csv", DECEIVING)


def test_columns_have_one_type_in_all_shards_whatever_their_rows_look_like(deceived: Path, tmp_path: Path) -> None:
    found = shard(deceived, tmp_path / "out", id_column="id", shards=40)
    schemas = {str(pq.read_schema(shard_file(tmp_path / "out", number)).remove_metadata()) for number in range(40)}
    assert len(schemas) == 1
    assert {name: str(kind) for name, kind in found.types.items()} == {
        "id": "int64",
        "late": "double",
        "code": "string",
        "seldom": "double",
        "truth": "bool",
        "word": "string",
        "label": "int64",
    }
    # Columns that have no value in a shard, or only some that look like numbers, are still of their type.
    kinds = [
        infer_kinds(open_all(shard_file(tmp_path / "out", number)), list(found.types), text=()) for number in range(40)
    ]
    assert all(kind == kinds[0] for kind in kinds)
    rows = sorted((row for number in range(40) for row in as_rows(tmp_path / "out", number)), key=lambda row: row["id"])
    assert [row["code"] for row in rows] == [row["code"] for row in DECEIVING]
    assert [row["late"] for row in rows] == [row["late"] for row in DECEIVING]


def test_an_ingest_of_all_shards_is_that_of_the_files(deceived: Path, tmp_path: Path) -> None:
    shard(deceived, tmp_path / "out", id_column="id", shards=5)
    wanted = {
        "label": "label",
        "id_column": "id",
        "passive": {"shop": "rest"},
        "scale": "standard",
        "missing": "indicator",
        "drop": "seldom",
    }
    ingest(str(deceived), out=tmp_path / "whole", **wanted)
    ingest(str(tmp_path / "out" / "shard-*.parquet"), out=tmp_path / "parts", **wanted)
    whole, parts = (open_tables(tmp_path / name) for name in ("whole", "parts"))
    for one, other in ((whole.active, parts.active), (whole.passives["shop"], parts.passives["shop"])):
        for ours, theirs in ((one.train, other.train), (one.test, other.test)):
            order, again = (part.ids.argsort() for part in (ours, theirs))
            assert ours.ids[order].equal(theirs.ids[again])
            columns = [part.columns.rows(rows) for part, rows in ((ours, order), (theirs, again))]
            assert columns[0].numeric.equal(columns[1].numeric)
            assert columns[0].categorical.equal(columns[1].categorical)
            assert (ours.labels is None) or ours.labels[order].equal(theirs.labels[again])


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", " 2", "-3", "0"], "int64"),
        (["1", "007"], "string"),
        (["1", "+2"], "string"),
        (["1", "-0"], "string"),
        (["1", "0x1F"], "string"),
        (["1", "2.0"], "string"),
        (["1", "9223372036854775807"], "int64"),
        (["1", "9223372036854775808"], "string"),
        (["a", "b"], "string"),
        (["true", "false"], "string"),
        (["2020-01-01", "2020-01-02"], "string"),
    ],
)
def test_ids_of_csv_files_stay_what_align_takes_them_for(
    cells: list[str], kind: str, tmp_path: Path, small_pieces: None
) -> None:
    """The deceiving one comes in a late block."""
    first = [str(number) for number in range(100, 120)] if cells[0] == "1" else []
    names = [*first, *cells]
    path = write_file(tmp_path / "a.csv", [{"id": name, "x": 1} for name in names])
    found = shard(path, tmp_path / "out", id_column="id", shards=4)
    assert str(found.types["id"]) == kind
    ours = read_digests(
        [shard_file(tmp_path / "out", number) for number in range(4) if found.sharding.records[number]], "id"
    )
    assert {bytes(one) for one in ours} == {bytes(one) for one in read_digests(path, "id")}


def test_two_parties_records_meet_in_the_shard_of_one_number(tmp_path: Path) -> None:
    """Order, form and spelling differ; what align takes for equal is together."""
    rng = np.random.default_rng(0)
    people = [f"K\u00f6nig {number}" for number in range(60)] + [str(number) for number in range(60)]
    bank = [{"customer": f" {unicodedata.normalize('NFD', name)}", "age": 1} for name in people[20:]]
    shop = [{"client": f"{name}\u00a0", "city": "x"} for name in rng.permutation(people[:100])]
    numbers = [{"client": int(number), "city": "y"} for number in rng.permutation(60)]
    shard(write_file(tmp_path / "bank.csv", bank), tmp_path / "bank", id_column="customer", shards=8)
    shard(write_file(tmp_path / "shop.parquet", shop), tmp_path / "shop", id_column="client", shards=8)
    shard(write_file(tmp_path / "numbers.arrow", numbers), tmp_path / "numbers", id_column="client", shards=8)

    def digests(party: str, column: str) -> list[set[bytes]]:
        files = [shard_file(tmp_path / party, number) for number in range(8)]
        return [{bytes(one) for one in read_digests(file, column)} for file in files]

    ours, theirs, third = digests("bank", "customer"), digests("shop", "client"), digests("numbers", "client")
    assert sum(len(one & other) for one, other in zip(ours, theirs, strict=True)) == 80
    assert sum(len(one & other) for one, other in zip(ours, third, strict=True)) == 60
    assert sum(len(ours[one] & theirs[other]) for one in range(8) for other in range(8) if one != other) == 0


@pytest.mark.parametrize("case", ["kept", "folded"])
def test_letter_case_counts_as_agreed(case: Any, tmp_path: Path) -> None:
    upper = write_file(tmp_path / "a.csv", [{"id": f"AB{number}", "x": 1} for number in range(50)])
    lower = write_file(tmp_path / "b.csv", [{"id": f"ab{number}", "x": 1} for number in range(50)])
    for path in (upper, lower):
        shard(path, tmp_path / path.stem, id_column="id", shards=6, case=case)
    places = [
        {row["id"].lower(): number for number in range(6) for row in as_rows(tmp_path / name, number)}
        for name in ("a", "b")
    ]
    assert (places[0] == places[1]) == (case == "folded")


def test_columns_of_typed_files_keep_their_types_and_values(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array(range(20), pa.uint16()),
            "small": pa.array(range(20), pa.int8()),
            "day": pa.array(range(20), pa.date32()),
            "price": pa.array(range(20), pa.int64()).cast(pa.decimal128(20, 0)).cast(pa.decimal128(20, 2)),
            "half": pa.array(np.arange(20, dtype=np.float32) / 3),
            "list": pa.array([[number] * (number % 3) for number in range(20)]),
            "kind": pa.array(["a", None] * 10).dictionary_encode(),
            "view": pa.array(["b", None] * 10, pa.string_view()),
            "large": pa.array(["c", None] * 10, pa.large_string()),
            "none": pa.nulls(20),
        }
    )
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    found = shard(tmp_path / "a.arrow", tmp_path / "out", id_column="id", shards=2)
    rows = sorted((row for number in (0, 1) for row in as_rows(tmp_path / "out", number)), key=lambda row: row["id"])
    assert rows == table.to_pylist()
    kept = {"id", "small", "day", "price", "half", "list", "none"}
    assert all(found.types[name] == table.schema.field(name).type for name in kept)
    assert {str(found.types[name]) for name in ("kind", "view", "large")} == {"string"}


def test_types_of_several_files_are_reconciled_as_by_an_ingest(tmp_path: Path) -> None:
    one = pa.table({"id": pa.array([1, 2]), "x": pa.array([1, 2], pa.int32()), "y": pa.nulls(2), "t": ["a", "b"]})
    two = pa.table({"id": pa.array([3], pa.int32()), "x": pa.array([0.5]), "y": pa.array([3], pa.date32()), "t": ["c"]})
    pq.write_table(one, tmp_path / "1.parquet")
    pq.write_table(two, tmp_path / "2.parquet")
    found = shard(str(tmp_path / "*.parquet"), tmp_path / "out", id_column="id", shards=1)
    assert list(map(str, found.types.values())) == ["int64", "double", "date32[day]", "string"]
    assert [row["x"] for row in as_rows(tmp_path / "out", 0)] == [1.0, 2.0, 0.5]


def test_ids_that_are_numbers_in_one_file_and_text_in_another_are_text(tmp_path: Path) -> None:
    files = [
        write_file(tmp_path / "1.parquet", [{"id": 7, "x": 1}]),
        write_file(tmp_path / "2.csv", [{"id": "007", "x": 2}]),
        write_file(tmp_path / "3.parquet", [{"id": "b", "x": 3}]),
    ]
    shard(files, tmp_path / "out", id_column="id", shards=1)
    assert [row["id"] for row in as_rows(tmp_path / "out", 0)] == ["7", "007", "b"]


def test_text_stays_text_where_it_is_asked_for_and_columns_are_left_out(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", [{"id": 1, "zip": "01234", "day": "2020-01-01", "x": 1, "note": "n"}])
    with pytest.raises(DataError, match=r"column 'day' of a.csv holds .* dates"):
        shard(path, tmp_path / "out", id_column="id", shards=1)
    shard(path, tmp_path / "out", id_column="id", shards=1, text_columns="zip,da*,id", drop=["n*"])
    assert as_rows(tmp_path / "out", 0) == [{"id": "1", "zip": "01234", "day": "2020-01-01", "x": 1}]


def test_a_table_in_memory_and_a_file_without_a_header_are_divided(tmp_path: Path) -> None:
    shard(pa.table({"id": [1, 2, 3]}), tmp_path / "memory", id_column="id", shards=1)
    (tmp_path / "a.csv").write_text("1\n2\n3\n")
    shard(tmp_path / "a.csv", tmp_path / "file", id_column="id", shards=1, header=["id"])
    assert as_rows(tmp_path / "memory", 0) == as_rows(tmp_path / "file", 0) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_columns_may_be_called_what_is_written_beside_them(tmp_path: Path) -> None:
    rows = [{"id": number, "hash": f"h{number}", "row": -number} for number in range(30)]
    shard(write_file(tmp_path / "a.parquet", rows), tmp_path / "out", id_column="id", shards=2)
    found = [row for number in (0, 1) for row in as_rows(tmp_path / "out", number)]
    assert sorted(found, key=lambda row: row["id"]) == rows


@pytest.mark.parametrize(("shards", "case"), [(1, "kept"), (7, "kept"), (7, "folded")])
def test_an_id_that_is_there_twice_is_named_with_both_places(
    shards: int, case: Any, tmp_path: Path, small_pieces: None
) -> None:
    names = [f"c{number}" for number in range(60)]
    first = write_file(tmp_path / "a.csv", [{"id": name, "x": 1} for name in names])
    again = "C7" if case == "folded" else " c7"
    second = write_file(tmp_path / "b.csv", [{"id": name, "x": 1} for name in ["d", again]])
    with pytest.raises(
        DataError,
        match=rf"b.csv, line 3, column 'id': id '{again}', which is 'c7' .* already in a.csv, line 9; ids must",
    ):
        shard([first, second], tmp_path / "out", id_column="id", shards=shards, case=case)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]


@pytest.mark.parametrize("cell", ["", "  "])
def test_a_missing_id_is_named_with_its_place(cell: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", [{"id": name, "x": 1} for name in ("a", "b", cell)])
    with pytest.raises(DataError, match=r"a.csv, line 4, column 'id': there is no id"):
        shard(path, tmp_path / "out", id_column="id", shards=2)
    numbers = write_file(tmp_path / "b.parquet", [{"id": 1}, {"id": None}])
    with pytest.raises(DataError, match=r"b.parquet, row 1 \(from 0\), column 'id': there is no id"):
        shard(numbers, tmp_path / "out", id_column="id", shards=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.parquet"]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("id,x\n1,1\n", {"shards": 0}, "expected 1 to 4096 shards, got 0"),
        ("id,x\n1,1\n", {"shards": 4097}, "expected 1 to 4096 shards, got 4097"),
        ("id,x\n1,1\n", {"id_column": "ID"}, "no column 'ID' in a.csv.*did you mean 'id'"),
        ("id,x\n1,1\n", {"drop": "id"}, "'id' is the id column of a.csv"),
        ("id,x\n1,1\n", {"drop": "y"}, "no column 'y' in a.csv"),
        ("id,x\n1,1\n", {"text_columns": "y"}, "no column 'y' in a.csv"),
        ("id,x\n", {}, "a.csv has a header and no rows"),
        ("id\n", {}, "a.csv has a header and no rows"),
        ("id,x\n1,1\n2\n", {}, "a.csv, line 3: expected 2 cells"),
        (
            "id,x\n" + "".join(f"{row},{row}\n" for row in range(20)) + "20,two\n",
            {},
            "a.csv, line 22, column 'x': 'two' am",
        ),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    text: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises((ArgumentError, DataError), match=message):
        shard(tmp_path / "a.csv", tmp_path / "out", **{"id_column": "id", "shards": 2, **settings})
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_column_that_cannot_be_kept_is_named_before_a_row_is_read(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "odd": pa.nulls(1, pa.month_day_nano_interval())})
    with pytest.raises(
        DataError, match=r"column 'odd' holds month_day_nano_interval, which shards cannot: .* leave it"
    ):
        shard(table, tmp_path / "out", id_column="id", shards=2)


def test_shards_are_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", [{"id": 1, "x": 1}])
    before = os.umask(0)
    try:
        shard(path, tmp_path / "deep" / "out", id_column="id", shards=2)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "deep" / "out").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "deep" / "out").glob("*.parquet")} == {0o600}


def test_few_files_are_open_however_many_shards_there_are(tmp_path: Path, small_pieces: None) -> None:
    path = write_file(tmp_path / "a.parquet", [{"id": number, "x": 1} for number in range(900)])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, hard))
    try:
        found = shard(path, tmp_path / "out", id_column="id", shards=100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.rows == sum(found.sharding.records) == 900
    assert read_sharding(tmp_path / "out") == found.sharding


def test_earlier_shards_are_replaced_only_when_asked_and_nothing_else_ever(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", [{"id": number, "x": 1} for number in range(30)])
    shard(path, tmp_path / "out", id_column="id", shards=3)
    with pytest.raises(DataError, match="holds shards already"):
        shard(path, tmp_path / "out", id_column="id", shards=2)
    shard(path, tmp_path / "out", id_column="id", shards=2, overwrite=True)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "shard-0.parquet", "shard-1.parquet", "sharding.json",
    ]  # fmt: skip
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="exists and holds no shards; it is left alone"):
        shard(path, tmp_path / "mine", id_column="id", shards=2, overwrite=True)


def test_progress_goes_from_nothing_to_all(deceived: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, float]] = []
    shard(
        deceived,
        tmp_path / "out",
        id_column="id",
        shards=3,
        progress=lambda status: told.append((status.phase, status.rows, status.done)),
    )
    done = [share for _, _, share in told]
    assert done == sorted(done)
    assert done[-1] == pytest.approx(1.0)
    assert {phase: max(rows for one, rows, _ in told if one == phase) for phase, _, _ in told} == {
        "reading": 200, "dividing": 200, "writing": 200,
    }  # fmt: skip
