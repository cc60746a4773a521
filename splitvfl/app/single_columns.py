"""Whether the label owner can compute a partner's only feature in a run of an experiment, before its first step."""

from __future__ import annotations

from collections.abc import Mapping

from splitvfl.app.assembly import Assembly
from splitvfl.config.sections import ExperimentConfig
from splitvfl.learning.batches import Batches
from splitvfl.privacy.single_column import PartsSeen, SolvableColumn, solvable_column


def solvable_columns(
    config: ExperimentConfig,
    assembly: Assembly,
    batches: Batches,
    features: Mapping[str, int],
    *,
    own_features: int | None,
) -> list[SolvableColumn]:
    """Return which partners' only features the label owner can compute.

    It is nothing where a model is not linear, where a defense or calculated noise changes what partners send, and
    where nothing is sent in steps.

    Args:
        config: The experiment, or the file of one of its parties.
        assembly: Its parts.
        batches: Its batches.
        features: How many features partners have, by name; of a party's own file its own.
        own_features: Features of the label owner; ``None``: not known here.
    """
    seen = _seen(config, assembly)
    if seen is None or not len(batches):
        return []
    train = config.train
    found = (
        solvable_column(
            name,
            width,
            batch_size=batches.batch_size,
            steps=len(batches),
            epochs=train.epochs,
            seen=seen,
            own_features=own_features,
            partners=len(config.parties) - 1,
            scaled=assembly.rate is not None,
            last=0 if batches.drop_last else batches.count % batches.batch_size,
        )
        for name, width in features.items()
        if width
    )
    return [one for one in found if one is not None]


def _seen(config: ExperimentConfig, assembly: Assembly) -> PartsSeen | None:
    """Return what the label owner gets of parts of the logits in a step; ``None``: nothing that gives a feature."""
    exchange = assembly.exchange
    changed = any(hook.found("defenses", config.folder).crossing == "activation" for hook in config.defenses)
    if not config.model.recipe.is_linear or exchange.one_way or exchange.noise is not None or changed:
        return None
    if not exchange.hides_parts:
        return "each"
    return "sums of all" if exchange.third_party is not None else "sums"


def said_of_columns(found: list[SolvableColumn]) -> list[str]:
    """Return it in words, in a line for each partner."""
    return [" ".join(one.sentences()) for one in found]


def said_to_label_owner(
    config: ExperimentConfig, assembly: Assembly, batches: Batches, *, own_features: int
) -> list[str]:
    """Return what the label owner is told of partners whose features it does not know before it has met them."""
    partners = [name for name, party in config.parties.items() if party.role == "passive"]
    found = solvable_columns(config, assembly, batches, dict.fromkeys(partners, 1), own_features=own_features)
    return [f"If {one.partner} has one feature only: {' '.join(one.sentences())}" for one in found]
