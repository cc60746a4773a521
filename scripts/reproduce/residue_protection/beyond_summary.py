"""What was found beyond the paper, in a few lines that are counted from the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from scripts.reproduce.residue_protection.beyond_claims import pairs, signed
from scripts.reproduce.residue_protection.beyond_outcomes import (
    Outcome,
    Outcomes,
    above_ceilings,
    corrected,
    differences,
)
from scripts.reproduce.shared.claims import mean, shown


def summary(outcomes: Outcomes) -> str:
    """Return the findings as a list in Markdown; what did not take part is left out."""
    return "\n".join(f"- {line}" for line in _lines(outcomes))


def _lines(outcomes: Outcomes) -> Iterator[str]:
    for epsilon in ("0.1", "1"):
        yield from _of_add(outcomes, f"add-{epsilon}", epsilon)
    for kind, name in (("same", "of the same whole-run ε"), ("as-read", "that are read as often")):
        yield from _compared(outcomes, kind, "add", f"**Memoised responses {name}, against *Add***")
    yield from _compared(outcomes, "likelihood", "same", "**Trained by likelihood, against corrected targets**")
    alone = _of_key(outcomes, "hybrid")
    if alone:
        yield (
            f"**Hybrid alone hides no labels**: one step tells {_span(alone, _told)} of those used in it, and "
            f"{_span(alone, _coins)} of coins are read over the run."
        )
    yield from _deployed(outcomes)


def _of_add(outcomes: Outcomes, key: str, epsilon: str) -> Iterator[str]:
    found = _of_key(outcomes, key)
    if found:
        costs = _range((one.epsilon for one in found), "{:.3g}".format)
        yield (
            f"**Add at ε {epsilon}** costs a label ε {costs} over the run, with ceilings of "
            f"{_span(found, lambda one: one.ceiling)}; {_span(found, _coins)} of coins are read."
        )


def _compared(outcomes: Outcomes, first: str, second: str, name: str) -> Iterator[str]:
    """Yield how much more accurate one is than another, over problems and ε."""
    found = list(pairs(outcomes, first, second))
    if found:
        gains = [corrected(differences(one, other, "accuracy"), comparisons=len(found)) for one, other, _ in found]
        better = sum(gain.surely_above(0.0) for gain in gains)
        worse = sum(gain.surely_below for gain in gains)
        coins = [_coins(one) - _coins(other) for one, other, _ in found]
        yield (
            f"{name}: accuracy {_range((gain.middle for gain in gains), signed)} (mean "
            f"{signed(mean(gain.middle for gain in gains))}), surely better in {better} and surely worse in {worse} of "
            f"{len(found)} comparisons, corrected for their number; coins read {_range(coins, signed)}."
        )


def _deployed(outcomes: Outcomes) -> Iterator[str]:
    found = list(pairs(outcomes, "hybrid-memoised", "memoised"))
    if found:
        both = [one for one, _, _ in found]
        above = sum(one in both for one, _ in above_ceilings(outcomes)[1])
        more = _range((_coins(alone) - _coins(one) for one, alone, _ in found), signed)
        gained = _range((mean(differences(one, alone, "accuracy")) for one, alone, _ in found), signed)
        times = _range((one.seconds / alone.seconds for one, alone, _ in found), "{:.0f}".format)
        yield (
            f"**Hybrid + memoised response**: {above or 'no'} attack above its ceiling. Of the same response in the "
            f"clear {more} more of the coins are read. Hybrid changes accuracy by {gained} and takes {times} times the "
            "processor time. The response alone has the same proof."
        )


def _of_key(outcomes: Outcomes, key: str) -> list[Outcome]:
    return [one for found in outcomes.values() for one in found if one.key == key]


def _coins(one: Outcome) -> float:
    return mean(one.read(one.best, "run_coins"))


def _told(one: Outcome) -> float:
    return one.most("single")


def _span(found: Iterable[Outcome], figure: Callable[[Outcome], float]) -> str:
    return _range(map(figure, found), shown)


def _range(values: Iterable[float], text: Callable[[float], str]) -> str:
    known = list(values)
    low, high = text(min(known)), text(max(known))
    return low if low == high else f"{low} to {high}"
