"""What the label party reads of a partner's columns in its activations, and what it costs to prevent it.

    python -m scripts.reproduce.feature_leak --out DIR [--quick] [--only PART,...] [--page FOLDER]

trains on digits, and on bank marketing, credit default and a sample of Criteo where their files are there, and writes
``DIR/results.json``, ``DIR/feature-leak.md`` and ``DIR/figures/``; with ``--page`` the page of the documentation, too.
Finished pieces of work are kept in ``DIR/jobs``: a run that was broken off goes on where it stood.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reproduce.feature_leak import advice, defended, directions, pictures, published, shapes, stronger, trial
from scripts.reproduce.feature_leak.arrangements import Arrangement
from scripts.reproduce.feature_leak.runs import describe
from scripts.reproduce.feature_leak.study import at_hand
from scripts.reproduce.shared.claims import grouped, markdown_table
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

PARTS: Mapping[str, Callable[[Settings], list[Section]]] = {
    "pictures": pictures.sections,
    "trial": trial.sections,
    "shapes": shapes.sections,
    "defended": defended.sections,
    "stronger": stronger.sections,
    "directions": directions.sections,
    "advice": advice.sections,
    "published": published.sections,
}
"""The parts of the page in their order: a module each, with one function."""


def settings_table(settings: Settings) -> str:
    """Return the data sets, who holds what, and what is tried, as a Markdown table."""
    chosen = at_hand(settings)
    jobs = [Job(describe, {"arrangement": one.as_settings()}) for one in chosen]
    found = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    headings = (
        "data",
        "training records",
        "validation",
        "test",
        "positives",
        "columns: label party / partner",
        "batch",
        "epochs and rates tried",
        "seeds",
    )
    rows = [_described(one, about, settings.seeds) for one, about in zip(chosen, found, strict=True)]
    return markdown_table(headings, rows)


def _described(one: Arrangement, about: Result, seeds: int) -> tuple[str, ...]:
    return (
        one.title,
        grouped(about["train"]),
        grouped(one.sample.validation),
        grouped(about["test"]),
        f"{100 * about['positives'] / about['train']:.1f} %",
        f"{about['own']} / {about['partner']}",
        str(one.batch_size),
        f"{', '.join(map(str, one.epochs))}; {', '.join(f'{rate:g}' for rate in one.rates)}",
        str(seeds),
    )


reproduction = Reproduction(
    name="feature_leak",
    parts=PARTS,
    template=Path(__file__).with_name("page.md"),
    page="feature-leak.md",
    settings_table=settings_table,
    quick="two epochs of some hundred digits, in place of all data",
    quick_seeds=2,
    publishes_cells=True,
)
main = reproduction.main

if __name__ == "__main__":
    sys.exit(main())
