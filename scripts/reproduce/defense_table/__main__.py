"""Every defense of gradients and labels against every label attack, on two data sets; and what a step costs.

    python -m scripts.reproduce.defense_table --out DIR [--quick] [--only PART,...] [--page FOLDER]

Every defense is trained at the number of epochs and the learning rate that validation records choose for it; then every
attack of the registry and the auditor look on. ``DIR/results.json`` holds one row per claim; ``DIR/defenses.md`` is the
page, which ``--page`` also writes into another folder. Each run is kept in ``DIR/jobs`` when it is done, so that what
was broken off goes on; after a change of the code that a run depends on, it is made anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.reproduce.defense_table import other_labels, plans
from scripts.reproduce.defense_table.arrangements import ARRANGEMENTS, Arrangement, shortened
from scripts.reproduce.defense_table.page import cost_section, late_section, study_section
from scripts.reproduce.defense_table.study import measured, measured_late
from scripts.reproduce.shared.claims import grouped, markdown_table
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.jobs import run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings, data_folder


def at_hand(settings: Settings) -> list[Arrangement]:
    """Return the data sets whose file is there, as they are used; what is missing is said, and left out."""
    found = [arrangement for arrangement in ARRANGEMENTS if settings.quick or _is_there(arrangement, settings)]
    return [shortened(arrangement) if settings.quick else arrangement for arrangement in found]


def _is_there(arrangement: Arrangement, settings: Settings) -> bool:
    path = data_folder() / arrangement.sample.file
    if arrangement.sample.file and not path.is_file():
        settings.leave_out(arrangement.title, path)
        return False
    return True


def _of_set(key: str, settings: Settings) -> list[Section]:
    """Return the section on one data set; none where its file is missing."""
    # Two tops of every defense on every set are compared with what sends no message.
    comparisons = 2 * len(plans.DEFENSES) * len(ARRANGEMENTS)
    return [
        study_section(measured(arrangement, settings, comparisons=comparisons))
        for arrangement in at_hand(settings)
        if arrangement.key == key
    ]


def costs(settings: Settings) -> list[Section]:
    """Return the section on milliseconds and bytes."""
    found = []
    rounds = 0
    for arrangement in at_hand(settings):
        jobs = plans.costs(arrangement, quick=settings.quick)
        *rows, once = run_jobs(
            [*jobs.values(), plans.crossing_once(arrangement)],
            settings.jobs,
            workers=settings.workers,
            say=settings.say,
        )
        rounds = next(iter(jobs.values())).settings["rounds"]
        found.append((arrangement, dict(zip(jobs, rows, strict=True)), once))
    return [cost_section(found, rounds=rounds)]


def late(settings: Settings) -> list[Section]:
    """Return the section on the runs to convergence."""
    return [late_section(measured_late(settings))]


PARTS: dict[str, Callable[[Settings], list[Section]]] = {
    **{arrangement.key: partial(_of_set, arrangement.key) for arrangement in ARRANGEMENTS},
    "costs": costs,
    "converged": late,
    "other-labels": other_labels.sections,
}
"""The parts of the page in their order."""


def settings_table(settings: Settings) -> str:
    """Return the data sets, and between which settings is chosen, as a table."""
    headings = (
        "data",
        "trained on",
        "validation",
        "batch",
        "layers on top",
        "epochs and rates with messages",
        "without",
        "canaries",
    )
    return markdown_table(headings, [_described(arrangement) for arrangement in at_hand(settings)])


def _described(arrangement: Arrangement) -> list[str]:
    def choices(epochs: tuple[int, ...], rates: tuple[float, ...]) -> str:
        return f"{', '.join(map(str, epochs))}; {', '.join(f'{rate:g}' for rate in rates)}"

    sample = arrangement.sample
    return [
        arrangement.key,
        "all training records" if sample.train is None else f"{grouped(sample.train)} records",
        f"{grouped(sample.validation)} {'of them' if sample.train is None else 'others'}",
        str(arrangement.batch_size),
        str(1 + len(arrangement.top_hidden)),
        choices(arrangement.epochs, arrangement.rates),
        choices(arrangement.silent_epochs, arrangement.silent_rates),
        str(arrangement.canaries),
    ]


reproduction = Reproduction(
    name="defense_table",
    parts=PARTS,
    template=Path(__file__).with_name("page.md"),
    page="defenses.md",
    settings_table=settings_table,
    quick="one epoch, few seeds, and digits in place of a file",
    publishes_cells=True,
    quick_seeds=2,
)
main = reproduction.main

if __name__ == "__main__":
    sys.exit(main())
