"""Ids become the same at all parties, and what cannot be an id is named with its place."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.data.id_column import fingerprint, first_repeat, id_digest, normalised, read_digests
from splitvfl.data.id_rules import FIRST_RULE
from splitvfl.errors import DataError


def csv_file(folder: Path, *cells: str, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_text("customer,age\n" + "".join(f"{cell},1\n" for cell in cells), encoding="utf-8")
    return path


def parquet_file(folder: Path, cells: pa.Array, name: str = "people.parquet") -> Path:
    pq.write_table(pa.table({"customer": cells, "age": pa.array([1] * len(cells))}), folder / name)
    return folder / name


def names_in(path: Path, names: list[str], **settings: Any) -> bool:
    digests = read_digests(path, "customer", **settings)
    return [bytes(row) for row in digests] == [id_digest(name) for name in names]


def test_cells_of_csv_files_are_taken_as_they_are_written(tmp_path: Path) -> None:
    assert names_in(csv_file(tmp_path, "007", "7", "1e3", "NA", "true"), ["007", "7", "1e3", "NA", "true"])


def test_whole_numbers_are_in_decimal_wherever_they_stand(tmp_path: Path) -> None:
    names = ["-3", "0", "9007199254740993"]
    assert names_in(csv_file(tmp_path, *names), names)
    for kind in (pa.int64(), pa.decimal128(20, 0), pa.decimal128(22, 2)):
        assert names_in(parquet_file(tmp_path, pa.array([int(name) for name in names]).cast(kind)), names)
    assert names_in(parquet_file(tmp_path, pa.array([2**64 - 1], pa.uint64())), [f"{2**64 - 1}"])
    for floats in (pa.float16(), pa.float32(), pa.float64()):
        assert names_in(parquet_file(tmp_path, pa.array(np.array([7, -0.0, -3]), floats)), ["7", "0", "-3"])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_text_of_parquet_files_is_taken_alike(tmp_path: Path, kind: pa.DataType) -> None:
    assert names_in(parquet_file(tmp_path, pa.array(["a", "007", "ü"]).cast(kind)), ["a", "007", "ü"])


def test_blanks_and_unicode_forms_do_not_count(tmp_path: Path) -> None:
    assert names_in(csv_file(tmp_path, " Zo\u0308e ", "\u00a0x\u3000"), ["Z\u00f6e", "x"])


def test_case_counts_unless_it_is_folded(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "Anna", "STRASSE", "\u0130")
    assert names_in(path, ["Anna", "STRASSE", "\u0130"])
    assert names_in(path, ["anna", "strasse", "i\u0307"], case="folded")
    assert normalised("Straße", "folded") == "strasse"


@given(st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    for case in ("kept", "folded"):
        once = normalised(text, case)
        assert normalised(once, case) == once
        assert unicodedata.is_normalized("NFC", once)


def test_rows_go_on_from_file_to_file(tmp_path: Path) -> None:
    files = [csv_file(tmp_path, "a", "b"), csv_file(tmp_path, "c", name="more.csv")]
    assert [bytes(row) for row in read_digests(files, "customer")] == [id_digest(name) for name in "abc"]


def test_a_repeated_id_is_named_with_both_places(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "a", "b", "c", "b")
    with pytest.raises(
        DataError, match=r"people.csv, line 5, column 'customer': id 'b' is there .* people.csv, line 3"
    ):
        read_digests(path, "customer")


def test_an_id_that_is_repeated_once_normalised_is_named_as_it_is_written(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "Anna", "b", "anna")
    read_digests(path, "customer")
    with pytest.raises(DataError, match="id 'anna', which is 'Anna' once normalised, is there"):
        read_digests(path, "customer", case="folded")


@pytest.mark.parametrize("cell", ["", "  ", '""'])
def test_a_missing_id_is_named_with_its_place(tmp_path: Path, cell: str) -> None:
    with pytest.raises(DataError, match=r"people.csv, line 3, column 'customer': there is no id"):
        read_digests(csv_file(tmp_path, "a", cell), "customer")


def test_a_missing_number_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"people.parquet, row 1 \(from 0\), column 'customer': there is no id"):
        read_digests(parquet_file(tmp_path, pa.array([1, None])), "customer")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (pa.array([1.0, 2.5]), r"people.parquet, row 1 \(from 0\), column 'customer': 2.5 is a fraction"),
        (pa.array([1.0, None]), r"people.parquet, row 1 \(from 0\), column 'customer': there is no id"),
        (pa.array([1.0, 2.0**53]), r"row 1 .*9.0072e\+15 is too large to be exact as double"),
        (pa.array([1.0, 2.0**24], pa.float32()), r"row 1 .*1.67772e\+07 is too large to be exact as float"),
        (pa.array([1, np.inf]), "row 1 .*inf is too large"),
        (pa.array([Decimal("1.00"), Decimal("1.25")]), "row 1 .*1.25 is a fraction"),
        (pa.array([b"k1", b"\xff\x00"]), "row 1 .*the bytes ff00 are no text in UTF-8"),
        (pa.array([True]), "id column 'customer' of people.parquet must hold whole numbers, text or UUIDs, and holds"),
        (pa.array([datetime(2026, 5, 4)]), "must hold whole numbers, text or UUIDs, and holds timestamp"),
    ],
)
def test_what_is_no_id(tmp_path: Path, cells: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_digests(parquet_file(tmp_path, cells), "customer")


def test_uuids_are_alike_in_any_case_and_type_and_other_text_is_not(tmp_path: Path) -> None:
    name = "123e4567-e89b-12d3-a456-426614174000"
    typed = pa.array([UUID(name)])
    assert str(typed.type) == "extension<arrow.uuid>"
    assert names_in(parquet_file(tmp_path, typed), [name])
    assert names_in(csv_file(tmp_path, f" {name.upper()} "), [name])
    assert names_in(csv_file(tmp_path, name.upper().replace("-", "")), [name.upper().replace("-", "")])
    assert normalised(name.upper(), rule=FIRST_RULE) == name.upper()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2)])
def test_bytes_are_what_they_are_in_utf_8(tmp_path: Path, kind: pa.DataType) -> None:
    assert names_in(parquet_file(tmp_path, pa.array([b"07", "ü".encode()]).cast(kind)), ["07", "ü"])


def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'custmer' in people.csv.*did you mean 'customer'"):
        read_digests(csv_file(tmp_path, "a"), "custmer")


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has a header and no rows"):
        read_digests(csv_file(tmp_path), "customer")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 3))
def test_the_first_repeat_is_a_repeat(values: list[int], words: int) -> None:
    rows = np.zeros((len(values), 8 * words), np.uint8)
    rows[:, -1] = values
    repeat = first_repeat(rows)
    assert (repeat is None) == (len(set(values)) == len(values))
    if repeat is not None:
        assert repeat[0] < repeat[1]
        assert values[repeat[0]] == values[repeat[1]]


def test_the_fingerprint_shows_order_and_content(tmp_path: Path) -> None:
    prints = [
        fingerprint(read_digests(csv_file(tmp_path, *cells), "customer"))
        for cells in (["a", "b"], ["b", "a"], ["a", "c"], [" a", "b "])
    ]
    assert len(set(prints[:3])) == 3
    assert prints[3] == prints[0]
