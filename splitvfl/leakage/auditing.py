"""The auditor's attack: what the label party, who knows everything, can read in its own messages.

A defense that only hides labels from a weak attacker is no defense. The auditor therefore attacks with what no
partner has: the labels of the batch and the clean gradients. What it finds bounds the leak from below; a proof, where
a defense has one, bounds it from above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from splitvfl.data.coin_labels import Canaries
from splitvfl.errors import HookError
from splitvfl.leakage.judging import ScoreKeeper, real_rows
from splitvfl.leakage.label_ratios import LabelRatios, answers_of, expected_axis, of_records, read_message
from splitvfl.leakage.message_audit import AUDITORS, LATE, MessageAudit, SentBatch
from splitvfl.leakage.partner_features import PartnerFeatures
from splitvfl.leakage.run_audit import BinaryHistory
from splitvfl.leakage.series import Thinned
from splitvfl.leakage.state import Stateful
from splitvfl.learning.label_gradients import LabelGradients
from splitvfl.metrics import detection_error

# Memory of the likelihood's moments: about the last twenty steps count.
_DECAY = 0.95
# Energy off the axis is floored at this share of the batch's mean energy, so that rounding noise has no shape.
_FLOOR = 1e-9
_, _, RATIO = AUDITORS
# Ridge on the features' covariance: relative to their pooled variance, and absolute (features are of order one, and
# without noise the second one is constant).
_RIDGE = 1e-3
_LEAST_RIDGE = 1e-6
_LEAST_WEIGHT = 4.0


class AuditScores(NamedTuple):
    """The auditor's scores for one message.

    Attributes:
        linear: Projections on the clean Δg, in units of the batch's root mean square norm, ``(n,)`` float64.
        likelihood: Log likelihood ratios, ``(n,)`` float64; the linear scores while too little was seen to fit them.
        fitted: Whether enough was seen for likelihoods; a record is then called positive if it scores above 0.
    """

    linear: Tensor
    likelihood: Tensor
    fitted: bool


class Auditor(Stateful):
    """Scores every row of a sent batch in two ways.

    *Linear*: the projection on Δg, the difference of the classes' mean rows before any defense of the gradient. The
    direction is an oracle's; no linear attacker knows a better one under equal class covariances. It is the one that
    predictions lead one to expect where it is known what would be sent under every label
    (:func:`~splitvfl.leakage.label_ratios.expected_axis`), and no label of the batch enters it: a record's own would be
    found in its score where nothing was sent. Else it is the difference of this batch's clean class means, and reads
    too much where clean rows point in directions of their own, below a deep top. Where a label defense has answered,
    these classes are those of its answers, as true ones would carry the labels of all records of the batch.

    *Likelihood*: the log ratio of two Gaussians on (projection on Δg, log energy off Δg), both in units of the batch's
    root mean square norm, fitted per class on **earlier steps only** with exponential forgetting. It sees what a
    linear attacker cannot: a class that is marked by more noise.

    It is an attack, not a proof: a leak that it does not find may still be there.
    """

    _kept = ("_weight", "_sum", "_square")

    def __init__(self) -> None:
        self._weight = torch.zeros(2, dtype=torch.float64)
        self._sum = torch.zeros(2, 2, dtype=torch.float64)
        self._square = torch.zeros(2, 2, 2, dtype=torch.float64)

    def __call__(
        self,
        clean: Tensor,
        sent: Tensor,
        labels: Tensor,
        responses: Tensor | None = None,
        *,
        canary: Tensor | None = None,
        axis: Tensor | None = None,
    ) -> AuditScores | None:
        """Return the scores of both attacks, higher for positives.

        Args:
            clean: Cut gradient before the defenses, ``(n, width)``.
            sent: What is sent, ``(n, width)``.
            labels: ``(n,)`` in {0, 1}.
            responses: ``(n,)`` in {0, 1}: what a label defense answered in place of the labels, if there is one.
            canary: ``(n,)`` bool: rows that are scored like all others, and of whose labels, answers and clean
                gradients nothing is used. An axis to which a record's own label has contributed carries it into the
                score of a message that depends on columns only.
            axis: Unit vector, ``(width,)`` float64, to which no label of the batch has contributed. Default: from the
                clean gradients of this batch, whose every record contributes to its own score.

        Returns:
            ``None`` when the batch, canaries aside, holds one class only, of labels or of responses: there is no Δg.
        """
        known = slice(None) if canary is None else ~canary.to(labels.device)
        positive = labels.reshape(-1)[known] == 1
        answered = positive if responses is None else responses.reshape(-1)[known] == 1
        axis = class_axis(clean[known], answered) if axis is None else axis.to(sent.device)
        if axis is None or positive.all() or not positive.any():
            return None
        features = message_features(sent, axis)
        likelihood = self._log_ratio(features)
        self._learn(features[known if canary is None else ~canary.cpu()], positive.cpu())
        linear = features[:, 0]
        return AuditScores(linear, linear.clone() if likelihood is None else likelihood, likelihood is not None)

    def _log_ratio(self, features: Tensor) -> Tensor | None:
        if self._weight.min() < _LEAST_WEIGHT:
            return None
        densities = [self._log_density(features, label) for label in (0, 1)]
        return densities[1] - densities[0]

    def _log_density(self, features: Tensor, label: int) -> Tensor:
        mean = self._sum[label] / self._weight[label]
        covariance = self._square[label] / self._weight[label] - torch.outer(mean, mean)
        pooled = (self._square.sum(dim=0) / self._weight.sum()).diagonal() - (
            self._sum.sum(dim=0) / self._weight.sum()
        ).square()
        covariance = covariance + torch.diag(_RIDGE * pooled.clamp(min=0.0) + _LEAST_RIDGE)
        centred = features - mean
        solved = torch.linalg.solve(covariance, centred.T).T
        density: Tensor = -0.5 * ((centred * solved).sum(dim=1) + torch.logdet(covariance))
        return density

    def _learn(self, features: Tensor, positive: Tensor) -> None:
        for label, rows in enumerate((features[~positive], features[positive])):
            self._weight[label] = _DECAY * self._weight[label] + rows.shape[0]
            self._sum[label] = _DECAY * self._sum[label] + rows.sum(dim=0)
            self._square[label] = _DECAY * self._square[label] + rows.T @ rows


def message_features(sent: Tensor, axis: Tensor) -> Tensor:
    """Return what the auditor looks at in a message.

    Args:
        sent: ``(n, width)``.
        axis: Unit vector, ``(width,)`` float64.

    Returns:
        ``(n, 2)`` float64, on the CPU: each row's projection on the axis, and the logarithm of its energy off the axis,
        in units of the batch's root mean square norm and of its mean energy.
    """
    tiny = torch.finfo(torch.float64).tiny
    scaled = sent.double() / sent.abs().max().double().clamp(min=tiny)
    energy = scaled.square().sum(dim=1)
    mean_energy = energy.mean().clamp(min=tiny)
    projection = scaled @ axis
    off_axis = (energy - projection.square()).clamp(min=0.0) / mean_energy + _FLOOR
    return torch.stack([projection / mean_energy.sqrt(), off_axis.log()], dim=1).cpu()


def class_axis(gradient: Tensor, positive: Tensor) -> Tensor | None:
    """Return the unit vector of the difference of class means, ``(width,)`` float64; ``None`` where there is none."""
    positives = int(positive.sum())
    if positives == 0 or positives == positive.numel():
        return None
    peak = gradient.abs().max()
    if peak == 0:
        return None
    scaled = (gradient / peak).double()
    difference = scaled[positive].mean(dim=0) - scaled[~positive].mean(dim=0)
    length = torch.linalg.vector_norm(difference)
    axis: Tensor = difference / length.clamp(min=torch.finfo(torch.float64).tiny)
    return axis if length > 0 else None


class Audit(MessageAudit):
    """The auditor's attacks on two classes being judged: what ``audit`` returns.

    Three attacks read each message: the two of :class:`Auditor`, and
    :class:`~splitvfl.leakage.label_ratios.LabelRatios`, who also knows the model's prediction of each record and what
    its row would be under the other label, as the partner knows both below a linear top. Behind a label defense the
    first two tell no more than the answers.

    Args:
        remove: Called when the audit is detached.
        canaries: Which records have coin-toss labels: judged apart. Default: none.
        features: The partner's features. Default: they are not known, and ``total`` is without them.

    Attributes:
        linear: Judge of the projection on the clean Δg.
        likelihood: Judge of the likelihood ratio of two Gaussians.
        ratio: Judge of the log ratio of the labels given each record's prediction, added up as it is. Nothing is judged
            where what would be sent under another label is not known, at a bare :class:`~splitvfl.cut.layer.CutLayer`.
        history: What is remembered of each record.
    """

    explanation: ClassVar[str] = (
        "The label party attacks its own messages with all that it knows, the labels and the gradients before any "
        "noise: more than a partner has. Three attacks, of which the best one counts at every figure: a projection on "
        "the true difference of the classes, a likelihood ratio fitted on earlier steps, and the log ratio of the "
        "labels given the model's prediction. It shows leaks that no partner's attack in this list has found yet."
    )
    legend: ClassVar[str] = "attacks with the label party's own knowledge; the best of three"
    history: BinaryHistory
    _kept = ("auditor", "ratios", "history", "linear", "likelihood", "ratio", "_errors", "_error_sums")

    def __init__(
        self,
        *,
        remove: Callable[[], None] = lambda: None,
        canaries: Canaries | None = None,
        features: PartnerFeatures | None = None,
    ) -> None:
        super().__init__(BinaryHistory(), remove=remove, canaries=canaries, features=features)
        self.auditor = Auditor()
        self.ratios = LabelRatios()
        self.linear = ScoreKeeper(canaries=canaries)
        self.likelihood = ScoreKeeper(canaries=canaries)
        self.ratio = ScoreKeeper(canaries=canaries, raw=True)
        for keeper in (self.linear, self.likelihood, self.ratio):
            keeper.knows_labels = True
        self._errors = Thinned(len(AUDITORS))
        self._error_sums = torch.zeros(2, len(AUDITORS), dtype=torch.float64)  # of errors, and how many

    def check(self, labels: Tensor) -> None:
        """Raise :class:`HookError` unless labels are 0 or 1, or NaN, as those of records that are left out."""
        others = labels[(labels != 0) & (labels != 1) & ~labels.isnan()]
        if len(others):
            some = labels.detach().float().unique()[:5].tolist()
            raise HookError(
                f"the auditor judges labels 0 and 1, got {some}, so nothing was sent; say how many classes there are: "
                "cut.audit(classes=10), or classes=None of a regression"
            )

    def _attack(self, batch: SentBatch) -> None:
        clean, sent, labels, ids, responses, label_gradients = batch
        real = real_rows(labels)
        whole = sent
        if real is not None:
            clean, sent, labels = (rows[real.to(rows.device)] for rows in (clean, sent, labels))
            ids, responses = (None if rows is None else rows[real.to(rows.device)] for rows in (ids, responses))
        canary = None if self._canaries is None else self._canaries.among_rows(ids)
        axis = None if label_gradients is None or not labels.numel() else expected_axis(label_gradients, real)
        scores = self.auditor(clean, sent, labels, responses, canary=canary, axis=axis)
        errors = self._judge(scores, labels, ids, canary)
        self._note(*errors, self._judge_ratios(whole, labels, ids, real, label_gradients, canary))

    def _judge(
        self, scores: AuditScores | None, labels: Tensor, ids: Tensor | None, canary: Tensor | None = None
    ) -> tuple[float, float]:
        """Judge both scores, and return their detection errors."""
        if scores is None:
            # No Δg: there is nothing that the auditor could have scored or left out, and nothing to judge.
            nothing = torch.full(labels.reshape(-1).shape, math.nan)
            self.linear.add(ids, nothing, nothing)
            self.likelihood.add(ids, nothing, nothing)
            return math.nan, math.nan
        self.linear.add(ids, scores.linear, labels)
        self.likelihood.add(ids, scores.likelihood, labels)
        if not scores.fitted:
            return math.nan, math.nan
        counted = slice(None) if canary is None else ~canary
        truth = labels.cpu()[counted]
        linear, likelihood = (detection_error(values[counted], truth, threshold=0.0) for values in scores[:2])
        return linear, likelihood

    def _judge_ratios(
        self,
        sent: Tensor,
        labels: Tensor,
        ids: Tensor | None,
        real: Tensor | None,
        known: LabelGradients | None,
        canary: Tensor | None,
    ) -> float:
        """Judge the log ratios, remember them, and return their detection error; ``sent`` has all rows, labels not."""
        if known is None or not labels.numel():
            nothing = torch.full(labels.reshape(-1).shape, math.nan)
            self.ratio.add(ids, nothing, nothing)
            return math.nan
        chosen = None if real is None else real.cpu().numpy()
        messages, answered = read_message(sent, known, chosen), answers_of(known)
        truth = labels.detach().reshape(-1).cpu().numpy() == 1
        if answered is None:
            answered = truth
        elif chosen is not None:
            answered = answered[chosen]
        fitted = self.ratios.fitted
        counted = None if canary is None else ~canary.numpy()
        ratios = self.ratios(messages, answered, known=counted)
        scores = torch.from_numpy(ratios)
        self.ratio.add(ids, scores, labels)
        if counted is None:
            counted = np.ones(truth.shape, np.bool_)
        if ids is not None:
            own = ids.detach().cpu().numpy().reshape(-1)[counted]
            self.history.add(own, truth[counted], of_records(messages, counted), ratios[counted])
        if not fitted:
            return math.nan
        return detection_error(scores[counted], torch.from_numpy(truth[counted]), threshold=0.0)

    def _note(self, *errors: float) -> None:
        found = torch.tensor(errors, dtype=torch.float64)
        known = ~found.isnan()
        if known.any():
            self._errors.append(*errors)
            self._error_sums += torch.stack([found.nan_to_num(), known.double()])

    @property
    def detection_error(self) -> float:
        """Mean ½(FPR + FNR) of calling positive what scores above 0 in one message, of the best attack; NaN before any.

        The projection of a clean gradient changes its sign with the label; the likelihood ratio weighs what earlier
        steps have shown; and the log ratio given the prediction is what an observer has who knows the prediction and
        the top's weights. Which attack counts is decided for the whole run, never per batch. The mean is over all
        steps of the run, of which the first may hide far more than the last: see :attr:`late_detection_error`.
        """
        means = self._error_sums[0] / self._error_sums[1]
        return _nanmin(means.tolist())

    @property
    def late_detection_error(self) -> float:
        """Mean ½(FPR + FNR) late in the run of what tells a record's two labels apart, given its prediction.

        It is the error of the log ratio of the labels alone: what columns predict is given, and is no part of it. So it
        can be compared with what a defense says of one message. The mean is over the last tenth of the steps, at least
        one, of those in which it was measured; of a run of more than 8192 steps, evenly spaced ones count. NaN where
        it is not known what would be sent under another label.
        """
        given = self._errors.kept[:, AUDITORS.index(RATIO)]
        given = given[~np.isnan(given)]
        return float(given[-max(1, math.ceil(LATE * len(given))) :].mean()) if len(given) else math.nan

    @property
    def keepers(self) -> dict[str, ScoreKeeper]:
        """The judges of the attacks on messages, by name."""
        return dict(zip(AUDITORS, (self.linear, self.likelihood, self.ratio), strict=True))


def _nanmin(values: Iterable[float]) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)
