"""New records get the numbers that they would have got in training, and keep their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from splitvfl.data.encoding import FittedEncoding
from splitvfl.data.hashing import text_ids
from splitvfl.data.new_records import NewRecords, read_new_records
from splitvfl.data.party_file import PartyFile
from splitvfl.errors import DataError
from tests.tables import align_rows, load_party

HEADER = "customer,age,zip,bought"


def write(path: Path, rows: list[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.fixture
def trained(tmp_path: Path) -> PartyFile:
    rows = [f"c{number},{number % 17},{['012', '7', 'x'][number % 3]},{number % 2}" for number in range(60)]
    return load_party(
        write(tmp_path / "old.csv", rows), name="bank", role="active", label="bought", id_column="customer"
    )


def read(path: Path, encoding: FittedEncoding, **settings: Any) -> NewRecords:
    return read_new_records(path, **{"name": "bank", "role": "active", "encoding": encoding, **settings})


def test_training_records_read_as_new_ones_get_the_same_numbers(trained: PartyFile, tmp_path: Path) -> None:
    found = read(tmp_path / "old.csv", trained.encoding, id_column="customer")

    new, data = found.data.test, trained.data
    place = {number: row for row, number in enumerate(new.ids.tolist())}
    for part in (data.train, data.test):
        rows = torch.tensor([place[number] for number in part.ids.tolist()])
        assert torch.equal(new.columns.numeric[rows], part.columns.numeric)
    assert (found.data.numeric_names, found.data.column_names) == (data.numeric_names, data.column_names)
    assert (found.data.train.count, new.count, new.labels, new.real) == (0, 60, None, None)
    assert (found.name_column, found.names.to_pylist()) == ("customer", [f"c{number}" for number in range(60)])
    assert found.unknown == {}


def test_text_stays_text_in_a_file_where_it_looks_like_numbers(trained: PartyFile, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", ["c1,3,012,", "c2,4,7,", "c3,5,12,"])

    found = read(new, trained.encoding, id_column="customer")

    codes = found.data.test.columns.numeric[:, 1:].tolist()
    assert found.data.numeric_names[1:] == ("zip=012", "zip=7", "zip=x")
    assert codes == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert found.unknown == {"zip": 1}


def test_columns_that_were_not_trained_on_are_not_looked_at(trained: PartyFile, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", ["x,9,7"], header="more,age,zip")

    found = read(new, trained.encoding)

    assert (found.name_column, found.names.to_pylist(), found.data.test.ids.tolist()) == ("row", [0], [0])


def test_ids_are_alike_as_text_and_as_numbers(trained: PartyFile, tmp_path: Path) -> None:
    rows = {"number": [12, 7, -3], "text": ["12", "7", "-3"]}
    for kind, cells in rows.items():
        table = pa.table({"customer": cells, "age": [1, 2, 3], "zip": ["x", "x", "x"]})
        pyarrow.parquet.write_table(table, tmp_path / f"{kind}.parquet")
    csv = write(tmp_path / "new.csv", [f"{cell},1,x" for cell in rows["text"]], header="customer,age,zip")

    found = [
        read(path, trained.encoding, id_column="customer")
        for path in (tmp_path / "number.parquet", tmp_path / "text.parquet", csv)
    ]

    assert [one.data.test.ids.tolist() for one in found] == [[12, 7, -3]] * 3
    assert [one.names.to_pylist() for one in found] == [[12, 7, -3], ["12", "7", "-3"], ["12", "7", "-3"]]


def test_names_are_kept_as_they_stand_in_the_file(trained: PartyFile, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", ["007,1,x,", "7a,2,x,"])

    found = read(new, trained.encoding, id_column="customer")

    assert found.names.to_pylist() == ["007", "7a"]
    np.testing.assert_array_equal(found.data.test.ids, text_ids(["007", "7a"]))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ["c1,1,x,", "c2,2,x,", "c1,3,x,"],
            "row 2 (from 0), column 'customer': id 'c1' is there already in new.csv, row 0",
        ),
        (["c1,1,x,", ",2,x,"], "new.csv, row 1 (from 0), column 'customer': there is no id"),
        ([" 7,1,x,", "7,2,x,"], "row 1 (from 0), column 'customer': id '7', which is ' 7' once normalised, is there"),
        (["c1,old,x,"], "new.csv, line 2, column 'age': expected a number, got 'old'"),
    ],
)
def test_records_that_cannot_be_scored(trained: PartyFile, tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        read(write(tmp_path / "new.csv", rows), trained.encoding, id_column="customer")


def test_a_missing_id_column_is_named(trained: PartyFile, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape("no column 'custmer' in old.csv; did you mean 'customer'")):
        read(tmp_path / "old.csv", trained.encoding, id_column="custmer")


def align(folder: Path, file: Path, rows: list[int], **changed: Any) -> Path:
    return align_rows(folder / "aligned", file, rows=rows, ids=range(100, 100 + len(rows)), **changed).folder


def test_aligned_records_are_in_their_order_and_dummies_have_no_name(trained: PartyFile, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", ["a,1,x,", "b,2,7,", "c,3,012,", "d,4,x,"])
    whole = read(new, trained.encoding, id_column="customer").data.test.columns.numeric

    found = read(new, trained.encoding, aligned=align(tmp_path, new, [3, -1, 0, 1, -1]))

    test = found.data.test
    assert test.ids.tolist() == [100, 101, 102, 103, 104]
    assert test.real is not None
    assert test.real.tolist() == [True, False, True, True, False]
    assert torch.equal(test.columns.numeric[test.real], whole[torch.tensor([3, 0, 1])])
    assert found.names.to_pylist() == ["d", "a", "b"]
    held = test.columns.numeric[test.real].tolist()
    assert all(dummy in held for dummy in test.columns.numeric[~test.real].tolist())


def test_an_alignment_of_nothing_or_of_others_is_refused(trained: PartyFile, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", ["a,1,x,", "b,2,7,", "c,3,012,", "d,4,x,"])
    (tmp_path / "none").mkdir()

    with pytest.raises(DataError, match="bank has none of the aligned records"):
        read(new, trained.encoding, aligned=align(tmp_path / "none", new, [-1]))
    with pytest.raises(DataError, match="was aligned by telecom as the passive party"):
        read(new, trained.encoding, aligned=align(tmp_path, new, [0], party="telecom", role="passive"))
    write(new, ["a,1,x,", "b,2,7,"])
    with pytest.raises(DataError, match="records have changed"):
        read(new, trained.encoding, aligned=tmp_path / "aligned", name="telecom", role="passive")


def test_a_party_may_have_ids_alone(tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", ["a", "b"], header="customer")

    found = read(new, FittedEncoding(columns=()), id_column="customer")

    assert found.data.test.columns.numeric.shape == (2, 0)
    assert found.data.width == 0
