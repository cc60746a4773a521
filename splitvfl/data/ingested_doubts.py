"""Columns of ingested tables that may not be what they are taken for: from their schema, without a look at a row.

The rules of :mod:`splitvfl.data.doubts`, where the schema tells enough. Whole numbers are an id here if they spread as
evenly as row numbers do over about as many numbers as there are records, or are named so; codes are known by name only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from splitvfl.data.doubts import FEWEST, LOOKED_AT, REPEATED_IDS, Doubt, Kind, as_range, named_codes, named_id
from splitvfl.data.schema import Encoder, HashEncoder, NumericEncoder, VocabularyEncoder


def doubts_of_encoders(encoders: Sequence[Encoder], rows: int) -> tuple[Doubt, ...]:
    """Return what is doubtful about ingested columns, as far as their schema tells; no row is read.

    Args:
        encoders: One per column.
        rows: Training rows.
    """
    found = [(encoder.column, doubt) for encoder in encoders for doubt in _of_encoder(encoder, rows)]
    return tuple(Doubt(kind, column, why) for column, (kind, why) in found)


def _of_encoder(encoder: Encoder, rows: int) -> Iterator[tuple[Kind, str]]:
    match encoder:
        case NumericEncoder():
            yield from _of_numeric(encoder)
        case VocabularyEncoder():
            yield from _of_vocabulary(encoder, rows)
        case HashEncoder():  # nothing was listed
            return


def _of_numeric(encoder: NumericEncoder) -> Iterator[tuple[Kind, str]]:
    if 2 * encoder.gaps > encoder.rows:
        yield "gaps", f"{encoder.gaps / encoder.rows:.0%} missing"
    if encoder.low == encoder.high and encoder.gaps == 0 and encoder.rows > 1:
        yield "constant", f"always {encoder.low:g}"
    elif encoder.kind == "integer":
        span = encoder.high - encoder.low + 1
        if encoder.gaps == 0 and (
            _numbered_through(encoder, span) or (named_id(encoder.column) and span > REPEATED_IDS)
        ):
            yield "id", f"whole numbers, {as_range(encoder.low, encoder.high)}, in {encoder.rows:,} records"
        elif named_codes(encoder.column, int(min(span, LOOKED_AT))):
            yield "codes", f"whole numbers, {as_range(encoder.low, encoder.high)}"


def _numbered_through(encoder: NumericEncoder, span: float) -> bool:
    """Return whether numbers spread as evenly as those of rows do: over about as many as there are records."""
    learned = encoder.scale == "standard" and encoder.bounds is None
    even = abs(encoder.spread / (span / math.sqrt(12)) - 1) < 0.05 if learned else False
    return encoder.rows >= FEWEST and even and 0.9 * encoder.rows <= span <= 3 * encoder.rows


def _of_vocabulary(encoder: VocabularyEncoder, rows: int) -> Iterator[tuple[Kind, str]]:
    distinct = encoder.categories + encoder.rare
    if distinct == 1 and encoder.missing_code == 0 and rows > 1:
        yield "constant", "always the same"
    elif rows >= FEWEST and distinct >= 0.95 * rows:
        yield "id", f"{distinct:,} different values in {rows:,} records"
