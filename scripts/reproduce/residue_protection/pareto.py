"""Which of several choices no other one beats, and how they look: accuracy against what is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitvfl.report.drawing import MUTED, SMALL, drawing_style, new_figure, panel_title, svg_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Less than this is no difference that anybody would choose by, nor one that five seeds and a busy machine show.
_CLEAR = 0.01
_CLEAR_RATIO = 10.0

_NAMES_IN_A_LINE = 4


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What one gets, and what it costs.

    Attributes:
        accuracy: The more the better.
        read: What the best attack gets: the less the better.
        seconds: The less the better, > 0.
    """

    accuracy: float
    read: float
    seconds: float

    def beats(self, other: Choice) -> bool:
        """Return whether it is at least as good in everything, and clearly better in something.

        Clearly is .01 of accuracy or of what is read, or a tenth of the time. Times nearer to one another are alike.
        """
        ratio = other.seconds / self.seconds
        if self.accuracy < other.accuracy or self.read > other.read or ratio <= 1.0 / _CLEAR_RATIO:
            return False
        gained = max(self.accuracy - other.accuracy, other.read - self.read)
        return gained >= _CLEAR or ratio >= _CLEAR_RATIO


def front(choices: Mapping[str, Choice]) -> list[str]:
    """Return the names of the choices that no other one beats, in their order.

    >>> front({
    ...     "plain": Choice(accuracy=0.9, read=1.0, seconds=1.0),
    ...     "noisy": Choice(accuracy=0.6, read=0.6, seconds=1.0),
    ...     "bad": Choice(accuracy=0.6, read=0.7, seconds=1.0),
    ... })
    ['plain', 'noisy']
    """
    return [name for name, one in choices.items() if not any(other.beats(one) for other in choices.values())]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Choices that are drawn alike.

    Attributes:
        label: For the legend.
        colour: Of its points.
        marker: Matplotlib's name of their shape.
    """

    label: str
    colour: str
    marker: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The choices of one problem.

    Attributes:
        title: Its title.
        choices: By name.
        families: Of each, by name.
        level: The accuracy of the larger class, drawn thinly.
    """

    title: str
    choices: Mapping[str, Choice]
    families: Mapping[str, Family]
    level: float


def draw_choices(name: str, panels: Sequence[Panel]) -> str:
    """Return choices in panels of two columns, those on the front filled, as the text of an SVG file.

    Args:
        name: Prefix of the ids in the file.
        panels: From left to right, row by row.
    """
    rows = -(-len(panels) // 2)
    with drawing_style():
        drawn = new_figure(0.8 + 2.9 * rows)
        grid = drawn.subplots(rows, min(2, len(panels)), squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw(axes, panel)
        handles, labels = drawn.axes[0].get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        drawn.legend(
            list(unique.values()),
            list(unique),
            loc="outside lower center",
            ncols=_NAMES_IN_A_LINE,
            frameon=False,
            fontsize=SMALL,
        )
        return svg_file(drawn, name)


def _draw(axes: Axes, panel: Panel) -> None:
    best = set(front(panel.choices))
    axes.axhline(panel.level, color=MUTED, linewidth=0.8, zorder=1)
    for name, choice in panel.choices.items():
        family = panel.families[name]
        axes.plot(
            [choice.read],
            [choice.accuracy],
            linestyle="",
            marker=family.marker,
            markersize=6.0,
            color=family.colour,
            markerfacecolor=family.colour if name in best else "none",
            label=family.label,
        )
    axes.set_xlim(0.47, 1.03)
    axes.set_xlabel("coins that the best attack reads")
    axes.set_ylabel("accuracy")
    panel_title(axes, panel.title)
