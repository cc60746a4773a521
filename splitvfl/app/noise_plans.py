"""From what parties agree on a privacy loss to each one's noise, whichever exchange it is for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, assert_never

from splitvfl.app.hdp_calibration import hdp_plan
from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.app.noise import NoisePlan, noise_plan
from splitvfl.app.noise_basis import NoiseBasis
from splitvfl.app.sum_noise import SumNoisePlan, sum_noise_plan
from splitvfl.config.sections import ExperimentConfig
from splitvfl.data.columns import PartyData
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.noise import HdpNoiseSettings, NoiseSettings
from splitvfl.hooks import At, Defense
from splitvfl.learning.tasks import Task
from splitvfl.privacy.accounting import PrivacyBudget
from splitvfl.report.releases import Reserve


class Plan(Protocol):
    """Noise that was calculated for a training: what parties agree on, what they attach, and what is said of it."""

    @property
    def name(self) -> str:
        """What it is called beside a run's figures."""
        ...

    @property
    def radius(self) -> float | None:
        """Largest norm of a party's weights; ``None``: any."""
        ...

    @property
    def fixed_seeds(self) -> bool:
        """Whether a deployed party may draw it from a fixed seed."""
        ...

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party, by the names under which it is compared."""
        ...

    def supplied(self, exchange: Exchange) -> Mapping[str, Any]:
        """Return what an exchange has in the place of what was agreed, by the names of its settings."""
        ...

    def budget(self) -> PrivacyBudget | None:
        """Return the account of what a run spends, ``None`` where none is kept."""
        ...

    @property
    def reserve(self) -> Reserve | None:
        """What is put by for predictions after the training; ``None`` where nothing is."""
        ...

    def defenses(self) -> list[Defense | At]:
        """Return the noise as defenses, each for the party that it belongs to."""
        ...

    def check(self, data: PartyData, task: Task) -> None:
        """Refuse data or a task for which the noise was not calculated.

        Raises:
            ConfigError: If they are such.
        """
        ...

    def notes(self, parties: Mapping[str, PartyData]) -> list[str]:
        """Return what is to be known beside the figures of a run, in sentences.

        Args:
            parties: The data of the parties that this process has, by name.
        """
        ...


CalculatedNoise: TypeAlias = NoisePlan | HdpPlan | SumNoisePlan
"""Every kind of it."""


def plan_of(config: ExperimentConfig, data: PartyData) -> CalculatedNoise | None:
    """Return the noise of an experiment, ``None`` without any.

    Args:
        config: The experiment.
        data: Any party's data: they have equally many records.

    Raises:
        ConfigError: If the training is not one that the noise can be calculated for.
    """
    return plan_for(NoiseBasis.of_file(config, data))


def plan_for(basis: NoiseBasis) -> CalculatedNoise | None:
    """Return the noise of a training, ``None`` without any.

    Raises:
        ConfigError: If the training is not one that the noise can be calculated for.
    """
    settings = basis.exchange.noise
    if basis.exchange.sum_noise is not None:
        return sum_noise_plan(basis, basis.exchange.sum_noise)
    match settings:
        case None:
            return None
        case NoiseSettings():
            return noise_plan(basis, settings)
        case HdpNoiseSettings():
            return hdp_plan(basis, settings)
        case _:
            assert_never(settings)


_E = TypeVar("_E", bound=Exchange)


def with_noise(exchange: _E, plan: Plan) -> _E:
    """Return an exchange with what was calculated for it; it knows then that nothing is left to be."""
    found = copy.copy(exchange)
    for name, value in plan.supplied(exchange).items():
        setattr(found, name, value)
    found.noise_is_planned = True
    return found
