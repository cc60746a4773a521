"""The figure of what resists: success over k / rank and over L / rank, a column of charts for each number of rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from splitvfl.report.drawing import MUTED, PALETTE, SMALL, drawing_style, new_figure, panel_title, svg_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPREAD = 2.5


class Setting(Protocol):
    """A setting of the sweep."""

    @property
    def columns(self) -> str:
        """``"Gaussian"``, or the key of a problem."""

    @property
    def rank(self) -> int:
        """Number of independent columns."""

    @property
    def ratio(self) -> float:
        """How many records are used for each independent column: k over the rank."""

    @property
    def spread(self) -> float:
        """How many are sent for each that is used: L over k."""


class Measured(Protocol):
    """What was measured in one setting."""

    @property
    def cell(self) -> Setting:
        """The setting."""

    @property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """One per seed."""

    @property
    def is_judged_well(self) -> bool:
        """Whether figures of one round are of enough records."""

    def mean_at(self, name: str, rounds: int) -> float:
        """Return a figure after so many rounds."""


def draw_resists(
    name: str, found: Sequence[Measured], titles: Mapping[str, str], threshold: Callable[[float], float]
) -> str:
    """Return the figure as the text of an SVG file.

    Args:
        name: Prefix of the ids in the file.
        found: The settings.
        titles: Of the columns.
        threshold: Returns k / rank up to which sparse recovery works, given L / k.
    """
    looks: list[int] = list(found[0].results[0]["looks"])
    by_columns = _grouped(
        (f"{titles[one.cell.columns]}, rank {one.cell.rank}", one) for one in found if one.cell.spread == _SPREAD
    )
    least = min((one.cell.rank for one in found if one.cell.columns == "Gaussian"), default=0)
    by_spread = _grouped(
        (f"L = {one.cell.spread:g} k", one)
        for one in found
        if one.cell.columns == "Gaussian" and one.cell.rank == least
    )
    with drawing_style():
        drawn = new_figure(6.0)
        grid = drawn.subplots(2, len(looks), squeeze=False, sharey=True)
        for place, rounds in enumerate(looks):
            above, below = grid[0][place], grid[1][place]
            panel_title(above, f"{rounds} rounds" if rounds > 1 else "1 round")
            for colour, (label, group) in zip(PALETTE, by_columns.items(), strict=False):
                _line(above, group, rounds, 1.0, label, colour)
            for colour, (label, group) in zip(PALETTE, by_spread.items(), strict=False):
                spread = group[0].cell.spread
                _line(below, group, rounds, spread, label, colour)
                below.axvline(spread * threshold(spread), color=colour, linewidth=0.8, linestyle=(0, (1, 2)))
            above.axvline(threshold(_SPREAD), color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
            _known_support(above, max(one.cell.ratio for one in found))
            above.set_xlabel("k / rank")
            below.set_xlabel("L / rank")
        for axes in grid[:, 0]:
            axes.set_ylabel("balanced accuracy")
        style: Any = {"frameon": False, "fontsize": SMALL}
        drawn.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4, **style)
        drawn.legend(*grid[1][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, **style)
        return svg_file(drawn, name)


def _grouped(pairs: Iterable[tuple[str, Measured]]) -> dict[str, list[Measured]]:
    groups: dict[str, list[Measured]] = {}
    for label, one in pairs:
        groups.setdefault(label, []).append(one)
    return {label: sorted(group, key=lambda one: one.cell.ratio) for label, group in groups.items()}


def _line(axes: Axes, group: Sequence[Measured], rounds: int, factor: float, label: str, colour: str) -> None:
    # One class has few records of real batches, and after one round fewer.
    shown = [one for one in group if rounds > 1 or one.cell.columns == "Gaussian" or one.is_judged_well]
    axes.set_xscale("log", base=2)
    axes.plot(
        [factor * one.cell.ratio for one in shown],
        [one.mean_at("likelihood", rounds) for one in shown],
        color=colour,
        linewidth=1.3,
        marker="o",
        markersize=2.5,
        label=label,
    )


def _known_support(axes: Axes, most: float) -> None:
    """Draw ``Φ(√(1 / (k/d − 1)))`` beyond k = d."""
    across = np.geomspace(1.02, most, 200)
    up = [NormalDist().cdf((ratio - 1) ** -0.5) for ratio in across]
    axes.plot(across, up, color=MUTED, linewidth=1.0, linestyle=(0, (4, 2)), label="known support, 1 round")
