"""Files that another may have handed on: files, of a size, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from splitvfl.errors import CheckpointError
from splitvfl.system.handed_on import open_handed_on, read_handed_on


def test_a_file_is_read_and_none_is_none(tmp_path: Path) -> None:
    path = tmp_path / "figures"
    assert read_handed_on(path) is None
    assert open_handed_on(path) is None
    assert read_handed_on(path / "below") is None
    path.write_bytes(b"\x00" * 1024)
    assert read_handed_on(path / "below") is None, "what is above it is no folder"
    assert read_handed_on(path, most=1024) == bytes(1024)
    with pytest.raises(CheckpointError, match=r"figures is larger than 0 KiB, and no such file of a run is"):
        read_handed_on(path, most=1023)
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(CheckpointError, match=r"larger than 1 MiB"):
        read_handed_on(path, most=1 << 20)


def test_the_folder_above_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "figures").write_text("all")
    (tmp_path / "link").symlink_to("run")
    assert read_handed_on(tmp_path / "link" / "figures") == b"all"


def test_links_pipes_folders_and_devices_are_told_and_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of its reader")
    (tmp_path / "link").symlink_to(secret)
    (tmp_path / "astray").symlink_to(tmp_path / "nowhere")
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to
    (tmp_path / "folder").mkdir()
    for name in ("link", "astray", "device"):
        with pytest.raises(CheckpointError, match=f"{name} is a link, .* and is not followed"):
            read_handed_on(tmp_path / name)
    for name in ("pipe", "folder"):
        with pytest.raises(CheckpointError, match=f"{name} is no file, but a folder, a pipe or a device"):
            read_handed_on(tmp_path / name)
    with pytest.raises(CheckpointError, match="zero is no file"):
        read_handed_on(Path("/dev/zero"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads what nobody may read")
def test_what_may_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "closed").write_text("")
    (tmp_path / "closed").chmod(0)
    with pytest.raises(CheckpointError, match="closed cannot be read: Permission denied"):
        read_handed_on(tmp_path / "closed")
