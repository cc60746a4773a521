"""Public bounds of columns, by which numbers are scaled in place of statistics of the data.

A mean, a deviation, a median or a smallest value of a column depends on every record, and so does every row that was
scaled by them. What is promised of one record then holds of none. Bounds that are known without looking at the data,
from a code book or by law, keep records apart. They are a CSV file, with a line for each column of numbers::

    column,lower,upper
    age,18,100
    balance,-10000,1000000
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitvfl.data.spelling import setting
from splitvfl.data.tables import did_you_mean
from splitvfl.errors import ArgumentError, DataError
from splitvfl.system.untrusted_files import UntrustedFile

Bounds = tuple[float, float]

HEADER = ("column", "lower", "upper")
# Far more columns than a table has, and lines of names: what is larger is another file.
_MOST_BYTES = 1 << 26


@dataclass(frozen=True)
class Ranges:
    """Bounds of columns: smaller and larger numbers are taken for the bound that is nearer.

    Attributes:
        bounds: Lower and upper bound by column.
        source: Where they come from, for messages.

    Raises:
        DataError: If a bound is no finite number, or the lower one is not below the upper one.
    """

    bounds: Mapping[str, Bounds]
    source: str = "the given ranges"

    def __post_init__(self) -> None:
        """Check the bounds."""
        for column, bounds in self.bounds.items():
            _check(column, bounds, self.source)

    def of(self, columns: Iterable[str]) -> dict[str, Bounds]:
        """Return the bounds of these columns.

        Raises:
            DataError: If there are none of some of them; all of these are named.
        """
        wanted = list(columns)
        missing = [name for name in wanted if name not in self.bounds]
        if missing:
            named = ", ".join(map(repr, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
            hint = did_you_mean(missing[0], self.bounds) if len(missing) == 1 and self.bounds else ""
            raise DataError(
                f"{self.source} has no range of column{'s' if len(missing) > 1 else ''} {named}{hint}; every column of "
                f"numbers needs one: add it, or leave the column out ({setting('drop')})"
            )
        return {name: self.bounds[name] for name in wanted}


def _check(column: str, bounds: Bounds, source: str) -> None:
    what = f"{source}: range of column {column!r}: expected"
    lower, upper = bounds
    for name, bound in zip(HEADER[1:], bounds, strict=True):
        if not math.isfinite(bound):
            raise DataError(f"{what} a finite number as {name} bound, got {bound}")
    # A width beyond the largest number, or of nothing, scales no column.
    if not (lower < upper and math.isfinite(upper - lower)):
        raise DataError(f"{what} a lower bound below the upper one, got {lower:g} and {upper:g}")


GivenRanges = Ranges | Mapping[str, Bounds] | str | os.PathLike[str] | None
"""Ranges as they may be given."""


def read_ranges(path: str | os.PathLike[str]) -> Ranges:
    """Return the ranges in a file.

    Raises:
        DataError: If there is no such file, or it is not as it must be; the line is named.
    """
    file = Path(path)
    found = UntrustedFile(path=file, most=_MOST_BYTES, error=DataError, linked=True, piped=True)
    content = found.read()
    if content is None:
        raise DataError(f"ranges cannot be read from {file}: there is no such file")
    try:
        lines = io.StringIO(content.decode("utf-8-sig"), newline="")
        return Ranges(_bounds_in(lines, file), str(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is no CSV file of text in UTF-8: {error}") from error


def _bounds_in(lines: Iterable[str], file: Path) -> dict[str, Bounds]:
    reader = csv.reader(lines)
    header = tuple(cell.strip() for cell in next(reader, []))
    if header != HEADER:
        raise DataError(f"{file}, line 1: expected the header {','.join(HEADER)}, got {','.join(header)[:100]!r}")
    found: dict[str, Bounds] = {}
    for cells in reader:
        place = f"{file}, line {reader.line_num}"
        if not cells:
            continue
        if len(cells) != len(HEADER):
            raise DataError(f"{place}: expected a column's name and two bounds, got {len(cells)} cells")
        column = cells[0]
        if column in found:
            raise DataError(f"{place}: column {column!r} is there already; expected one line for each")
        lower, upper = (_number(cell, place, name) for cell, name in zip(cells[1:], HEADER[1:], strict=True))
        _check(column, (lower, upper), place)
        found[column] = (lower, upper)
    return found


def _number(cell: str, place: str, name: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise DataError(f"{place}: expected a number as {name} bound, got {cell!r}") from None


def as_ranges(given: object) -> Ranges | None:
    """Return ranges as such, out of a file's path or of a mapping from columns to bounds, if there are any.

    Raises:
        ArgumentError: If it is anything else.
        DataError: If the ranges are not as they must be.
    """
    match given:
        case None | Ranges():
            return given
        case str() | os.PathLike():
            return read_ranges(given)
        case Mapping():
            return Ranges({str(column): _pair(column, bounds) for column, bounds in given.items()})
        case _:
            raise ArgumentError(
                f"expected ranges as the path of a file or as {{column: (lower, upper)}}, got a {type(given).__name__}"
            )


def _pair(column: object, bounds: Any) -> Bounds:
    try:
        lower, upper = bounds
        return float(lower), float(upper)
    except (TypeError, ValueError):
        raise ArgumentError(f"range of column {column!r}: expected two numbers, got {bounds!r}") from None
