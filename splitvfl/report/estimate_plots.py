"""True against estimated values of columns, as SVG that can stand inside an HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from splitvfl.leakage.reconstruction import ReconstructedView
from splitvfl.leakage.shown_records import PlottedColumn, ShownRecords
from splitvfl.report.drawing import MUTED, PALETTE, drawing_style, inline_svg, new_figure, panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS_PER_ROW = 3
_PANEL_HEIGHT = 2.9
_LONGEST_TITLE = 34


def estimate_plots(view: ReconstructedView, *, name: str) -> str:
    """Return the columns of which most is told, a panel each: on the diagonal, an estimate is the truth.

    Args:
        view: What was told; empty without values of records.
        name: Prefix of the figure's ids, unique in its page.
    """
    if not view.plots:
        return ""
    with drawing_style():
        return inline_svg(drawn_estimates(view.plots), name, alt=in_words(view))


def plots_of_shown(shown: ShownRecords, *, name: str) -> str:
    """Return the columns that a reader of activations reads most, likewise.

    Args:
        shown: What was kept.
        name: Prefix of the figure's ids, unique in its page.
    """
    columns = ", ".join(plot.column for plot in shown.columns)
    said = f"True values against estimates by {shown.attack}, {len(shown.columns[0].true)} records each: {columns}."
    with drawing_style():
        return inline_svg(drawn_estimates(shown.columns), name, alt=said)


def drawn_estimates(plots: Sequence[PlottedColumn]) -> Figure:
    """Return true against estimated values as a figure, a panel for each column."""
    columns = min(len(plots), _PANELS_PER_ROW)
    rows = math.ceil(len(plots) / columns)
    drawn = new_figure(rows * _PANEL_HEIGHT + 0.2)
    # Panels are as wide as those of a full row.
    grid = drawn.subplots(rows, _PANELS_PER_ROW, sharex=True, sharey=True, squeeze=False)
    low, high = _ends(plots)
    for axes, plot in zip(grid.flat, plots, strict=False):
        _draw(axes, plot, _mean_of(plot), low, high)
    for axes in grid.flat[len(plots) :]:
        axes.set_visible(False)
    for place, axes in enumerate(grid.flat[: len(plots)]):
        if place % _PANELS_PER_ROW == 0:
            axes.set_ylabel("estimated")
        if place + _PANELS_PER_ROW >= len(plots):
            axes.set_xlabel("true")
            axes.tick_params(labelbottom=True)
    return drawn


def _draw(axes: Axes, plot: PlottedColumn, mean: float, low: float, high: float) -> None:
    panel_title(axes, plot.column if len(plot.column) <= _LONGEST_TITLE else f"{plot.column[: _LONGEST_TITLE - 1]}…")
    axes.plot([low, high], [low, high], color=MUTED, linewidth=0.9)
    axes.axhline(mean, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.scatter(plot.true, plot.estimated, s=11, color=PALETTE[0], alpha=0.55, linewidths=0)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")


def _mean_of(plot: PlottedColumn) -> float:
    """Return the mean of the values that are drawn: who knows nothing of a record answers about that."""
    return math.fsum(plot.true) / len(plot.true)


def _ends(plots: Sequence[PlottedColumn]) -> tuple[float, float]:
    """Return the ends of the axes: those of the unit box, and more where a record or an estimate lies beyond."""
    values = [value for plot in plots for value in (*plot.true, *plot.estimated)]
    low, high = min(0.0, *values), max(1.0, *values)
    room = 0.03 * (high - low)
    return low - room, high + room


def in_words(view: ReconstructedView) -> str:
    """Return what the plots show, for whoever cannot see them."""
    errors = {one.column: (one.mse, one.near) for one in view.best.columns}
    said = [
        f"{plot.column}: mean squared error {errors[plot.column][0]:.3g}, {errors[plot.column][1]:.0%} within .05"
        for plot in view.plots
    ]
    return (
        f"True values against estimates by {view.best.attack}, {len(view.plots[0].true)} records, the features that "
        f"are recovered best: {'; '.join(said)}."
    )
