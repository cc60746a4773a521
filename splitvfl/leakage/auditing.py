"""The auditor's attack: what the label party, who knows everything, can read in its own messages.

A defense that only hides labels from a weak attacker is no defense. The auditor therefore attacks with what no
partner has: the labels of the batch and the clean gradients. What it finds bounds the leak from below; a proof, where
a defense has one, bounds it from above.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from splitvfl.label_gradients import LabelGradients
from splitvfl.leakage.canaries import Canaries, CanaryLeak
from splitvfl.leakage.judging import Handle, LeakSummary, ScoreKeeper, nanmax, real_rows, worst_of
from splitvfl.metrics import detection_error

# Memory of the likelihood's moments: about the last twenty steps count.
_DECAY = 0.95
# Energy off the axis is floored at this share of the batch's mean energy, so that rounding noise has no shape.
_FLOOR = 1e-9
# Ridge on the features' covariance: relative to their pooled variance, and absolute (features are of order one, and
# without noise the second one is constant).
_RIDGE = 1e-3
_LEAST_RIDGE = 1e-6
_LEAST_WEIGHT = 4.0


class AuditScores(NamedTuple):
    """What the auditor reads in one message.

    Attributes:
        linear: Projections on the clean Δg, in units of the batch's root mean square norm, ``(n,)`` float64.
        likelihood: Log likelihood ratios, ``(n,)`` float64; the linear scores while too little was seen to fit them.
        fitted: Whether enough was seen for likelihoods; a record is then called positive if it scores above 0.
    """

    linear: Tensor
    likelihood: Tensor
    fitted: bool


class Auditor:
    """Scores every row of a sent batch in two ways.

    *Linear*: the projection on the clean Δg, the difference of this batch's class means before any defense of the
    gradient. The direction is an oracle's; no linear attacker knows a better one under equal class covariances. Where a
    label defense has answered, the classes are those of its answers: an axis between the true classes would carry
    labels of this very batch into the scores that are judged by them, and find a leak where nothing was sent.

    *Likelihood*: the log ratio of two Gaussians on (projection on Δg, log energy off Δg), both in units of the batch's
    root mean square norm, fitted per class on **earlier steps only** with exponential forgetting. It sees what a
    linear attacker cannot: a class that is marked by more noise.

    It is an attack, not a proof: a leak that it does not find may still be there.
    """

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

        Returns:
            ``None`` when the batch, canaries aside, holds one class only, of labels or of responses: there is no Δg.
        """
        known = slice(None) if canary is None else ~canary.to(labels.device)
        positive = labels.reshape(-1)[known] == 1
        answered = positive if responses is None else responses.reshape(-1)[known] == 1
        axis = class_axis(clean[known], answered)
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

    def state_dict(self) -> dict[str, Any]:
        """Return the moments."""
        return {"weight": self._weight.clone(), "sum": self._sum.clone(), "square": self._square.clone()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._weight, self._sum, self._square = (state[name].clone() for name in ("weight", "sum", "square"))


def of_real_rows(
    clean: Tensor, sent: Tensor, labels: Tensor, ids: Tensor | None, responses: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the same without the rows that have no label to be judged by, NaN."""
    real = real_rows(labels)
    if real is None:
        return clean, sent, labels, ids, responses
    ids, responses = (None if own is None else own[real.to(own.device)] for own in (ids, responses))
    return clean[real.to(clean.device)], sent[real.to(sent.device)], labels.reshape(-1)[real], ids, responses


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


class Audit(Handle):
    """The auditor's attack being judged: what ``audit`` returns.

    Args:
        remove: Called when the audit is detached.
        canaries: Which records have coin-toss labels: judged apart. Default: none.

    Attributes:
        linear: Judge of the projection on the clean Δg.
        likelihood: Judge of the likelihood ratio.
        seconds: Time spent on attacking and judging.
    """

    def __init__(self, *, remove: Callable[[], None] = lambda: None, canaries: Canaries | None = None) -> None:
        super().__init__(remove)
        self.auditor = Auditor()
        self._canaries = canaries
        self.linear = ScoreKeeper(canaries=canaries)
        self.likelihood = ScoreKeeper(canaries=canaries)
        self.seconds = 0.0
        self._errors = [0.0, 0.0]
        self._measured = 0

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
        """Attack one message with everything that the label party knows; ``responses`` as :class:`Auditor`."""
        started = time.perf_counter()
        clean, sent, labels, ids, responses = of_real_rows(clean, sent, labels, ids, responses)
        canary = None if self._canaries is None else self._canaries.among_rows(ids)
        self._judge(self.auditor(clean, sent, labels, responses, canary=canary), labels, ids, canary)
        self.seconds += time.perf_counter() - started

    def _judge(
        self, scores: AuditScores | None, labels: Tensor, ids: Tensor | None, canary: Tensor | None = None
    ) -> None:
        if scores is None:
            # No Δg: there is nothing that the auditor could have scored or left out, and nothing to judge.
            nothing = torch.full(labels.reshape(-1).shape, math.nan)
            self.linear.add(ids, nothing, nothing)
            self.likelihood.add(ids, nothing, nothing)
            return
        self.linear.add(ids, scores.linear, labels)
        self.likelihood.add(ids, scores.likelihood, labels)
        if scores.fitted:
            real = slice(None) if canary is None else ~canary
            for number, values in enumerate((scores.linear, scores.likelihood)):
                self._errors[number] += detection_error(values[real], labels.cpu()[real], threshold=0.0)
            self._measured += 1

    @property
    def detection_error(self) -> float:
        """Mean ½(FPR + FNR) of calling positive what scores above 0, by the better of both attacks; NaN before any.

        The projection of a clean gradient changes its sign with the label; the likelihood ratio weighs what earlier
        steps have shown. Which attack counts is decided for the whole run, never per batch.
        """
        return min(self._errors) / self._measured if self._measured else math.nan

    @property
    def keepers(self) -> dict[str, ScoreKeeper]:
        """The judges of both attacks, by name."""
        return {"auditor-linear": self.linear, "auditor-likelihood": self.likelihood}

    @property
    def summaries(self) -> dict[str, LeakSummary]:
        """Figures of both attacks, by name."""
        return {name: keeper.summary() for name, keeper in self.keepers.items()}

    @property
    def worst(self) -> float:
        """The larger leak AUC of the two attacks, per step or accumulated."""
        return nanmax(*(summary.worst for summary in self.summaries.values()))

    @property
    def canaries(self) -> CanaryLeak | None:
        """What its messages gave away of the canaries' labels: the leak beyond prediction; ``None`` without canaries.

        The figures of the better attack. As the better of two it is chosen on the canaries themselves, so the interval
        is that of both at once: each of them has half of the share that may be wrong.
        """
        return worst_of(self.keepers.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the attack and of its judges."""
        return {
            "auditor": self.auditor.state_dict(),
            "linear": self.linear.state_dict(),
            "likelihood": self.likelihood.state_dict(),
            "errors": list(self._errors),
            "measured": self._measured,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self.auditor.load_state_dict(state["auditor"])
        self.linear.load_state_dict(state["linear"])
        self.likelihood.load_state_dict(state["likelihood"])
        self._errors, self._measured = list(state["errors"]), state["measured"]
