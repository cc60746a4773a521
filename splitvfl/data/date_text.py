"""Text that is dates: from which no numbers are made, as nobody has said of what."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# Different values that are looked at, of so many rows, and the fraction of them that must be dates.
_VALUES: Final = 1_000
_ROWS: Final = 10 * _VALUES
_MOST: Final = 0.9
_MONTH: Final = (
    r"(jan|feb|fév|mar|mär|apr|avr|may|mai|jun|juin|jul|juil|aug|aoû|ago|sep|oct|okt|nov|dec|dez|déc|dic)[^\W\d_]*\.?"
)
_TIME: Final = r"([ T]+\d{1,2}:\d{2}.*)?"
_DATE: Final = re.compile(
    rf"\s*(?:(?:\d{{4}})[-./](?P<a>\d{{1,2}})[-./](?P<b>\d{{1,2}})|(?P<c>\d{{1,2}})[-./](?P<d>\d{{1,2}})[-./](\d{{4}}|\d{{2}})|"
    rf"\d{{1,2}}\.?[- /]{_MONTH}[- /,]+(\d{{4}}|\d{{2}})|{_MONTH} \d{{1,2}},? \d{{4}}){_TIME}\s*",
    re.IGNORECASE,
)


def dates_in_text(column: pa.Array) -> str | None:
    """Return the first date of a column of text of which most different values are dates; ``None``: it holds others.

    The first 10,000 rows with a value are looked at.

    >>> dates_in_text(pa.array(["", "17.08.2021", "Aug 3, 2020"]))
    '17.08.2021'
    >>> dates_in_text(pa.array(["20-45-12", "40-47-84"])) is None  # sort codes of banks: there is no month 45
    True
    """
    known = column.filter(pc.not_equal(pc.utf8_trim_whitespace(column), "").fill_null(False))
    some = pc.unique(known.slice(0, _ROWS)).slice(0, _VALUES).to_pylist()
    dates = [one for one in some if _is_date(one)]
    return dates[0] if some and len(dates) >= _MOST * len(some) else None


def _is_date(text: str) -> bool:
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    day, month = sorted(int(one) for one in (found["a"] or found["c"] or "1", found["b"] or found["d"] or "1"))[::-1]
    return 1 <= month <= 12 and 1 <= day <= 31
