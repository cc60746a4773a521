"""What is concluded of a finished run: the one place where its figures become verdicts."""

from __future__ import annotations

from collections.abc import Mapping

from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.verdict import (
    VARIANCE_ABOVE,
    Baseline,
    Excess,
    FeatureEvidence,
    LabelEvidence,
    PartyVerdict,
    Total,
    Verdict,
    feature_verdict,
    label_verdict,
)
from splitvfl.privacy import Solvable
from splitvfl.report.summary import PartyResult, RunSummary


def verdicts(run: RunSummary, goal: float | None = None) -> Mapping[str, PartyVerdict]:
    """Return what is concluded of a run, by passive party.

    It follows from the figures of the summary alone, so that a summary from somebody else is judged here, too.

    Args:
        run: The run.
        goal: The AUC that an individual label's leak is to stay below, from 0.5 to below 1; the run's own by default.
    """
    return {
        name: PartyVerdict(
            labels=_of_labels(run, name, party, run.goal if goal is None else goal),
            features=_of_features(run, name, party),
        )
        for name, party in run.parties.items()
    }


def _of_labels(run: RunSummary, name: str, party: PartyResult, goal: float) -> Verdict:
    evidence = LabelEvidence(
        one_way=run.traits.one_way,
        releases=tuple(run.label_releases),
        guarantee=party.guarantee,
        solvable=_solvable(run, name),
        excess=_excess(party),
        measurable=run.traits.shows_gradients,
    )
    leak = party.label_leak
    known = party.own_columns_auc is not None or party.first_component_auc is not None
    return label_verdict(
        evidence,
        goal=min(goal, 1.0 - 1e-12),
        total=None if leak.total is None else Total(leak.total, leak.includes_features),
        baseline=Baseline(party.first_component_auc, party.own_columns_auc) if known else None,
    )


def _excess(party: PartyResult) -> Excess | None:
    found = party.excess or party.worst_canaries  # summaries of before have that of the auditor only
    if found is None:
        return None
    return Excess(found.auc, low=found.low, high=found.high, canaries=found.count, figures=found.figures)


def _solvable(run: RunSummary, name: str) -> str:
    """Return why a partner can solve for true labels, known before the first step; empty where it cannot."""
    solved = [one for one in run.solvable if one.partner == name and one.reveals_labels]
    if not solved:
        return ""
    return _how(max(solved, key=lambda one: one.records))


def _how(one: Solvable) -> str:
    whose = "every label" if one.records >= one.of else f"{one.records:,} of {one.of:,} labels"
    if one.computation == "batch equations":
        return f"batch of {one.batch_size:,} records ≤ {one.features:,} features: {one.partner} solves {whose}"
    return f"{one.computation}: {one.partner} solves {whose}"


# --- features


def _of_features(run: RunSummary, name: str, party: PartyResult) -> Verdict:
    solvable = next((one for one in run.columns_solvable if one.partner == name), None)
    recovered = [_recovered(reading) for reading in party.readings]
    exact = [share for reading in party.readings if (share := _exact_beyond(reading)) is not None]
    most = max(recovered, default=None)
    return feature_verdict(
        FeatureEvidence(
            solvable="" if solvable is None else f"one feature and batches of {solvable.batch_size:,} can be solved",
            recovered=None if most is None else most[0],
            features=0 if most is None else most[1],
            exact_matches=max(exact, default=None),
        )
    )


def _recovered(reading: ColumnReading) -> tuple[int, int]:
    """Return how many columns an attack surely recovers beyond what is known without messages, and of how many."""
    records = max(reading.records, reading.followed)
    return sum(one.beyond(records) > VARIANCE_ABOVE for one in reading.columns), len(reading.columns)


def _exact_beyond(reading: ColumnReading) -> float | None:
    """Return the share of records that messages recover exactly, less that without them; ``None``: nobody looked."""
    found = [share for share in (reading.exact, reading.exact_joint) if share is not None]
    return max(found) - (reading.exact_without or 0.0) if found else None
