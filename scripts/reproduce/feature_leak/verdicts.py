"""What a way is compared with, for how many comparisons that is corrected, and which ways are chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.reproduce.feature_leak.arrangements import ARRANGEMENTS
from scripts.reproduce.feature_leak.study import Measured, Row, corrected, differences, less
from scripts.reproduce.feature_leak.ways import OF_ACTIVATIONS, OF_GRADIENTS, UNDEFENDED
from scripts.reproduce.shared.claims import DIFFERENCE, Interval, clipped, mean, shown, signed

CHEAP = 0.01
"""So much of the AUC on validation records a defense may cost to be chosen."""

FAMILIES = tuple(dict.fromkeys(way.family for way in OF_ACTIVATIONS))

OF_SHAPES = 4
"""So many questions are asked of shapes that nothing defends."""

OF_CHOSEN, OF_LABELS = 4, 3
"""So many differences to no defense are looked at of a choice: in test AUC, columns read by
ridge regression, columns read by whichever reader reads most, and labels read; and of a defense of labels: the same
without the test AUC."""

CHOICES = len(FAMILIES) + 1
"""So many choices there are at most on a data set: one of each family, and what is advised, if it is none of them."""

COMPARISONS = (OF_SHAPES + OF_CHOSEN * CHOICES + OF_LABELS * len(OF_GRADIENTS)) * len(ARRANGEMENTS)
"""So many differences are called one or not on the whole page, with every data set: all are corrected for all."""


@dataclass(frozen=True)
class Compared:
    """A figure of a way less that of no defense, paired by seed.

    Attributes:
        middle: The mean over the seeds in which either has a figure; NaN where there is none.
        ends: Its interval, which holds for all comparisons of the page at once; ``None`` where there is none.
        seeds: How many seeds have a difference.
        of: How many seeds there are.
    """

    middle: float
    ends: Interval | None
    seeds: int
    of: int

    @classmethod
    def of_pairs(cls, ours: Sequence[float], theirs: Sequence[float]) -> Compared:
        """Return the comparison; a seed in which either has no figure is left out."""
        found = differences(ours, theirs)
        known = [value for value in found if not math.isnan(value)]
        return cls(mean(known), corrected(known, COMPARISONS), len(known), len(found))

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

    @property
    def why(self) -> str:
        """For the reason of a verdict: for how many comparisons it is corrected, and of how many seeds it is."""
        lost = self.of - self.seeds
        beside = f"; {self.seeds} of {self.of} seeds, the others collapsed" if lost else ""
        return f"corrected for {COMPARISONS} comparisons{beside}"


def utility(found: Measured, row: Row) -> Compared:
    """Compare test AUCs, those of collapsed seeds among them."""
    return Compared.of_pairs(row.aucs, found.rows[UNDEFENDED.label].aucs)


def columns(found: Measured, row: Row) -> Compared:
    """Compare what is read of columns in seeds that did not collapse."""
    return Compared.of_pairs(row.read(), found.rows[UNDEFENDED.label].read())


def labels(found: Measured, row: Row) -> Compared:
    """Compare what is read of labels."""
    return Compared.of_pairs(row.labels, found.rows[UNDEFENDED.label].labels)


def chosen(found: Measured, family: str) -> Row | None:
    """Return the strength of a family that validation chooses: of those that cost little, the one that is read least.

    Both are means over the seeds by which is chosen: the AUC is that of validation records, what is read is of training
    records. A strength under which one of these seeds collapses is not chosen. ``None``: there is no other.
    """
    return _least_read(cheap(found, found.of_family(family)), lambda row: not row.collapsed_in_validation)


def best(found: Measured) -> Row | None:
    """Return the way to advise: the same rule among all ways of all families under which no reported seed collapsed."""
    return _least_read(cheap(found, of_activations(found)), lambda row: not row.collapses)


def least(found: Measured) -> Row | None:
    """Return the way that is read least in the runs by which is chosen, at any cost, if no seed collapsed."""
    return _least_read(of_activations(found), lambda row: not row.collapses)


def cheap(found: Measured, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that cost little of the AUC on validation records."""
    needed = found.rows[UNDEFENDED.label].validated_auc - CHEAP
    return [row for row in rows if row.validated_auc >= needed]


def passed_over(found: Measured) -> list[Row]:
    """Return the rows that are read less than what is advised, and under which some seeds collapsed, but not all."""
    picked = best(found)
    most = math.inf if picked is None else picked.validated_read
    rows = [row for row in of_activations(found) if row.collapses and row.validated_read < most]
    return [row for row in rows if len(row.collapsed) < len(row.runs)]


def of_activations(found: Measured) -> list[Row]:
    """Return the rows between which is chosen."""
    return [row for row in found.rows.values() if row.way in OF_ACTIVATIONS]


def _least_read(rows: Sequence[Row], fits: Callable[[Row], bool]) -> Row | None:
    return min(filter(fits, rows), key=lambda row: row.validated_read, default=None)


def usual(found: Measured) -> list[Row]:
    """Return the row without a defense, what validation chooses of each family, and what is advised."""
    picked = [*(chosen(found, family) for family in FAMILIES), best(found)]
    rows = [found.rows[UNDEFENDED.label], *(row for row in picked if row is not None)]
    return list({row.way.label: row for row in rows}.values())
