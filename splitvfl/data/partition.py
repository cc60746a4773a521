"""Which party holds which columns.

A party's claim is one of

- names and patterns: ``["LIMIT_BAL", "PAY_*"]``, or the same in one string, ``"LIMIT_BAL, PAY_*"``. Patterns are
  shell-style and case-sensitive; a name that is spelt exactly is itself, even if it holds ``*`` or ``[``;
- a share in (0, 1]: that part of the columns that no name claims, consecutive and in the table's order. The parties'
  shares follow each other, the active party's first;
- ``"rest"``: what is left after names and shares. One party at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeGuard

from splitvfl.data.tables import did_you_mean, listed
from splitvfl.errors import ArgumentError, DataError

ColumnClaim = str | float | Sequence[str]
REST = "rest"


def divide(
    columns: Sequence[str], claims: Mapping[str, ColumnClaim], *, source: str, reserved: Mapping[str, str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return every party's columns, in the table's order; each column belongs to exactly one party.

    Args:
        columns: The features: the table's columns without label, id and dropped ones.
        claims: Each party's claim, the active party first.
        source: Where the columns come from, for messages.
        reserved: The table's other columns, and what they are instead.

    Raises:
        ArgumentError: If a claim is malformed, shares exceed 1, or two parties claim the rest.
        DataError: If a name or pattern matches no column, two parties claim one column, or nobody claims it.

    >>> divide(["AGE", "PAY_0", "PAY_2", "BILL"], {"bank": "AGE", "telecom": "PAY_*", "shop": "rest"}, source="a table")
    {'bank': ('AGE',), 'telecom': ('PAY_0', 'PAY_2'), 'shop': ('BILL',)}
    """
    owner: dict[str, str] = {}
    for party, claim in claims.items():
        if _is_share(claim) or claim == REST:
            continue
        for column in matching(patterns(claim), columns, source=source, reserved=reserved):
            if owner.setdefault(column, party) != party:
                raise DataError(f"column {column!r} is claimed by both {owner[column]} and {party}")
    owner |= _by_share([column for column in columns if column not in owner], claims)
    left = [column for column in columns if column not in owner]
    rest = [party for party, claim in claims.items() if claim == REST]
    if len(rest) > 1:
        raise ArgumentError(f"expected one party at most to claim the rest, got {' and '.join(rest)}")
    if left and not rest:
        raise DataError(
            f"no party claims {listed(left)} of {source}; name them at a party, write 'rest' at one, or drop them"
        )
    for column in left:
        owner[column] = rest[0]
    return {party: tuple(column for column in columns if owner[column] == party) for party in claims}


def _is_share(claim: ColumnClaim) -> TypeGuard[float]:
    return isinstance(claim, int | float) and not isinstance(claim, bool)


def _by_share(columns: Sequence[str], claims: Mapping[str, ColumnClaim]) -> dict[str, str]:
    owner: dict[str, str] = {}
    taken = 0.0
    for party, claim in claims.items():
        if not _is_share(claim):
            continue
        if not 0 < claim <= 1:
            raise ArgumentError(f"expected {party}'s share of the columns in (0, 1], got {claim}")
        start, taken = round(taken * len(columns)), taken + claim
        # Thirds add up to 1 only nearly.
        if taken > 1 + 1e-9:
            raise ArgumentError(f"the parties' shares of the columns add up to {taken:g}; expected 1 at most")
        owner |= dict.fromkeys(columns[start : round(taken * len(columns))], party)
    return owner


def patterns(claim: object) -> tuple[str, ...]:
    """Return the names and patterns of a claim that is a list, or one string with commas.

    Raises:
        ArgumentError: If it is neither.
    """
    if isinstance(claim, str):
        return tuple(part.strip() for part in claim.split(",") if part.strip())
    if isinstance(claim, Sequence) and all(isinstance(part, str) for part in claim):
        return tuple(claim)
    raise ArgumentError(f"expected column names or patterns, a share in (0, 1] or 'rest', got {claim!r}")


def matching(
    wanted: Sequence[str], columns: Sequence[str], *, source: str, reserved: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the columns that a list of names and patterns means, in the table's order.

    Args:
        wanted: Names and shell-style patterns.
        columns: What there is to match.
        source: Where the columns come from, for messages.
        reserved: Columns that are no features, and what they are instead.

    Raises:
        DataError: If one of ``wanted`` matches nothing.
    """
    found: set[str] = set()
    known = frozenset(columns)
    for pattern in wanted:
        hits = [pattern] if pattern in known else meant_by(pattern, columns)
        if not hits and reserved and pattern in reserved:
            raise DataError(f"{pattern!r} is {reserved[pattern]} of {source} and no feature")
        if not hits:
            raise DataError(
                f"no column {pattern!r} in {source}{did_you_mean(pattern, columns, used={*wanted, *found})}"
            )
        found.update(hits)
    return tuple(column for column in columns if column in found)


def meant_by(pattern: str, columns: Iterable[str]) -> list[str]:
    """Return the columns that a shell-style pattern means."""
    if not any(mark in pattern for mark in "*?["):  # so that a long list of names does not look at every column each
        return []
    return [column for column in columns if fnmatchcase(column, pattern)]
