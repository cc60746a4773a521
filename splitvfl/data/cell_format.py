"""How cells are written: what says that nothing is known, and how numbers look.

There is one rule for files, frames and estimators. A column of text of which half of the different values are numbers,
or half of the values, is a mistake, unless it is declared to be text or categories, or holds codes
(:func:`splitvfl.data.number_text.are_codes`). In a file it is an error, in a frame a
:class:`~splitvfl.data.doubts.DoubtWarning`. With settings, such a column is read as numbers, and strictly: a cell that
is none is an error with its place.

In a column of numbers, :data:`~splitvfl.data.number_text.GAPS` and ``missing_values`` are gaps. In a column of text,
only ``missing_values`` are: the country ``NA`` and the category ``None`` stay what they are. In a column of ``text``
every cell stays as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.date_text import dates_in_text
from splitvfl.data.number_forms import is_unit
from splitvfl.data.number_text import (
    BRACKETS,
    GAPS,
    NumberStyle,
    counted,
    different,
    is_gap,
    is_written,
    looks_numeric,
    style_of,
    to_numbers,
    units_of,
)
from splitvfl.data.spelling import setting
from splitvfl.data.tables import is_number, is_text, listed
from splitvfl.errors import ArgumentError, DataError

Place = Callable[[int], str]
"""Says where a row stands."""

MOST_VALUES: Final = 1 << 16
_UNIT: Final = b"splitvfl.unit"
_ODD_SHOWN: Final = 3
_MOST_ODD: Final = 1000
_DECIMALS: Final = (".", ",")
_THOUSANDS: Final = (",", ".", " ", "'", "\u00a0", "\u202f", "\u2009", "\u2019")


class CellFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the cells of a table are written; as JSON through ``msgspec.json``.

    Attributes:
        missing_values: What says that nothing is known, beside the usual.
        decimal: The decimal separator; ``None``: a point, and typed columns of text stay text.
        thousands: What stands between groups of three digits; ``None``: nothing does.
        units: What stands before or behind a number, and is left out; ``"()"`` for accounting brackets.
        text: Columns whose cells stay as they stand.
        column_units: The unit that each column of numbers had when it was learned from, ``""`` where it had none; empty
            before that, and where no units are named.

    Raises:
        ArgumentError: If a separator is none, or both are the same.
    """

    missing_values: tuple[str, ...] = ()
    decimal: str | None = None
    thousands: str | None = None
    units: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    column_units: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Check the separators and the units."""
        if self.decimal not in (None, *_DECIMALS):
            raise ArgumentError(f"expected {setting('decimal')} as a point or a comma, got {self.decimal!r}")
        if self.thousands not in (None, *_THOUSANDS):
            raise ArgumentError(
                f"expected {setting('thousands')} as a comma, a point, a space or an apostrophe, got {self.thousands!r}"
            )
        if self.thousands == self.style.decimal:
            other = "," if self.thousands == "." else "."
            raise ArgumentError(
                f"{setting('thousands', self.thousands)} and the decimal separator {self.style.decimal!r} are the "
                f"same; set {setting('decimal', other)}, or another {setting('thousands')}"
            )
        for unit in self.units:
            if unit != BRACKETS and not is_unit(unit):
                raise ArgumentError(
                    f"expected {setting('units')} such as '$', '%', 'kg' or '()', got {unit!r}, which may be part of a "
                    "number"
                )

    @property
    def style(self) -> NumberStyle:
        """How numbers are written."""
        return NumberStyle(self.decimal or ".", self.thousands, self.units)

    @property
    def is_given(self) -> bool:
        """Whether anything was said of cells: then typed columns of text are read too."""
        return bool(self.missing_values or self.decimal or self.thousands or self.units)

    @property
    def gaps(self) -> tuple[str, ...]:
        """What says in a column of numbers that nothing is known."""
        return (*GAPS, *self.missing_values)


AS_USUAL: Final = CellFormat()
"""Nothing was said of cells."""


def cell_format(
    missing_values: object, decimal: str | None, thousands: str | None, units: object, text: Collection[str] = ()
) -> CellFormat:
    """Return settings as they are used; numbers among the missing values become text.

    Raises:
        ArgumentError: If one is malformed.
    """
    return CellFormat(
        missing_values=_texts("missing_values", missing_values, decimal or "."),
        decimal=decimal,
        thousands=thousands,
        units=_texts("units", units),
        text=tuple(text),
    )


def _texts(name: str, given: object, decimal: str = ".") -> tuple[str, ...]:
    found = [given] if isinstance(given, str | int | float) else given
    if not isinstance(found, Sequence) or not all(_is_cell(one) for one in found):
        raise ArgumentError(f"expected {setting(name)} as a list of texts, got {given!r}")
    return tuple(_as_cell(one, decimal) for one in found)


def _as_cell(one: str | float, decimal: str) -> str:
    """Return a value as a cell holds it: a number of YAML or Python is written as the numbers of the file are."""
    if isinstance(one, str):
        return one.strip()
    return str(int(one)) if math.isfinite(one) and one == int(one) else repr(one).replace(".", decimal)


def _is_cell(one: object) -> bool:
    return isinstance(one, str | int | float) and not isinstance(one, bool)


# --- strict reading


class Mistake(NamedTuple):
    """A cell that is no number.

    Attributes:
        row: Its row.
        cell: What it holds.
        why: What is wrong, if it is more than that.
    """

    row: int
    cell: str
    why: str = ""

    def advice(self, written: CellFormat) -> str:
        """Return what is wrong with it beside that it is no number, or else what to set if it is a gap."""
        if self.why or not is_gap(self.cell):
            return self.why
        missing = setting("missing_values", [*written.missing_values, self.cell.strip()])
        return f"; if it says that nothing is known, set {missing}"


def read_numbers(cells: pa.Array, written: CellFormat, *, unit: str | None = None) -> pa.Array | Mistake:
    """Return text as numbers, or the first cell that is none: int64 if all are whole, else float64.

    Args:
        cells: The text.
        written: How it is written.
        unit: The unit that all cells but zeros must have; ``None``: that of the first.
    """
    found = cells.dictionary_encode()
    indices = found.indices.to_numpy(zero_copy_only=False)
    values = pc.utf8_trim_whitespace(found.dictionary)
    gaps = pc.is_in(values, pa.array(written.gaps, values.type))
    numeric = pc.and_(is_written(values, written.style), pc.invert(gaps))
    odd = _numpy(pc.invert(pc.or_(numeric, gaps)))
    if odd.any():
        row = _first_row(indices, odd)
        return Mistake(row, cells[row].as_py())
    fits = _numpy(numeric)
    numbers = to_numbers(values.filter(numeric), written.style)
    if written.units:
        mistake = _other_unit(cells, values, numbers, fits, indices, written.style, unit)
        if mistake is not None:
            return mistake
    places = pa.array(np.cumsum(fits) - 1, pa.int64(), mask=~fits)
    return without_sentinels(numbers.take(places).take(found.indices), written)


def _numpy(mask: pa.Array) -> Any:
    return mask.to_numpy(zero_copy_only=False).astype(bool)


def _first_row(indices: Any, wanted: Any) -> int:
    """Return the first row whose value is one of those that are wanted; a null is none."""
    known = ~np.isnan(indices) if indices.dtype.kind == "f" else np.ones(len(indices), bool)
    found = np.zeros(len(indices), bool)
    found[known] = wanted[indices[known].astype(np.int64)]
    return int(found.argmax())


def _other_unit(
    cells: pa.Array,
    values: pa.Array,
    numbers: pa.Array,
    fits: Any,
    indices: Any,
    style: NumberStyle,
    unit: str | None,
) -> Mistake | None:
    """Return the first cell of another unit than is known, or than the first one has; zero needs none."""
    units = np.array(units_of(values, style).to_pylist(), dtype=object)
    counts = fits.copy()
    counts[fits] = numbers.to_numpy(zero_copy_only=False) != 0
    if not counts.any():
        return None
    than = f"than the training had ({unit or 'none'})"
    if unit is None:
        first = cells[_first_row(indices, counts)].as_py()
        unit, than = units_of(pa.array([first.strip()]), style)[0].as_py(), f"than {first!r}"
    other = counts & (units != unit)
    if not other.any():
        return None
    row = _first_row(indices, other)
    return Mistake(row, cells[row].as_py(), f", of another unit {than}")


def unit_in(cells: pa.Array, written: CellFormat) -> str:
    """Return the unit of text that is read as numbers; empty where it has none."""
    values = pc.utf8_trim_whitespace(pc.unique(cells).drop_null())
    values = values.filter(is_written(values, written.style))
    units = units_of(values, written.style)
    return next((unit for unit in units.to_pylist() if unit), "")


def without_sentinels(column: pa.Array, written: CellFormat) -> pa.Array:
    """Return a column of numbers in which those that say that nothing is known, such as -999, are gaps."""
    texts = pa.array(written.missing_values, pa.string())
    sentinels = texts.filter(is_written(texts, written.style)) if len(texts) else texts
    if len(sentinels) == 0 or not is_number(column) or pa.types.is_boolean(column.type):
        return column
    wanted = to_numbers(sentinels, written.style).cast(pa.float64())
    hits = pc.is_in(column.cast(pa.float64(), safe=False), wanted)
    return pc.if_else(hits, pa.scalar(None, column.type), column) if pc.any(hits).as_py() else column


def without_gaps(column: pa.Array, written: CellFormat) -> pa.Array:
    """Return a column of text in which the missing values that were named are gaps."""
    if not written.missing_values:
        return column
    gaps = pc.is_in(pc.utf8_trim_whitespace(column), pa.array(written.missing_values, column.type))
    return pc.if_else(gaps, pa.scalar(None, column.type), column)


def no_number(name: str, mistake: Mistake, place: Place, written: CellFormat) -> DataError:
    """Return what is wrong with a cell that must be a number."""
    error = DataError(
        f"{place(mistake.row)}, column {name!r}: expected a number{_in_style(written)}, got "
        f"{mistake.cell!r}{mistake.advice(written)}"
    )
    error.row = mistake.row
    return error


def _in_style(written: CellFormat) -> str:
    said = _settings(written.style, written)
    return f" as {said} says" if said else ""


def _settings(style: NumberStyle, before: CellFormat) -> str:
    """Return the settings of a style, as they are written where the user is."""
    decimal = style.decimal if before.decimal or style.decimal != "." else None
    units = list(dict.fromkeys([*before.units, *style.units]))
    found = [
        setting(name, value)
        for name, value in (("decimal", decimal), ("thousands", style.thousands), ("units", units))
        if value
    ]
    return " and ".join(found)


# --- text that looks like numbers


class TextWatch:
    """Says of a column of text whether it looks like numbers, chunk by chunk and in bounded memory.

    It keeps the first 65 536 different values, and counts rows beyond. A column with no more values is judged by all of
    them, as in memory; of one with more, the rule is that half of the first 65 536 values are numbers, or half of their
    rows, or half of the rows that hold other ones.

    Args:
        written: How cells are written.
    """

    def __init__(self, written: CellFormat, most: int = MOST_VALUES) -> None:
        self._written, self._most = written, most
        self._values, self._rows = pa.array([], pa.string()), np.zeros(0, np.int64)
        self._others = self._numbers = 0

    def add(self, cells: pa.Array) -> None:
        """Take in some rows."""
        found, rows = _beside_gaps(*counted(cells.cast(pa.string())), self._written)
        places = pc.index_in(found, self._values)
        old, fresh = places.is_valid(), found.filter(places.is_null())
        counts = rows.to_numpy(zero_copy_only=False)
        self._rows[places.filter(old).to_numpy(zero_copy_only=False)] += counts[_numpy(old)]
        room = self._most - len(self._values)
        self._values = pa.concat_arrays([self._values, fresh.slice(0, room)])
        self._rows = np.concatenate([self._rows, counts[~_numpy(old)][:room]])
        if len(fresh) <= room:
            return
        known = pc.is_in(pc.utf8_trim_whitespace(cells.cast(pa.string())), self._values)
        found, rows = _beside_gaps(*counted(cells.cast(pa.string()).filter(pc.invert(known))), self._written)
        self._others += pc.sum(rows).as_py() or 0
        self._numbers += pc.sum(rows.filter(looks_numeric(found, self._written.style))).as_py() or 0

    @property
    def date(self) -> str | None:
        """The first date of a column that looks like dates; ``None``: it does not."""
        return dates_in_text(self._values)

    @property
    def style(self) -> NumberStyle | None:
        """How the column is written if it looks like numbers; ``None``: it does not."""
        style = style_of(self._values, pa.array(self._rows), self._written.style)
        if style is None and self._others and 2 * self._numbers >= self._others:
            return self._written.style
        return style


def _beside_gaps(values: pa.Array, rows: pa.Array, written: CellFormat) -> tuple[pa.Array, pa.Array]:
    kept = pc.invert(pc.is_in(values, pa.array(written.gaps, values.type)))
    return values.filter(kept), rows.filter(kept)


class OddCells:
    """Counts the cells that are no numbers in a style.

    Args:
        style: The style.
        written: What says that nothing is known.

    Attributes:
        odd: How often each odd value occurs, in the order of rows; of many, some.
        cells: Number of odd cells.
        more: Whether there are more odd values than were counted.
        numbers: Number of cells that are numbers.
        row: Number of the first odd cell; ``None``: there is none.
    """

    def __init__(self, style: NumberStyle, written: CellFormat) -> None:
        self._style, self._written, self._rows = style, written, 0
        self.odd: dict[str, int] = {}
        self.cells = self.numbers = 0
        self.more = False
        self.row: int | None = None

    def add(self, cells: pa.Array) -> None:
        """Take in some rows."""
        found = pc.value_counts(cells.drop_null())
        raw, counts = found.field("values"), found.field("counts")
        values = pc.utf8_trim_whitespace(raw)
        gaps = pc.is_in(values, pa.array(self._written.gaps, values.type))
        numeric = is_written(values, self._style)
        odd = pc.invert(pc.or_(gaps, numeric))
        self.numbers += pc.sum(counts.filter(pc.and_(numeric, pc.invert(gaps)))).as_py() or 0
        self.cells += pc.sum(counts.filter(odd)).as_py() or 0
        for value, count in zip(values.filter(odd).to_pylist(), counts.filter(odd).to_pylist(), strict=True):
            if value not in self.odd and len(self.odd) == _MOST_ODD:
                self.more = True
                break
            self.odd[value] = self.odd.get(value, 0) + count
        if self.row is None and self.cells:
            self.row = self._rows + pc.index(cells, raw.filter(odd)[0]).as_py()
        self._rows += len(cells)


class NumbersInText(NamedTuple):
    """Text that looks like numbers.

    Attributes:
        style: How it is written.
        odd: Odd cells beside these numbers, by value, in the order of rows.
        cells: Number of odd cells.
        numbers: Number of cells that are numbers.
        row: The first cell that is no number as cells are written now; ``None``: all are.
        example: What it holds, or else the first number.
    """

    style: NumberStyle
    odd: tuple[str, ...]
    cells: int
    numbers: int
    row: int | None
    example: str

    def why(self, written: CellFormat) -> str:
        """Return what is odd, and how often, in words."""
        if self.style != written.style:
            return f"{self.numbers:,} of {self.numbers + self.cells:,} values are numbers such as {self.example!r}"
        if not self.cells:
            return f"all values are numbers kept as text, such as {self.example!r}"
        shown = ", ".join(map(repr, self.odd[:_ODD_SHOWN])) + (", …" if len(self.odd) > _ODD_SHOWN else "")
        are = "is no number" if self.cells == 1 else "are no numbers"
        return f"{self.cells:,} of {self.numbers + self.cells:,} values {are}: {shown}"

    def doubt(self, written: CellFormat) -> str:
        """Return why a column of a frame is doubted: what is odd, where it begins, and what to set."""
        row = "" if self.row is None else f", first in row {self.row}"
        advice = self.advice(written)
        if self.style.forms:
            return f"{self.why(written)}{row}; no setting reads {self.unread}, convert the column"
        return f"{self.why(written)}{row}" + (f"; set {advice}" if advice else "")

    @property
    def unread(self) -> str:
        """The forms that no setting reads, or else an example."""
        return listed(list(self.style.unread)) if self.style.unread else repr(self.example)

    @property
    def gaps(self) -> bool:
        """Whether all odd cells say that nothing is known."""
        return bool(self.odd) and all(map(is_gap, self.odd))

    def advice(self, written: CellFormat) -> str:
        """Return what to set so that it is read as numbers; empty where it is to be corrected, or may be categories."""
        if self.style.forms:
            return ""
        given = written.decimal or written.thousands or written.units
        style = _settings(self.style, written) if self.style != written.style or given else ""
        wanted = [style] if style and self.style != written.style else []
        if self.gaps and len(self.odd) <= _ODD_SHOWN:
            wanted.append(setting("missing_values", [*written.missing_values, *self.odd]))
        elif self.gaps:
            wanted.append(f"{setting('missing_values')} (if they say that nothing is known)")
        if not wanted and not self.cells:
            return setting("decimal", self.style.decimal)
        return " and ".join(wanted)


def numbers_in_text(column: pa.Array, written: CellFormat) -> NumbersInText | None:
    """Return what a column of text looks like if that is numbers; ``None``: it does not look so, or holds codes."""
    style = style_of(*_beside_gaps(*counted(column), written), written.style)
    return None if style is None else looked_at([column], style, written)


def looked_at(chunks: Any, style: NumberStyle, written: CellFormat) -> NumbersInText:
    """Return what is in the chunks of a column that looks like numbers of a style."""
    inside, now = OddCells(style, written), OddCells(written.style, written)
    example = ""
    for cells in chunks:
        inside.add(cells)
        now.add(cells)
        example = example or next((one for one in different(cells.slice(0, 1000)).to_pylist()), "")
    example = next(iter(now.odd), example)
    return NumbersInText(style, tuple(inside.odd), inside.cells, inside.numbers, now.row, example)


def is_readable(found: NumbersInText, written: CellFormat, *, typed: bool) -> bool:
    """Return whether text is read as the numbers that it looks like: of a CSV file always, of others with settings."""
    return found.style == written.style and found.cells == 0 and (not typed or written.is_given)


def refused(name: str, found: NumbersInText, place: Place, written: CellFormat, source: str) -> DataError:
    """Return what is wrong with a column of a file that is text and looks like numbers."""
    keep = f"correct it, leave the column out ({setting('drop')}), or have it read as text ({setting('text_columns')})"
    if found.style.forms:
        where = source if found.row is None else place(found.row)
        return DataError(
            f"{where}, column {name!r}: {found.example!r} is text, and looks like a number: {found.why(written)}; no "
            f"setting reads {found.unread}; convert the column to numbers, leave it out ({setting('drop')}), or have "
            f"it read as text ({setting('text_columns')})"
        )
    where = source if found.row is None else place(found.row)
    if found.row is None:
        return DataError(
            f"{where}, column {name!r}: {found.why(written)}; set {found.advice(written)} to have it read as numbers, "
            f"or {keep}"
        )
    if found.style != written.style:
        return DataError(
            f"{where}, column {name!r}: {found.example!r} is text, and looks like a number: {found.why(written)}; set "
            f"{found.advice(written)}, or {keep}"
        )
    advice = found.advice(written)
    if not found.gaps:
        advice = (
            f"if it holds codes or categories, have it read as text ({setting('text_columns')} or "
            f"{setting('categorical_columns')}); else correct it, leave the column out ({setting('drop')}), or see "
            f"{setting('missing_values')}"
        )
    else:
        advice = f"if that says that nothing is known, set {advice}; else {keep}"
    return DataError(f"{where}, column {name!r}: {found.example!r} among numbers ({found.why(written)}); {advice}")


def dates_refused(dates: Mapping[str, str], source: str) -> DataError:
    """Return what is wrong with columns of a file that are text and look like dates; of each, one is shown."""
    (name, date), *others = dates.items()
    more = f"; so does column {listed([other for other, _ in others])}" if others else ""
    return DataError(
        f"{source}, column {name!r}: {date!r} looks like a date, and each date would be a category of its own; leave "
        f"it out ({setting('drop')}), make numbers of it, such as days since a day, or have it read as text "
        f"({setting('text_columns')}){more}"
    )


# --- tables in memory


class Origin(NamedTuple):
    """Where a table comes from.

    Attributes:
        name: What it is called in messages.
        place: Says where a row stands.
        typed: Whether its columns have types; cells of CSV files are looked at.
        is_file: Whether it is a file.
    """

    name: str
    place: Place
    typed: bool
    is_file: bool


def read_cells(
    table: pa.Table, origin: Origin, written: CellFormat, *, judged: Collection[str], declared: Collection[str] = ()
) -> pa.Table:
    """Return a table whose text is read as cells are written.

    Args:
        table: The table, with all rows of its source.
        origin: Where it comes from.
        written: How cells are written.
        judged: Columns of which nobody says what they are.
        declared: Columns that are declared to hold categories; gaps are taken out of these.

    Raises:
        DataError: If a column of a file looks like numbers and is not read as such, or looks like dates.
    """
    judged, declared = set(judged), set(declared)
    wanted, changed, units = judged | declared, dict[str, pa.Array](), dict[str, str]()
    odd: dict[str, NumbersInText] = {}
    dates: dict[str, str] = {}
    for name, chunked in zip(table.column_names, table.columns, strict=True):
        if name in written.text or name not in wanted:
            continue
        column = chunked.combine_chunks()
        if not is_text(column):
            changed |= {name: without_sentinels(column, written)} if written.missing_values else {}
            continue
        found = numbers_in_text(column, written) if name in judged else None
        if found is not None and is_readable(found, written, typed=origin.typed):
            changed[name] = _numbers(name, column, origin, written, units)
            continue
        if found is not None and origin.is_file:
            odd[name] = found
        if found is None and name in judged and origin.is_file and (date := dates_in_text(column)) is not None:
            dates[name] = date
        changed |= {name: without_gaps(column, written)} if written.missing_values else {}
    if odd:
        raise _all_refused(odd, origin, written)
    if dates:
        raise dates_refused(dates, origin.name)
    return replaced(table, changed, units)


def _numbers(name: str, column: pa.Array, origin: Origin, written: CellFormat, units: dict[str, str]) -> pa.Array:
    numbers = read_numbers(column, written)
    if written.units:
        units[name] = unit_in(column, written)
    if isinstance(numbers, Mistake):
        raise no_number(name, numbers, origin.place, written)
    return numbers


def _all_refused(odd: Mapping[str, NumbersInText], origin: Origin, written: CellFormat) -> DataError:
    """Return what is wrong with the first of some columns, and what to set for the others."""
    (first, found), *others = odd.items()
    error = refused(first, found, origin.place, written, origin.name)
    if not others:
        return error
    shown = ", ".join(
        f"{name!r} ({found.advice(written) or found.why(written)})" for name, found in others[:_ODD_SHOWN]
    )
    more = f" and {len(others) - _ODD_SHOWN} more columns" if len(others) > _ODD_SHOWN else ""
    return DataError(f"{error}; the same holds for {shown}{more}")


def column_units(table: pa.Table, columns: Collection[str]) -> dict[str, str]:
    """Return the unit that each of these columns of numbers was written with; empty where there was none."""
    fields = [table.schema.field(name) for name in columns if is_number(table.column(name))]
    return {field.name: (field.metadata or {}).get(_UNIT, b"").decode() for field in fields}


def replaced(table: pa.Table, changed: Mapping[str, pa.Array], units: Mapping[str, str] | None = None) -> pa.Table:
    """Return a table in which some columns are others, each with the unit that it was written with."""
    if not changed:
        return table
    columns = [changed.get(field.name, column) for field, column in zip(table.schema, table.columns, strict=True)]
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    for place, field in enumerate(fields):
        if field.name in (units or {}):
            fields[place] = field.with_metadata({**(field.metadata or {}), _UNIT: (units or {})[field.name]})
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)).combine_chunks()


def _check_bare(name: str, column: pa.Array, written: CellFormat, place: Place, *, typed: bool) -> None:
    """Refuse numbers without a unit in a file, where training had one: they may be of any other; zero is the same."""
    unit = written.column_units.get(name)
    if typed or not unit:
        return
    other = pc.not_equal(column.cast(pa.float64(), safe=False), 0.0).fill_null(False)
    if pc.any(other).as_py():
        row = pc.index(other, True).as_py()
        raise no_number(
            name,
            Mistake(row, str(column[row].as_py()), f", of another unit than the training had ({unit})"),
            place,
            written,
        )


def as_trained(
    table: pa.Table, written: CellFormat, *, numbers: Collection[str], text: Collection[str], place: Place, typed: bool
) -> pa.Table:
    """Return new records whose cells are read as those of the training were.

    Args:
        table: The records.
        written: How cells were written then.
        numbers: Columns that held numbers.
        text: Columns that held text.
        place: Says where a row stands.
        typed: Whether columns have types.

    Raises:
        DataError: If a cell of a column of numbers is none.
    """
    if typed and not written.is_given:
        return table
    numbers, text = set(numbers), set(text)
    changed: dict[str, pa.Array] = {}
    for name, chunked in zip(table.column_names, table.columns, strict=True):
        if name not in numbers | text:
            continue
        column = chunked.combine_chunks()
        if name in text:
            if is_text(column) and name not in written.text:
                changed[name] = without_gaps(column, written)
        elif is_text(column):
            found = read_numbers(column, written, unit=written.column_units.get(name))
            if isinstance(found, Mistake):
                raise no_number(name, found, place, written)
            changed[name] = found
        else:
            changed[name] = without_sentinels(column, written)
            _check_bare(name, changed[name], written, place, typed=typed)
    return replaced(table, changed)
