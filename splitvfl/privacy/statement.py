"""What is claimed of a run, for whom and against whom, and what is not: one object for JSON, a report and a terminal.

>>> gap = NotCovered("alignment", "which records all parties have in common is told before training")
>>> statement = Statement(
...     mechanism="Gaussian noise on every message of HDP-VFL, sigma 12.3",
...     relation="row",
...     group=1,
...     epsilon=1.0,
...     delta=1e-6,
...     protected="the row of one record at shop",
...     against="all other parties together",
...     clipping="rows to norm 1, weights to norm 1, received derivatives to 1",
...     sampling="every record once an epoch, in an order that all parties know; nothing is amplified",
...     generator="AES-256 in counter mode, discrete Gaussian",
...     method="exact: Gaussian releases are one",
...     not_covered=(gap,),
... )
>>> print(statement.sentences()[0])
The row of one record at shop is protected from all other parties together: (ε, δ) = (1, 1e-06).
>>> Statement.from_json(statement.as_json()) == statement
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from splitvfl.errors import ArgumentError, count, number

Relation = Literal["label", "row", "record"]
"""What neighbours differ in: one label; one party's row of one record; one record at every party."""

LARGE_EPSILON = 10.0

IN_A_KNOWN_ORDER = "every record once an epoch, in an order that all parties know: nothing is amplified by it"
"""What is assumed of the order of records, and why no subsampling helps."""

_REASONS: Mapping[str, str] = {
    "statistics": "columns or targets scaled by statistics of the data depend on every record; take public bounds",
    "evaluation": "figures and messages of evaluations without noise show weights, which depend on the training rows",
    "early stopping": "when to stop, and which weights are the best, is decided by labels without noise",
    "tuning": "settings that were chosen by how well they did on these data are functions of them",
    "alignment": "which records the parties have in common is told before training",
    "float arithmetic": "sums and products are rounded in floating point before the noise is added",
    "malicious parties": "a party that does not clip, adds no noise or sends something else is not held to anything",
    "exact residues": "the label party's own weights learn from exact derivatives: noise on residues alone does not "
    "count what one label moves in all later messages; the recursion of the sensitivity does",
    "seeded noise": "the noise is drawn from a fixed seed, for experiments: who knows the seed takes it away",
    "generator": "the noise is drawn from a generator that is not cryptographic, in floating point",
    "prediction": "joint predictions and published scores are releases of their own",
}


@dataclass(frozen=True, slots=True)
class NotCovered:
    """Something that a claim does not cover.

    Attributes:
        item: What it is, in a word or two.
        reason: Why, in a sentence without a full stop.
    """

    item: str
    reason: str


def not_covered(*items: str) -> tuple[NotCovered, ...]:
    """Return known gaps with their reasons, in the order given.

    Raises:
        ArgumentError: If one is not known. Those of one's own are a :class:`NotCovered` each.

    >>> not_covered("alignment")[0].reason
    'which records the parties have in common is told before training'
    """
    unknown = [item for item in items if item not in _REASONS]
    if unknown:
        raise ArgumentError(f"expected some of {', '.join(_REASONS)}, got {', '.join(unknown)}")
    return tuple(NotCovered(item, _REASONS[item]) for item in items)


def claim_warnings(epsilon: float, delta: float, *, records: int | None = None) -> tuple[str, ...]:
    """Return what is to be said of an (ε, δ) that is formally right and promises little.

    Args:
        epsilon: ε in nats, from 0.
        delta: δ in (0, 1).
        records: Records that were trained on, if known.

    Raises:
        ArgumentError: If δ is 1 or more, which promises nothing at all, or a number is out of its range.

    >>> claim_warnings(1.0, 0.02, records=50)[0]
    'δ 0.02 is 1/50 or more: a mechanism that publishes one random record in full would be as private'
    """
    if not 0 < number("delta", delta) < 1:
        raise ArgumentError(f"delta must lie strictly between 0 and 1, got {delta!r}: from 1 on it promises nothing")
    if not number("epsilon", epsilon) >= 0:
        raise ArgumentError(f"epsilon must be at least 0, got {epsilon!r}")
    found = []
    if records is not None and delta >= 1.0 / count("records", records):
        found.append(
            f"δ {delta:g} is 1/{records} or more: a mechanism that publishes one random record in full would be "
            "as private"
        )
    if epsilon < delta:
        found.append(f"ε {epsilon:g} is below δ {delta:g}: δ is what counts then, and it is the larger loss")
    if epsilon > LARGE_EPSILON:
        found.append(f"ε {epsilon:g} is above {LARGE_EPSILON:g}: it allows an attacker to be all but certain")
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What is claimed of a run, and what is not.

    Attributes:
        mechanism: What is done to what is sent.
        relation: What neighbours differ in: ``"label"``, ``"row"`` or ``"record"``.
        group: Records of one entity that neighbours differ in, from 1.
        epsilon: ε in nats; infinite where nothing is promised.
        delta: δ, in (0, 1).
        protected: Who is protected, or what.
        against: From whom: the coalition.
        clipping: What is clipped to what, by whom.
        sampling: What is assumed of the order of the records.
        generator: Where the noise comes from.
        method: How ε was found.
        not_covered: What the claim does not cover.
        warnings: What is to be known of the numbers, from :func:`claim_warnings`.
        steps: Steps that it is about, if it is about a training.

    Raises:
        ArgumentError: If a number is out of its range, or the relation unknown.
    """

    mechanism: str
    relation: Relation
    group: int = 1
    epsilon: float
    delta: float
    protected: str
    against: str
    clipping: str
    sampling: str
    generator: str
    method: str
    not_covered: tuple[NotCovered, ...] = ()
    warnings: tuple[str, ...] = ()
    steps: int | None = None

    def __post_init__(self) -> None:
        claim_warnings(self.epsilon, self.delta)
        count("group", self.group)
        if self.relation not in get_args(Relation):
            raise ArgumentError(f"relation must be one of {', '.join(get_args(Relation))}, got {self.relation!r}")

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON has: an infinite ε is ``null``."""
        found = asdict(self)
        found["epsilon"] = self.epsilon if math.isfinite(self.epsilon) else None
        found["not_covered"] = [asdict(gap) for gap in self.not_covered]
        found["warnings"] = list(self.warnings)
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Statement:
        """Return what :meth:`as_json` made of a statement, also by way of a file.

        Raises:
            ArgumentError: If it is no statement.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(content) - known):
            raise ArgumentError(f"a statement has no {', '.join(unknown)}")
        taken = dict(content)
        try:
            taken["epsilon"] = math.inf if taken["epsilon"] is None else float(taken["epsilon"])
            taken["not_covered"] = tuple(NotCovered(**gap) for gap in taken.get("not_covered", ()))
            taken["warnings"] = tuple(taken.get("warnings", ()))
            return cls(**taken)
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"this is no statement of privacy: {error}") from error

    def sentences(self) -> list[str]:
        """Return it in words, a sentence each: the claim, then its conditions, warnings, and what is not covered."""
        span = "" if self.steps is None else f" in {self.steps} steps"
        if math.isfinite(self.epsilon):
            guarantee = (
                f"is protected from {self.against}: (ε, δ) = ({_rounded_up(self.epsilon)}, {self.delta:g}){span}."
            )
        else:
            guarantee = f"is not protected from {self.against}: no ε at δ = {self.delta:g}{span}."
        return [
            f"{_capital(self.protected)} {guarantee}",
            f"Neighbours: {_NEIGHBOURS[self.relation]}{self._of_group()}.",
            f"Mechanism: {self.mechanism}.",
            f"Clipping: {self.clipping}.",
            f"Sampling: {self.sampling}.",
            f"Noise from: {self.generator}.",
            f"Composed: {self.method}.",
            *(f"Warning: {warning}." for warning in self.warnings),
            *(f"Not covered, {gap.item}: {gap.reason}." for gap in self.not_covered),
        ]

    def _of_group(self) -> str:
        return "" if self.group == 1 else f", for any {self.group} records of one entity together"


_NEIGHBOURS: Mapping[str, str] = {
    "label": "data that differ in one record's label",
    "row": "data that differ in one record's row at one party, at the label party with its label",
    "record": "data that differ in one record, at every party",
}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rounded_up(epsilon: float) -> str:
    """Return an ε in four digits, never below it."""
    if epsilon == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    # What is a whole number of units but for rounding stays what it is.
    return f"{math.ceil(epsilon / unit - 1e-6) * unit:.4g}"
