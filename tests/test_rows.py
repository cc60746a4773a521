"""Rows in one case fail as a case for each would."""

from __future__ import annotations

import inspect

import pytest

from tests.rows import every


def test_every_combination_is_tried_and_all_that_fail_are_named() -> None:
    tried = []

    @every(left=[1, 2], right=["a", "b", "c"])
    def trial(left: int, right: str, fixture: str) -> None:
        tried.append((left, right, fixture))
        assert right != "b", "no b"

    with pytest.raises(ExceptionGroup, match="2 of 6 rows failed") as failed:
        trial(fixture="one")
    assert tried == [(left, right, "one") for left in (1, 2) for right in "abc"]
    assert [failure.__notes__ for failure in failed.value.exceptions] == [
        ["row: left=1, right='b'"],
        ["row: left=2, right='b'"],
    ]
    assert list(inspect.signature(trial).parameters) == ["fixture"]


def test_what_ends_a_test_ends_its_rows_and_names_the_row() -> None:
    @every(at=[1, 2])
    def trial(at: int) -> None:
        pytest.fail("told to")

    with pytest.raises(pytest.fail.Exception, match="told to") as failed:
        trial()
    assert failed.value.__notes__ == ["row: at=1"]
