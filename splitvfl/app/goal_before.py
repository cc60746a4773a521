"""What is known of labels and the goal before the first step: a guarantee above it, labels that can be solved for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from splitvfl.claims import Guarantee, PureDP, claims_of, guarantee_of, promises_of_labels
from splitvfl.config.registry import construct
from splitvfl.config.sections import FoundDefense
from splitvfl.errors import SplitVFLError
from splitvfl.exchange.base import Exchange
from splitvfl.party.attaching import label_guarantee
from splitvfl.party.party import ActiveParty
from splitvfl.privacy.accounting import PrivacyBudget
from splitvfl.privacy.solvable import Solvable
from splitvfl.report.verdict import ROUNDING
from splitvfl.report.verdicts import most_solved, prevention_in_words, solved_in_words

# Settings of defenses that decide what they guarantee, and whether a larger value guarantees more.
_MORE: Final[Mapping[str, bool]] = {
    "detection_error": True,
    "flip": True,
    "sigma": True,
    "epsilon": False,
    "mu": False,
}


def said_of_goal(
    active: ActiveParty,
    exchange: Exchange,
    *,
    goal: float,
    epochs: int,
    account: PrivacyBudget | None,
    solvable: Sequence[Solvable],
    defenses: Sequence[FoundDefense],
) -> list[str]:
    """Return in sentences what decides the verdict on labels before the first step, or that nothing can.

    Args:
        active: The label owner, with its defenses.
        exchange: The protocol.
        goal: The AUC that an individual label's leak is to stay below or at.
        epochs: How often each record is used.
        account: What the run spends of calculated noise; ``None``: there is none.
        solvable: What partners can solve for.
        defenses: Those of the experiment's file.
    """
    guarantees = {
        name: label_guarantee(active, name, epochs=epochs, own_part=exchange.own_part, account=account)
        for name in active.cuts
    }
    said = [
        line
        for name, found in guarantees.items()
        for line in _of_partner(name, found, goal, epochs, solvable, defenses)
    ]
    decided = said or all(found is not None and found.of_run for found in guarantees.values())
    if exchange.sums_only and not decided:
        said.append(
            f"Excess leakage of labels cannot be measured in this protocol: {exchange.name} sends sums only. A "
            f"guarantee decides whether labels are below the goal of {goal:g}."
        )
    return list(dict.fromkeys(said))


def _of_partner(
    name: str,
    found: Guarantee | None,
    goal: float,
    epochs: int,
    solvable: Sequence[Solvable],
    defenses: Sequence[FoundDefense],
) -> Iterator[str]:
    if found is not None and found.of_run and found.auc > goal + ROUNDING:
        by, remedy = _remedy(found, goal, epochs, defenses)
        yield (
            f"{by} guarantees an AUC of at most {found.auc:.2f} for the whole run, and the goal is {goal:g}: {remedy}."
        )
    solved = most_solved(solvable, name)
    if solved is not None:
        yield (
            f"Labels are above the goal of {goal:g} before step 1: {solved_in_words(solved)}. It is prevented by "
            f"{prevention_in_words(solved)}."
        )


def _remedy(found: Guarantee, goal: float, epochs: int, defenses: Sequence[FoundDefense]) -> tuple[str, str]:
    """Return what guarantees, as the file has it, and which setting of it meets the goal."""
    for config, hook in defenses:
        if config.name != found.source:
            continue
        for key, value in hook.options.items():
            if key in _MORE and isinstance(value, int | float) and not isinstance(value, bool):
                needed = _setting_that_meets(hook.factory, hook.options, key, goal, epochs)
                if needed is not None:
                    return str(config), f"use {key} {needed:g}"
        return str(config), "no setting of it that was tried meets the goal"
    return found.source[0].upper() + found.source[1:], "use a smaller epsilon"


def _setting_that_meets(
    factory: type[Any], options: Mapping[str, Any], key: str, goal: float, epochs: int
) -> float | None:
    """Return the value next to the one that is set with which a defense guarantees the goal; ``None``: none does."""
    for digits in (2, 3):
        for value in _beside(float(options[key]), more=_MORE[key], digits=digits):
            try:
                made = construct(factory, {**options, key: value})
            except SplitVFLError:  # it does not take this value
                continue
            if _auc_of_run(made, epochs) <= goal + ROUNDING:
                return value
    return None


def _beside(value: float, *, more: bool, digits: int) -> Iterator[float]:
    """Yield numbers of so many digits up to a hundred times as large as a value, or as small, the next ones first."""
    whole = range(10 ** (digits - 1), 10**digits)
    found = {float(f"{number}e{power}") for power in range(-6, 7) for number in whole}
    if more:
        yield from sorted(one for one in found if value < one <= 100.0 * value)
    else:
        yield from sorted((one for one in found if value / 100.0 <= one < value), reverse=True)


def _auc_of_run(defense: Any, epochs: int) -> float:
    """Return the AUC that a defense guarantees over a run, releases of residues added up; 1 if none."""
    found = [1.0]
    for claim in promises_of_labels(claims_of(defense)):
        if isinstance(claim, PureDP) and claim.per == "message":
            found.append(guarantee_of(PureDP(epochs * claim.epsilon, per="run"), "").auc)
        elif claim.per == "run":
            found.append(guarantee_of(claim, "").auc)
    return min(found)
