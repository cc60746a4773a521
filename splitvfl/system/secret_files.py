"""Who may read a file that holds a secret."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

_ANYTHING_BY_OTHERS = 0o077


def readers_beyond_owner(found: os.stat_result, path: Path) -> str | None:
    """Return what is wrong if others than its owner may use a file, and what to do; ``None``: nothing is.

    What root owns may be readable by its group, unless this process is root's too: so Kubernetes gives a mounted
    Secret to a process of another user. What a third user owns is refused, whatever its mode.

    Args:
        found: What the system says of the file, links followed.
        path: Its name, for the remedy.
    """
    user = os.geteuid()
    if found.st_uid not in (0, user) and user != 0:
        return "it belongs to another user; copy it to a file of your own"
    mode = stat.S_IMODE(found.st_mode)
    of_root = found.st_uid == 0 != user
    if not mode & (_ANYTHING_BY_OTHERS & ~stat.S_IRGRP if of_root else _ANYTHING_BY_OTHERS):
        return None
    mended = "mount it with defaultMode: 0400" if of_root else f"run: chmod 600 {shlex.quote(str(path))}"
    return f"others than its owner may use this file (mode {mode:04o}); {mended}"
