"""Columns of a table, with errors that say what is wrong in them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from splitvfl.data.spelling import setting
from splitvfl.errors import DataError

Rows = npt.NDArray[np.int64]
# Several names in one, because something else than a delimiter that is known stands between them.
_SEPARATED = re.compile(r"\w['\"]?[^\w'\"-]+['\"]?\w")


REFUSED, LIST = b"splitvfl.refused", b"splitvfl.list"
"""What a plain table says of a column (:mod:`splitvfl.data.plain_columns`): why it cannot be used, and the column of
lists that it is a place of."""


def column_of(table: pa.Table, name: str, *, source: str) -> pa.Array:
    """Return a column as one array.

    Raises:
        DataError: If there is no such column, with the nearest name; or it cannot be used, with the reason.
    """
    place = table.schema.get_field_index(name)
    if place < 0:
        raise DataError(f"no column {name!r} in {source}{did_you_mean(name, table.column_names)}")
    check_usable(table.schema.field(place), source=source)
    return table.column(place).chunk(0)


def refusal(field: pa.Field) -> str | None:
    """Return why a column of a plain table cannot be used; ``None`` if it can."""
    why = (field.metadata or {}).get(REFUSED)
    return None if why is None else why.decode()


def is_place(field: pa.Field) -> bool:
    """Return whether a column of a plain table is a place of lists."""
    return LIST in (field.metadata or {})


def check_usable(field: pa.Field, *, source: str) -> None:
    """Check that a column of a plain table can be used.

    Raises:
        DataError: If not, with the reason.
    """
    why = refusal(field)
    if why is not None:
        raise unusable(field.metadata.get(LIST, field.name.encode()).decode(), why, source=source)


def unusable(name: str, why: str, *, source: str) -> DataError:
    """Return the error that a column cannot be used; the reason ends with what to do about it."""
    return DataError(f"column {name!r} of {source} {why}, or leave it out ({setting('drop')})")


def did_you_mean(name: str, known: Iterable[str], *, used: Container[str | None] = ()) -> str:
    """Return ``"; did you mean 'AGE'?"``, or what there is when nothing comes near.

    Args:
        name: What was asked for.
        known: What there is.
        used: What of it is in use for something else, and is not meant.
    """
    known = [one for one in known if one not in used]
    if not known:
        return ""
    if len(known) == 1 and _SEPARATED.search(known[0]):
        return f"; there is one column only, {known[0]!r}: which delimiter? Expected comma, semicolon, tab or |"
    # Compared in lower case, because case is the commonest mistake and weighs as much as any other letter.
    by_lower = {other.lower(): other for other in known}
    if f"{name}_0" in by_lower.values():  # a column of lists
        return f"; did you mean {name + '_*'!r}?"
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    if near:
        return f"; did you mean {by_lower[near[0]]!r}?"
    return f"; there are {listed(known)}"


def is_text(column: pa.Array) -> bool:
    """Return whether a column holds text."""
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def is_number(column: pa.Array) -> bool:
    """Return whether a column holds numbers or truth values; a column without any value counts as numbers."""
    kind = column.type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def what_else(kind: pa.DataType) -> str:
    """Return what is said of a column of a type that is neither numbers nor text, and what to do about it."""
    if pa.types.is_temporal(kind):
        return (
            f"{neither(kind)}: dates; leave it out ({setting('drop')}), or make numbers of it, such as days since a day"
        )
    return f"{neither(kind)}; leave it out ({setting('drop')})"


def neither(kind: pa.DataType) -> str:
    """Return that a column is of a type that is neither numbers nor text."""
    return f"holds neither numbers nor text but {kind}"


def numbers(column: pa.Array) -> npt.NDArray[np.float64]:
    """Return a numeric column as float64 with NaN where a value is missing."""
    values: npt.NDArray[np.float64] = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def listed(names: list[str], limit: int = 12) -> str:
    """Return quoted names with commas, the first few of many."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
