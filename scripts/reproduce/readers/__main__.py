"""What each reader finds: of columns in messages, behind penalties and in scores, and of who was trained on.

    python -m scripts.reproduce.readers --out DIR [--quick] [--only PART,...] [--page FOLDER]

trains on digits and breast cancer, on generated columns, and on bank marketing, credit default and a sample of Criteo
where their files are there, and writes ``DIR/results.json``, ``DIR/readers.md`` and, with ``--page``, the page of the
documentation. Finished pieces of work are kept in ``DIR/jobs``: a run that was broken off goes on where it stood.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reproduce.readers import fields, members, penalties, sampled, scores, side_by_side
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

PARTS: Mapping[str, Callable[[Settings], list[Section]]] = {
    "penalties": penalties.sections,
    "knowing": side_by_side.knowing,
    "guessing": side_by_side.guessing,
    "fields": fields.sections,
    "sampled": sampled.sections,
    "scores": scores.sections,
    "members": members.sections,
}
"""The parts of the page in their order."""


def _no_table(settings: Settings) -> str:
    """Return nothing: each section has its own table of data sets."""
    return ""


reproduction = Reproduction(
    name="readers",
    parts=PARTS,
    template=Path(__file__).with_name("page.md"),
    page="readers.md",
    settings_table=_no_table,
    quick="two epochs of some hundred digits, in place of all data",
    quick_seeds=1,
    publishes_cells=True,
)
main = reproduction.main

if __name__ == "__main__":
    sys.exit(main())
