"""Losses of generalised linear models, with the constants on which noise for a privacy loss rests."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.errors import ArgumentError, ConfigError, DataError, PrivacyError, shown
from splitvfl.learning.losses import Link, Loss

GLMLossName = Literal["logistic", "least-squares", "l2-svm", "poisson", "gamma", "normal", "huber"]

_TINY = torch.finfo(torch.float32).tiny

LOSS_NAMES: tuple[GLMLossName, ...] = get_args(GLMLossName)


class LossConstants(NamedTuple):
    """Bounds of the derivative h of a loss for logits ``|t| ≤ Q`` and labels ``|y| ≤ k_y``; infinite without any.

    Attributes:
        lipschitz: L, at least every ``|h(t, y)|``.
        beta_theta: At least every ``|h(t, y) − h(t', y)| / |t − t'|``.
        beta_y: At least every ``|h(t, y) − h(t, y')| / |y − y'|``.
        span: Largest less smallest value of h: how far one record's message may move. At most 2 L, often less.
    """

    lipschitz: float
    beta_theta: float
    beta_y: float
    span: float


class GLMLoss(Loss):
    """A loss of one logit t and one label y, convex in t: the negative log-likelihood of a family, or a margin.

    Beyond the clipped range of logits a loss goes on along its tangent. It stays convex, its derivative is that at the
    clipped logit, and so the constants of the range hold for all logits.

    Args:
        target_clip: k_y: labels are clipped to ``|y| ≤ k_y`` before the loss; ``None``: taken as they are.
        logit_clip: Q: logits are clipped to ``|t| ≤ Q``; ``None``: taken as they are.

    Raises:
        ArgumentError: If a setting is not above 0 and finite.

    Attributes:
        coding: The labels that :meth:`record_loss` and :meth:`derivative` take, in words.
        needed: Settings without which its constants are infinite, where nothing else bounds logits and labels.
    """

    name: ClassVar[GLMLossName]
    coding: ClassVar[str]
    needed: ClassVar[tuple[str, ...]] = ("logit_clip", "target_clip")
    _unclipped_link: ClassVar[Link | None] = "identity"
    _linear: ClassVar[bool] = True

    def __init__(self, *, target_clip: float | None = None, logit_clip: float | None = None) -> None:
        self.target_clip: float | None = _positive("target_clip", target_clip)
        self.logit_clip: float | None = _positive("logit_clip", logit_clip)

    # --- one record

    @abstractmethod
    def _loss(self, t: Tensor, y: Tensor) -> Tensor: ...

    @abstractmethod
    def _derivative(self, t: Tensor, y: Tensor) -> Tensor: ...

    @abstractmethod
    def _mean(self, t: Tensor) -> Tensor: ...

    @property
    def linear_in_targets(self) -> bool:  # type: ignore[override]
        """Whether the gradient is linear in targets of any size; of clipped ones it is not."""
        return self._linear and self.target_clip is None

    @abstractmethod
    def _outside(self, y: Tensor) -> Tensor:
        """Return which labels the loss does not take; all are finite."""

    @abstractmethod
    def _constants(self, logit: float, target: float) -> LossConstants:
        """Return the constants for logits up to one bound and labels up to another, either of which may be infinite."""

    def record_loss(self, t: Tensor, y: Tensor) -> Tensor:
        """Return each record's loss, ``(n,)``.

        Args:
            t: Logits, ``(n,)``.
            y: Labels in the loss's own coding, ``(n,)``: −1 and +1 for ``logistic`` and ``l2-svm``.
        """
        inside, labels = self.clipped(t), self._clipped_targets(y)
        found = self._loss(inside, labels)
        return found if inside is t else found + self._derivative(inside, labels) * (t - inside)

    def derivative(self, t: Tensor, y: Tensor) -> Tensor:
        """Return h, the derivative of each record's loss by its logit, ``(n,)``; arguments as :meth:`record_loss`."""
        return self._derivative(self.clipped(t), self._clipped_targets(y))

    @property
    def link(self) -> Link | None:  # type: ignore[override]
        """What scores are of logits; ``None`` where logits are clipped, and of means that are neither."""
        return self._unclipped_link if self.logit_clip is None else None

    def inverse_link(self, t: Tensor) -> Tensor:
        """Return what is predicted of labels by their logits: the mean of the family, or the margin itself."""
        return self._mean(self.clipped(t))

    def clipped(self, t: Tensor) -> Tensor:
        """Return logits within the range in which the loss is used."""
        if self.logit_clip is None:
            return t
        most = min(self.logit_clip, torch.finfo(t.dtype).max)
        return t.clamp(-most, most)

    def _clipped_targets(self, y: Tensor) -> Tensor:
        return y if self.target_clip is None else y.clamp(-self.target_clip, self.target_clip)

    # --- what noise rests on

    def constants(self, logit_bound: float = math.inf, target_bound: float = math.inf) -> LossConstants:
        """Return L, β_θ and β_y for bounded logits and labels; infinite where these bounds and the clips give none.

        Source: *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*, its table of losses,
        with the exponential family's sign, β_θ and two constants L corrected.

        Args:
            logit_bound: Q, the largest ``|t|``: for m parties whose parts are at most k each, ``m k``.
            target_bound: k_y, the largest ``|y|``; means nothing for labels −1 and +1.

        Raises:
            ArgumentError: If a bound is not above 0.
        """
        if not (logit_bound > 0 and target_bound > 0):
            raise ArgumentError(f"expected bounds above 0, got {logit_bound} for logits and {target_bound} for labels")
        logit = min(logit_bound, self.logit_clip or math.inf)
        return self._constants(logit, min(target_bound, self.target_clip or math.inf))

    def bounded_constants(self, logit_bound: float = math.inf, target_bound: float = math.inf) -> LossConstants:
        """Return :meth:`constants`, all of them finite.

        Raises:
            ArgumentError: If a bound is not above 0.
            PrivacyError: If one is infinite: no noise covers what one label or one record may move. It says which clip
                is missing.
        """
        found = self.constants(logit_bound, target_bound)
        if all(map(math.isfinite, found)):
            return found
        bounds = {"logit_clip": logit_bound, "target_clip": target_bound}
        lacking = [
            name
            for name in self.needed
            if getattr(self, name) is None and not math.isfinite(bounds.get(name, math.inf))
        ]
        raise PrivacyError(
            f"the {self.name} loss has no bounds here (L {found.lipschitz:g}, β_θ {found.beta_theta:g}, β_y "
            f"{found.beta_y:g}), so that no noise covers what one record moves; set {' and '.join(lacking)}"
        )

    # --- the loss of a task

    def labels_of(self, targets: Tensor) -> Tensor:
        """Return a task's labels in the loss's own coding: of a binary task, 0 and 1 become −1 and +1."""
        return 2 * targets - 1 if self.labels == "binary" else targets

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss."""
        return self.record_loss(outputs.squeeze(1), self.labels_of(targets.to(outputs.dtype))).mean()

    def scores(self, outputs: Tensor) -> Tensor:
        """Return :meth:`inverse_link` of the outputs, ``(n,)``."""
        return self.inverse_link(outputs.squeeze(1))

    def check(self, labels: Tensor) -> None:
        """Raise :class:`~splitvfl.errors.DataError` unless it takes these labels of a task."""
        self.check_labels(self.labels_of(labels))

    def check_labels(self, y: Tensor) -> None:
        """Raise :class:`~splitvfl.errors.DataError` unless these labels, in the loss's own coding, are its own."""
        outside = self._outside(y) | ~torch.isfinite(y)
        if outside.any():
            first = int(outside.int().argmax())
            hint = ""
            if self.labels == "binary" and ((y == 0) | (y == 1)).all():
                hint = "; labels 0 and 1: take 2 y − 1"
            error = DataError(
                f"the {self.name} loss takes {self.coding}, got {y[first].item():g} in record {first} (from 0) and "
                f"{int(outside.sum()) - 1} more such{hint}"
            )
            error.row = first
            raise error


class LogisticLoss(GLMLoss):
    """Logistic loss, ``log(1 + exp(−y t))``, of labels −1 and +1: ``h = (S(y t) − 1) y``.

    Other targets get what is linear between these two, ``h = S(t) − (1 + y) / 2``.

    Args:
        logit_clip: As :class:`GLMLoss`.
    """

    name = "logistic"
    labels = "binary"
    coding = "labels −1 and +1"
    needed = ()
    _unclipped_link = "sigmoid"
    is_logistic = True

    def __init__(self, *, logit_clip: float | None = None) -> None:
        super().__init__(logit_clip=logit_clip)

    def _loss(self, t: Tensor, y: Tensor) -> Tensor:
        positive = (1 + y) / 2
        return -positive * functional.logsigmoid(t) - (1 - positive) * functional.logsigmoid(-t)

    def _derivative(self, t: Tensor, y: Tensor) -> Tensor:
        # S(t) − 1 = −S(−t): the difference would round to 0 for large t.
        positive = (1 + y) / 2
        return (1 - positive) * torch.sigmoid(t) - positive * torch.sigmoid(-t)

    def _mean(self, t: Tensor) -> Tensor:
        return torch.sigmoid(t)

    def _outside(self, y: Tensor) -> Tensor:
        return y.abs() != 1

    def _constants(self, logit: float, target: float) -> LossConstants:
        return LossConstants(1.0, 0.25, 0.5, 1 + math.tanh(logit / 2))


class L2SVMLoss(GLMLoss):
    """Squared hinge, ``max(0, 1 − y t)²``, of labels −1 and +1: ``h = −2 y max(0, 1 − y t)``. Scores are margins.

    Args:
        logit_clip: As :class:`GLMLoss`.
    """

    name = "l2-svm"
    labels = "binary"
    coding = "labels −1 and +1"
    needed = ("logit_clip",)
    _linear = False

    def __init__(self, *, logit_clip: float | None = None) -> None:
        super().__init__(logit_clip=logit_clip)

    def _loss(self, t: Tensor, y: Tensor) -> Tensor:
        return (1 - y * t).clamp(min=0).square()

    def _derivative(self, t: Tensor, y: Tensor) -> Tensor:
        return -2 * y * (1 - y * t).clamp(min=0)

    def _mean(self, t: Tensor) -> Tensor:
        return t

    def _outside(self, y: Tensor) -> Tensor:
        return y.abs() != 1

    def _constants(self, logit: float, target: float) -> LossConstants:
        return LossConstants(2 * (1 + logit), 2.0, max(2.0, 1 + logit), 4 * (1 + logit))


class LeastSquaresLoss(GLMLoss):
    """Squared error, ``(y − t)²``: ``h = −2 (y − t)``.

    Args:
        target_clip: As :class:`GLMLoss`.
        logit_clip: As :class:`GLMLoss`.
    """

    name = "least-squares"
    labels = "regression"
    coding = "finite labels"

    def _loss(self, t: Tensor, y: Tensor) -> Tensor:
        return (y - t).square()

    def _derivative(self, t: Tensor, y: Tensor) -> Tensor:
        return -2 * (y - t)

    def _mean(self, t: Tensor) -> Tensor:
        return t

    def _outside(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y, dtype=torch.bool)

    def _constants(self, logit: float, target: float) -> LossConstants:
        return LossConstants(2 * (target + logit), 2.0, 2.0, 4 * (target + logit))


class HuberLoss(GLMLoss):
    """Huber's loss with threshold c: ``h = clip(t − y, −c, c)``.

    It is ``(t − y)² / 2`` where ``|t − y| ≤ c``, and ``c |t − y| − c² / 2`` beyond.

    Args:
        threshold: c, in the unit of the label.
        target_clip: As :class:`GLMLoss`.
        logit_clip: As :class:`GLMLoss`.
    """

    name = "huber"
    labels = "regression"
    coding = "finite labels"
    needed = ()
    _linear = False

    def __init__(
        self, *, threshold: float = 1.0, target_clip: float | None = None, logit_clip: float | None = None
    ) -> None:
        super().__init__(target_clip=target_clip, logit_clip=logit_clip)
        self.threshold: float = _positive("threshold", threshold)

    def _loss(self, t: Tensor, y: Tensor) -> Tensor:
        return functional.huber_loss(t, y, reduction="none", delta=self.threshold)

    def _derivative(self, t: Tensor, y: Tensor) -> Tensor:
        return (t - y).clamp(-self.threshold, self.threshold)

    def _mean(self, t: Tensor) -> Tensor:
        return t

    def _outside(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y, dtype=torch.bool)

    def _constants(self, logit: float, target: float) -> LossConstants:
        return LossConstants(self.threshold, 1.0, 1.0, 2 * min(self.threshold, logit + target))


class _ExponentialFamily(GLMLoss):
    """Negative log-likelihood ``(b(t) − y t) / a − c(y)`` with the canonical link: ``h = (b'(t) − y) / a``.

    Targets beyond the family's labels, as label defenses answer, count in c as those at the edge: it moves no weight.

    Args:
        dispersion: a.
        target_clip: As :class:`GLMLoss`.
        logit_clip: As :class:`GLMLoss`.
    """

    def __init__(
        self, *, dispersion: float = 1.0, target_clip: float | None = None, logit_clip: float | None = None
    ) -> None:
        super().__init__(target_clip=target_clip, logit_clip=logit_clip)
        self.dispersion: float = _positive("dispersion", dispersion)

    @abstractmethod
    def _cumulant(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _log_base(self, y: Tensor) -> Tensor: ...

    def _loss(self, t: Tensor, y: Tensor) -> Tensor:
        return (self._cumulant(t) - y * t) / self.dispersion - self._log_base(y)

    def _derivative(self, t: Tensor, y: Tensor) -> Tensor:
        return (self._mean(t) - y) / self.dispersion

    def _deviance(self, mean: Tensor, y: Tensor) -> Tensor:
        """Return each record's unit deviance, up to a factor."""
        raise NotImplementedError(f"{type(self).__name__} has no metric of its own")

    def measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the share of the deviance that is explained, ``1 − D(labels, means) / D(labels, their mean)``.

        It is R² with the family's deviance in place of squares: 1 at best, 0 of the mean label for everybody, NaN where
        labels do not vary. Labels are not clipped.
        """
        return self.measure_scores(self.scores(outputs.double()), labels)

    def measure_scores(self, scores: Tensor, labels: Tensor) -> float:
        """Return the same of means, ``(n,)``."""
        truth = labels.double()
        left = self._deviance(scores.double(), truth).sum().item()
        spread = self._deviance(truth.mean().expand(len(truth)), truth).sum().item()
        return 1.0 - left / spread if spread > 0 else math.nan


class NormalLoss(_ExponentialFamily):
    """Negative log-likelihood of normal labels with mean t and variance a: ``h = (t − y) / a``.

    Args:
        dispersion: a, the variance.
        target_clip: As :class:`GLMLoss`.
        logit_clip: As :class:`GLMLoss`.
    """

    name = "normal"
    labels = "regression"
    coding = "finite labels"

    def _cumulant(self, t: Tensor) -> Tensor:
        return t.square() / 2

    def _mean(self, t: Tensor) -> Tensor:
        return t

    def _log_base(self, y: Tensor) -> Tensor:
        return -(y.square() / self.dispersion + math.log(2 * math.pi * self.dispersion)) / 2

    def _outside(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y, dtype=torch.bool)

    def _constants(self, logit: float, target: float) -> LossConstants:
        a = self.dispersion
        return LossConstants((target + logit) / a, 1 / a, 1 / a, 2 * (target + logit) / a)


class PoissonLoss(_ExponentialFamily):
    """Negative log-likelihood of counts with mean ``exp(t)``: ``h = exp(t) − y``.

    Args:
        target_clip: As :class:`GLMLoss`.
        logit_clip: As :class:`GLMLoss`.
    """

    name = "poisson"
    labels = "regression"
    coding = "counts: 0, 1, 2 …"
    metric = "d2"
    family = "poisson"
    _unclipped_link = None

    def __init__(self, *, target_clip: float | None = None, logit_clip: float | None = None) -> None:
        super().__init__(target_clip=target_clip, logit_clip=logit_clip)

    def _cumulant(self, t: Tensor) -> Tensor:
        return t.exp()

    def _mean(self, t: Tensor) -> Tensor:
        return t.exp()

    def _log_base(self, y: Tensor) -> Tensor:
        return -torch.lgamma(y.clamp(min=0) + 1)

    def _deviance(self, mean: Tensor, y: Tensor) -> Tensor:
        return torch.xlogy(y, y / mean) - y + mean

    def _outside(self, y: Tensor) -> Tensor:
        return (y < 0) | (y != y.round())

    def _constants(self, logit: float, target: float) -> LossConstants:
        most, least = _exp(logit), _exp(-logit)
        return LossConstants(max(most, target - least), most, 1.0, most - least + target)


class GammaLoss(_ExponentialFamily):
    """Negative log-likelihood of positive labels with mean ``−1 / t`` and shape ``1 / a``: ``h = (−1 / t − y) / a``.

    Logits are below 0: an intercept starts at −1, as zero weights would give 0.

    Args:
        dispersion: a, one over the shape.
        target_clip: As :class:`GLMLoss`.
        logit_clip: Q: logits below −Q count as −Q.
        logit_margin: t_min: logits above −t_min count as −t_min, so that no mean exceeds ``1 / t_min``; ``None``: a
            logit from 0 is an error.
    """

    name = "gamma"
    labels = "regression"
    coding = "labels above 0"
    needed = ("logit_margin", "target_clip")
    metric = "d2"
    family = "gamma"
    _unclipped_link = None

    def __init__(
        self,
        *,
        dispersion: float = 1.0,
        target_clip: float | None = None,
        logit_clip: float | None = None,
        logit_margin: float | None = None,
    ) -> None:
        super().__init__(dispersion=dispersion, target_clip=target_clip, logit_clip=logit_clip)
        self.logit_margin: float | None = _positive("logit_margin", logit_margin)
        if self.logit_margin is not None and self.logit_margin >= (self.logit_clip or math.inf):
            raise ArgumentError(
                f"expected logit_margin below logit_clip, got {self.logit_margin:g} and {self.logit_clip:g}"
            )

    def clipped(self, t: Tensor) -> Tensor:
        """Return logits within the range in which the loss is used.

        Raises:
            ConfigError: If one is 0 or above, and there is no ``logit_margin``.
        """
        if self.logit_margin is None and (t >= 0).any():
            count, most = int((t >= 0).sum()), t.max().item()
            raise ConfigError(
                f"the gamma loss needs logits below 0, as their mean is −1 / logit; {count} of {t.numel()} are not, up "
                f"to {most:g}: begin with init: zero (the intercept starts at −1, a mean of 1), divide labels by their "
                "usual size, lower train.optimizer.lr, or set logit_margin, above which logits count as −logit_margin"
            )
        low = None if self.logit_clip is None else -self.logit_clip
        high = None if self.logit_margin is None else -self.logit_margin
        return t if low is None and high is None else t.clamp(low, high)

    def _cumulant(self, t: Tensor) -> Tensor:
        return -torch.log(-t)

    def _mean(self, t: Tensor) -> Tensor:
        return -1 / t

    def _log_base(self, y: Tensor) -> Tensor:
        shape = 1 / self.dispersion
        return shape * math.log(shape) + (shape - 1) * y.clamp(min=_TINY).log() - math.lgamma(shape)

    def _deviance(self, mean: Tensor, y: Tensor) -> Tensor:
        return (y - mean) / mean - torch.log(y / mean)

    def _outside(self, y: Tensor) -> Tensor:
        return y <= 0

    def _constants(self, logit: float, target: float) -> LossConstants:
        a, margin = self.dispersion, self.logit_margin
        if margin is None:
            return LossConstants(math.inf, math.inf, 1 / a, math.inf)
        if margin >= logit:
            raise ArgumentError(f"expected a bound of logits above logit_margin, {margin:g}, got {logit:g}")
        return LossConstants(
            max(1 / margin, target - 1 / logit) / a,
            1 / (a * margin**2),
            1 / a,
            (1 / margin - 1 / logit + target) / a,
        )


_LOSSES: Mapping[GLMLossName, Callable[..., GLMLoss]] = {
    loss.name: loss
    for loss in (LogisticLoss, LeastSquaresLoss, L2SVMLoss, PoissonLoss, GammaLoss, NormalLoss, HuberLoss)
}


def glm_loss(name: GLMLossName, **settings: float | None) -> GLMLoss:
    """Return the loss of that name.

    Args:
        name: ``"logistic"``, ``"least-squares"``, ``"l2-svm"``, ``"poisson"``, ``"gamma"``, ``"normal"`` or
            ``"huber"``.
        settings: What its constructor takes; ``None`` leaves a setting out.

    Raises:
        ArgumentError: If there is no such loss, it has no such setting, or a setting is out of range.

    >>> glm_loss("huber", threshold=2.0).constants()
    LossConstants(lipschitz=2.0, beta_theta=1.0, beta_y=1.0, span=4.0)
    """
    if name not in _LOSSES:
        raise ArgumentError(f"loss must be one of {', '.join(LOSS_NAMES)}, got {shown(name)}")
    given = {key: value for key, value in settings.items() if value is not None}
    taken = inspect.signature(_LOSSES[name]).parameters
    for key in given:
        if key not in taken:
            raise ArgumentError(f"the {name} loss takes no {key}, but {' and '.join(taken)}; leave it out")
    return _LOSSES[name](**given)


def _positive(name: str, value: float | None) -> Any:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise ArgumentError(f"expected {name} above 0 and finite, got {shown(value)}")
    return value


def _exp(value: float) -> float:
    """Return e to that power, infinite where a float cannot hold it."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
