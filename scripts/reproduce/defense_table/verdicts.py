"""What the table of defenses is taken to claim, and whether its figures bear it out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy import stats

from scripts.reproduce.defense_table.arrangements import ARRANGEMENTS
from scripts.reproduce.defense_table.plans import planned_defenses
from scripts.reproduce.defense_table.study import Promise, Row, Study, promise_of
from scripts.reproduce.shared.claims import (
    DIFFERENCE,
    UNIT,
    Claim,
    Interval,
    Verdict,
    clipped,
    interval,
    mean,
    shown,
    shown_mean,
    signed,
    surely_above,
    surely_below,
)

# What "hidden" and "cheap" mean in the claims.
HIDDEN = 0.6
CHEAP = 0.01
# By so much an attack may be ahead of the auditor's total, in the mean over seeds.
AHEAD = 0.01
# The auditor's detection error is the least of three attacks', and a mean over a few thousand records.
SLACK = 0.01


def all_claims(study: Study) -> list[Claim]:
    """Return every claim: those of the auditor, of promises, of price and hiding, and of what sends nothing."""
    found = [
        *(_auditor(row) for row in study.rows),
        *_answers(study.rows),
        *_errors(study.rows),
        *_hidden(study),
        *_bought(study),
    ]
    return [replace(claim, claim=f"{study.arrangement.key}: {claim.claim}") for claim in found]


def late_claims(rows: Sequence[Row]) -> list[Claim]:
    """Return those of the runs to convergence."""
    where = ", all columns at the partner, to convergence"
    return [*map(_auditor, rows), *_errors(rows, where=where)]


def _auditor(row: Row) -> Claim:
    by, leads = row.ahead
    doubtful = [name for name, values in row.leads.items() if not surely_below(values, AHEAD)]
    told = "every attack's whole interval is below" if not doubtful else f"not surely below: {_first(doubtful)}"
    return Claim(
        claim=f"{row.label}, {row.runs[0].epochs} epochs: no attack that uses messages is ahead of the auditor's total "
        f"by more than {shown(AHEAD, 2)}",
        published=None,
        ours=mean(leads),
        interval=clipped(interval(leads), DIFFERENCE),
        seeds=len(leads),
        verdict=_verdict(holds_auditor(row)),
        why=f"{told}; nearest in the mean is {by}, total {shown_mean(row.totals)}; the figure is the attack's less the "
        "total",
    )


def holds_auditor(row: Row) -> bool:
    """Return whether each attack's whole interval lies below the lead that is allowed; with one seed it is not known.

    As all of them have to lie there, none is corrected for their number.
    """
    return bool(row.leads) and all(surely_below(leads, AHEAD) for leads in row.leads.values())


def fails_auditor(row: Row) -> str:
    """Return the attack that is surely ahead by more than is allowed, the first by mean; empty: none is."""
    found = {name: mean(leads) for name, leads in row.leads.items() if surely_above(leads, AHEAD)}
    return max(found, key=lambda name: found[name], default="")


def _first(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} others" if len(names) > most else "")


def _answers(rows: Sequence[Row]) -> list[Claim]:
    """Return the claims about AUCs over the whole run, as measured among canaries."""
    return [_answer(row) for row in with_bound(rows)]


def with_bound(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with a promise of an AUC over the whole run that canaries were asked about."""
    return [row for row in rows if row.promise and row.promise.auc is not None and row.canaries]


def bounds() -> int:
    """Return how many bounds over the whole run the page has: for so many comparisons each interval is corrected."""
    promises = [promise_of(hook) for _, hook in planned_defenses() if hook is not None]
    return len(ARRANGEMENTS) * sum(promise is not None and promise.auc is not None for promise in promises)


def against_bound(row: Row) -> str:
    """Return on which side of the bound what was read of canaries lies, by its corrected interval.

    ``"below"``: all of it, so that the bound was seen to hold; ``"above"``: all of it, so that it does not; ``""``: it
    reaches across, and says neither.
    """
    assert row.promise is not None
    assert row.promise.auc is not None
    assert row.canaries is not None
    low, high = row.canaries.interval(max(1, bounds()))
    return "below" if high <= row.promise.auc else "above" if low > row.promise.auc else ""


_SIDES = {
    "below": "the whole interval, corrected, is at or below the bound",
    "above": "the whole interval, corrected, is above: the bound was exceeded",
    "": "the interval, corrected, reaches across the bound, so that canaries neither show that it holds nor contradict "
    "it; that it does is proven, and not by them",
}


def _answer(row: Row) -> Claim:
    assert row.promise is not None
    assert row.promise.auc is not None
    assert row.canaries is not None
    bound, found = row.promise.auc, row.canaries
    low, high = found.interval(max(1, bounds()))
    return Claim(
        claim=f"{row.label}: between records that are alike in all else the whole run has an AUC of at most "
        f"{shown(bound)}, measured among canaries",
        published=None,  # the bound is this project's own
        ours=found.auc,
        interval=found.interval(),
        seeds=len(row.canary_runs),
        verdict=_verdict(against_bound(row) == "below"),
        why=f"{_SIDES[against_bound(row)]}; {shown(low)} to {shown(high)} for the {bounds()} bounds of the page at "
        "once; the best by mean of the auditor's three attacks is taken",
    )


def _errors(rows: Sequence[Row], *, where: str = "") -> list[Claim]:
    """Return the claims about the detection error of one message, as measured in single messages late in the run."""
    return [_error(row, row.promise, where) for row in rows if row.promise and row.promise.per == "message"]


def _error(row: Row, promise: Promise, where: str) -> Claim:
    of = "is promised to be" if promise.proven else "is set to be"
    return Claim(
        claim=f"{row.label}{where}: the detection error of one message {of} at least {shown(promise.detection_error)}, "
        "measured over the last tenth of the run",
        published=None,
        ours=mean(row.late_errors),
        interval=clipped(interval(row.late_errors), UNIT),
        seeds=len(row.runs),
        verdict=_verdict(late_side(row) == "above"),
        why=f"{_LATE[late_side(row)]}, by the best of the auditor's attacks, {shown(SLACK, 2)} being allowed for its "
        f"choice and {shown(late_doubt(row))} for few seeds and records, over all of these, so that what the model "
        f"predicts counts; {shown_mean(errors_of_run(row))} over the whole run",
    )


_LATE = {
    "above": "not below that by more than is allowed, for sure",
    "below": "below that by more than is allowed, for sure",
    "": "it cannot be told on which side of that it is",
}


def late_side(row: Row) -> str:
    """Return on which side of the detection error that was set one message late in the run is, but for how it is read.

    ``"above"`` or ``"below"`` for sure; ``""`` where it is in doubt. What the choice of an attack may cost is allowed.
    """
    assert row.promise is not None
    over = mean(row.late_errors) - (row.promise.detection_error - SLACK)
    return "above" if over >= late_doubt(row) else "below" if over < -late_doubt(row) else ""


def holds_late(row: Row) -> bool:
    """Return whether it is not for sure that one message late in the run has less than the detection error that is set.

    Of a promise over the whole run it says nothing. That is between records that are alike in all else, and a
    detection error is over all records, of which the model's prediction tells as well: canaries judge it.
    """
    return row.promise is None or row.promise.per != "message" or late_side(row) != "below"


def late_doubt(row: Row) -> float:
    """Return half of the 95 % interval of a late detection error over seeds, and no less than by its few records."""
    ends = interval(row.late_errors)
    return max(0.0 if ends is None else (ends[1] - ends[0]) / 2.0, _of_few_records(row))


def _of_few_records(row: Row) -> float:
    """Return two standard errors of a detection error over the last tenth of the steps of all runs.

    It is half the sum of two shares, of the positive and of the negative records of these steps; the standard error of
    a share of n records is at most ½ / √n, if each record is counted once. Where these steps are several epochs records
    come again, and it is larger; that of the choice among attacks and thresholds is not in it, either.
    """
    found = [next(result for result in party.attacks.values() if result.positives) for party in row.parties]
    records = sum(max(1, run.steps // 10) * run.batch_size for run in row.runs)
    positives = sum(one.positives for one in found)
    share = positives / (positives + sum(one.negatives for one in found))
    return 0.5 * math.sqrt(1.0 / (records * share) + 1.0 / (records * (1.0 - share)))


def errors_of_run(row: Row) -> list[float]:
    """Return the auditor's detection error in one message, in the mean over the run, one per seed."""
    found = [party.detection_error for party in row.parties]
    return [math.nan if value is None else value for value in found]


def _hidden(study: Study) -> list[Claim]:
    """Return what every defense is taken to claim: that it hides labels beyond the prediction, at little cost."""
    return [_hides(row, study.rows[0]) for row in study.rows[1:] if row.canaries]


def _hides(row: Row, undefended: Row) -> Claim:
    assert row.canaries is not None
    low, high = row.canaries.interval()
    losses = [ours - theirs for ours, theirs in zip(row.test_aucs, undefended.test_aucs, strict=True)]
    ends = clipped(interval(losses), DIFFERENCE)
    between = "one seed, no interval" if ends is None else f"{signed(ends[0])} to {signed(ends[1])}"
    return Claim(
        claim=f"{row.label} keeps the leak beyond the prediction at or below {shown(HIDDEN, 1)} for at most "
        f"{shown(CHEAP, 2)} of the private top's test AUC",
        published=None,
        ours=row.canaries.auc,
        interval=row.canaries.interval(),
        seeds=len(row.canary_runs),
        verdict=_verdict(high <= HIDDEN and surely_above(losses, -CHEAP)),
        why=f"both whole intervals have to be on that side: {shown(low)} to {shown(high)} among canaries, and of the "
        f"difference in test AUC to no defense, by seed, {signed(mean(losses))} ({between})",
    )


@dataclass(frozen=True)
class Gain:
    """What a top gains over a head to which nothing is sent back.

    Attributes:
        label: Of the defense.
        private: Whether it is the private top's.
        gains: Test AUC less the other's, by seed.
        interval: 95 % interval of their mean, for all comparisons of the page at once.
    """

    label: str
    private: bool
    gains: Sequence[float]
    interval: Interval


def gains_of(study: Study) -> list[Gain]:
    """Return what each defense's tops gain; none with one seed."""
    others = study.silent[study.no_message]
    found = []
    for row in study.rows:
        for private, values in ((False, row.sending_aucs), (True, row.test_aucs)):
            gains = [ours - theirs for ours, theirs in zip(values, others, strict=True)]
            if len(gains) > 1:
                found.append(Gain(row.label, private, gains, gain_interval(gains, study.comparisons)))
    return found


def _bought(study: Study) -> list[Claim]:
    """Return whether what flows back bought anything: both tops against a head over features that none trained."""
    return [_buys(gain, study) for gain in gains_of(study)]


def _buys(gain: Gain, study: Study) -> Claim:
    return Claim(
        claim=f"{gain.label}: its {'private top' if gain.private else 'top that sends'} has a better test AUC than "
        f"{study.no_message}",
        published=None,
        ours=mean(gain.gains),
        interval=gain.interval,
        seeds=len(gain.gains),
        verdict=_verdict(gain.interval[0] > 0.0),
        why=f"gain by seed; the interval is corrected for {study.comparisons} comparisons, and is of seeds on one "
        "division of the records",
    )


def gain_interval(gains: Sequence[float], comparisons: int) -> Interval:
    """Return the 95 % interval of a mean gain over seeds, for so many comparisons at once (Bonferroni)."""
    once = interval(gains)
    assert once is not None
    middle, freedom = mean(gains), len(gains) - 1
    wider = float(stats.t.ppf(1.0 - 0.025 / comparisons, freedom) / stats.t.ppf(0.975, freedom))
    half = (once[1] - once[0]) / 2.0 * wider
    ends = clipped((middle - half, middle + half), DIFFERENCE)
    assert ends is not None
    return ends


def _verdict(holds: bool) -> Verdict:
    return "reproduces" if holds else "does not"
