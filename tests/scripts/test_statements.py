"""Every numbered claim of a results page names runs and tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts.reproduce.label_leakage import __main__ as label_leakage
from scripts.reproduce.label_leakage import statements as of_label_leakage
from scripts.reproduce.shared.statements import NOT_JUDGED, Statement, statements_table
from scripts.reproduce.vertical_lr_privacy import __main__ as vertical_lr_privacy
from scripts.reproduce.vertical_lr_privacy import statements as of_vertical_lr
from splitvfl.errors import ArgumentError

PAGES = {
    "label-leakage.md": (of_label_leakage.STATEMENTS, label_leakage.PARTS),
    "vertical-lr-privacy.md": (of_vertical_lr.STATEMENTS, vertical_lr_privacy.PARTS),
}

NUMBERED = """
    theorem 3.1, corollary 3.2, lemma 3.3, lemma 3.4, theorem 3.5, theorem 3.6, theorem 4.1, lemma 4.7, theorem 4.8,
    remark 4.9, equation (33), section 5.2, lemma 6.3, theorem 6.4, remark 6.5, theorem 6.6, algorithm 3, figure 2,
    figure 3, above, figure 3, below, figure 4, lemma D.2, lemma D.3, theorem D.5, theorem E.2, theorem F.1, theorem F.2
"""


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_are_named_exist(page: str, checkout: Path) -> None:
    named = {test for statement in PAGES[page][0] for test in statement.tests}
    assert named
    for test in sorted(named):
        file, _, name = test.partition("::")
        assert re.fullmatch(r"test_\w+", name), test
        assert name in functions_of(checkout / file), test


@pytest.mark.parametrize("page", PAGES)
def test_the_parts_that_are_named_are_run(page: str) -> None:
    statements, parts = PAGES[page]
    for statement in statements:
        assert set(statement.parts) <= set(parts), statement.number
    assert len({statement.number for statement in statements}) == len(statements)


@pytest.mark.parametrize("page", PAGES)
def test_the_committed_page_has_every_row(page: str, checkout: Path) -> None:
    text = (checkout / "docs" / "results" / page).read_text(encoding="utf-8")
    assert statements_table(PAGES[page][0]) in text


def test_no_number_of_the_paper_is_left_out() -> None:
    given = [statement.number for statement in of_vertical_lr.STATEMENTS]
    wanted = re.split(r",\s+(?!above|below)", NUMBERED.strip())
    assert len(wanted) == 27
    assert set(wanted) <= set(given)


def test_what_is_judged_is_shown_by_something() -> None:
    with pytest.raises(ArgumentError, match="shows lemma 0, got none"):
        Statement(number="lemma 0", says="x", verdict="reproduces", why="y")
    unseen = Statement(number="lemma 0", says="x", verdict=None, why="y")
    assert statements_table([unseen]).endswith(f"| lemma 0 | x | – | {NOT_JUDGED} | y |")


def test_a_row_names_parts_and_tests() -> None:
    row = Statement(number="a", says="b | c", parts=("p",), tests=("tests/t.py::test_t",), verdict="does not", why="d")
    assert statements_table([row]).splitlines()[-1] == "| a | b \\| c | part `p`, `tests/t.py::test_t` | does not | d |"
