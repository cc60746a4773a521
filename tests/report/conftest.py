"""Figures are left empty but where a test asks for them: drawing takes most of the time of a page."""

from __future__ import annotations

from html import escape

import pytest

from splitvfl.report import figures
from tests.summaries import summaries_keep_to_their_schema

__all__ = ["summaries_keep_to_their_schema"]


@pytest.fixture
def drawn() -> None:
    """Let figures be drawn."""


@pytest.fixture(autouse=True)
def _empty_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(figures, "inline_svg", _empty_svg)
        monkeypatch.setattr(figures, "settle", lambda drawn: None)


def _empty_svg(drawn: object, name: str, *, alt: str = "") -> str:
    return f'<svg id="{name}" role="img" aria-label="{escape(alt)}"></svg>'
