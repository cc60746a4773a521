"""What messages are worth: the model to which nothing is sent back beside the undefended and the defended ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scripts.reproduce.better_defense.defenses import NONE
from scripts.reproduce.better_defense.estimates import Estimate, half_shown, paired
from scripts.reproduce.better_defense.measures import Top, beyond
from scripts.reproduce.better_defense.runs import ALONE, SILENT, Measured, study
from scripts.reproduce.shared.claims import COUNTED_FROM, UNIT, Claim, markdown_table, shown, signed, with_interval
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

TOP: Top = "private"
"""By the private top: whoever has labels can have one, and nothing that is sent depends on it."""

BASELINES: Mapping[str, str] = {"any top": "no_message", "the setting's own top": "no_message_linear"}
"""Of the label party to which nothing matters but what it has: whichever top is best, or one like that of the model."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """A model beside the one to which nothing is sent back.

    Attributes:
        measured: The setting.
        label: The defense, or none.
        nothing: The row to which nothing is sent back.
        gain: By how much the model is better.
    """

    measured: Measured
    label: str
    nothing: str
    gain: Estimate


def worth_of(measured: Measured, label: str, nothing: str, top: Top = TOP) -> Worth:
    """Return a row beside one that sends nothing."""
    gain = paired(measured.values(label, top), measured.silent[nothing], overlap=measured.case.overlap)
    return Worth(measured=measured, label=label, nothing=nothing, gain=gain)


def nothing_of(measured: Measured, baseline: str) -> str:
    """Return the row without messages that a baseline is in this setting."""
    found: str = getattr(measured, BASELINES[baseline])
    return found


def defended(measured: Measured) -> list[str]:
    """Return the labels of the defenses that were run."""
    return [label for label in measured.runs if label != NONE.label]


def best_on_validation(measured: Measured) -> str:
    """Return the defended row with the highest validation AUC."""
    return max(defended(measured), key=lambda label: measured.choices[label].auc)


def every_worth(found: Sequence[Measured], baseline: str) -> list[Worth]:
    """Return every defended model beside the one without messages, in all settings."""
    return [
        worth_of(measured, label, nothing_of(measured, baseline)) for measured in found for label in defended(measured)
    ]


def rows_compared(found: Sequence[Measured]) -> int:
    """Return for how many comparisons every defended row is corrected: in all settings, beside both baselines."""
    return sum(len(every_worth(found, baseline)) for baseline in BASELINES)


def bought(found: Sequence[Measured], baseline: str) -> dict[str, list[Worth]]:
    """Return by setting's title the defended models that are better than no message, corrected for all rows.

    Settings of fewer than three seeds are left out.
    """
    comparisons = rows_compared(found)
    counted = [one for one in every_worth(found, baseline) if is_counted(one)]
    sure = [one for one in counted if one.gain.interval(comparisons)[0] > 0.0]
    return {one.measured.case.title: [other for other in sure if other.measured is one.measured] for one in counted}


def is_counted(one: Worth) -> bool:
    """Return whether there are seeds enough that it is said how many rows are better."""
    return one.gain.known and one.gain.seeds >= COUNTED_FROM


def judged(found: Sequence[Measured]) -> list[tuple[Worth, str]]:
    """Return what is claimed to be better than no message, with its name: two rows of each setting and baseline."""
    return [
        (worth_of(measured, label, nothing_of(measured, baseline)), what)
        for baseline in BASELINES
        for measured in found
        for label, what in (
            (NONE.label, "the undefended model"),
            (
                best_on_validation(measured),
                f"the defended model that is best on validation ({best_on_validation(measured)})",
            ),
        )
    ]


def claims_of(found: Sequence[Measured]) -> list[Claim]:
    """Return, for each setting, whether messages matter and whether the best defended model is worth its messages."""
    everything = judged(found)
    return [_claim(one, what, len(everything)) for one, what in everything]


def _claim(one: Worth, what: str, comparisons: int) -> Claim:
    low, high = one.gain.interval(comparisons)
    return Claim(
        claim=f"{one.measured.case.title}: {what} is better, by its private top, than {one.nothing}, to which nothing "
        "is sent back; the gain in test AUC",
        published=None,
        ours=one.gain.value,
        interval=one.gain.interval(),
        seeds=one.gain.seeds,
        verdict="reproduces" if low > 0.0 else "does not",
        why=f"corrected for all {comparisons} such claims the interval is {signed(low)} to {signed(high)}",
    )


def silent_table(found: Sequence[Measured]) -> str:
    """Return the rows without messages beside the undefended model, a row per setting."""
    rows = []
    for measured in found:
        silent = {name: with_interval(measured.silent[name], limits=UNIT) for name in SILENT}
        silent[measured.no_message] = f"**{silent[measured.no_message]}**"
        tops: tuple[Top, ...] = ("test", "private")
        sent = (with_interval(measured.values(NONE.label, top), limits=UNIT) for top in tops)
        rows.append((measured.case.title, *silent.values(), *sent))
    return markdown_table(("setting", *SILENT, "undefended, sending top", "undefended, private top"), rows)


def bought_table(found: Sequence[Measured]) -> str:
    """Return what messages buy, undefended and defended, a row per setting and baseline."""
    rows = [_bought_row(found, measured, baseline) for baseline in BASELINES for measured in found]
    headings = (
        "setting; no message with",
        "undefended − no message",
        "best defended by validation",
        "it − no message",
        "defended rows above no message: corrected (plain)",
        "corrected ±, median",
        "of these the least leak beyond the prediction",
    )
    return markdown_table(headings, rows)


def _bought_row(found: Sequence[Measured], measured: Measured, baseline: str) -> tuple[str, ...]:
    claimed, rows = len(judged(found)), rows_compared(found)
    nothing, best = nothing_of(measured, baseline), best_on_validation(measured)
    own = [one for one in every_worth([measured], baseline) if is_counted(one)]
    sure = [one for one in own if one.gain.interval(rows)[0] > 0.0]
    plain = sum(one.gain.interval()[0] > 0.0 for one in own)
    strict = min(sure, key=lambda one: beyond(measured.runs[one.label]), default=None)
    none = "none" if own else "–"
    return (
        f"{measured.case.title}; {baseline}",
        worth_of(measured, NONE.label, nothing).gain.shown(claimed),
        best,
        worth_of(measured, best, nothing).gain.shown(claimed),
        f"{len(sure)} of {len(own)} ({plain})" if own else f"fewer than {COUNTED_FROM} seeds",
        middle_half(own, rows),
        none if strict is None else f"{strict.label} ({shown(beyond(measured.runs[strict.label]))})",
    )


def middle_half(rows: Sequence[Worth], comparisons: int) -> str:
    """Return half the width of these rows' corrected intervals, the median: in half of them less is not told."""
    return half_shown(statistics.median(one.gain.half(comparisons) for one in rows)) if rows else "–"


def sections(settings: Settings) -> list[Section]:
    """Return the section on what messages are worth."""
    found = study(settings)
    body = f"""
*{ALONE}*: its own columns and its own part of the model, nothing crosses. *One-way*: activations cross once and nothing
comes back, so that nothing leaks (`exchange: one-way`): of random layers as initialised, or of at most 16 principal
components of the partner's numeric columns. The label party trains on true labels what it likes over what it got: the
top of the setting, or one with a hidden layer, which costs no leak. Epochs and rate are chosen on validation as for
all; in bold the one that is *no message* in what follows: of the four the best on validation. Test AUC:

{silent_table(found)}

What crosses in these rows tells a lot of the partner's columns, in the rows with messages as well
([threat model](../threat-model.md)); this page is about labels alone.

What messages buy is what a model has above that. Of a defended model that is not told to be better it is not shown that
it has bought anything with its leak. By the private top, paired by seed. After a gain stands half the width of its 95 %
interval, and in brackets the same corrected (Bonferroni) for {len(judged(found))} comparisons: undefended and best on
validation, of all settings and both baselines. *Defended rows above no message* are corrected for all
{rows_compared(found)} defended rows of all settings and both baselines; *corrected ±* is half the width of such an
interval, the median of the rows: in half of them less of a gain is not told. Nothing is counted with fewer than
{COUNTED_FROM} seeds. In the setting's own top the hidden layer is left out:

{bought_table(found)}
"""
    return [Section(title="What messages are worth", body=body, claims=claims_of(found), claims_shown=False)]
