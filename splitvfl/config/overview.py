"""Everything of a kind that an experiment can name, in groups: attacks by threat model, defenses by what they hold.

Defenses that are recommended come first, then those of the papers by their guarantee, and last those that are known
to be broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from splitvfl.claims import Claim, DetectionError, GaussianDP, NoPromise, PureDP, in_short
from splitvfl.config.describing import claims_of_example, example_made
from splitvfl.config.registry import describe, kind_of, resolve
from splitvfl.errors import SplitVFLError
from splitvfl.hooks import crossing_of, knows_weights, needs_of, seat_of, target_of, weaknesses_of

_TARGETS: Mapping[str, str] = {"labels": "labels", "features": "features", "members": "membership"}
_SEATS: Mapping[str, str] = {"passive": "a passive party", "active": "the active party"}
_KNOWN_LABELS = frozenset({"known_positives", "known_negatives", "known_records", "known_values", "top"})
_KNOWN_RECORDS = frozenset(
    {"auxiliary", "earlier_auxiliary", "known_rows", "known_columns", "known_members", "known_others"}
)

_GUARANTEES = (
    "Guarantee for the whole run",
    "Guarantee for each message",
    "Guarantee under a model of the gradients",
    "No formal guarantee",
    "Guarantee not stated",
)
_PLACES: Mapping[str, str] = {
    "labels": "acts on labels",
    "gradient": "acts on cut gradients",
    "activation": "acts on activations",
    "scores": "acts on scores",
}
_RECOMMENDED, _BROKEN = "Recommended", "Known to be broken, for comparison only"
_UNUSABLE = "Cannot be used"


class Row(NamedTuple):
    """A name, and what there is to say of it in a list."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Names that have the same to say for themselves.

    Attributes:
        heading: What that is; empty where a kind has one group alone.
        rows: The names, with a text of a few sentences each.
    """

    heading: str
    rows: tuple[Row, ...]


class _Place(NamedTuple):
    """Where in a list something stands: in which group, and how far up in it."""

    group: tuple[int, ...]
    heading: str
    before_others: bool
    said: str


def overview(kind: str) -> list[Group]:
    """Return every name of a kind in groups, each name in one of them.

    Args:
        kind: A kind of the registry, or ``"data"``.

    Raises:
        ConfigError: If there is no such kind.
    """
    known, named = kind_of(kind), describe(kind)
    placed = _PLACED.get(known)
    if placed is None:
        return [Group("", tuple(Row(*one) for one in named))] if named else []
    places = {name: _place(placed, name) for name, _ in named}
    summaries = dict(named)
    groups: dict[tuple[tuple[int, ...], str], list[Row]] = {}
    for name in sorted(places, key=lambda name: (places[name].group, not places[name].before_others, name)):
        place = places[name]
        groups.setdefault((place.group, place.heading), []).append(Row(name, f"{place.said}{summaries[name]}"))
    return [Group(heading, tuple(rows)) for (_, heading), rows in groups.items()]


def _place(placed: Callable[[str], _Place], name: str) -> _Place:
    try:
        return placed(name)
    except SplitVFLError:  # somebody else's, which cannot be imported or asked; its line says why
        return _Place((len(_GUARANTEES) + 1,), _UNUSABLE, before_others=False, said="")


def _attack(name: str) -> _Place:
    attack = example_made("attacks", name)
    target, needs = target_of(attack), needs_of(attack)
    weights = target == "features" and knows_weights(attack)
    if target == "labels":
        known = ["labels"] if needs & _KNOWN_LABELS else []
    else:
        known = [*(["weights"] if weights else []), *(["records"] if needs & _KNOWN_RECORDS else [])]
    unknown = {"labels": "labels", "features": "weights or records", "members": "records"}[target]
    knowing = f"with known {' and '.join(known)}" if known else f"without known {unknown}"
    heading = f"Attacks on {_TARGETS[target]}, by {_SEATS[seat_of(attack)]} {knowing}"
    return _Place((list(_TARGETS).index(target), weights, bool(known)), heading, before_others=False, said="")


def _defense(name: str) -> _Place:
    factory: Any = resolve("defenses", name, folder=Path())
    claims, _ = claims_of_example(name)
    crossing, rank = crossing_of(factory), _guarantee(claims)
    recommended = str(vars(factory).get("recommended", ""))  # a class derived from one may do something else
    short = in_short(claims)
    claim = f"Claim: {short}. " if short != "nothing" else ""
    if recommended:
        return _Place((-1,), _RECOMMENDED, before_others=True, said=f"{_capital(recommended)}. {claim}")
    broken_by = " and ".join(weaknesses_of(factory))
    if broken_by:
        return _Place((len(_GUARANTEES),), _BROKEN, before_others=False, said=f"Broken by {broken_by}. ")
    stated = f"From the papers: {_GUARANTEES[rank].lower()}" if claims else _GUARANTEES[rank]
    heading = f"{stated}; {_PLACES[crossing]}"
    return _Place((rank, list(_PLACES).index(crossing)), heading, before_others=False, said=claim)


def _capital(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _guarantee(claims: tuple[Claim, ...]) -> int:
    """Return the place in :data:`_GUARANTEES` of the strongest of some claims."""
    said = [claim for claim in claims if isinstance(claim, GaussianDP | PureDP | DetectionError)]
    proven = [claim for claim in said if not isinstance(claim, DetectionError) or claim.proven]
    if proven:
        return 0 if any(claim.per == "run" for claim in proven) else 1
    if said:
        return 2
    return 3 if any(isinstance(claim, NoPromise) for claim in claims) else 4


_PLACED: Mapping[str, Callable[[str], _Place]] = {"attacks": _attack, "defenses": _defense}
