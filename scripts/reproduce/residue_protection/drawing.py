"""Figures over a setting of the mechanism, with the true ε of a release along the top, in the project's style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from splitvfl.report.drawing import MUTED, SMALL, TINY, drawing_style, new_figure, panel_title, svg_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line.

    Attributes:
        label: For the legend; lines of one label have one entry.
        up: Ordinates, one for each abscissa of its chart.
        errors: Half lengths of error bars.
        colour: Its colour.
        dashed: Whether it is dashed.
    """

    label: str
    up: Sequence[float]
    errors: Sequence[float]
    colour: str
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One panel.

    Attributes:
        title: Its title.
        y_label: What the vertical axis shows; ``""`` where a neighbour says so.
        curves: Its lines.
        level: A thin horizontal line: the figure without noise.
    """

    title: str
    y_label: str
    curves: Sequence[Curve]
    level: float


def short(value: float) -> str:
    """Return a setting for tables and axes: ``.0156``, ``4.5``, ``1000``."""
    # Adding zero turns a negative zero into one without a sign.
    text = f"{value + 0.0:.3g}" if value < 100 else f"{value:.0f}"
    return text.removeprefix("0") if text.startswith("0.") else text


def draw_grid(
    name: str,
    charts: Sequence[Chart],
    *,
    columns: int,
    across: Sequence[float],
    x_label: str,
    top: Sequence[str],
    top_label: str,
) -> str:
    """Return charts in a grid, all over the same abscissae, with one legend, as the text of an SVG file.

    Args:
        name: Prefix of the ids in the file.
        charts: From left to right, row by row.
        columns: Charts side by side.
        across: Abscissae, drawn on a logarithmic axis.
        x_label: What they are.
        top: What stands above each abscissa in the first row.
        top_label: What that is.
    """
    rows = -(-len(charts) // columns)
    with drawing_style():
        drawn = new_figure(1.2 + 2.3 * rows)
        grid = drawn.subplots(rows, columns, squeeze=False, sharex=True)
        for number, (axes, chart) in enumerate(zip(grid.flat, charts, strict=True)):
            _draw(axes, chart, across)
            if number < columns:
                _second_axis(axes, across, top, top_label)
            if number >= len(charts) - columns:
                axes.set_xlabel(x_label)
        handles, labels = drawn.axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=SMALL)
        return svg_file(drawn, name)


def _draw(axes: Axes, chart: Chart, across: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(across)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.tick_params(axis="x", labelrotation=90, labelsize=TINY)
    axes.axhline(chart.level, color=MUTED, linewidth=0.8, zorder=1)
    for curve in chart.curves:
        style: Any = (0, (4, 2)) if curve.dashed else "-"
        axes.plot(
            across,
            curve.up,
            color=curve.colour,
            linestyle=style,
            linewidth=1.3,
            marker="o",
            markersize=2.5,
            label=curve.label,
        )
        axes.errorbar(across, curve.up, yerr=curve.errors, fmt="none", ecolor=curve.colour, elinewidth=0.8)
    axes.set_ylabel(chart.y_label)
    panel_title(axes, chart.title)


def _second_axis(axes: Axes, across: Sequence[float], texts: Sequence[str], label: str) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    above = axes.secondary_xaxis("top")
    above.xaxis.set_major_locator(FixedLocator(list(across)))
    above.xaxis.set_minor_locator(NullLocator())
    above.set_xticks(list(across), list(texts))
    above.tick_params(axis="x", labelrotation=90, labelsize=TINY)
    above.set_xlabel(label, fontsize=TINY)
