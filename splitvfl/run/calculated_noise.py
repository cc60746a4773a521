"""Noise that a trainer in Python has calculated for it, as an experiment's file has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import At, Defense
from splitvfl.learning.batches import Batches
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.privacy import PrivacyBudget


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a trainer was given, as far as noise is calculated from it.

    Attributes:
        active: The label party.
        passives: The others by name.
        exchange: The exchange, with what was agreed on noise.
        epochs: Epochs of the whole run.
        batches: The batches.
        evaluate_every: Epochs from one evaluation to the next.
        early_stopping: Whether labels decide when training ends.
        autocast: Whether models run in fewer bits.
        defenses: What else changes messages.
        fixed: Whether noise is drawn from a fixed seed.
    """

    active: ActiveParty
    passives: Mapping[str, PassiveParty]
    exchange: Exchange
    epochs: int
    batches: Batches
    evaluate_every: int
    early_stopping: bool
    autocast: bool
    defenses: Sequence[Defense | At]
    fixed: bool


@dataclass(frozen=True, kw_only=True)
class CalculatedNoise:
    """What was calculated.

    Attributes:
        exchange: The exchange with it.
        defenses: The noise, each for the party that it belongs to.
        account: What a run spends; ``None``: nothing is counted.
        notes: What is protected, from whom, by what, and what is not covered, in sentences.
    """

    exchange: Exchange
    defenses: Sequence[Defense | At]
    account: PrivacyBudget | None
    notes: tuple[str, ...]


def epochs_of_noise(exchange: Exchange, epochs: int | None) -> int | None:
    """Return for how many epochs noise that was agreed on is to be calculated; ``None``: none is.

    Raises:
        ConfigError: If it cannot be, as the number of epochs is not known.
    """
    agreed = exchange.noise is not None or exchange.sum_noise is not None
    if not agreed or exchange.noise_is_planned:
        return None
    if epochs is not None:
        return epochs
    if exchange.sum_noise is not None and exchange.sum_noise.sigma is not None:
        return None  # noise of that size is added, and nothing is counted
    key = "noise" if exchange.noise is not None else "sum_noise"
    raise ConfigError(
        f"exchange {exchange.name}: {key} is calculated for the epochs of the whole run: say how many they are, "
        "Trainer(..., epochs=10), and give fit the same"
    )
