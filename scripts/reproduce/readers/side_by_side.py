"""What each reader that knows records finds in the same messages, and what readers find that assume less."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.reproduce.readers.arrangements import HEADINGS, OF_MESSAGES, Arrangement, at_hand
from scripts.reproduce.readers.runs import read
from scripts.reproduce.shared.claims import UNIT, in_percent, markdown_table, mean, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

KNOWN = 0.05
ASKED = 8
"""Of so many records of a message readers are asked for estimates that take long."""
SEEDS = 3

KNOWING: Mapping[str, Mapping[str, Any]] = {
    "`ridge`": {"name": "ridge", "known_share": KNOWN},
    "`inverse-network`": {"name": "inverse-network", "known_share": KNOWN},
    "`stacked-ridge`": {"name": "stacked-ridge", "known_share": KNOWN},
    "`white-box-inversion`": {"name": "white-box-inversion", "known_share": KNOWN, "records": ASKED},
}
"""By heading: who knows what was sent of some records."""

GUESSING: Mapping[str, Mapping[str, Any]] = {
    "`pseudo-client`": {"name": "pseudo-client", "known_share": KNOWN},
    "with `loss: adversary`": {"name": "pseudo-client", "known_share": KNOWN, "loss": "adversary"},
    "with `top_weight: 0.1`": {"name": "pseudo-client", "known_share": KNOWN, "top_weight": 0.1},
    "`unsplit`": {"name": "unsplit", "records": ASKED},
}
"""By heading: who does not."""

WITHOUT_GUESSES = ("digits, 64-64-16", "digits, 64-64-4")
"""Arrangements that are left out there: they take long."""

DATA = "data, layers of the partner"
KNOWING_HEADINGS = (DATA, *KNOWING)
GUESSING_HEADINGS = (DATA, "`ridge`", *GUESSING)


def knowing(settings: Settings) -> list[Section]:
    """Return the section on readers that know what was sent of some records."""
    chosen = at_hand(OF_MESSAGES, settings)
    seeds = min(settings.seeds, SEEDS)
    found = _runs(chosen, KNOWING, settings)
    body = f"""
Each row is of the same runs for all readers: the share of variance in the last epoch, its mean over seeds and half of
the 95 % interval of that mean; where the interval would reach beyond what a share can be, least and most of the seeds
in square brackets. Readers know {in_percent(KNOWN)} of the records. `white-box-inversion`, which has the partner's
half of the model besides, is asked for {ASKED} records of each message. In bold is the largest mean of a row.

{markdown_table(HEADINGS, [one.row(seeds) for one in chosen], left=2)}

{markdown_table(KNOWING_HEADINGS, [_row(one, runs, KNOWING) for one, runs in zip(chosen, found, strict=True)])}
"""
    return [Section(title="Readers of messages side by side", body=body)]


def guessing(settings: Settings) -> list[Section]:
    """Return the section on readers that do not, beside what ridge regression finds in the same runs."""
    chosen = [one for one in at_hand(OF_MESSAGES, settings) if one.title not in WITHOUT_GUESSES]
    # Who reads changes nothing of a run, so that ridge need not be asked again.
    pairs = zip(_runs(chosen, KNOWING, settings), _runs(chosen, GUESSING, settings), strict=True)
    found = [[_joined(*both) for both in zip(*pair, strict=True)] for pair in pairs]
    readers = {"`ridge`": KNOWING["`ridge`"], **GUESSING}
    body = f"""
Two readers assume less than the others: `pseudo-client` knows columns of {in_percent(KNOWN)} of the records, and not
what was sent of them, and `unsplit` no record. Data and models are those of the section above; `unsplit` is asked for
{ASKED} records of each message.

{markdown_table(GUESSING_HEADINGS, [_row(one, runs, readers) for one, runs in zip(chosen, found, strict=True)])}

{_counted(found)}
"""
    return [Section(title="Readers that assume less", body=body)]


def _runs(
    chosen: Sequence[Arrangement], readers: Mapping[str, Mapping[str, Any]], settings: Settings
) -> list[list[Result]]:
    seeds = range(min(settings.seeds, SEEDS))
    jobs = [Job(read, one.settings([*readers.values()], seed)) for one in chosen for seed in seeds]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    return [[next(results) for _ in seeds] for _ in chosen]


def _joined(one: Result, other: Result) -> Result:
    return {"readings": [*one["readings"], *other["readings"]]}


def shares(runs: Sequence[Result], attack: str) -> list[float]:
    """Return what one attack read in each run; NaN where it was not judged."""
    return [next((one["share"] for one in run["readings"] if one["attack"] == attack), math.nan) for run in runs]


def _row(one: Arrangement, runs: Sequence[Result], readers: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    return (one.title, *_cells([shares(runs, name) for name in labels(readers)]))


def labels(readers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what the readers are called in a run: the second of a name is NAME-2, and so on."""
    names = [one["name"] for one in readers.values()]
    return [
        name if names[:place].count(name) == 0 else f"{name}-{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    ]


def _cells(by_reader: Sequence[Sequence[float]]) -> list[str]:
    """Return what each reader found, the largest in bold."""
    means = [mean(values) for values in by_reader]
    best = max((value for value in means if not math.isnan(value)), default=math.nan)
    texts = [with_interval(values, 2, limits=UNIT) for values in by_reader]
    return [f"**{text}**" if value == best else text for text, value in zip(texts, means, strict=True)]


def _counted(found: Sequence[Sequence[Result]]) -> str:
    """Say in how many runs one who assumes less found more than ridge."""
    runs = [run for one in found for run in one]
    more = sum(any(shares([run], name)[0] > shares([run], "ridge")[0] for name in labels(GUESSING)) for run in runs)
    return f"In {more} of the {len(runs)} runs one of them found more than `ridge`."
