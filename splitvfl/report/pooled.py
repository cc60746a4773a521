"""Several runs that differ in their seeds alone, judged as one: what each measured is pooled before it is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from splitvfl.claims import Guarantee
from splitvfl.errors import ArgumentError
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.in_general import KnowledgeGain
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import RunSummary
from splitvfl.report.verdict import PartyVerdict


def pooled_verdict(runs: Sequence[RunSummary], goal: float | None = None) -> dict[str, PartyVerdict]:
    """Return what is concluded from runs that differ in their seeds alone, by passive party.

    The excess is pooled. Of what cannot be pooled, the least counts that holds in every run: the weakest guarantee,
    and an attack without labels only where it shows a leak in each of them.

    Args:
        runs: At least one.
        goal: The goal; the lowest of the runs by default.
    """
    if not runs:
        raise ArgumentError("expected at least one run, got none")
    names = [name for name in runs[0].parties if all(name in run.parties for run in runs)]
    parties = {name: _pooled([run.parties[name] for run in runs]) for name in names}
    return replace(runs[0], parties=parties).judged(min(run.goal for run in runs) if goal is None else goal)


def _pooled(found: Sequence[PartyResult]) -> PartyResult:
    if len(found) == 1:
        return found[0]
    coins = [one.excess or one.worst_canaries for one in found]
    free = [one.label_free for one in found]
    return replace(
        found[0],
        excess=pooled_excess([one for one in coins if one is not None]),
        worst_canaries=None,
        guarantee=_weakest([one.guarantee for one in found]),
        label_free=min((one for one in free if one is not None), key=lambda one: one.shown) if all(free) else None,
        knowledge_gain=_mean_gain([one.knowledge_gain for one in found]),
    )


def pooled_excess(found: Sequence[CanaryLeak]) -> CanaryLeak | None:
    """Return the mean excess of independent runs, weighted by their canaries, with its 95 % interval.

    Each end is as far from the mean as those of the runs are from their figures, added in squares (Zou and Donner,
    2008): an interval that is short on one side stays so.

    >>> pooled = pooled_excess([CanaryLeak(0.5, 0.4, 0.6, 50, 50)] * 4)
    >>> pooled.auc, round(pooled.low, 3), round(pooled.high, 3), pooled.count
    (0.5, 0.45, 0.55, 400)
    """
    if not found:
        return None
    of_all = sum(one.count for one in found)
    shares = [one.count / of_all for one in found]
    value = math.fsum(share * one.auc for share, one in zip(shares, found, strict=True))
    below = math.hypot(*(share * (one.auc - one.low) for share, one in zip(shares, found, strict=True)))
    above = math.hypot(*(share * (one.high - one.auc) for share, one in zip(shares, found, strict=True)))
    return replace(
        max(found, key=lambda one: one.figures),
        auc=value,
        low=value - below,
        high=value + above,
        positives=sum(one.positives for one in found),
        negatives=sum(one.negatives for one in found),
        twin=all(one.twin for one in found),
    )


def _weakest(found: Sequence[Guarantee | None]) -> Guarantee | None:
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: (not one.of_run, one.auc)) if len(known) == len(found) else None


def _mean_gain(found: Sequence[KnowledgeGain | None]) -> KnowledgeGain | None:
    """Return the mean of labels in general, with the interval of its difference, where every run has it."""
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    count = len(known)
    before, after = (math.fsum(getattr(one, name) for one in known) / count for name in ("before", "after"))
    models = [one.model for one in known if one.model is not None]
    difference = after - before
    return KnowledgeGain(
        before,
        after,
        difference - math.hypot(*(one.after - one.before - one.low for one in known)) / count,
        difference + math.hypot(*(one.high - one.after + one.before for one in known)) / count,
        taught=all(one.taught for one in known),
        model=math.fsum(models) / count if len(models) == count else None,
    )
