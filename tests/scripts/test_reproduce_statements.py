"""Numbered claims of papers: what shows each of them is there, and the pages have every row."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from scripts.reproduce.shared.claims import VERDICTS
from scripts.reproduce.shared.papers import PAPERS
from scripts.reproduce.shared.statements import NOT_JUDGED, Statement, statements_table
from splitvfl.errors import ArgumentError

PACKAGES = ("label_leakage", "vertical_lr_privacy")
TITLE = "## Every numbered claim\n"
CITED = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")


def statements_of(package: str) -> Sequence[Statement]:
    found: Sequence[Statement] = importlib.import_module(f"scripts.reproduce.{package}.statements").STATEMENTS
    return found


def page_of(package: str, checkout: Path) -> str:
    (entry,) = (paper for paper in PAPERS if paper.name == package)
    return (checkout / "docs" / "results" / f"{entry.page}.md").read_text(encoding="utf-8")


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the tests of a file, read off its source: nothing of it is run."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def missing(cited: str, checkout: Path) -> bool:
    """Whether a test, or a file of tests, that is cited is not there."""
    file, _, name = cited.partition("::")
    path = checkout / file
    return not path.is_file() or (bool(name) and name not in names_in(path))


@pytest.mark.parametrize("package", PACKAGES)
def test_what_shows_a_statement_is_there(package: str, checkout: Path) -> None:
    parts = importlib.import_module(f"scripts.reproduce.{package}.__main__").PARTS

    for statement in statements_of(package):
        assert set(statement.parts) <= set(parts), statement.number
        assert not [test for test in statement.tests if missing(test, checkout)], statement.number
        assert all("::" in test for test in statement.tests), statement.number


def test_every_test_that_a_results_page_names_is_there(checkout: Path) -> None:
    cited = [
        (path.name, test)
        for path in (checkout / "docs" / "results").glob("*.md")
        for test in CITED.findall(path.read_text(encoding="utf-8"))
    ]

    assert len(cited) > 40
    assert [place for place in cited if missing(place[1], checkout)] == []


def test_a_test_that_is_gone_is_noticed(checkout: Path) -> None:
    assert missing("tests/attacks/test_norm.py::test_of_yesterday", checkout)
    assert missing("tests/attacks/test_of_yesterday.py", checkout)
    assert not missing("tests/scripts/test_reproduce_statements.py::test_a_test_that_is_gone_is_noticed", checkout)


@pytest.mark.parametrize("package", PACKAGES)
def test_numbers_are_given_once(package: str) -> None:
    numbers = [statement.number for statement in statements_of(package)]

    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_committed_page_has_these_statements(package: str, checkout: Path) -> None:
    section = page_of(package, checkout).partition(TITLE)[2].partition("\n## ")[0]

    assert statements_table(statements_of(package)) in section, f"publish the page of {package} anew"


# Constants that follow from a formula, and a section of a paper: no run measures them.
_NO_FIGURES = {"4.05", "3.209", "3.2"}


@pytest.mark.parametrize("package", PACKAGES)
def test_figures_of_statements_are_those_of_the_pages_tables(package: str, checkout: Path) -> None:
    """They are written by hand: where a page is made anew and a figure changes, its reason must."""
    tables = re.findall(r"\d*\.\d+", page_of(package, checkout).partition(TITLE)[0])

    for statement in statements_of(package):
        for figure in re.findall(r"(?<![\d.])\d*\.\d+", statement.why):
            digits = len(figure.partition(".")[2])
            shown = {f"{float(one):.{digits}f}" for one in tables if len(one.partition(".")[2]) >= digits}
            assert f"{float(figure):.{digits}f}" in shown | _NO_FIGURES, (statement.number, figure)


@pytest.mark.parametrize(
    ("package", "numbers"),
    [
        # What the paper numbers, as far as it is known.
        (
            "vertical_lr_privacy",
            "theorem 3.1, corollary 3.2, lemma 3.3, lemma 3.4, theorem 3.5, theorem 3.6, theorem 4.1, lemma 4.7, "
            "theorem 4.8, remark 4.9, equation (33), lemma 6.3, theorem 6.4, remark 6.5, theorem 6.6, lemma D.2, "
            "lemma D.3, theorem D.5, theorem E.2, theorem F.1, theorem F.2, figure 2, figure 3, figure 4",
        ),
        ("label_leakage", "observation 1, observation 2, figure 1, figure 2a, figure 2b, figure 2c"),
    ],
)
def test_every_number_that_is_known_has_a_row(package: str, numbers: str) -> None:
    own = [statement.number for statement in statements_of(package)]

    # "figure 3, above" is of figure 3.
    assert [number for number in numbers.split(", ") if not any(one.startswith(number) for one in own)] == []


def test_a_judged_statement_has_something_that_shows_it() -> None:
    with pytest.raises(ArgumentError, match="a part or a test that shows lemma 1"):
        Statement(number="lemma 1", says="", verdict="reproduces", why="")

    unseen = Statement(number="lemma 1", says="", verdict=None, why="")
    assert f"| lemma 1 |  | – | {NOT_JUDGED} |  |" in statements_table([unseen])
    assert NOT_JUDGED not in VERDICTS
