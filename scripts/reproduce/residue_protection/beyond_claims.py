"""What is claimed beyond the paper, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scripts.reproduce.residue_protection.beyond_outcomes import (
    LEVEL,
    OWN,
    Compared,
    Outcome,
    Outcomes,
    above_ceilings,
    corrected,
    differences,
    of_key,
)
from scripts.reproduce.shared.claims import Claim, mean, shown

HIDDEN = 0.6
"""An attack that reads less of even odds reads hardly anything."""

MARGIN = 0.01
"""A difference of accuracy that nobody would choose by."""


def claims_of(outcomes: Outcomes) -> list[Claim]:
    """Return all claims."""
    return [
        *_vacuous(outcomes),
        *_against_add(outcomes, "same", "of the same whole-run ε"),
        *_against_add(outcomes, "as-read", "that is read as often"),
        *_hybrid(outcomes),
        *_deployed(outcomes),
        _ceilings(outcomes),
    ]


def pairs(outcomes: Outcomes, first: str, second: str) -> Iterator[tuple[Outcome, Outcome, str]]:
    """Yield outcomes on one problem whose keys differ in what stands before an ε, and that ε."""
    for own in outcomes.values():
        for one in own:
            stem, _, epsilon = one.key.rpartition("-")
            other = of_key(own, f"{second}-{epsilon}")
            if stem == first and other is not None:
                yield one, other, epsilon


def _vacuous(outcomes: Outcomes) -> Iterator[Claim]:
    """Yield what is read of coins under additive noise, beside its ceiling."""
    adds = [one for found in outcomes.values() for one in found if one.key in ("add-0.1", "add-1")]
    for one in adds:
        read = one.read(one.best, "run_coins")
        ends = corrected(read, comparisons=len(adds), least=0.0).ends
        vacuous = one.ceiling > 0.99
        yield replace(
            Claim.of(
                read,
                claim=f"{one.problem.title}: {one.contender.title} over a run costs ε {one.epsilon:.3g} of a label, "
                f"whose ceiling on attacks ({shown(one.ceiling, 4)}) says nothing",
                holds=vacuous,
                why=f"the ceiling is {'above' if vacuous else 'at most'} .99; likelihood ratios, the best attack there "
                f"is, read {shown(mean(read))} of coins after {one.problem.epochs} epochs",
            ),
            interval=ends,
        )


def _against_add(outcomes: Outcomes, kind: str, which: str) -> Iterator[Claim]:
    """Yield whether memoised responses surely learn at least as well as additive noise, but for :data:`MARGIN`.

    That no difference can be told shows nothing: the less is known, the sooner it is so.
    """
    found = list(pairs(outcomes, kind, "add"))
    for one, add, epsilon in found:
        gained = differences(one, add, "accuracy")
        compared = corrected(gained, comparisons=len(found))
        auc = mean(differences(one, add, "auc"))
        yield replace(
            Claim.of(
                gained,
                claim=f"{one.problem.title}: memoised-response {which} is at least as accurate as Add at ε {epsilon}",
                holds=compared.surely_above(-MARGIN),
                why=f"{_no_worse(compared)}; difference of accuracy, paired by seed, interval for {len(found)} "
                "comparisons; of AUC "
                f"{signed(auc)}. Memoised ε {one.epsilon:.3g}, and {shown(mean(one.read(one.best, 'run_coins')))} of "
                f"coins read; Add ε {add.epsilon:.3g} and {shown(mean(add.read(add.best, 'run_coins')))}",
            ),
            interval=compared.ends,
        )


def _hybrid(outcomes: Outcomes) -> Iterator[Claim]:
    alone = [one for found in outcomes.values() for one in found if one.key == "hybrid"]
    for one in alone:
        read = one.read(one.best, "run_coins")
        compared = corrected(read, comparisons=len(alone) * len(one.attacks), least=0.0)
        hides = compared.middle < HIDDEN
        yield replace(
            Claim.of(
                read,
                claim=f"{one.problem.title}: hybrid alone hides labels (below {shown(HIDDEN, 1)} of coins are read)",
                holds=hides,
                why=f"{one.best} over {one.cells[0]['steps']} steps, no attack knowing a label; one step tells "
                f"{shown(one.most('single'))} of the labels that are used in it",
            ),
            interval=compared.ends,
        )


def _deployed(outcomes: Outcomes) -> Iterator[Claim]:
    """Yield whether hybrid with memoised responses keeps below the ceiling, and what it adds to the responses alone."""
    tried = max(above_ceilings(outcomes)[0], 1)
    for both, _, epsilon in pairs(outcomes, "hybrid-memoised", "memoised"):
        read = both.read(both.best, "run_coins")
        least = min(both.beyond_ceiling(attack) for attack in both.attacks if sum(both.read(attack, "guessed")))
        plain = of_key(outcomes[both.problem], "none")
        lost = mean(differences(both, plain, "accuracy")) if plain is not None else 0.0
        yield replace(
            Claim.of(
                read,
                claim=f"{both.problem.title}: under hybrid + memoised-response at ε {epsilon} no attack reads more "
                f"coins than the ceiling, {shown(both.ceiling)}",
                holds=least * tried >= LEVEL,
                why=f"smallest P(as many right | ceiling) of {len(both.attacks)} attacks {least:.2g}, exact interval "
                f"of {both.best}, {tried} attacks being looked at in all; accuracy "
                f"{shown(mean(both.values('accuracy')))}, {signed(lost)} against none; own prediction reads "
                f"{shown(mean(both.read(OWN, 'run')))} of the other labels, which no noise hides",
            ),
            interval=both.coins_between(both.best, comparisons=tried),
        )
    found = list(pairs(outcomes, "hybrid-memoised", "memoised"))
    for both, alone, epsilon in found:
        less = [
            theirs - mine
            for mine, theirs in zip(both.read(both.best, "run_coins"), alone.read(alone.best, "run_coins"), strict=True)
        ]
        compared = corrected(less, comparisons=len(found))
        yield replace(
            Claim.of(
                less,
                claim=f"{both.problem.title}: hybrid hides more than memoised-response at ε {epsilon} does alone",
                holds=compared.surely_above(0.0),
                why=f"{_sure(compared)} after {both.uses:.0f} uses of a record on average; coins that are read less, "
                f"paired by seed, interval for {len(found)} comparisons; accuracy "
                f"{signed(mean(differences(both, alone, 'accuracy')))}, and {both.seconds / alone.seconds:.0f} times "
                "the processor time",
            ),
            interval=compared.ends,
        )


def _ceilings(outcomes: Outcomes) -> Claim:
    tried, above = above_ceilings(outcomes)
    seeds = max((len(one.cells) for found in outcomes.values() for one in found), default=1)
    names = "; ".join(f"{one.problem.title}, {one.contender.title}, {attack}" for one, attack in above)
    return Claim(
        claim=f"no attack reads more coins than the whole-run ε of a label allows ({tried} attacks on a mechanism)",
        published=None,
        ours=float(len(above)),
        interval=None,
        seeds=seeds,
        verdict="does not" if above else "reproduces",
        why=names or f"none is above at .05 over {tried}, by the binomial distribution of right guesses of all seeds",
    )


def signed(value: float) -> str:
    """Return a difference with its sign: ``+.012``, ``−.012``."""
    return f"{'−' if value < 0 else '+'}{shown(abs(value))}"


def _sure(compared: Compared) -> str:
    """Return what an interval of a difference says, in words."""
    if compared.ends is None or compared.ends[0] <= 0.0 <= compared.ends[1]:
        return "no difference can be told"
    return "surely less" if compared.surely_below else "surely more"


def _no_worse(compared: Compared) -> str:
    """Return whether an interval of a difference shows that nothing is lost, in words."""
    if compared.surely_above(-MARGIN):
        return "surely more" if compared.surely_above(0.0) else f"surely not less by {shown(MARGIN, 2)}"
    return "surely less" if compared.surely_below else "not shown by so few seeds, nor the contrary"
