"""Figures of a report, as SVG that can stand inside an HTML page.

Each takes runs that may be compared and a prefix for its ids, unique in its page, and returns an ``<svg>`` element, or
nothing where there is nothing to draw. How they look is settled in :mod:`splitvfl.report.drawing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    PartyRow,
    RunGroup,
    attack_names,
    rows_by_defense,
    with_parties,
)
from splitvfl.report.summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Metrics = Sequence[Mapping[str, Any]]

_PANELS_PER_ROW = 3
_PANEL_HEIGHT = 2.15
_LONGEST_TITLE = 42


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


def _folded(label: str) -> str:
    """Return a long label on two lines, its settings on the second."""
    name, bracket, settings = label.partition(" (" if " (" in label else "(")
    return label if len(label) <= _LONGEST_TITLE or not bracket else f"{name}\n({_shortened(settings)}"


def _points(curve: Mapping[int, float]) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())


def _label_ends(axes: Axes, panel: _Panel, colours: Mapping[str, str], low: float) -> None:
    """Name every line at the right, where it ends, without names running into each other."""
    ends = {attack: _last(panel.per_step[attack]) for attack in colours if attack in panel.per_step}
    ends["blind"] = 0.5
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


def label_leaks(group: RunGroup, *, name: str) -> str:
    """Return total, beyond prediction and known without messages: a line per defense and party.

    Nothing where no run has an auditor's figures.
    """
    lines = [(row.label_at(party), party) for row, party in with_parties(rows_by_defense(group))]
    if not any(party.total is not None for _, party in lines):
        return ""
    with drawing_style():
        drawn = new_figure(0.36 * len(lines) + 1.0)
        axes = drawn.subplots()
        for height, (_, party) in enumerate(lines):
            _draw_three(axes, height, party)
        axes.axvline(0.5, color=MUTED, linewidth=0.8, zorder=1)
        axes.set_xlim(_left_of([party for _, party in lines]), 1.02)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_yticks(
            range(len(lines)), [_folded(label) for label, _ in lines], fontsize=SMALL, color=INK, parse_math=False
        )
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("AUC   (0.5: guessing, 1: every label)")
        drawn.legend(
            handles=_legend_of_three(),
            loc="outside upper center",
            ncols=3,
            frameon=False,
            fontsize=SMALL,
        )
        return inline_svg(drawn, name, alt=_three_in_words(lines))


def _three_in_words(lines: Sequence[tuple[str, PartyRow]]) -> str:
    said = [
        f"{label}: excess {_mean(party.beyond)}, total {_mean(party.total)}, baseline {_mean(party.known)}"
        for label, party in lines
    ]
    return f"Three AUCs for each defense. {'; '.join(said)}."


def _mean(value: Estimate | None) -> str:
    return "not measured" if value is None else figure(value.mean)


def _left_of(parties: Sequence[PartyRow]) -> float:
    lows = [party.interval[0] for party in parties if party.interval is not None]
    lows += [party.beyond.mean - (party.beyond.half_width or 0.0) for party in parties if party.beyond is not None]
    return max(0.0, min([0.48, *(low - 0.02 for low in lows)]))


def _draw_three(axes: Axes, height: int, party: PartyRow) -> None:
    if party.known is not None:
        axes.vlines(party.known.mean, height - 0.32, height + 0.32, color=PALETTE[1], linewidth=2.0, zorder=2)
    if party.silent:
        axes.text(0.51, height, "no message of training depends on labels", va="center", fontsize=TINY, color=MUTED)
    if party.total is not None:
        axes.plot(party.total.mean, height, "D", color=INK, markersize=6, markeredgecolor=PAPER, zorder=3)
    if party.beyond is None:
        return
    ends = party.interval
    if ends is None and party.beyond.half_width is not None:
        ends = (party.beyond.mean - party.beyond.half_width, party.beyond.mean + party.beyond.half_width)
    if ends is not None:
        axes.hlines(height, *ends, color=PALETTE[0], linewidth=1.4, zorder=2)
    axes.plot(party.beyond.mean, height, "o", color=PALETTE[0], markersize=7, zorder=4)


def _legend_of_three() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=PALETTE[0], marker="o", linestyle="none", label="excess"),
        Line2D([], [], color=INK, marker="D", linestyle="none", label="total"),
        Line2D(
            [],
            [],
            color=PALETTE[1],
            marker="|",
            markersize=10,
            linestyle="none",
            label="baseline, with labels of others",
        ),
    ]


def _draw_one_way(axes: Axes, row: DefenseRow) -> None:
    assert row.test is not None
    axes.axhline(row.test.mean, color=PALETTE[0], linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
    place = {"xy": (0.995, row.test.mean), "xytext": (0, 3), "ha": "right", "va": "bottom"}
    text = f"{row.label}: no message depends on labels"
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
    _note(axes, text, color=PALETTE[0], xycoords=axes.get_yaxis_transform(), bbox=behind, **place)


def cost_and_leak(group: RunGroup, *, name: str) -> str:
    """Return the headline figure against the excess leakage: a point for each defense that has one, with intervals.

    A run in which nothing is sent back is a line.
    """
    rows = [row for row in rows_by_defense(group) if row.test is not None and row.excess is not None]
    if not rows:
        return ""
    with drawing_style():
        drawn = new_figure(3.7)
        axes = drawn.subplots()
        for row in rows:
            _draw_point(axes, row)
        silent = [
            row for row in rows_by_defense(group) if row.test is not None and all(party.silent for party in row.parties)
        ]
        _set_ranges(axes, [*rows, *silent])
        axes.axvspan(axes.get_xlim()[0], group.goal, color=PALETTE[2], alpha=0.1, linewidth=0, zorder=0)
        for row in silent:
            _draw_one_way(axes, row)
        _point_to_better(axes, group.goal)
        axes.set_xlabel("excess leakage, AUC among canaries   (0.5: guessing, 1: every label)")
        axes.set_ylabel(f"test {group.metric}")
        _label_points(drawn, axes, rows)
        said = [f"{row.label}: test {group.metric} {_mean(row.test)}, excess {_mean(row.excess)}" for row in rows]
        return inline_svg(drawn, name, alt=f"What each defense costs and leaks. {'; '.join(said)}.")


def _draw_point(axes: Axes, row: DefenseRow) -> None:
    assert row.test is not None
    assert row.excess is not None
    axes.errorbar(
        row.excess.mean,
        row.test.mean,
        xerr=row.excess.half_width,
        yerr=row.test.half_width,
        fmt="o",
        markersize=7,
        color=INK,
        markeredgecolor=PAPER,
        elinewidth=1.0,
        zorder=3,
        clip_on=False,
    )


def _set_ranges(axes: Axes, rows: Sequence[DefenseRow]) -> None:
    tested = [(row.test.mean, row.test.half_width or 0.0) for row in rows if row.test]
    low, high = min(height - bar for height, bar in tested), max(height + bar for height, bar in tested)
    span = high - low or 0.1
    # Below the points there is room for what the lines mean.
    axes.set_ylim(low - 0.4 * span, high + 0.25 * span)
    axes.set_xlim(0.48, 1.02)


def _point_to_better(axes: Axes, goal: float) -> None:
    low = axes.get_xlim()[0]
    axes.annotate(
        "better",
        xy=(low + 0.006, 0.97),
        xytext=(low + 0.045, 0.8),
        xycoords=axes.get_xaxis_transform(),
        textcoords=axes.get_xaxis_transform(),
        arrowprops={"arrowstyle": "-|>", "color": PALETTE[2], "linewidth": 1.2},
        color=PALETTE[2],
        fontsize=SMALL,
        fontweight="bold",
        va="center",
    )
    axes.text(
        goal - 0.004,
        0.02,
        f"goal: at most {figure(goal)}",
        transform=axes.get_xaxis_transform(),
        ha="right",
        fontsize=TINY,
        color=PALETTE[2],
    )


def _overlap(one: Bbox, other: Bbox) -> float:
    """Return the area that both cover."""
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else float(both.width * both.height)


def _label_points(drawn: Figure, axes: Axes, rows: Sequence[DefenseRow]) -> None:
    """Name every point near it, at the first of several places that covers no other point or name."""
    settle(drawn)
    pixel = drawn.dpi / 72.0
    marked = [(row.label, row.excess.mean, row.test.mean) for row in rows if row.excess and row.test]
    points = [axes.transData.transform((leak, test)) for _, leak, test in marked]
    taken = [Bbox.from_extents(x - 6 * pixel, y - 6 * pixel, x + 6 * pixel, y + 6 * pixel) for x, y in points]
    taken += [text.get_window_extent() for text in axes.texts]
    taken += [bar for row in rows for bar in _bars_of(axes, row, pixel)]
    frame = axes.get_window_extent()
    for (label, leak, test), (x, y) in zip(marked, points, strict=True):
        width = 0.62 * SMALL * len(label)
        places = [(_box_at(x, y, dx, dy, width, pixel), dx, dy) for dx, dy in _PLACES]
        inside = [place for place in places if place[0].x0 > frame.x0 and place[0].x1 < frame.x1]
        box, dx, dy = min(inside or places, key=lambda place: sum(_overlap(place[0], other) for other in taken))
        taken.append(box)
        axes.annotate(
            label,
            xy=(leak, test),
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


def _bars_of(axes: Axes, row: DefenseRow, pixel: float) -> Iterator[Bbox]:
    """Return the boxes that the error bars of a point take."""
    if row.excess is None or row.test is None:
        return
    (left, right), (low, high) = row.excess.ends, row.test.ends
    for start, end in (
        ((left, row.test.mean), (right, row.test.mean)),
        ((row.excess.mean, low), (row.excess.mean, high)),
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


def leak_map(group: RunGroup, *, name: str) -> str:
    """Return the worst leak AUC of each attack against each defense, as a table of shaded cells."""
    attacks = attack_names(group.runs)
    cells = [(row.label_at(party), party) for row, party in with_parties(rows_by_defense(group))]
    if not attacks or not cells:
        return ""
    with drawing_style():
        drawn = new_figure(0.42 * len(cells) + 0.5)
        axes = drawn.subplots()
        for height, (_, party) in enumerate(cells):
            for column, attack in enumerate(attacks):
                found = party.attacks.get(attack)
                worst = None if found is None or found.worst is None else found.worst.mean
                _draw_cell(axes, column, height, worst)
        _name_cells(axes, attacks, [_folded(label) for label, _ in cells])
        return inline_svg(drawn, name, alt=_map_in_words(cells))


def _map_in_words(cells: Sequence[tuple[str, PartyRow]]) -> str:
    said = [f"{label}: {_mean(party.worst)} to {party.worst_attack or 'no attack'}" for label, party in cells]
    return f"Worst leak AUC of each attack on each defense. The darkest cell of each row is {'; '.join(said)}."


def _draw_cell(axes: Axes, column: int, height: int, worst: float | None) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    share = 0.0 if worst is None else max(0.0, 2.0 * worst - 1.0)
    fill = PAPER if worst is None else colormaps["Oranges"](0.04 + 0.84 * share)
    axes.add_patch(Rectangle((column + 0.015, height + 0.05), 0.97, 0.9, facecolor=fill, linewidth=0))
    axes.text(
        column + 0.5,
        height + 0.5,
        "–" if worst is None else figure(worst),
        ha="center",
        va="center",
        fontsize=SMALL + 1,
        # Cells keep their colour on a dark page, so the figures on them do too.
        color=MUTED if worst is None else "#ffffff" if share > 0.62 else "#1c1c1c",
    )


def _name_cells(axes: Axes, attacks: Sequence[str], names: Sequence[str]) -> None:
    axes.set_xlim(0, len(attacks))
    axes.set_ylim(len(names), 0)
    axes.axis("off")
    for column, attack in enumerate(attacks):
        axes.text(column + 0.5, -0.12, attack, ha="center", va="bottom", fontsize=SMALL, color=INK, parse_math=False)
    for height, name in enumerate(names):
        axes.text(-0.06, height + 0.5, name, ha="right", va="center", fontsize=SMALL, color=INK, parse_math=False)


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
