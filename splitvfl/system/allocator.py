"""Let the C library keep large blocks of memory for the next step, instead of returning them after each.

Tensors of a batch are allocated and freed at every step. By default glibc gives blocks of 32 MiB and more back to the
system at once, and the system hands them out again page by page, zeroed: at large batches that takes as long as the
model itself.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

# From glibc's malloc.h.
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3

_SETTINGS: Final = ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, (1 << 31) - 1), (_TOP_PAD, 64 << 20))


def keep_large_blocks() -> bool:
    """Have this process reuse large blocks of memory. It concerns the whole process, and cannot be undone.

    The command line does this first; who uses the library decides. The price: memory that was once needed stays with
    the process until it ends. Nothing is done where the user has set ``MALLOC_...`` or ``GLIBC_TUNABLES``, or another
    allocator than glibc's (macOS, musl) is at work.

    Returns:
        Whether it was done.
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function, or no such way to ask for it
        return False
    return all(mallopt(what, value) == 1 for what, value in _SETTINGS)
