"""Reproduce *Privacy Against Inference Attacks in Vertical Federated Learning*, and write what comes of it.

    python -m scripts.reproduce.prediction_phase --out DIR [--quick] [--check] [--only PART,...] [--page FOLDER]

``DIR/results.json`` holds one row per claim; ``DIR/prediction-phase.md`` and ``DIR/figures/`` are the page with its
figures, which ``--page`` also writes into another folder. Finished pieces of work are kept in ``DIR/jobs``: a run that
was broken off goes on where it stood.

Source: Rassouli, Varasteh, Gündüz, *Privacy Against Inference Attacks in Vertical Federated Learning*.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reproduce.prediction_phase import black_box, figures, gradient, noise, penalties, statements
from scripts.reproduce.prediction_phase.study import TITLES, VARIANTS, problems, table_of
from scripts.reproduce.shared.claims import grouped, markdown_table, shown
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

PARTS: Mapping[str, Callable[[Settings], list[Section]]] = {
    "anchors": figures.anchor_sections,
    "penalties": penalties.sections,
    "estimates": figures.estimate_sections,
    "bounds": figures.bound_sections,
    "black-box": black_box.sections,
    "flip": figures.flip_sections,
    "noise": noise.sections,
    "gradient": gradient.sections,
    "statements": statements.sections,
}


def settings_table(settings: Settings) -> str:
    """Return table I: the data as they were used, in both variants."""
    rows = []
    for variant in VARIANTS:
        for problem in problems(settings, variant):
            table = table_of(problem, 0)
            majority = max((table.test_labels == label).mean() for label in range(table.classes))
            rows.append(
                (
                    problem.title,
                    TITLES[variant],
                    grouped(len(table.train)),
                    grouped(len(table.test)),
                    str(table.train.shape[1]),
                    str(table.classes),
                    shown(float(majority)),
                    shown(float(((table.test - 0.5) ** 2).mean()), 4),
                )
            )
    headings = ("data", "variant", "training records", "test", "columns", "classes", "largest class", "Half")
    return markdown_table(headings, rows, left=2)


reproduction = Reproduction(
    name="prediction_phase",
    parts=PARTS,
    template=Path(__file__).with_name("page.md"),
    page="prediction-phase.md",
    settings_table=settings_table,
    quick="some seconds on a little generated data",
    quick_seeds=2,
    proved=(
        "lemma",
        "proposition",
        "theorem",
        "remark",
        "rank A = d",
        "Half* never misses more",
        "schemes 1 to 3 and the class label keep",
        "the flip leaves scores",
    ),
)
main = reproduction.main

if __name__ == "__main__":
    sys.exit(main())
