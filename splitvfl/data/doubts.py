"""Columns that may not be what they are taken for: by rules of thumb, from what is in them.

A doubt is a hint for a person; nothing is changed by it. The rules, for a column of ``n`` values beside gaps, of which
the first million is looked at:

``gaps``
    More than half of the records have no value.
``constant``
    There are two records or more, all of one value.
``id``
    Whole numbers, from 30 records on, all different and either named like an id, or without larger holes (largest −
    smallest below 1.2·n), or beyond 2³¹; or named so, or like a number that somebody gave (``flight_number``,
    ``account_no``), with more than 100 different ones. Text of which 95 in 100 values are different.
``codes``
    Whole numbers, taken as such, of 3 to 100 different values with a name such as ``region`` or ``status``, unless it
    speaks of a number too (``education_num``), or any named like a postal code; or 3 to 12 different ones nearly
    without holes whose frequencies, from the smallest to the largest, go down and up again by more than chance: those
    of counts and grades do not.
``numbers``
    Text of which half of the different values, or half of all, are numbers (:mod:`splitvfl.data.cell_format`); all rows
    are looked at.
``dates``
    Text of which 9 in 10 values look like dates.
``variants``
    Text, of classes too, with values that differ by case and blanks only.

Of tables that were ingested, the rules see what was learned of a column then (:mod:`splitvfl.data.ingested_doubts`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.cell_format import AS_USUAL, CellFormat, numbers_in_text
from splitvfl.data.date_text import dates_in_text
from splitvfl.data.plain_columns import declared_categories
from splitvfl.data.spelling import setting
from splitvfl.data.tables import is_number, is_text, numbers

Kind = Literal["gaps", "constant", "id", "codes", "numbers", "dates", "variants"]

# Rows that are looked at, and of text, values.
LOOKED_AT = 1_000_000
_VALUES = 1_000
_COLUMNS_NAMED = 3
# Below so many records, numbers are all different by chance.
FEWEST = 30
_FEW_VALUES, _NAMED_VALUES, REPEATED_IDS = 12, 100, 100

ID_WORDS = re.compile("ids?|uuid|guid|index|idx|key|ref|nr|unnamed")
# The last words of a name that speak of a number which somebody gave to something: behind other words, and alone.
_GIVEN_NUMBER = re.compile("number|no|num|nbr")
_GIVEN = re.compile(
    r"(acct|account|konto|compte)(no|nr|num|number)?|iban|ssn|phone|telephone|mobile|\w+nummer|\w+[^s]number"
)
_CODE_WORDS = re.compile(
    "branch|category|channel|city|class|code|country|department|district|education|ethnicity|gender|group|industry|job|"
    "kind|language|marital|marriage|occupation|product|profession|race|region|religion|sector|segment|sex|state|status|"
    "type"
)
_POSTAL_WORDS = re.compile("zip|zipcode|plz|postcode|postal")
_NUMBER_WORDS = re.compile(
    "age|amount|amt|avg|balance|count|counts|days|hours|level|mean|months|n|num|number|price|rate|ratio|score|sum|total|"
    "value|years"
)

Whole = npt.NDArray[np.float64]


class DoubtWarning(UserWarning):
    """Columns of a table may not be what they were taken for: numbers with a comma became categories, and the like.

    The data are as they were read; nothing was changed. ``warnings.simplefilter("ignore", DoubtWarning)`` silences it.
    """


class Doubt(NamedTuple):
    """A column, and what it may be instead.

    Attributes:
        kind: See the module.
        column: Its name.
        why: What speaks for it, in a few words.
    """

    kind: Kind
    column: str
    why: str


def doubts_of(
    table: pa.Table, columns: Sequence[str], *, categories: Collection[str], written: CellFormat = AS_USUAL
) -> tuple[Doubt, ...]:
    """Return what is doubtful about columns of a table in memory.

    Args:
        table: The table.
        columns: Names of the columns that somebody holds.
        categories: Columns that are known to hold categories, beside those whose types say so.
        written: How cells are written.
    """
    found: list[Doubt] = []
    known = declared_categories(table.schema).union(categories)
    for name in columns:
        whole = table.column(name)
        column = whole.slice(0, LOOKED_AT).combine_chunks()
        declared = name in known or name in written.text
        numbers = [] if declared else _numbers_in(whole.combine_chunks(), written)
        other = _of_column(name, column, known=name in known, numbers=bool(numbers))
        found += [Doubt(kind, name, why) for kind, why in (*numbers, *other)]
    return tuple(found)


def _numbers_in(column: pa.Array, written: CellFormat) -> list[tuple[Kind, str]]:
    found = numbers_in_text(column, written) if is_text(column) else None
    return [] if found is None else [("numbers", found.doubt(written))]


def _of_column(name: str, column: pa.Array, *, known: bool, numbers: bool) -> Iterator[tuple[Kind, str]]:
    values = present(column)
    if 2 * len(values) < len(column):
        yield "gaps", f"{1 - len(values) / len(column):.0%} missing"
    if len(values) == 0:
        return
    distinct = pc.count_distinct(values).as_py()
    if distinct == 1 and 1 < len(values) == len(column):
        yield "constant", f"always {_short(values[0].as_py())}"
    elif is_text(values):
        if not numbers:
            yield from _of_text(values, distinct)
    elif not known and is_number(values):
        yield from _of_numbers(name, values)


def present(column: pa.Array) -> pa.Array:
    """Return the values of a column without gaps: nulls, NaN and empty text."""
    if is_text(column):
        return column.filter(pc.not_equal(column, "").fill_null(False))
    return column.filter(pc.is_valid(column) if not pa.types.is_floating(column.type) else pc.is_finite(column))


def _of_text(values: pa.Array, distinct: int) -> Iterator[tuple[Kind, str]]:
    date = dates_in_text(values)
    if date is not None:
        yield "dates", f"such as {_short(date)}"
    elif len(values) >= FEWEST and distinct >= 0.95 * len(values):
        yield "id", f"{distinct:,} different texts in {len(values):,} records"
    elif distinct <= _VALUES and (alike := variants(pc.unique(values).to_pylist())):
        yield "variants", alike


def label_doubts(table: pa.Table, label: str) -> tuple[Doubt, ...]:
    """Return what is doubtful about a column of labels: classes that are one class written in two ways."""
    values = present(table.column(label).combine_chunks())
    alike = variants(pc.unique(values).to_pylist()) if is_text(values) else ""
    return (Doubt("variants", label, alike),) if alike else ()


def variants(values: Sequence[str]) -> str:
    """Return two different values that differ by case and blanks only; nothing if there are none, or too many to tell.

    >>> variants(["No", "Yes", "yes "])
    "'Yes' and 'yes '"
    """
    if len(values) > _VALUES:
        return ""
    first: dict[str, str] = {}
    for value in values:
        other = first.setdefault(" ".join(value.split()).casefold(), value)
        if other != value:
            return f"{_short(other)} and {_short(value)}"
    return ""


def _of_numbers(name: str, values: pa.Array) -> Iterator[tuple[Kind, str]]:
    known = numbers(values)
    if not np.array_equal(known, np.floor(known)):
        return
    found, counts = np.unique(known, return_counts=True)
    if why := _why_id(name, found, len(known)):
        yield "id", why
    elif _may_be_codes(name, found, counts):
        yield "codes", f"{len(found)} whole numbers, {as_range(found[0], found[-1])}"


def _why_id(name: str, found: Whole, records: int) -> str:
    named = named_id(name)
    low, high = found[0], found[-1]
    if len(found) == records >= FEWEST:
        if named or high - low < 1.2 * records or high >= 2.0**31:
            return f"{records:,} different whole numbers in as many records"
    elif named and len(found) > REPEATED_IDS:
        return f"{len(found):,} different whole numbers, and its name"
    return ""


def _may_be_codes(name: str, found: Whole, counts: npt.NDArray[np.int64]) -> bool:
    if named_codes(name, len(found)):
        return True
    span = found[-1] - found[0] + 1
    if not (3 <= len(found) <= _FEW_VALUES and len(found) >= 0.8 * span):
        return False
    frequencies = np.zeros(int(span))
    frequencies[(found - found[0]).astype(np.int64)] = counts
    return _peaks(frequencies) > 1


def named_id(name: str) -> bool:
    """Return whether a column has a name as ids have, or numbers that somebody gave: ``flight_number``, ``acct``."""
    if has_word(name, ID_WORDS):
        return True
    *others, last = [word.lower() for word in _words(name)] or [""]
    if others and _GIVEN_NUMBER.fullmatch(last):
        # Of many things it says how many there are: claims_number, transactions_no.
        return not others[-1].endswith("s") and others[-1] != "of"
    return _GIVEN.fullmatch(last) is not None


def named_codes(name: str, values: int) -> bool:
    """Return whether a column of so many different whole numbers has a name as codes have."""
    if has_word(name, _POSTAL_WORDS):
        return values > 2
    few = 3 <= values <= _NAMED_VALUES
    return few and has_word(name, _CODE_WORDS) and not has_word(name, _NUMBER_WORDS)


def _peaks(frequencies: Whole) -> int:
    """Return how often frequencies go up to a peak, where a fall and a rise are beyond three standard errors."""
    peaks, rising = 0, True
    extreme = frequencies[0]
    for count in frequencies[1:]:
        apart = abs(count - extreme) > max(0.3 * max(count, extreme), 3 * math.sqrt(count + extreme + 1))
        if (count >= extreme) == rising:
            extreme = count
        elif apart:
            peaks += rising
            rising, extreme = not rising, count
    return peaks + rising


def has_word(name: str, words: re.Pattern[str]) -> bool:
    """Return whether one of these words is in a column's name: ``customerId``, ``customer_id`` and ``CUSTOMER ID``."""
    return any(words.fullmatch(word.lower()) for word in _words(name))


def _words(name: str) -> list[str]:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.findall(r"[A-Za-z]+", apart)


def as_range(low: float, high: float) -> str:
    """Return a range as people write it."""
    return f"{low:g} to {high:g}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 20 else f"{text[:19]}…"


def by_kind(doubts: Sequence[Doubt]) -> Mapping[Kind, list[Doubt]]:
    """Return doubts by their kind, in their order."""
    found: dict[Kind, list[Doubt]] = {}
    for doubt in doubts:
        found.setdefault(doubt.kind, []).append(doubt)
    return found


def in_words(doubts: Sequence[Doubt]) -> Iterator[str]:
    """Yield a line for each kind of doubt: which columns, and what to do about them."""
    for kind, found in by_kind(doubts).items():
        yield f"{_named(found)} {_said(kind, several=len(found) > 1)}"


def _named(found: Sequence[Doubt]) -> str:
    first, *others = found
    named = [f"{first.column} ({first.why})", *(doubt.column for doubt in others[: _COLUMNS_NAMED - 1])]
    more = len(found) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _said(kind: Kind, *, several: bool) -> str:
    """Return what a doubt is, and what to do, in the words of the place where settings are made."""
    drop = setting("drop")
    match kind:
        case "gaps":
            return f"{'are' if several else 'is'} more than half empty; {drop} leaves columns out"
        case "constant":
            return f"{'hold' if several else 'holds'} one value only, and nothing can be learned from it; see {drop}"
        case "id":
            looks = "look like ids" if several else "looks like an id"
            return f"{looks}, learned by heart; see {setting('id_column')} if it names the records, else {drop}"
        case "codes":
            return f"may be codes, not amounts; if so, see {setting('categorical_columns')}"
        case "variants":
            what = "have values that differ" if several else "has values that differ"
            return f"{what} by case and blanks only, and count as different; write them alike"
        case "numbers":
            became = "became categories and look" if several else "became categories and looks"
            return f"{became} like numbers; if categories are meant, see {setting('text_columns')}"
        case "dates":
            return f"became categories; see {drop}, or make numbers of them, such as days since a day"
