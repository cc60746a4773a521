"""Curves over steps and epochs, with marked steps and levels, in the project's style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scripts.reproduce.shared.drawing import MOST_IN_A_LINE
from splitvfl.report.drawing import MUTED, SMALL, TINY, drawing_style, new_figure, panel_title, svg_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line.

    Attributes:
        across: Abscissae.
        up: Ordinates.
        colour: Its colour.
        errors: Half lengths of error bars; empty for none.
        dashed: Whether it is dashed.
        label: For the legend; lines of one label have one entry. ``""`` for none.
    """

    across: Sequence[float]
    up: Sequence[float]
    colour: str
    errors: Sequence[float] = ()
    dashed: bool = False
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One panel.

    Attributes:
        title: Its title.
        x_label: What the horizontal axis shows.
        curves: Its lines.
        marks: Abscissae of vertical lines, with their colours.
        levels: Ordinates of thin horizontal lines, by what is written beside them.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is, where its values differ enough.
        limits: Ends of the vertical axis; ``None`` for those of the curves.
    """

    title: str
    x_label: str
    curves: Sequence[Curve]
    marks: Sequence[tuple[float, str]] = ()
    levels: Mapping[str, float] = field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False
    limits: tuple[float, float] | None = None


def draw_charts(name: str, charts: Sequence[Chart], *, columns: int, same_scale: bool = False) -> str:
    """Return charts in a grid, with one legend of all labels, as the text of an SVG file.

    Args:
        name: Prefix of the ids in the file.
        charts: From left to right, row by row.
        columns: Charts side by side.
        same_scale: Whether vertical axes of a row are alike.
    """
    rows = -(-len(charts) // columns)
    with drawing_style():
        drawn = new_figure(0.5 + 2.8 * rows)
        grid = drawn.subplots(rows, columns, squeeze=False, sharey="row" if same_scale else False)
        for axes in grid.flat[len(charts) :]:
            axes.set_axis_off()
        for axes, chart in zip(grid.flat, charts, strict=False):
            _draw(axes, chart)
        found: dict[str, Any] = {}
        for axes in drawn.axes:
            handles, labels = axes.get_legend_handles_labels()
            found |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in found}
        drawn.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=len(found) if len(found) <= MOST_IN_A_LINE else -(-len(found) // 2),
            frameon=False,
            fontsize=SMALL,
        )
        return svg_file(drawn, name)


def _plain(value: float, place: float | None = None) -> str:
    return f"{value:g}"


def _spans_decades(chart: Chart) -> bool:
    """Return whether a logarithmic axis has room for a few round numbers."""
    values = [value for curve in chart.curves for value in curve.up]
    return max(values) > 5 * min(values)


def _draw(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    if chart.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_plain)
    else:
        axes.locator_params(axis="x", integer=True, nbins=6)
    if chart.log_y and _spans_decades(chart):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(_plain)
        axes.yaxis.set_minor_locator(NullLocator())
    if chart.limits is not None:
        axes.set_ylim(chart.limits)
    for text, level in chart.levels.items():
        axes.axhline(level, color=MUTED, linewidth=0.8, zorder=1)
        axes.annotate(
            text,
            (0, level),
            xycoords=("axes fraction", "data"),
            xytext=(2, 2),
            textcoords="offset points",
            ha="left",
            va="bottom",
            fontsize=TINY,
            color=MUTED,
        )
    for step, colour in chart.marks:
        axes.axvline(step, color=colour, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
    for curve in chart.curves:
        style: Any = (0, (4, 2)) if curve.dashed else "-"
        axes.plot(
            curve.across,
            curve.up,
            color=curve.colour,
            linestyle=style,
            linewidth=1.3,
            label=curve.label or "_nolegend_",
        )
        if curve.errors:
            axes.errorbar(curve.across, curve.up, yerr=curve.errors, fmt="none", ecolor=curve.colour, elinewidth=0.8)
    axes.set_xlabel(chart.x_label)
    panel_title(axes, chart.title)
