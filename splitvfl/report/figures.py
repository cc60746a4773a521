"""Figures of a report, as SVG that can stand inside an HTML page.

Each takes runs that may be compared and a prefix for its ids, unique in its page, and returns an ``<svg>`` element, or
nothing where there is nothing to draw. How they look is settled in :mod:`splitvfl.report.drawing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from matplotlib.transforms import Bbox

from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.message_audit import shown_name
from splitvfl.report.drawing import (
    INK,
    MUTED,
    PALETTE,
    PAPER,
    SMALL,
    STATE_COLOURS,
    TINY,
    drawing_style,
    inline_svg,
    new_figure,
    panel_title,
    settle,
)
from splitvfl.report.findings import figure
from splitvfl.report.party_result import PartyResult
from splitvfl.report.rows import (
    DefenseRow,
    Estimate,
    RunGroup,
    attack_names,
    estimate,
    rows_by_defense,
)
from splitvfl.report.summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Metrics = Sequence[Mapping[str, Any]]

_PANELS_PER_ROW = 3
_PANEL_HEIGHT = 2.15
_LONGEST_TITLE = 36


def leak_curves(group: RunGroup, metrics: Sequence[Metrics], *, name: str) -> str:
    """Return leak AUC against steps: one panel per defense and party, a line per attack.

    Solid lines are per step, dashed ones accumulated over the run. Every attack is oriented once, as in the summary.
    Lines of ``metrics.jsonl`` come with each run; runs of one defense are averaged.
    """
    panels = [panel for panel in _panels(group, metrics) if panel.per_step]
    if not panels:
        return ""
    colours = dict(zip(attack_names(group.runs), cycle(PALETTE), strict=False))
    columns = min(len(panels), _PANELS_PER_ROW)
    rows = math.ceil(len(panels) / columns)
    low = _floor(panels)
    with drawing_style():
        drawn = new_figure(rows * _PANEL_HEIGHT + 0.35)
        grid = drawn.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, panel, colours, low)
        _finish_grid(grid, len(panels), columns)
        return inline_svg(drawn, name, alt=_curves_in_words(panels))


def _curves_in_words(panels: Sequence[_Panel]) -> str:
    ends = [
        f"{panel.title}: " + ", ".join(f"{attack} {figure(_last(curve))}" for attack, curve in panel.per_step.items())
        for panel in panels
    ]
    return f"Leak AUC while training; at the last step logged it was: {'; '.join(ends)}."


def _last(curve: Mapping[int, float]) -> float:
    return list(curve.values())[-1]


@dataclass(frozen=True)
class _Panel:
    title: str
    per_step: dict[str, dict[int, float]]
    accumulated: dict[str, dict[int, float]]


def _panels(group: RunGroup, metrics: Sequence[Metrics]) -> Iterator[_Panel]:
    for defense in group.defenses:
        positions = [position for position, label in enumerate(group.labels) if label == defense]
        parties = list(dict.fromkeys(name for position in positions for name in group.runs[position].parties))
        for party in parties:
            title = f"{defense}, {party}" if len(parties) > 1 else defense
            members = [(group.runs[position], metrics[position]) for position in positions]
            per_step = _mean_curves([_curves(run, lines, party, "leak_auc") for run, lines in members])
            accumulated = _mean_curves([_curves(run, lines, party, "leak_auc_accumulated") for run, lines in members])
            yield _Panel(title, per_step, accumulated)


def _curves(run: RunSummary, lines: Metrics, party: str, kind: str) -> dict[str, dict[int, float]]:
    """Return the values by shown attack and step; where attacks share a name, the worse one's."""
    found: dict[str, dict[int, float]] = {}
    for attack, result in run.parties.get(party, PartyResult(attacks={})).attacks.items():
        flipped = _flipped(result, kind)
        curve = found.setdefault(shown_name(attack), {})
        for line in lines:
            # What decides is of all records, if some were left out.
            value = line.get(f"{kind}_tied/{party}/{attack}", line.get(f"{kind}/{party}/{attack}"))
            if value is not None:
                oriented = 1.0 - value if flipped else value
                curve[line["step"]] = max(oriented, curve.get(line["step"], 0.0))
    return {attack: curve for attack, curve in found.items() if curve}


def _flipped(result: LeakSummary, kind: str) -> bool:
    return result.deciding[0 if kind == "leak_auc" else 1] < 0.5


def _mean_curves(runs: Sequence[Mapping[str, Mapping[int, float]]]) -> dict[str, dict[int, float]]:
    """Return the mean over runs at the steps that all of them logged."""
    found = {}
    for attack in dict.fromkeys(attack for run in runs for attack in run):
        curves = [run[attack] for run in runs if attack in run]
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        found[attack] = {step: math.fsum(curve[step] for curve in curves) / len(curves) for step in steps}
    return {attack: curve for attack, curve in found.items() if curve}


def _floor(panels: Sequence[_Panel]) -> float:
    curves = [curve for panel in panels for curve in (*panel.per_step.values(), *panel.accumulated.values())]
    values = [value for curve in curves for value in curve.values()]
    return min(0.4, math.floor(10 * min(values)) / 10)


def _draw_panel(axes: Axes, panel: _Panel, colours: Mapping[str, str], low: float) -> None:
    axes.axhline(0.5, color=MUTED, linewidth=0.8, zorder=1)
    for attack, colour in colours.items():
        for curves, style in ((panel.per_step, "-"), (panel.accumulated, (0, (3, 2)))):
            if attack in curves:
                axes.plot(*_points(curves[attack]), color=colour, linestyle=style, linewidth=1.5, zorder=2)
    axes.set_ylim(low, 1.03)
    panel_title(axes, _shortened(panel.title))
    _label_ends(axes, panel, colours, low)


def _shortened(title: str) -> str:
    """Return a title that does not run into that of the next panel."""
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"


def _points(curve: Mapping[int, float]) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())


def _label_ends(axes: Axes, panel: _Panel, colours: Mapping[str, str], low: float) -> None:
    """Name every line at the right, where it ends, without names running into each other."""
    ends = {attack: _last(panel.per_step[attack]) for attack in colours if attack in panel.per_step}
    ends["guessing"] = 0.5
    spread = _spread(ends, gap=0.092 * (1.03 - low), low=low, high=1.03)
    for name, height in spread.items():
        place = {"xy": (1.0, height), "xytext": (4, 0), "va": "center"}
        _note(axes, name, color=colours.get(name, MUTED), xycoords=axes.get_yaxis_transform(), **place)


def _note(axes: Axes, text: str, **placed: Any) -> None:
    """Write small beside a place, so many points away; names are never read as formulas."""
    axes.annotate(text, textcoords="offset points", fontsize=TINY, parse_math=False, **placed)


def _finish_grid(grid: Any, used: int, columns: int) -> None:
    for number, axes in enumerate(grid.flat):
        if number >= used:
            axes.remove()
            continue
        if number % columns == 0:
            axes.set_ylabel("leak AUC")
        if number + columns >= used:
            axes.set_xlabel("step")
            axes.xaxis.set_tick_params(labelbottom=True)


def _mean(value: Estimate | None) -> str:
    return "not measured" if value is None else figure(value.mean)


def cost_and_leak(group: RunGroup, *, name: str) -> str:
    """Return the headline figure against the excess leakage: a point for each defense, with intervals.

    Where nobody measured an excess it is against the total, with the baseline in place of the goal. Lines without a
    point are runs in which no message depends on labels, and the label owner's model without a partner.
    """
    rows = rows_by_defense(group)
    measured = any(row.test is not None and row.excess is not None for row in rows)
    points = [point for row in rows if (point := _Point.of(row, excess=measured)) is not None]
    lines = dict(_lines_of(group, rows))
    if not points:
        return ""
    with drawing_style():
        drawn = new_figure(3.7)
        axes = drawn.subplots()
        for point in points:
            _draw_point(axes, point)
        _set_ranges(axes, [point.test for point in points], lines.values())
        for number, (text, height) in enumerate(lines.items()):
            axes.axhline(height, color=MUTED, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
            place = {"xy": (0.995, height), "xytext": (0, 3 if number == 0 else -10), "ha": "right", "va": "bottom"}
            behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
            _note(axes, text, color=MUTED, xycoords=axes.get_yaxis_transform(), bbox=behind, **place)
        known = None if measured else estimate(None if row.known is None else row.known.mean for row in rows)
        if measured:
            _mark(axes, group.goal, f"goal: at most {figure(group.goal)}")
        elif known is not None:
            _mark(axes, known.mean, f"baseline: {figure(known.mean)}")
        what = "excess leakage" if measured else "total leakage"
        axes.set_xlabel(f"{what}, AUC   (0.5: guessing, 1: every label)")
        axes.set_ylabel(f"test {group.metric}")
        _label_points(drawn, axes, points)
        said = [f"{one.label}: test {group.metric} {_mean(one.test)}, {what} {_mean(one.leak)}" for one in points]
        return inline_svg(drawn, name, alt=f"What each defense costs and leaks. {'; '.join([*said, *lines])}.")


@dataclass(frozen=True)
class _Point:
    label: str
    test: Estimate
    leak: Estimate
    colour: str

    @classmethod
    def of(cls, row: DefenseRow, *, excess: bool) -> _Point | None:
        leak = row.excess if excess else row.total
        if row.test is None or leak is None:
            return None
        states = [one.state for one in row.label_verdicts.values()]
        label = "no defense" if row.label == "none" else row.label
        return cls(label, row.test, leak, max((STATE_COLOURS[state] for state in states), default=INK))


def _lines_of(group: RunGroup, rows: Sequence[DefenseRow]) -> Iterator[tuple[str, float]]:
    """Yield what each line of the plot means, and where it is."""
    for row in rows:
        if row.test is not None and row.parties and all(party.silent for party in row.parties):
            yield f"{row.label}: no message depends on labels", row.test.mean
    alone = estimate(None if run.own_model is None else run.own_model.alone for run in group.runs)
    if alone is not None:
        owner = next(run.own_model.party for run in group.runs if run.own_model is not None)
        yield f"{owner} alone", alone.mean


def _draw_point(axes: Axes, point: _Point) -> None:
    axes.errorbar(
        point.leak.mean,
        point.test.mean,
        xerr=point.leak.half_width,
        yerr=point.test.half_width,
        fmt="o",
        markersize=7,
        color=point.colour,
        markeredgecolor=PAPER,
        elinewidth=1.0,
        zorder=3,
        clip_on=False,
    )


def _set_ranges(axes: Axes, tests: Sequence[Estimate], lines: Iterable[float]) -> None:
    ends = [*(end for test in tests for end in test.ends), *lines]
    low, high = min(ends), max(ends)
    span = high - low or 0.1
    # Below the points there is room for what the lines mean.
    axes.set_ylim(low - 0.4 * span, high + 0.25 * span)
    axes.set_xlim(0.48, 1.02)


def _mark(axes: Axes, place: float, text: str) -> None:
    axes.axvline(place, color=INK, linewidth=1.0, zorder=1)
    transform = axes.get_xaxis_transform()
    axes.text(place + 0.004, 0.02, text, transform=transform, fontsize=TINY, color=INK)


def _overlap(one: Bbox, other: Bbox) -> float:
    """Return the area that both cover."""
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else float(both.width * both.height)


def _label_points(drawn: Figure, axes: Axes, marked: Sequence[_Point]) -> None:
    """Name every point near it, at the first of several places that covers no other point or name."""
    settle(drawn)
    pixel = drawn.dpi / 72.0
    points = [axes.transData.transform((one.leak.mean, one.test.mean)) for one in marked]
    taken = [Bbox.from_extents(x - 6 * pixel, y - 6 * pixel, x + 6 * pixel, y + 6 * pixel) for x, y in points]
    taken += [text.get_window_extent() for text in axes.texts]
    taken += [bar for one in marked for bar in _bars_of(axes, one, pixel)]
    frame = axes.get_window_extent()
    for one, (x, y) in zip(marked, points, strict=True):
        width = 0.62 * SMALL * len(one.label)
        places = [(_box_at(x, y, dx, dy, width, pixel), dx, dy) for dx, dy in _PLACES]
        inside = [place for place in places if place[0].x0 > frame.x0 and place[0].x1 < frame.x1]
        box, dx, dy = min(inside or places, key=lambda place: sum(_overlap(place[0], other) for other in taken))
        taken.append(box)
        axes.annotate(
            one.label,
            xy=(one.leak.mean, one.test.mean),
            xytext=(dx, dy),
            textcoords="offset points",
            ha="left" if dx > 0 else "right",
            va="center",
            fontsize=SMALL,
            color=INK,
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 5},
            # A bar that runs behind a name, where there is no better place, does not strike it through.
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0},
            parse_math=False,
            zorder=4,
        )


def _bars_of(axes: Axes, point: _Point, pixel: float) -> Iterator[Bbox]:
    """Return the boxes that the error bars of a point take."""
    (left, right), (low, high) = point.leak.ends, point.test.ends
    for start, end in (
        ((left, point.test.mean), (right, point.test.mean)),
        ((point.leak.mean, low), (point.leak.mean, high)),
    ):
        (x0, y0), (x1, y1) = axes.transData.transform([start, end])
        yield Bbox.from_extents(x0 - 2 * pixel, y0 - 2 * pixel, x1 + 2 * pixel, y1 + 2 * pixel)


# Offsets of a name from its point, in points: the nearest first.
_PLACES = [
    (side * 14.0, rise) for rise in (0.0, 13.0, -13.0, 26.0, -26.0, 39.0, -39.0, 52.0, -52.0) for side in (1, -1)
]


def _box_at(x: float, y: float, dx: float, dy: float, width: float, pixel: float) -> Bbox:
    left = x + pixel * (dx if dx > 0 else dx - width)
    middle, half = y + pixel * dy, 0.65 * SMALL * pixel
    return Bbox.from_extents(left, middle - half, left + pixel * width, middle + half)


def _spread(heights: Mapping[str, float], *, gap: float, low: float, high: float) -> dict[str, float]:
    """Return heights moved apart to at least ``gap``, as long as there is room, in the same order."""
    order = sorted(heights, key=lambda name: heights[name])
    gap = min(gap, (high - low) / max(1, len(order)))
    placed: list[float] = []
    for name in order:
        placed.append(max(heights[name], placed[-1] + gap) if placed else max(heights[name], low + gap / 2))
    ceiling = high - gap / 2
    for position in range(len(placed) - 1, -1, -1):
        placed[position] = min(placed[position], ceiling)
        ceiling = placed[position] - gap
    return dict(zip(order, placed, strict=True))
