"""What one passive party could learn in a run, in numbers: of each attack, and of all together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from splitvfl.claims import Guarantee
from splitvfl.leakage.after_training import AfterTraining
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.features import FeatureLeak, feature_notes
from splitvfl.leakage.in_general import KnowledgeGain, LabelFreeAttack
from splitvfl.leakage.label_leak import LabelLeak
from splitvfl.leakage.leak_summary import LeakSummary, largest
from splitvfl.leakage.message_audit import MessageAudit
from splitvfl.metrics import known

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
        randomised: The same of the canaries' randomised labels, behind a label defense; else ``None``.
        guarantee: The tightest guarantee of a record's label towards it; ``None``: none.
        knowledge_gain: What it has learned of labels in general; ``None`` where that is not known.
        label_free: The attack on messages that shows most of single labels and needs none; ``None`` likewise.
    """

    attacks: dict[str, LeakSummary]
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
    randomised: CanaryLeak | None = None
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
        return max(((worst, name) for name, worst in found.items() if not math.isnan(worst)), default=(None, ""))

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
