"""Sections of a results page, and how a page and its figures are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.reproduce.shared.claims import Claim, claims_table, write_whole

MADE = "How this page was made"
"""Heading of the last section."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a results page.

    Attributes:
        title: Its heading.
        body: Markdown: what was done, tables, remarks.
        figures: SVG files by name, without suffix; what is seen on them by the same name in ``captions``.
        captions: One line each.
        claims: For ``results.json``, and for a table at the section's end.
        claims_shown: Whether there is that table; many claims are better summed up in the body.
        opening: Markdown for the top of the page, where the template has ``{opening}``: what the section comes to.
    """

    title: str
    body: str
    figures: Mapping[str, str] = field(default_factory=dict)
    captions: Mapping[str, str] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    claims_shown: bool = True
    opening: str = ""

    def markdown(self) -> str:
        """Return the section as Markdown; figures lie in ``figures/`` beside the page."""
        pictures = [f"![{self.captions[name]}](figures/{name}.svg)\n\n*{self.captions[name]}*" for name in self.figures]
        table = [claims_table(self.claims)] if self.claims and self.claims_shown else []
        return "\n\n".join([f"## {self.title}", self.body.strip(), *pictures, *table])


def write_page(path: Path, *, template: Path, sections: Sequence[Section], settings_table: str) -> None:
    """Write a results page, and its figures into ``figures/`` beside it.

    Args:
        path: The page, ``.md``.
        template: Text with ``{settings}`` and ``{sections}`` where these go, and ``{opening}`` for what sections say at
            the top.
        sections: In order.
        settings_table: Data sets and scale as a Markdown table.
    """
    body = "\n\n".join(section.markdown() for section in sections)
    opening = "\n\n".join(section.opening.strip() for section in sections if section.opening)
    text = template.read_text(encoding="utf-8")
    # Not str.format: braces in the text would have to be doubled.
    for name, value in {"settings": settings_table, "opening": opening, "sections": body}.items():
        text = text.replace(f"{{{name}}}", value)
    write_whole(path, text.rstrip() + "\n")
    write_figures(path.parent / "figures", sections)


def write_figures(folder: Path, sections: Sequence[Section]) -> None:
    """Write every section's figures as ``NAME.svg``."""
    for section in sections:
        for name, text in section.figures.items():
            write_whole(folder / f"{name}.svg", text)
