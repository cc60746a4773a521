"""What the table of defenses is taken to claim, and whether its figures bear it out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats

from scripts.reproduce.defense_table.study import ONE_WAY, Promise, Row, Study
from scripts.reproduce.shared.claims import Claim, Interval, Verdict, interval, mean, shown

# What "hidden" and "cheap" mean in the claims.
HIDDEN = 0.6
CHEAP = 0.01
# By so much an attack may be ahead of the auditor's total, in the mean over seeds.
AHEAD = 0.01
# The auditor's detection error is the least of three attacks', and a mean over a few thousand records.
SLACK = 0.01


def all_claims(study: Study) -> list[Claim]:
    """Return every claim: those of the auditor, of promises, of price and hiding, and of what sends nothing."""
    return [
        *(_auditor(row) for row in (*study.rows, *study.converged)),
        *_answers(study.rows),
        *_errors(study.rows),
        *_errors(study.converged, where=", all columns at the partner, 40 epochs"),
        *_hidden(study.rows),
        *_bought(study),
    ]


def _auditor(row: Row) -> Claim:
    by, leads = row.ahead
    lead = mean(leads)
    return Claim(
        claim=f"{row.label}, {row.runs[0].epochs} epochs: no attack that uses messages is ahead of the auditor's total "
        f"by more than {shown(AHEAD, 2)} in the mean over seeds",
        published=None,
        ours=lead,
        interval=interval(leads),
        seeds=len(leads),
        verdict=_verdict(lead <= AHEAD),
        why=f"nearest is {by}, total {shown(mean(row.totals))}; the figure is the attack's less the total",
    )


def _answers(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about AUCs over the whole run, as measured among canaries."""
    promised = [row for row in rows if row.promise and row.promise.auc is not None and row.canaries]
    return [_answer(row, len(promised)) for row in promised]


def _answer(row: Row, comparisons: int) -> Claim:
    assert row.promise is not None
    assert row.promise.auc is not None
    assert row.canaries is not None
    bound, found = row.promise.auc, row.canaries
    return Claim(
        claim=f"{row.label}: between records that are alike in all else the whole run has an AUC of at most "
        f"{shown(bound)}, measured among canaries",
        published=bound,
        ours=found.auc,
        interval=found.interval(),
        seeds=len(row.canary_runs),
        verdict=_verdict(found.interval(comparisons)[0] <= bound),
        why="false where the interval, corrected for the number of these claims, lies above; the best by mean of the "
        "auditor's three attacks is taken",
    )


def _errors(rows: Sequence[Row], *, where: str = "") -> list[Claim]:
    """Return the claims about the detection error of one message, as measured in single messages late in the run."""
    return [_error(row, row.promise, where) for row in rows if row.promise and row.promise.per == "message"]


def _error(row: Row, promise: Promise, where: str) -> Claim:
    late = mean(row.late_errors)
    of = "is promised to be" if promise.proven else "is set to be"
    return Claim(
        claim=f"{row.label}{where}: the detection error of one message {of} at least {shown(promise.detection_error)}, "
        "measured over the last tenth of the run",
        published=promise.detection_error,
        ours=late,
        interval=interval(row.late_errors),
        seeds=len(row.runs),
        verdict=_verdict(holds_late(row)),
        why=f"by the best of the auditor's attacks, {shown(SLACK, 2)} being allowed for its choice, over all "
        f"records, so that what the model predicts of them counts; {shown(mean(errors_of_run(row)))} over "
        "the whole run",
    )


def holds_late(row: Row) -> bool:
    """Return whether one message late in the run has the detection error that was set, but for how it is measured.

    Of a promise over the whole run it says nothing. That is between records that are alike in all else, and a
    detection error is over all records, of which the model's prediction tells as well: canaries judge it.
    """
    if row.promise is None or row.promise.per != "message":
        return True
    return mean(row.late_errors) >= row.promise.detection_error - SLACK


def errors_of_run(row: Row) -> list[float]:
    """Return the auditor's detection error in one message, in the mean over the run, one per seed."""
    found = [party.detection_error for party in row.parties]
    return [math.nan if value is None else value for value in found]


def _hidden(rows: Sequence[Row]) -> list[Claim]:
    """Return what every defense is taken to claim: that it hides labels beyond the prediction, at little cost."""
    undefended = mean(rows[0].test_aucs)
    return [_hides(row, undefended) for row in rows[1:] if row.canaries]


def _hides(row: Row, undefended: float) -> Claim:
    assert row.canaries is not None
    found, test = row.canaries, mean(row.test_aucs)
    return Claim(
        claim=f"{row.label} keeps the leak beyond the prediction at or below {shown(HIDDEN, 1)} for at most "
        f"{shown(CHEAP, 2)} of the private top's test AUC, on digits 8 with a linear top",
        published=None,
        ours=found.auc,
        interval=found.interval(),
        seeds=len(row.canary_runs),
        verdict=_verdict(found.auc <= HIDDEN and test >= undefended - CHEAP),
        why=f"among canaries; test AUC {shown(test)}, {shown(undefended)} without a defense",
    )


def _bought(study: Study) -> list[Claim]:
    """Return whether what flows back bought anything: the private top against a head over features that none trained.

    By seed, and corrected for the number of rows.
    """
    others = study.silent.get(ONE_WAY, [])
    rows = [row for row in study.rows if len(row.test_aucs) == len(others) > 1]
    return [_buys(row, others, len(rows)) for row in rows]


def _buys(row: Row, others: Sequence[float], comparisons: int) -> Claim:
    gains = [ours - theirs for ours, theirs in zip(row.test_aucs, others, strict=True)]
    ends = gain_interval(gains, comparisons)
    return Claim(
        claim=f"{row.label}: its private top has a better test AUC than a head over random layers to which nothing is "
        "sent back",
        published=None,
        ours=mean(gains),
        interval=ends,
        seeds=len(gains),
        verdict=_verdict(ends[0] > 0.0),
        why=f"gain by seed; the interval is corrected for {comparisons} comparisons, and is of seeds on one "
        "division of the records",
    )


def gain_interval(gains: Sequence[float], comparisons: int) -> Interval:
    """Return the 95 % interval of a mean gain over seeds, for so many comparisons at once (Bonferroni)."""
    once = interval(gains)
    assert once is not None
    middle, freedom = mean(gains), len(gains) - 1
    wider = float(stats.t.ppf(1.0 - 0.025 / comparisons, freedom) / stats.t.ppf(0.975, freedom))
    half = (once[1] - once[0]) / 2.0 * wider
    return middle - half, middle + half


def kept_share(values: Sequence[float], undefended: Sequence[float], alone: Sequence[float]) -> float:
    """Return which share of what the partner adds a model keeps, ``(defended − alone) / (undefended − alone)``.

    Of means over seeds; below 0 where it is worse than the label party alone.
    """
    gain = mean(undefended) - mean(alone)
    return (mean(values) - mean(alone)) / gain if gain > 0.0 else math.nan


def _verdict(holds: bool) -> Verdict:
    return "reproduces" if holds else "does not"
