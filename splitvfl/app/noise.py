"""DP-Paillier-MGD: from what parties agree on (ε, δ) to each one's noise, and to what is to be said of it.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from splitvfl.app.noise_basis import NoiseBasis
from splitvfl.config.registry import built_in
from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.noise import NoiseSettings
from splitvfl.exchange.paillier import EncryptedExchange
from splitvfl.hooks import At, Defense
from splitvfl.learning.optimizers import plain_rate
from splitvfl.learning.tasks import Task
from splitvfl.privacy.dp_paillier import (
    PartyLetter,
    corrected_dp_paillier_sigma,
    dp_paillier_sigma,
    label_attack_success,
)
from splitvfl.report.rows import counted

# Beyond so many standard deviations one draw in 10^15 lies, and would end the run.
_DEVIATIONS = 8.0


@dataclass(frozen=True)
class NoisePlan:
    """Who adds how much noise to its part of the logits before it is encrypted.

    Attributes:
        settings: What was agreed.
        epochs: How often each record is used.
        steps: Steps of all epochs.
        active: Standard deviation of the active party's noise; 0 for none.
        passive: Standard deviation of each passive party's noise; 0 for none.
    """

    settings: NoiseSettings
    epochs: int
    steps: int
    active: float
    passive: float

    radius = None
    fixed_seeds = True

    @property
    def name(self) -> str:
        """What it is called beside a run's figures."""
        agreed = self.settings
        return f"dp-paillier-mgd(epsilon={agreed.epsilon:g}, delta={agreed.delta:g}, {agreed.calibration})"

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party, by the names under which it is compared."""
        agreed = {f"noise: {name.replace('_', ' ')}": value for name, value in self.settings.model_dump().items()}
        return agreed | {"noise of the active party": self.active, "noise of a passive party": self.passive}

    @property
    def value_limit(self) -> float:
        """A power of two that no encrypted number exceeds, but for one in 10^15."""
        return 2.0 ** math.ceil(
            math.log2(4.0 * self.settings.gradient_bound + _DEVIATIONS * max(self.active, self.passive))
        )

    def supplied(self, exchange: Exchange) -> Mapping[str, Any]:
        """Return the limit of encrypted numbers, unless one is agreed."""
        assert isinstance(exchange, EncryptedExchange)
        if exchange.encryption.value_limit is not None:
            return {}
        return {"encryption": exchange.encryption.model_copy(update={"value_limit": self.value_limit})}

    def budget(self) -> None:
        """Return no account: what was planned for all epochs is said before the first step."""

    @property
    def reserve(self) -> None:
        """Nothing is put by for predictions."""

    def defenses(self) -> list[Defense | At]:
        """Return the noise as defenses, each for the party that it belongs to."""
        found: list[Defense | At] = []
        bound, ours = self.settings.gradient_bound, built_in("defenses")
        if self.active:
            found.append(ours["coefficient-noise"](sigma=self.active, clip=4 * bound))
        if self.passive:
            found.append(At(ours["gaussian-ir"](clip=4 * bound - 2, sigma=self.passive), "training"))
        return found

    def check(self, data: PartyData, task: Task) -> None:
        """Accept whatever the exchange does: its labels are its own affair."""

    def notes(self, parties: Mapping[str, PartyData]) -> list[str]:
        """Return what is to be known beside the figures of a run, in sentences."""
        agreed = self.settings
        noise = f"Noise ({agreed.calibration}) for ε {agreed.epsilon:g} and δ {agreed.delta:g}"
        found = [
            f"{noise}: σ {self.active:.1f} on the active party's part of the logits less 2y, "
            f"σ {self.passive:.1f} on each passive party's part; {counted(self.epochs, 'epoch')}, "
            f"{counted(self.steps, 'step')}."
        ]
        if self.active:
            once, all_epochs = label_attack_success(self.active), label_attack_success(self.active, self.epochs)
            found.append(
                f"Who solves for it still reads a label right with probability {once:.3f} from one step, and "
                f"{all_epochs:.3f} from the mean of all epochs, if neither label is commoner and nothing else is known."
            )
        else:
            found.append("The active party adds no noise: gradients tell labels as without.")
        return [*found, _WHAT_HOLDS[agreed.calibration], self._assumed()]

    def _assumed(self) -> str:
        bound = self.settings.gradient_bound
        return (
            f"It assumes weights of norm at most {4 * bound - 2:g} over all parties, which nothing enforces; the "
            "intercept, a column of ones, is not in the formula; evaluations, which are without noise, are not covered."
        )


# For how many of so many epochs each calibration counts.
_EPOCHS_COUNTED: Mapping[str, Callable[[int], int]] = {
    "published": lambda epochs: epochs,
    "one-epoch": lambda epochs: 1,
    "corrected": lambda epochs: epochs,
}

_WHAT_HOLDS = {
    "published": "The published proof leaves out that a changed row multiplies the other party's noise too: heuristic.",
    "one-epoch": "It is the noise of a single epoch, as the published experiments had it; all epochs together lose "
    "more than ε, and the published proof leaves out the other party's noise: heuristic.",
    "corrected": "The proof is corrected for the other party's noise; it protects one party only.",
}


def noise_plan(basis: NoiseBasis, settings: NoiseSettings) -> NoisePlan:
    """Return the noise before encryption of a training.

    Args:
        basis: The training.
        settings: What was agreed.

    Raises:
        ConfigError: If the training is not one that the noise was calculated for.
    """
    eta, passives, batching = _checked_rate(basis), len(basis.names) - 1, basis.batching
    if settings.protects == "passive" and passives > 1:
        raise ConfigError(
            f"{basis.source}: exchange.noise.protects: the corrected noise of a passive party is for one passive "
            f"party; here are {passives}, whose noises would each have to be larger than the other's"
        )
    return _planned(
        settings,
        passives=passives,
        epochs=batching.epochs,
        steps=batching.each,
        eta=eta,
        batch_size=batching.last,
    )


def _checked_rate(basis: NoiseBasis) -> float:
    """Return the learning rate of a training that the noise can be calculated for, or raise ConfigError."""
    rate, parties, source = plain_rate(basis.optimizer), len(basis.names), basis.source
    if rate is None:
        raise ConfigError(
            f"{source}: train.optimizer: exchange.noise is calculated for plain gradient descent; take "
            "{name: sgd, lr: ...} without momentum and weight decay"
        )
    # Rows of all parties together have a norm of at most 1 then.
    largest = 1 / math.sqrt(parties)
    if not basis.linear or basis.row_norm is None or basis.row_norm > largest:
        raise ConfigError(
            f"{source}: model.row_norm: exchange.noise is calculated for rows of norm at most 1 over all parties; with "
            f"{parties} of them write model: {{name: logistic-regression, row_norm: {math.floor(100 * largest) / 100}}}"
        )
    if rate > 1:
        raise ConfigError(f"{source}: train.optimizer.lr: exchange.noise is calculated for at most 1")
    return rate


def _planned(
    settings: NoiseSettings, *, passives: int, epochs: int, steps: int, eta: float, batch_size: int
) -> NoisePlan:
    counted = _EPOCHS_COUNTED[settings.calibration](epochs)
    formula = partial(
        _sigma,
        settings,
        G=settings.gradient_bound,
        epochs=counted,
        steps=steps * counted,
        eta=eta,
        batch_size=batch_size,
    )
    if settings.calibration != "corrected":
        return NoisePlan(settings, epochs, steps * epochs, formula("A"), formula("B"))
    match settings.protects:
        case "active":  # the other parties' noises add up in the logits
            active, passive = formula("A", other=math.sqrt(passives) * settings.other_sigma), settings.other_sigma
        case "passive":
            active, passive = settings.other_sigma, formula("B", other=settings.other_sigma)
        case unknown:
            raise ConfigError(f"exchange.noise.protects: no noise is calculated that protects {unknown}")
    return NoisePlan(settings, epochs, steps * epochs, active, passive)


def _sigma(settings: NoiseSettings, party: PartyLetter, *, other: float = 0.0, **training: Any) -> float:
    epsilon, delta = settings.epsilon, settings.delta
    if other:
        # Half of δ is for the case that the other noise exceeds its bound.
        found = corrected_dp_paillier_sigma(
            party, epsilon=epsilon, delta=delta / 2, delta_prime=delta / 2, sigma_other=other, **training
        )
    else:
        found = dp_paillier_sigma(party, epsilon=epsilon, delta=delta, **training)
    # Parties compare it, and their machines may round differently; up, for it is a promise.
    return math.ceil(found * 1e6) / 1e6
