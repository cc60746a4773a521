from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from splitvfl.data.sources import read_table
from splitvfl.data.tables import column_of, did_you_mean, is_number, is_text, numbers
from splitvfl.errors import DataError

CSV = "age,job,income\n31,clerk,1.5\n,nurse,-2\n7,NA,NA\n"


def _file(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_csv_reads_as_pandas_reads_it(tmp_path: Path) -> None:
    path = _file(tmp_path, CSV)
    expected = pd.read_csv(path, keep_default_na=True)

    table = read_table(path)

    assert table.column_names == list(expected.columns)
    for name in ("age", "income"):
        np.testing.assert_array_equal(numbers(column_of(table, name, source="t")), expected[name].to_numpy(float))
    # Text stays text: "NA" may be a country.
    assert column_of(table, "job", source="t").to_pylist() == ["clerk", "nurse", "NA"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_header_tells_the_delimiter(tmp_path: Path, delimiter: str) -> None:
    path = _file(tmp_path, f'"a"{delimiter}"b"\n1{delimiter}2\n')

    assert read_table(path).to_pydict() == {"a": [1], "b": [2]}


def test_a_column_may_turn_from_whole_numbers_to_fractions_late(tmp_path: Path) -> None:
    # Beyond the megabyte that the reader looks at first.
    rows = ["123456"] * 300_000 + ["0.5"]

    table = read_table(_file(tmp_path, "x\n" + "\n".join(rows)))

    assert numbers(column_of(table, "x", source="t"))[[0, -1]].tolist() == [123456.0, 0.5]


def test_gzip_and_parquet_hold_the_same(tmp_path: Path) -> None:
    plain = read_table(_file(tmp_path, CSV))
    pyarrow.parquet.write_table(plain, tmp_path / "t.parquet", row_group_size=1)

    assert read_table(tmp_path / "t.parquet").equals(plain)
    assert read_table(_file(tmp_path, gzip.compress(CSV.encode()), "t.csv.gz")).equals(plain)


def test_dictionary_columns_become_text(tmp_path: Path) -> None:
    table = pa.table({"job": pa.array(["clerk", None, "clerk"]).dictionary_encode()})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")

    column = column_of(read_table(tmp_path / "t.parquet"), "job", source="t")

    assert is_text(column)
    assert column.to_pylist() == ["clerk", None, "clerk"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([1, None], pa.int8()), [1.0, np.nan]),
        (pa.array([True, False]), [1.0, 0.0]),
        (pa.array([np.nan, 0.25], pa.float32()), [np.nan, 0.25]),
        (pa.array([150, 25]).cast(pa.decimal128(22, 2)), [150.0, 25.0]),
        (pa.array([2**63 - 1]), [2.0**63]),
        (pa.nulls(2), [np.nan, np.nan]),
    ],
)
def test_numbers_of_every_type(values: pa.Array, expected: list[float]) -> None:
    assert is_number(values)
    np.testing.assert_array_equal(numbers(values), expected)


def test_dates_are_neither_numbers_nor_text() -> None:
    dates = pa.array([0], pa.date32())

    assert not is_number(dates)
    assert not is_text(dates)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "", "t.csv is empty; expected a header line and rows"),
        ("t.csv", "a,b\n", "t.csv has a header and no rows"),
        ("t.csv", "a,b,a\n1,2,3\n", "t.csv names more than one column 'a'"),
        ("t.csv", "a,b\n1,2\n3\n4,5,6\n", "t.csv, line 3: expected 2 cells as in the header, got 1"),
        ("t.csv", b"\xff\xfe,b\n1,2\n", "t.csv is UTF-16; expected UTF-8"),
        ("t.csv.gz", "a,b\n1,2\n", "t.csv.gz could not be read"),
        ("t.parquet", "a,b\n1,2\n", "t.parquet could not be read"),
        (
            "t.xlsx",
            "PK",
            "expected a file that ends in one of .arrow, .csv, .data, .feather, .parquet, .pq, .tsv, .txt (.gz and "
            ".zst after CSV), got t.xlsx",
        ),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        read_table(_file(tmp_path, content, name))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(DataError, match=re.escape(f"expected a CSV or Parquet file at {path}")):
            read_table(path)


def test_a_pattern_that_means_several_files(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        _file(tmp_path, CSV, name)

    assert read_table(tmp_path / "[a]*").num_rows == 3
    with pytest.raises(DataError, match=r"expected one file, got 'a.csv', 'b.csv'"):
        read_table(tmp_path / "*.csv")


def test_a_truncated_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table({"a": list(range(1000))}), path)
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(DataError, match=r"t\.parquet could not be read"):
        read_table(path)


def test_a_misspelt_column_gets_a_suggestion() -> None:
    table = pa.table({"AGE": [1], "PAY_0": [2]})

    with pytest.raises(DataError, match=re.escape("no column 'AGEE' in credit.parquet; did you mean 'AGE'?")):
        column_of(table, "AGEE", source="credit.parquet")
    assert did_you_mean("zzz", ["AGE", "PAY_0"]) == "; there are 'AGE', 'PAY_0'"
    assert did_you_mean("zzz", [f"x{i}" for i in range(14)]).endswith("'x11' and 2 more")


def test_only_what_is_not_used_yet_is_proposed() -> None:
    assert did_you_mean("AG", ["AGE", "AGES"]) == "; did you mean 'AGE'?"
    assert did_you_mean("AG", ["AGE", "AGES"], used={"AGE"}) == "; did you mean 'AGES'?"
    assert did_you_mean("AEG", ["AGE", "sex"], used={"AGE"}) == "; there are 'sex'"
    assert did_you_mean("AEG", ["AGE"], used={"AGE"}) == ""
