"""Finished runs as one HTML page: what leaked, what it cost, and what that means."""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitvfl.config.registry import explanations
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, printable
from splitvfl.leakage.asked_categories import MOST_CATEGORIES
from splitvfl.leakage.column_figures import EXACT, ColumnReading, ColumnShare, LaterReading
from splitvfl.leakage.features import feature_notes
from splitvfl.leakage.many_auditing import auditor_of
from splitvfl.leakage.monitor import read_metrics
from splitvfl.leakage.reconstruction import read_reconstruction
from splitvfl.leakage.shown_records import ShownRecords, read_shown
from splitvfl.report.audit_file import AUDIT_FILE, AUDIT_PAGE, read_audit
from splitvfl.report.audit_page import audit_page
from splitvfl.report.audit_words import answer, not_covered, overall, question
from splitvfl.report.column_leaks import (
    ViewNote,
    attack_rows,
    attack_rows_of,
    column_rows,
    column_rows_of,
    plotted_views,
    view_notes,
)
from splitvfl.report.comparison import bound, chosen, conclusion, ranked, to_do
from splitvfl.report.findings import (
    chance_note,
    facts,
    known_note,
    label_notes,
    sending_note,
    stopping_note,
    told_notes,
    total_notes,
    unavailable_notes,
)
from splitvfl.report.first_screen import STATES, model_line, state_words, verdict_boxes, what_to_do
from splitvfl.report.own_seat import seat_lines
from splitvfl.report.pages import link_from, page_template, write_page
from splitvfl.report.promises import promise
from splitvfl.report.provenance import Provenance, shown_settings
from splitvfl.report.rows import (
    AUDITOR,
    MISSING,
    DefenseRow,
    Estimate,
    PartyRow,
    RunGroup,
    attack_names,
    counted,
    group_runs,
    known_records,
    rows_by_defense,
    with_parties,
    written,
)
from splitvfl.report.served import served_in
from splitvfl.report.summary import FILE_NAME, RunSummary, read_summary
from splitvfl.system.untrusted_files import UntrustedFile

if TYPE_CHECKING:
    from jinja2 import Template

    from splitvfl.claims import Guarantee
    from splitvfl.leakage.in_general import KnowledgeGain

_TEMPLATE = "report.html.j2"
# Columns of which a page shows what was read; of the others it says how many there are.
_COLUMNS_SHOWN = 40
_SETTINGS = "experiment.yaml"
# What comes to light where an audit is put into words: it is read as it stands, and what is missing or of another kind
# shows there.
_OF_ANOTHER_SHAPE = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
_STATE_NAMED = {words: state for state, (words, _) in STATES.items()}
_MOST_SETTINGS = 1 << 24  # bytes


def write_report(runs: Sequence[Path], target: Path, *, title: str, show_records: bool = False) -> Path:
    """Write a page about finished runs, and return where it is.

    The page needs nothing else: no network, no script, no other file. It is written all at once or not at all. It
    holds the runs' settings; paths in them are printed as their user wrote them. A page of a run that has a
    reconstruction or a ledger, or that is a passive party's own, is readable by its owner alone, as the files of these
    are: values of records, statistics of columns or who was asked when are in them. Others follow the umask.

    Args:
        runs: Folders of finished runs, or folders that hold some at any depth, as ``compare`` makes them.
        target: The page's file; its folder is made if need be.
        title: Heading of the page.
        show_records: Whether values of a few records that runs have kept for it are in the page.

    Raises:
        ArgumentError: If there are no runs.
        ConfigError: If records are to be shown, and no run has kept any.
        CheckpointError: If a folder is missing or holds no finished run, a run is damaged, or the page cannot be
            written.
    """
    if not runs:
        raise ArgumentError("expected at least one folder of a finished run, got none")
    folders = finished_runs(runs)
    summaries = [read_summary(folder) for folder in folders]
    shown = {folder: read_shown(folder) for folder in folders} if show_records else {}
    if show_records and not any(shown.values()):
        raise ConfigError(
            f"--show-records: {' and '.join(map(str, folders))} kept no values of records; a run keeps them whose file "
            "says keep_records: true, and in which an attack reads numbers in activations"
        )
    page = _render(title, summaries, folders, target.parent, shown)
    told = (
        any(shown.values())
        or any(one.own_columns for one in summaries)
        or any(read_reconstruction(one) is not None or served_in(one) for one in folders)
    )
    write_page(page, target, private=told)
    return target


def finished_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of finished runs: those given, and in place of others those in them, at any depth, by name.

    Raises:
        CheckpointError: If a folder is missing, or holds none.
    """
    return list(dict.fromkeys(run for folder in folders for run in _runs_in(folder)))


def finished_in(folder: Path) -> bool:
    """Return whether a folder holds figures of a finished run, at any depth."""
    return (folder / FILE_NAME).is_file() or next(_inside(folder, FILE_NAME), None) is not None


def unfinished_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of runs, in these folders at any depth, that a page leaves out, as they have not finished."""
    begun = (path.parent for folder in folders for path in _inside(folder, _SETTINGS))
    begun = (run for run in begun if not _is_of_a_worker(run))
    return sorted({run for run in begun if not (run / FILE_NAME).is_file()}, key=_in_counting_order)


def _inside(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files of a name in a folder, at any depth; what is hidden there was replaced or deleted."""
    for path in folder.rglob(name):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts[:-1]):
            yield path


def _is_of_a_worker(folder: Path) -> bool:
    """Return whether a folder is what one of several workers keeps for itself within the run of all."""
    return re.fullmatch(r"worker-\d+", folder.name) is not None and (folder.parent / _SETTINGS).is_file()


def _runs_in(folder: Path) -> list[Path]:
    if (folder / FILE_NAME).is_file() or not folder.is_dir():
        return [folder]  # what is wrong with it, if anything is, is said when it is read
    found = sorted((path.parent for path in _inside(folder, FILE_NAME)), key=_in_counting_order)
    if found:
        return found
    begun = [folder] if (folder / _SETTINGS).is_file() else [path.parent for path in _inside(folder, _SETTINGS)]
    if not begun:
        raise CheckpointError(f"{folder} holds no finished run, nor do the folders in it: splitvfl train writes one")
    return begun[:1]


def _in_counting_order(path: Path) -> list[tuple[int, str]]:
    """Return a key that puts seed-10 behind seed-9."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", str(path))]


@cache
def _template() -> Template:
    """Return the page, compiled once: that takes as long as drawing a figure."""
    return page_template(
        _TEMPLATE,
        {
            "written": written,
            "percent": _percent,
            "shade": _shade,
            "source": _source,
            "column": _column,
            "means": _means,
            "share": _share,
            "significant": _significant,
            "bits": _bits,
            "counted": counted,
            "stopping": stopping_note,
            "sending": sending_note,
            "state": state_words,
            "general": _in_general,
            "state_named": lambda words: _STATE_NAMED.get(str(words), ""),
            "bound": bound,
            "moment": _moment,
            "thousands": lambda number: f"{number:,}",
        },
    )


def _render(
    title: str,
    summaries: list[RunSummary],
    folders: list[Path],
    beside: Path,
    shown: Mapping[Path, Sequence[ShownRecords]],
) -> str:
    late = (name for run in summaries for party in run.parties.values() for name in party.after_training)
    return _template().render(
        title=printable(title),
        parties=_parties(summaries),
        noted=list(_noted(summaries)),
        missing=MISSING,
        most_categories=MOST_CATEGORIES,
        sections=list(_sections(summaries, folders, shown)),
        attacks=_descriptions([*attack_names(summaries), *late], summaries),
        known=list(dict.fromkeys(known_records(run.known_positives, run.known_negatives) for run in summaries)),
        audits=[
            found for run, folder in zip(summaries, folders, strict=True) for found in _audited(run, folder, beside)
        ],
        served=[(run, one) for run, folder in zip(summaries, folders, strict=True) for one in served_in(folder)],
        runs=list(_with_settings(summaries, folders)),
    )


def _sections(
    summaries: Sequence[RunSummary], folders: Sequence[Path], shown: Mapping[Path, Sequence[ShownRecords]]
) -> Iterator[Mapping[str, Any]]:
    from markupsafe import Markup

    from splitvfl.report.estimate_plots import plots_of_shown
    from splitvfl.report.figures import cost_and_leak, leak_curves

    # By identity: the same run given twice is equal to itself.
    folder_of = {id(run): folder for run, folder in zip(summaries, folders, strict=True)}
    for number, group in enumerate(group_runs(summaries), start=1):
        metrics = [read_metrics(folder_of[id(run)]) for run in group.runs]
        rows = rows_by_defense(group)
        alone = len(group.runs) == 1 and not group.seat
        yield {
            "group": group,
            "lines": seat_lines(group.runs[0]) if group.seat else [] if alone else conclusion(group),
            "boxes": list(verdict_boxes(group.runs[0])) if alone else [],
            "model": model_line(group.runs[0]) if alone else "",
            "guarantees": list(_guarantees(rows)),
            "advice": "" if group.seat else what_to_do(group.runs[0]) if alone else _advice(group),
            "verdicts": [] if alone or group.seat else ranked(group),
            "found": [(row.label, said) for row in rows for said in facts(row.results[0])],
            "attacks": attack_names(group.runs),
            "rows": rows,
            "told": [
                _told(row, folder_of[id(row.results[0])], name=f"told-{number}-{n}") for n, row in enumerate(rows)
            ],
            "after": [
                (row, party, *late) for row, party in with_parties(rows) for late in party.after_training.items()
            ],
            "features": list(
                _features([(row, party, one) for row, party in with_parties(rows) for one in party.readings])
            ),
            "shown": [
                (row, one, Markup(plots_of_shown(one, name=f"shown-{number}-{n}-{place}")))
                for n, row in enumerate(rows)
                for place, one in enumerate(shown.get(folder_of[id(row.results[0])], ()))
            ],
            "notes": [*_notes(group), *(f"{note}." for note in unavailable_notes(rows))],
            "several_parties": any(len(row.parties) > 1 for row in rows),
            "several_runs": any(row.runs > 1 for row in rows),
            # matplotlib escapes the names that it draws, so its figures may go into the page as they are.
            "curves": Markup(leak_curves(group, metrics, name=f"curves-{number}")),
            "cost": Markup(cost_and_leak(group, name=f"cost-{number}")),
        }


def _guarantees(rows: Sequence[DefenseRow]) -> Iterator[tuple[DefenseRow, PartyRow, Guarantee | None, str]]:
    """Yield for each defense and partner the guarantee of a label, and what defenses state; of equals the first."""
    for row in rows:
        stated = promise(row.results[0])
        for party in row.parties:
            verdict = row.label_verdicts.get(party.name)
            yield row, party, None if verdict is None else verdict.guarantee, stated
            stated = ""


def _in_general(gain: KnowledgeGain) -> str:
    """Return what the partner has learned of labels in general, in a cell."""
    return "nothing new" if gain.nothing_came else f"{gain.before:.2f} → {gain.after:.2f}"


def _advice(group: RunGroup) -> str:
    """Return what to do next, in a sentence or two: the defense to train with, or what protects labels or decides."""
    best = chosen(ranked(group))
    return to_do(group) if best is None else f"Train with {best.label}."


def _audited(run: RunSummary, folder: Path, beside: Path) -> Iterator[Mapping[str, Any]]:
    """Yield what an audit of a run said, with the way to its page from where the report is to be.

    Raises:
        CheckpointError: If the audit is damaged, or something else than a file lies in place of its page.
    """
    found = read_audit(folder)
    if found is None:
        return
    page = folder / AUDIT_PAGE
    there = UntrustedFile(path=page).read()
    try:
        said = _said_of_audit(found)
    except _OF_ANOTHER_SHAPE as error:
        raise CheckpointError(
            f"{folder / AUDIT_FILE} is damaged: {type(error).__name__}: {error}; audit the run again, or delete it"
        ) from error
    ours = there is not None and _is_page_of(there, found)
    yield {
        "run": run,
        **said,
        "page": link_from(beside, page) if ours else "",
        "foreign": there is not None and not ours,
    }


def _said_of_audit(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "verdict": overall(found),
        "gaps": list(not_covered(found)),
        "seats": [(question(seat), next(answer(seat, found["trainings"]))) for seat in found["learned"]],
    }


def _is_page_of(page: bytes, found: Mapping[str, Any]) -> bool:
    """Return whether a page is the one that this version makes of an audit: anybody can put another in its place."""
    from jinja2 import TemplateError

    try:
        return page == audit_page(found).encode("utf-8")
    except (*_OF_ANOTHER_SHAPE, TemplateError):  # an audit of another version, of which no page can be made
        return False


def _told(row: DefenseRow, folder: Path, *, name: str) -> Mapping[str, Any]:
    """Return what the first run of a row told of columns: by its reconstruction, or by its summary alone."""
    from markupsafe import Markup

    from splitvfl.report.estimate_plots import estimate_plots

    found = read_reconstruction(folder)
    if found is None:
        leaks = {party.name: party.features for party in row.parties if party.features}
        return {
            "row": row,
            "sentences": [],
            "attacks": [one for party, own in leaks.items() for one in attack_rows_of(party, own)],
            "columns": [one for party, own in leaks.items() for one in column_rows_of(party, own)],
            "notes": [ViewNote("", "", feature_notes(leak for own in leaks.values() for leak in own))],
            "plots": [],
        }
    return {
        "row": row,
        "sentences": list(found.sentences.values()),
        "attacks": list(attack_rows(found)),
        "columns": list(column_rows(found)),
        "notes": view_notes(found),
        "plots": [
            (party, seen, view, Markup(estimate_plots(view, name=f"{name}-{place}")))
            for place, (party, seen, view) in enumerate(plotted_views(found))
        ],
    }


def _notes(group: RunGroup) -> list[str]:
    stated = " ".join(line for run in group.runs for line in run.promised or ())
    found = [
        *total_notes(group.runs),
        *label_notes(group.runs),
        *told_notes(group.runs),
        chance_note(group.runs),
        known_note(group.runs),
    ]
    noted = [note for run in group.runs for note in run.notes if not _is_stated(note, stated)]
    return list(dict.fromkeys(filter(None, [*found, *noted])))


def _is_stated(note: str, stated: str) -> bool:
    """Return whether a note repeats what a defense states: that is in the table of guarantees."""
    words = note.partition(": ")[2].removesuffix(".")
    return bool(words) and words in stated


def _descriptions(attacks: Sequence[str], runs: Sequence[RunSummary]) -> Mapping[str, str]:
    auditors = {AUDITOR: " ".join(dict.fromkeys(auditor_of(run.task).explanation for run in runs))}
    known = auditors | explanations()
    return {name: _description(name, known) for name in attacks}


def _description(attack: str, known: Mapping[str, str]) -> str:
    name, at, layer = attack.partition("@")
    explanation = known.get(name)
    if explanation and at:
        return f"The {name} attack on the gradient of an earlier layer of the partner's model, {layer}."
    return explanation or "An attack that came with the experiment."


def _with_settings(summaries: Sequence[RunSummary], folders: Sequence[Path]) -> Iterator[tuple[RunSummary, str, bool]]:
    """Yield each run with its settings, or with the lines that differ from those of the run before."""
    before = ""
    for run, folder in zip(summaries, folders, strict=True):
        settings = _settings(folder)
        if before and settings:
            lines = difflib.unified_diff(before.splitlines(), settings.splitlines(), n=0, lineterm="")
            differing = [line for line in itertools.islice(lines, 2, None) if not line.startswith("@@")]
            yield run, "\n".join(differing), True
        else:
            yield run, settings, False
        before = settings


def _settings(folder: Path) -> str:
    text = UntrustedFile(path=folder / _SETTINGS, most=_MOST_SETTINGS).text()
    return "" if text is None else "\n".join(map(printable, shown_settings(text).splitlines()))


def _parties(runs: Sequence[RunSummary]) -> str:
    """Return who trained together, the label party first, as far as that is known."""
    roles: dict[str, str] = {}
    for run in runs:
        noted = {} if run.provenance is None else run.provenance.parties
        roles |= {name: party.role for name, party in noted.items()}
        roles |= dict.fromkeys(run.parties, "passive")
    labels = [f"{name} (labels)" for name, role in roles.items() if role == "active"]
    return " with ".join(
        filter(None, [" and ".join(labels), " and ".join(n for n, r in roles.items() if r != "active")])
    )


def _noted(runs: Sequence[RunSummary]) -> Iterator[tuple[RunSummary, Provenance]]:
    """Return of runs on equal data the first, with where its figures come from."""
    seen = set()
    for run in runs:
        if run.provenance is not None and run.provenance.data_identity not in seen:
            seen.add(run.provenance.data_identity)
            yield run, run.provenance


def _moment(at: str) -> str:
    """Return a moment in UTC as people write it.

    >>> _moment("2026-05-04T16:05:06Z"), _moment("")
    ('2026-05-04 16:05:06 UTC', 'not noted')
    """
    return f"{at[:10]} {at[11:19]} UTC" if at else "not noted"


def _percent(value: float | None) -> str:
    """Return a share of entries, in per cent."""
    return MISSING if value is None else f"{value:.0%}"


def _shade(share: float) -> str:
    """Return the style of a cell on the one scale of all cells: 0 is white and 1 is dark, on any page.

    >>> _shade(-1.0), _shade(1.0)
    ('background:#ffffff;color:#000000', 'background:#282828;color:#ffffff')
    """
    level = 255 - round(215 * min(1.0, max(0.0, share)))
    # Of black and white the one with more contrast, by WCAG's luminance; 4.5 to 1 at the least.
    luminance = ((level / 255 + 0.055) / 1.055) ** 2.4
    ink = "#000000" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"
    return f"background:#{level:02x}{level:02x}{level:02x};color:{ink}"


def _source(one: ColumnReading) -> str:
    """Return of what an attack on features was judged, where that is not messages of training; with a comma before."""
    words = {
        "scores": one.of_scores,
        "messages of the finished model": one.standing_still,
        "messages of evaluated records": one.evaluation_only,
        "the one message before training": one.sent_once,
        "all steps together": one.of_steps,
    }
    return next((f", from {said}" for said, holds in words.items() if holds), "")


def _column(one: ColumnReading, name: str) -> ColumnShare | None:
    return next((column for column in one.columns + one.one_hot if column.column == name), None)


def _features(
    readings: Sequence[tuple[DefenseRow, PartyRow, ColumnReading]],
) -> Iterator[tuple[str, list[tuple[DefenseRow, ColumnReading]], list[str], int]]:
    """Yield for each party what attacks recover, its features, the most recovered first, and how many are left out."""
    for party in dict.fromkeys(party.name for _, party, _ in readings):
        own = [(row, one) for row, at, one in readings if at.name == party]
        most: dict[str, float] = {}
        for _, one in own:
            for column in one.columns + one.one_hot:
                most[column.column] = max(column.most, most.get(column.column, -math.inf))
        names = sorted(most, key=lambda name: -most[name])
        yield party, own, names[:_COLUMNS_SHOWN], len(names[_COLUMNS_SHOWN:])


def _means(readings: Sequence[tuple[DefenseRow, ColumnReading]]) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the other means over features that any attack has, and the fraction of records recovered exactly."""
    means: dict[str, Callable[[ColumnReading], float | None]] = {
        "mean, of records that were evaluated": lambda one: _mean_share(one.evaluation),
        "mean, of records that were scored": lambda one: _mean_share(one.prediction),
        "mean, from messages and own features": lambda one: one.joint,
        "baseline: mean, from own features alone": lambda one: one.without_messages,
        f"records recovered exactly, within {EXACT:g} σ": lambda one: one.exact_total,
    }
    for said, figure in means.items():
        found = [figure(one) for _, one in readings]
        if any(value is not None for value in found):
            yield said, found


def _mean_share(later: LaterReading | None) -> float | None:
    return None if later is None else later.share


def _share(value: Estimate) -> str:
    """Return a share of records, in per cent."""
    return f"{value.mean:.0%}"


def _significant(value: Estimate | float | None) -> str:
    """Return a figure that may have any size, with three digits."""
    if value is None:
        return MISSING
    return f"{value.mean if isinstance(value, Estimate) else value:.3g}"


def _bits(value: float | None) -> str:
    """Return an entropy in bits."""
    return MISSING if value is None else f"{value:.1f}"
