"""What a reader misses that is called with some of the messages only."""

from __future__ import annotations

from scripts.reproduce.readers.arrangements import HEADINGS, LARGE_BATCHES, at_hand
from scripts.reproduce.readers.runs import read
from scripts.reproduce.shared.claims import UNIT, markdown_table, with_interval
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

SEEDS = 6
KNOWN = 0.05
CALLED = {"some of the messages": True, "every message": False}
READ = ("`ridge` is called with", "last epoch", "over the run")


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    chosen = at_hand([LARGE_BATCHES], settings)
    seeds = settings.seeds if settings.quick else SEEDS
    attacks = [{"name": "ridge", "known_share": KNOWN, "sampled": sampled} for sampled in CALLED.values()]
    jobs = [Job(read, one.settings(attacks, seed)) for one in chosen for seed in range(seeds)]
    runs = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    rows = [
        (
            name,
            *(
                with_interval([run["readings"][place][figure] for run in runs], 2, limits=UNIT)
                for figure in ("share", "accumulated")
            ),
        )
        for place, name in enumerate(CALLED)
        if runs
    ]
    body = f"""
`ridge` with `sampled: true`, as it is by default, and `sampled: false`, in the same runs; it knows {100 * KNOWN:g} % of
the records. Over the run: of each record's mean estimate.

{markdown_table(HEADINGS, [one.row(seeds) for one in chosen], left=2)}

{markdown_table(READ, rows)}
"""
    return [Section(title="Some messages, or every one", body=body)]
