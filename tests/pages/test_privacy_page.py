"""What the page on privacy shows can be run."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_the_budget_of_the_page_is_kept_and_stated(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (checkout / "docs/reference/privacy.md").read_text(encoding="utf-8")
    (block,) = [part.split("```")[0] for part in page.split("```python\n")[1:]]

    exec(compile(block, "docs/reference/privacy.md", "exec"), {})

    said = capsys.readouterr().out
    assert "is protected from bank: (ε, δ) = (1, 0.001) in 80 steps." in said
    assert "Not covered, evaluation" in said
