"""A run's folder belongs to one process at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from splitvfl.errors import ConfigError
from splitvfl.system.folder_lock import locked

HOLD = (
    "import sys, pathlib; from splitvfl.system.folder_lock import locked\nwith locked(pathlib.Path(sys.argv[1])):\n    "
)


def hold(folder: Path, then: str, root: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + f"print('held', flush=True); {then}", str(folder)],
        env={"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_until_the_first_ends_however_it_does(tmp_path: Path, checkout: Path) -> None:
    folder = tmp_path / "runs" / "bank"
    first = hold(folder, "sys.stdin.read()", checkout)
    with pytest.raises(ConfigError, match=r"another process is at work in .*bank; wait until"), locked(folder):
        pass
    first.kill()
    first.communicate()
    with locked(folder), pytest.raises(ConfigError, match="another process"), locked(folder):
        pass
    with locked(folder), locked(tmp_path / "runs" / "telecom"):
        assert not folder.exists()


def test_a_lock_that_is_a_link_or_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    """Who may write there could have us make a file anywhere."""
    (tmp_path / ".bank.lock").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(ConfigError, match=r"cannot open .*\.bank\.lock, .* delete it, or name"),
        locked(tmp_path / "bank"),
    ):
        pass
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / ".lab.lock").mkdir()
    with pytest.raises(ConfigError, match=r"cannot open .*\.lab\.lock"), locked(tmp_path / "lab"):
        pass
