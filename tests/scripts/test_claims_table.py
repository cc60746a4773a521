"""The table of what defenses claim, in the page as the code says it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import claims_table
from splitvfl.config.registry import built_in


def test_the_page_is_up_to_date() -> None:
    written = claims_table.PAGE.read_text(encoding="utf-8")

    assert claims_table.filled(written) == written, "run python -m scripts.claims_table"


def test_every_defense_has_a_row_that_says_something() -> None:
    rows = [line for line in claims_table.table().splitlines() if line.startswith("| `")]

    assert [re.match(r"\| `(?:\{name: )?([\w-]+)", row)[1] for row in rows] == sorted(built_in("defenses"))  # type: ignore[index]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 4
        # What is promised rests on something; of what is not, that is said.
        assert (cells[2] != "—") != ("promises nothing" in cells[1]), row


def test_a_page_without_its_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Nothing\n")
    with pytest.raises(ValueError, match="expected the lines"):
        claims_table.main(["--page", str(page)])

    page.write_text(f"# A page\n\n{claims_table.BEGIN}\nSTALE\n{claims_table.END}\n\nAfter.\n")
    assert claims_table.main(["--page", str(page)]) == 0
    assert "STALE" not in page.read_text()
    assert page.read_text().endswith(f"{claims_table.END}\n\nAfter.\n")
