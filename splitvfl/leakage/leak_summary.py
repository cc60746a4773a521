"""The figures of one attack on labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from splitvfl.metrics import chance_auc, known


@dataclass(frozen=True)
class LeakSummary:
    """The leak through one attack in a run; NaN where there is no such figure.

    An attack need not score every record. ``auc`` and ``accumulated_auc`` are of those that it scored, and leaving out
    the hard ones raises them; the tied ones are of all records, as :func:`~splitvfl.metrics.tied_leak_auc`. What
    decides, ``worst``, is made of the latter.

    Attributes:
        auc: Mean leak AUC of a step among the records that were scored, in the attack's own orientation. NaN if no
            batch had both classes among them.
        worst_auc: ``max(tied_auc, 1 − tied_auc)``: one orientation for the whole run, chosen after averaging.
        quantile_95: 95 % quantile over steps of the tied AUC in that orientation: how bad a bad batch is.
        accumulated_auc: AUC of each record's standardised scores added up over the run, or of its last score where the
            attack is cumulative, in the attack's orientation, among the records that were scored at least once.
        worst_accumulated_auc: ``max(tied_accumulated_auc, 1 − tied_accumulated_auc)``.
        steps: Number of steps with an AUC.
        undefined: Number of steps without one (one class only, or nothing scored); they enter no average.
        signs_right: Of an attack whose score's sign is the label: share of right ones over the run. NaN for others.
        records_right: Of how many records most signs were right, or the last one where the attack is cumulative.
        records: Of how many records there was any sign.
        balanced: Where steps use some of the records that they send only, of such an attack: balanced accuracy on those
            that were used, an undecided sign counting one half (:class:`~splitvfl.leakage.members.MemberKeeper`). NaN
            elsewhere, as the next three.
        accumulated_balanced: The same on records that any step used, by most of their signs over the run, or the last
            one where the attack is cumulative.
        base_rate: The commoner label's share of the records that were used: what a guess gets right, not balanced.
        zeros_found: Of the residues that are zeros by design, the share that it scored as nothing; NaN too where the
            attack is cumulative.
        tied_auc: Mean over steps of the AUC of all records that are judged; those left out tie, in the middle. NaN of
            an attack that never scored any.
        tied_accumulated_auc: The same of the sums, where a step that leaves a record out adds 0; of last scores, where
            a record that was never scored has the mean of the others.
        scored: Share of the records of a step that were scored, over the run; NaN if none was judged.
        scored_accumulated: Share of the records of the run that were scored at least once.
        positives: Number of positive records in the sums; 0 where nobody knows the records' ids.
        negatives: Number of negative ones.
        by_messages: Whether the attack reads any message. What one without is judged by is known anyway: it stands
            beside the others, and is never the worst of them.
        task: ``"binary"``; of ``"multiclass"`` labels AUCs are means over classes of one against the rest, of
            ``"regression"`` concordances (:func:`~splitvfl.metrics.concordance`), which are AUCs of two values.
        class_counts: Of k classes: how many records of each are in the sums.
        top1: Of k classes: mean over steps of the share of records whose own class scored highest; ties count in part.
            NaN of an attack with one score per record, which names no class.
        accumulated_top1: The same of the sums.
        commonest: Of k classes: share of the most frequent one in the sums, what naming it always gets right.
        top1_by_matching: Of k classes: what matching unnamed clusters to classes gives by chance, as a share of
            records: the mean over random orders of the labels. NaN where nothing was matched.
        chance: Of classes and numbers: what an attack is expected to get that knows nothing, as it is turned round or
            matched where that reads better.
        correlation: Of numbers: mean over steps of Spearman's rank correlation.
        accumulated_correlation: The same of the sums.
        within: Of numbers: share of records whose label is within half a standard deviation of all labels of what the
            sums predict. The judge grants the line from sums to labels, by least squares.
        trivially_within: The same share for the best single guess for everybody.
    """

    auc: float = math.nan
    worst_auc: float = math.nan
    quantile_95: float = math.nan
    accumulated_auc: float = math.nan
    worst_accumulated_auc: float = math.nan
    steps: int = 0
    undefined: int = 0
    signs_right: float = math.nan
    records_right: int = 0
    records: int = 0
    tied_auc: float = math.nan
    tied_accumulated_auc: float = math.nan
    scored: float = 1.0
    scored_accumulated: float = 1.0
    positives: int = 0
    negatives: int = 0
    by_messages: bool = True
    task: str = "binary"
    class_counts: tuple[int, ...] = ()
    top1: float = math.nan
    accumulated_top1: float = math.nan
    commonest: float = math.nan
    top1_by_matching: float = math.nan
    correlation: float = math.nan
    accumulated_correlation: float = math.nan
    within: float = math.nan
    trivially_within: float = math.nan
    chance: float = math.nan
    balanced: float = math.nan
    accumulated_balanced: float = math.nan
    base_rate: float = math.nan
    zeros_found: float = math.nan

    def __post_init__(self) -> None:
        """Let figures that are not there be equal: one NaN is another only where both are one object."""
        for name, value in vars(self).items():
            if value != value:
                object.__setattr__(self, name, math.nan)

    @property
    def worst(self) -> float:
        """The larger of the per-step and the accumulated AUC of all records, each in its better orientation, or NaN."""
        return nanmax(self.worst_auc, self.worst_accumulated_auc)

    @property
    def by_chance(self) -> float:
        """What an attack that knows nothing gets on so few records, as it is turned round; NaN without ids."""
        return chance_auc(self.positives, self.negatives) if self.task == "binary" else self.chance

    @property
    def leaves_out(self) -> bool:
        """Whether it left out records, so that what decides is not its own AUC."""
        return self.scored < 1.0

    @property
    def deciding(self) -> tuple[float, float]:
        """The per-step and the accumulated AUC that decide, not turned round: of all records."""
        return (self.tied_auc, self.tied_accumulated_auc) if self.leaves_out else (self.auc, self.accumulated_auc)

    @property
    def judged_on(self) -> str:
        """Records that it was judged by, in words."""
        if self.class_counts:
            return f"{sum(self.class_counts):,} of {len(self.class_counts)} classes"
        if self.task == "regression":
            return f"{self.positives:,}"
        return f"{self.positives + self.negatives:,}, of them {self.positives:,} positive"

    @property
    def told(self) -> str:
        """What it told beside the AUC, beside what a guess does: of classes and numbers, and of steps with zeros.

        Accumulated over the run, as far as records have ids. Empty of two classes where all records of a step are used.
        """
        if not math.isnan(self.balanced):
            return self._of_members
        top = largest((self.top1, self.accumulated_top1))
        if top is not None and not math.isnan(self.commonest):
            return f"top-1 {top:.2f} (always the commonest: {self.commonest:.2f})"
        if not math.isnan(self.within) and not math.isnan(self.accumulated_correlation):
            return (
                f"correlation {abs(self.accumulated_correlation):.2f}, within ½ σ {self.within:.2f} "
                f"(best guess: {self.trivially_within:.2f})"
            )
        return ""

    @property
    def _of_members(self) -> str:
        once = math.isnan(self.accumulated_balanced)
        over_run = "" if once else f", over the run {self.accumulated_balanced:.2f}"
        zeros = "" if math.isnan(self.zeros_found) else f"; {self.zeros_found:.0%} of the zeros were found as such"
        return (
            f"balanced accuracy on the records that were used {self.balanced:.2f}{over_run} (a guess: 0.50; the "
            f"commoner label: {self.base_rate:.2f} of them){zeros}"
        )


def nanmax(*values: float) -> float:
    """Return the largest value that is not NaN, or NaN."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def largest(values: Iterable[float | None]) -> float | None:
    """Return the largest of the values that are known; ``None`` if none is.

    >>> largest([None, 0.6, math.nan, 0.7])
    0.7
    """
    return known(nanmax(*(value for value in values if value is not None)))
