"""Panels of what is read of columns, and of something else, one for each data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scripts.reproduce.feature_leak.study import Measured, Row
from scripts.reproduce.feature_leak.ways import NONE
from scripts.reproduce.shared.claims import mean
from splitvfl.report.drawing import INK, MUTED, PALETTE, SMALL, drawing_style, new_figure, panel_title, svg_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "os^Dv<>P"
_NAMES_IN_A_LINE = 4


def draw(
    name: str, found: Sequence[Measured], *, up: str, values: Callable[[Row], Sequence[float]], alone: bool = True
) -> str:
    """Return a panel for each data set, with what is read of columns across, as the text of an SVG file.

    Args:
        name: Prefix of the ids in the file.
        found: The data sets.
        up: What the vertical axis shows.
        values: Of a row, one per seed.
        alone: Whether the AUC of the label party's own columns is drawn thinly.
    """
    lines = -(-len(found) // 2)
    with drawing_style():
        drawn = new_figure(0.8 + 2.9 * lines)
        grid = drawn.subplots(lines, min(2, len(found)), squeeze=False)
        for axes in grid.flat[len(found) :]:
            axes.set_axis_off()
        for axes, one in zip(grid.flat, found, strict=False):
            _panel(axes, one, values)
            if alone and one.about["alone"] is not None:
                axes.axhline(one.about["alone"], color=MUTED, linewidth=0.8, zorder=1)
            axes.set_xlabel("share of the columns' variance that is read")
            axes.set_ylabel(up)
        handles, labels = drawn.axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=_NAMES_IN_A_LINE, frameon=False, fontsize=SMALL)
        return svg_file(drawn, name)


def _panel(axes: Axes, found: Measured, values: Callable[[Row], Sequence[float]]) -> None:
    families = list(dict.fromkeys(row.way.family for row in found.rows.values()))
    for place, family in enumerate(families):
        rows = found.of_family(family)
        axes.plot(
            [mean(row.read()) for row in rows],
            [mean(values(row)) for row in rows],
            # Those of labels are no strengths of one defense.
            linestyle="" if family == "of labels" else "-",
            linewidth=0.8,
            marker=_MARKERS[place % len(_MARKERS)],
            markersize=5.0,
            color=INK if family == NONE else PALETTE[(place - 1) % len(PALETTE)],
            label=family,
        )
    panel_title(axes, found.arrangement.title)
