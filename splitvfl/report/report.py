"""Finished runs as one HTML page: what leaked, what it cost, and what that means."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from splitvfl.config.registry import installed
from splitvfl.errors import ArgumentError, CheckpointError
from splitvfl.hooks import explanations_of
from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.monitor import read_metrics
from splitvfl.report.findings import (
    GOAL,
    MATCHING,
    PARTLY_VISIBLE,
    VISIBLE,
    advice,
    chance_note,
    headline,
    known_note,
    label_notes,
    leakiest,
    own_columns_floor,
    sending_note,
    stopping_note,
    unavailable_notes,
    verdict,
)
from splitvfl.report.rows import (
    MISSING,
    Estimate,
    RunGroup,
    attack_names,
    counted,
    group_runs,
    known_records,
    rows_by_defense,
    with_parties,
    written,
)
from splitvfl.report.summary import RunSummary, read_summary

_TEMPLATE = "report.html.j2"
_SETTINGS = "experiment.yaml"


def write_report(runs: Sequence[Path], target: Path, *, title: str) -> Path:
    """Write a page about finished runs, and return where it is.

    The page needs nothing else: no network, no script, no other file. It is written all at once or not at all. It
    holds the runs' settings; paths in them are printed as their user wrote them.

    Args:
        runs: Folders of finished runs, at least one.
        target: The page's file; its folder is made if need be.
        title: Heading of the page.

    Raises:
        ArgumentError: If there are no runs.
        CheckpointError: If a run has not finished, is damaged, or the page cannot be written.
    """
    if not runs:
        raise ArgumentError("expected at least one folder of a finished run, got none")
    summaries = [read_summary(folder) for folder in runs]
    page = _render(title, summaries, list(runs))
    # A name that nobody can foresee, and a new file: a link that others have put there is not followed.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("x", encoding="utf-8") as file:
            file.write(page)
        os.replace(draft, target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {target}: {error}") from error
    return target


def _render(title: str, summaries: list[RunSummary], folders: list[Path]) -> str:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        written=written,
        share=_share,
        level=_level,
        significant=_significant,
        counted=counted,
        stopping=stopping_note,
        sending=sending_note,
        headline=headline,
        verdict=partial(verdict, own_columns=False),
    )
    late = (name for run in summaries for party in run.parties.values() for name in party.after_training)
    template = environment.from_string(resources.files("splitvfl.report").joinpath(_TEMPLATE).read_text("utf-8"))
    return template.render(
        title=title,
        goal=GOAL,
        matching=MATCHING,
        missing=MISSING,
        sections=list(_sections(summaries, folders)),
        attacks=_descriptions([*attack_names(summaries), *late]),
        known=list(dict.fromkeys(known_records(run.known_positives, run.known_negatives) for run in summaries)),
        runs=[(run, _settings(folder)) for run, folder in zip(summaries, folders, strict=True)],
    )


def _sections(summaries: Sequence[RunSummary], folders: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    from markupsafe import Markup

    from splitvfl.report.figures import cost_and_leak, label_leaks, leak_curves, leak_map

    # By identity: the same run given twice is equal to itself.
    folder_of = {id(run): folder for run, folder in zip(summaries, folders, strict=True)}
    for number, group in enumerate(group_runs(summaries), start=1):
        metrics = [read_metrics(folder_of[id(run)]) for run in group.runs]
        rows = rows_by_defense(group)
        yield {
            "group": group,
            "advice": advice(group),
            "own_columns": own_columns_floor(group),
            "verdicts": [(row, leakiest(row.results)) for row in rows],
            "attacks": attack_names(group.runs),
            "rows": rows,
            "features": [(row, party, leak) for row, party in with_parties(rows) for leak in party.features],
            "after": [
                (row, party, *late) for row, party in with_parties(rows) for late in party.after_training.items()
            ],
            "notes": [*_notes(group), *(f"{note}." for note in unavailable_notes(rows))],
            "three": any(party.shows_labels for _, party in with_parties(rows)),
            "several_parties": any(len(row.parties) > 1 for row in rows),
            "several_runs": any(row.runs > 1 for row in rows),
            # matplotlib escapes the names that it draws, so its figures may go into the page as they are.
            "curves": Markup(leak_curves(group, metrics, name=f"curves-{number}")),
            "cost": Markup(cost_and_leak(group, name=f"cost-{number}")),
            "labels": Markup(label_leaks(group, name=f"labels-{number}")),
            "leaks": Markup(leak_map(group, name=f"map-{number}")),
        }


def _notes(group: RunGroup) -> list[str]:
    # What is wrong with the matched figure stands once in the page, among the words.
    measured = label_notes([run for run in group.runs if run.canaries is not None])
    found = [*measured, chance_note(group.runs), known_note(group.runs)]
    return list(dict.fromkeys(filter(None, [*found, *(note for run in group.runs for note in run.notes)])))


def _descriptions(attacks: Sequence[str]) -> Mapping[str, str]:
    known = explanations_of(Audit)
    for attack in installed("attacks").values():
        known |= explanations_of(attack)
    return {name: _description(name, known) for name in attacks}


def _description(attack: str, known: Mapping[str, str]) -> str:
    name, at, layer = attack.partition("@")
    explanation = known.get(name)
    if explanation and at:
        return f"The {name} attack on the gradient of an earlier layer of the partner's model, {layer}."
    return explanation or "An attack that came with the experiment."


def _settings(folder: Path) -> str:
    path = folder / _SETTINGS
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _share(value: Estimate) -> str:
    """Return a share of records, in per cent."""
    return f"{value.mean:.0%}"


def _level(value: Estimate | None) -> str:
    if value is None:
        return "none"
    if value.mean >= VISIBLE:
        return "high"
    if value.mean >= PARTLY_VISIBLE:
        return "middle"
    return "low" if value.mean < GOAL else "none"


def _significant(value: Estimate | float | None) -> str:
    """Return a figure that may have any size, with three digits."""
    if value is None:
        return MISSING
    return f"{value.mean if isinstance(value, Estimate) else value:.3g}"
