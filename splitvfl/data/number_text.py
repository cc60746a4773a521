"""Text that is numbers: in which style it is written, and which number it is.

A style is strict. A cell either is a number in it, from its first character to its last, or it is none: a thousands
separator stands between groups of three digits and nowhere else, so that ``12.34.5`` and ``17.08.2021`` are no numbers
in any style.

Text may consist of digits and be no number at all: postcodes, diagnosis codes, product codes, versions. Such columns
are told by :func:`are_codes`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

GAPS: Final = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""What says in a column of numbers that nothing is known: the cells that pandas takes for missing by itself."""

BRACKETS: Final = "()"
"""The unit that stands for accounting brackets: ``(12.5)`` is −12.5."""

USUAL_UNITS: Final = (
    *("$", "€", "£", "¥", "₹", "%", "‰", "USD", "EUR", "GBP", "CHF", "JPY"),
    *("kg", "g", "mg", "km", "m", "cm", "mm", "l", "ml", "h", "min", "s", BRACKETS),
)
"""Units that :func:`looks_like` knows."""

_SPACES: Final = " \u00a0\u202f\u2009"
_APOSTROPHES: Final = "'\u2019"
_SIGN: Final = "[+\\-\u2212]"
# A number with more digits does not come back as it was written.
_MOST_DIGITS: Final = 15


class NumberStyle(NamedTuple):
    """How numbers are written.

    Attributes:
        decimal: The decimal separator, ``"."`` or ``","``.
        thousands: What stands between groups of three digits: ``","``, ``"."``, ``" "`` (any space, the narrow one too)
            or ``"'"``; ``None``: nothing does.
        units: What stands before or behind the number, and is left out; ``"()"`` for accounting brackets.
    """

    decimal: str = "."
    thousands: str | None = None
    units: tuple[str, ...] = ()


PLAIN: Final = NumberStyle()

# Where several fit equally well, the first counts: "1,234" then has a thousands separator.
_STYLES: Final = (
    PLAIN,
    NumberStyle(".", ","),
    NumberStyle(","),
    NumberStyle(",", "."),
    NumberStyle(".", " "),
    NumberStyle(",", " "),
    NumberStyle(".", "'"),
    NumberStyle(",", "'"),
)


def looks_like(
    values: pa.Array | pa.ChunkedArray | Sequence[str | None], *, first: NumberStyle = PLAIN
) -> NumberStyle | None:
    """Return the style in which most of the different values are numbers; ``None`` if in none half of them are.

    Blanks around a value, gaps (:data:`GAPS` and nulls) and repeated values do not count. The style is the simplest one
    of those that fit equally many values: no units rather than units, and no thousands separator rather than one.
    ``1,234`` alone fits ``NumberStyle(".", ",")`` and ``NumberStyle(",")``; the former is returned. The units are those
    of :data:`USUAL_UNITS` that occur. Codes (:func:`are_codes`) are ``None`` too.

    Args:
        values: The text.
        first: The style to be preferred where others fit no more values.

    >>> looks_like(["4.181,46", "750,10", "?"])
    NumberStyle(decimal=',', thousands='.', units=())
    >>> looks_like(["12.5%", "7%"]).units, looks_like(["00501", "10001"]), looks_like(["17.08.2021", "no"])
    (('%',), None, None)
    """
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, pa.string())
    return style_of(different(values), first)


def different(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the different values of a column of text, without blanks around them and without gaps."""
    found = pc.unique(pc.utf8_trim_whitespace(pc.unique(values)))
    return found.filter(pc.invert(pc.is_in(found, pa.array([*GAPS, None], found.type))))


def style_of(found: pa.Array, first: NumberStyle = PLAIN) -> NumberStyle | None:
    """Return the style of values that are all different, as :func:`looks_like` does."""
    if len(found) == 0 or 2 * _count(pc.match_substring_regex(found, "[0-9]")) < len(found):
        return None
    others = sorted(_STYLES, key=lambda style: style.decimal != first.decimal)
    styles = [first, *(style for style in others if style != first)]
    most, best = _best(found, styles)
    if most < len(found):
        more, other = _best(found, [style._replace(units=USUAL_UNITS) for style in styles])
        if more > most:
            most, best = more, other._replace(units=_units_in(found, other))
    return None if 2 * most < len(found) or are_codes(found, best) else best


def _best(found: pa.Array, styles: Sequence[NumberStyle]) -> tuple[int, NumberStyle]:
    counts = [_count(looks_numeric(found, style)) for style in styles]
    return max(counts), styles[counts.index(max(counts))]


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _units_in(found: pa.Array, style: NumberStyle) -> tuple[str, ...]:
    numbers = found.filter(looks_numeric(found, style))
    there = set(pc.unique(units_of(numbers)).to_pylist())
    bracketed = {BRACKETS} if _count(pc.match_substring(numbers, "(")) else set()
    return tuple(unit for unit in style.units if unit in there | bracketed)


def looks_numeric(values: pa.Array, style: NumberStyle) -> pa.Array:
    """Return which values, without blanks around them, look like numbers: ``1e5`` does not, as codes look so too."""
    decimal = re.escape(style.decimal)
    exponent = rf"(?:\d+{decimal}\d*|{decimal}\d+)[eE][+-]?\d+|\d+[eE][+-]\d+"
    return pc.match_substring_regex(values, _pattern(style, rf"{exponent}|{_digits(style)}"))


def is_written(values: pa.Array, style: NumberStyle) -> pa.Array:
    """Return which values, without blanks around them, are numbers in a style; ``1e5`` is one."""
    return pc.match_substring_regex(values, _pattern(style, rf"(?:{_digits(style)})(?:[eE][+-]?\d+)?"))


def _digits(style: NumberStyle) -> str:
    decimal = re.escape(style.decimal)
    plain = rf"\d+(?:{decimal}\d*)?|{decimal}\d+"
    if style.thousands is None:
        return plain
    return rf"[1-9]\d{{0,2}}(?:{_class_of(style.thousands)}\d{{3}})+(?:{decimal}\d*)?|{plain}"


def _class_of(thousands: str) -> str:
    for alike in (_SPACES, _APOSTROPHES):
        if thousands in alike:
            return f"[{alike}]"
    return re.escape(thousands)


def _pattern(style: NumberStyle, number: str) -> str:
    number, space = f"(?:{number})", f"[{_SPACES}]?"
    unit = _unit_pattern(style)
    if not style.units:
        return f"^{_SIGN}?{number}$"
    before, behind = f"(?:{unit}{space})?", f"(?:{space}{unit})?"
    bare = f"(?:{_SIGN}?{before}|{before}{_SIGN}?){number}{behind}"
    if BRACKETS not in style.units:
        return f"^(?:{bare})$"
    return rf"^(?:{bare}|{before}\({space}{before}{number}{behind}{space}\){behind})$"


def _unit_pattern(style: NumberStyle) -> str:
    units = sorted((unit for unit in style.units if unit != BRACKETS), key=len, reverse=True)
    return f"(?:{'|'.join(map(re.escape, units))})" if units else "(?:)"


def to_numbers(values: pa.Array, style: NumberStyle) -> pa.Array:
    """Return the numbers that values are which :func:`is_written` has found: int64 if all are whole, else float64."""
    signs = pc.replace_substring_regex(values, "\u2212", "-")
    bare = pc.replace_substring_regex(signs, f"[{_SPACES}+()]|{_unit_pattern(style)}" if style.units else "[+]", "")
    if BRACKETS in style.units:
        negative = pc.match_substring(values, "(")
        bare = pc.if_else(
            negative, pc.binary_join_element_wise(pa.scalar("-", bare.type), bare, pa.scalar("", bare.type)), bare
        )
    if style.thousands is not None:
        bare = pc.replace_substring_regex(bare, _class_of(style.thousands), "")
    if style.decimal != ".":
        bare = pc.replace_substring(bare, style.decimal, ".")
    if _count(pc.match_substring_regex(bare, "[.eE]")) == 0:
        try:
            return bare.cast(pa.int64())
        except pa.ArrowInvalid:  # more digits than 64 bits hold
            return bare.cast(pa.float64())
    return bare.cast(pa.float64())


def units_of(values: pa.Array) -> pa.Array:
    """Return the unit of each value that :func:`is_written` has found; empty where there is none."""
    # An exponent is no unit.
    rest = pc.replace_substring_regex(values, rf"\d[eE]{_SIGN}?\d+", "")
    return pc.replace_substring_regex(rest, rf"[{_SPACES}{_APOSTROPHES}()\d.,]|{_SIGN}", "")


def are_codes(found: pa.Array, style: NumberStyle) -> bool:
    """Return whether text that looks like numbers is rather codes, and must stay text.

    Codes have leading zeros at one fixed width before the point (postcodes, diagnosis codes), or most of them have
    leading zeros (telephone numbers); or they are hexadecimal at one fixed width; or a quarter are versions such as
    ``1.10.2``; or half are whole numbers of more than 15 digits, which would not come back as numbers.

    Args:
        found: The different values.
        style: How they are written if they are numbers.
    """
    looks = looks_numeric(found, style)
    numbers, others = found.filter(looks), found.filter(pc.invert(looks))
    widths = pc.utf8_length(pc.extract_regex(numbers, r"^(?P<whole>\d*)").field("whole"))
    zeros = _count(pc.match_substring_regex(numbers, r"^0\d"))
    if zeros and (len(pc.unique(widths)) == 1 or 2 * zeros >= len(numbers)):
        return True
    if 2 * _count(pc.match_substring_regex(numbers, rf"^\d{{{_MOST_DIGITS + 1},}}$")) >= len(found):
        return True
    if len(others) == 0:
        return False
    if _count(pc.match_substring_regex(found, "^[0-9a-fA-F]{2,}$")) == len(found):
        return len(pc.unique(pc.utf8_length(found))) == 1
    if style != PLAIN:
        return False
    versions = pc.match_substring_regex(others, r"^[vV]?\d+(\.\d+){2,}[-+.\w]*$")
    grouped = pc.match_substring_regex(others, rf"^{_SIGN}?\d{{1,3}}(\.\d{{3}})+$")
    return 4 * _count(pc.and_(versions, pc.invert(grouped))) >= len(found)
