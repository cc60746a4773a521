"""The list of mutations holds for the tree as it is, and the command sees which are noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.mutations import CHECKOUT, LIST, Mutation, break_each, missing_tests, read

AREAS = {"cut", "defenses", "attacks", "exchange", "crypto", "privacy", "run", "data", "leakage"}

TABLE = """
[[mutation]]
area = "sums"
text = "return one + other"
replacement = "return one - other"
why = "a sum is a difference"
tests = ["tests/test_sums.py::test_a_sum"]
"""

LISTED = Mutation(
    "sums", "return one + other", "return one - other", "a sum is a difference", ("tests/test_sums.py::test_a_sum",)
)

TESTS = """
import pytest

from splitvfl.sums import total


def test_a_sum():
    assert total(1, 2) == 3


def test_a_sum_of_nothing():
    assert total(0, 0) == 0


@pytest.mark.slow(reason="for this test")
def test_a_slow_sum():
    assert total(2, 1) == 3


class TestSums:
    def test_in_a_class(self):
        assert total(2, 2) == 4
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package with one function, its tests and a list of one mutation."""
    for folder in ("splitvfl", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "splitvfl" / "__init__.py").touch()
    (tmp_path / "splitvfl" / "sums.py").write_text("def total(one, other):\n    return one + other\n")
    (tmp_path / "tests" / "test_sums.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = ["--import-mode=importlib"]\n'
        'filterwarnings = ["error"]\nmarkers = ["slow(reason)"]\n'
    )
    (tmp_path / LIST).write_text(TABLE)
    return tmp_path


def test_there_are_eighty_mutations_and_as_many_of_each_area() -> None:
    counts = Counter(one.area for one in read(CHECKOUT))
    assert counts.total() == 80
    assert min(counts[area] for area in AREAS) >= 8
    assert set(counts) - AREAS == {"net"}


def test_each_text_of_the_list_stands_in_one_place_of_the_package() -> None:
    mutations = read(CHECKOUT)
    broken, problems = break_each(CHECKOUT, mutations)
    assert not problems
    assert all(broken)
    assert not [one for one in mutations if not (one.why and one.tests)]


def test_the_tests_that_the_list_names_are_there() -> None:
    assert missing_tests(CHECKOUT, [test for one in read(CHECKOUT) for test in one.tests]) == {}


def test_a_list_is_read_as_it_stands(tree: Path) -> None:
    assert read(tree) == [LISTED]


def test_a_text_that_is_gone_or_there_twice_is_a_problem(tree: Path) -> None:
    gone = Mutation("sums", "return one * other", "return 0", "", ())
    _, (problem,) = break_each(tree, [gone])
    assert "in 0 places" in problem
    (tree / "splitvfl" / "more.py").write_text("def more(one, other):\n    return one + other\n")
    _, (problem,) = break_each(tree, [LISTED])
    assert "in 2 places" in problem
    assert "splitvfl/more.py" in problem


def test_what_is_no_python_is_a_problem(tree: Path) -> None:
    _, (problem,) = break_each(tree, [Mutation("sums", "return one + other", "return one +", "", ())])
    assert "is no Python" in problem


def test_tests_are_found_without_importing_them(tree: Path) -> None:
    named = [
        "test_a_sum",
        "test_a_sum[some value]",
        "TestSums::test_in_a_class",
        "test_another",
        "TestSums::test_a_sum",
    ]
    missing = missing_tests(
        tree, [*(f"tests/test_sums.py::{name}" for name in named), "tests/test_none.py::test_a_sum"]
    )
    assert missing == {
        "tests/test_none.py::test_a_sum": ["tests/test_sums.py"],
        "tests/test_sums.py::TestSums::test_a_sum": ["tests/test_sums.py"],
        "tests/test_sums.py::test_another": [],
    }


def _check(tree: Path) -> tuple[int, str]:
    """Return how the command ends with a tree, in a process that may fork: this one may have threads."""
    call = "import sys, pathlib; from scripts.mutations import main; "
    call += "sys.exit(main(['--jobs', '1'], root=pathlib.Path(sys.argv[1]), libraries=()))"
    done = subprocess.run(
        [sys.executable, "-c", call, str(tree)],
        cwd=CHECKOUT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_mutation_that_its_tests_notice_is_counted_and_the_tree_stays_as_it_is(tree: Path) -> None:
    before = {file: file.read_bytes() for file in tree.rglob("*") if file.is_file()}
    code, said = _check(tree)
    assert code == 0, said
    assert "killed  splitvfl/sums.py: a sum is a difference" in said
    assert "1 of 1 mutations" in said
    assert {file: file.read_bytes() for file in tree.rglob("*") if file.is_file()} == before


def test_a_mutation_that_a_test_does_not_notice_ends_the_command_with_1(tree: Path) -> None:
    with (tree / LIST).open("a") as file:
        file.write(TABLE.replace("test_a_sum", "test_a_sum_of_nothing"))
    code, said = _check(tree)
    assert code == 1
    assert "test_a_sum_of_nothing passes with 'return one - other'" in said
    assert "1 of 2 mutations" in said


def test_tests_that_fail_without_the_mutation_or_are_slow_end_the_command_with_1(tree: Path) -> None:
    (tree / "tests" / "test_sums.py").write_text(TESTS.replace("== 0", "== 1"))
    with (tree / LIST).open("a") as file:
        file.write(
            TABLE.replace(
                '"]', '", "tests/test_sums.py::test_a_slow_sum", "tests/test_sums.py::test_a_sum_of_nothing"]'
            )
        )
    code, said = _check(tree)
    assert code == 1
    for name in ("test_a_slow_sum", "test_a_sum_of_nothing"):
        assert f"does not pass without a mutation, or is not of the first tier: tests/test_sums.py::{name}" in said
    assert "killed" not in said
