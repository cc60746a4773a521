"""What came out, in sentences that are made of the figures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from scripts.reproduce.better_defense.choosing import counted_edges
from scripts.reproduce.better_defense.defenses import (
    ABSTAINING,
    ASYMMETRIC,
    AXIS_SUMKL,
    CONTENDERS,
    FAMILIES,
    NONE,
    OLDER,
    RECORD,
    Family,
)
from scripts.reproduce.better_defense.equal_leak import TOPS, counted
from scripts.reproduce.better_defense.measures import BEYOND, TOTAL, Measure, beyond
from scripts.reproduce.better_defense.runs import ALONE, Measured, study
from scripts.reproduce.better_defense.worth import (
    BASELINES,
    Worth,
    bought,
    every_worth,
    is_counted,
    judged,
    middle_half,
    nothing_of,
    rows_compared,
    worth_of,
)
from scripts.reproduce.shared.claims import COUNTED_FROM, shown, shown_mean
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

_PLANNED = 5
"""Seeds of a whole run."""
_STRENGTH = 0.4
"""Detection error that all promises are set to where they are compared with what was read."""


def findings(found: Sequence[Measured]) -> list[str]:
    """Return what is to be taken from the tables, an item each."""
    return [
        *_few(found),
        *(_matter(found, baseline) for baseline in BASELINES),
        _bought(found),
        *(f"**At the same leak {where}.** {_ahead(found, measure)}" for measure, where in _LEAKS),
        _at_the_edge(found),
        _read(found),
    ]


def _few(found: Sequence[Measured]) -> list[str]:
    """Return a warning where there are fewer seeds than were planned."""
    fewer = {one.case.title: len(one.case.seeds) for one in found if len(one.case.seeds) < _PLANNED}
    if not fewer:
        return []
    said = ", ".join(f"{title} {number}" for title, number in fewer.items())
    return [
        f"**Fewer than the {_PLANNED} seeds that were planned**: {said}. With so few the intervals are wide, those "
        "corrected for many comparisons so wide that hardly a difference could be told; that none is told says little."
    ]


_LEAKS = ((BEYOND, "beyond the prediction"), (TOTAL, "in all, prediction and messages together"))


def _ahead(found: Sequence[Measured], measure: Measure) -> str:
    return " ".join(f"By {name}: {counted(found, measure, top)}" for top, name in TOPS.items())


def _at_the_edge(found: Sequence[Measured]) -> str:
    """Return how many choices are of the most epochs that were tried, and of which defenses: more might help them."""
    everything = counted_edges(choice for one in found for choice in one.choices.values())
    by_family = {family.label: _edges(found, [family]) for family in FAMILIES}
    there = {label: edges for label, edges in by_family.items() if edges["most"]}
    often = sorted(there, key=lambda label: -there[label]["most"] / there[label]["all"])
    said = ", ".join(f"`{label}` {_of(there[label])}" for label in often) or "none of a family"
    silent = counted_edges(choice for one in found for choice in one.silent_choices.values())
    return (
        f"**More epochs might help some.** Of {everything['all']} choices {everything['most']} are of the most epochs "
        f"that were tried: {said}; of what sends nothing back {_of(silent)}. Of the older families that the newer "
        f"ones are compared with {_of(_edges(found, OLDER))} choices, of the newer ones "
        f"{_of(_edges(found, CONTENDERS))}: who is there more often may have more to gain, and a lead over it may be "
        "too large."
    )


def _edges(found: Sequence[Measured], families: Sequence[Family]) -> dict[str, int]:
    labels = [member.label for family in families for member in family.members]
    return counted_edges(one.choices[label] for one in found for label in labels if label in one.choices)


def _of(edges: Mapping[str, int]) -> str:
    return f"{edges['most']} of {edges['all']}"


def _matter(found: Sequence[Measured], baseline: str) -> str:
    """Return in which settings an undefended model is better than one to which nothing is sent back."""
    rows = [worth_of(measured, NONE.label, nothing_of(measured, baseline)) for measured in found]
    comparisons = len(judged(found))
    more, less, level = _sorted([one for one in rows if is_counted(one)], comparisons)
    few = [one for one in rows if not is_counted(one)]
    alone = ", ".join(f"{one.case.title} {shown_mean(one.silent[ALONE])}" for one in found)
    beside = f" The label party alone has a test AUC of: {alone}." if baseline == next(iter(BASELINES)) else ""
    asked = f"**Are messages worth anything, beside no message with {baseline}?** Undefended, by the private top"
    untested = f"fewer than {COUNTED_FROM} seeds, so not tested: {', '.join(one.measured.case.title for one in few)}"
    if not more and not less and not level:
        return f"{asked}: {untested}.{beside}"
    return (
        f"{asked} (± half of the plain 95 % interval; in brackets corrected for {comparisons} comparisons, by which it "
        f"is judged): yes in {_named(more, comparisons)}; it is worse in {_named(less, comparisons)}; no difference "
        f"can be told in {_named(level, comparisons)}{f'; {untested}' if few else ''}.{beside}"
    )


def _sorted(rows: Sequence[Worth], comparisons: int) -> tuple[list[Worth], list[Worth], list[Worth]]:
    ends = [(one, one.gain.interval(comparisons)) for one in rows]
    more = [one for one, (low, _) in ends if low > 0.0]
    less = [one for one, (_, high) in ends if high < 0.0]
    return more, less, [one for one in rows if one not in more and one not in less]


def _named(rows: Sequence[Worth], comparisons: int) -> str:
    return ", ".join(f"{one.measured.case.title} {one.gain.shown(comparisons)}" for one in rows) or "none"


def _bought(found: Sequence[Measured]) -> str:
    comparisons = rows_compared(found)
    parts = [_won(found, baseline, comparisons) for baseline in BASELINES]
    if not any(map(is_counted, every_worth(found, next(iter(BASELINES))))):
        return (
            "**Has any defended model beaten no message?** With fewer than "
            f"{COUNTED_FROM} seeds it is not counted which have."
        )
    return (
        "**Has any defended model beaten no message?** By the private top, corrected for all "
        f"{comparisons} comparisons of a defended row: {'; '.join(parts)}. Elsewhere it is not shown that a defense "
        "has bought anything with what it leaks, nor that none has: in half of the rows a gain of less than that "
        "median ± is not told."
    )


def _won(found: Sequence[Measured], baseline: str, comparisons: int) -> str:
    rows = bought(found, baseline)
    won = {title: ones for title, ones in rows.items() if ones}
    names = "; ".join(f"{title}: {len(ones)}, {_strictest(ones, comparisons)}" for title, ones in won.items())
    half = middle_half([one for one in every_worth(found, baseline) if is_counted(one)], comparisons)
    return (
        f"with {baseline}, in {len(won)} of {len(rows)} settings{f' ({names})' if names else ''}, the median corrected "
        f"± being {half}"
    )


def _strictest(ones: Sequence[Worth], comparisons: int) -> str:
    least = min(ones, key=lambda one: beyond(one.measured.runs[one.label]))
    leak = shown(beyond(least.measured.runs[least.label]))
    return f"the least leak beyond the prediction among them {leak}, `{least.label}` {least.gain.shown(comparisons)}"


def _read(found: Sequence[Measured]) -> str:
    """Return what was read of canaries under defenses that are set to the same detection error."""
    parts = []
    for family in (ASYMMETRIC, ABSTAINING, RECORD, AXIS_SUMKL):
        leaks = _leaks(found, family)
        if leaks:
            parts.append(f"`{family.label}` {shown(min(leaks))} to {shown(max(leaks))}")
    if not parts:
        return "**What was read of canaries** at a detection error of .4: no such run."
    return (
        f"**What was read of canaries over the run, set to a detection error of {shown(_STRENGTH, 1)}**, means over "
        f"seeds by the attack that is best in the mean, least and largest setting: {', '.join(parts)}. Of answers that "
        "are drawn once it is proven for the run what at most is read of them in expectation (`asymmetric-response`: "
        f"an AUC of {shown(1 - _STRENGTH, 1)}; the best of several attacks on few canaries may read a little more), of "
        "`record-gaussian` below a linear top for one message alone; of axis-sumKL it is a setting."
    )


def _leaks(found: Sequence[Measured], family: Family) -> list[float]:
    labels = [member.label for member in family.members if member.options.get("detection_error") == _STRENGTH]
    return [beyond(one.runs[label]) for one in found for label in labels if label in one.runs]


def sections(settings: Settings) -> list[Section]:
    """Return the section that comes first."""
    items = [
        textwrap.fill(f"- {text}", 120, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for text in findings(study(settings))
    ]
    return [Section(title="What came out", body="\n".join(items))]
