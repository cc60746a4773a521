"""One figure of a run: what every number of a summary is, so that all of them make one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number that was measured, and of what.

    Attributes:
        what: The quantity, as ``"auc"``.
        of: The feature that it is about; empty where it is about labels, or about all features.
        by: The attack that reached it; empty where none did.
        at: The passive party, where it is about one.
        part: Where it belongs: ``"attacks"``, ``"canaries"``, ``"readings/0/columns/2"``. Numbers count entries.
        when: ``"step"``: a mean over steps; ``"run"``: of all steps together; empty: there is only one.
        value: The number; ``None`` where it is not known.
        low: Lower end of its 95 % confidence interval, where it has one.
        high: Upper end.
        chance: What random guessing reaches, where that is known.
        records: Number of records that it was measured on, where that is known.
    """

    what: str
    of: str = ""
    by: str = ""
    at: str = ""
    part: str = ""
    when: str = ""
    value: int | float | None = None
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is said beside figures, with their address: a text, a yes or no, or several of these.

    Attributes:
        what: What it is, as ``"unavailable"``.
        of: As of :class:`Figure`, as are the next three.
        by: Likewise.
        at: Likewise.
        part: Likewise.
        said: The text.
    """

    what: str
    of: str = ""
    by: str = ""
    at: str = ""
    part: str = ""
    said: Any = None
