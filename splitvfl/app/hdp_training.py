"""The training that HDP-VFL's noise is calculated for: what of an experiment it refuses, and what its theorem needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from splitvfl.app.batching import Batching
from splitvfl.app.noise_basis import NoiseBasis
from splitvfl.errors import ArgumentError, ConfigError, PrivacyError
from splitvfl.exchange.noise import HdpNoiseSettings
from splitvfl.exchange.receiver_clips import NO_CLIPS
from splitvfl.hooks import Phase
from splitvfl.learning.glm_losses import GLMLoss, LogisticLoss, LossConstants
from splitvfl.learning.optimizers import ProjectedSteps, projected_steps
from splitvfl.privacy.sensitivity import HdpTraining


@dataclass(frozen=True)
class PrivateTraining:
    """A training that noise can be calculated for.

    Attributes:
        names: The parties, the label party first.
        batching: How long, in batches of how many, and how often it is evaluated.
        steps: The optimiser's.
        loss: The loss.
        constants: Its bounds, for logits as large as parties' parts can be together.
        norm: Largest norm of a row of numbers.
        intercept: Whether the label party learns one, which is a column of ones.
        passive: How far one row of a passive party moves what it sends.
        active: How far one row and label of the label party move what it sends.
        label: How far one label does.
    """

    names: tuple[str, ...]
    batching: Batching
    steps: ProjectedSteps
    loss: GLMLoss
    constants: LossConstants
    norm: float
    intercept: bool
    passive: HdpTraining
    active: HdpTraining
    label: HdpTraining


def private_training(basis: NoiseBasis, settings: HdpNoiseSettings) -> PrivateTraining:
    """Return a training in exchange split, with what noise is calculated from.

    Args:
        basis: The training.
        settings: What was agreed.

    Raises:
        ConfigError: If it is not one that noise can be calculated for.
    """
    shares: dict[Phase, float] = {"evaluation": settings.evaluation_share, "prediction": settings.prediction_share}
    _check_training(basis, counted_phases=("training", *(phase for phase, share in shares.items() if share)))
    norm, intercept = _checked_rows(basis)
    steps = _checked_steps(basis, settings.radius)
    loss = _loss_of(basis)
    if settings.calibration == "as-printed" and not isinstance(loss, LogisticLoss):
        raise ConfigError(
            f"{basis.source}: exchange.noise.calibration: the paper prints the constant of as-printed for the "
            f"logistic loss alone, and model.loss is {loss.name}; take published"
        )
    names = basis.names
    # The intercept is a column of ones, and its weight in the ball.
    own_norm = math.hypot(norm, 1.0) if intercept else norm
    try:
        reach = settings.radius * (own_norm + (len(names) - 1) * norm)
        constants = loss.bounded_constants(reach, 1.0 if loss.labels == "binary" else math.inf)
    except (ArgumentError, PrivacyError) as error:
        raise ConfigError(f"{basis.source}: model: {error}") from error
    batching = basis.batching
    common: dict[str, Any] = {
        "steps_per_epoch": batching.each,
        "batch_size": batching.size,
        "last_batch": batching.last,
        "eta": steps.lr,
        "k": settings.radius,
        "lipschitz": constants.lipschitz,
        "weight_decay": steps.weight_decay,
    }
    own: dict[str, Any] = {
        "beta_theta": constants.beta_theta,
        "beta_y": constants.beta_y,
        "k_y": _largest_target(loss, constants),
        "step": _exact_range(loss, constants, settings.radius * own_norm),
        # The proximal factor leaves an intercept alone.
        "proximal_l2": 0.0 if intercept else steps.l2,
        "row_norm": own_norm,
    }
    try:
        passive = HdpTraining(party="passive", **common, proximal_l2=steps.l2, row_norm=norm)
        active = HdpTraining(party="active", **common, **own)
        label = HdpTraining(party="active", **common, **own, changed="label")
    except ArgumentError as error:
        raise ConfigError(f"{basis.source}: train.optimizer.lr: {error}") from error
    return PrivateTraining(names, batching, steps, loss, constants, norm, intercept, passive, active, label)


def _check_training(basis: NoiseBasis, *, counted_phases: tuple[Phase, ...]) -> None:
    source = basis.source
    if getattr(basis.exchange, "receiver_clips", NO_CLIPS) != NO_CLIPS:
        raise ConfigError(
            f"{source}: exchange.receiver_clips: exchange.noise sets what receivers clip, by its radius and the loss; "
            "leave it out"
        )
    if basis.early_stopping:
        raise ConfigError(
            f"{source}: train.early_stopping: it looks at true labels and at activations without noise, and what ends "
            "the training is seen by all; with exchange.noise the number of epochs is fixed: leave it out"
        )
    if basis.autocast:
        raise ConfigError(
            f"{source}: train.autocast: bounds on which exchange.noise rests are of float32; leave it out"
        )
    for index, (name, crossing, phases) in enumerate(basis.defenses):
        changes = any(phase in phases for phase in counted_phases)
        if crossing in ("gradient", "labels") or (crossing == "activation" and changes):
            raise ConfigError(
                f"{source}: defenses.{index}: {name} changes what crosses in training, and exchange.noise is "
                "calculated for what the loss and the models send; leave it out"
                + (" (or give it at: [evaluation, prediction])" if crossing == "activation" else "")
            )


def _checked_rows(basis: NoiseBasis) -> tuple[float, bool]:
    """Return the largest norm of a row of numbers, and whether the label party learns an intercept beside."""
    source = basis.source
    if not basis.linear or basis.private_top:
        key = "model.private_top" if basis.private_top else "model"
        raise ConfigError(
            f"{source}: {key}: exchange.noise is calculated for one linear layer at every party; take "
            "logistic-regression or glm, without private_top"
        )
    if basis.row_norm is None:
        raise ConfigError(
            f"{source}: model.row_norm: exchange.noise is calculated for rows of bounded norm; with row_norm: 1.0 "
            "longer rows are scaled down to it"
        )
    return basis.row_norm, basis.intercept


def _checked_steps(basis: NoiseBasis, radius: float) -> ProjectedSteps:
    source = f"{basis.source}: train.optimizer"
    steps = projected_steps(basis.optimizer)
    if steps is None:
        raise ConfigError(
            f"{source}: exchange.noise is calculated for steps along the gradient of one batch; take sgd without "
            "momentum, or proximal-sgd"
        )
    if steps.radius not in (None, radius):
        raise ConfigError(
            f"{source}.radius: exchange.noise.radius is {radius:g}, and here it is {steps.radius:g}; leave it out here"
        )
    return steps


def _loss_of(basis: NoiseBasis) -> GLMLoss:
    if basis.own_loss:
        raise ConfigError(
            f"{basis.source}: train.loss: exchange.noise is calculated for the logistic loss, or for that of model "
            "glm, which all parties know; leave it out"
        )
    own = basis.model_loss
    if own is None:
        return LogisticLoss()
    if not isinstance(own, GLMLoss):
        raise ConfigError(f"{basis.source}: model: no bounds are known of the loss {type(own).__name__}; take glm")
    return own


def _largest_target(loss: GLMLoss, constants: LossConstants) -> float:
    """Return the largest label; where nothing bounds it, one from which on the derivative is bounded by L alone."""
    if loss.labels == "binary":
        return 1.0
    return constants.lipschitz / constants.beta_y if loss.target_clip is None else loss.target_clip


def _exact_range(loss: GLMLoss, constants: LossConstants, reach: float) -> float:
    """Return how far a changed row and label can move one derivative, given what the others sent."""
    # Of the logistic loss it is largest where the others' parts add up to nothing.
    return min(constants.span, 1.0 + math.tanh(reach / 2.0)) if isinstance(loss, LogisticLoss) else constants.span
