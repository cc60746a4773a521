"""What is read at several widths and depths of the cut, by who knows more or fewer records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scripts.reproduce.feature_leak.runs import KNOWN
from scripts.reproduce.feature_leak.study import Measured, at_hand, corrected, differences, headed, less, measured
from scripts.reproduce.feature_leak.verdicts import COMPARISONS
from scripts.reproduce.feature_leak.ways import DEPTHS, SHAPES, WIDTHS, shaped
from scripts.reproduce.shared.claims import (
    DIFFERENCE,
    UNIT,
    Claim,
    clipped,
    in_percent,
    markdown_table,
    mean,
    shown_mean,
    with_interval,
)
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    found = [measured(arrangement, SHAPES, settings) for arrangement in at_hand(settings)]
    tables = "\n\n".join(headed(one, _table(one), ", cut") for one in found)
    body = f"""
Nothing is defended here. The partner has one layer or two, of which the last is the cut; below it all are 64 wide. Each
cell is the share of variance that is recovered in the last epoch, the mean over columns, and over seeds, with its 95 %
interval. "Own columns" is what ridge regression on the label party's own columns recovers from the same
{in_percent(KNOWN[1])} of the records, without any message.

{tables}
"""
    claims = [claim for one in found for claim in _claims(one)]
    return [Section(title="Width, depth, and how many records are known", body=body, claims=claims)]


def _table(found: Measured) -> str:
    headings = (
        "cut",
        *(f"{in_percent(share)} known" for share in KNOWN),
        f"added up over the run, {in_percent(KNOWN[1])}",
        "own columns",
        "test AUC",
    )
    rows = [
        (
            label,
            *(_shown(row.shares(f"{share:g}")) for share in KNOWN),
            _shown(row.shares(figure="accumulated")),
            shown_mean(row.shares(figure="without_messages")),
            _shown(row.aucs),
        )
        for label, row in found.rows.items()
    ]
    return markdown_table(headings, rows)


def _shown(values: Sequence[float]) -> str:
    return with_interval(values, limits=UNIT)


def _claims(found: Measured) -> list[Claim]:
    def read(depth: int, width: int, known: float = KNOWN[1]) -> list[float]:
        return found.rows[shaped(depth, width).label].shares(f"{known:g}")

    wide, narrow, (first, second) = WIDTHS[0], WIDTHS[-1], DEPTHS
    few, usual, many = KNOWN
    told = in_percent(usual)
    asked = (
        (
            f"a cut of width {narrow} tells less than one of {wide}, after layer {second}",
            read(second, narrow),
            read(second, wide),
        ),
        (
            f"a cut after layer {second} tells less than one after layer {first}, width {wide}",
            read(second, wide),
            read(first, wide),
        ),
        (
            f"who knows {told} reads less than who knows {in_percent(many)}",
            read(second, wide),
            read(second, wide, many),
        ),
        (f"who knows {in_percent(few)} reads less than who knows {told}", read(second, wide, few), read(second, wide)),
    )
    return [_claim(f"{found.arrangement.title}: {what}", ours, theirs) for what, ours, theirs in asked]


def _claim(what: str, ours: Sequence[float], theirs: Sequence[float]) -> Claim:
    found = differences(ours, theirs)
    ends = clipped(corrected(found, COMPARISONS), DIFFERENCE)
    known = sum(not math.isnan(value) for value in found)
    return Claim(
        claim=what,
        published=None,
        ours=mean(found),
        interval=ends,
        seeds=known or len(found),
        verdict="reproduces" if less(ends) == "less" else "does not",
        why=f"difference of shares by seed, the whole interval below 0; corrected for {COMPARISONS} comparisons"
        + ("" if known == len(found) else f"; {known} of {len(found)} seeds have a figure"),
    )
