"""Folders that nobody but their owner may enter, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from splitvfl.errors import ConfigError

PRIVATE: Final = 0o700
_PARENT: Final = 0o755
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def private_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder with mode 0700, or see that nobody else may write to one that is there.

    Who may write to a run's folder may replace a checkpoint, or delete the journal that keeps noise from being used
    twice. Who may read it was let in by the owner, with chmod, and stays so. For folders above it, see
    :func:`make_parents`. What it does not look at are folders above it that are there already: whoever may write to one
    of these can put another folder in its place at any time.

    Raises:
        ConfigError: If others may write to a folder that is there, or it, or the link that leads to it, belongs to
            another user.
        OSError: If it cannot be made.
    """
    path = Path(folder)
    make_parents(path)
    try:
        path.mkdir(mode=PRIVATE)
    except FileExistsError:
        if not path.is_dir():
            raise
        _check_ours(path)
        _change(path, stat.S_IMODE(path.stat().st_mode) & ~_WRITABLE_BY_OTHERS)
    else:
        path.chmod(PRIVATE)  # a umask can have taken away the owner's own bits, and a parent's setgid bit comes along


def make_parents(path: Path) -> None:
    """Make the folders above a path that are missing; none but their owner may write to them, whatever the umask.

    Raises:
        OSError: If one cannot be made.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=_PARENT, exist_ok=True)


@contextmanager
def closed_for_writing() -> Iterator[None]:
    """Within the block, make no file that others may write to, whatever the umask. It holds for the whole process.

    A run's folder can be opened for others to read; files in it that they may write to would be theirs then: the
    settings that a run goes on with, the figures that an auditor is shown.
    """
    before = os.umask(_WRITABLE_BY_OTHERS)
    os.umask(before | _WRITABLE_BY_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def close_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder as :func:`private_folder`, and shut out others who may read one that is there.

    Raises:
        ConfigError: If it belongs to somebody else.
        OSError: If it cannot be made.
    """
    private_folder(folder)
    _change(Path(folder), PRIVATE)


def _check_ours(path: Path) -> None:
    """Refuse what another user owns, whatever its mode says: its owner can open it, or lead the link elsewhere, later.

    What root owns is taken: root can do all that anyhow.
    """
    owners = {path.lstat().st_uid, path.stat().st_uid}
    if not owners <= {0, os.geteuid()}:
        raise ConfigError(
            f"{path} belongs to another user, who could replace what a run keeps there: name a folder of your own"
        )


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
