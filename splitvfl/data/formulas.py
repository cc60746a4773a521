"""Cells that a spreadsheet takes for formulas.

A spreadsheet that opens a CSV file calculates a text that begins as a formula does, and a formula can call for other
files, addresses and programs. Ids are anybody's: a partner's customers, say. They are never changed on the way into a
file, as an id with another letter in it is another id; that there are some is said, or they are refused.

Spreadsheets differ. ``-5`` and ``+5`` are numbers in all of them. ``=1`` is a formula; ``-1+2``, ``+1+2`` and
``@SUM(1)`` are in some, and full-width signs in some languages. What is one anywhere counts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.tables import is_text
from splitvfl.errors import DataError, shown

# Of full width and small, too. Spaces, quotes and what cannot be seen may stand before, and some programs drop them.
_SIGNS: Final = "=+\\-@＝＋－＠﹦﹢﹣﹫"
_BEGINS: Final = rf"""^(?:[\t\r\n]|[\pZ\pC"'‘’“”`´]*[{_SIGNS}])"""
_NUMBER: Final = r"^[+-](?:[0-9]+(?:[.,][0-9]+)*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?%?$"


SPREADSHEETS: Final = "A spreadsheet may evaluate such cells. They are written unchanged; --strict-ids refuses them"
"""What is said where such ids are written to a file."""


class Formulas(NamedTuple):
    """Cells of a column that begin as formulas do.

    Attributes:
        cells: How many there are, 1 or more.
        first: The first one.
        row: Its row, from 0.
    """

    cells: int
    first: str
    row: int


def formulas_in(cells: pa.Array) -> Formulas | None:
    """Return which cells of a column begin as formulas do; ``None`` if none does. Numbers do not, whatever their sign.

    >>> formulas_in(pa.array(["c1", "-5", "=1+1", "-1+2"]))
    Formulas(cells=2, first='=1+1', row=2)
    >>> formulas_in(pa.array([-5, 3])) is None
    True
    """
    if not is_text(cells):
        return None
    begins = pc.match_substring_regex(cells, _BEGINS)
    found = pc.and_not(begins, pc.match_substring_regex(cells, _NUMBER))
    rows = pc.indices_nonzero(pc.fill_null(found, False))
    if not len(rows):
        return None
    row = rows[0].as_py()
    return Formulas(len(rows), cells[row].as_py(), row)


def formulas_said(names: pa.Array, *, name_column: str) -> str:
    """Return in a sentence which names of records a spreadsheet takes for formulas; nothing if it takes none for one.

    Args:
        names: What the records are called.
        name_column: What the column of their names is called, which stands in the file too.
    """
    found = formulas_in(names)
    if found is not None:
        begins = "begins" if found.cells == 1 else "begin"
        return (
            f"{found.cells:,} of {len(names):,} ids in {shown(name_column)} {begins} as a formula does, the first at "
            f"row {found.row:,} (from 0): {shown(found.first)}"
        )
    if formulas_in(pa.array([name_column])) is not None:
        return f"the name of the id column begins as a formula does: {shown(name_column)}"
    return ""


def check_no_formulas(names: pa.Array, *, name_column: str) -> None:
    """Refuse names of records that a spreadsheet takes for formulas.

    Args:
        names: What the records are called.
        name_column: What the column of their names is called.

    Raises:
        DataError: If there is one.
    """
    if said := formulas_said(names, name_column=name_column):
        raise DataError(
            f"{said}. A spreadsheet may calculate them. Nothing was scored or written; give these records other ids, "
            "or leave out --strict-ids (strict_ids=False)"
        )
