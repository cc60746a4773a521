"""Reproduce *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, and write what comes of it.

    python -m scripts.reproduce.residue_protection --out DIR [--quick] [--only PART,...] [--page FOLDER]

``DIR/results.json`` holds one row per claim; ``DIR/residue-protection.md`` and ``DIR/figures/`` are the page with its
figures, which ``--page`` also writes into another folder. Finished pieces of work are kept in ``DIR/jobs``: a run that
was broken off goes on where it stood.

Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from scripts.reproduce.residue_protection import (
    as_printed,
    beyond,
    figures,
    one_batch,
    preprocessing,
    recovery_time,
    resists,
    table_2,
    times,
)
from scripts.reproduce.residue_protection.study import problems, table_of
from scripts.reproduce.residue_protection.training import RATES
from scripts.reproduce.shared.claims import grouped, markdown_table, shown
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

PARTS: tuple[tuple[str, Callable[[Settings], list[Section]]], ...] = (
    ("preprocessing", preprocessing.sections),
    ("table-2", table_2.sections),
    ("as-printed", as_printed.sections),
    ("figures", figures.sections),
    ("times", times.sections),
    ("recovery-time", recovery_time.sections),
    ("beyond", beyond.sections),
    ("one-batch", one_batch.sections),
    ("resists", resists.sections),
)
"""The parts of the page in their order: a module each, with one function."""


def settings_table(settings: Settings) -> str:
    """Return the data sets as they were used, and how each is trained on, as a table."""
    rows = []
    for problem in problems(settings):
        table = table_of(problem, 0)
        rows.append(
            (
                problem.title,
                grouped(len(table.train)),
                grouped(len(table.test)),
                str(len(table.names)),
                shown(float(table.test_labels.mean())),
                shown(table.majority),
                problem.scaling,
                str(problem.batch_size),
                str(problem.epochs),
            )
        )
    headings = (
        "data",
        "training records",
        "test",
        "columns",
        "positives",
        "larger class",
        "columns as they are used",
        "batch",
        "epochs",
    )
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    return f"{markdown_table(headings, rows)}\n\nMultiples that are offered as learning rates: {rates}."


reproduction = Reproduction(
    name="residue_protection",
    parts=dict(PARTS),
    template=Path(__file__).with_name("page.md"),
    page="residue-protection.md",
    settings_table=settings_table,
    quick="half a minute on bundled data",
    quick_seeds=2,
)
main = reproduction.main

if __name__ == "__main__":
    sys.exit(main())
