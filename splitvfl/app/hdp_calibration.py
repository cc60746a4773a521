"""HDP-VFL: from what parties agree on (ε, δ) to the noise of split training.

The noise is calculated from how far one row moves all that a party sends (:mod:`splitvfl.privacy.sensitivity`), or it
is given, and the account says how far it goes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from splitvfl.app.batching import Batching
from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.app.hdp_training import private_training
from splitvfl.app.noise_basis import NoiseBasis
from splitvfl.app.noise_stream import Stream, least_sigma, rounded_up
from splitvfl.errors import ConfigError, PrivacyError
from splitvfl.exchange.noise import Calibration, HdpNoiseSettings
from splitvfl.privacy.sensitivity import HdpTraining, hdp_sensitivity

PRINTED_BETA_Y = 1.1
"""The paper's bound on the slope of the logistic loss's derivative in the label, for all labels from -1 to +1."""


def hdp_plan(basis: NoiseBasis, settings: HdpNoiseSettings) -> HdpPlan:
    """Return the noise of a training in exchange split.

    Args:
        basis: The training.
        settings: What was agreed.

    Raises:
        ConfigError: If the training is not one that noise can be calculated for.
    """
    training = private_training(basis, settings)
    batching = training.batching
    try:
        passive, active = (
            _stream(settings, recursion, batching, clip)
            for recursion, clip in (
                (training.passive, settings.radius * training.norm),
                (training.active, training.constants.lipschitz),
            )
        )
    except PrivacyError as error:
        raise ConfigError(f"{basis.source}: exchange.noise: {error}") from error
    plan = HdpPlan(
        settings=settings,
        names=training.names,
        training=batching,
        steps=training.steps,
        loss=training.loss,
        constants=training.constants,
        norm=training.norm,
        intercept=training.intercept,
        own_part=basis.exchange.own_part,
        passive=passive,
        active=active,
        label=replace(active, sensitivity=training.label.sensitivity(batching.steps)),
        ends=batching.steps,
        fixed=basis.fixed,
        recursions={"passive": training.passive, "active": training.active, "label": training.label},
    )
    return _until_overspent(plan, basis.source) if settings.is_budget else plan


def _until_overspent(plan: HdpPlan, source: str) -> HdpPlan:
    """Return the plan of given noise, as far as its budget goes."""
    budget, agreed = plan.budget(), plan.settings
    last = budget.last_step
    if not last:
        raise ConfigError(
            f"{source}: exchange.noise: no step fits: one with so little noise spends more than ε "
            f"{agreed.epsilon:g} at δ {agreed.delta:g}; take larger active_sigma and passive_sigma, or leave them out, "
            "and they are calculated"
        )
    begun = math.ceil(last / plan.training.each)

    def taken(stream: Stream, of: str) -> Stream:
        recursion = plan.recursions[of]
        moved, numbers = recursion.sensitivity(last), float(recursion.numbers(last).sum())
        return replace(stream, sensitivity=moved, numbers=numbers)

    return replace(
        plan,
        training=replace(plan.training, evaluated=math.ceil(begun / plan.training.every)),
        passive=taken(plan.passive, "passive"),
        active=taken(plan.active, "active"),
        label=taken(plan.label, "label"),
        ends=last,
    )


def _stream(settings: HdpNoiseSettings, training: HdpTraining, batching: Batching, clip: float) -> Stream:
    epsilon, delta = settings.epsilon, settings.delta
    # Of given noise the account says how far it goes, by the same recursion.
    tight = settings.calibration == "tight"
    moved = training.sensitivity(batching.steps) if tight else _published(training, batching, settings.calibration)
    whole = Stream(moved, moved, delta, float(training.numbers(batching.steps).sum()), clip)
    if training.party == "passive":
        whole = _with_releases(whole, training, batching, settings)
    given = settings.passive_sigma if training.party == "passive" else settings.active_sigma
    if given is not None:
        return replace(whole, sigma=given)
    if settings.by_textbook:
        sigma = math.sqrt(2.0 * math.log(1.25 / delta)) * moved / epsilon
    else:
        sigma = least_sigma(whole, epsilon, delta)
    found = whole.with_sigma(rounded_up(sigma)).rounded_up()
    return replace(found, delta=max(delta, found.delta_at(epsilon)))


def _with_releases(whole: Stream, training: HdpTraining, batching: Batching, settings: HdpNoiseSettings) -> Stream:
    """Return a passive party's messages with those of evaluations and predictions, whose noise takes shares of μ²."""
    shares: dict[str, tuple[float, int, tuple[int, ...]]] = {}
    if settings.evaluation_share and batching.tested:
        shares["evaluations"] = settings.evaluation_share, batching.tested, batching.evaluated_after
    if settings.predictions is not None:
        shares["predictions"] = settings.prediction_share, settings.predictions, (batching.steps,)
    left = 1.0 - math.fsum(share for share, _, _ in shares.values())
    besides: dict[str, Any] = {}
    for name, (share, records, after) in shares.items():
        farthest = [training.moved(steps) for steps in after]
        moved = math.sqrt(records * math.fsum(each**2 for each in farthest))
        # Δ / σ of training is √left of μ, and this √share.
        sigma = whole.sigma * (moved / whole.sensitivity) * math.sqrt(left / share)
        numbers = float(records * len(farthest))
        besides[name] = Stream(moved, sigma, whole.delta, numbers, min(whole.clip, max(farthest) / 2))
    return replace(whole, **besides)


def _published(training: HdpTraining, batching: Batching, calibration: Calibration) -> float:
    """Return the sensitivity as published, which knows neither penalties nor balls, and batches of one size only.

    It is for rows of norm 1. A row of R x with weights w is one of x with weights R w, whose steps are R² as long.
    """
    norm = training.row_norm
    own = {name: getattr(training, name) for name in ("beta_theta", "beta_y", "k_y")}
    if calibration == "as-printed":
        own["beta_y"] = PRINTED_BETA_Y
    return hdp_sensitivity(
        training.party,
        steps=batching.steps,
        epochs=batching.epochs,
        batch_size=min(batching.size, batching.last),
        eta=training.eta * norm**2,
        k=training.k * norm,
        lipschitz=training.lipschitz,
        **(own if training.party == "active" else {}),
    )
