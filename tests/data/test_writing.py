from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from splitvfl.data.writing import (
    NpyWriter,
    StoredTensor,
    check_space,
    check_target,
    draft,
    write_safetensors,
)
from splitvfl.errors import ArgumentError, DataError

HEAD = b'{"format": "splitvfl tables"}'


def tables(folder: Path, mark: str = "old") -> Path:
    folder.mkdir()
    (folder / "schema.json").write_bytes(HEAD)
    (folder / mark).touch()
    return folder


@pytest.mark.parametrize(("shape", "dtype"), [((7, 3), "<f4"), ((7,), "<i8"), ((7, 0), "<i4"), ((0, 2), "<f4")])
def test_rows_come_back_as_one_array(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)

    with NpyWriter(tmp_path / "a.npy", shape, dtype) as writer:
        for piece in np.array_split(array, 3):
            writer.append(piece)

    loaded = np.load(tmp_path / "a.npy", allow_pickle=False)
    assert loaded.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(loaded, array)


def test_a_wrong_number_or_width_of_rows_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=r"expected 3 rows in a.npy, got 2"),
        NpyWriter(tmp_path / "a.npy", (3, 2), "<f4") as writer,
    ):
        writer.append(np.zeros((2, 2)))
    with (
        pytest.raises(ArgumentError, match=r"expected rows of shape \(2,\) in b.npy"),
        NpyWriter(tmp_path / "b.npy", (3, 2), "<f4") as writer,
    ):
        writer.append(np.zeros((2, 3)))


def test_tensors_in_files_become_one_safetensors_file(tmp_path: Path) -> None:
    parts = {
        "é.bytes": ("U8", np.arange(5, dtype="u1")),
        "n": ("F64", np.array([0.5])),
        "none": ("I64", np.zeros(0, "i8")),
    }
    stored = []
    for number, (name, (dtype, array)) in enumerate(parts.items()):
        array.tofile(tmp_path / f"{number}")
        stored.append(StoredTensor(name, dtype, array.size, tmp_path / f"{number}"))

    write_safetensors(tmp_path / "all.safetensors", stored)

    loaded = load_file(tmp_path / "all.safetensors")
    assert loaded.keys() == parts.keys()
    for name, (_, array) in parts.items():
        np.testing.assert_array_equal(loaded[name], array)


def test_a_draft_becomes_the_target_at_its_end_only(tmp_path: Path) -> None:
    target = tmp_path / "tables"
    with draft(target, overwrite=False) as folder:
        (folder / "schema.json").write_bytes(HEAD)
        assert not target.exists()

    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
    assert [path.name for path in target.iterdir()] == ["schema.json"]
    # As any new folder, not as a temporary one, which only its owner may read.
    (tmp_path / "other").mkdir()
    assert target.stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_draft_that_fails_leaves_nothing_and_the_old_tables_alone(error: type[BaseException], tmp_path: Path) -> None:
    old = tables(tmp_path / "tables")

    def fail() -> None:
        with draft(old, overwrite=True) as folder:
            (folder / "half").write_bytes(b"...")
            raise error

    with pytest.raises(error):
        fail()

    assert {path.name for path in tmp_path.iterdir()} == {"tables"}
    assert {path.name for path in old.iterdir()} == {"schema.json", "old"}


def test_old_tables_are_replaced_when_asked(tmp_path: Path) -> None:
    target = tables(tmp_path / "tables")
    with pytest.raises(DataError, match="holds tables already"), draft(target, overwrite=False):
        pass

    with draft(target, overwrite=True) as folder:
        (folder / "schema.json").write_bytes(HEAD)

    assert {path.name for path in tmp_path.iterdir()} == {"tables"}
    assert {path.name for path in target.iterdir()} == {"schema.json"}


def test_old_tables_come_back_if_replacing_them_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tables(tmp_path / "tables")
    rename = Path.rename

    def fail_at_last(self: Path, to: Path) -> Path:
        if to == target and self.name != "old":
            raise KeyboardInterrupt
        return rename(self, to)

    def replace() -> None:
        with draft(target, overwrite=True) as folder:
            (folder / "schema.json").write_bytes(HEAD)
            monkeypatch.setattr(Path, "rename", fail_at_last)

    with pytest.raises(KeyboardInterrupt):
        replace()

    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
    assert {path.name for path in target.iterdir()} == {"schema.json", "old"}


def test_what_an_interrupted_removal_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rmtree = tmp_path / "tables", shutil.rmtree

    def interrupted(path: Path, **options: object) -> None:
        raise KeyboardInterrupt

    def stopped_twice() -> None:
        with draft(target, overwrite=False) as folder:
            (folder / "half").write_bytes(b"...")
            monkeypatch.setattr(shutil, "rmtree", interrupted)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped_twice()
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    left = next(tmp_path.iterdir())
    assert [path.name for path in left.iterdir()] == [".lock"]

    with draft(target, overwrite=False) as folder:
        assert set(tmp_path.iterdir()) == {folder}
        (folder / "schema.json").write_bytes(HEAD)


def test_what_is_no_table_folder_is_never_replaced(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "schema.json").write_text('{"format": "other"}')
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tables(tmp_path / "real"))

    for name in ("photos", "file", "link"):
        with pytest.raises(DataError, match="holds no tables; it is left alone"):
            check_target(tmp_path / name, overwrite=True)
    with pytest.raises(DataError, match="there is no folder"):
        check_target(tmp_path / "nowhere" / "tables", overwrite=False)


def test_a_request_to_terminate_leaves_nothing(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def be_terminated() -> None:
        with draft(tmp_path / "tables", overwrite=False):
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(5)

    with pytest.raises(KeyboardInterrupt):
        be_terminated()

    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_a_killed_process_left_is_removed_and_what_another_is_writing_is_not(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from splitvfl.data.writing import draft\n"
        "with draft(Path(sys.argv[1]), overwrite=False): os.kill(os.getpid(), signal.SIGKILL)"
    )
    target = tmp_path / "tables"
    subprocess.run([sys.executable, "-c", code, target], check=False, cwd=Path(__file__).parents[3])
    assert len(list(tmp_path.iterdir())) == 1

    def overtaken() -> None:
        with draft(target, overwrite=False) as slow, draft(target, overwrite=False) as fast:
            assert set(tmp_path.iterdir()) == {slow, fast}
            (fast / "schema.json").write_bytes(HEAD)

    with pytest.raises(DataError, match="holds tables already"):
        overtaken()

    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_a_full_disk_is_noticed_before_writing(tmp_path: Path) -> None:
    check_space(tmp_path, 1)
    with pytest.raises(DataError, match=r"the tables need 1048576.0 GiB .* nothing was written"):
        check_space(tmp_path, 1 << 50)
