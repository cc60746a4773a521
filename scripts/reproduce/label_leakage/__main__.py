"""Regenerate the figures of "Label Leakage and Protection in Two-party Split Learning", and say what reproduces.

``python -m scripts.reproduce.label_leakage [--quick] --out DIR`` writes ``DIR/results.json``,
``DIR/label-leakage.md`` and ``DIR/figures/*.svg``. Finished pieces of work are kept in ``DIR/jobs``, so that a run
which was broken off goes on where it stood.

Source: Li et al., ICLR 2022, arXiv:2102.08504.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reproduce.label_leakage import course, figure_1, figure_2, statements
from scripts.reproduce.label_leakage.study import describe, problems
from scripts.reproduce.shared.claims import grouped, markdown_table
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

PARTS: Mapping[str, Callable[[Settings], list[Section]]] = {
    "figure-1": figure_1.sections,
    "figure-2": figure_2.sections,
    "course": course.sections,
    "statements": statements.sections,
}


def settings_table(settings: Settings) -> str:
    """Return the data sets, and at which scale each was run, as a Markdown table."""
    chosen = problems(settings)
    jobs = [Job(describe, {"problem": problem.as_settings(), "seed": problem.seeds[0]}) for problem in chosen]
    found = run_jobs(jobs, settings.jobs, workers=settings.workers)
    rows = [
        (
            problem.title,
            grouped(result["records"]),
            f"{100 * result['positives'] / result['records']:.1f} %",
            str(problem.batch_size),
            str(problem.epochs),
            str(problem.epochs * -(-result["records"] // problem.batch_size)),
            str(len(problem.seeds)),
        )
        for problem, result in zip(chosen, found, strict=True)
    ]
    return markdown_table(("data", "training records", "positives", "batch", "epochs", "steps", "seeds"), rows)


reproduction = Reproduction(
    name="label_leakage",
    parts=PARTS,
    template=Path(__file__).with_name("page.md"),
    page="label-leakage.md",
    settings_table=settings_table,
    quick="a minute on small generated data",
    clicks=1_000_000,
)
main = reproduction.main

if __name__ == "__main__":
    sys.exit(main())
