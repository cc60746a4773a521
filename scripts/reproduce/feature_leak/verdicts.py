"""What a way is compared with, for how many comparisons that is corrected, and which ways are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.reproduce.feature_leak.arrangements import ARRANGEMENTS
from scripts.reproduce.feature_leak.study import Measured, Row, corrected, differences, less, read_of
from scripts.reproduce.feature_leak.ways import OF_ACTIVATIONS, OF_GRADIENTS, UNDEFENDED
from scripts.reproduce.shared.claims import DIFFERENCE, Interval, clipped, mean, shown, signed

CHEAP = 0.01
"""So much of the AUC on validation records a defense may cost to be chosen."""

FAMILIES = tuple(dict.fromkeys(way.family for way in OF_ACTIVATIONS))

COMPARISONS = (3 * len(FAMILIES) + 2 * len(OF_GRADIENTS)) * len(ARRANGEMENTS)
"""So many differences to no defense are called one or not: on every data set of what validation chooses of each family
in test AUC, columns read and labels read, and of defenses of labels in columns and labels."""


@dataclass(frozen=True)
class Compared:
    """A figure of a way less that of no defense, paired by seed.

    Attributes:
        middle: The mean over seeds.
        ends: Its interval, which holds for all comparisons of the page at once; ``None`` where there is none.
    """

    middle: float
    ends: Interval | None

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Compared:
        """Return the comparison."""
        found = differences(ours, theirs)
        return cls(mean(found), corrected(found, COMPARISONS))

    @property
    def side(self) -> str:
        """``"less"`` or ``"more"`` where the whole interval says so, else empty."""
        return less(self.ends)

    @property
    def shown(self) -> str:
        """For a table: the difference, in bold where the whole interval is on one side of 0."""
        text = signed(self.middle)
        return f"**{text}**" if self.side else text

    @property
    def shown_ends(self) -> str:
        """The interval in words."""
        ends = clipped(self.ends, DIFFERENCE)
        return "no interval" if ends is None else f"{shown(ends[0])} to {shown(ends[1])}"


def utility(found: Measured, row: Row) -> Compared:
    """Compare test AUCs."""
    return Compared.of(row.aucs, found.rows[UNDEFENDED.label].aucs)


def columns(found: Measured, row: Row) -> Compared:
    """Compare what is read of columns."""
    return Compared.of(row.read(), found.rows[UNDEFENDED.label].read())


def labels(found: Measured, row: Row) -> Compared:
    """Compare what is read of labels."""
    return Compared.of(row.labels, found.rows[UNDEFENDED.label].labels)


def chosen(found: Measured, family: str) -> Row | None:
    """Return the strength of a family that validation chooses: of those that cost little, the one that is read least.

    Both are of the run with the validation seed, on validation records; ``None`` where every strength costs more.
    """
    return _least_read(found, found.of_family(family))


def best(found: Measured) -> Row | None:
    """Return the way that validation chooses among all of all families, by the same rule."""
    return _least_read(found, [row for row in found.rows.values() if row.way in OF_ACTIVATIONS])


def _least_read(found: Measured, rows: Sequence[Row]) -> Row | None:
    needed = found.rows[UNDEFENDED.label].validated["auc"] - CHEAP
    cheap = [row for row in rows if row.validated["auc"] >= needed]
    return min(cheap, key=lambda row: read_of(row.validated), default=None)


def usual(found: Measured) -> list[Row]:
    """Return the row without a defense, and what validation chooses of each family."""
    picked = [chosen(found, family) for family in FAMILIES]
    return [found.rows[UNDEFENDED.label], *(row for row in picked if row is not None)]
