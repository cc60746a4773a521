"""Line charts side by side, in the project's style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from splitvfl.report.drawing import MUTED, SMALL, drawing_style, new_figure, panel_title, svg_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_IN_A_LINE = 6
"""So many names fit side by side below the panels."""

Line = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Pen:
    """How a line is drawn, the same in every chart.

    Attributes:
        colour: Its colour.
        dashed: Whether it is dashed.
    """

    colour: str
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart.

    Attributes:
        title: Its title.
        x_label: What the horizontal axis shows.
        lines: Abscissae and ordinates by name.
        levels: Dotted levels by the name of the line whose colour they have.
        bars: How far error bars reach below and above each point, by the name of the line; none for lines that are not
            named.
        marked: Whether points are marked: where few abscissae are no continuum.
        baseline: A level that is drawn thinly.
    """

    title: str
    x_label: str
    lines: Mapping[str, Line]
    levels: Mapping[str, float] = field(default_factory=dict)
    bars: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    marked: bool = False
    baseline: float | None = None


def draw_panels(name: str, panels: Sequence[Panel], pens: Mapping[str, Pen], *, same_scale: bool = False) -> str:
    """Return charts side by side, with one legend, as the text of an SVG file.

    Args:
        name: Prefix of the ids in the file.
        panels: All with lines of the same names, in the same order.
        pens: For every line, by name.
        same_scale: Whether the vertical axes are alike.
    """
    with drawing_style():
        drawn = new_figure(3.3)
        for axes, panel in zip(
            drawn.subplots(1, len(panels), squeeze=False, sharey=same_scale)[0], panels, strict=True
        ):
            _draw(axes, panel, pens)
        finish(drawn)
        return svg_file(drawn, name)


def finish(drawn: Figure) -> None:
    """Put one legend, that of the first panel's lines, below all panels."""
    handles, labels = drawn.axes[0].get_legend_handles_labels()
    drawn.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels) if len(labels) <= MOST_IN_A_LINE else -(-len(labels) // 2),
        frameon=False,
        fontsize=SMALL,
    )


def _draw(axes: Axes, panel: Panel, pens: Mapping[str, Pen]) -> None:
    if panel.baseline is not None:
        axes.axhline(panel.baseline, color=MUTED, linewidth=0.8, zorder=1)
    for label, level in panel.levels.items():
        axes.axhline(level, color=pens[label].colour, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
    for label, (across, up) in panel.lines.items():
        pen = pens[label]
        marker = "o" if panel.marked or len(across) < 3 else ""
        style: Any = (0, (4, 2)) if pen.dashed else "-"
        axes.plot(
            across, up, color=pen.colour, linestyle=style, linewidth=1.5, marker=marker, markersize=4, label=label
        )
        if label in panel.bars:
            axes.errorbar(
                across,
                up,
                yerr=list(zip(*panel.bars[label], strict=True)),
                fmt="none",
                ecolor=pen.colour,
                elinewidth=0.8,
            )
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.set_xlabel(panel.x_label)
    panel_title(axes, panel.title)
