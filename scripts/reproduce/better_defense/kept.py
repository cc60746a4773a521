"""What every defense keeps and leaks, each at its own best number of epochs and learning rate."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Sequence

from scripts.reproduce.better_defense.defenses import FAMILIES, NONE, Family
from scripts.reproduce.better_defense.measures import (
    BEYOND,
    TOTAL,
    Measure,
    Top,
    beyond,
    beyond_by_others,
    beyond_by_seed,
    members,
)
from scripts.reproduce.better_defense.runs import ALONE, Measured, study
from scripts.reproduce.shared import drawing
from scripts.reproduce.shared.claims import (
    UNIT,
    interval,
    least_and_most,
    markdown_table,
    mean,
    mean_of_all,
    shown,
    with_interval,
)
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.shared.shares import kept

HEADINGS = (
    "",
    "epochs, rate",
    "test AUC: sending top",
    "private top",
    "share kept: sending",
    "private",
    "private, beside the setting's own top",
    "total",
    "beyond the prediction",
    "equal predictions",
    "prediction alone",
    "detection error, late",
)


def table(measured: Measured) -> str:
    """Return one setting's table: what sends nothing first, then a row per defense."""
    rows = [_silent_row(measured, name) for name in (ALONE, measured.no_message)]
    return markdown_table(HEADINGS, [*rows, *(_row(measured, label) for label in measured.runs)])


def _silent_row(measured: Measured, name: str) -> tuple[str, ...]:
    choice = measured.silent_choices[name]
    test = with_interval(measured.silent[name], limits=UNIT)
    what = "no message" if name == measured.no_message else name
    return (what, f"{choice.epochs}, {choice.rate:g}", "–", test, *["–"] * 8)


def _row(measured: Measured, label: str) -> tuple[str, ...]:
    choice = measured.choices[label]
    figures = ("matched", "prediction", "late_error")
    return (
        label if label == NONE.label else f"`{label}`",
        f"{choice.epochs}, {choice.rate:g}",
        *(with_interval(measured.values(label, top), limits=UNIT) for top in ("test", "private")),
        *(_share(measured, label, top, measured.no_message) for top in ("test", "private")),
        _share(measured, label, "private", measured.no_message_linear),
        with_interval(measured.values(label, "total"), limits=UNIT),
        with_interval(beyond_by_seed(measured.runs[label]), limits=UNIT),
        *(with_interval(measured.values(label, key), limits=UNIT) for key in figures),
    )


def _share(measured: Measured, label: str, top: Top, nothing: str) -> str:
    return kept(
        measured.values(label, top),
        measured.values(NONE.label, top),
        measured.silent[nothing],
        overlap=measured.case.overlap,
    ).shown


def figure(measured: Measured) -> str:
    """Return the curves of one setting: test AUC over leak, by both measures."""
    panels = [_panel(measured, measure) for measure in (TOTAL, BEYOND)]
    pens = {family.label: family.pen for family in _shown(measured)}
    return drawing.draw_panels(_name(measured), panels, pens, same_scale=True)


def _shown(measured: Measured) -> list[Family]:
    return [family for family in FAMILIES if members(measured, [one.label for one in family.members])]


def _panel(measured: Measured, measure: Measure) -> drawing.Panel:
    lines, bars = {}, {}
    for family in _shown(measured):
        labels = members(measured, [one.label for one in family.members])
        tests = [measured.values(label, "test") for label in labels]
        leaks = [measure.of(measured.runs[label]) for label in labels]
        lines[family.label] = (leaks, [mean(values) for values in tests])
        bars[family.label] = list(map(_bar, tests))
    return drawing.Panel(
        title=measure.title,
        x_label="leak AUC",
        lines=lines,
        bars=bars,
        marked=True,
        baseline=mean(measured.silent[measured.no_message]),
    )


def _bar(values: Sequence[float]) -> tuple[float, float]:
    """Return how far a bar reaches below and above the mean: to what stands beside it in the table."""
    ends = least_and_most(values, UNIT) or interval(values)
    return (0.0, 0.0) if ends is None else (mean(values) - ends[0], ends[1] - mean(values))


def read_too_high(found: Sequence[Measured]) -> str:
    """Return by how much choosing an attack by its mean reads the leak beyond the prediction too high, in words."""
    more = [
        beyond(runs) - beyond_by_others(runs)
        for measured in found
        for runs in measured.runs.values()
        if not math.isnan(beyond_by_others(runs))
    ]
    if not more:
        return "In the mean that is too high, by an amount that one seed does not tell."
    return (
        "In the mean that is too high, as the largest of several means is: with an attack that is chosen for each "
        f"seed by the others alone these figures are lower by at most {shown(max(more))}, "
        f"{shown(statistics.median(more))} in the median, {shown(mean_of_all(more))} in the mean of {len(more)} rows."
    )


def _name(measured: Measured) -> str:
    return f"better-defense-{measured.case.key}"


def sections(settings: Settings) -> list[Section]:
    """Return the section with everything that was measured."""
    found = study(settings)
    tables = "\n\n".join(f"**{one.case.title}**\n\n{table(one)}" for one in found)
    captions = {_name(one): _caption(one) for one in found}
    body = f"""
One run per seed at the epochs and the rate that validation chose for this defense, this strength and this setting.
*Private top*: the label party's second top, which learns from true labels and sends nothing. *Share kept*: (defended −
no message) / (undefended − no message), in brackets its 95 % interval by Fieller's theorem, paired by seed and widened
for records that runs have in common (*Setting*); with an asterisk the plain difference defended − no message, where the
95 % interval of undefended − no message is not above 0, so that there may be nothing of which a share could be kept.
*No message* has any top, and in the third column the setting's own. Rows are not corrected for their number here.
*Total*: AUC of messages and the sending top's prediction together, by the auditor, over the run. *Beyond the
prediction*: the auditor's AUC among canaries, records whose labels are coin tosses, by the one of its attacks that is
best in the mean over seeds; the canaries are in the same run. *Equal predictions*: `matched_auc`, which reads too much
(`splitvfl.metrics.matched_auc`). *Detection error, late*: of one message in the last tenth of the run.
`asymmetric-response` and `abstaining-response` have ε = 3 here; the theorem of least variance is about answers without
a bound on ε, and says nothing of these rows.

{textwrap.fill(f"The best attack by its own mean. {read_too_high(found)}", 120, break_on_hyphens=False)}

{tables}
"""
    return [
        Section(
            title="Every defense at its best",
            body=body,
            figures={_name(one): figure(one) for one in found},
            captions=captions,
        )
    ]


def _caption(measured: Measured) -> str:
    count = len(measured.case.seeds)
    return (
        f"{measured.case.title}: test AUC of the sending top (up is better) over leak AUC (left is better), mean over "
        f"{count} seeds; every point is one strength, bars are 95 % intervals, or from the least to the most seed "
        "where these would reach beyond 0 or 1, the grey line is no message."
    )


def all_labels(found: Sequence[Measured]) -> list[str]:
    """Return the defenses that were run, each once."""
    return list(dict.fromkeys(label for one in found for label in one.runs))
