"""What is concluded of a run: the one place where its figures become verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from splitvfl.claims import CLASS_WEIGHTS
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.in_general import KnowledgeGain
from splitvfl.privacy import Solvable, SolvableColumn
from splitvfl.report.party_result import PartyResult
from splitvfl.report.verdict import (
    HIGHEST_GOAL,
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


@dataclass(frozen=True)
class RunFacts:
    """What bears on the verdicts about all passive parties of a run.

    Attributes:
        goal: The AUC that an individual label's leak is to stay below or at, from 0.5 to 1.
        one_way: Whether no message of the training depends on labels.
        measurable: Whether a message comes back for each record, in which canaries can be looked for.
        releases: What partners see beside the messages that is made from labels, by name.
        solvable: What partners can compute of labels, known before the first step.
        columns_solvable: Which partners' only features can be computed, likewise.
        of_labels: Whether anything is known of labels: not in a summary that a passive party has written.
    """

    goal: float
    one_way: bool
    measurable: bool
    releases: Sequence[str]
    solvable: Sequence[Solvable] = ()
    columns_solvable: Sequence[SolvableColumn] = ()
    of_labels: bool = True


def party_verdict(name: str, party: PartyResult, run: RunFacts) -> PartyVerdict:
    """Return what is concluded about one passive party.

    It follows from figures alone, so that those of somebody else's summary are judged here, too.

    Args:
        name: The party's name.
        party: Its figures.
        run: What bears on all parties of the run.

    Raises:
        ArgumentError: If the goal or a figure is out of its range.
    """
    solvable = most_solved(run.solvable, name)
    evidence = LabelEvidence(
        one_way=run.one_way,
        # A partner to whom no gradient goes sees no weights of classes.
        releases=tuple(one for one in run.releases if not run.one_way or one != CLASS_WEIGHTS.name),
        guarantee=party.guarantee,
        solvable="" if solvable is None else solved_in_words(solvable),
        prevented_by="" if solvable is None else prevention_in_words(solvable),
        excess=_excess(party.excess or party.worst_canaries),  # summaries of before have that of the auditor only
        label_free=party.label_free,
        measurable=run.measurable,
    )
    labels = _of_labels(evidence, party, run.goal) if run.of_labels else None
    return PartyVerdict(labels, _of_features(run.columns_solvable, name, party))


def _of_labels(evidence: LabelEvidence, party: PartyResult, goal: float) -> Verdict:
    leak = party.label_leak
    known = party.own_columns_auc is not None or party.first_component_auc is not None
    return label_verdict(
        evidence,
        goal=min(goal, HIGHEST_GOAL),
        randomised=_excess(party.randomised),
        total=None if leak.total is None else Total(leak.total, leak.includes_features),
        baseline=Baseline(party.first_component_auc, party.own_columns_auc) if known else None,
        knowledge_gain=_gain(evidence, party),
    )


def _gain(evidence: LabelEvidence, party: PartyResult) -> KnowledgeGain | None:
    """Return what the partner has learned of labels in general: nothing where nothing that it sees is made of them."""
    alone = party.first_component_auc
    if evidence.one_way and not evidence.releases and alone is not None:
        return KnowledgeGain.without_messages(alone)
    return party.knowledge_gain


def _excess(found: CanaryLeak | None) -> Excess | None:
    if found is None or not found.positives or not found.negatives:
        return None
    return Excess(
        found.auc, low=found.low, high=found.high, canaries=found.count, figures=found.figures, twin=found.twin
    )


def most_solved(found: Sequence[Solvable], name: str) -> Solvable | None:
    """Return by what a partner solves for most true labels, known before the first step; ``None``: for none."""
    solved = [one for one in found if one.partner == name and one.reveals_labels]
    return max(solved, key=lambda one: one.records, default=None)


def solved_in_words(one: Solvable) -> str:
    """Return why a partner solves for labels, as the ground of a verdict."""
    whose = "every label" if one.records >= one.of else f"{one.records:,} of {one.of:,} labels"
    if one.computation == "batch equations":
        batch = "last batch" if one.records_in_last else "batch"
        return f"{batch} of {one.batch_size:,} records ≤ {one.features:,} features: {one.partner} solves {whose}"
    return f"{one.computation}: {one.partner} solves {whose}"


def prevention_in_words(one: Solvable) -> str:
    """Return the smallest changes that prevent it, or what else does."""
    return " or ".join(one.prevented_by) or "randomised labels, or one-way training: no batch size does"


# --- features


def _of_features(found: Sequence[SolvableColumn], name: str, party: PartyResult) -> Verdict:
    solvable = next((one for one in found if one.partner == name), None)
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
