"""MNIST from files that the user holds: both forms give one table, and hostile files are refused before memory goes."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitvfl.app.experiment import Experiment, prepare
from splitvfl.config.sections import parse_config
from splitvfl.data.images import read_images
from splitvfl.data.load import load
from splitvfl.errors import ArgumentError, DataError

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("few_rounds")

COUNTS = {"train": 40, "test": 20}


def drawn() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        f"{what}_{part}": random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        if what == "x"
        else (np.arange(count) % 10).astype(np.uint8)
        for part, count in COUNTS.items()
        for what in "xy"
    }


def idx_bytes(values: np.ndarray) -> bytes:
    """As the makers describe the format: two zero bytes, type 8, dimensions, sizes big-endian, then the numbers."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def idx_folder(folder: Path, arrays: dict[str, np.ndarray], *, packed: bool, dot: str = "-") -> Path:
    folder.mkdir(exist_ok=True)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        for what, name, dimensions in (("x", "images", 3), ("y", "labels", 1)):
            content = idx_bytes(arrays[f"{what}_{part}"])
            path = folder / f"{prefix}-{name}{dot}idx{dimensions}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def archive(path: Path, **changed: Any) -> Path:
    np.savez_compressed(path, **(drawn() | changed))
    return path


@pytest.mark.parametrize("form", ["npz", "idx", "idx.gz", "one file", "other dots"])
def test_every_form_gives_the_images(form: str, tmp_path: Path) -> None:
    arrays = drawn()
    if form == "npz":
        path = archive(tmp_path / "mnist.npz")
    else:
        dot = "." if form == "other dots" else "-"
        path = idx_folder(tmp_path / "mnist", arrays, packed=form == "idx.gz", dot=dot)
        path = path / "train-images-idx3-ubyte" if form == "one file" else path
    table = read_images(path)
    assert table.num_rows == 60
    assert table["split"].to_pylist() == ["train"] * 40 + ["test"] * 20
    assert table["digit"].to_pylist() == [*arrays["y_train"].tolist(), *arrays["y_test"].tolist()]
    for row, column in ((0, 0), (3, 17), (27, 27)):
        expected = np.concatenate([arrays["x_train"], arrays["x_test"]])[:, row, column]
        assert table[f"r{row:02}c{column:02}"].to_pylist() == expected.tolist()
    assert table.num_columns == 28 * 28 + 2


@pytest.mark.parametrize(("digit", "task", "classes"), [(8, "binary", 2), (3, "binary", 2), (None, "multiclass", 10)])
def test_it_is_a_data_set_with_the_published_division(
    digit: int | None, task: str, classes: int, tmp_path: Path
) -> None:
    path = archive(tmp_path / "mnist.npz")
    data = load("mnist", path=path, digit=digit, active="r0*", passive={"lab": "rest"})
    assert (data.task, data.classes, data.name) == (task, classes, "mnist")
    assert (data.active.train.count, data.active.test.count) == (40, 20)
    labels, digits = data.active.train.labels, np.arange(40) % 10
    assert labels is not None
    assert labels.tolist() == (digits if digit is None else digits == digit).astype(float).tolist()
    assert 0.0 <= data["lab"].train.columns.numeric.min() <= data["lab"].train.columns.numeric.max() <= 1.0


def test_its_description_counts_what_the_file_holds(tmp_path: Path) -> None:
    path = archive(tmp_path / "mnist.npz")
    sides: dict[str, Any] = {"path": path, "active": "r0*", "passive": {"lab": "rest"}}
    assert load("mnist", digit=3, **sides).description == "mnist.npz: 60 rows, label digit (1 where it is 3)"
    assert load("mnist", digit=None, **sides).description == "mnist.npz: 60 rows, label digit"
    assert load("digits").description.startswith("1,797 handwritten digits")  # bundled: no other file can be there


@pytest.mark.parametrize(("held", "asked", "said"), [(8, 8, "is 8 in every row"), (8, 3, "is 3 in no row")])
def test_a_constant_digit_is_refused_by_its_name(held: int, asked: int, said: str, tmp_path: Path) -> None:
    constant = {f"y_{part}": np.full(count, held, np.uint8) for part, count in COUNTS.items()}
    with pytest.raises(DataError, match=f"label column 'digit' of mnist.npz {said}"):
        load("mnist", path=archive(tmp_path / "mnist.npz", **constant), digit=asked)


@pytest.mark.parametrize("name", ["none.npz", "none", "none/train-images-idx3-ubyte", "zero\0"])
def test_a_path_where_nothing_lies_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file") as raised:
        load("mnist", path=tmp_path / name)
    assert "download" not in str(raised.value)


def test_labels_of_another_type_are_to_be_saved_as_bytes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got int64 \(40,\); save it as uint8: y_train\.astype") as raised:
        read_images(archive(tmp_path / "mnist.npz", y_train=np.arange(40) % 10))
    assert "download" not in str(raised.value)


def test_an_experiment_trains_on_it(tmp_path: Path) -> None:
    text = f"""
data: {{name: mnist, path: {archive(tmp_path / "mnist.npz")}, digit: 1}}
parties: {{a: {{role: active, columns: "r0*"}}, b: {{role: passive, columns: rest}}}}
model: {{name: mlp, bottom: [4]}}
train: {{epochs: 1, batch_size: 20}}
audit: false
"""
    config = parse_config(text, source="images.yaml")
    trainer = Experiment(config, prepare(config)).trainer()
    trainer.fit(1)
    assert trainer.step == 2


def test_a_digit_of_another_set_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a setting of the sets digits and mnist, not of wine"):
        load("wine", digit=3)


def test_it_is_looked_for_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITVFL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"mnist is not bundled; expected mnist\.npz or"):
        load("mnist")
    idx_folder(tmp_path, drawn(), packed=True)
    assert load("mnist").active.train.count == 40


def npy(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    found = io.BytesIO()
    np.lib.format.write_array(found, array, allow_pickle=allow_pickle)
    return found.getvalue()


def with_entry(path: Path, name: str, content: bytes, *, more: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for key, array in drawn().items():
            made.writestr(f"{key}.npy", content if key == name else npy(array))
        for number in range(more):
            made.writestr(f"more-{number}.npy", b"")
    return path


def announcing(count: int) -> bytes:
    """An array of so many images as its header says, and none behind it."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count}, 28, 28), }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


HOSTILE = {
    "an array of objects": (npy(np.array([{}], dtype=object), allow_pickle=True), "expected uint8"),
    "a pickle": (b"\x80\x04K\x01.", "magic"),
    "more images than it holds": (announcing(60_000), "bytes behind its header"),
    "more images than there are": (announcing(1 << 40), "announces 1,099,511,627,776 images"),
    "zeros without end": (announcing(40) + bytes(1 << 27), "announces 134,217,"),
    "other sides": (npy(np.zeros((40, 20, 28), np.uint8)), r"expected uint8 \(n, 28, 28\), got uint8 \(40, 20, 28\)"),
    "numbers": (npy(np.zeros((40, 28, 28))), "got float64"),
    "column by column": (npy(np.asfortranarray(np.zeros((40, 28, 28), np.uint8))), "expected uint8"),
    "nothing": (b"", "x_train.npy"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_archives_are_refused_before_memory_is_taken(what: str, tmp_path: Path) -> None:
    content, why = HOSTILE[what]
    path = with_entry(tmp_path / "mnist.npz", "x_train", content)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=f"{path.name}.*{why}"):
            read_images(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_archives_of_many_entries_without_some_or_damaged_are_refused(tmp_path: Path) -> None:
    path = with_entry(tmp_path / "many.npz", "", b"", more=40)
    with pytest.raises(DataError, match="it has 44 entries"):
        read_images(path)
    np.savez(tmp_path / "few.npz", x_train=drawn()["x_train"])
    with pytest.raises(DataError, match=r"it holds no y_train\.npy"):
        read_images(tmp_path / "few.npz")
    whole = archive(tmp_path / "damaged.npz").read_bytes()
    (tmp_path / "damaged.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="it is no archive"):
        read_images(tmp_path / "damaged.npz")
    spoiled = bytearray(whole)
    spoiled[2000] ^= 0xFF
    (tmp_path / "damaged.npz").write_bytes(spoiled)
    with pytest.raises(DataError, match="is no file of MNIST"):
        read_images(tmp_path / "damaged.npz")


@pytest.mark.parametrize("comment", [b"", b"." * 0xFFFF])
def test_a_zip64_directory_is_refused_before_it_is_opened(comment: bytes, tmp_path: Path) -> None:
    path, many = with_entry(tmp_path / "zip64.npz", "", b""), 5_000
    whole = path.read_bytes()
    _, _, _, _, entries, size, offset, _ = struct.unpack("<4s4H2LH", whole[-22:])
    # 46 bytes and a name an entry, behind those of the four arrays.
    more = (b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"z") * many
    directory = whole[offset : offset + size] + more
    start = whole[:offset] + directory
    record = struct.pack(
        "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, entries + many, entries + many, len(directory), offset
    )
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(start), 1)
    # Its own numbers are those of four entries: zipfile goes by the record's.
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, entries, entries, size, offset, len(comment)) + comment
    path.write_bytes(start + record + locator + end)
    with zipfile.ZipFile(path) as read:
        assert len(read.infolist()) == entries + many
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"zip64\.npz.*it has a zip64 directory"):
            read_images(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda content: content[:-1], "expected"),
        (lambda content: content + b"\0", "expected"),
        (lambda content: content[:10], "its header 16"),
        (lambda content: b"\0\0\x08\x01" + content[4:], "expected magic number 2051"),
        (lambda content: content[:4] + (1 << 31).to_bytes(4, "big") + content[8:], "announces 2,147,483,648 images"),
        (lambda content: content[:8] + (27).to_bytes(4, "big") + content[12:], "sides"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_spoiled_idx_files_are_refused(spoil: Any, why: str, packed: bool, tmp_path: Path) -> None:
    folder = idx_folder(tmp_path / "mnist", drawn(), packed=packed)
    path = folder / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    content = spoil(idx_bytes(drawn()["x_train"]))
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match=f"{path.name}.*{why}"):
        read_images(folder)


def test_a_gzip_that_never_ends_takes_no_memory(tmp_path: Path) -> None:
    folder = idx_folder(tmp_path / "mnist", drawn(), packed=True)
    head = idx_bytes(drawn()["x_train"])[:16]
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + bytes(1 << 26)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="bytes behind its header"):
            read_images(folder)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_digits_that_are_none_or_too_few_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected digits from 0 to 9, got 11"):
        read_images(archive(tmp_path / "a.npz", y_test=np.full(20, 11, np.uint8)))
    with pytest.raises(DataError, match="expected a digit for each train image, got 40 and 39"):
        read_images(archive(tmp_path / "b.npz", y_train=np.zeros(39, np.uint8)))
    with pytest.raises(DataError, match="there is none"):
        read_images(tmp_path)
