"""Where a defense belongs at a party: on which of its own messages, with which generator, and whether it may."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from splitvfl.cut import refuse_batch_mixing
from splitvfl.errors import ConfigError, PrivacyError
from splitvfl.hooks import PHASES, Defense, Phase, crossing_of, hook_name
from splitvfl.party import ActiveParty, Party, PassiveParty
from splitvfl.randomness import derive_seed


def attach_defense(
    party: Party, defense: Defense, *, number: int, noise_seed: int | None, phases: Sequence[Phase] = PHASES
) -> bool:
    """Attach a defense to the messages of a party that it is for, and return whether there are any.

    Where it acts on several messages (at several cuts), each gets a copy of its own.

    Args:
        party: The sender.
        defense: The defense.
        number: Its place among the defenses of the run, for its seed.
        noise_seed: Fixed seed of all generators, for experiments; ``None``: from entropy.
        phases: Of a defense of the activation: when it acts.

    Raises:
        ConfigError: If it was made for other labels than the task's.
        PrivacyError: If it guarantees something per record, and the party's model mixes records.
    """
    crossing = crossing_of(defense)
    if getattr(defense, "per_record_guarantee", False):
        refuse_batch_mixing(party.module, defense)

    def seed(where: str) -> int | None:
        return None if noise_seed is None else derive_seed(noise_seed, crossing, where, number)

    if isinstance(party, PassiveParty):
        if crossing != "activation":
            return False
        party.activation.attach(defense, at=phases, noise_seed_for_experiments=seed(party.name))
        return True
    assert isinstance(party, ActiveParty)
    if crossing == "activation":
        return False
    check_labels(party, defense)
    chains = {name: cut.gradient for name, cut in party.cuts.items()}
    if crossing in ("labels", "scores"):
        chains = {party.name: party.labels if crossing == "labels" else party.scores}
    for name, chain in chains.items():
        own = defense if len(chains) == 1 else copy.deepcopy(defense)
        chain.attach(own, noise_seed_for_experiments=seed(name))
    return bool(chains)


def check_clips(party: Party, *, activation: float | None, gradient: float | None) -> None:
    """Check that a party bounds what it sends as the parties have agreed.

    Args:
        party: The sender, with its defenses.
        activation: Largest norm of a row of an activation before noise; ``None``: none was agreed.
        gradient: Largest norm of a row of a gradient, likewise.

    Raises:
        PrivacyError: If no defense of a message does.
    """
    if isinstance(party, PassiveParty):
        agreed, what, chains = activation, "activation", {f"{party.name} sends": party.activation["training"]}
    else:
        assert isinstance(party, ActiveParty)
        agreed, what = gradient, "gradient"
        chains = {f"{party.name} sends to {name}": cut.gradient for name, cut in party.cuts.items()}
    for where, chain in chains.items():
        bounds = [getattr(defense, name, None) for defense in chain for name in ("clip", "bound")]
        if agreed is not None and agreed not in bounds:
            found = ", ".join(f"{bound:g}" for bound in bounds if bound is not None) or "none"
            raise PrivacyError(
                f"exchange.{what}_clip: expected a defense that bounds each row of the {what} that {where} to "
                f"{agreed:g}, got {found}; add one (gaussian-ir with clip, clip-gradient with bound), or agree on "
                "another bound"
            )


def check_labels(party: ActiveParty, defense: Defense) -> None:
    """Check that a defense is for labels such as the task's.

    Raises:
        ConfigError: If it is for others.
    """
    task, assumed = party.task, getattr(defense, "classes", None)
    if getattr(defense, "needs_binary_labels", False) and task.name != "binary":
        raise ConfigError(f"defense {hook_name(defense)} needs binary labels, the task is {task.name}")
    if assumed is not None and assumed != task.classes:
        found = "no classes" if task.classes is None else f"{task.classes} classes"
        raise ConfigError(
            f"defense {hook_name(defense)} was made for {assumed} classes, and a {task.name} task here has {found}"
        )
