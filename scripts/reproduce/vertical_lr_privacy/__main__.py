"""Reproduce the figures of *Is Vertical Logistic Regression Privacy-Preserving?*, and write what comes of it.

    python -m scripts.reproduce.vertical_lr_privacy --out DIR [--quick] [--only PART,...] [--page FOLDER]

``DIR/results.json`` holds one row per claim; ``DIR/vertical-lr-privacy.md`` and ``DIR/figures/`` are the page with its
figures, which ``--page`` also writes into another folder. Finished pieces of work are kept in ``DIR/jobs``: a run that
was broken off goes on where it stood.

Source: *Is Vertical Logistic Regression Privacy-Preserving? A Comprehensive Privacy Analysis and Beyond*, figures 2–4.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reproduce.shared.claims import grouped, markdown_table, shown
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.vertical_lr_privacy import (
    features,
    first_batch,
    first_weights,
    labels,
    noise,
    noisy_signs,
    stacking,
    statements,
)
from scripts.reproduce.vertical_lr_privacy.study import describe, problems

PARTS: Mapping[str, Callable[[Settings], list[Section]]] = {
    "rates": noise.rate_sections,
    "labels": labels.sections,
    "first-weights": first_weights.sections,
    "noise": noise.sections,
    "noisy-signs": noisy_signs.sections,
    "stacking": stacking.sections,
    "first-batch": first_batch.sections,
    "features": features.sections,
    "statements": statements.sections,
}


def settings_table(settings: Settings) -> str:
    """Return the data sets, what they look like as they are scaled, and how long each is trained on, as a table."""
    chosen = problems(settings)
    jobs = [Job(describe, {"problem": problem.as_settings(), "seed": 0}) for problem in chosen]
    found = run_jobs(jobs, settings.jobs, workers=settings.workers)
    headings = (
        "data",
        "training records",
        "test",
        "larger class (test)",
        "columns A + B",
        "constant ones at B",
        "rank of B's batches",
        "batch",
        "epochs",
        "median row norm",
        "largest row norm",
        "β",
    )
    rows = [
        (
            problem.title,
            grouped(result["records"]),
            grouped(result["test"]),
            shown(result["majority_test"]),
            f"{result['active']} + {result['passive']}",
            str(result["constant"]),
            "–".join(str(end) for end in dict.fromkeys(result["rank"])),
            str(problem.batch_size),
            str(problem.epochs),
            shown(result["typical"], 2),
            shown(result["radius"], 2),
            shown(result["smoothness"]),
        )
        for problem, result in zip(chosen, found, strict=True)
    ]
    return markdown_table(headings, rows)


reproduction = Reproduction(
    name="vertical_lr_privacy",
    parts=PARTS,
    template=Path(__file__).with_name("page.md"),
    page="vertical-lr-privacy.md",
    settings_table=settings_table,
    quick="half a minute on bundled data",
    quick_seeds=2,
)
main = reproduction.main

if __name__ == "__main__":
    sys.exit(main())
