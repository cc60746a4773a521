"""Which tests are of the second tier is said in one place, and what it says is true."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts import mutations
from tests import conftest
from tests.tiers import FIRST_TIER, SECOND_TIER, SLOW_FILES, TESTS, has_none_of, slow_files


def test_every_pattern_is_that_of_a_file() -> None:
    assert not [pattern for pattern in SLOW_FILES if not list(TESTS.glob(pattern))]


class _Item:
    """What a test is to the hook that marks it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks: list[str] = []

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)

    def get_closest_marker(self, name: str) -> None:
        assert name == "cuda"


def test_the_tests_of_listed_files_are_marked_and_no_others() -> None:
    listed = [_Item(file) for file in slow_files()]
    plain = _Item(Path(__file__))
    conftest.pytest_collection_modifyitems([*listed, plain])  # type: ignore[list-item]
    assert all(item.marks == ["slow"] for item in listed)
    assert not plain.marks


def test_no_file_with_a_test_of_a_tier_is_left_out(tmp_path: Path) -> None:
    listed = next(iter(slow_files()))
    marked = tmp_path / "test_marked.py"
    marked.write_text("@pytest.mark.slow(reason='it waits')\ndef test_it(): ...\n")
    plain = tmp_path / "test_plain.py"
    plain.write_text("def test_it(): ...\n")
    left_out = {
        tier: [file for file in (listed, marked, plain) if has_none_of(tier, file)]
        for tier in (FIRST_TIER, SECOND_TIER, "", "cuda")
    }
    assert left_out == {FIRST_TIER: [listed], SECOND_TIER: [plain], "": [], "cuda": []}


def test_every_mutation_is_noticed_by_tests_of_the_first_tier() -> None:
    assert mutations.FIRST_TIER == FIRST_TIER
    named = {test.partition("[")[0] for mutation in mutations.read(TESTS.parent) for test in mutation.tests}
    assert not {test for test in named if TESTS.parent / test.split("::")[0] in slow_files()}
    assert not named & _marked_slow({test.split("::")[0] for test in named})


def _marked_slow(files: set[str]) -> set[str]:
    """Return the tests of files that are marked ``slow`` where they are defined."""
    return {
        f"{file}::{test.name}"
        for file in files
        for test in ast.parse((TESTS.parent / file).read_text(encoding="utf-8")).body
        if isinstance(test, ast.FunctionDef) and any("mark.slow" in ast.unparse(one) for one in test.decorator_list)
    }
