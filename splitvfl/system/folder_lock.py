"""A lock on a run's folder: two processes that write to it would spoil it for both."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from splitvfl.errors import ConfigError
from splitvfl.system.private_folder import make_parents


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for the length of a block; the operating system lets go of it when the process ends, anyhow.

    The lock is a file beside the folder, which need not exist yet; the file stays.

    Raises:
        ConfigError: If another process holds it, or the lock is another user's.
    """
    make_parents(folder)
    descriptor = _opened(folder.parent / f".{folder.name}.lock", folder)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process is at work in {folder}; wait until it ends, or name another folder with --out"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _opened(lock: Path, folder: Path) -> int:
    try:
        # Not through a link: who may write here could have us make a file anywhere else.
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot open {lock}, which keeps two processes from working in {folder} at once: {error.strerror}; it is "
            "a link, or another user's; delete it, or name a folder of your own with --out"
        ) from error
