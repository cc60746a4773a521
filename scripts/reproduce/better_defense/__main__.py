"""Train every label defense at its best, and say what it keeps, what leaks, and whether there is a better one.

    python -m scripts.reproduce.better_defense --out DIR [--quick] [--only PART,...] [--page FOLDER]

``DIR/results.json`` holds one row per claim; ``DIR/better-defense.md`` and ``DIR/figures/`` are the page with its
figures, which ``--page`` also writes into another folder. Finished pieces of work are kept in ``DIR/jobs``: a run that
was broken off goes on where it stood.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reproduce.better_defense import chosen, equal_leak, kept, search, summary, worth
from scripts.reproduce.better_defense.settings import settings_table
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

PARTS: Mapping[str, Callable[[Settings], list[Section]]] = {
    "summary": summary.sections,
    "worth": worth.sections,
    "equal-leak": equal_leak.sections,
    "kept": kept.sections,
    "chosen": chosen.sections,
    "search": search.sections,
}
"""The parts of the page in their order: a module each, with one function."""

reproduction = Reproduction(
    name="better_defense",
    parts=PARTS,
    template=Path(__file__).with_name("page.md"),
    page="better-defense.md",
    settings_table=settings_table,
    quick="half a minute on bundled data",
    publishes_cells=True,
)
main = reproduction.main

if __name__ == "__main__":
    sys.exit(main())
