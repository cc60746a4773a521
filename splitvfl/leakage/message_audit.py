"""What all audits of messages have in common: the judges of several attacks, and what is known of the whole run.

The attacks differ with the labels: :mod:`~splitvfl.leakage.auditing` has those on two classes,
:mod:`~splitvfl.leakage.many_auditing` those on k classes and on numbers.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from splitvfl.data.coin_labels import Canaries
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.judging import Handle, real_rows, worst_of
from splitvfl.leakage.keeping import Keeper
from splitvfl.leakage.leak_summary import LeakSummary, nanmax
from splitvfl.leakage.partner_features import PartnerFeatures
from splitvfl.leakage.run_audit import RunHistory, RunLeak
from splitvfl.leakage.state import Stateful
from splitvfl.learning.label_gradients import LabelGradients
from splitvfl.metrics import limit_of_largest

AUDITORS = ("auditor-linear", "auditor-likelihood", "auditor-ratio")
"""Names of the auditor's attacks on messages."""

WITH_FEATURES = "messages, predictions and features"
"""What is said of a total with them."""

WITHOUT_FEATURES = "messages and predictions only"
"""What is said of a total without the partner's own features."""

LATE = 0.1
"""The last steps of a run, as a share of it."""


class SentBatch(NamedTuple):
    """One message, and what the label party knows of it: rows are the same in all.

    Attributes:
        clean: Cut gradient before the defenses, ``(n, width)``.
        sent: What is sent, ``(n, width)``.
        labels: ``(n,)``; NaN of records that are left out.
        ids: Record ids, ``(n,)``; ``None`` where nobody knows them, and nothing can be added up.
        responses: What a label defense answered; a message is read for that. ``None`` without one.
        label_gradients: What would be sent under every label; ``None`` where that is not known.
    """

    clean: Tensor
    sent: Tensor
    labels: Tensor
    ids: Tensor | None
    responses: Tensor | None
    label_gradients: LabelGradients | None


class MessageAudit(Handle, Stateful, ABC):
    """The auditor's attacks on messages being judged, whatever the labels are.

    ``worst`` is the best of the attacks on messages. ``total`` adds the model's predictions and, where they are known,
    the partner's own features: what is known of each record is put together as has worked best for others
    (:class:`~splitvfl.leakage.run_audit.RunHistory`).

    They are attacks: they bound the leak from below, and a leak that they do not find may still be there. Two things
    are not in them: activations, which may separate classes better than the model predicts while it learns under heavy
    noise, and labels that the partner knows. Behind a label defense a message is read for the answer, and from there on
    ``total`` is what answers, messages, predictions and features tell.

    What is called AUC is, of k classes, a macro AUC, and of numbers a concordance.

    Args:
        history: What is remembered of each record, empty.
        remove: Called when the audit is detached.
        canaries: Which records have labels that were drawn: judged apart. Default: none.
        features: The partner's features. Default: they are not known, and ``total`` is without them.

    Attributes:
        name: The auditor's, as an attack is named.
        explanation: What it does, for a report.
        legend: The same in a line.
        place: Where it stands among attacks.
        history: What is remembered of each record.
        seconds: Time spent on attacking and judging.
    """

    name: ClassVar[str] = "auditor"
    explanation: ClassVar[str]
    legend: ClassVar[str]
    place: ClassVar[float] = math.inf

    def __init__(
        self,
        history: RunHistory,
        *,
        remove: Callable[[], None] = lambda: None,
        canaries: Canaries | None = None,
        features: PartnerFeatures | None = None,
    ) -> None:
        super().__init__(remove)
        self.history = history
        self.history.features = features
        self.seconds = 0.0
        self._canaries = canaries
        self._told: RunLeak | None = None
        self._checked = False

    def __repr__(self) -> str:
        """Return the worst leak by messages, and the total."""
        what = "" if self.includes_features else f" ({WITHOUT_FEATURES})"
        return f"<{type(self).__name__}: worst {self.worst:.3f} by messages, {self.total:.3f} in all{what}>"

    @abstractmethod
    def check(self, labels: Tensor) -> None:
        """Raise :class:`HookError` if there are labels that are not judged; NaN are those of records left out."""

    def see(
        self,
        clean: Tensor,
        sent: Tensor,
        labels: Tensor,
        ids: Tensor | None,
        *,
        responses: Tensor | None = None,
        label_gradients: LabelGradients | None = None,
    ) -> None:
        """Attack one message with everything that the label party knows: see :class:`SentBatch`."""
        started = time.perf_counter()
        self._told = None
        if self.history.features is not None and ids is not None and not self._checked:
            self.history.features.rows(ids.detach().cpu().numpy().reshape(-1))
            self._checked = True
        self._attack(SentBatch(clean, sent, labels.reshape(-1), ids, responses, label_gradients))
        if ids is not None:
            real = real_rows(labels)
            if real is not None:  # rows that are no records
                ids, sent = ids[real.to(ids.device)], sent[real.to(sent.device)]
            self.history.note_level(ids.detach().cpu().numpy().reshape(-1), sent)
        self.seconds += time.perf_counter() - started

    @abstractmethod
    def _attack(self, batch: SentBatch, /) -> None:
        """Score the rows of a message, judge the scores, and learn from them."""

    @property
    @abstractmethod
    def keepers(self) -> Mapping[str, Keeper]:
        """The judges of the attacks on messages, by name."""

    @property
    def summaries(self) -> dict[str, LeakSummary]:
        """Figures of these attacks, by name."""
        return {name: keeper.summary() for name, keeper in self.keepers.items()}

    @property
    def worst(self) -> float:
        """The largest leak AUC of an attack on messages, per step or accumulated."""
        return nanmax(*(summary.worst for summary in self.summaries.values()))

    @property
    def canaries(self) -> CanaryLeak | None:
        """What its messages gave away of the canaries' labels: the leak beyond prediction; ``None`` without canaries.

        The figures of the best attack. As the best of several it is chosen on the canaries themselves, so the interval
        is that of all at once: each of them has its part of the share that may be wrong.
        """
        return worst_of(self.keepers.values())

    @property
    @abstractmethod
    def detection_error(self) -> float:
        """Mean error of calling classes from one message, of the best attack; NaN of numbers, and before any."""

    @property
    @abstractmethod
    def late_detection_error(self) -> float:
        """The same over the last tenth of the steps, at least one, of those in which anything was to be measured."""

    @property
    def told(self) -> RunLeak | None:
        """What messages, predictions and features told together so far; ``None`` with too few records of a class.

        It takes time in proportion to the records, of which at most 20 000 are drawn: for ends of epochs. Models of the
        partner's features are fitted once for the same records, so that later epochs do not wait for them.
        """
        if self._told is None and self.history.enough:
            self._told = self.history.judge()
        return self._told

    def judge(self, ids: Tensor, labels: Tensor, predictions: Tensor, *, seed: int = 0) -> RunLeak:
        """Return what messages told of these records with these predictions, those of the trained model, say.

        Where the partner's features are known, they are in it.

        Args:
            ids: ``(n,)`` ids of training records; those that never crossed are left out.
            labels: ``(n,)``.
            predictions: Of two classes ``(n,)`` scores of them, in any monotone unit; of k ``(n, k)`` probabilities; of
                numbers ``(n,)``.
            seed: Decides which records are drawn, and the folds.

        Raises:
            DataError: If too few records crossed: five of a class, ten of numbers.
        """
        return self.history.judge_with(ids, labels, predictions, seed=seed)

    @property
    def total(self) -> float:
        """Leak AUC of messages, the model's predictions and the partner's features together.

        It is the largest of three: of :attr:`worst`, of what a reader fitted to all of it reads, and of the features
        alone with labels of other records. As the largest of several it reads too much where nothing leaks:
        :meth:`by_chance` says how much. Features are in it where they are known (:attr:`includes_features`). It is that
        of the messages alone where nobody knows the records' ids, or what would be sent under another label.
        """
        return nanmax(self.worst, math.nan if self.told is None else self.told.auc)

    @property
    def includes_features(self) -> bool:
        """Whether the partner's features are in :attr:`total`."""
        return self.told is not None and self.told.includes_features

    def by_chance(self, attacks: int = 0) -> float:
        """Return what a total stays below in 95 of 100 runs in which nothing tells the labels; NaN if unknown.

        Args:
            attacks: How many other attacks it is the largest of; the auditor's count anyway.
        """
        if self.told is None:
            return math.nan
        # Of an attack a step's figure and the sums count; of features two models and a reader of all.
        figures = 2 * (attacks + len(self.keepers)) + (3 if self.includes_features else 1)
        return limit_of_largest(self.told.chance, figures)

    def shuffled(self, *, orders: int = 20, seed: int = 0) -> list[float]:
        """Return what readers of all read with labels in random order: about one half, as nothing can tell these.

        Everything is fitted anew for each order, also the models of the partner's features: it takes as long as
        :attr:`told` for each. A reader that is judged by labels which it was fitted with reads more.

        Args:
            orders: How many.
            seed: Of the first one.

        Raises:
            DataError: If too few records crossed: five of a class, ten of numbers.
        """
        return [self.history.judge_shuffled(order=seed + number).auc for number in range(orders)]

    @property
    def prediction_auc(self) -> float:
        """AUC of the model's prediction of each record in the last step that it was in; NaN if unknown."""
        return math.nan if self.told is None else self.told.prediction_auc

    @property
    def beyond_prediction(self) -> float:
        """Leak AUC between records of equal prediction: what messages told beyond it; NaN if unknown.

        It is measured of two classes only. Of others canaries say it.
        """
        return math.nan if self.told is None else self.told.matched_auc

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._told = None
        super().load_state_dict(state)


def shown_name(attack: str) -> str:
    """Return the name under which an attack is shown.

    >>> shown_name("auditor-linear"), shown_name("norm")
    ('auditor', 'norm')
    """
    return MessageAudit.name if attack in AUDITORS else attack
