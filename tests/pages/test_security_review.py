"""The page of attacks names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs/security-review.md").read_text(encoding="utf-8")


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))

    assert len(named) > 40
    assert sorted(one for one in named if not (CHECKOUT / one).exists()) == []


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    text = "\n".join(path.read_text(encoding="utf-8") for path in (CHECKOUT / "tests").rglob("test_*.py"))

    assert len(named) > 5
    assert sorted(one for one in named if f"def {one}(" not in text) == []


def test_every_short_name_stands_for_one_file() -> None:
    # `test_lattice.py` after the folder of the row before it.
    names = set(re.findall(r"`(test_\w+\.py)`", PAGE))

    assert sorted(one for one in names if not list((CHECKOUT / "tests").rglob(one))) == []
