"""Whether anything that was tried beside the known defenses keeps more at the same leak: the search, and its table."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.reproduce.better_defense.search_data import Problem, problems
from scripts.reproduce.better_defense.search_plan import (
    CHANNELS,
    CHECKED,
    UNDEFENDED,
    Channel,
    chosen,
    final,
    seeds_of,
    tuning,
    with_few_coins,
)
from scripts.reproduce.better_defense.search_reasons import reasons
from scripts.reproduce.better_defense.search_rows import Found, Gain, Row, gains
from scripts.reproduce.better_defense.search_words import GAINS, TRIED, WHAT
from scripts.reproduce.shared.claims import UNIT, Claim, markdown_table, shown, signed, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

TITLE = "What was tried beyond, and what failed"

HEADINGS = (
    "",
    "strength",
    "epochs, rate",
    "test AUC: sending top",
    "private top",
    "share kept",
    "canaries, by the auditor",
    "by who knows the algorithm",
)


def sections(settings: Settings) -> list[Section]:
    """Run the search and return its section."""
    return [section([measure(problem, settings) for problem in problems(settings)])]


def section(found: Sequence[Found]) -> Section:
    """Return what is said of the search."""
    tables = [f"**{one.problem.title}**\n\n{table(one)}" for one in found]
    over_known, over_silent = ([gains(one, over=over) for one in found] for over in ("known", "silent"))
    body = [
        WHAT.strip(),
        ideas_table(),
        *tables,
        GAINS.strip(),
        gains_table(found, over_known, over_silent),
        verdict(found, over_known, over_silent),
        reasons(found),
    ]
    return Section(
        title=TITLE, body="\n\n".join(body), claims=claims_of(found, over_known, over_silent), claims_shown=False
    )


def measure(problem: Problem, settings: Settings) -> Found:
    """Run the search on one data set."""
    channels = _channels(settings)
    plans = [tuning(problem, channel, quick=settings.quick) for channel in channels]
    validated = _run(plans, settings)
    choices = [chosen(problem, channel, runs) for channel, runs in zip(channels, validated, strict=True)]
    finals = [
        final(problem, channel, choice, seeds_of(quick=settings.quick))
        for channel, choice in zip(channels, choices, strict=True)
    ]
    flat = [jobs for by_strength in finals for jobs in by_strength.values()]
    # By seed: the data are divided anew for each.
    _run(list(zip(*flat, strict=True)), settings)
    results = iter(_run(flat, settings))
    rows = [
        Row(channel, strength, choice, next(results))
        for channel, choice, by_strength in zip(channels, choices, finals, strict=True)
        for strength in by_strength
    ]
    checked = [(channel, choice) for channel, choice in zip(channels, choices, strict=True) if channel.name in CHECKED]
    few = _run([with_few_coins(problem, *one, seeds_of(quick=settings.quick)) for one in checked], settings)
    names = [channel.name for channel, _ in checked]
    return Found(
        problem, rows, {name: [run["private"][0] for run in runs] for name, runs in zip(names, few, strict=True)}
    )


def _channels(settings: Settings) -> Sequence[Channel]:
    """Return the channels; of the quick run each at its middle strength alone."""
    if not settings.quick:
        return CHANNELS
    return [
        Channel(channel.name, channel.group, {channel.tuned: channel.strengths[channel.tuned]}) for channel in CHANNELS
    ]


def _run(plans: Sequence[Sequence[Job]], settings: Settings) -> list[list[Result]]:
    jobs = [job for plan in plans for job in plan]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    return [[next(results) for _ in plan] for plan in plans]


def ideas_table() -> str:
    """Return what each channel is and what it promises."""
    rows = [(name, said.idea, said.promise) for name, said in TRIED.items()]
    return markdown_table(("tried", "idea", "promise for the run"), rows, left=3)


def table(found: Found) -> str:
    """Return all rows of one data set."""
    return markdown_table(HEADINGS, [_cells(found, row) for row in found.rows], left=2)


def _cells(found: Found, row: Row) -> tuple[str, ...]:
    first = row is found.of(row.channel.name)[0]
    low, high = row.reading.interval()
    silent = row.channel.group == "nothing sent"
    return (
        row.channel.name if first else "",
        row.strength or "–",
        row.choice.shown,
        "–" if row.sending is None else with_interval(row.sending, limits=UNIT),
        with_interval(row.private, limits=UNIT),
        "–" if row.channel.name == UNDEFENDED else found.kept(row).shown,
        "nothing to read" if silent else f"{shown(row.reading.auc)} ({shown(low)} to {shown(high)})",
        shown(row.informed),
    )


def gains_table(
    found: Sequence[Found], over_known: Sequence[Sequence[Gain]], over_silent: Sequence[Sequence[Gain]]
) -> str:
    """Return the gain of every channel that was tried, on every data set."""
    comparisons = comparisons_of(over_known, over_silent)
    headings = ["", *(f"{one.problem.key}: {over}" for one in found for over in ("same leak", "nothing sent"))]
    by_channel = zip(*(column for pair in zip(over_known, over_silent, strict=True) for column in pair), strict=True)
    rows = [(row[0].channel, *(_gain_shown(gain, comparisons) for gain in row)) for row in by_channel]
    return markdown_table(headings, rows)


def comparisons_of(over_known: Sequence[Sequence[Gain]], over_silent: Sequence[Sequence[Gain]]) -> int:
    """Return how many comparisons are made in both columns of all data sets: for so many each of them is corrected."""
    return sum(map(len, [*over_known, *over_silent]))


def _gain_shown(gain: Gain, comparisons: int) -> str:
    low, high = gain.interval(comparisons)
    text = f"{signed(gain.value)} ({signed(low)} to {signed(high)})"
    return f"**{text}**" if low > 0.0 else text


def verdict(found: Sequence[Found], over_known: Sequence[Sequence[Gain]], over_silent: Sequence[Sequence[Gain]]) -> str:
    """Return in words what is ahead after correction, and whether messages buy anything."""
    comparisons = comparisons_of(over_known, over_silent)

    def ahead(columns: Sequence[Sequence[Gain]]) -> list[str]:
        return [
            f"{gain.channel} ({one.problem.key})"
            for one, column in zip(found, columns, strict=True)
            for gain in column
            if gain.interval(comparisons)[0] > 0.0
        ]

    known, silent = ahead(over_known), ahead(over_silent)
    both = [name for name in known if name in silent]
    lines = [
        f"Of {comparisons} comparisons, after correction, ahead at the same leak: {_listed(known)}. "
        f"Ahead of the best row to which nothing is sent back: {_listed(silent)}. Of both: {_listed(both)}."
    ]
    for one in found:
        (undefended,), best, (edge, count) = one.of(UNDEFENDED), one.best_silent, one.at_the_edge
        silent, sent = (with_interval(row.private, limits=UNIT) for row in (best, undefended))
        lines.append(
            f"On {one.problem.key} the best row without messages is *{best.name}*, {silent}; undefended {sent}. The "
            f"largest number of epochs that was tried is the choice of {edge} of {count} channels with messages there."
        )
    return "\n\n".join([lines[0], " ".join(lines[1:])])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "nothing"


def claims_of(
    found: Sequence[Found], over_known: Sequence[Sequence[Gain]], over_silent: Sequence[Sequence[Gain]]
) -> list[Claim]:
    """Return the claims: what is ahead, whether a promise is broken, and whether messages are needed."""
    comparisons = comparisons_of(over_known, over_silent)
    claims = []
    for one, known, silent in zip(found, over_known, over_silent, strict=True):
        for words, column in (
            ("than is known to be kept at the same leak", known),
            ("than the best row to which nothing is sent back", silent),
        ):
            claims += [_gain_claim(one, gain, words, comparisons) for gain in column]
    return [*claims, *(_promise_claim(one) for one in found)]


def _gain_claim(found: Found, gain: Gain, words: str, comparisons: int) -> Claim:
    low, high = gain.interval(comparisons)
    return Claim(
        claim=f"{found.problem.key}: {gain.channel}, mean over its strengths, has a higher test AUC {words}; the gain",
        published=None,
        ours=gain.value,
        interval=gain.interval(),
        seeds=len(gain.by_seed),
        verdict="reproduces" if low > 0.0 else "does not",
        why=f"for {comparisons} comparisons at once the interval is {signed(low)} to {signed(high)}",
    )


def _promise_claim(found: Found) -> Claim:
    """Return whether canaries read more than is promised anywhere."""
    bounded = [(row, row.promised) for row in found.rows if row.promised < 1.0]
    over = {row.name: row.reading.interval(len(bounded))[0] - bound for row, bound in bounded}
    worst = max(over, key=lambda name: over[name])
    return Claim(
        claim=f"{found.problem.key}: where an AUC is promised, canaries read no more; the largest excess of an "
        "interval's lower end",
        published=None,
        ours=over[worst],
        interval=None,
        seeds=len(found.rows[0].results),
        verdict="reproduces" if over[worst] <= 0.0 else "does not",
        why=f"of {len(over)} rows with a promise, whose intervals hold at once; the largest is that of: {worst}",
    )
