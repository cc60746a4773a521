"""One rule divides everything: the shard of an id is the same everywhere, and for good."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.data.id_column import Case
from splitvfl.data.sharding import HeldShards, check_shards, id_hashes, shard_numbers, shard_of
from splitvfl.errors import ArgumentError, ConfigError, DataError
from splitvfl.learning.batches import MOST_SHARDS

# Shards of 8, 1000 and 4096. Whoever changes one makes all shards that were ever written useless.
GOLDEN = {
    "7": (3, 243, 2459),
    "007": (1, 97, 3321),
    "-3": (7, 327, 3351),
    "0": (6, 278, 2918),
    "9007199254740993": (2, 858, 1986),
    "Zo\u00eb": (0, 944, 1688),
    "\u00c5ngstr\u00f6m": (3, 539, 3251),
    "ab-1": (5, 269, 933),
    "AB-1": (0, 328, 3464),
    "\u6771\u4eac": (2, 914, 1714),
}


def test_shards_are_those_of_all_versions() -> None:
    for position, shards in enumerate((8, 1000, 4096)):
        assert shard_of(id_hashes(GOLDEN), shards).tolist() == [found[position] for found in GOLDEN.values()]


@given(st.lists(st.text(), max_size=20), st.integers(1, MOST_SHARDS))
def test_a_shard_is_the_first_four_bytes_of_sha_256_modulo_their_number(names: list[str], shards: int) -> None:
    expected = [int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % shards for name in names]
    assert shard_of(id_hashes(names), shards).tolist() == expected


@pytest.mark.parametrize("shards", [0, -1, MOST_SHARDS + 1])
def test_other_numbers_of_shards_are_refused(shards: int) -> None:
    with pytest.raises(ArgumentError, match=f"expected 1 to 4096 shards, got {shards}"):
        check_shards(shards)
    with pytest.raises(ArgumentError, match="expected 1 to 4096 shards"):
        shard_of(id_hashes(["a"]), shards)


@pytest.mark.parametrize(
    ("spellings", "case"),
    [
        ((7, "7", " 7", "7\u00a0", np.int8(7)), "kept"),
        (("Zo\u00eb", "Zoe\u0308", "\tZo\u00eb "), "kept"),
        (("Stra\u00dfe", "STRASSE", "strasse"), "folded"),
        (("\u212b1", "\u00e51", "A\u030a1"), "folded"),
    ],
)
def test_what_align_takes_for_one_id_is_in_one_shard(spellings: tuple[Any, ...], case: Case) -> None:
    found = {shard_numbers(pa.array([spelling]), 4096, case=case).tolist()[0] for spelling in spellings}
    assert len(found) == 1


def test_what_align_takes_for_two_ids_is_in_two_shards() -> None:
    assert len(set(shard_numbers(["7", "007", "AB", "ab"], 4096).tolist())) == 4


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint64(), pa.string(), pa.large_string()])
def test_ids_come_in_arrays_of_any_kind(kind: pa.DataType) -> None:
    ids = pa.array([0, 7], pa.int64()).cast(kind)
    assert shard_numbers(ids, 8).tolist() == shard_numbers(pa.chunked_array([ids]), 8).tolist() == [6, 3]
    assert shard_numbers(np.array([0, 7]), 8).tolist() == [6, 3]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1.5, 2.0], r"id 0 \(from 0\): 1.5 is a fraction"),
        ([True], "expected ids that are whole numbers, text or UUIDs, got bool"),
        ([b"a", b"\xff"], r"id 1 \(from 0\): the bytes ff are no text"),
    ],
)
def test_ids_of_other_kinds_are_refused(ids: list[Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        shard_numbers(ids, 8)


@pytest.mark.parametrize("ids", [["a", None], ["a", ""], ["a", " "], [1, None]])
def test_ids_that_are_missing_are_named(ids: list[Any]) -> None:
    with pytest.raises(ArgumentError, match=r"id 1 \(from 0\) is missing or empty"):
        shard_numbers(ids, 8)


def test_held_shards_are_read_as_they_are_written() -> None:
    assert HeldShards.read("3/8") == HeldShards((3,), 8)
    assert HeldShards.read("0,3,7/8") == HeldShards((0, 3, 7), 8)
    assert str(HeldShards((0, 3), 8)) == "0,3 of 8"


@pytest.mark.parametrize("text", ["", "3", "3/", "/8", "3 of 8", "3/8/2", "-1/8", "a/8", "3,/8", "\u0663/8"])
def test_shards_that_are_written_otherwise_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="like 3/8 or 3,4/8, got"):
        HeldShards.read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8/8", "shards of 8 are numbered from 0 to 7, got 8"),
        ("0/0", "expected 1 to 4096 shards, got 0"),
        ("0/4097", "expected 1 to 4096 shards"),
        ("3,3/8", "ascending and each once, got 3,3"),
        ("4,3/8", "ascending and each once, got 4,3"),
    ],
)
def test_shards_that_there_are_none_of_are_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        HeldShards.read(text)


def ids_file(folder: Path, *ids: Any) -> Path:
    pq.write_table(pa.table({"customer": pa.array(ids)}), folder / "ids.parquet")
    return folder / "ids.parquet"


def test_records_are_checked_to_belong_to_their_shard(tmp_path: Path) -> None:
    HeldShards((3,), 8).check(ids_file(tmp_path, "7", " 7 "), "customer")
    HeldShards((3,), 8).check(ids_file(tmp_path, 7), "customer")
    HeldShards((1, 3), 8).check(ids_file(tmp_path, "7", "007"), "customer")
    HeldShards((5,), 8).check(ids_file(tmp_path, "AB-1"), "customer", case="folded")
    with pytest.raises(
        DataError,
        match=r"ids.parquet, row 1 \(from 0\), column 'customer': id '007' belongs to shard 1 of 8, .* of shard 3 of 8",
    ):
        HeldShards((3,), 8).check(ids_file(tmp_path, "7", "007"), "customer")
    with pytest.raises(DataError, match="'AB-1' belongs to shard 0 of 8"):
        HeldShards((5,), 8).check(ids_file(tmp_path, "AB-1"), "customer")
    with pytest.raises(DataError, match="no column 'client'"):
        HeldShards((3,), 8).check(ids_file(tmp_path, "7"), "client")
