"""Finished runs as tables for a terminal of 80 columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.features import FeatureLeak, best_by_view
from splitvfl.leakage.many_auditing import auditor_of
from splitvfl.report.findings import (
    chance_note,
    known_note,
    label_notes,
    told_notes,
    total_notes,
    unavailable_notes,
)
from splitvfl.report.most_read import most_read
from splitvfl.report.read_words import categories_of
from splitvfl.report.rows import (
    AUDITOR,
    MISSING,
    AttackRow,
    DefenseRow,
    Estimate,
    PartyRow,
    RunGroup,
    attack_names,
    group_runs,
    rows_by_defense,
    rows_by_run,
    with_parties,
    written,
)
from splitvfl.report.summary import RunSummary

# No number may outgrow its column.
_written = partial(written, sign=" ±", large=".1e")

# Attacks side by side that leave room for the defense's name; more of them go into a further table.
_ATTACKS_PER_TABLE = 4
_ATTACK_WIDTH = 9
_NAME_WIDTH = 21
_NARROW_NAME_WIDTH = 18
_WIDE_NAME_WIDTH = 31
_INTERVAL_WIDTH = 10
# More stand in the page of the report.
_COLUMNS_SHOWN = 8

_LEAK_AUC = (
    "how well an attack separates positives from negatives, one class from the rest, or large numbers from small ones: "
    "0.50 is guessing, 1.00 is every label"
)

_THREE = {
    "excess": "what messages reveal of a record's own label beyond the model's prediction: the largest AUC among "
    "canaries, with its joint 95 % CI below",
    "total": "leak AUC of messages, the model's predictions and the partner's own features together: the largest of a "
    "reader of all, of the features alone, and of every attack",
    "baseline": "the partner alone: the larger AUC of its features with labels of other records, and of their first "
    "principal component (its AUC is below) without any label",
}

_SUMMARY_LEGEND = {
    **_THREE,
    "leak AUC": _LEAK_AUC,
    "first line": "mean over steps / scores added up over the run, each oriented to read best",
    "second line": "95 % quantile over steps (number of batches where it is undefined: one class only)",
    "third line": "the raw AUCs of the first line, where an attack reads better the other way round",
    "of 10%": "the share of the records that an attack scores, and the AUCs among these, oriented; in the first line "
    "the others tie, in the middle",
    "worst": "the larger of the two figures in the first line, over all attacks on messages",
    AUDITOR: "",  # it depends on the labels: :func:`auditor_legend`
    "err": "measured ½(FPR + FNR) of the auditor's attack, 0.50 is guessing; below it, the defense's own bound: that "
    "of noise on the gradient holds if the defense's model does, for attackers who do not know what the model predicts",
    "noise": "noise power over the message's own; p: the power itself, where only that is known",
}

# What stands in the table of costs.
_OF_COSTS = {"noise", "±"}

_AFTER_LEGEND = {
    "train, test": "leak AUC of the attack with the partner's trained model, on records that it did not know, oriented "
    "to read best",
    "before": "the same attack's leak AUCs with that model as it was before training",
    "chance": "what an attack that knows nothing is expected to get there, for being oriented",
}

_FEATURE_LEGEND = {
    "error": "mean squared error of an estimate of the partner's columns, in units of each column's range over the "
    "training records; beside it that of answering the column's mean, or the middle of its range",
    "near": "share of entries that are estimated to within .05 of the range, of test records if there are some",
    "scores": "what an attacker has who gets scores from somebody else; activation: who receives the partner's part "
    "and computes them itself, as the active party does in training, and in predictions who computes the scores",
    "column": f"those {_COLUMNS_SHOWN} that the best attack reads best, compared with the mean",
}

_READING_LEGEND = {
    "most": "share of the columns' variance that the attack's estimates of records whose columns it does not know "
    "recover, the mean over columns: in the epoch in which that is most, or over the run",
    "last epoch": "the same in the last epoch alone, which whoever sends gradients can spoil",
    "over the run": "the same of each record's mean estimate over all epochs",
    "without": "what the active party's own features recover, without any message",
    "recovered": "those of whose variance more than half was recovered in any epoch or over the run; column by "
    "column, the most that any attack recovers that assumes no more",
    "(end)": "of messages that the finished model makes of the training records again, which are not sent",
    "(eval)": "of records that are evaluated, where no message of training could be judged",
    "(scores)": "from scores of predictions in place of messages, by who knows the whole trained model",
}

_CATEGORY_LEGEND = {
    "right": "share of records whose category is the one that the attack answers",
    "most frequent": "what answering the most frequent category for all of them gives",
    "beyond": "(right − most frequent) / (1 − most frequent), at least 0; a categorical field counts by it where "
    "others count by variance",
}

_COMPARISON_LEGEND = {
    **_THREE,
    "±": "half of the 95 % t-interval of the mean over seeds; of two runs both figures stand, as a range",
    "worst": "the mean over runs of each run's worst attack on messages, whichever that was",
    "leak AUC": _LEAK_AUC,
    "an attack's": "the larger of its mean over steps and of its scores added up over the run, oriented to read best",
    AUDITOR: "",
}


def summary_table(runs: Sequence[RunSummary]) -> RenderableType:
    """Return every run's figures: what leaks through its defense, and what that costs.

    Excess, total and baseline come first. Runs are grouped by data set and model.

    Args:
        runs: Finished runs.
    """
    parts: list[RenderableType] = list(_sections(runs, compared=False))
    of_labels = {} if all(run.seat for run in runs) else _fitting(_SUMMARY_LEGEND, runs)
    legend = of_labels | _reading_legend(runs) | _category_legend(runs) | _feature_legend(runs) | _after_legend(runs)
    return Group(*parts, *_said_once(runs), _legend(legend))


def comparison_table(runs: Sequence[RunSummary]) -> RenderableType:
    """Return means over seeds with 95 % intervals: one row per defense.

    Args:
        runs: Finished runs; those of one defense differ in their seeds.
    """
    legend = _fitting(_COMPARISON_LEGEND, runs) | _reading_legend(runs) | _after_legend(runs)
    return Group(*_sections(runs, compared=True), *_said_once(runs), _legend(legend))


def _said_once(runs: Sequence[RunSummary]) -> Iterator[RenderableType]:
    notes = [*total_notes(runs), *label_notes(runs), *told_notes(runs)]
    yield from (Text(note, style="dim") for note in notes)
    if notes:
        yield Text()


def _sections(runs: Sequence[RunSummary], *, compared: bool) -> Iterator[RenderableType]:
    for group in group_runs(runs):
        rows = rows_by_defense(group) if compared else rows_by_run(group)
        yield Text.assemble((group.title, "bold"), (f"   {group.subtitle}", "dim"))
        for table in _tables(group, rows, compared=compared):
            yield Text()
            yield table
        yield Text()
        notes = list(_notes(group, rows))
        if notes:
            yield from notes
            yield Text()


def _tables(group: RunGroup, rows: Sequence[DefenseRow], *, compared: bool) -> Iterator[Table]:
    if group.seat:
        yield from _readings(rows)
        yield from _features(rows)
        return
    yield from _labels(rows, compared=compared)
    yield (_compared_costs if compared else _costs)(group, rows)
    if group.judged:
        yield from _leaks(group, rows, compared=compared)
    if compared:
        yield from _compared_readings(rows)
    else:
        yield from _readings(rows)
        yield from _features(rows)
    yield from _after(rows)


def _table(first: str, width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold", width=width, vertical="top")
    return table


def _numbers(table: Table, *headers: tuple[str, int]) -> None:
    for header, width in headers:
        shown = _hyphened(header, width)
        table.add_column(Text(shown), justify="right", width=width, overflow="fold", vertical="top")


def _hyphened(name: str, width: int) -> str:
    """Return a name, if it is too long with a space behind each hyphen, where it may be broken."""
    return name if len(name) <= width else name.replace("-", "- ")


def _costs(group: RunGroup, rows: Sequence[DefenseRow]) -> Table:
    table = _table("What it costs", _NAME_WIDTH)
    _numbers(table, (f"test {group.metric}", 8), ("test loss", 8), ("noise", 8), ("ms per step", 8))
    for row in rows:
        cells = [_two_lines(row.label), _plain(row.test, 3), _plain(row.loss, 3), _noise(row), _plain(row.step_ms, 2)]
        table.add_row(*cells)
    return table


def _labels(rows: Sequence[DefenseRow], *, compared: bool) -> Iterator[Table]:
    """Return the three figures and the worst attack, if anything of them was measured."""
    if not any(party.shows_labels for _, party in with_parties(rows)):
        return
    table = _table("What leaks of labels", _WIDE_NAME_WIDTH if compared else _NAME_WIDTH)
    narrow = _INTERVAL_WIDTH if compared else 8
    _numbers(table, ("excess", _INTERVAL_WIDTH), ("total", narrow), ("baseline", narrow), ("worst", narrow))
    if not compared:
        table.add_column("to", overflow="fold", width=_ATTACK_WIDTH)
    for row, party in with_parties(rows):
        cells = [_beyond_cell(party), _auc(party.total), _known_cell(party), _auc(party.worst)]
        if not compared:
            cells.append(Text(_hyphened(party.worst_attack, _ATTACK_WIDTH)))
        table.add_row(_name(row, party, compared=compared), *cells)
    yield table


def _beyond_cell(party: PartyRow) -> Text:
    if party.silent:
        return Text("no message")
    text = _auc(party.beyond)
    if party.interval is not None:
        text.append(f"\n{_written(party.interval[0], 2)}–{_written(party.interval[1], 2)}", style="dim")
    return text


def _known_cell(party: PartyRow) -> Text:
    text = _plain(party.known, 2)
    if party.first_component is not None:
        text.append(f"\n{_written(party.first_component.mean, 2)}", style="dim")
    return text


def _leaks(group: RunGroup, rows: Sequence[DefenseRow], *, compared: bool) -> Iterator[Table]:
    for attacks in _portions(attack_names(group.runs)):
        table = _table("To which attack", _WIDE_NAME_WIDTH if compared else _NAME_WIDTH)
        _numbers(table, *((attack, _INTERVAL_WIDTH if compared else _ATTACK_WIDTH) for attack in attacks))
        if not compared:
            _numbers(table, ("err", 4))
        for row, party in with_parties(rows):
            found = [party.attacks.get(attack) for attack in attacks]
            if compared:
                cells = [_auc(None if attack is None else attack.worst) for attack in found]
            else:
                cells = [*map(_leak_cell, found), _error_cell(party)]
            table.add_row(_name(row, party, compared=compared), *cells)
        yield table


def _compared_costs(group: RunGroup, rows: Sequence[DefenseRow]) -> Table:
    table = _table("What it costs", _WIDE_NAME_WIDTH)
    _numbers(table, ("runs", 4), (f"test {group.metric}", 13), ("ms per step", 11))
    for row in rows:
        cells = [_breakable(row.label), Text(str(row.runs)), _plain(row.test, 3), _plain(row.step_ms, 2)]
        table.add_row(*cells)
    return table


def _readings(rows: Sequence[DefenseRow]) -> Iterator[Table]:
    found = [(row, party, one) for row, party in with_parties(rows) for one in party.readings]
    if not found:
        return
    table = _table("Features as the active party recovers them", 15)
    table.add_column("of", overflow="fold", width=12)
    table.add_column("by", overflow="fold", width=10)
    _numbers(table, ("messages", 8), ("own", 4), ("joint", 5), ("exact", 5), ("recovered", 9))
    for row, party, one in found:
        figures = (one.most, one.without_messages, one.joint, one.exact_total)
        shares = (MISSING if share is None else f"{share:.0%}" for share in figures)
        told = f"{one.most_told} of {len(one.columns)}"
        table.add_row(_two_lines(row.label, width=15), Text(party.name), _by(one), *shares, told)
    yield table
    columns = _table("Column by column", 15)
    columns.add_column("of", overflow="fold", width=12)
    columns.add_column("column", overflow="fold", width=24)
    _numbers(columns, ("most", 8), ("over the run", 8))
    for row, party in with_parties(rows):
        best_read = most_read(party.results[0])
        for best in [*best_read[:1], *(one for one in best_read[1:] if one.reading.of_scores or one.reading.of_steps)]:
            for column in best.columns[:_COLUMNS_SHOWN]:
                shares = (MISSING if share is None else f"{share:.0%}" for share in (column.share, column.accumulated))
                name = _two_lines(row.label, width=15)
                columns.add_row(name, Text(party.name), Text(column.column), *shares)
    yield columns
    yield from _categories(rows)


def _categories(rows: Sequence[DefenseRow]) -> Iterator[Table]:
    table = _table("Category by category", 15)
    table.add_column("of", overflow="fold", width=12)
    table.add_column("column", overflow="fold", width=24)
    _numbers(table, ("right", 8), ("most frequent", 8), ("beyond", 8))
    for row, party in with_parties(rows):
        for best in most_read(party.results[0])[:1]:
            for one in islice(categories_of(best.reading), _COLUMNS_SHOWN):
                shares = (
                    MISSING if share is None else f"{share:.0%}" for share in (one.right, one.commonest, one.share)
                )
                table.add_row(_two_lines(row.label, width=15), Text(party.name), Text(one.column), *shares)
    if table.row_count:
        yield table


def _by(reading: ColumnReading) -> Text:
    when = (
        " (scores)"
        if reading.of_scores
        else " (steps)"
        if reading.of_steps
        else " (end)"
        if reading.standing_still
        else " (eval)"
        if reading.evaluation_only
        else " (once)"
        if reading.sent_once
        else ""
    )
    return Text(_hyphened(reading.attack, 10) + when)


def _compared_readings(rows: Sequence[DefenseRow]) -> Iterator[Table]:
    found = [(row, party, *one) for row, party in with_parties(rows) for one in party.read_shares.items()]
    if not found:
        return
    table = _table("Features as the active party recovers them", _WIDE_NAME_WIDTH)
    table.add_column("by", overflow="fold", width=10)
    _numbers(table, ("messages", 8), ("own", 5), ("joint", 5), ("exact", 5), ("recovered", 9))
    for row, party, attack, (*shares, told) in found:
        cells = (*(_plain(share, 2) for share in shares), _plain(told, 1))
        table.add_row(_breakable(row.label_at(party)), Text(attack), *cells)
    yield table


def _features(rows: Sequence[DefenseRow]) -> Iterator[Table]:
    found = [(row, party) for row, party in with_parties(rows) if party.features]
    if not found:
        return
    table = _table("What predictions give away", 15)
    table.add_column("of", overflow="fold", width=15)
    table.add_column("to the attack", overflow="fold", width=14)
    _numbers(table, ("error, test", 8), ("error, train", 8), ("of the mean", 7), ("near", 5))
    for row, party in found:
        for (sees, attack), parts in _by_view(party.features).items():
            told = parts.get("test") or parts["train"]
            errors = (f"{leak.mse:.3g}" if leak else MISSING for leak in (parts.get("test"), parts.get("train")))
            near = MISSING if told.near is None else f"{told.near:.0%}"
            name = _two_lines(row.label, width=15)
            shown = Text(f"{party.name}, {sees}")
            table.add_row(name, shown, Text(_hyphened(attack, 14)), *errors, f"{told.blind_mse:.3g}", near)
    yield table
    yield from _columns(found)


def _by_view(leaks: Sequence[FeatureLeak]) -> dict[tuple[str, str], dict[str, FeatureLeak]]:
    """Return leaks by view and attack, and those by part."""
    found: dict[tuple[str, str], dict[str, FeatureLeak]] = {}
    for leak in leaks:
        found.setdefault((leak.sees, leak.attack), {})[leak.part] = leak
    return found


def _columns(found: Sequence[tuple[DefenseRow, PartyRow]]) -> Iterator[Table]:
    """Return the columns that the best attack of each view reads best, compared with their means."""
    table = _table("Column by column", 14)
    table.add_column("of", overflow="fold", width=15)
    table.add_column("column", overflow="fold", width=13)
    _numbers(table, ("error", 8), ("of the mean", 8), ("of a half", 8), ("near", 5))
    for row, party in found:
        for leak in best_by_view(party.features):
            read = sorted(leak.columns, key=lambda one: one.mse / one.mean_mse if one.mean_mse else math.inf)
            for one in read[:_COLUMNS_SHOWN]:
                shown = Text(f"{party.name}, {leak.sees}")
                figures = (f"{one.mse:.3g}", f"{one.mean_mse:.3g}", f"{one.half_mse:.3g}", f"{one.near:.0%}")
                table.add_row(_two_lines(row.label, width=14), shown, Text(one.column), *figures)
    if table.row_count:
        yield table


def _reading_legend(runs: Sequence[RunSummary]) -> dict[str, str]:
    shown = any(party.readings for run in runs for party in run.parties.values())
    return _READING_LEGEND if shown else {}


def _category_legend(runs: Sequence[RunSummary]) -> dict[str, str]:
    readings = (one for run in runs for party in run.parties.values() for one in party.readings)
    return _CATEGORY_LEGEND if any(any(categories_of(one)) for one in readings) else {}


def _feature_legend(runs: Sequence[RunSummary]) -> dict[str, str]:
    shown = any(party.features for run in runs for party in run.parties.values())
    return _FEATURE_LEGEND if shown else {}


def _after(rows: Sequence[DefenseRow]) -> Iterator[Table]:
    found = [(row, party, *late) for row, party in with_parties(rows) for late in party.after_training.items()]
    if not found:
        return
    table = _table("After training", _NARROW_NAME_WIDTH)
    table.add_column("what reads", overflow="fold", width=16)
    _numbers(table, *((header, _INTERVAL_WIDTH) for header in ("train", "test", "before")))
    counted = any(after.chance_train or after.chance_test for *_, after in found)
    if counted:
        _numbers(table, ("chance", 6))
    for row, party, attack, after in found:
        name = _name(row, party, compared=False, width=_NARROW_NAME_WIDTH)
        before = Text.assemble(_plain(after.before_train, 2), "\n", _plain(after.before_test, 2))
        cells = [_after_cell(after.train, after.raw_train), _after_cell(after.test, after.raw_test), before]
        if counted:
            cells.append(
                Text("\n".join(_written(one and one.mean, 2) for one in (after.chance_train, after.chance_test)))
            )
        scored = "" if after.scored is None else f" (scores {after.scored.mean:.0%})"
        table.add_row(name, Text(f"{attack}{scored}"), *cells)
    yield table


def _after_cell(leak: Estimate | None, raw: Estimate | None) -> Text:
    text = _auc(leak)
    if raw != leak:
        text.append(f"\nraw {_written(raw and raw.mean, 2)}", style="dim")
    return text


def _fitting(legend: dict[str, str], runs: Sequence[RunSummary]) -> dict[str, str]:
    """Return a legend without what no table of these runs shows: an auditor, say, or any attack."""
    attacks = attack_names(runs)
    if AUDITOR in attacks:
        return legend | {AUDITOR: auditor_legend(runs)}
    shown = legend.keys() - {AUDITOR} if attacks else legend.keys() & _OF_COSTS
    if any(party.label_leak.known is not None for run in runs for party in run.parties.values()):
        shown |= {"baseline"}
    return {term: text for term, text in legend.items() if term in shown}


def auditor_legend(runs: Sequence[RunSummary]) -> str:
    """Return what the auditor's column is: its attacks on the labels of these runs, and how many there are."""
    said = dict.fromkeys(auditor_of(run.task).legend for run in runs)
    return " (of other labels: ".join(said) + ")" * (len(said) - 1)


def _after_legend(runs: Sequence[RunSummary]) -> dict[str, str]:
    late = [after for run in runs for party in run.parties.values() for after in party.after_training.values()]
    counted = not all(math.isnan(one.by_chance) for after in late for one in (after.train, after.test))
    return {term: text for term, text in _AFTER_LEGEND.items() if late and (counted or term != "chance")}


def _notes(group: RunGroup, rows: Sequence[DefenseRow]) -> Iterator[Text]:
    if not group.judged:
        yield Text("No label attack could be judged in these runs.", style="dim")
    for note in [chance_note(group.runs), known_note(group.runs), *unavailable_notes(rows)]:
        if note:
            yield Text(note, style="dim")


def _portions(attacks: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(attacks), _ATTACKS_PER_TABLE):
        yield attacks[start : start + _ATTACKS_PER_TABLE]


def _breakable(label: str) -> Text:
    # A space before the settings is where a long name may be broken.
    return Text(label if len(label) <= _WIDE_NAME_WIDTH else label.replace("(", " ("))


def _name(row: DefenseRow, party: PartyRow, *, compared: bool, width: int = _NAME_WIDTH) -> Text:
    if compared:
        return _breakable(row.label_at(party))
    return _two_lines(row.label, party.name if len(row.parties) > 1 else "", width=width)


def _two_lines(label: str, party: str = "", *, width: int = _NAME_WIDTH) -> Text:
    name, bracket, settings = label.partition("(")
    name = _hyphened(name, width)
    text = Text(f"{name}, {party}" if party else name)
    if bracket:
        text.append(f"\n{bracket}{settings}", style="dim")
    return text


def _leak_cell(row: AttackRow | None) -> Text:
    if row is None:
        return Text(MISSING)
    text = Text.assemble(_auc(row.step), "/", _auc(row.accumulated))
    text.append(f"\n{_written(row.quantile_95, 2)} ({row.undefined})", style="dim")
    if row.turned:
        text.append(f"\n{_written(row.raw_step, 2)}/{_written(row.raw_accumulated, 2)}", style="dim")
    if row.scored is not None:
        share, own = f"{row.scored.mean:.0%}", f"{_written(row.scored_step, 2)}/{_written(row.scored_accumulated, 2)}"
        text.append(f"\nof {share}\n{own}", style="dim")
    return text


def _error_cell(party: PartyRow) -> Text:
    text = _plain(party.detection_error, 2)
    if party.promised_error is not None:
        text.append(f"\n{_written(party.promised_error, 2)}", style="dim")
    return text


def _noise(row: DefenseRow) -> Text:
    if row.noise is not None:
        return Text(f"{row.noise.mean:.3g}")
    return Text(MISSING if row.power is None else f"p {row.power.mean:.0e}")


def _plain(value: Estimate | None, digits: int) -> Text:
    return Text(_written(value, digits))


def _auc(value: Estimate | None) -> Text:
    return Text(_written(value, 2))


def _legend(meanings: Mapping[str, str]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False, style="dim")
    table.add_column(no_wrap=True)
    table.add_column()
    for term, meaning in meanings.items():
        table.add_row(term, meaning)
    return table
