"""The three figures of a leak of labels, which are shown together everywhere.

*Total* is what messages, the model's predictions and the partner's own features tell together; *beyond prediction*
what the messages tell of labels that nobody can predict; *known without messages* what a party's own columns tell
anyway. A small leak beyond the prediction does not say that labels are hidden: the model may predict them well, and
that is in the total. A large total does not say that training told it: the columns may tell as much.
"""

from __future__ import annotations

from dataclasses import dataclass

from splitvfl import metrics
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.leak_summary import largest
from splitvfl.leakage.message_audit import MessageAudit


@dataclass(frozen=True, slots=True)
class LabelLeak:
    """One party's knowledge of labels; ``None`` where it was not measured.

    Attributes:
        total: The largest leak AUC of the auditor's reader of all, of the features alone, and of any attack.
        beyond: What messages told beyond the prediction: the AUC of the auditor's attacks among the canaries, raw; in
            a run without canaries that between records of equal final prediction.
        low: Lower end of its 95 % interval, where there are canaries.
        high: Upper end.
        canaries: How many canaries it was measured on; 0 without any, and then it leaves some of the prediction in:
            behind ``asymmetric-response`` it read up to .11 above what is proven with 135 000 records, and .36 with
            455 after 4 epochs.
        known: AUC of what is known without messages, the larger of two: the party's own columns with labels of other
            records, and their first principal component, without any label.
        labelled: Whether the larger one needed labels.
        includes_features: Whether the partner's features are in the total. Else it is that of messages and predictions
            only, and of attacks on messages: where nobody but the partner has its features, as over a network.
        by_chance: What a total stays below in 95 of 100 runs in which nothing tells the labels: it is the largest of
            several figures, and so above one half.
    """

    total: float | None = None
    beyond: float | None = None
    low: float | None = None
    high: float | None = None
    canaries: int = 0
    known: float | None = None
    labelled: bool = True
    includes_features: bool = False
    by_chance: float | None = None

    @classmethod
    def of(
        cls,
        *,
        total: float | None,
        worst: float | None,
        matched: float | None,
        canaries: CanaryLeak | None,
        own_columns: float | None = None,
        first_component: float | None = None,
        includes_features: bool = False,
        by_chance: float | None = None,
    ) -> LabelLeak:
        """Return the figures.

        Args:
            total: The auditor's total; ``None`` where there was none, and nothing can be said in all.
            worst: The largest leak AUC of any attack on messages; where the total includes features, of any attack.
            matched: The AUC between records of equal prediction.
            canaries: What the auditor read of the canaries.
            own_columns: AUC of the own columns, with labels of other records.
            first_component: AUC of their first principal component.
            includes_features: Whether the auditor's total includes the features. What they tell alone is then part of
                the total.
            by_chance: What the total stays below in 95 of 100 runs where nothing leaks.
        """
        known = [own_columns, first_component] if includes_features else []
        return cls(
            total=None if total is None else largest([total, worst, *known]),
            beyond=matched if canaries is None else canaries.auc,
            low=None if canaries is None else canaries.low,
            high=None if canaries is None else canaries.high,
            canaries=0 if canaries is None else canaries.count,
            known=largest([own_columns, first_component]),
            labelled=first_component is None or (own_columns or 0.0) >= first_component,
            includes_features=includes_features,
            by_chance=by_chance,
        )

    @classmethod
    def so_far(cls, audit: MessageAudit, *, worst: float, known: float | None, attacks: int = 0) -> LabelLeak:
        """Return the figures of a run that goes on, given the worst attack so far and what is known without messages.

        It takes time in proportion to the records, of which at most 10 000 of each class are drawn.

        Args:
            audit: The auditor's.
            worst: The largest leak AUC of any attack that counts.
            known: AUC of what is known without messages.
            attacks: How many attacks these are beside the auditor's.
        """
        total, seen, matched = map(metrics.known, (audit.total, worst, audit.beyond_prediction))
        return cls.of(
            total=total,
            worst=seen,
            matched=matched,
            canaries=audit.canaries,
            own_columns=known,
            includes_features=audit.includes_features,
            by_chance=metrics.known(audit.by_chance(attacks)),
        )

    @property
    def excess(self) -> float | None:
        """The leak of the whole run above what is known without messages."""
        return None if self.total is None or self.known is None else self.total - self.known
