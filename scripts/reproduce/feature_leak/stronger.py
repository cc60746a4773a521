"""A reader that learns what is not linear, beside ridge regression, behind what validation chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.reproduce.feature_leak.arrangements import ARRANGEMENTS
from scripts.reproduce.feature_leak.defended import all_measured
from scripts.reproduce.feature_leak.runs import KNOWN, measure_stronger
from scripts.reproduce.feature_leak.study import Measured, Row, corrected, differences, headed, less, read_of
from scripts.reproduce.feature_leak.verdicts import FAMILIES, usual
from scripts.reproduce.feature_leak.ways import OF_GRADIENTS, UNDEFENDED
from scripts.reproduce.shared.claims import (
    DIFFERENCE,
    UNIT,
    Claim,
    Interval,
    clipped,
    markdown_table,
    mean,
    signed,
    with_interval,
)
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

COMPARISONS = (len(FAMILIES) + len(OF_GRADIENTS)) * len(ARRANGEMENTS)
"""So many differences to no defense are called one or not."""


@dataclass(frozen=True)
class Stronger:
    """A data set, and what the stronger reader read of some of its rows.

    Attributes:
        found: The data set.
        read: By label of the way, one per seed: the larger of the last epoch's share and the accumulated one.
    """

    found: Measured
    read: Mapping[str, Sequence[float]]

    @property
    def rows(self) -> list[Row]:
        """The rows of which there is a figure, the first without a defense."""
        return [self.found.rows[label] for label in self.read]

    def less_none(self, row: Row) -> tuple[float, Interval | None]:
        """Return the difference to no defense, and its corrected interval."""
        apart = differences(self.read[row.way.label], self.read[UNDEFENDED.label])
        return mean(apart), corrected(apart, COMPARISONS)


def stronger(found: Measured, settings: Settings) -> Stronger:
    """Make the runs of what validation chose, of no defense and of the defenses of labels, and return what was read."""
    rows = [*usual(found), *(row for row in found.rows.values() if row.way in OF_GRADIENTS)]
    planned = [_job(found, row, seed) for row in rows for seed in range(settings.seeds)]
    results = iter(run_jobs(planned, settings.jobs, workers=settings.workers, say=settings.say))
    return Stronger(found, {row.way.label: [read_of(next(results)) for _ in range(settings.seeds)] for row in rows})


def _job(found: Measured, row: Row, seed: int) -> Job:
    return Job(
        measure_stronger,
        {
            "arrangement": found.arrangement.as_settings(),
            "way": row.way.as_settings(),
            "rate": row.choice.rate,
            "epochs": row.choice.epochs,
            "seed": seed,
            "known_share": KNOWN[1],
        },
    )


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    every = [stronger(found, settings) for found in all_measured(settings)]
    tables = "\n\n".join(headed(one.found, _table(one), ", two readers") for one in every)
    body = f"""
`inverse-network` assumes no more than `ridge`, and finds what is not linear in an activation, too. Here it reads the
same runs as above, knowing {100 * KNOWN[1]:g} % of the records. In bold is a difference to no defense, both as it
reads them, whose whole interval is on one side of 0, corrected for {COMPARISONS} comparisons. Strengths are those
that were chosen above, by what `ridge` reads of validation runs.

{tables}
"""
    claims = [_claim(one, row) for one in every for row in one.rows[1:]]
    return [Section(title="A stronger reader", body=body, claims=claims)]


def _table(one: Stronger) -> str:
    headings = ("defense", "`ridge`", "`inverse-network`", "less none", "test AUC")
    return markdown_table(headings, [_row(one, row) for row in one.rows])


def _row(one: Stronger, row: Row) -> tuple[str, ...]:
    apart, ends = one.less_none(row)
    text = f"**{signed(apart)}**" if less(ends) else signed(apart)
    return (
        row.way.label,
        with_interval(row.read(), limits=UNIT),
        with_interval(one.read[row.way.label], limits=UNIT),
        "–" if row.way == UNDEFENDED else text,
        with_interval(row.aucs, limits=UNIT),
    )


def _claim(one: Stronger, row: Row) -> Claim:
    apart, ends = one.less_none(row)
    labels = row.way in OF_GRADIENTS
    what = "what protects labels lets more of the columns be read" if labels else "less is read than without a defense"
    return Claim(
        claim=f"{one.found.arrangement.title}, {row.way.label}, read by inverse-network: {what}",
        published=None,
        ours=apart,
        interval=clipped(ends, DIFFERENCE),
        seeds=len(row.runs),
        verdict="reproduces" if less(ends) == ("more" if labels else "less") else "does not",
        why=f"difference to no defense by seed, the whole interval {'above' if labels else 'below'} 0; corrected for "
        f"{COMPARISONS} comparisons",
    )
