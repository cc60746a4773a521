"""Two readers that find more, beside ridge regression, behind what validation chose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.reproduce.feature_leak.defended import all_measured
from scripts.reproduce.feature_leak.runs import KNOWN, measure_stacked, measure_stronger
from scripts.reproduce.feature_leak.study import Measured, Row, headed, read_of
from scripts.reproduce.feature_leak.verdicts import CHEAP, COMPARISONS, Compared, best, usual
from scripts.reproduce.feature_leak.ways import OF_GRADIENTS, UNDEFENDED
from scripts.reproduce.shared.claims import DIFFERENCE, UNIT, Claim, clipped, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

READERS = {"inverse-network": measure_stronger, "stacked-ridge": measure_stacked}
"""By their names, what makes their runs."""


@dataclass(frozen=True)
class Stronger:
    """A data set, and what stronger readers read of some of its rows.

    Attributes:
        found: The data set.
        read: By label of the way and name of the reader, one per seed: the larger of the last epoch's share and the
            accumulated one; NaN where the seed collapsed.
    """

    found: Measured
    read: Mapping[str, Mapping[str, Sequence[float]]]

    @property
    def rows(self) -> list[Row]:
        """The rows of which there is a figure, the first without a defense."""
        return [self.found.rows[label] for label in self.read]

    def most(self, row: Row) -> list[float]:
        """Return the most that any of the readers, ridge regression among them, reads, one per seed."""
        return [_largest(values) for values in zip(row.read(), *self.read[row.way.label].values(), strict=True)]

    def less_none(self, row: Row) -> Compared:
        """Compare the most that is read."""
        return Compared.of_pairs(self.most(row), self.most(self.found.rows[UNDEFENDED.label]))


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def stronger(found: Measured, settings: Settings) -> Stronger:
    """Make the runs of what validation chose, of no defense and of the defenses of labels, and return what was read."""
    rows = [*usual(found), *(row for row in found.rows.values() if row.way in OF_GRADIENTS)]
    planned = {
        (row.way.label, reader, seed): _job(found, row, reader, seed)
        for row in rows
        for reader in READERS
        for seed in range(settings.seeds)
    }
    results = run_jobs(list(planned.values()), settings.jobs, workers=settings.workers, say=settings.say)
    shares = {key: read_of(result) for key, result in zip(planned, results, strict=True)}

    def of(row: Row) -> dict[str, list[float]]:
        seeds = range(settings.seeds)
        return {reader: row.of_trained([shares[row.way.label, reader, seed] for seed in seeds]) for reader in READERS}

    return Stronger(found, {row.way.label: of(row) for row in rows})


def _job(found: Measured, row: Row, reader: str, seed: int) -> Job:
    return Job(
        READERS[reader],
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
    tables = "\n\n".join(headed(one.found, _table(one), ", three readers") for one in every)
    body = f"""
`inverse-network` assumes no more than `ridge`, and finds what is not linear in an activation, too. `stacked-ridge`
assumes besides that records come back under their ids, as they do in training, and fits to what a record sent in
several epochs. Here they read the same runs as above, knowing {100 * KNOWN[1]:g} % of the records. "Most" is the
largest of the three figures of each run, the mean over seeds that did not collapse. In bold is a difference to no
defense, both as they are read most, whose whole interval is on one side of 0, corrected for {COMPARISONS} comparisons
as above. Strengths are those that were chosen above, by what `ridge` reads. {_counted(every)}

{tables}
"""
    claims = [_claim(one, row) for one in every for row in one.rows[1:]]
    return [Section(title="Stronger readers", body=body, claims=claims, opening=_opening(every))]


def _opening(every: Sequence[Stronger]) -> str:
    """Return the page in short: without a defense, and behind what is advised."""
    read = ("`ridge` reads", "most of three readers")
    headings = ("data", "own columns alone", "no defense", *read, "chosen", "test AUC", *read)
    rows = []
    for one in every:
        bare, picked = one.found.rows[UNDEFENDED.label], best(one.found)
        behind = ("none", "–", "–", "–") if picked is None else (picked.way.label, *_in_short(one, picked))
        rows.append((one.found.arrangement.title, shown(one.found.about["alone"]), *_in_short(one, bare), *behind))
    return (
        "In short, test AUCs and the share of variance that is read by who knows 5 % of the records. Chosen is what "
        f"`ridge` reads least, by seeds that are not reported, among all that costs at most {shown(CHEAP, 2)} of the "
        f"AUC on validation records and under which no seed collapsed:\n\n{markdown_table(headings, rows)}"
    )


def _in_short(one: Stronger, row: Row) -> tuple[str, ...]:
    return tuple(with_interval(values, limits=UNIT) for values in (row.aucs, row.read(), one.most(row)))


def _counted(every: Sequence[Stronger]) -> str:
    """Say in how many rows which reader reads most."""
    first = [_first(one, row) for one in every for row in one.rows]
    counts = ", ".join(f"`{reader}` in {first.count(reader)}" for reader in ("ridge", *READERS))
    return f"Of {len(first) - first.count('')} rows with a figure the largest mean is that of {counts}."


def _first(one: Stronger, row: Row) -> str:
    """Return the reader with the largest mean; empty where none has a figure."""
    means = {"ridge": mean(row.read()), **{reader: mean(read) for reader, read in one.read[row.way.label].items()}}
    known = {reader: value for reader, value in means.items() if not math.isnan(value)}
    return max(known, key=lambda reader: known[reader], default="")


def _table(one: Stronger) -> str:
    headings = ("defense", "`ridge`", *(f"`{reader}`" for reader in READERS), "most", "less none", "test AUC")
    return markdown_table(headings, [_row(one, row) for row in one.rows])


def _row(one: Stronger, row: Row) -> tuple[str, ...]:
    read = (row.read(), *one.read[row.way.label].values(), one.most(row))
    return (
        row.way.label,
        *(with_interval(values, limits=UNIT) for values in read),
        "–" if row.way == UNDEFENDED else one.less_none(row).shown,
        with_interval(row.aucs, limits=UNIT),
    )


def _claim(one: Stronger, row: Row) -> Claim:
    compared, labels = one.less_none(row), row.way in OF_GRADIENTS
    what = "what protects labels lets more of the columns be read" if labels else "less is read than without a defense"
    return Claim(
        claim=f"{one.found.arrangement.title}, {row.way.label}, the most of three readers: {what}",
        published=None,
        ours=compared.middle,
        interval=clipped(compared.ends, DIFFERENCE),
        seeds=compared.seeds or len(row.runs),
        verdict="reproduces" if compared.side == ("more" if labels else "less") else "does not",
        why=f"difference to no defense by seed, the whole interval {'above' if labels else 'below'} 0; {compared.why}",
    )
