"""The same defenses and attacks on labels of ten classes, and on numbers: a row for each, a column for each attack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.reproduce.defense_table.plans import DEFENSES, jobs_of
from scripts.reproduce.defense_table.runs import summary_of
from scripts.reproduce.shared.claims import (
    DIFFERENCE,
    Claim,
    clipped,
    interval,
    markdown_table,
    mean,
    shown,
    shown_mean,
    surely_below,
)
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.app.experiment import Experiment, Workbench, variants
from splitvfl.app.records import load_data
from splitvfl.config.sections import parse_config, parse_defenses
from splitvfl.errors import SplitVFLError
from splitvfl.leakage.leak_summary import LeakSummary, largest, nanmax
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.metrics import chance_of_largest
from splitvfl.report.party_result import PartyResult
from splitvfl.report.rows import attack_names, attack_result
from splitvfl.report.summary import RunSummary

TITLE = "Classes and numbers"

SEEDS = 3
_SLACK = 0.01

# Of every attack that reads labels of either kind.
_ATTACKS = (
    "norm, direction, sign, residual, gradient-classifier, readout, combined, mixture, component, "
    "{name: component, of: activation}, model-completion"
)

_TRAINING = """
parties:
  bank: {{role: active, columns: 0.5}}
  telecom: {{role: passive, columns: rest}}
model: {{name: mlp, bottom: [64, 32]}}
train: {{epochs: {epochs}, batch_size: {batch}, optimizer: {{name: adam, lr: {lr}}}, device: cpu}}
known_positives: 10
known_negatives: 10
attacks: [{attacks}]
"""


@dataclass(frozen=True)
class OtherLabels:
    """A data set with other than two labels.

    Attributes:
        title: For people.
        experiment: Its experiment, without defenses.
        figures: What the figures in the table are, in a sentence.
        settings: Defenses with the settings that such labels take, by what they are in the table of two classes.
    """

    title: str
    experiment: str
    figures: str
    settings: Mapping[str, str] = field(default_factory=dict)


SETS = (
    OtherLabels(
        "Digits, ten classes",
        "name: digits-10\ndata: {name: digits, digit: null, scale: standard}"
        + _TRAINING.format(epochs=10, batch=128, lr=0.001, attacks=_ATTACKS),
        "Leak: the larger of the means over steps and of the scores added up over the run, each a mean AUC over the "
        "classes of one against the rest. In brackets top-1, the share of records whose own class scored highest; "
        "attacks with one score per record name no class.",
        {
            "gaussian-targets(detection_error=0.4)": "gaussian-targets(detection_error=0.4, classes=10)",
            "randomised-response(epsilon=1.5)": "randomised-response(epsilon=1.5, classes=10)",
        },
    ),
    OtherLabels(
        "Diabetes, a regression",
        "name: diabetes\ndata: {name: diabetes, scale: standard}"
        + _TRAINING.format(epochs=40, batch=64, lr=0.01, attacks=_ATTACKS),
        "Leak: the larger of the means over steps and of the scores added up over the run, each a concordance: of two "
        "records, how often the larger label has the larger score. In brackets the share of labels that a line of the "
        "sums tells within half a standard deviation.",
        {
            name: f"{name[:-1]}, label_range=[25, 346])"
            for name in ("record-gaussian(detection_error=0.4)", "gaussian-targets(detection_error=0.4)")
        },
    ),
)


@dataclass(frozen=True)
class Planned:
    """The runs of one defense on one set.

    Attributes:
        label: The defense with its settings.
        jobs: One per seed; none if the defense is not for such labels.
        refused: Why, then.
    """

    label: str
    jobs: Sequence[Job] = ()
    refused: str = ""


Found = tuple[OtherLabels, Sequence[tuple[Planned, Sequence[Result]]]]
"""A data set with what came of each defense on it."""


def planned(labels: OtherLabels, *, quick: bool) -> list[Planned]:
    """Return the runs of every defense of the table, or why there are none."""
    found = []
    for label in (labels.settings.get(name, name) for name in DEFENSES):
        try:
            _tried(labels.experiment, label)
        except SplitVFLError as error:
            found.append(Planned(label, refused=str(error)))
            continue
        seeds = range(1 if quick else SEEDS)
        (jobs,) = jobs_of(labels.experiment, [label], seeds=seeds, what=f", {labels.title}", quick=quick)
        found.append(Planned(label, jobs))
    return found


def _tried(experiment: str, label: str) -> None:
    """Put an experiment together, which a defense of other labels refuses."""
    config = parse_config(f"{experiment}audit: false\n", source="defense_table")
    (variant,) = variants(config, parse_defenses(label, folder=Path()), 1, Path())
    Experiment(variant.config, Workbench(load_data(config), {})).trainer()


def sections(settings: Settings) -> list[Section]:
    """Return the section on classes and numbers."""
    plans = [(labels, planned(labels, quick=settings.quick)) for labels in SETS]
    jobs = [job for _, rows in plans for plan in rows for job in plan.jobs]
    done = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    found: list[Found] = [
        (labels, [(plan, [next(done) for _ in plan.jobs]) for plan in rows]) for labels, rows in plans
    ]
    return [Section(title=TITLE, body=body(found), claims=claims(found), claims_shown=False)]


def body(results: Sequence[Found]) -> str:
    """Return the section's text: a table for each set, of defenses by attacks."""
    parts = [
        "One model and its partner's attacks as above, without a private top, at one setting for all rows. Defenses "
        "for two classes only are left out, with their reason. "
        f"Means over {seeds_of(results)}, without intervals, so that rows a few hundredths apart are not told apart; "
        "*auditor* is the best of the label party's own attacks, *in all* messages and predictions together, *known* "
        "what the partner's own columns tell without any message, given labels of other records.",
    ]
    for labels, rows in results:
        ran = [(plan, [summary_of(result) for result in found]) for plan, found in rows if found]
        parts += [f"### {labels.title}", labels.figures, _chance(ran), _table(ran), _left_out(rows, ran)]
    return "\n\n".join(filter(None, parts)) + "\n"


def seeds_of(results: Sequence[Found]) -> str:
    """Return how many runs the figures are of, in words."""
    seeds = max(len(found) for _, rows in results for _, found in rows)
    return f"{seeds} seed{'' if seeds == 1 else 's'}"


def _chance(ran: Sequence[tuple[Planned, Sequence[RunSummary]]]) -> str:
    party = next(iter(ran[0][1][0].parties.values()))
    first = next(result for result in party.attacks.values() if not math.isnan(result.chance))
    guess = first.commonest if first.task == "multiclass" else first.trivially_within
    always = "Always the commonest class is right for" if first.task == "multiclass" else "The best single guess holds"
    told = (
        ""
        if first.task == "multiclass"
        else " A line of sums that know nothing goes through the mean of the labels and may hold fewer: a share below "
        "that of the guess tells nothing."
    )
    assert first.chance is not None
    return (
        f"Who knows nothing gets {shown(first.chance)} for being turned round, and up to "
        f"{shown(chance_of_largest(first.chance, 2))} as the larger of two such figures, which every cell is. {always} "
        f"{shown(guess)} of the records.{told}"
    )


def _table(ran: Sequence[tuple[Planned, Sequence[RunSummary]]]) -> str:
    every = [run for _, runs in ran for run in runs]
    attacks = attack_names(every)
    late = list(dict.fromkeys(name for run in every for name in _party(run).after_training))
    metric = every[0].metric_name
    rows = [
        (
            f"`{plan.label}`",
            _mean([run.test_metric for run in runs]),
            _mean([_party(run).label_leak.total for run in runs]),
            _mean([_party(run).own_columns_auc for run in runs]),
            *(_cell([attack_result(_party(run), name) for run in runs]) for name in attacks),
            *(_late(runs, name) for name in late),
        )
        for plan, runs in ran
    ]
    return markdown_table(("defense", f"test {metric}", "in all", "known", *attacks, *late), rows)


def _party(run: RunSummary) -> PartyResult:
    return next(iter(run.parties.values()))


def _mean(values: Sequence[float | None]) -> str:
    return shown_mean(math.nan if value is None else value for value in values)


def _cell(results: Sequence[LeakSummary | None]) -> str:
    there = [result for result in results if result is not None]
    told = [largest((result.top1, result.accumulated_top1)) or result.within for result in there]
    beside = f" ({_mean(told)})" if any(not math.isnan(value) for value in told) else ""
    return f"{_mean([result.worst for result in there])}{beside}"


def _late(runs: Sequence[RunSummary], name: str) -> str:
    found = [_party(run).after_training[name] for run in runs if name in _party(run).after_training]
    top = [one.train.top1 for one in found]
    beside = "" if all(map(math.isnan, top)) else f" ({_mean(top)})"
    return f"{_mean([one.train.worst_auc for one in found])}{beside}"


def _left_out(
    rows: Sequence[tuple[Planned, Sequence[Result]]], ran: Sequence[tuple[Planned, Sequence[RunSummary]]]
) -> str:
    """Return which defenses and attacks were not run, with their reasons."""
    lines = [f"- `{plan.label}`: {plan.refused}." for plan, found in rows if not found]
    unavailable = {name: reason for _, runs in ran for run in runs for name, reason in _party(run).unavailable.items()}
    lines += [f"- {name}: {reason}." for name, reason in unavailable.items()]
    return "\n".join(["Not run:", "", *lines]) if lines else ""


def claims(results: Sequence[Found]) -> list[Claim]:
    """Return for each set whether any attack on messages read more than the auditor says in all, by whole intervals."""
    found = []
    for labels, rows in results:
        leads = {
            f"{name}, {plan.label}": [_lead(run, name) for run in runs]
            for plan, runs in [(plan, [summary_of(one) for one in every]) for plan, every in rows if every]
            for name, result in _party(runs[0]).attacks.items()
            if result.by_messages and name not in AUDITORS and not math.isnan(result.worst)
        }
        worst = max(leads, key=lambda name: mean(leads[name]))
        doubtful = [name for name, values in leads.items() if not surely_below(values, _SLACK)]
        found.append(
            Claim(
                claim=f"{labels.title}: no attack on messages is ahead of the auditor's total by more than "
                f"{shown(_SLACK, 2)}",
                published=None,
                ours=mean(leads[worst]),
                interval=clipped(interval(leads[worst]), DIFFERENCE),
                seeds=len(leads[worst]),
                verdict="does not" if doubtful else "reproduces",
                why=f"largest mean lead: {worst}; of {len(leads)} attacks and rows the whole interval of "
                f"{len(leads) - len(doubtful)} is below",
            )
        )
    return found


def _lead(run: RunSummary, name: str) -> float:
    party = _party(run)
    return nanmax(0.0, party.attacks[name].worst) - (party.total or 0.0)
