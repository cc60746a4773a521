"""Ids that find no partner in another table because they are written otherwise: how many, for the owner of both.

Nothing is joined by what is counted here. ``007`` and ``7`` may be two people; only who made the tables can tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from splitvfl.data.tables import listed

_ZEROS = re.compile(r"^([+-]?)0+(?=[0-9])")
_POINT = re.compile(r"\.0+$")

_WAYS: Final[Mapping[str, Callable[[str], str]]] = {
    "leading zeros": lambda name: _ZEROS.sub(r"\1", name),
    ".0 at the end": lambda name: _POINT.sub("", name),
    "letter case": str.casefold,
    "blanks within": lambda name: "".join(name.split()),
}


def would_match(names: Iterable[str], others: Iterable[str]) -> str:
    """Return in words how many ids more would be in both tables if something about them did not count.

    Args:
        names: The ids of one table, as :func:`splitvfl.data.id_column.normalised` writes them.
        others: Those of the other.

    Returns:
        ``"300 more would match without leading zeros"``, with what to do; or an empty text.

    >>> would_match(["7", "8"], ["007", "8"])
    "1 more would match without leading zeros, such as '7' and '007'; if these are the same records, write their ids \
alike in both tables"
    """
    own, theirs = set(names), set(others)
    alone, lonely = own - theirs, theirs - own
    found: list[str] = []
    for what, bare in _WAYS.items():
        by_form = {bare(name): name for name in sorted(lonely, reverse=True)}
        pairs = [(name, by_form[bare(name)]) for name in sorted(alone) if bare(name) in by_form]
        if pairs:
            example = "" if found else f", such as {' and '.join(listed([name]) for name in pairs[0])}"
            found.append(f"{len(pairs)}{'' if found else ' more would match'} without {what}{example}")
    if not found:
        return ""
    return f"{', '.join(found)}; if these are the same records, write their ids alike in both tables"


def written_oddly(names: Iterable[str]) -> str:
    """Return in words how many ids of one's own table would be written otherwise elsewhere; an empty text of none.

    It needs the own table alone: nothing of a partner's ids is in it, and nothing of it goes to the partner.

    >>> written_oddly(["007", "7.0", "x"])
    '1 of your ids has leading zeros, 1 has .0 at the end'
    """
    counts = {"leading zeros": 0, ".0 at the end": 0, "blanks within": 0}
    for name in names:
        for what in counts:
            counts[what] += _WAYS[what](name) != name
    said = [f"{count} {'has' if count == 1 else 'have'} {what}" for what, count in counts.items() if count]
    return ", ".join([said[0].replace(" ", " of your ids ", 1), *said[1:]]) if said else ""
