"""Who was trained on: what attacks on membership find, with intervals over records."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.reproduce.readers.arrangements import HEADINGS, OF_MEMBERS, Arrangement, at_hand
from scripts.reproduce.readers.runs import read
from scripts.reproduce.shared.claims import markdown_table, mean, shown
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

ATTACKS = ({"name": "loss-threshold"}, {"name": "calibrated-loss", "known_share": 0.2})
SEEDS = 3
READ = (
    "data, epochs",
    "members / others",
    "AUC, `loss-threshold`",
    "AUC, `calibrated-loss`",
    "found at 1 %, `loss-threshold`",
)


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    chosen, seeds = at_hand(OF_MEMBERS, settings), min(settings.seeds, SEEDS)
    jobs = [Job(read, one.settings(ATTACKS, seed)) for one in chosen for seed in range(seeds)]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    found = [(one, [next(results) for _ in range(seeds)]) for one in chosen]
    body = f"""
Means over {seeds} seeds, in brackets the mean ends of the runs' own 95 % intervals, which are of records: seeds change
first weights and order and not which records there are, so that runs of other seeds make no interval narrower. Behind
it least and most of the seeds. `calibrated-loss` knows a fifth of the records, by which it is not judged. A dash: there
are too few others to say who is found at 1 % false alarms.

{markdown_table(HEADINGS, [one.row(seeds) for one in chosen], left=2)}

{markdown_table(READ, [row(one, runs) for one, runs in found])}
"""
    return [Section(title="Who was trained on", body=body)]


def row(one: Arrangement, runs: Sequence[Result]) -> tuple[str, ...]:
    """Return what was found in the runs of one arrangement."""
    first = runs[0]["members"][0]
    aucs = (_cell(runs, place, ("auc", "low", "high")) for place in range(len(ATTACKS)))
    hits = _cell(runs, 0, ("hits", "hits_low", "hits_high"), digits=3)
    return one.title, f"{first['members']} / {first['others']}", *aucs, hits


def _cell(runs: Sequence[Result], attack: int, figures: tuple[str, str, str], digits: int = 2) -> str:
    """Return a mean, the mean ends of its interval, and least and most of the seeds."""
    by_figure = [[run["members"][attack][figure] for run in runs] for figure in figures]
    middle, low, high = (shown(mean(values), digits) for values in by_figure)
    if middle == "–":
        return middle
    least, most = (shown(end(by_figure[0]), digits) for end in (min, max))
    seeds = f"; {least} to {most}" if len(runs) > 1 else ""
    return f"{middle} ({low} to {high}{seeds})"
