"""Runs side by side: a conclusion, and a row for each defense, ranked by its verdict and by what the model is worth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from splitvfl.claims import Guarantee
from splitvfl.config.registry import known_to_be_broken
from splitvfl.report.findings import unavailable_notes
from splitvfl.report.first_screen import STATES, recommended, state_words
from splitvfl.report.own_seat import seat_lines
from splitvfl.report.rows import (
    MISSING,
    DefenseRow,
    Estimate,
    PartyRow,
    RunGroup,
    Undefended,
    estimate,
    group_runs,
    rows_by_defense,
    with_parties,
    written,
)
from splitvfl.report.summary import RunSummary, metric_name
from splitvfl.report.verdict import State, Verdict

_RANKS: Final[dict[State, int]] = {"no-label-dependent-message": 0, "below-goal": 0, "inconclusive": 1, "above-goal": 2}
_WIDE = 110
"""From how many columns on an interval stands beside its figure."""

_LEGEND: Final = (
    "excess: what messages reveal of a record's own label. guarantee: AUC at most, for the whole run. total: all that "
    "the partner infers. baseline: the partner alone, without labels (with labels of others)."
)


@dataclass(frozen=True)
class ComparedRow:
    """One defense towards one partner, its seeds pooled.

    Attributes:
        row: The defense.
        party: The partner.
        verdict: What is concluded about labels.
    """

    row: DefenseRow
    party: PartyRow
    verdict: Verdict

    @property
    def protects(self) -> bool:
        """Whether labels are below the goal, or no message depends on them."""
        return _RANKS[self.verdict.state] == 0

    @property
    def broken(self) -> bool:
        """Whether a defense of it is known to be broken."""
        return known_to_be_broken(self.row.results[0].defenses)

    def as_json(self) -> dict[str, Any]:
        """Return its figures for other programs."""
        return {
            "defense": self.row.label,
            "party": self.party.name,
            "seeds": [run.seed for run in self.row.results],
            "known_to_be_broken": self.broken,
            "test": None if self.row.test is None else asdict(self.row.test),
            "total": None if self.party.total is None else asdict(self.party.total),
            "verdict": asdict(self.verdict),
        }


def ranked(group: RunGroup) -> list[ComparedRow]:
    """Return a row for each defense and partner: what protects labels first, and of equals the better model.

    A defense counts by the partner to whom most leaks.
    """
    found = [
        [ComparedRow(row, party, verdict) for party in row.parties if (verdict := row.label_verdicts.get(party.name))]
        for row in rows_by_defense(group)
    ]

    def key(rows: list[ComparedRow]) -> tuple[int, bool, float]:
        test = rows[0].row.test
        return max(_RANKS[one.verdict.state] for one in rows), rows[0].broken, -test.mean if test else float("inf")

    return [one for rows in sorted(filter(None, found), key=key) for one in rows]


def chosen(rows: Sequence[ComparedRow]) -> DefenseRow | None:
    """Return the best model that protects labels from every partner; never one that is known to be broken."""
    failed = {id(one.row) for one in rows if not one.protects or one.broken}
    return next((one.row for one in rows if id(one.row) not in failed), None)


def as_json(group: RunGroup) -> dict[str, Any]:
    """Return a group of runs for other programs: what they share, the conclusion, and the rows in their order."""
    return {
        "title": group.title,
        "settings": group.subtitle,
        "goal": group.goal,
        "metric": group.runs[0].metric,
        "conclusion": conclusion(group),
        "what_to_do": to_do(group),
        "rows": [one.as_json() for one in ranked(group)],
    }


# --- in words


def conclusion(group: RunGroup) -> list[str]:
    """Return what follows from the runs of a group, in sentences: the defense to take, and what the model is worth."""
    rows, goal = ranked(group), group.goal
    best = chosen(rows)
    if best is not None:
        verdict = max((one.verdict for one in rows if one.row is best), key=lambda one: one.excess is not None)
        return [f"{best.label}: {state_words(verdict)}, {verdict.reason}.", tested(best, group), *_joining(group.runs)]
    states = {one.verdict.state for one in rows}
    exposed = {id(one.row) for one in rows if not one.protects}
    broken = dict.fromkeys(one.row.label for one in rows if id(one.row) not in exposed)  # else one of them is chosen
    if broken:
        said = f"Below goal was measured only behind {', '.join(broken)}, known to be broken: do not rely on it."
    elif "inconclusive" in states:
        said = f"Inconclusive: nothing here is shown, with 95 % confidence, to keep excess leakage below {goal:.2f}."
    elif rows:
        said = f"Above goal: nothing here keeps individual labels below {goal:.2f}."
    else:
        said = "Labels were not measured."
    return [said, *_joining(group.runs)]


def to_do(group: RunGroup) -> str:
    """Return what to do next, in a sentence or two; empty where a defense of the group protects labels."""
    rows = ranked(group)
    if not rows or chosen(rows) is not None:
        return ""
    named = {name.partition("(")[0] for run in group.runs for name in (*run.defenses, run.exchange)}
    more = recommended(group.runs[0].task, group.goal)
    offers = [] if "one-way" in named else ["train one-way (exchange: one-way)"]
    offers += [] if more.partition("(")[0] in named else [f"randomise labels ({more})"]
    said = f"{' or '.join(offers)}." if offers else ""
    decided = dict.fromkeys(one.verdict.decided_by for one in rows if one.verdict.decided_by and not one.broken)
    return " ".join(
        filter(None, [said[:1].upper() + said[1:], f"What would decide it: {next(iter(decided))}." if decided else ""])
    )


def tested(row: DefenseRow, group: RunGroup) -> str:
    """Return in a sentence what a model is worth, beside the same without a defense."""
    said = f"Test {group.metric} {_mean(row.test)}"
    if row.undefended:
        return f"{said}."
    plain = Undefended.beside(row, group.runs)
    beside = (
        "no undefended model in this comparison" if plain is None else f"without a {plain.words} {_mean(plain.test)}"
    )
    return f"{said} ({beside})."


def _joining(runs: Sequence[RunSummary]) -> list[str]:
    said = joining_sentence(runs)
    return [said] if said else []


def joining_sentence(runs: Sequence[RunSummary]) -> str:
    """Return in a sentence whether the joint model is better than the label owner's own one; empty if nobody asked."""
    found = [run.own_model for run in runs if run.own_model is not None]
    if not found:
        return next((run.no_own_model for run in runs if run.no_own_model), "")
    own = found[0]
    joint, alone = (
        _mean(estimate(values)) for values in ([each.joint for each in found], [each.alone for each in found])
    )
    against = f"{metric_name(own.metric)} {joint} against {alone}"
    if len(found) > 1:
        better, worse = (sum(each.verdict == word for each in found) for word in ("better", "worse"))
        return (
            f"The joint model is significantly better than {own.party} alone in {better} of {len(found)} runs, and "
            f"worse in {worse}: {against} on average."
        )
    said = (
        f"The joint model is not significantly different from {own.party} alone"
        if own.verdict == "no difference shown"
        else f"The joint model is significantly {own.verdict} than {own.party} alone"
    )
    drawn = f", {own.records:,} of {own.of:,} test records" if own.records < own.of else ""
    difference, low, high = (f"{value:+.3f}" for value in (own.difference, own.low, own.high))
    return f"{said}: {against} with {own.model} (difference {difference}, 95 % CI {low} to {high}{drawn})."


def _mean(value: Estimate | None) -> str:
    return written(None if value is None else value.mean, 3)


# --- on the screen


def comparison(runs: Sequence[RunSummary]) -> RenderableType:
    """Return for every group of runs a conclusion, a table, and what to do."""
    groups = group_runs(runs)
    return Group(
        *(part for number, group in enumerate(groups) for part in _of_group(group, last=number + 1 == len(groups)))
    )


def _of_group(group: RunGroup, *, last: bool) -> Iterator[RenderableType]:
    yield Text.assemble((group.title, "bold"), f"   {group.subtitle}")
    if group.seat:
        yield from map(Text, seat_lines(group.runs[0]))
        return
    yield from (Text(line, style="bold") for line in conclusion(group))
    yield Text()
    yield _Comparison(group)
    yield from map(Text, [*_features(group), *unavailable_notes(rows_by_defense(group))])
    if said := to_do(group):
        yield Text(f"What to do: {said}")
    if not last:
        yield Text()


def _features(group: RunGroup) -> Iterator[str]:
    """Return for each defense and party how much of the variance of its features the best attack recovers."""
    for row, party in with_parties(rows_by_defense(group)):
        shares = [(share, attack) for attack, (share, *_) in party.read_shares.items() if share is not None]
        for share, attack in sorted(shares, key=lambda one: -one[0].mean)[:1]:
            shown = written(share, 2, sign=" ±")
            yield f"Features of {party.name}, {row.label}: {attack} recovers {shown} of their variance."


class _Comparison:
    """The table of a group, as wide as the console."""

    def __init__(self, group: RunGroup) -> None:
        self._group = group

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows, wide = ranked(self._group), options.max_width >= _WIDE
        several = any(len(one.row.parties) > 1 for one in rows)
        name = 34 if wide else 21
        table = Table(
            box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0) if wide else 0, pad_edge=False, header_style="bold"
        )
        table.add_column("defense", overflow="fold", width=name)
        table.add_column("verdict", width=15 if wide else 12)
        for header, width in (
            (f"test {self._group.metric}", 13 if wide else 9),
            ("excess (95 % CI)", 17 if wide else 9),
            ("guarantee", 9),
            ("total", 5),
            ("baseline", 8),
        ):
            table.add_column(header, justify="right", width=width, overflow="fold")
        apart = " " if wide else "\n"
        for one in rows:
            label = f"{one.row.label}, {one.party.name}" if several else one.row.label
            lines = in_lines("no defense" if label == "none" else label, name)
            table.add_row(
                Text("\n".join([*lines, *(["known to be broken"] if one.broken else [])])), *_cells(one, apart)
            )
        yield table
        yield Text(_LEGEND, style="dim")


def _cells(one: ComparedRow, apart: str) -> list[Text]:
    test = MISSING if one.row.test is None else written(one.row.test, 3, sign=f"{apart}±", large=".1e")
    if one.row.test is not None and one.row.test.is_range and apart == "\n":
        test = test.replace("–", "–\n")
    return [
        Text(STATES[one.verdict.state][0].replace("-", "- "), style=STATES[one.verdict.state][1]),
        Text(test),
        Text(_excess(one.verdict, apart)),
        Text(bound(one.verdict.guarantee)),
        Text(written(one.party.total and one.party.total.mean, 2)),
        Text(_baseline(one.party, apart if apart == "\n" else " ")),
    ]


def _excess(verdict: Verdict, apart: str) -> str:
    found = verdict.excess
    return MISSING if found is None else f"{found.value:.2f}{apart}{found.low:.2f}–{found.high:.2f}"


def bound(found: Guarantee | None) -> str:
    """Return a guarantee of the whole run in a few characters."""
    return f"≤ {found.auc:.2f}" if found is not None and found.of_run else "none"


def _baseline(party: PartyRow, apart: str) -> str:
    alone, taught = party.first_component, party.own_columns
    if alone is None and taught is None:
        return MISSING
    beside = "" if taught is None else f"{apart}({taught.mean:.2f})"
    return f"{written(alone and alone.mean, 2)}{beside}"


def in_lines(name: str, width: int) -> list[str]:
    """Return a label in lines that break behind a comma or before brackets; what is longer than a line stays whole.

    >>> in_lines("some-response(epsilon=2.0, classes=10), private top", 21)
    ['some-response', '(epsilon=2.0,', 'classes=10),', 'private top']
    >>> in_lines("a-response(detection_error=0.4), private top", 21)
    ['a-response', '(detection_error=0.4)', 'private top']
    """
    lines: list[str] = []
    for piece in re.split(r"(?<=,) | ?(?=\()| (?=\+ )", name):
        if lines and len(lines[-1]) + 1 + len(piece.rstrip(",")) <= width:
            lines[-1] = f"{lines[-1]} {piece}"
        else:
            lines.append(piece)
    return [line.rstrip(",") if len(line) > width else line for line in lines]
