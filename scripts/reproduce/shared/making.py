"""How a page was made: of how many kept results, at which cost, of which code, and without what."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.reproduce.shared.claims import grouped
from scripts.reproduce.shared.jobs import Cell
from scripts.reproduce.shared.pages import MADE, Section
from scripts.reproduce.shared.settings import Settings

_NAMED = 12
"""So many cells of older code are named on a page; more are counted by their functions, and named in the results."""


@dataclass(frozen=True, kw_only=True)
class Making:
    """How a page was made.

    Attributes:
        cells: The kept results that it was made of, by part; those of no part alone under an empty name.
        missing: What data are left out: the file that is not there, by the title of the data.
        parts_left_out: Parts of the reproduction that were not asked for.
        quick: Whether on little data.
        published: The file in which the cells lie, from the page; empty if they are not published.
    """

    cells: Mapping[str, Sequence[Cell]]
    missing: Mapping[str, str]
    parts_left_out: Sequence[str] = ()
    quick: bool = False
    published: str = ""

    @classmethod
    def of(
        cls,
        settings: Settings,
        cells: Mapping[str, Sequence[Cell]],
        parts_left_out: Sequence[str],
        published: str = "",
    ) -> Making:
        """Return how a page was made with these settings."""
        return cls(
            cells=cells,
            missing=settings.missing,
            parts_left_out=parts_left_out,
            quick=settings.quick,
            published=published,
        )

    @property
    def every_cell(self) -> list[Cell]:
        """The cells of all parts."""
        return [cell for cells in self.cells.values() for cell in cells]

    @property
    def stale(self) -> list[Cell]:
        """Those of older code."""
        return [cell for cell in self.every_cell if cell.stale]

    def as_results(self) -> dict[str, Any]:
        """Return what ``results.json`` says of it."""
        return {
            "quick": self.quick,
            "missing": dict(self.missing),
            "parts_left_out": list(self.parts_left_out),
            "cells": [
                {
                    "name": cell.name,
                    "part": part or None,
                    "label": cell.label,
                    "seconds": None if math.isnan(cell.seconds) else cell.seconds,
                    "stale": cell.stale,
                }
                for part, cells in self.cells.items()
                for cell in cells
            ],
        }

    def section(self) -> Section:
        """Return the last section of the page."""
        alone = [_ALONE] if any(part and cells for part, cells in self.cells.items()) else []
        if self.published and self.every_cell:
            alone.append(
                f"The cells lie in [{self.published}]({self.published}), a line of JSON each; `--begin-with` that "
                "file, and `--keep-stale` where code has changed since, make this page of them and run nothing."
            )
        verdicts = "What the verdicts mean stands on the [overview](index.md)."
        return Section(title=MADE, body="\n".join([self.body(), *(f"- {line}" for line in [*alone, verdicts])]).strip())

    def body(self) -> str:
        """Return what is left out, what it cost, and what is of older code, as items of a list."""
        return "\n".join(f"- {line}" for line in [*self._left_out(), *self._cost(), *self._age()])

    def _left_out(self) -> list[str]:
        found = ["**A quick run on little data**: it shows that the command works, and nothing else."] * self.quick
        if self.parts_left_out:
            found.append(f"**Without these parts**, which were not asked for: {', '.join(self.parts_left_out)}.")
        return found + [
            f"**Without rows of {title}**: there was no `{name}` among the data files."
            for title, name in self.missing.items()
        ]

    def _cost(self) -> list[str]:
        known = [cell.seconds for cell in self.every_cell if not math.isnan(cell.seconds)]
        unknown = len(self.every_cell) - len(known)
        if not self.every_cell:
            return []
        cost = f"{duration(math.fsum(known))} of CPU time in all" if known else "CPU time not measured"
        beside = f" (not measured for {unknown} of them)" if known and unknown else ""
        return [
            f"{grouped(len(self.every_cell))} cells, runs that are kept with settings, seed and code: {cost}{beside}."
        ]

    def _age(self) -> list[str]:
        if not self.every_cell:
            return []
        if not self.stale:
            return ["No cell is of older code than the page."]
        if len(self.stale) <= _NAMED:
            which = ", ".join(f"`{cell.name}` ({cell.label})" for cell in self.stale)
        else:
            counts = Counter(cell.name.rpartition("-")[0] for cell in self.stale)
            which = ", ".join(f"{number} of `{work}`" for work, number in counts.items())
            which += "; `results.json` names them"
        counted = f"{grouped(len(self.stale))} of {grouped(len(self.every_cell))}"
        return [f"**{counted} cells are of older code than the page**: {which}."]


_ALONE = "`--only PART:CELL` runs one cell alone and compares it with what is kept; `results.json` lists all."


def duration(seconds: float) -> str:
    """Return a time in the unit in which it is read best.

    >>> duration(94.2), duration(3412), duration(12000)
    ('94 s', '57 minutes', '3.3 hours')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
