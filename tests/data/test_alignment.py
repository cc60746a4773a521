"""The alignment folder: complete or not there, and of this file or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitvfl.data.alignment import Alignment, aligned_rows, read_alignment
from splitvfl.data.id_column import order_digest
from splitvfl.errors import DataError
from tests.tables import align_rows


def people(folder: Path, *cells: str) -> Path:
    path = folder / "people.csv"
    path.write_text("customer,age\n" + "".join(f"{cell},{number}\n" for number, cell in enumerate(cells)))
    return path


def written(folder: Path, path: Path, rows: list[int], ids: list[int], **changes: Any) -> Alignment:
    return align_rows(folder, path, rows=rows, ids=ids, **{"mode": "both", "padding": 0.0, **changes})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return people(tmp_path, "a", "b", "c", "d")


def test_what_is_written_is_read_again(tmp_path: Path, file: Path) -> None:
    made = written(tmp_path / "aligned" / "bank", file, [2, -1, 0], [5, 7, 8], mode="padded", padding=0.5)
    read = read_alignment(tmp_path / "aligned" / "bank")
    np.testing.assert_array_equal(read.rows, [2, -1, 0])
    np.testing.assert_array_equal(read.ids, [5, 7, 8])
    np.testing.assert_array_equal(read.real, [True, False, True])
    assert read.schema == made.schema
    assert (read.schema.role, read.schema.dummies, read.schema.records) == ("active", 1, 3)
    assert read.schema.digest == order_digest(np.array([5, 7, 8]))
    read.check_source(file)


def test_the_folder_is_its_owners_alone(tmp_path: Path, file: Path) -> None:
    written(tmp_path / "bank", file, [2, 0], [5, 7])
    assert (tmp_path / "bank").stat().st_mode & 0o777 == 0o700


def test_the_folder_holds_no_id_of_the_file(tmp_path: Path) -> None:
    file = people(tmp_path, "anna@example.org", "berta@example.org")
    written(tmp_path / "bank", file, [0, 1], [5, 7])
    for path in (tmp_path / "bank").iterdir():
        assert b"example.org" not in path.read_bytes()


def test_each_alignment_has_its_own_secret(tmp_path: Path, file: Path) -> None:
    one, two = (written(tmp_path / name, file, [0], [1]).schema.secret for name in ("one", "two"))
    assert one != two
    assert len(bytes.fromhex(one)) == 32


@pytest.mark.parametrize(
    ("cells", "counts"),
    [("abdc", "4 both times"), ("abce", "4 both times"), ("abc", "4 then, 3 now"), ("abcde", "4 then, 5 now")],
)
def test_a_changed_file_is_refused(tmp_path: Path, file: Path, cells: str, counts: str) -> None:
    alignment = written(tmp_path / "bank", file, [2, 0], [5, 7])
    people(tmp_path, *cells)
    with pytest.raises(DataError, match=rf"is not the one that was aligned.*\({counts}\).*align again"):
        alignment.check_source(file)
    with pytest.raises(DataError, match="align again"):
        aligned_rows(tmp_path / "bank", file)


def test_other_columns_may_change(tmp_path: Path, file: Path) -> None:
    alignment = written(tmp_path / "bank", file, [2, 0], [5, 7])
    file.write_text(file.read_text().replace(",1", ",100"))
    alignment.check_source(file)


def test_an_alignment_is_replaced_only_if_asked(tmp_path: Path, file: Path) -> None:
    written(tmp_path / "bank", file, [2, 0], [5, 7])
    with pytest.raises(DataError, match="holds aligned records already"):
        written(tmp_path / "bank", file, [1], [9])
    assert read_alignment(tmp_path / "bank").schema.records == 2
    written(tmp_path / "bank", file, [1], [9], overwrite=True)
    assert read_alignment(tmp_path / "bank").schema.records == 1


def test_another_folder_is_left_alone(tmp_path: Path, file: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="holds no aligned records; it is left alone"):
        written(tmp_path / "mine", file, [1], [9], overwrite=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_a_failure_leaves_nothing(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, schema: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("splitvfl.data.alignment.write_schema", full)
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path / "aligned" / "bank", file, [2, 0], [5, 7])
    assert list((tmp_path / "aligned").iterdir()) == []


def damage(folder: Path, **changes: Any) -> None:
    path = folder / "alignment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": "else"}, "belongs to something else"),
        ({"version": 2}, "has version 2, expected 1; align again"),
        ({"records": 3}, "rows.npy: expected 3 of int64"),
        ({"records": "x"}, "is damaged"),
        ({"digest": "0"}, "it is damaged: align again"),
        ({"dummies": 1}, "it is damaged: align again"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, file: Path, changes: dict[str, Any], complaint: str) -> None:
    written(tmp_path / "bank", file, [2, 0], [5, 7])
    damage(tmp_path / "bank", **changes)
    with pytest.raises(DataError, match=complaint):
        read_alignment(tmp_path / "bank")


@pytest.mark.parametrize("name", ["rows", "ids"])
@pytest.mark.parametrize("damaged", [b"", b"\x93NUMPY\x01\x00", None])
def test_a_damaged_array_is_refused(tmp_path: Path, file: Path, name: str, damaged: bytes | None) -> None:
    written(tmp_path / "bank", file, [2, 0], [5, 7])
    path = tmp_path / "bank" / f"{name}.npy"
    path.unlink() if damaged is None else path.write_bytes(damaged)
    with pytest.raises(DataError, match=f"{name}.npy cannot be read.*align again"):
        read_alignment(tmp_path / "bank")


def test_no_alignment_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected an alignment, as `splitvfl align` writes it"):
        read_alignment(tmp_path)


def test_rows_for_an_ingest_are_in_the_order_of_the_file(tmp_path: Path, file: Path) -> None:
    written(tmp_path / "bank", file, [3, -1, 0], [5, 7, 8], mode="padded", padding=0.5)
    rows = aligned_rows(tmp_path / "bank", file)
    np.testing.assert_array_equal(rows.kept, [True, False, False, True])
    np.testing.assert_array_equal(rows.row_ids, [8, 5])
    assert (rows.schema.party, rows.schema.role, rows.schema.id_column) == ("bank", "active", "customer")
