"""What each reader finds in the same messages, at three widths of the cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scripts.reproduce.feature_leak.runs import ASKED, KNOWN, READERS, measure_readers
from scripts.reproduce.feature_leak.study import Measured, at_hand, measured
from scripts.reproduce.feature_leak.ways import DEPTHS, SHAPES, WIDTHS, shaped
from scripts.reproduce.shared.claims import UNIT, in_percent, markdown_table, with_interval
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

_CUTS = tuple(shaped(DEPTHS[-1], width) for width in WIDTHS)


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    found = [measured(arrangement, SHAPES, settings) for arrangement in at_hand(settings)]
    rows = [row for one in found for row in _rows(one, settings)]
    body = f"""
Every reader reads the same runs, without a defense, and knows {in_percent(KNOWN[1])} of the records: the share of
variance that is recovered in the last epoch. `stacked-ridge` rests on records that come back, `white-box-inversion` on
the partner's half of the model, and it is asked for {ASKED} records of each message; the two others rest on the known
records alone. In bold is the largest mean of a row.

{markdown_table(("data", "cut", *(f"`{name}`" for name in READERS)), rows)}
"""
    return [Section(title="Readers side by side", body=body)]


def _rows(found: Measured, settings: Settings) -> list[tuple[str, ...]]:
    rows = [found.rows[cut.label] for cut in _CUTS]
    planned = [
        Job(
            measure_readers,
            {
                "arrangement": found.arrangement.as_settings(),
                "way": row.way.as_settings(),
                "rate": row.choice.rate,
                "epochs": row.choice.epochs,
                "seed": seed,
                "known_share": KNOWN[1],
            },
        )
        for row in rows
        for seed in range(settings.seeds)
    ]
    results = iter(run_jobs(planned, settings.jobs, workers=settings.workers, say=settings.say))
    readings = [[next(results)["readings"] for _ in range(settings.seeds)] for _ in rows]
    return [(found.arrangement.title, row.way.label, *_cells(one)) for row, one in zip(rows, readings, strict=True)]


def _cells(runs: Sequence[Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Return what each reader found, the largest in bold."""
    shares = {name: [one[name]["share"] if name in one else math.nan for one in runs] for name in READERS}
    means = {name: sum(values) / len(values) for name, values in shares.items()}
    best = max((value for value in means.values() if not math.isnan(value)), default=math.nan)
    texts = {name: with_interval(values, limits=UNIT) for name, values in shares.items()}
    return [f"**{text}**" if means[name] == best else text for name, text in texts.items()]
