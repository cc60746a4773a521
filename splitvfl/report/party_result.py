"""What one passive party could learn in a run, in numbers: of each attack, and of all together."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from splitvfl.claims import Guarantee
from splitvfl.leakage.after_training import AfterTraining
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.features import FeatureLeak, feature_notes
from splitvfl.leakage.in_general import KnowledgeGain, LabelFreeAttack
from splitvfl.leakage.label_leak import LabelLeak, largest
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.message_audit import MessageAudit
from splitvfl.metrics import chance_auc, known


@dataclass(frozen=True)
class AttackResult:
    """One attack's figures as in :class:`~splitvfl.leakage.judging.LeakSummary`, ``None`` where undefined.

    ``tied_auc`` and ``tied_accumulated_auc`` are ``None`` too where no record was left out: then they are the others.
    """

    auc: float | None
    worst_auc: float | None
    quantile_95: float | None
    accumulated_auc: float | None
    worst_accumulated_auc: float | None
    steps: int
    undefined: int
    signs_right: float | None = None
    records_right: int = 0
    records: int = 0
    tied_auc: float | None = None
    tied_accumulated_auc: float | None = None
    scored: float | None = 1.0
    scored_accumulated: float | None = 1.0
    positives: int = 0
    negatives: int = 0
    by_messages: bool = True
    task: str = "binary"
    class_counts: tuple[int, ...] = ()
    top1: float | None = None
    accumulated_top1: float | None = None
    commonest: float | None = None
    top1_by_matching: float | None = None
    correlation: float | None = None
    accumulated_correlation: float | None = None
    within: float | None = None
    trivially_within: float | None = None
    chance: float | None = None
    balanced: float | None = None
    accumulated_balanced: float | None = None
    base_rate: float | None = None
    zeros_found: float | None = None

    @classmethod
    def of(cls, summary: LeakSummary) -> AttackResult:
        """Return the figures of a summary."""
        found: dict[str, Any] = {
            name: known(value) if isinstance(value, float) else value for name, value in asdict(summary).items()
        }
        if not summary.scored < 1.0:
            found |= {"tied_auc": None, "tied_accumulated_auc": None}
        return cls(**found)

    @property
    def leaves_out(self) -> bool:
        """Whether it left out records, so that what decides is not its own AUC."""
        return self.scored is not None and self.scored < 1.0

    @property
    def deciding(self) -> tuple[float | None, float | None]:
        """The per-step and the accumulated AUC that decide, not turned round: of all records."""
        return (self.tied_auc, self.tied_accumulated_auc) if self.leaves_out else (self.auc, self.accumulated_auc)

    @property
    def by_chance(self) -> float | None:
        """What orientation alone gives on so few records; ``None`` where they were not counted."""
        return known(chance_auc(self.positives, self.negatives)) if self.chance is None else self.chance

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
        if self.balanced is not None:
            return self._of_members
        top = largest((self.top1, self.accumulated_top1))
        if top is not None and self.commonest is not None:
            return f"top-1 {top:.2f} (always the commonest: {self.commonest:.2f})"
        if self.within is not None and self.accumulated_correlation is not None:
            return (
                f"correlation {abs(self.accumulated_correlation):.2f}, within ½ σ {self.within:.2f} "
                f"(best guess: {self.trivially_within:.2f})"
            )
        return ""

    @property
    def _of_members(self) -> str:
        over_run = "" if self.accumulated_balanced is None else f", over the run {self.accumulated_balanced:.2f}"
        zeros = "" if self.zeros_found is None else f"; {self.zeros_found:.0%} of the zeros were found as such"
        return (
            f"balanced accuracy on the records that were used {self.balanced:.2f}{over_run} (a guess: 0.50; the "
            f"commoner label: {self.base_rate:.2f} of them){zeros}"
        )

    @property
    def worst(self) -> float | None:
        """The larger of the per-step and the accumulated AUC of all records, each in its better orientation."""
        return largest((self.worst_auc, self.worst_accumulated_auc))


# Figures of a party that are an auditor's, by their names there.
_AUDITED = ("detection_error", "late_detection_error", "total", "prediction_auc", "beyond_prediction")


@dataclass(frozen=True)
class PartyResult:
    """What one passive party could learn.

    Attributes:
        attacks: Figures by attack name; the auditor's attacks on messages are ``auditor-linear``,
            ``auditor-likelihood`` and ``auditor-ratio``.
        unavailable: Attacks that could not be run, with the reason.
        own_columns_auc: Out-of-fold AUC of the better of two models on its own columns.
        own_columns_model: Which of the two.
        first_component_auc: AUC of the first principal component of its own columns, for which no label is needed.
        detection_error: The auditor's, as are the next four: :class:`~splitvfl.leakage.message_audit.MessageAudit`.
        late_detection_error: Over the last tenth of the steps.
        total: By messages, predictions and the partner's features together.
        includes_features: Whether the features are in it; else it is by messages and predictions only.
        total_by_chance: What the total of the run stays below in 95 of 100 runs in which nothing tells the labels.
        prediction_auc: By predictions alone, of the training records.
        beyond_prediction: By both, between records of equal prediction.
        measurements: Means over the run of what the defenses of this party's messages logged.
        features: Feature attacks on its columns.
        readings: What attacks in the label party's seat read of its columns, in activations of training or in scores.
        after_training: Attacks with its trained bottom model, by name.
        canaries: What attacks read of the canaries' labels, by name, the auditor's first; empty without canaries.
        worst_canaries: The largest canary AUC of the auditor's attacks, with an interval for all of them at once.
        excess: The largest canary AUC of all attacks on messages, the auditor's among them, likewise.
        guarantee: The tightest guarantee of a record's label towards it; ``None``: none.
        knowledge_gain: What it has learned of labels in general; ``None`` where that is not known.
        label_free: The attack on messages that shows most of single labels and needs none; ``None`` likewise.
    """

    attacks: dict[str, AttackResult]
    unavailable: dict[str, str] = field(default_factory=dict)
    own_columns_auc: float | None = None
    own_columns_model: str = ""
    detection_error: float | None = None
    measurements: dict[str, float] = field(default_factory=dict)
    features: list[FeatureLeak] = field(default_factory=list)
    after_training: dict[str, AfterTraining] = field(default_factory=dict)
    canaries: dict[str, CanaryLeak] = field(default_factory=dict)
    late_detection_error: float | None = None
    total: float | None = None
    prediction_auc: float | None = None
    beyond_prediction: float | None = None
    first_component_auc: float | None = None
    worst_canaries: CanaryLeak | None = None
    includes_features: bool = False
    total_by_chance: float | None = None
    readings: list[ColumnReading] = field(default_factory=list)
    excess: CanaryLeak | None = None
    guarantee: Guarantee | None = None
    knowledge_gain: KnowledgeGain | None = None
    label_free: LabelFreeAttack | None = None

    @property
    def feature_notes(self) -> list[str]:
        """What was noted of attacks on its features, each thing once."""
        return feature_notes(self.features)

    @property
    def label_leak(self) -> LabelLeak:
        """Total, beyond prediction, and known without messages."""
        return LabelLeak.of(
            total=self.total,
            worst=self.worst_of_all if self.includes_features else self.worst[0],
            matched=self.beyond_prediction,
            canaries=self.worst_canaries,
            own_columns=self.own_columns_auc,
            first_component=self.first_component_auc,
            includes_features=self.includes_features,
            by_chance=self.total_by_chance,
        )

    @property
    def worst_of_all(self) -> float | None:
        """The largest leak AUC of any attack, also of those on its own columns alone; ``None`` if there is none."""
        return largest(result.worst for result in self.attacks.values())

    @property
    def worst(self) -> tuple[float | None, str]:
        """The largest leak AUC of any attack on messages, and its name; ``(None, "")`` if there is none."""
        found = {name: result.worst for name, result in self.attacks.items() if result.by_messages}
        return max(((worst, name) for name, worst in found.items() if worst is not None), default=(None, ""))

    def limit(self, goal: float) -> float:
        """Return below which leak AUC it is below a goal: the goal, or more where its own columns tell more anyway."""
        known = self.label_leak.known
        return goal if known is None else max(goal, known)

    def audited(self, audit: MessageAudit | None) -> PartyResult:
        """Return the same with an auditor's figures, if there is one."""
        if audit is None:
            return self
        figures: dict[str, Any] = {name: known(getattr(audit, name)) for name in _AUDITED}
        others = [one for one in self.attacks.values() if one.by_messages or audit.includes_features]
        return replace(
            self,
            **figures,
            worst_canaries=audit.canaries,
            includes_features=audit.includes_features,
            total_by_chance=known(audit.by_chance(max(0, len(others) - len(audit.keepers)))),
        )

    def measurement(self, name: str) -> float | None:
        """Return the largest measurement of this name over all defenses, or ``None``: ``"noise_to_signal"``."""
        return largest(value for tag, value in self.measurements.items() if tag.rsplit("/", 1)[-1] == name)
