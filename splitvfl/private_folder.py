"""Folders that nobody but their owner may enter, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from splitvfl.errors import ConfigError

PRIVATE: Final = 0o700
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def private_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder with mode 0700, or see that nobody else may write to one that is there.

    Who may write to a run's folder may replace a checkpoint, or delete the journal that keeps noise from being used
    twice. Who may read it was let in by the owner, with chmod, and stays so. Folders above it that are missing are made
    as any folder is.

    Raises:
        ConfigError: If others may write to a folder that is there, and it is not ours to change.
        OSError: If it cannot be made.
    """
    path = Path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=PRIVATE)
    except FileExistsError:
        if not path.is_dir():
            raise
        _close_for_writing(path)
    else:
        path.chmod(PRIVATE)  # a umask can have taken away the owner's own bits, and a parent's setgid bit comes along


def close_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder as :func:`private_folder`, and shut out others who may read one that is there.

    Raises:
        ConfigError: If it belongs to somebody else.
        OSError: If it cannot be made.
    """
    private_folder(folder)
    _change(Path(folder), PRIVATE)


def _close_for_writing(path: Path) -> None:
    _change(path, stat.S_IMODE(path.stat().st_mode) & ~_WRITABLE_BY_OTHERS)


def _change(path: Path, mode: int) -> None:
    found = stat.S_IMODE(path.stat().st_mode)
    if found == mode:
        return
    try:
        path.chmod(mode)
    except PermissionError:
        raise ConfigError(
            f"{path} belongs to another user, and others than its owner may use it (mode {found:04o}); what a run "
            "keeps there is for one user only: name a folder of your own"
        ) from None
