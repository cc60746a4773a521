"""How the cells of a file are written that nobody has described: decimal comma, thousands, words for gaps.

Units are not guessed: whether 12.5% is 12.5 is not for a program to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from splitvfl.data.cell_format import AS_USUAL, CellFormat, NumbersInText, is_readable, numbers_in_text, read_cells
from splitvfl.data.chunks import Source
from splitvfl.data.csv_source import CsvSource
from splitvfl.data.number_text import PLAIN, NumberStyle, is_gap
from splitvfl.data.sources import origin_of, read_whole
from splitvfl.data.tables import is_text
from splitvfl.errors import shown

# Rows by which styles are compared.
_SOME_ROWS: Final = 100_000
_MOST_GAPS: Final = 3
_THOUSANDS: Final = (",", ".", " ", "'")


class GuessedCells(NamedTuple):
    """How the cells of a file are written.

    Attributes:
        written: How.
        why: A sentence for each guess.
    """

    written: CellFormat
    why: tuple[str, ...] = ()


AS_WRITTEN: Final = GuessedCells(AS_USUAL)
"""Nothing has to be said of cells."""


def guess_cells(source: Source, table: pa.Table) -> GuessedCells:
    """Return how the cells of a file are written.

    Args:
        source: The file.
        table: All of it, as it is read without any setting.
    """
    looks = _numbers_in(table, AS_USUAL)
    if not looks:
        return AS_WRITTEN
    # Of a CSV file, 1.234 may have been read as a fraction already.
    raw = table if source.typed else read_whole(source, text=table.column_names)
    style = _best_style(raw.slice(0, _SOME_ROWS).combine_chunks(), looks, source)
    written = _format_of(style, typed=source.typed)
    found = {name: one for name, one in _numbers_in(raw, written).items() if _is_read(one, style)}
    gaps = tuple(dict.fromkeys(odd for one in found.values() for odd in one.odd))
    written = CellFormat(
        missing_values=gaps, decimal=written.decimal if found else None, thousands=written.thousands if found else None
    )
    return GuessedCells(written, tuple(_said(source.name, written, found)))


def read_guessed(source: Source, table: pa.Table, written: CellFormat) -> pa.Table:
    """Return a table, read as its cells are written, with text that is numbers as numbers; other text stays text.

    Args:
        source: The file, opened with that.
        table: All of it.
        written: How its cells are written.
    """
    if not written.is_given:
        return table
    text = [name for name in table.column_names if is_text(table[name])]
    found = _numbers_in(table, written)
    numbers = {name for name, one in found.items() if is_readable(one, written, typed=source.typed)}
    others = [name for name in text if name not in numbers]
    typed = [name for name in table.column_names if name not in text]
    return read_cells(table, origin_of(source), written, judged=[*numbers, *typed], declared=others)


def _numbers_in(table: pa.Table, written: CellFormat) -> dict[str, NumbersInText]:
    """Return the columns of text that look like numbers."""
    columns = {name: column.combine_chunks() for name, column in zip(table.column_names, table.columns, strict=True)}
    looks = {name: numbers_in_text(column, written) for name, column in columns.items() if is_text(column)}
    return {name: one for name, one in looks.items() if one is not None}


def _best_style(table: pa.Table, looks: Mapping[str, NumbersInText], source: Source) -> NumberStyle:
    """Return the style in which most columns are numbers; of several, the one that needs the fewest settings."""
    # Where cells end with a semicolon, the comma is taken: 1,234 is a fraction then.
    usual = "," if isinstance(source, CsvSource) and source.delimiter == ";" else "."
    decimals = dict.fromkeys([".", usual, *(one.style.decimal for one in looks.values())])
    grouped = any(one.style.thousands or one.style.decimal == "," for one in looks.values())
    thousands = [None, *_THOUSANDS] if grouped else [None]
    styles = [NumberStyle(decimal, mark) for mark in thousands for decimal in decimals if decimal != mark]
    styles.sort(key=lambda style: (style != PLAIN, style.decimal != usual, style.thousands is not None))
    scores = {style: _score(table, style, typed=source.typed) for style in styles}
    return max(styles, key=lambda style: scores[style])


def _score(table: pa.Table, style: NumberStyle, *, typed: bool) -> int:
    return sum(_is_read(one, style) for one in _numbers_in(table, _format_of(style, typed=typed)).values())


def _format_of(style: NumberStyle, *, typed: bool) -> CellFormat:
    """Return the settings of a style; text in columns that have types is read as numbers where they are said."""
    decimal = style.decimal if typed or style.decimal != "." else None
    return CellFormat(decimal=decimal, thousands=style.thousands)


def _is_read(found: NumbersInText, style: NumberStyle) -> bool:
    """Return whether all cells are numbers in a style, or say that nothing is known."""
    return found.style == style and len(found.odd) <= _MOST_GAPS and all(map(is_gap, found.odd))


def _said(name: str, written: CellFormat, found: Mapping[str, NumbersInText]) -> Iterator[str]:
    style = [f"decimal {written.decimal!r}"] if written.decimal else []
    style += [f"thousands {written.thousands!r}"] if written.thousands else []
    if style:
        column, one = next(iter(found.items()))
        column, one = next(((name, one) for name, one in found.items() if _shows(one, written)), (column, one))
        yield f"how numbers are written in {name}: {', '.join(style)} (such as {one.example!r} in {column})"
    for gap in written.missing_values:
        columns = [column for column, one in found.items() if gap in one.odd]
        yield f"taken for missing values in {name}: {shown(gap)} among the numbers of {', '.join(columns)}"


def _shows(found: NumbersInText, written: CellFormat) -> bool:
    """Return whether the example of a column shows how numbers are written."""
    return any(mark in found.example for mark in (written.decimal, written.thousands) if mark)
