"""What lies beside a new folder under a draft's name: only drafts of our own go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from splitvfl.data.writing import draft


def write(target: Path) -> None:
    with draft(target, overwrite=False) as inside:
        (inside / "content").write_text("complete")


def with_lock(folder: Path) -> Path:
    folder.mkdir()
    for name in (".lock", "work"):
        (folder / name).write_text("")
    return folder


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = with_lock(tmp_path / ".aligned.writing-left")
    write(tmp_path / "aligned")
    assert not left.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Who may write beside the target could have us delete any folder of ours that holds a file ``.lock``."""
    precious = with_lock(tmp_path / "precious")
    (tmp_path / ".aligned.writing-planted").symlink_to(precious)
    write(tmp_path / "aligned")
    assert sorted(path.name for path in precious.iterdir()) == [".lock", "work"]


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    planted = tmp_path / ".aligned.writing-planted"
    planted.mkdir()
    (planted / ".lock").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("")
    write(tmp_path / "aligned")
    assert planted.exists()


def test_another_users_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = with_lock(tmp_path / ".aligned.writing-planted")
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    write(tmp_path / "aligned")
    assert (planted / "work").exists()
