"""Files that somebody else may have handed on: opened as what they are, and read no further than they should go.

A link in a folder that is not one's own may lead to any file that its reader may read, a pipe keeps whoever opens it
waiting for ever, and a file can be as large as its disk.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from splitvfl.errors import CheckpointError

MOST_BYTES: Final = 1 << 28
"""Of a file that is read as a whole, unless its reader says otherwise."""


def open_handed_on(path: Path) -> BinaryIO | None:
    """Return a file, open for reading in binary; ``None`` if there is none.

    The folders above it are whoever's they are: they may be links.

    Raises:
        CheckpointError: If it is a link, or something else than a file, or may not be read.
    """
    try:
        # Without waiting for who writes where the name is that of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise CheckpointError(
                f"{path} is a link, which may lead to any file of yours, and is not followed: put a file in its place"
            ) from error
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is no file, but a folder, a pipe or a device: take it away")
    return os.fdopen(descriptor, "rb")


def read_handed_on(path: Path, *, most: int = MOST_BYTES) -> bytes | None:
    """Return what a file holds; ``None`` if there is none.

    Args:
        path: The file.
        most: How many bytes it may have.

    Raises:
        CheckpointError: As :func:`open_handed_on`, or if it is larger.
    """
    file = open_handed_on(path)
    if file is None:
        return None
    with file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > most:
        size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
        raise CheckpointError(f"{path} is larger than {size}, and no such file of a run is: take it away")
    return content
