"""Labels in general: what a partner has learned about labels of records of which it never got a message.

And what follows for single labels where no canaries were trained on. An attack that needs no labels and recovers more
than the partner alone, than what it has learned in general, and than the model's prediction, also between records that
are alike in both, recovers single labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from splitvfl.errors import ArgumentError
from splitvfl.leakage.message_models import in_units, taught_by_messages
from splitvfl.leakage.paired_aucs import Judged, difference, judged
from splitvfl.leakage.run_audit import RunHistory
from splitvfl.learning.drawing import FOLDS
from splitvfl.metrics import auc_interval, matched_auc

Floats = npt.NDArray[np.float64]

MATCHED_MARGIN: Final = 0.10
SMALL_MATCHED_MARGIN: Final = 0.36
MANY_RECORDS: Final = 1_000
"""What an attack must still reach above the goal between records that are alike: more on few records."""

# Records are divided into so many parts by one number: cells of two have forty records and more.
_CELL, _MOST_PARTS = 40, 20
# Of wide features fewer records are used, so that their models take seconds.
_MOST_NUMBERS, _FEWEST_WIDE = 2_000_000, 2_000
# Standard errors.
_CERTAIN = 1.96


def _check_aucs(**figures: float) -> None:
    for name, value in figures.items():
        if not 0.0 <= value <= 1.0:
            raise ArgumentError(f"{name} must be from 0 to 1, got {value!r}")


@dataclass(frozen=True, slots=True)
class KnowledgeGain:
    """Labels in general: what the partner predicts of people of whom it never got a message.

    Of k classes figures are macro AUCs, of numbers concordances.

    Attributes:
        before: AUC of its label-free baseline: the first principal component of its features.
        after: AUC of the model of its own features that messages alone taught, on records whose messages were left out.
        low: Lower end of the paired 95 % confidence interval of the difference.
        high: Upper end.
        taught: Whether that model predicts messages of records that were left out, with 95 % confidence. One that noise
            taught points anywhere, and with few features it may point at the label by luck.
        model: AUC of the model's prediction of the same records; ``None``: not known.
    """

    before: float
    after: float
    low: float
    high: float
    taught: bool = True
    model: float | None = None

    def __post_init__(self) -> None:
        _check_aucs(before=self.before, after=self.after, model=0.5 if self.model is None else self.model)
        if not self.low <= self.high:
            raise ArgumentError(f"expected low <= high, got {self.low:g} and {self.high:g}")

    @property
    def significant(self) -> bool:
        """Whether something was learned, with 95 % confidence."""
        return self.taught and self.low > 0.0

    @classmethod
    def without_messages(cls, baseline: float) -> Self:
        """Return that of a partner that gets nothing made from labels: it knows what it knew."""
        return cls(baseline, baseline, 0.0, 0.0)

    @classmethod
    def pooled(cls, runs: Sequence[Self]) -> Self:
        """Return the means of independent runs; the interval of the difference is that of their mean.

        Args:
            runs: At least one.
        """
        before, after = (sum(getattr(one, name) for one in runs) / len(runs) for name in ("before", "after"))
        models = [one.model for one in runs if one.model is not None]
        below = math.hypot(*(one.after - one.before - one.low for one in runs)) / len(runs)
        above = math.hypot(*(one.high - one.after + one.before for one in runs)) / len(runs)
        return cls(
            before,
            after,
            after - before - below,
            after - before + above,
            taught=all(one.taught for one in runs),
            model=sum(models) / len(runs) if len(models) == len(runs) else None,
        )

    @property
    def nothing_came(self) -> bool:
        """Whether nothing was measured, as nothing that the partner gets is made from labels."""
        return self.low == self.high == 0.0


@dataclass(frozen=True, slots=True)
class LabelFreeAttack:
    """The attack without labels that decides most where no canaries were trained on.

    Attributes:
        name: Its name.
        auc: Its leak AUC.
        low: Lower end of its 95 % confidence interval, jointly for all attacks that need no labels.
        beats_baseline: Whether it is significantly better than the partner alone without labels, on the same records.
        beats_general: Likewise than what the partner knows of labels in general.
        beats_prediction: Likewise than the model's prediction.
        matched: Its AUC between records of equal prediction and equal knowledge of labels in general.
        records: How many records that is of.
    """

    name: str
    auc: float
    low: float
    beats_baseline: bool
    beats_general: bool
    beats_prediction: bool
    matched: float
    records: int

    def __post_init__(self) -> None:
        _check_aucs(auc=self.auc, low=self.low, matched=self.matched)

    @property
    def shown(self) -> float:
        """Above which goals it shows a leak of single labels: all below this; 0 where it shows none."""
        margin = MATCHED_MARGIN if self.records >= MANY_RECORDS else SMALL_MATCHED_MARGIN
        beats = self.beats_baseline and self.beats_general and self.beats_prediction
        return min(self.low, self.matched - margin) if beats else 0.0

    def decides(self, goal: float) -> bool:
        """Return whether it shows, without canaries, that single labels leak above a goal."""
        return self.shown > goal


class InGeneral(NamedTuple):
    """What is known of records in general, higher for higher labels; one row for each record, none of them a canary.

    Attributes:
        classes: Number of classes; ``None`` for numbers.
        ids: Of the records, ``(n,)``.
        labels: ``(n,)``, by which all is judged.
        predicted: The model's last prediction, ``(n, 1)``, or ``(n, k)`` of k classes.
        before: What the partner's label-free baseline says, likewise: oriented by other records.
        after: What the model says that messages of other records taught, likewise.
        taught: Whether that model predicts messages of records that were left out.
    """

    classes: int | None
    ids: npt.NDArray[np.int64]
    labels: Floats
    predicted: Floats
    before: Floats
    after: Floats
    taught: bool

    @property
    def gain(self) -> KnowledgeGain | None:
        """What the partner has learned of labels in general; ``None`` where all labels are equal."""
        before, after, model = map(self._judged, (self.before, self.after, self.predicted))
        if np.isnan(before.value):
            return None
        low, high = difference(after, before)
        return KnowledgeGain(before.value, after.value, low, high, self.taught, model.value)

    def label_free(self, attacks: Mapping[str, Floats]) -> LabelFreeAttack | None:
        """Return the attack that shows most; ``None`` where labels are not of two classes, or there is none.

        Intervals and tests are those of all attacks at once (Bonferroni), and each attack is turned round if that reads
        better. Records are alike if they are in one cell: the predictions are divided at quantiles, and what is known
        in general within each part again, so that a cell has 40 records and more, and at most 400 cells.

        Args:
            attacks: Scores of these records, ``(n,)``, by the attack's name.
        """
        if self.classes != 2 or not attacks:
            return None
        level = 1.0 - 0.05 / len(attacks)
        known = [self._judged(part) for part in (self.before, self.after, self.predicted)]
        alike = torch.from_numpy(np.concatenate([self.predicted, self.after], axis=1))
        parts = int(np.clip((len(self.labels) / _CELL) ** 0.5, 1, _MOST_PARTS))
        labels = torch.from_numpy(self.labels)
        found = []
        for name, given in attacks.items():
            scores = given if self._judged(given[:, None]).value >= 0.5 else -given
            own, tensor = self._judged(scores[:, None]), torch.from_numpy(scores)
            matched = matched_auc(tensor, labels, alike, groups=parts**2)
            baseline, general, model = (difference(own, other, level=level)[0] > 0.0 for other in known)
            low, _ = auc_interval(tensor, labels, level=level)
            if not np.isnan(matched):  # else no two records of different labels are alike
                found.append(LabelFreeAttack(name, own.value, low, baseline, general, model, matched, len(scores)))
        return max(found, key=lambda one: (one.shown, one.low), default=None)

    def _judged(self, scores: Floats) -> Judged:
        return judged(scores, self.labels, self.classes)


def labels_in_general(history: RunHistory, *, seed: int = 0) -> InGeneral | None:
    """Return what is known of records in general; ``None`` where the partner's features are not, or records are few.

    The model is that of :func:`~splitvfl.leakage.message_models.taught_by_messages`: it learns the mean of what the
    auditor found in a record's messages from the partner's features, and predicts it of records that it was not fitted
    to. It draws nothing from the run's generators.

    Args:
        history: What the auditor remembers of each record.
        seed: Decides which records are drawn, and the folds.
    """
    sample = history.sample(seed=seed) if history.enough else None
    if sample is None:
        return None
    numeric = torch.nan_to_num(sample.features.numeric.flatten(1).float()).cpu().numpy()
    codes = sample.features.categorical.cpu().numpy().astype(np.int64)
    if not numeric.shape[1] + codes.shape[1]:
        return None
    wide = (numeric.shape[1] + codes.shape[1]) * sample.told.shape[1]
    generator, count = np.random.default_rng(seed), len(sample.ids)
    kept = np.sort(generator.permutation(count)[: max(_FEWEST_WIDE, _MOST_NUMBERS // wide)])
    numeric, codes, told = numeric[kept], codes[kept], sample.told[kept]
    labels, predicted = sample.labels[kept].astype(np.float64), sample.predicted[kept]
    taught = taught_by_messages(numeric, codes, told, np.ones(len(labels), np.bool_))
    plain = np.repeat(sample.component[kept, None], predicted.shape[1], axis=1)
    folds = generator.permutation(len(labels)) % FOLDS
    before = _turned(plain, labels, history.classes, folds)
    after = np.sum([in_units(part) for part in taught], axis=0)
    # A record's own message has no part in what is predicted of it: where messages are noise the mean of these is zero.
    alike = (after * (told - told.mean(axis=0))).sum(axis=1)
    taught_something = bool(alike.mean() > _CERTAIN * alike.std(ddof=1) / len(alike) ** 0.5)
    return InGeneral(history.classes, sample.ids[kept], labels, predicted, before, after, taught_something)


def _turned(scores: Floats, labels: Floats, classes: int | None, folds: npt.NDArray[np.int64]) -> Floats:
    """Return scores that point where they do in the other folds; of k classes each of them for itself."""
    found = scores.copy()
    for fold in range(FOLDS):
        others, own = folds != fold, folds == fold
        for column in range(scores.shape[1]):
            truth = labels if classes in (2, None) else (labels == column).astype(np.float64)
            if judged(scores[others, column : column + 1], truth[others], classes and 2).value < 0.5:
                found[own, column] *= -1.0
    return found
