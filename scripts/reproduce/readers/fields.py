"""What readers find of numbers and of categories, in training and of records that are evaluated, on clicks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.reproduce.readers.arrangements import CLICKS, HEADINGS, at_hand
from scripts.reproduce.readers.runs import read
from scripts.reproduce.shared.claims import UNIT, markdown_table, mean, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

SEEDS = 3
READERS: Mapping[str, Mapping[str, Any]] = {
    f"`{name}`, {100 * known:g} %": {"name": name, "known_share": known}
    for name, known in (
        ("ridge", 0.05),
        ("ridge", 0.2),
        ("stacked-ridge", 0.05),
        ("inverse-network", 0.05),
        ("inverse-network", 0.2),
    )
}
"""By what a row is called."""

READ = ("reader, known", "numbers", "categories", "numbers, evaluated", "categories, evaluated")


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    chosen, seeds = at_hand([CLICKS], settings), min(settings.seeds, SEEDS)
    jobs = [Job(read, one.settings([*READERS.values()], seed)) for one in chosen for seed in range(seeds)]
    runs = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    rows = [(name, *_cells([run["readings"][place] for run in runs])) for place, name in enumerate(READERS) if runs]
    body = f"""
Means over the partner's numbers, and over its fields of categories, of the last epoch and of the last evaluation, whose
records the reader has not met. Over seeds, with half of the 95 % interval.

{markdown_table(HEADINGS, [one.row(seeds) for one in chosen], left=2)}

{markdown_table(READ, rows)}
"""
    return [Section(title="Numbers and categories", body=body)]


def _cells(readings: Sequence[Result]) -> list[str]:
    return [
        with_interval([_mean(one[when], categories=kind) for one in readings], 2, limits=UNIT)
        for when in ("columns", "evaluated")
        for kind in (False, True)
    ]


def _mean(columns: Sequence[Mapping[str, Any]], *, categories: bool) -> float:
    found = [one["share"] for one in columns if one["categories"] == categories]
    return mean(found) if found else math.nan
