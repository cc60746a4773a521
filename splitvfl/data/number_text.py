"""Text that is numbers: in which style it is written, and which number it is.

A style is strict. A cell either is a number in it, from its first character to its last, or it is none: a thousands
separator stands between groups of three digits and nowhere else, so that ``12.34.5`` and ``17.08.2021`` are no numbers
in any style.

Text may consist of digits and be no number at all: postcodes, diagnosis codes, product codes, versions. Such columns
are told by :func:`are_codes`. What may stand around a number is said in :mod:`splitvfl.data.number_forms`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.number_forms import BARE, FEW, around, forms_pattern

GAPS: Final = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""What says in a column of numbers that nothing is known: the cells that pandas takes for missing by itself."""

GAP_WORDS: Final = frozenset(
    (
        *("blank", "desconocido", "empty", "inconnu", "k.a.", "k. a.", "keine angabe", "missing", "n.a.", "n.d.", "nd"),
        *("nil", "none", "not applicable", "not available", "s/d", "unavailable", "unbekannt", "undefined", "unknown"),
        *("void", "#div/0!", "#name?", "#null!", "#num!", "#ref!", "#value!"),
    )
)
"""What says so in a column of numbers beside signs such as ``?`` and :data:`GAPS`, in lower case."""

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
_FEWEST: Final = 3


class NumberStyle(NamedTuple):
    """How numbers are written.

    Attributes:
        decimal: The decimal separator, ``"."`` or ``","``.
        thousands: What stands between groups of three digits: ``","``, ``"."``, ``" "`` (any space, the narrow one too)
            or ``"'"``; ``None``: nothing does.
        units: What stands before or behind the number, and is left out; ``"()"`` for accounting brackets.
        forms: How cells look that no setting reads, with ``…`` for the number: ``€…M``; see
            :mod:`splitvfl.data.number_forms`.
    """

    decimal: str = "."
    thousands: str | None = None
    units: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()

    @property
    def unread(self) -> tuple[str, ...]:
        """The forms with anything around the number."""
        return tuple(form for form in self.forms if form != BARE)


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
    """Return the style in which most of the different values are numbers; ``None`` if in none half are.

    Half of the different values must be numbers, or half of the values if three different ones are.

    Blanks around a value, gaps (:data:`GAPS` and nulls) and repeated values do not count. The style is the simplest one
    of those that fit equally many values: no units rather than units, and no thousands separator rather than one.
    ``1,234`` alone fits ``NumberStyle(".", ",")`` and ``NumberStyle(",")``; the former is returned. The units are those
    of :data:`USUAL_UNITS` that occur, or else what stands around numbers (:mod:`splitvfl.data.number_forms`). Codes
    (:func:`are_codes`) are ``None`` too.

    Args:
        values: The text.
        first: The style to be preferred where others fit no more values.

    >>> looks_like(["4.181,46", "750,10", "?"])
    NumberStyle(decimal=',', thousands='.', units=(), forms=())
    >>> looks_like(["12.5%", "7%"]).units, looks_like(["00501", "10001"]), looks_like(["17.08.2021", "no"])
    (('%',), None, None)
    """
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, pa.string())
    return style_of(*counted(values), first)


def different(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the different values of a column of text, without blanks around them and without gaps."""
    return counted(values)[0]


def counted(values: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return the different values, as :func:`different` does, and how often each occurs."""
    found = pc.value_counts(values)
    trimmed = pc.utf8_trim_whitespace(found.field("values")).dictionary_encode()
    known = trimmed.indices.is_valid()
    counts = pa.table({"value": trimmed.indices, "rows": found.field("counts")}).filter(known)
    rows = counts.group_by("value", use_threads=False).aggregate([("rows", "sum")])["rows_sum"].combine_chunks()
    kept = pc.invert(pc.is_in(trimmed.dictionary, pa.array([*GAPS, None], trimmed.dictionary.type)))
    return trimmed.dictionary.filter(kept), rows.filter(kept)


def style_of(found: pa.Array, rows: pa.Array, first: NumberStyle = PLAIN) -> NumberStyle | None:
    """Return the style of values that are all different, as :func:`looks_like` does.

    Args:
        found: The values.
        rows: How often each occurs.
        first: The style to be preferred where others fit no more values.
    """
    if len(found) == 0 or not _are_half(pc.match_substring_regex(found, r"\p{Nd}"), rows):
        return None
    others = sorted(_STYLES, key=lambda style: style.decimal != first.decimal)
    styles = [first, *(style for style in others if style != first)]
    most, best = _best(found, styles)
    if most < len(found):
        more, other = _best(found, [style._replace(units=USUAL_UNITS) for style in styles])
        if more > most:
            most, best = more, other._replace(units=_units_in(found, other))
    if _are_half(looks_numeric(found, best), rows):
        return None if are_codes(found, best) or _are_named(found, best) else best
    if (exponents := _with_exponents(found, rows)) is not None:
        return None if are_codes(found, exponents) else exponents
    other_style = _with_other_parts(found, rows, styles)
    return None if other_style is None or are_codes(found, other_style) else other_style


def _are_half(mask: pa.Array, rows: pa.Array) -> bool:
    """Return whether half of the different values are meant, or half of the rows and at least three values."""
    values = _count(mask)
    return 2 * values >= len(mask) or (values >= _FEWEST and 2 * _count(rows.filter(mask)) >= _count(rows))


def _are_named(found: pa.Array, style: NumberStyle) -> bool:
    """Return whether most values begin with letters of a unit of measure, as the codes ``m12`` and ``s3`` do."""
    return bool(style.units) and 2 * _count(pc.match_substring_regex(found, r"^[a-z]+\d")) >= len(found)


def _with_exponents(found: pa.Array, rows: pa.Array) -> NumberStyle | None:
    """Return the style of ``1E5`` among other numbers, or of many such; a few may be product codes."""
    written = is_written(found, PLAIN)
    plain = looks_numeric(found, PLAIN)
    return PLAIN if _are_half(written, rows) and (len(found) > FEW or _count(plain)) else None


def _with_other_parts(found: pa.Array, rows: pa.Array, styles: Sequence[NumberStyle]) -> NumberStyle | None:
    """Return the style of numbers that have something else around them than usual units."""
    parts = around(found, rows)
    if parts is None:
        return None
    if parts.units:
        units = (*parts.units, BRACKETS) if _count(pc.match_substring(found, "(")) else parts.units
        _, best = _best(found, [style._replace(units=units) for style in styles])
        if _are_half(looks_numeric(found, best), rows):
            return best
    return NumberStyle(forms=parts.forms)


def _best(found: pa.Array, styles: Sequence[NumberStyle]) -> tuple[int, NumberStyle]:
    counts = [_count(looks_numeric(found, style)) for style in styles]
    return max(counts), styles[counts.index(max(counts))]


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _units_in(found: pa.Array, style: NumberStyle) -> tuple[str, ...]:
    numbers = found.filter(looks_numeric(found, style))
    sides = pc.unique(units_of(numbers, style)).to_pylist()
    two = [
        (side, one, other) for side in sides if side not in style.units for one in style.units for other in style.units
    ]
    there = {*sides, *(unit for side, *both in two if side == "".join(both) for unit in both)}
    bracketed = {BRACKETS} if _count(pc.match_substring(numbers, "(")) else set()
    return tuple(unit for unit in style.units if unit in there | bracketed)


def looks_numeric(values: pa.Array, style: NumberStyle) -> pa.Array:
    """Return which values, without blanks around them, look like numbers: ``1e5`` does not, as codes look so too."""
    if style.forms:
        return pc.match_substring_regex(values, forms_pattern(style.forms))
    decimal = re.escape(style.decimal)
    exponent = rf"(?:\d+{decimal}\d*|{decimal}\d+)[eE][+-]?\d+|\d+[eE][+-]\d+"
    return pc.match_substring_regex(values, _pattern(style, rf"{exponent}|{_digits(style)}"))


def is_written(values: pa.Array, style: NumberStyle) -> pa.Array:
    """Return which values, without blanks around them, are numbers in a style; ``1e5`` is one."""
    if style.forms:
        return looks_numeric(values, style)
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


def units_of(values: pa.Array, style: NumberStyle) -> pa.Array:
    """Return the unit of each value that :func:`is_written` has found; empty where there is none."""
    unit = _unit_pattern(style)
    before = pc.extract_regex(values, f"^[-+\u2212({_SPACES}]*(?P<unit>(?:{unit})?)").field("unit")
    behind = pc.extract_regex(values, f"(?P<unit>(?:{unit})?)[){_SPACES}]*$").field("unit")
    return pc.binary_join_element_wise(before, behind, pa.scalar("", values.type))


def is_gap(word: str) -> bool:
    """Return whether a word among numbers says that nothing is known: a sign, or one of :data:`GAP_WORDS`."""
    return not any(map(str.isalnum, word)) or word.strip().casefold() in GAP_WORDS


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
