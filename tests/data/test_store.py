"""Table folders, opened: the same numbers as in memory, and what is wrong with a folder is said by file."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitvfl.data.columns import PartyData, Records, VerticalData
from splitvfl.data.load import load
from splitvfl.data.store import open_party, open_tables
from splitvfl.errors import ArgumentError, DataError
from tests.table_folders import click_data, write_tables

Change = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tables(tmp_path / "tables", click_data())


def assert_same_records(left: Records, right: Records) -> None:
    assert torch.equal(left.ids, right.ids)
    assert torch.equal(left.columns.numeric, right.columns.numeric)
    assert torch.equal(left.columns.categorical, right.columns.categorical)
    assert left.columns.categorical.dtype == torch.int32
    assert (left.labels is None) == (right.labels is None)
    if left.labels is not None and right.labels is not None:
        assert torch.equal(left.labels, right.labels)
        assert left.labels.dtype == right.labels.dtype


def assert_same_party(left: PartyData, right: PartyData) -> None:
    for name in ("name", "column_names", "numeric_names", "field_sizes", "field_names"):
        assert getattr(left, name) == getattr(right, name)
    assert_same_records(left.train, right.train)
    assert_same_records(left.test, right.test)


def assert_same_data(left: VerticalData, right: VerticalData) -> None:
    for name in ("name", "task", "classes", "description"):
        assert getattr(left, name) == getattr(right, name)
    assert list(left.passives) == list(right.passives)
    for name in (left.active.name, *left.passives):
        assert_same_party(left[name], right[name])


@pytest.mark.parametrize(("task", "classes"), [("binary", 2), ("multiclass", 5), ("regression", 1)])
def test_what_was_written_is_what_is_opened(tmp_path: Path, task: Any, classes: int) -> None:
    data = click_data(task=task, classes=classes)
    written = write_tables(tmp_path / "tables", data)

    assert_same_data(open_tables(written), data)
    assert_same_data(load("tables", path=written), data)


def test_a_part_without_records_can_be_opened(tmp_path: Path) -> None:
    data = click_data(test=0)

    assert_same_data(open_tables(write_tables(tmp_path / "tables", data)), data)


def test_a_partys_folder_is_enough_for_that_party(folder: Path, tmp_path: Path) -> None:
    alone = Path(shutil.move(folder / "publisher", tmp_path / "publisher"))
    shutil.rmtree(folder)

    assert_same_party(open_party(alone), click_data()["publisher"])


def test_rows_lie_in_the_file_until_they_are_asked_for(folder: Path) -> None:
    file = folder / "publisher" / "train.numeric.npy"
    numeric = open_tables(folder)["publisher"].train.columns.numeric
    with file.open("r+b") as stream:  # behind its back: a copy would not notice
        stream.seek(-4, 2)
        stream.write(np.float32(77.0).tobytes())

    assert numeric[-1, -1] == 77.0


def test_what_is_written_to_a_tensor_never_reaches_the_file(folder: Path) -> None:
    before = (folder / "shop" / "train.labels.npy").read_bytes()
    labels = open_tables(folder).active.train.labels
    assert labels is not None
    labels.fill_(5.0)

    assert (labels == 5.0).all()
    assert (folder / "shop" / "train.labels.npy").read_bytes() == before


def test_parties_are_chosen_and_ordered(folder: Path) -> None:
    data = open_tables(folder, parties={"bank": "passive", "shop": "active", "publisher": "passive"})
    assert list(data.passives) == ["bank", "publisher"]

    assert list(open_tables(folder, parties={"shop": "active", "bank": "passive"}).passives) == ["bank"]


@pytest.mark.parametrize(
    ("parties", "said"),
    [
        ({"shop": "active", "publsher": "passive"}, "holds no party 'publsher'; did you mean 'publisher'"),
        ({"shop": "passive", "bank": "active"}, "party 'shop' of .* was ingested as active, got passive"),
        ({"shop": "active"}, "active party and one passive party at least, got shop"),
        ({"bank": "passive", "publisher": "passive"}, "active party and one passive party at least, got bank, publ"),
    ],
)
def test_parties_that_cannot_be_chosen(folder: Path, parties: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        open_tables(folder, parties=parties)


def changed(file: str, **values: Any) -> Change:
    """Change values of a schema."""

    def change(folder: Path) -> None:
        schema = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**schema, **values}))

    return change


def resaved(file: str, make: Callable[[np.ndarray[Any, Any]], Any]) -> Change:
    """Save another array in its place."""
    return lambda folder: np.save(folder / file, make(np.load(folder / file)))


def cut(file: str, by: int) -> Change:
    def change(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[:-by] if by > 0 else data + bytes(-by))

    return change


def swapped_ids(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([ids[:7], ids[8:9], ids[7:8], ids[9:]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: [file.unlink() for file in folder.rglob("schema.json")], "tables; it has no schema.json"),
        (lambda folder: (folder / "bank" / "schema.json").unlink(), "tables/bank; it has no schema.json"),
        (lambda folder: (folder / "schema.json").write_text("{"), "tables/schema.json is damaged"),
        (changed("schema.json", version=2), "tables/schema.json has version 2, expected 1"),
        (changed("bank/schema.json", version=0), "bank/schema.json has version 0, expected 1"),
        (changed("schema.json", rows={"train": "many"}), r"tables/schema.json is damaged: .*\$.rows"),
        (changed("schema.json", parties=[]), "one active party and at least one passive party, got 0 and 0"),
        (
            changed("schema.json", parties=[{"name": "shop", "role": "active"}]),
            "one active party and at least one passive party, got 1 and 0",
        ),
        (
            changed("schema.json", parties=[{"name": "../x", "role": "active"}, {"name": "bank", "role": "passive"}]),
            "parties with different plain names",
        ),
        (
            changed("schema.json", parties=[{"name": "bank", "role": "active"}] * 2),
            "parties with different plain names",
        ),
        (changed("bank/schema.json", name="banque"), "bank/schema.json: expected name 'bank', .* got 'banque'"),
        (changed("bank/schema.json", role="active"), "bank/schema.json: expected role 'passive', .* got 'active'"),
        (
            changed("bank/schema.json", rows={"train": 599, "test": 200}),
            "bank/schema.json: expected rows {'train': 600.*got {'train': 599",
        ),
        (changed("bank/schema.json", task="regression"), "bank/schema.json: expected task 'binary'"),
        (changed("shop/schema.json", label=None), "shop/schema.json: the files were ingested without labels"),
        (changed("bank/schema.json", field_sizes=[7, 7]), "a size from 1 for each of 1 fields, got .7, 7."),
        (changed("bank/schema.json", field_sizes=[0]), "a size from 1 for each of 1 fields, got .0."),
        (
            lambda folder: (folder / "bank" / "train.codes.npy").unlink(),
            "bank/train.codes.npy cannot be read: there is no such file",
        ),
        (
            lambda folder: (folder / "bank" / "train.codes.npy").write_text("codes"),
            "bank/train.codes.npy is damaged",
        ),
        (
            cut("publisher/train.numeric.npy", 4),
            r"train.numeric.npy is damaged: expected 9728 bytes, got 9724",
        ),
        (
            cut("publisher/train.numeric.npy", -4),
            r"train.numeric.npy is damaged: expected 9728 bytes, got 9732",
        ),
        (
            resaved("publisher/test.numeric.npy", lambda array: array.astype(np.float64)),
            "publisher/test.numeric.npy: expected float32 of shape .200, 4., .* got float64",
        ),
        (
            resaved("publisher/test.numeric.npy", lambda array: array.astype(">f4")),
            "publisher/test.numeric.npy: expected float32 .* got >f4",
        ),
        (
            resaved("publisher/test.numeric.npy", np.asfortranarray),
            "publisher/test.numeric.npy: expected .* got float32 of shape .200, 4., column by column",
        ),
        (
            resaved("publisher/test.codes.npy", lambda array: array[:, :1]),
            "publisher/test.codes.npy: expected int32 of shape .200, 2., .* got int32 of shape .200, 1.",
        ),
        (
            resaved("shop/train.labels.npy", lambda array: array.astype(np.int64)),
            "shop/train.labels.npy: expected float32 of shape .600,., .* got int64",
        ),
        (
            resaved("bank/train.ids.npy", swapped_ids),
            r"bank/train.ids.npy: expected the ids of shop, in their order, got .* in row 7 \(from 0\)",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_by_file(folder: Path, change: Change, said: str) -> None:
    change(folder)

    with pytest.raises(DataError, match=said):
        open_tables(folder)


def test_ids_are_compared_to_the_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitvfl.data.store._PIECE", 64)
    resaved("publisher/test.ids.npy", lambda ids: np.append(ids[:-1], ids[-1] + 1))(folder)

    with pytest.raises(DataError, match=r"publisher/test.ids.npy: .* in row 199 \(from 0\)"):
        open_tables(folder)


def test_a_pickle_in_place_of_an_array_is_not_opened(folder: Path) -> None:
    np.save(folder / "bank" / "train.codes.npy", np.array([{}] * 600, object), allow_pickle=True)

    with pytest.raises(DataError, match=r"bank/train.codes.npy is damaged: it holds something else than numbers"):
        open_tables(folder)


def test_large_arrays_may_lie_elsewhere_behind_links_and_what_describes_them_may_not(folder: Path) -> None:
    kept = folder.parent / "disk"
    kept.mkdir()
    expected = open_tables(folder)["bank"].train.columns.categorical.clone()
    array = folder / "bank" / "train.codes.npy"
    array.rename(kept / "codes.npy")
    array.symlink_to(kept / "codes.npy")
    assert torch.equal(open_tables(folder)["bank"].train.columns.categorical, expected)

    (folder / "bank" / "schema.json").rename(kept / "schema.json")
    (folder / "bank" / "schema.json").symlink_to(kept / "schema.json")
    with pytest.raises(DataError, match=r"bank/schema\.json is a link, .* is not followed"):
        open_tables(folder)


@pytest.mark.parametrize("where", ["nowhere", "schema.json"])
def test_a_folder_that_is_none(folder: Path, where: str) -> None:
    with pytest.raises(DataError, match=f"{where}; it has no schema.json"):
        open_tables(folder / where)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test_fraction": 0.5}, "test_fraction: settled when the data were ingested"),
        ({"active": "a", "passive": {"b": "rest"}}, "active, passive: settled"),
        ({"label": "click", "scale": "none", "digit": 3}, "digit, label, scale: settled"),
    ],
)
def test_settings_of_reading_mean_nothing_for_tables(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        load("tables", path=folder, **options)


def test_tables_need_a_path() -> None:
    with pytest.raises(ArgumentError, match="needs the path of a folder"):
        load("tables")


def test_rows_are_gathered_as_from_memory(folder: Path) -> None:
    stored, memory = open_tables(folder)["publisher"].train, click_data()["publisher"].train
    index = torch.tensor([599, 0, 3, 3])

    picked = stored.rows(index)

    assert_same_records(picked, memory.rows(index))
    assert torch.equal(picked.columns.numeric, memory.columns.numeric[index])
    assert math.prod(picked.columns.categorical.shape) == 8
