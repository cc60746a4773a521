"""What stands around numbers in text: units, currencies, signs; and whether that makes them numbers or codes.

The parts before and behind a number have no digits. They are common if at least half of the different values have them,
or half of the rows with a value.

Numbers:

- A currency sign, or the name of a currency, stands before the number: ``US$ 12.50``, ``Rs. 500``, ``INR500``.
- A word of up to four letters and a blank stand before fractions: ``pH 7.4``. So do words for *about*: ``ca. 43``.
- Letters, a currency sign, ``%`` or ``°`` stand behind it: ``1248 CC``, ``159lbs``, ``5 kr``, ``98.6 °F``.
- A mark stands at one side: ``~12``, ``<0.02``, ``10,000+``, ``12*``, and ``12.50-`` for −12.50.

No numbers:

- Letters stand directly before it, or with a hyphen: ``A12``, ``E11.9``, ``CPT99213``, ``SKU-0012``, ``v1.2``.
- Other words stand before whole numbers: ``store 17``, ``flight 400``.
- A point or a comma stands between it and letters: ``600519.SS``, ``17.jpg``, ``17, Main Street``.
- Letters behind it differ from value to value: ``12a``, ``14c``; ``1012 AB``. So do months and streets.
- There are at most 12 different values, all whole and below 100, and no currency: ``grade 3``, ``3 rooms``, ``5+``.
- There are at most 12 different values, and they are compared: ``<=50K``, ``>200``.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

BARE: Final = "…"
"""A number with nothing around it; in a form, it stands for the number: ``€…M``."""

FEW: Final = 12
"""So many different whole numbers may be names of categories."""

_SPACES: Final = " \u00a0\u202f\u2009"
_APOSTROPHES: Final = "'\u2019"
# The full-width ones are the last two.
_POINTS: Final = ".,\uff0e\uff0c"
_SIGNS: Final = "+\\-\u2212"
_DIGIT: Final = r"\p{Nd}"
# Numbers of every style, those in lakhs (1,23,456) and full-width ones too.
_NUMBER: Final = (
    rf"(?:{_DIGIT}{{1,3}}(?:[,.{_APOSTROPHES}{_SPACES}]{_DIGIT}{{3}})+(?:[.,]{_DIGIT}*)?"
    rf"|{_DIGIT}{{1,2}}(?:,{_DIGIT}{{2}})+,{_DIGIT}{{3}}(?:\.{_DIGIT}*)?"
    rf"|{_DIGIT}+(?:[{_POINTS}]{_DIGIT}*)?)"
)
_PARTS: Final = rf"^(?P<before>[^\p{{Nd}}]*?)(?P<number>{_NUMBER})(?P<behind>[^\p{{Nd}}]*)$"
# In characters. In the pattern, which is read anew for each column, they would take four times as long as all the rest.
_LONGEST: Final = {"before": 12, "behind": 24}
_MARKS_BEFORE: Final = frozenset("~≈<>≤≥±=*'\"\u2013\u2014 ")
_COMPARED: Final = frozenset("<>≤≥")
_MARKS_BEHIND: Final = frozenset("+-*~!?†‡\u2013\u2014\u2212 ")
_CURRENCIES: Final = frozenset(
    (
        *("AED", "ARS", "AUD", "BRL", "CAD", "CHF", "CLP", "CNY", "COP", "CZK", "DKK", "EUR", "GBP", "HKD", "HUF"),
        *("IDR", "ILS", "INR", "JPY", "KRW", "MXN", "MYR", "NOK", "NZD", "PHP", "PKR", "PLN", "RON", "RUB", "SAR"),
        *("SEK", "SGD", "THB", "TRY", "TWD", "UAH", "USD", "VND", "ZAR"),
    )
)
_MONEY: Final = frozenset(("rs", "re", "kr", "zł", "fr", "sfr", "rm", "rp", "kč", "ft", "tl", "eur", "euro", "usd"))
_ABOUT: Final = frozenset(("about", "approx", "c", "ca", "circa", "env", "est", "etwa", "over", "under", "up to"))
_MAGNITUDE: Final = re.compile(
    r"(?i)(?:.*[^\w])?(?:k|m|b|g|t|bn|mn|mm|mio|mrd|mia|tsd|l|lac|lakh|cr|crore|\w+illion)s?"
)
# Times, streets, and what hides the digits of a postcode (941xx).
_NO_UNITS: Final = re.compile(
    r"(?i)(?:x+|.*\s(?:street|st|road|rd|avenue|ave|lane|ln|drive|dr|boulevard|blvd)|a\.?m|p\.?m|ad|bc|bce|ce|"
    r"jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_MOST_FORMS: Final = 6
_LONGEST_WORD: Final = 4
_SYMBOLS: Final = "%‰°º′″µ"


class Around(NamedTuple):
    """What stands around the numbers of a column.

    Attributes:
        units: What a setting leaves out; empty where none does.
        forms: How cells look, with ``…`` for the number.
    """

    units: tuple[str, ...]
    forms: tuple[str, ...]


class _Part(NamedTuple):
    before: str
    behind: str

    @property
    def form(self) -> str:
        return f"{self.before}{BARE}{self.behind}"

    @property
    def is_magnitude(self) -> bool:
        return _MAGNITUDE.fullmatch(self.behind.rstrip(".")) is not None

    @property
    def is_unit(self) -> bool:
        """Whether a setting leaves it out."""
        return any(self) and all(not text or (is_unit(text) and _has_name(text)) for text in self)


_NOTHING: Final = _Part("", "")


def is_unit(text: str) -> bool:
    """Return whether text may be named as a unit: no part of it can be part of a number or its sign."""
    if not text.strip() or text.casefold() == "e" or not set(text) - set(". "):
        return False
    return not any(char.isdigit() or char in "+-,()'\u2013\u2014\u2212" for char in text)


def around(found: pa.Array, rows: pa.Array) -> Around | None:
    """Return what stands around the numbers of a column; ``None``: they are no numbers, or nothing is common.

    Args:
        found: The different values, without blanks around them.
        rows: How often each occurs.
    """
    parts = pc.extract_regex(found, _PARTS)
    short = [pc.less_equal(pc.utf8_length(pc.struct_field(parts, name)), most) for name, most in _LONGEST.items()]
    matched = pc.fill_null(pc.and_(*short), False)
    fields = [parts.filter(matched).field(name).to_pylist() for name in ("before", "number", "behind")]
    cells = list(zip(*fields, rows.filter(matched).to_pylist(), strict=True))
    befores, fractions = Counter(fields[0]), Counter(cell[0] for cell in cells if re.search("[.,]", cell[1]))
    numbers: dict[_Part, list[str]] = {}
    weights = Counter[_Part]()
    for before, number, behind, count in cells:
        if (number.endswith(".") and behind[:1].isalpha()) or (number.endswith(",") and behind):  # 17.jpg; 17, Main St
            continue
        part = _part(before, behind, fractional=2 * fractions[before] >= befores[before])
        if part is not None:
            numbers.setdefault(part, []).append(number)
            weights[part] += count
    return _common(numbers, weights, len(found), pc.sum(rows).as_py() or 0)


def _common(numbers: dict[_Part, list[str]], weights: Counter[_Part], values: int, rows: int) -> Around | None:
    def is_half(parts: Sequence[_Part]) -> bool:
        return 2 * sum(len(numbers[part]) for part in parts) >= values or 2 * sum(weights[one] for one in parts) >= rows

    if not numbers or not is_half(list(numbers)):
        return None
    by_size = sorted(numbers, key=lambda part: -len(numbers[part]))
    bare = [part for part in by_size if part == _NOTHING]
    first, *others = [part for part in by_size if part != _NOTHING] or [_NOTHING]
    scaled = any(part.is_magnitude for part in (first, *others)) and bool(others or bare)
    if is_half([first]) and first.is_unit and not scaled:
        return None if _are_few([first], numbers) else Around(tuple(text for text in first if text), (first.form,))
    fewest = max(2, values / 20)
    kept = [one for one in (first, *others) if len(numbers[one]) >= fewest or (scaled and one.is_magnitude)]
    kept = [
        one
        for one in kept
        if len(kept) == 1 or len(one.behind) != 1 or one.before or not one.behind.isalpha() or one.is_magnitude
    ]
    kept = kept[:_MOST_FORMS]
    if first != _NOTHING:
        kept += bare
    if not kept or not is_half(kept) or _are_few(kept, numbers):
        return None
    return Around((), tuple(part.form for part in kept))


def _are_few(parts: Sequence[_Part], numbers: dict[_Part, list[str]]) -> bool:
    """Return whether numbers may be names of categories, such as levels."""
    found = [number for part in parts for number in numbers[part]]
    if any(set(part.before) & _COMPARED for part in parts):
        return len(found) <= FEW
    if any(map(_has_currency, (text for part in parts for text in part))):
        return False
    return len(found) <= FEW and all(len(number) <= 2 and number.isdigit() for number in found)


def _part(before: str, behind: str, *, fractional: bool) -> _Part | None:
    """Return what stands around a number, without its sign; ``None``: it is a code."""
    bracketed = "(" in before and ")" in behind
    name = before.strip(f"{_SPACES}+-\u2212()" if bracketed else f"{_SPACES}+-\u2212")
    end = behind.strip(f"{_SPACES})" if bracketed else _SPACES)
    if not (_may_stand_before(name, before, fractional=fractional) and _may_stand_behind(end)):
        return None
    return _Part(name, end)


def _may_stand_before(name: str, raw: str, *, fractional: bool) -> bool:
    if not name or _has_currency(name) or set(name) <= _MARKS_BEFORE or name in _CURRENCIES:
        return True
    word = name.rstrip(".").casefold()
    if not (raw[-1] in f"{_SPACES}." or name.endswith(".")) or not word.replace(" ", "").isalpha():
        return False
    return (
        word in _MONEY or word in _ABOUT or name.upper() in _CURRENCIES or (fractional and len(word) <= _LONGEST_WORD)
    )


def _may_stand_behind(end: str) -> bool:
    if not end or set(end) <= _MARKS_BEHIND:
        return True
    return (end[0].isalpha() or end[0] in _SYMBOLS or _has_currency(end[0])) and _NO_UNITS.fullmatch(end) is None


def _has_currency(text: str) -> bool:
    return any(unicodedata.category(char) == "Sc" for char in text)


def _has_name(text: str) -> bool:
    return any(char.isalpha() or char in _SYMBOLS for char in text) or _has_currency(text)


def forms_pattern(forms: Sequence[str]) -> str:
    """Return the pattern of cells that have one of some forms."""
    space, sign = f"[{_SPACES}]?", f"[{_SIGNS}]?"
    found = []
    for form in forms:
        before, behind = map(re.escape, form.split(BARE))
        found.append(rf"\(?{sign}{space}{before}{space}{sign}\(?{_NUMBER}{space}{behind}\)?")
    return f"^(?:{'|'.join(found)})$"
