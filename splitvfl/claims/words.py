"""What claims say, for people: the one place from which listings, pages, runs and reports have their words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from splitvfl.claims.kinds import (
    Claim,
    Condition,
    DetectionError,
    Gaussian,
    GaussianDP,
    NoPromise,
    PureDP,
    RowNorm,
)


@dataclass(frozen=True, slots=True)
class Told:
    """What the claims of one defense say, in whole sentences, each once.

    Attributes:
        promised: What is claimed; that nothing is, and why.
        mechanisms: By which mechanism.
        conditions: What it rests on, with what was checked of each.
        not_covered: What it does not cover.
    """

    promised: tuple[str, ...]
    mechanisms: tuple[str, ...]
    conditions: tuple[Condition, ...]
    not_covered: tuple[str, ...]

    @property
    def in_full(self) -> str:
        """All that is said, as one text."""
        return " ".join(filter(None, [*self.promised, self.grounds]))

    @property
    def grounds(self) -> str:
        """What it rests on and what it leaves out, as one text; empty where nothing is said of either."""
        rests = " ".join(f"{condition.needed} {condition.checked}" for condition in self.conditions)
        left = " ".join(self.not_covered)
        parts = [
            f"The mechanism: {'; '.join(self.mechanisms)}." if self.mechanisms else "",
            f"What it rests on: {rests}" if rests else "",
            f"What it does not cover: {left}" if left else "",
        ]
        return " ".join(filter(None, parts))


def told(claims: Iterable[Claim]) -> Told:
    """Return what claims say.

    >>> told((RowNorm(2.0), NoPromise("Short rows tell as much as long ones."))).promised[0]
    'No row that it returns is longer than 2, which is checked in every message.'
    """
    found = tuple(claims)
    worded = [claim for claim in found if isinstance(claim, GaussianDP | PureDP | DetectionError)]
    return Told(
        promised=_once(_stated(claim, alone=len(found) == 1) for claim in found),
        mechanisms=_once(claim.mechanism for claim in worded),
        conditions=tuple(dict.fromkeys(condition for claim in worded for condition in claim.conditions)),
        not_covered=_once(line for claim in worded for line in claim.not_covered),
    )


def _stated(claim: Claim, *, alone: bool) -> str:
    if isinstance(claim, NoPromise):
        nothing = "It promises nothing" if alone else "It promises nothing beyond that"
        return f"{nothing} of what anybody learns from what is sent. {claim.why}"
    return sentence(claim.stated())


def sentence(text: str) -> str:
    """Return a text with a capital at its start and a full stop at its end.

    >>> sentence("each message is private")
    'Each message is private.'
    """
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def in_short(claims: Iterable[Claim]) -> str:
    """Return what kind of promise it is, in a few words for a listing.

    >>> in_short((GaussianDP(0.5, per="run"),))
    'μ of a label, per run'
    """
    return "; ".join(dict.fromkeys(filter(None, map(_in_short, claims)))) or "nothing"


def in_a_clause(claims: Iterable[Claim]) -> str:
    """Return what is promised, without what it rests on.

    >>> in_a_clause((NoPromise("Short rows tell as much as long ones."),))
    'promises nothing of what anybody learns from what is sent'
    >>> in_a_clause(())
    'states no promise'
    """
    found = tuple(claims)
    stated = [claim.stated() for claim in found if not isinstance(claim, NoPromise)]
    if stated:
        return "; ".join(dict.fromkeys(stated))
    return "promises nothing of what anybody learns from what is sent" if found else "states no promise"


def _in_short(claim: Claim) -> str:
    match claim:
        case GaussianDP():
            return f"μ of a label, per {claim.per}"
        case PureDP():
            return f"ε of a {claim.unit.split()[0]}, per {claim.per}"
        case DetectionError():
            return f"detection error, per {claim.per}{'' if claim.proven else ', under a model'}"
        case RowNorm():
            return "norm of rows"
        case Gaussian():
            return "noise on rows" if claim.bound is None else "noise on bounded rows"
        case _:
            return ""


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, texts)))
