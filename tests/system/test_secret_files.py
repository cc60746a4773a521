"""Who may read a file that holds a secret: the owner, or a group where root mounts it for one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from splitvfl.system.secret_files import readers_beyond_owner


@pytest.mark.parametrize(
    ("owner", "user", "mode", "wrong"),
    [
        (1001, 1001, 0o600, ""),
        (1001, 1001, 0o400, ""),
        (1001, 1001, 0o440, "mode 0440.*chmod 600"),
        (1001, 1001, 0o604, "mode 0604.*chmod 600"),
        (0, 1001, 0o440, ""),
        (0, 1001, 0o640, ""),
        (0, 1001, 0o660, "mode 0660.*defaultMode"),
        (0, 1001, 0o444, "mode 0444.*defaultMode"),
        (0, 0, 0o440, "mode 0440.*chmod 600"),
        (0, 0, 0o600, ""),
        (1002, 1001, 0o400, "another user"),
        (1002, 0, 0o600, ""),
    ],
)
def test_who_may_read_a_secret(
    owner: int, user: int, mode: int, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "the key"
    file.write_bytes(b"")
    found = os.stat_result([0o100000 | mode, *file.stat()[1:4], owner, owner, *file.stat()[6:]])
    monkeypatch.setattr(os, "geteuid", lambda: user)

    told = readers_beyond_owner(found, file)

    assert (told is None) == (not wrong)
    assert re.search(wrong, told or "")
