"""How much of what a process may open goes to connections from outside."""

from __future__ import annotations

import resource


def most_connections(at_most: int, *, one_in: int) -> int:
    """Return how many connections a service takes at a time, so that strangers cannot use up what it may open.

    Args:
        at_most: However many files this process may open.
        one_in: Of as many files as it may open, one is for a connection; the others are for links and files.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return at_most if files == resource.RLIM_INFINITY else max(1, min(at_most, files // one_in))
