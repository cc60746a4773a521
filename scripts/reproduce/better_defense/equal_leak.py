"""What defenses keep at the same leak: newer ones against the best older one, which validation records choose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scripts.reproduce.better_defense.defenses import CONTENDERS, OLDER, Family
from scripts.reproduce.better_defense.estimates import Estimate, Seeds, curve_at, half_shown, jackknife
from scripts.reproduce.better_defense.measures import (
    BEYOND,
    TOTAL,
    Measure,
    Top,
    around,
    kept_at,
    kept_at_most,
    leaks_of,
    members,
)
from scripts.reproduce.better_defense.runs import Measured, study
from scripts.reproduce.shared.claims import COUNTED_FROM, Claim, markdown_table, mean_of_all, shown, signed
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

LEVELS = (0.6, 0.7, 0.8)
"""Leaks beyond the prediction at which defenses are compared."""
SHARES = (0.25, 0.5, 0.75)
"""Of the way from the smallest to the largest total leak that both sides reach: there they are compared."""

TOPS: Mapping[Top, str] = {"test": "the top that sends", "private": "the private top (secondary)"}
"""Whose test AUC is compared. Epochs and rates were chosen for the top that sends: it is the primary one."""
MEASURES = (BEYOND, TOTAL)


def labels_of(family: Family) -> list[str]:
    """Return the labels of a family's members."""
    return [member.label for member in family.members]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A newer defense against the best older one, at one leak.

    Attributes:
        measured: The setting.
        measure: How the leak is measured.
        top: Whose test AUC.
        level: The leak.
        newer: The newer defense.
        older: The older one.
        gain: By how much the newer keeps more, both read on straight lines.
        least: The gain if the older one kept as much as its nearest strength that leaks as much or more.
        most: The gain if the newer one did.
    """

    measured: Measured
    measure: Measure
    top: Top
    level: float
    newer: str
    older: str
    gain: Estimate
    least: float
    most: float


def levels(measured: Measured, measure: Measure) -> list[float]:
    """Return the leaks at which defenses are compared in a setting: they follow from leaks alone, not from test AUCs.

    Those of the total lie between the smallest and the largest that some newer and some older defense reaches.
    """
    if measure is BEYOND:
        return list(LEVELS)
    reached = [[leaks_of(measured, labels_of(family), measure) for family in side] for side in (CONTENDERS, OLDER)]
    sides = [[leak for leaks in side if len(leaks) > 1 for leak in leaks] for side in reached]
    if not all(sides):
        return []
    low, high = max(min(side) for side in sides), min(max(side) for side in sides)
    return [low + share * (high - low) for share in SHARES] if low < high else []


def best_older(measured: Measured, measure: Measure, top: Top, level: float) -> Family | None:
    """Return the older family that keeps most at a leak on the validation seed, of those that reach it on all others.

    It is what that same top keeps: the one whose other top is best may be a worse one to be compared with. Beyond its
    ends on that one seed, where leaks are less certain, a family counts as at its end.
    """
    seeds = len(measured.case.seeds)
    found = {}
    for family in OLDER:
        labels = [label for label in labels_of(family) if label in measured.validated]
        if not labels or not _reaches(measured, family, measure, level, seeds):
            continue
        leaks = [measure.of([measured.validated[label]]) for label in labels]
        aucs = [measured.validated[label][top] for label in labels]
        found[family.label] = curve_at(leaks, aucs, min(max(level, min(leaks)), max(leaks))), family
    return max(found.values(), key=lambda one: one[0])[1] if found else None


def _reaches(measured: Measured, family: Family, measure: Measure, level: float, seeds: int) -> bool:
    """Return whether a family has that leak, with whichever seed is left out."""

    def at(kept: Sequence[int]) -> float:
        return kept_at(measured, labels_of(family), measure, "test", level, kept)

    return not math.isnan(jackknife(at, seeds).error) and not math.isnan(at(range(seeds)))


def read_between(measured: Measured, older: Family, measure: Measure, level: float) -> list[str]:
    """Return the strengths between which an older family is read at a leak."""
    return around(measured, labels_of(older), measure, level)


def may_gain(measured: Measured, older: Family, measure: Measure, level: float) -> bool:
    """Return whether one of these strengths has the most epochs that were tried, so that more might be better."""
    return any(measured.choices[label].edge == "most" for label in read_between(measured, older, measure, level))


def compared(measured: Measured, measure: Measure, top: Top) -> list[Comparison]:
    """Return the comparisons in a setting: of each newer defense that reaches a leak that an older one reaches."""
    seeds = len(measured.case.seeds)
    found = []
    for level in levels(measured, measure):
        older = best_older(measured, measure, top, level)
        for newer in CONTENDERS:
            if older is None or not _reaches(measured, newer, measure, level, seeds):
                continue
            gain = jackknife(_gain(measured, newer, older, measure, top, level), seeds, overlap=measured.case.overlap)
            newer_here, older_here = (
                kept_at(measured, labels_of(family), measure, top, level, range(seeds)) for family in (newer, older)
            )
            newer_most, older_most = (
                kept_at_most(measured, labels_of(family), measure, top, level) for family in (newer, older)
            )
            found.append(
                Comparison(
                    measured=measured,
                    measure=measure,
                    top=top,
                    level=level,
                    newer=newer.label,
                    older=older.label,
                    gain=gain,
                    least=newer_here - older_most,
                    most=newer_most - older_here,
                )
            )
    return found


def _gain(
    measured: Measured, newer: Family, older: Family, measure: Measure, top: Top, level: float
) -> Callable[[Seeds], float]:
    def gain(seeds: Sequence[int]) -> float:
        first, second = (kept_at(measured, labels_of(family), measure, top, level, seeds) for family in (newer, older))
        return first - second

    return gain


def all_compared(found: Sequence[Measured], measure: Measure, top: Top) -> list[Comparison]:
    """Return the comparisons of all settings by one measure and one top: those of one table."""
    return [one for measured in found for one in compared(measured, measure, top)]


def comparisons_of(found: Sequence[Measured]) -> int:
    """Return how many comparisons are made in all tables together: for so many each of them is corrected."""
    return sum(len(all_compared(found, measure, top)) for measure in MEASURES for top in TOPS)


def outcome(one: Comparison, comparisons: int) -> str:
    """Return which is ahead: ``"newer"``, ``"older"`` or ``""``.

    By the corrected interval, and however the curve of the other one bends between its strengths: straight lines read
    one that bends down too low, the more so the farther its strengths are apart.
    """
    low, high = one.gain.interval(comparisons)
    if low > 0.0 and one.least > 0.0:
        return "newer"
    return "older" if high < 0.0 and one.most < 0.0 else ""


def claim_of(one: Comparison, comparisons: int) -> Claim:
    """Return a comparison as a claim: the plain interval as a figure, the verdict by the corrected one."""
    low, high = one.gain.interval(comparisons)
    told = {
        "newer": f"lies above 0, and beside the older one's next weaker strength the gain is {signed(one.least)}",
        "older": "lies below 0: it keeps less",
        "": "tells neither ahead",
    }[outcome(one, comparisons)]
    if low > 0.0 >= one.least:
        told = f"lies above 0, but beside the older one's next weaker strength the gain is {signed(one.least)}"
    return Claim(
        claim=f"{one.measured.case.title}: {one.newer} keeps more test AUC than {one.older}, the best older defense by "
        f"validation, at a leak of {shown(one.level)} ({one.measure.title}; {TOPS[one.top]}); the gain",
        published=None,
        ours=one.gain.value,
        interval=one.gain.interval(),
        seeds=one.gain.seeds,
        verdict="reproduces" if outcome(one, comparisons) == "newer" else "does not",
        why=f"corrected for the {comparisons} comparisons of all tables the interval, {signed(low)} to {signed(high)}, "
        f"{told}",
    )


def _cell(one: Comparison | None, comparisons: int) -> str:
    if one is None:
        return "–"
    mark = {"newer": " **▲**", "older": " **▼**", "": ""}[outcome(one, comparisons)]
    low, high = one.gain.interval()
    plain = "" if mark or low <= 0.0 <= high else " △" if low > 0.0 else " ▽"
    return f"{one.gain.shown()}{mark}{plain}"


def table(found: Sequence[Measured], measure: Measure, top: Top) -> str:
    """Return the gains as a Markdown table: a row per setting and leak, a column per newer defense."""
    everything, comparisons = all_compared(found, measure, top), comparisons_of(found)
    rows = []
    for measured in found:
        for level in levels(measured, measure):
            here = {one.newer: one for one in everything if one.measured is measured and one.level == level}
            older = best_older(measured, measure, top, level)
            cells = [_cell(here.get(family.label), comparisons) for family in CONTENDERS]
            if older is None:
                rows.append((measured.case.title, shown(level), _why_none(measured), "–", *cells))
                continue
            name = f"{older.label}{' †' if may_gain(measured, older, measure, level) else ''}"
            rows.append((measured.case.title, shown(level), name, _read(measured, older, measure, top, level), *cells))
    headings = ("setting", "leak AUC", "best older, by validation", "its test AUC", *(one.label for one in CONTENDERS))
    return markdown_table(headings, rows, left=1)


def _read(measured: Measured, older: Family, measure: Measure, top: Top, level: float) -> str:
    """Return what an older family keeps at a leak, and in brackets between which points that was read."""
    its = kept_at(measured, labels_of(older), measure, top, level, range(len(measured.case.seeds)))
    strengths = members(measured, read_between(measured, older, measure, level))
    tests = [mean_of_all(measured.values(label, top)) for label in strengths]
    leaks = leaks_of(measured, strengths, measure)
    points = ", ".join(f"{shown(test)} at {shown(leak)}" for test, leak in zip(tests, leaks, strict=True))
    return f"{shown(its)} ({points})"


def _why_none(measured: Measured) -> str:
    """Return why there is nothing to compare with: of one seed it is not known who would reach a leak without it."""
    return "one seed: not compared" if len(measured.case.seeds) < 2 else "none reaches it"


def counted(found: Sequence[Measured], measure: Measure, top: Top) -> str:
    """Return in words who is ahead, where, and how often, of the settings with three seeds and more."""
    everything = all_compared(found, measure, top)
    if not everything:
        return "Nothing can be compared."
    enough = [one for one in everything if one.gain.seeds >= COUNTED_FROM]
    if not enough:
        return f"Fewer than {COUNTED_FROM} seeds: it is not counted who is ahead."
    comparisons = comparisons_of(found)
    ends = [(one, outcome(one, comparisons)) for one in enough]
    parts = []
    for family in CONTENDERS:
        own = [(one, end) for one, end in ends if one.newer == family.label]
        if own:
            parts.append(f"`{family.label}`: {_said(own, comparisons)}")
    number = f"{len(enough)} comparison{'' if len(enough) == 1 else 's'}, corrected for {comparisons}"
    return f"{number}. " + "; ".join(parts) + "."


def _said(own: Sequence[tuple[Comparison, str]], comparisons: int) -> str:
    ahead, behind = ([one for one, end in own if end == side] for side in ("newer", "older"))
    plain_ahead = sum(one.gain.interval()[0] > 0.0 for one, _ in own)
    plain_behind = sum(one.gain.interval()[1] < 0.0 for one, _ in own)
    text = (
        f"ahead in {len(ahead)} of {len(own)}{_where(ahead)}{_unsure(ahead)}, behind in {len(behind)}{_where(behind)}"
    )
    middle = signed(statistics.median(one.gain.value for one, _ in own))
    halves = [statistics.median(one.gain.half(number) for one, _ in own) for number in (1, comparisons)]
    plain, corrected = map(half_shown, halves)
    return (
        f"{text} (without correction {plain_ahead} and {plain_behind}; median gain {middle}, median ± {plain}, "
        f"corrected ± {corrected})"
    )


def _unsure(ahead: Sequence[Comparison]) -> str:
    """Return in how many of these the older one might have gained from more epochs."""
    older = {family.label: family for family in OLDER}
    number = sum(may_gain(one.measured, older[one.older], one.measure, one.level) for one in ahead)
    return f" ({number} of these †)" if number else ""


def _where(ones: Sequence[Comparison]) -> str:
    names = list(dict.fromkeys(one.measured.case.title for one in ones))
    if not names:
        return ""
    gains = [abs(one.gain.value) for one in ones]
    by = shown(gains[0]) if len(gains) == 1 else f"{shown(min(gains))} to {shown(max(gains))}"
    return f" ({'; '.join(names)}; by {by})"


def sections(settings: Settings) -> list[Section]:
    """Return the section on equal leak."""
    found = study(settings)
    parts = []
    claims: list[Claim] = []
    comparisons = comparisons_of(found)
    wider = _wider(found, comparisons)
    for measure in MEASURES:
        for top, name in TOPS.items():
            claims += [claim_of(one, comparisons) for one in all_compared(found, measure, top)]
            parts.append(
                f"**{measure.title[0].upper()}{measure.title[1:]}; {name}.** {counted(found, measure, top)}\n\n"
                f"{table(found, measure, top)}"
            )
    tables = "\n\n".join(parts)
    body = f"""
A family's curve, mean test AUC over mean leak AUC, is read at a leak of at most so much by straight lines between its
strengths; where a stricter strength keeps more, it takes the place of the weaker one, which nobody would use. Each of
`record-gaussian`, `asymmetric-response` and `abstaining-response` is compared with the older family, of isotropic and
axis-sumKL, that keeps most at that leak on the *validation* seed, whose runs are in no figure here. (sumKL, max-norm
and axis-Gaussian have one strength each, and so no curve: they are in the tables of all defenses alone.) What stands in
a cell is the newer one's test AUC less the older one's. The interval is the jackknife's over seeds, widened for records
that runs have in common (*Setting*): reading both curves is made anew without each seed, so that errors of the leaks
count as well; which older family it is and at which leaks stays. A dash: it does not reach that leak with every seed
left out.

*Two things favour the newer ones.* Their strengths lie near the leaks of the table and those of the older ones far
apart, where straight lines read a curve that bends down too low: in brackets stand the points between which the older
one is read. So none is said to be ahead that is not also ahead of the older one's nearest strength that leaks as much
or more, whose test AUC its curve does not reach before. And an older one with † has, at one of these points, the most
epochs that were tried; with more it might keep more, and a lead over it may be too large.

The tables of the top that sends are the primary ones: epochs and rates were chosen for it. Those of the private top,
which stops when the other one is best, are *secondary*: read them beside the primary ones, and not in place of one in
which nothing is told.

**▲** and **▼**: ahead and behind after correction for the {comparisons} comparisons of all four tables together
(Bonferroni; Student's t with {_degrees(found)} degrees of freedom), however curves bend. △ and ▽: by the plain 95 %
interval alone, of which one in twenty is wrong by chance. A gain that is marked is read too high in the mean, as those
are marked that happen to be large. After ± stands half the plain width; the corrected one is {wider} times that. All
comparisons, with both intervals, are claims in the `results.json` of the run.

{tables}
"""
    return [Section(title="At the same leak", body=body, claims=claims, claims_shown=False)]


def _degrees(found: Sequence[Measured]) -> str:
    return " or ".join(map(str, _freedoms(found)))


def _freedoms(found: Sequence[Measured]) -> list[int]:
    return sorted({len(measured.case.seeds) - 1 for measured in found})


def _wider(found: Sequence[Measured], comparisons: int) -> str:
    """Return how many times as wide as a plain interval a corrected one is."""
    known = [Estimate(0.0, 1.0, freedom + 1) for freedom in _freedoms(found) if freedom]
    return " or ".join(f"{one.half(max(1, comparisons)) / one.half():.1f}" for one in known) or "–"
