"""Folders that are written in, checked before anything is run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from splitvfl.errors import DataError


def writable_folder(path: Path) -> Path:
    """Make a folder where there is none, and return it.

    Raises:
        DataError: If something else lies there or above it, or nothing can be written there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Permissions say too little: root has all of them, and a file system may be read-only.
        with tempfile.TemporaryFile(dir=path):
            pass
    except (FileExistsError, NotADirectoryError):
        raise DataError(f"{path}: expected a folder, or room for one, got a file there or above it") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be written in ({error.strerror})") from None
    return path
