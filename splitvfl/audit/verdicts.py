"""What an audit says of a claim, and of a defense."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from splitvfl.audit.calculation import Calculated
from splitvfl.audit.ceilings import right_allowed
from splitvfl.claims import Condition
from splitvfl.privacy.audit import Measured

Verdict = Literal["proven", "not refuted", "not covered", "violated", "no claim"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class ClaimAudit:
    """One claim of a defense, and what was found of it.

    Attributes:
        claim: What is claimed, in a sentence.
        quantity: ``"ε"``, ``"δ"``, ``"μ"``, ``"detection error"`` or ``"norm"``; empty: nothing that is a number.
        claimed: Its value; ``None``: none.
        relation: What neighbours differ in; empty: nothing was compared.
        per: ``"message"`` or ``"run"``; empty where that makes no difference.
        verdict: The verdict.
        why: What it rests on, in whole sentences; the first one decides.
        calculated: What a calculation says of it, if there is one.
        measured: The strongest lower bound; ``None``: nothing was measured.
        inputs: The two neighbouring inputs that were told apart best.
        limits: Whether it limits what anybody learns; noise on rows that nothing bounds does not.
        seen: What was looked at together for that bound, in words; empty: nothing was measured.
    """

    claim: str
    quantity: str
    claimed: float | None
    relation: str
    verdict: Verdict
    why: tuple[str, ...]
    calculated: Calculated | None = None
    measured: Measured | None = None
    inputs: str = ""
    per: str = ""
    limits: bool = True
    seen: str = ""

    @property
    def short(self) -> str:
        """The claim in a few words, for a table."""
        if self.claimed is None:
            return self.claim if len(self.claim) < 30 else f"{self.claim[:28]}…"
        sign = "≥" if self.quantity == "detection error" else "≤"
        words = [f"{self.quantity} {sign} {self.claimed:.3g}", self.relation.removesuffix(" of a record")]
        return ", ".join(filter(None, [*words, self.per and f"per {self.per}"]))

    @property
    def bound(self) -> float | None:
        """What was measured, in the unit of the claim: at least so much, of a detection error at most."""
        return None if self.measured is None else self._in_unit(self.measured.bound)

    @property
    def refutable(self) -> float | None:
        """The largest claim that so many draws could refute; of a detection error the smallest."""
        return None if self.measured is None else self._in_unit(self.measured.ceiling)

    def _in_unit(self, value: float) -> float:
        return 0.5 * (1.0 - value) if self.quantity == "detection error" else value

    def _right(self, value: float | None) -> float | None:
        return right_allowed(self.quantity, value) if self.limits else None

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON has; an infinite number is ``null``."""
        event = None if self.measured is None else self.measured.event._asdict()
        return {
            "claim": self.claim,
            "quantity": self.quantity,
            "claimed": _finite(self.claimed),
            "right": self._right(self.claimed),
            "relation": self.relation,
            "per": self.per,
            "verdict": self.verdict,
            "why": list(self.why),
            "calculated": None if self.calculated is None else _finite(self.calculated.value),
            "calculated_right": None
            if self.calculated is None
            else right_allowed(self.quantity, self.calculated.value),
            "calculated_by": "" if self.calculated is None else self.calculated.by,
            "measured": _finite(self.bound),
            "refutable": _finite(self.refutable),
            "confidence": None if self.measured is None else self.measured.confidence,
            "statistic": "" if self.measured is None else self.measured.statistic,
            "event": event,
            "inputs": self.inputs,
            "seen": self.seen,
        }


@dataclass(frozen=True, slots=True)
class DefenseAudit:
    """One defense, and what was found of its claims.

    Attributes:
        defense: Its name.
        crossing: Which message it changes.
        claims: One audit for each claim, at least one.
        gaps: What could not be audited, in whole sentences.
        left_out: What the defense itself says that its claims leave out, in whole sentences.
        conditions: What its claims rest on, with what is checked of each in a run.
    """

    defense: str
    crossing: str
    claims: tuple[ClaimAudit, ...]
    gaps: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its claims: violated, not covered, no claim, not refuted, proven, in this order.

        What is stated of norms and of noise alone is no promise of privacy, so that no claim comes before proven.
        """
        order: tuple[Verdict, ...] = ("violated", "not covered", "no claim", "not refuted", "proven")
        found = {claim.verdict for claim in self.claims}
        return next(verdict for verdict in order if verdict in found)

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON has."""
        return {
            "defense": self.defense,
            "crossing": self.crossing,
            "verdict": self.verdict,
            "claims": [claim.as_json() for claim in self.claims],
            "gaps": list(self.gaps),
            "left_out": list(self.left_out),
            "conditions": [condition._asdict() for condition in self.conditions],
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
