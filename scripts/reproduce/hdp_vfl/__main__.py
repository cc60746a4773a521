"""Reproduce *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*, and write what comes.

    python -m scripts.reproduce.hdp_vfl --out DIR [--quick] [--only PART,...] [--page FOLDER]

``DIR/results.json`` holds one row per claim; ``DIR/hdp-vfl.md`` and ``DIR/figures/`` are the page with its figures,
which ``--page`` also writes into another folder. Finished pieces of work are kept in ``DIR/jobs``: a run that was
broken off goes on where it stood.

Source: *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from scripts.reproduce.hdp_vfl import (
    costs,
    figure_1,
    figure_2,
    label_protection,
    other_losses,
    preprocessing,
    theorems,
)
from scripts.reproduce.hdp_vfl.study import problems, sizes_of, table_of, widths_of
from scripts.reproduce.shared.claims import grouped, markdown_table, shown
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

PARTS: tuple[tuple[str, Callable[[Settings], list[Section]]], ...] = (
    ("preprocessing", preprocessing.sections),
    ("figure-1", figure_1.sections),
    ("figure-2", figure_2.sections),
    ("label-protection", label_protection.sections),
    ("other-losses", other_losses.sections),
    ("theorems", theorems.sections),
    ("costs", costs.sections),
)
"""The parts of the page in their order: a module each, with one function."""


def settings_table(settings: Settings) -> str:
    """Return the data sets as they were used, and how each is trained on, as a table."""
    rows = []
    for problem in problems(settings):
        table, widths, (_, *columns) = table_of(problem, 0), widths_of(problem), sizes_of(problem)
        count = len(table.labels)
        size = min(problem.batch_size, count)
        rows.append(
            (
                problem.title,
                grouped(count),
                grouped(len(table.test_labels)),
                " + ".join(map(str, columns)),
                " + ".join(map(str, widths)),
                shown(float(table.test_labels.mean())),
                shown(table.majority),
                grouped(size),
                str(problem.epochs * (count // size)),
            )
        )
    headings = (
        "data",
        "training records",
        "test",
        "columns",
        "as numbers",
        "positives",
        "larger class",
        "batch",
        "steps",
    )
    return markdown_table(headings, rows)


reproduction = Reproduction(
    name="hdp_vfl",
    parts=dict(PARTS),
    template=Path(__file__).with_name("page.md"),
    page="hdp-vfl.md",
    settings_table=settings_table,
    quick="under two minutes on bundled data",
    quick_seeds=2,
)
main = reproduction.main

if __name__ == "__main__":
    sys.exit(main())
