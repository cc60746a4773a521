"""A lock on a run's folder: two processes that write to it would spoil it for both."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from splitvfl.errors import ConfigError
from splitvfl.system.private_folder import make_parents

_LOOK_EVERY_S: Final = 0.002


@contextmanager
def locked(folder: Path, *, patience_s: float = 0.0, remedy: str = "name another folder with --out") -> Iterator[None]:
    """Hold a folder for the length of a block; the operating system lets go of it when the process ends, anyhow.

    The lock is a file beside the folder, which need not exist yet; the file stays.

    Args:
        folder: The folder, or a file.
        patience_s: Seconds to wait for another process, or thread, that holds it.
        remedy: What else to do, in words.

    Raises:
        ConfigError: If another process holds it, or the lock is another user's.
    """
    deadline = time.monotonic() + patience_s
    make_parents(folder)
    descriptor = _opened(folder.parent / f".{folder.name}.lock", folder)
    try:
        while not _taken(descriptor):
            if time.monotonic() >= deadline:
                raise ConfigError(f"another process is at work in {folder}; wait until it ends, or {remedy}")
            time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Return whether another process, or thread, holds a folder; nothing is made or changed."""
    try:
        descriptor = os.open(folder.parent / f".{folder.name}.lock", os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # nobody ever held it, or it is not ours to look at
        return False
    try:
        return not _taken(descriptor)
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(lock: Path, folder: Path) -> int:
    try:
        # Not through a link: who may write here could have us make a file anywhere else.
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot open {lock}, which keeps two processes from working in {folder} at once: {error.strerror}; it is "
            "a link, or another user's; delete it, or name a folder of your own with --out"
        ) from error
