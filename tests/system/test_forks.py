from __future__ import annotations

from splitvfl.system.forks import forks
from tests.run.forked import FORKS, in_a_fork


def test_a_child_counts_one_more_than_its_parent_and_the_parent_as_before() -> None:
    before = forks()
    assert in_a_fork(FORKS, counted) == [1, 2, 0]
    assert forks() == before


def counted() -> list[int]:
    """Of a child, of its child, and of the parent after both."""
    start = forks()
    return [*in_a_fork(None, lambda: [forks() - start, *in_a_fork(None, lambda: [forks() - start])]), forks() - start]
