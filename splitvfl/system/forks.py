"""Whether this process was forked since something was made: a forked child has all that its parent had drawn from."""

from __future__ import annotations

import os

_forks = 0


def forks() -> int:
    """Return how many forks lie between the first process and this one.

    Keep it with what nobody else may have: where it is another number later, a parent has the same.
    """
    return _forks


def _count() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count)
