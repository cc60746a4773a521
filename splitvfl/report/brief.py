"""What is to be read first after a run: two lines, and a table of single figures that holds at 60 columns.

The first line is what leaks, beside what the partner's own columns tell anyway; the second what the model is worth,
beside what it would be without a defense, and what a standard model makes of own columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitvfl.report.findings import (
    PARTLY_VISIBLE,
    VISIBLE,
    below,
    columns_hidden,
    figure,
    in_all,
    leakiest,
    unavailable_notes,
)
from splitvfl.report.own_seat import seat_lines
from splitvfl.report.party_result import PartyResult
from splitvfl.report.rows import (
    DefenseRow,
    Estimate,
    PartyRow,
    RunGroup,
    Undefended,
    attack_names,
    attack_result,
    estimate,
    furthest,
    group_runs,
    rows_by_defense,
    rows_by_run,
    with_parties,
    written,
)
from splitvfl.report.summary import RunSummary, metric_name

BRIEF_WIDTH = 60
"""Columns that the table takes, at most."""

_NAME_WIDTH = 21


def brief(runs: Sequence[RunSummary]) -> RenderableType:
    """Return two lines and a table of single figures for every group of runs: a row per run and party."""
    return Group(*_parts(runs, compared=False))


def compared_brief(runs: Sequence[RunSummary]) -> RenderableType:
    """Return the same with a row per defense: means over seeds with 95 % intervals, of two seeds ranges."""
    return Group(*_parts(runs, compared=True))


def _parts(runs: Sequence[RunSummary], *, compared: bool) -> Iterator[RenderableType]:
    for number, group in enumerate(group_runs(runs)):
        if number:
            yield Text()
        title = Text.assemble((group.title, "bold"), (f"   {group.subtitle}", "dim"))
        alone = len(group.runs) == len(runs)
        yield from [] if alone else [title]
        yield from (Text(line, style="bold") for line in two_lines(group))
        yield Text()
        yield from [title] if alone else []
        if group.seat:  # it has no figures of labels
            continue
        yield _table(group, rows_by_defense(group) if compared else rows_by_run(group), compared=compared)
        yield Text("own: what the partner's own columns tell without any message", style="dim")
        if len(runs) == 1:
            yield from map(Text, [*_by_attack(runs[0]), *columns_hidden(runs[0])])
        elif compared:
            yield from map(Text, _columns_read(rows_by_defense(group)))
        yield from map(Text, unavailable_notes(rows_by_run(group)))


# --- two lines


def two_lines(group: RunGroup) -> list[str]:
    """Return what leaks and what the model is worth: of one run, or of the defense to take among several."""
    if group.seat:
        return seat_lines(group.runs[0])
    row = chosen_row(group)
    return [leak_line(group, row), test_line(group, row)]


def chosen_row(group: RunGroup) -> DefenseRow:
    """Return the best model among those that are below the goal; if none is, what leaks least; else the first."""
    rows = rows_by_defense(group)
    held = [row for row in rows if all(below(run) for run in row.results)]
    if held:
        return max(held, key=lambda row: row.test.mean if row.test else -1.0)
    judged = [row for row in rows if row.deciding is not None]
    return min(judged, key=lambda row: row.deciding.mean if row.deciding else 1.0, default=rows[0])


def leak_line(group: RunGroup, row: DefenseRow) -> str:
    """Return in one line what leaks in the run that leaks most, beside what own columns tell."""
    run = leakiest(row.results)
    behind = f" behind {row.label}" if not row.undefended and len(group.defenses) > 1 else ""
    if run.traits.one_way:
        return f"Labels: no message of training depends on them; {_known(run, None)}."
    solved = max(run.solvable, key=lambda one: one.leak_auc, default=None)
    if run.worst[0] is None and solved is not None and solved.reveals_labels:
        return (
            f"Labels: {solved.partner} can solve for {solved.records:,} of {solved.of:,} labels, known before step 1; "
            f"leak AUC {figure(solved.leak_auc)} at least; {_known(run, solved.partner)}: goal missed."
        )
    if run.worst[0] is None:
        return f"Labels: what leaks was not measured; {_known(run, None)}."
    held = "goal met" if all(below(each) for each in row.results) else "goal missed"
    worst, _, name = max(run.above(run.goal), default=run.worst)
    where = f" at {name}" if len(run.parties) > 1 else ""
    if run.canaries is None:
        leak = f"worst leak {figure(worst or 0.0)} ({furthest(run.parties[name])}{where})"
    else:
        name = _where_canaries_were_read(run) or name
        where = f" at {name}" if len(run.parties) > 1 else ""
        ends = f"{figure(run.canaries.low)} to {figure(run.canaries.high)}"
        total = in_all(run.parties[name].label_leak)
        leak = f"{figure(run.canaries.auc)} ({ends}) beyond the prediction, {total}{where}"
    return f"Labels{behind}: {leak}, {_known(run, name)}: {held}."


def _where_canaries_were_read(run: RunSummary) -> str:
    """Return the partner with the canary AUC that decides, which need not be that of the worst attack on messages."""
    found = [(party.worst_canaries.auc, name) for name, party in run.parties.items() if party.worst_canaries]
    return max(found, default=(0.0, ""))[1]


def _known(run: RunSummary, name: str | None) -> str:
    known = {party: result.label_leak.known for party, result in run.parties.items() if name in (None, party)}
    value = max((value for value in known.values() if value is not None), default=None)
    whose = f"{next(iter(known))}'s" if len(known) == 1 else "the partners'"
    return f"{whose} own columns {'not known' if value is None else figure(value)}"


def test_line(group: RunGroup, row: DefenseRow) -> str:
    """Return in one line what the model is worth, the same without a defense, and the label owner's own model."""
    plain = Undefended.beside(row, group.runs)
    one_way = any(run.traits.one_way for run in row.results)
    joining = joining_sentence(row.results)
    parts = [f"Test {group.metric} {_mean(row.test)}"]
    if not row.undefended and plain is not None:
        parts.append(f"without a {plain.words} {_mean(plain.test)}")
    elif not row.undefended and not one_way:
        parts.append("without a defense not trained")
    return " ".join(filter(None, ["; ".join(parts) + ".", joining]))


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
            f"The joint model is better than {own.party} alone in {better} of {len(found)} runs and worse in {worse}; "
            f"in the others no difference is shown: {against} on average."
        )
    said = (
        f"No difference is shown between the joint model and {own.party} alone"
        if own.verdict == "no difference shown"
        else f"The joint model is {own.verdict} than {own.party} alone"
    )
    drawn = f", {own.records:,} of {own.of:,} test records" if own.records < own.of else ""
    difference, low, high = (f"{value:+.3f}" for value in (own.difference, own.low, own.high))
    return f"{said}: {against} with {own.model} (difference {difference}, 95 % CI {low} to {high}{drawn})."


def _mean(value: Estimate | None) -> str:
    return written(None if value is None else value.mean, 3)


# --- a table


def _table(group: RunGroup, rows: Sequence[DefenseRow], *, compared: bool) -> Table:
    several = any(len(row.parties) > 1 for row in rows)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold", width=_NAME_WIDTH)
    longest = max(len(word) for word in group.metric.split())  # a header breaks between words, not inside one
    for header, width in ((f"test {group.metric}", 12 if compared else max(8, longest)), ("worst leak", 10)):
        table.add_column(header, justify="right", width=width, overflow="fold")
    table.add_column("to", width=9 if compared else 12, overflow="fold")
    table.add_column("own", justify="right", width=4, overflow="fold")
    for row, party in with_parties(rows):
        name = f"{row.label}, {party.name}" if several else row.label
        table.add_row(
            Text("\n".join(_in_lines(name, _NAME_WIDTH))), Text(_written(row.test, 3)), *_leak_cells(party, group.goal)
        )
    return table


def _in_lines(name: str, width: int) -> list[str]:
    """Return a label in lines that break behind a comma or before brackets; what is longer than a line stays whole.

    >>> _in_lines("some-response(epsilon=2.0, classes=10), private top", 21)
    ['some-response', '(epsilon=2.0,', 'classes=10),', 'private top']
    >>> _in_lines("a-response(detection_error=0.4), private top", 21)
    ['a-response', '(detection_error=0.4)', 'private top']
    """
    lines: list[str] = []
    for piece in re.split(r"(?<=,) | ?(?=\()| (?=\+ )", name):
        if lines and len(lines[-1]) + 1 + len(piece.rstrip(",")) <= width:
            lines[-1] = f"{lines[-1]} {piece}"
        else:
            lines.append(piece)
    return [line.rstrip(",") if len(line) > width else line for line in lines]


def _leak_cells(party: PartyRow, goal: float) -> list[Text]:
    worst = Text(_written(party.worst, 2), style=leak_style(party.worst, party.limit(goal), held=party.held(goal)))
    return [worst, Text(party.worst_attack.replace("-", "- ")), Text(_written(party.known and party.known.mean, 2))]


def _written(value: Estimate | float | None, digits: int) -> str:
    return written(value, digits, sign=" ±", large=".1e")


def leak_style(value: Estimate | None, limit: float, *, held: bool = True) -> str:
    """Return the style of a leak AUC: green below the limit; else red from 0.90 on, yellow from 0.70 on.

    A mean below the limit has none where not every run held it: the goal is missed then.
    """
    if value is None:
        return ""
    if value.mean < limit:
        return "green" if held else ""
    if value.mean >= VISIBLE:
        return "bold red"
    return "yellow" if value.mean >= PARTLY_VISIBLE else ""


def _by_attack(run: RunSummary) -> Iterator[str]:
    """Return for each party the worst figure of every attack, the largest first."""
    for name, party in run.parties.items():
        found = sorted(_worst_of_each(run, party), reverse=True)
        if found:
            where = f" at {name}" if len(run.parties) > 1 else ""
            yield f"Leak AUC by attack{where}: {', '.join(f'{attack} {figure(worst)}' for worst, attack in found)}."


def _columns_read(rows: Sequence[DefenseRow]) -> Iterator[str]:
    """Return for each defense and party which share of its columns' variance is read, by the attack that reads most."""
    for row, party in with_parties(rows):
        shares = [(share, attack) for attack, (share, *_) in party.read_shares.items() if share is not None]
        for share, attack in sorted(shares, key=lambda one: -one[0].mean)[:1]:
            yield f"Columns of {party.name}, {row.label}: {attack} reads {_written(share, 2)} of their variance."


def _worst_of_each(run: RunSummary, party: PartyResult) -> Iterator[tuple[float, str]]:
    for attack in attack_names([run]):
        result = attack_result(party, attack)
        if result is not None and not math.isnan(result.worst):
            yield result.worst, attack
