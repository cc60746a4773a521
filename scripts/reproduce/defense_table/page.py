"""The page of the documentation about every defense and every attack; what it says follows from the figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from scripts.reproduce.defense_table.study import (
    ALONE,
    CANARIES,
    EPSILON,
    LINEAR_ONLY,
    ONE_WAY,
    PREDICTION,
    SILENT_EPOCHS,
    TRAINED_COMPONENT,
    Row,
    Study,
    label_attacks,
)
from scripts.reproduce.defense_table.verdicts import (
    AHEAD,
    all_claims,
    errors_of_run,
    gain_interval,
    holds_late,
    kept_share,
)
from scripts.reproduce.shared.claims import Claim, markdown_table, mean, shown, with_interval
from splitvfl.config.registry import built_in
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.report.summary import AttackResult, RunSummary

TEMPLATE = Path(__file__).with_suffix(".md")
NOTHING = "nothing is sent"
MADE_WITHOUT = "<!-- made without -->"
"""Stands on the page for what :func:`made_without` says when the documentation is built."""

# Measured by code that was written from the formulas alone, before any auditor used the prediction: the worst of its
# attacks on messages, its detection error over the run, the prediction's AUC, the mixture's and the test AUC.
CHECKED = {"axis-sumkl": (0.954, 0.424, 0.990, 0.997, 0.953), "axis-gaussian": (0.977, 0.404, 0.988, 1.000, 0.965)}


def price_table(study: Study) -> str:
    """Return the first table: a row per choice, with its price and the three figures of its leak."""
    headings = [
        "choice",
        "test AUC, sending top",
        "private top",
        "share kept",
        "total",
        "beyond the prediction",
        "known without messages",
        "detection error late (promised)",
        "worst attack on messages",
    ]
    rows = [_silent_cells(name, tests, study) for name, tests in study.silent.items()]
    return markdown_table(headings, [*rows, *(_cells(row, study) for row in study.rows)])


def _silent_cells(name: str, tests: Sequence[float], study: Study) -> list[str]:
    kept = "0" if name == ALONE else _percent(kept_share(tests, study.rows[0].test_aucs, study.silent[ALONE]))
    return [name if name == ALONE else f"`{name}`", "–", with_interval(tests), f"– / {kept}", NOTHING, *["–"] * 4]


def _cells(row: Row, study: Study) -> list[str]:
    return [
        f"`{row.label}`",
        with_interval(row.sending_aucs),
        with_interval(row.test_aucs),
        " / ".join(_kept(row, study)),
        with_interval(row.totals),
        _beyond(row),
        shown(mean(row.known)),
        _promised(row),
        shown(mean(row.worst[1])),
    ]


def _kept(row: Row, study: Study) -> tuple[str, str]:
    alone, first = study.silent[ALONE], study.rows[0]
    return (
        _percent(kept_share(row.sending_aucs, first.sending_aucs, alone)),
        _percent(kept_share(row.test_aucs, first.test_aucs, alone)),
    )


def _beyond(row: Row) -> str:
    if row.canaries is None:
        return "–"
    low, high = row.canaries.interval()
    return f"{shown(row.canaries.auc)} ({shown(low)} to {shown(high)})"


def _promised(row: Row) -> str:
    late = shown(mean(row.late_errors))
    if row.promise is None:
        return late
    told = f"{shown(row.promise.detection_error, 2)} per {row.promise.per}"
    return f"{late} ({told}{'' if row.promise.proven else ', not proven'})"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.0%}".replace("-", "−").replace("%", " %")


def leak_table(rows: Sequence[Row]) -> str:
    """Return the second table: a row per defense, a column per attack."""
    trained = [name for name in _attacks(rows) if name not in label_attacks("every-step")]
    during, after = [*label_attacks("every-step"), *trained, *AUDITORS], label_attacks("after-training")
    headings = ["defense", *during, *after]
    return markdown_table(headings, ([f"`{row.label}`", *_leaks(row, during), *_after(row, after)] for row in rows))


def _attacks(rows: Sequence[Row]) -> list[str]:
    """Return the attacks that were run, the auditor's aside."""
    names = dict.fromkeys(name for row in rows for party in row.parties for name in party.attacks)
    return [name for name in sorted(names) if name not in AUDITORS]


def _leaks(row: Row, attacks: Iterable[str]) -> list[str]:
    return [f"{shown(mean(row.per_step(name)))} / {shown(mean(row.accumulated(name)))}" for name in attacks]


def _after(row: Row, attacks: Iterable[str]) -> list[str]:
    cells = []
    for name in attacks:
        found = [party.after_training[name] for party in row.parties if name in party.after_training]
        trained = mean(_number(result.train_leak) for result in found)
        cells.append(f"{shown(trained)} ({shown(mean(_number(result.baseline_train_leak) for result in found))})")
    return cells


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def worst_table(rows: Sequence[Row]) -> str:
    """Return which attack on messages reads most of each defense."""
    ordered = sorted(rows, key=lambda row: mean(row.worst[1]))
    headings = (
        "defense",
        "worst attack",
        "its leak AUC",
        "total",
        f"{PREDICTION}, accumulated",
        "private top's test AUC",
    )
    return markdown_table(headings, (_judged(row) for row in ordered), left=2)


def _judged(row: Row) -> list[str]:
    by, values = row.worst
    figures = (values, row.totals, row.accumulated(PREDICTION), row.test_aucs)
    return [f"`{row.label}`", by, *(with_interval(figure) for figure in figures)]


def converged_table(rows: Sequence[Row]) -> str:
    """Return the runs to convergence, and beside each what an independent check had."""
    headings = (
        "defense",
        "total",
        "worst of the auditor's attacks",
        "detection error: run / late",
        "prediction",
        "mixture",
        "test AUC",
    )
    return markdown_table(headings, [cells for row in rows for cells in (_converged(row), _checked(row))])


def _converged(row: Row) -> list[str]:
    errors = f"{shown(mean(errors_of_run(row)))} / {shown(mean(row.late_errors))}"
    worst = max((row.accumulated(name) for name in AUDITORS), key=mean)
    predicted = [_number(party.prediction_auc) for party in row.parties]
    figures: tuple[list[float], ...] = (worst, predicted, row.accumulated("mixture"), row.test_aucs)
    cells = [with_interval(figure) for figure in figures]
    return [f"`{row.label}`", with_interval(row.totals), cells[0], errors, *cells[1:]]


def _checked(row: Row) -> list[str]:
    worst, error, *others = CHECKED[row.label.partition("(")[0]]
    return ["the check", "–", shown(worst), f"{shown(error)} / –", *map(shown, others)]


def page(study: Study) -> str:
    """Return the page of the documentation."""
    first = study.rows[0].runs[0]
    late = study.converged[0].runs[0]
    after = label_attacks("after-training")
    said = {
        "box": _quoted(box(study)),
        "found": "\n".join(_wrapped(line, "- ", "  ") for line in findings(study)),
        "seeds": _counted(len(study.rows[0].runs), "seed"),
        "test_seeds": str(len(study.rows[0].test_aucs)),
        "canaries": str(CANARIES),
        "canary_seeds": _counted(len(study.rows[0].canary_runs), "run"),
        "canary_price": _canary_price(study.rows[0]),
        "epochs": str(first.epochs),
        "steps": str(first.steps),
        "batch": str(first.batch_size),
        "silent_epochs": str(SILENT_EPOCHS),
        "one_way": ONE_WAY.partition(", ")[2],
        "own": shown(_number(study.rows[0].parties[0].own_columns_auc)),
        "chance": shown(_by_chance(first)),
        "prediction": PREDICTION,
        "epsilon": str(EPSILON),
        "answers": shown(1.0 / (1.0 + math.exp(-EPSILON))),
        "after": ", ".join(after),
        "linear": ", ".join(sorted(LINEAR_ONLY)),
        "late_epochs": str(late.epochs),
        "price_table": price_table(study),
        "leak_table": leak_table(study.rows),
        "worst_table": worst_table(study.rows),
        "converged_table": converged_table(study.converged),
        "converged": _wrapped(" ".join(_converging(study.converged)), "", ""),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in said.items():
        text = text.replace(f"{{{name}}}", value)
    return text.rstrip() + "\n"


def made_without(text: str) -> str:
    """Return, as an item of a list, the attacks and defenses that have no row and no column on a page.

    It is said anew whenever the documentation is built: what was added since has no figures until the runs are made
    again.
    """
    cells = (cell for line in text.splitlines() if line.startswith("|") for cell in line.split("|"))
    shown_names = {cell.strip(" `").partition("(")[0] for cell in cells}
    missing = sorted((built_in("attacks").keys() | built_in("defenses").keys()) - shown_names)
    names = ", ".join(f"`{name}`" for name in missing)
    return _wrapped(f"Made without {names}: for linear models or other messages, or added since.", "- ", "  ")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _canary_price(row: Row) -> str:
    return "–" if row.canaries is None else f"{shown(row.canaries.test_auc)} for {shown(mean(row.sending_aucs))}"


def _by_chance(run: RunSummary) -> float:
    """Return what orientation alone gives on the run's records."""
    (party,) = run.parties.values()
    return max((_chance(result) for result in party.attacks.values()), default=math.nan)


def _chance(result: AttackResult) -> float:
    return 0.0 if result.by_chance is None else result.by_chance


def box(study: Study) -> list[str]:
    """Return what does not stand, a sentence or two each: made of the figures, as they are."""
    lines = [*_broken(study), *_too_much(study), *_unread(study)]
    least = min(mean(row.totals) for row in study.rows)
    known = mean(study.rows[0].known)
    trained = [mean(row.accumulated(TRAINED_COMPONENT)) for row in study.rows]
    lines.append(
        f"*No defense here keeps the prediction back.* Messages and prediction together read at least {shown(least)} "
        f"in every row; the partner's own columns tell {shown(known)}, given the labels of other records to learn "
        "from. The first component of the activations that it trains, for which it needs no label and reads no "
        f"message, has {shown(min(trained))} to {shown(max(trained))}."
    )
    lines.append(
        f"*One small data set, one division into training and test records, {study.rows[0].runs[0].epochs} epochs.* "
        "The intervals are of other seeds and other canaries, not of other data. Noise that is drawn anew in each "
        "step is read better the longer a run is: these rows are no bound for longer ones."
    )
    return lines


def _broken(study: Study) -> list[str]:
    """Return which detection errors do not hold late in the run: settings, and promises that are proven."""
    found = [row for row in study.rows if not holds_late(row)]
    late = [row for row in study.converged if not holds_late(row)]
    lines = []
    for proven in (False, True):
        here, there = (
            ", ".join(_late(row) for row in rows if row.promise is not None and row.promise.proven is proven)
            for rows in (found, late)
        )
        parts = [f"late in these runs {here}" if here else "", f"trained to convergence {there}" if there else ""]
        if any(parts):
            lines.append(f"{_WHY[proven]} {'; '.join(filter(None, parts))}, where .40 is set.{_beside(study, proven)}")
    return lines


def _beside(study: Study, proven: bool) -> str:
    """Return what noise in the unit of a record has by the same measure, beside what has less than it was set to."""
    held = [row for row in study.rows if row.promise and row.promise.proven and row.promise.per == "message"]
    said = ", ".join(map(_late, filter(holds_late, held)))
    return "" if proven or not said else f" By the same measure {said}: that noise is in the unit of a record."


_WHY = {
    False: "*A detection error that is set is not held by noise that is made for the means of the classes.* By the "
    "auditor, who knows the prediction, one message has",
    True: "*A proven promise was not borne out by this measure*, in which predictions count too: one message has",
}


def _late(row: Row) -> str:
    return f"`{row.label.partition('(')[0]}` {shown(mean(row.late_errors))}"


def _too_much(study: Study) -> list[str]:
    """Return which bounds on what is read of canaries do not hold."""
    failed = [claim for claim in _claims_of(study, "between records that are alike") if claim.verdict == "does not"]
    return [f"*A bound that was exceeded*: {claim.claim}: {shown(claim.ours)}." for claim in failed]


def _unread(study: Study) -> list[str]:
    """Return which attacks find more than the auditor."""
    failed = [row for row in (*study.rows, *study.converged) if mean(row.ahead[1]) > AHEAD]
    said = ", ".join(
        f"{row.ahead[0]} by {shown(mean(row.ahead[1]))} (`{row.label}`, {row.runs[0].epochs} epochs)" for row in failed
    )
    return [f"*The auditor's total is too low* where an attack finds more: {said}."] if failed else []


def _claims_of(study: Study, words: str) -> list[Claim]:
    return [claim for claim in all_claims(study) if words in claim.claim]


def findings(study: Study) -> list[str]:
    """Return what is to be taken from the tables."""
    return [*_about_one_way(study), *_about_promises(study), *_about_auditor(study)]


def _about_one_way(study: Study) -> list[str]:
    others, first = study.silent[ONE_WAY], study.rows[0]
    others_said = f"{shown(mean(others))}, {_percent(kept_share(others, first.test_aucs, study.silent[ALONE]))}"
    lines = [
        f"Undefended, the model has a test AUC of {shown(mean(first.sending_aucs))} ({shown(mean(first.test_aucs))} by "
        f"a private top); the label party alone has {shown(mean(study.silent[ALONE]))}; with wide random layers at the "
        f"partner, to which *nothing ever flows back*, {others_said} of what the partner adds."
    ]
    if not len(first.test_aucs) == len(others) > 1:
        return lines
    gains = {row.label: [a - b for a, b in zip(row.test_aucs, others, strict=True)] for row in study.rows}
    ends = {label: gain_interval(values, len(gains)) for label, values in gains.items()}
    better = [f"`{label}`" for label, (low, _) in ends.items() if low > 0.0]
    worse = [f"`{label}`" for label, (_, high) in ends.items() if high < 0.0]
    lines.append(
        f"By a private top, better than that one-way head, after correction for {len(gains)} comparisons: "
        f"{_listed(better)}{_given_away(study, better)}. Worse: {_listed(worse)}. The others cannot be told apart from "
        "it."
    )
    levelled = min(mean(row.test_aucs) for row in study.rows), max(mean(row.test_aucs) for row in study.rows)
    sending = min(mean(row.sending_aucs) for row in study.rows), max(mean(row.sending_aucs) for row in study.rows)
    lines.append(
        f"The top that sends has between {shown(sending[0])} and {shown(sending[1])}, a private one between "
        f"{shown(levelled[0])} and {shown(levelled[1])}; no message depends on that one, and it costs nothing but time."
    )
    return lines


def _given_away(study: Study, labels: Sequence[str]) -> str:
    """Return how little is read beyond the prediction of these defenses at least."""
    found = [row.canaries.auc for row in study.rows if f"`{row.label}`" in labels and row.canaries is not None]
    return f" (none of these is read below {shown(min(found))} beyond the prediction)" if found else ""


def _about_promises(study: Study) -> list[str]:
    answers = _claims_of(study, "between records that are alike")
    lines = []
    if answers:
        failed = sum(claim.verdict != "reproduces" for claim in answers)
        said = ", ".join(
            f"`{claim.claim.partition(':')[0]}` {shown(claim.ours)} (at most {shown(claim.published)})"
            for claim in answers
        )
        lines.append(
            f"Canaries contradict {failed or 'none'} of {len(answers)} proven bounds for the whole run; their "
            f"intervals are too wide to say more: {said}. The least that is read beyond the prediction is "
            + _listed([f"{shown(mean_)} by `{label}`" for mean_, label in _least_beyond(study)])
            + "."
        )
    messages = [row for row in study.rows if row.promise and row.promise.per == "message"]
    if messages:
        said = ", ".join(f"{_late(row)}{'' if holds_late(row) else ' (does not hold)'}" for row in messages)
        lines.append(f"Detection error of one late message, where .40 is promised or set: {said}.")
    return lines


def _least_beyond(study: Study) -> list[tuple[float, str]]:
    found = [(row.canaries.auc, row.label) for row in study.rows if row.canaries is not None]
    return sorted(found)[:3]


def _about_auditor(study: Study) -> list[str]:
    leads: list[tuple[float, Row]] = [(mean(row.ahead[1]), row) for row in (*study.rows, *study.converged)]
    highest, row = max(leads, key=lambda found: found[0])
    held = sum(lead <= AHEAD for lead, _ in leads)
    where = "ahead of" if highest > 0.0 else "behind"
    return [
        f"No attack on messages is ahead of the auditor's total by more than {shown(AHEAD, 2)} in the mean over seeds "
        f"in {held} of {len(leads)} rows, runs to convergence included. The nearest is {row.ahead[0]} against "
        f"`{row.label}` ({row.runs[0].epochs} epochs), {shown(abs(highest))} {where} it."
    ]


def _converging(rows: Sequence[Row]) -> list[str]:
    return [
        f"Of `{row.label}` the mixture reads {shown(mean(row.accumulated('mixture')))}, the auditor in all "
        f"{shown(mean(row.totals))}; its detection error is {shown(mean(errors_of_run(row)))} over the run and "
        f"{shown(mean(row.late_errors))} in the end."
        for row in rows
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _quoted(lines: Sequence[str]) -> str:
    return "\n".join(_wrapped(line, "> - ", ">   ") for line in lines)


def _wrapped(line: str, first: str, others: str) -> str:
    return textwrap.fill(
        line, 118, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
