"""One process at a time in a run's folder: two that write to it would spoil it for both."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from splitvfl.errors import ConfigError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for the length of a block; the operating system lets go of it when the process ends, anyhow.

    The lock is a file beside the folder, which need not exist yet; the file stays.

    Raises:
        ConfigError: If another process holds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.parent / f".{folder.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
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
