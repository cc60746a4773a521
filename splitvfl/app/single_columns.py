"""Whether the label owner can compute a partner's only feature in a run of an experiment, before its first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from splitvfl.app.assembly import Assembly
from splitvfl.learning.batches import Batches
from splitvfl.privacy.single_column import PartsSeen, SolvableColumn, solvable_column


def solvable_columns(
    assembly: Assembly, batches: Batches, features: Mapping[str, int], *, own_features: int | None
) -> list[SolvableColumn]:
    """Return which partners' only features the label owner can compute.

    It is nothing where a model is not linear, where a defense or calculated noise changes what partners send, and
    where nothing is sent in steps.

    Args:
        assembly: The parts of the experiment.
        batches: Its batches.
        features: How many features partners have, by name; of a party's own file its own.
        own_features: Features of the label owner; ``None``: not known here.
    """
    seen = _seen(assembly)
    if seen is None or not len(batches):
        return []
    found = (
        solvable_column(
            name,
            width,
            batch_size=batches.batch_size,
            steps=len(batches),
            epochs=assembly.epochs,
            seen=seen,
            own_features=own_features,
            partners=assembly.partners,
            scaled=assembly.rate is not None,
            last=0 if batches.drop_last else batches.count % batches.batch_size,
        )
        for name, width in features.items()
        if width
    )
    return [one for one in found if one is not None]


def _seen(assembly: Assembly) -> PartsSeen | None:
    """Return what the label owner gets of parts of the logits in a step; ``None``: nothing that gives a feature."""
    exchange = assembly.exchange
    changed = assembly.named_defenses("activation")
    if not assembly.recipe.is_linear or exchange.one_way or exchange.noise is not None or changed:
        return None
    if not exchange.hides_parts:
        return "each"
    return "sums of all" if exchange.third_party is not None else "sums"


def said_of_columns(found: list[SolvableColumn]) -> list[str]:
    """Return it in words, in a line for each partner."""
    return [" ".join(one.sentences()) for one in found]


def said_to_label_owner(
    assembly: Assembly, batches: Batches, partners: Sequence[str], *, own_features: int
) -> list[str]:
    """Return what the label owner is told of partners whose features it does not know before it has met them."""
    found = solvable_columns(assembly, batches, dict.fromkeys(partners, 1), own_features=own_features)
    return [f"If {one.partner} has one feature only: {' '.join(one.sentences())}" for one in found]
