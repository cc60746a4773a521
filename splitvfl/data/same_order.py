"""Tables whose rows are taken to be the same records in the same order, although they say themselves that they are not.

Two things speak against it: indexes of pandas, and a column that tells all records apart and is in both tables. That
columns have one name says nothing, nor does an index that pandas has counted from 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.tables import is_number, is_text, numbers

RESET: Final = "reset_index(drop=True) in both"


def index_against(one: Any, other: Any) -> str:
    """Return in words how the indexes of two pandas objects contradict that their rows are in the same order.

    Args:
        one: Anything; without an index of pandas, nothing contradicts.
        other: As well.
    """
    own, theirs = (getattr(given, "index", None) if hasattr(given, "reset_index") else None for given in (one, other))
    if own is None or theirs is None or len(own) != len(theirs) or own.equals(theirs):
        return ""
    labels, others = own.tolist(), theirs.tolist()
    if labels == others:
        return ""
    if Counter(labels) == Counter(others):
        return "their indexes have the same labels in another order"
    return "" if _is_counted(own) or _is_counted(theirs) else "their indexes have different labels"


def _is_counted(index: Any) -> bool:
    """Return whether pandas made an index by counting from 0."""
    return getattr(index, "start", None) == 0 and getattr(index, "step", None) == 1


def column_against(one: pa.Table, other: pa.Table) -> str | None:
    """Return a column that tells the rows of both tables apart, with the same values in another order, if there is one.

    Args:
        one: A table in one piece.
        other: Another one, of as many rows.
    """
    places = {name: place for place, name in enumerate(other.column_names)}
    names: list[str] = one.column_names
    for name, column in zip(names, one.columns, strict=True):
        if name in places and _is_shuffled(column, other.column(places[name])):
            return name
    return None


def _is_shuffled(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if not all(_tells_apart(column) for column in (one, other)):
        return False
    if is_number(one) and is_number(other):
        ours, theirs = numbers(one), numbers(other)
        return not np.array_equal(ours, theirs) and np.array_equal(np.sort(ours), np.sort(theirs))
    if is_text(one) and is_text(other):
        one, other = (column.cast(pa.large_string()) for column in (one, other))
    if one.type != other.type:
        return False
    ordered = [column.take(pc.sort_indices(column)) for column in (one, other)]
    return not one.equals(other) and bool(ordered[0].equals(ordered[1]))


def _tells_apart(column: pa.ChunkedArray) -> bool:
    """Return whether a column holds another value in each row, of a type that has an order."""
    kind = column.type
    ordered = is_number(column) or is_text(column) or pa.types.is_temporal(kind)
    return ordered and not column.null_count and len(column) > 1 and pc.count_distinct(column).as_py() == len(column)


def refused(given: Mapping[str, Any], read: Mapping[str, pa.Table]) -> str:
    """Return in words what contradicts that all tables hold the same records in the same order; else an empty text.

    Args:
        given: What was given, by party.
        read: The same as tables of Arrow.
    """
    for first, other in combinations(given, 2):
        joined = f"the tables of {first} and {other} would be joined row by row, but"
        named = "name the column that tells which record is which (id=; in an experiment data.id_column)"
        against = index_against(given[first], given[other])
        if against:
            return f"{joined} {against}; {named}, or, if the rows belong together as they stand, call {RESET}"
        column = column_against(read[first], read[other])
        if column is not None:
            return (
                f"{joined} column {column!r} has the same values in both, in another order; {named}, or, if it is "
                "another thing in each table, rename it in one"
            )
    return ""
