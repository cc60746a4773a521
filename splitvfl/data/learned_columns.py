"""Which columns became numbers by what training records show, so that each of their values depends on all records."""

from __future__ import annotations

from typing import assert_never

from splitvfl.data.columns import PartyData
from splitvfl.data.encoding import FittedCategories, FittedNumbers
from splitvfl.data.schema import Encoder, HashEncoder, NumericEncoder, VocabularyEncoder, read_party_schema


def learned_columns(data: PartyData) -> tuple[str, ...] | None:
    """Return a party's columns whose encoding was learned from its training records; ``None``: nobody knows.

    Scales and fillings are learned unless ranges were given; categories that are listed always are, since which ones
    there are, and which are rare, is what training records show.
    """
    own = data.provenance
    if own is not None and own.encoding is not None:
        return tuple(one.column for one in own.encoding.columns if _is_learned(one))
    if own is not None and own.tables is not None:
        return tuple(one.column for one in read_party_schema(own.tables).encoders if _is_learned(one))
    return None


def _is_learned(column: FittedNumbers | FittedCategories | Encoder) -> bool:
    match column:
        case FittedNumbers():
            return column.is_learned
        case NumericEncoder():
            return column.fitted.is_learned
        case HashEncoder():  # of a key and a number of codes
            return False
        case FittedCategories() | VocabularyEncoder():
            return True
        case _:
            assert_never(column)
