"""What a file may ask for that gives a party several workers, and what one process says that trains them all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from splitvfl.config.sections import ExperimentConfig, PartyConfig
from splitvfl.errors import ConfigError
from splitvfl.hooks import scope_of
from splitvfl.learning.devices import choose_device
from splitvfl.party.penalties import NO_PENALTIES_OF_WORKERS


def check_team(config: ExperimentConfig) -> None:
    """Refuse what several workers cannot do yet, or cannot do at all.

    Raises:
        ConfigError: If the file asks for it.
    """
    if config.team.workers == 1:
        return
    refused = {
        "model.private_top": (getattr(config.model, "private_top", False), "it is trained in one process"),
        "parties: transform": (
            any(party.transform is not None for party in config.parties.values()),
            "each worker would draw another one",
        ),
        "parties: penalties": (
            _has_penalty_of_a_batch(config.parties.values(), config.folder),
            NO_PENALTIES_OF_WORKERS,
        ),
        "model.dense: sharded": (
            getattr(config.model.recipe, "sampled", False) and config.model.recipe.dense == "sharded",
            "with sampled it was not tried; leave dense out",
        ),
        "train.loss": (
            config.train.loss is not None and ":" in config.train.loss.name,
            "nothing says that a loss of your own is a mean over records, of which each worker has its part",
        ),
        "model.dense: sharded with train.device": (
            config.model.recipe.dense == "sharded" and choose_device(config.train.device).type != "cpu",
            "weights are divided on CPUs only; write cpu, or leave dense out",
        ),
        "train.autocast": (config.train.autocast is not None, "it was not tried"),
    }
    for key, (asked, why) in refused.items():
        if asked:
            raise ConfigError(
                f"{config.source}: {key}: not with team.workers above 1: {why}. Train in one process, with "
                f"train.shards: {config.team.workers}, to see what it would be"
            )


def said_in_one_process(config: ExperimentConfig) -> list[str]:
    """Return what is to be said of a file with several workers where one process trains all parties, in sentences."""
    count = config.team.workers
    if count == 1:
        return []
    lines = [f"team.workers is {count}: here one process takes the steps of {count} shards; splitvfl party has workers"]
    try:
        check_team(config)
    except ConfigError as error:
        lines.append(f"splitvfl party would refuse this file: {error}")
    return lines


def _has_penalty_of_a_batch(parties: Iterable[PartyConfig], folder: Path) -> bool:
    penalties = (one.made("penalties", folder) for party in parties for one in party.penalties)
    return any(scope_of(one.penalty) == "batch" for one in penalties)
