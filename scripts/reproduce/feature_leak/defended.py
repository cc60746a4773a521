"""Test AUC against what is read of columns, for every defense of the activation at three strengths each."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.reproduce.feature_leak import verdicts
from scripts.reproduce.feature_leak.drawing import draw
from scripts.reproduce.feature_leak.study import Measured, Row, at_hand, headed, measured
from scripts.reproduce.feature_leak.verdicts import CHEAP, COMPARISONS, FAMILIES, Compared, best, chosen, usual
from scripts.reproduce.feature_leak.ways import OF_ACTIVATIONS, OF_GRADIENTS, UNDEFENDED
from scripts.reproduce.shared.claims import (
    DIFFERENCE,
    UNIT,
    Claim,
    clipped,
    markdown_table,
    shown,
    shown_mean,
    signed,
    with_interval,
)
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

WAYS = (UNDEFENDED, *OF_ACTIVATIONS, *OF_GRADIENTS)
ALONE = "label party's own columns alone"

_FIGURE = "feature-leak-cost"
_CAPTION = (
    "Test AUC against the share of the partner's columns that is read, means over seeds; from weak to strong along a "
    "line. The thin line is the label party's own columns alone."
)


def all_measured(settings: Settings) -> list[Measured]:
    """Return what was found of every way, one for each data set that is at hand."""
    return [measured(arrangement, WAYS, settings) for arrangement in at_hand(settings)]


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    found = all_measured(settings)
    tables = "\n\n".join(headed(one, _whole(one)) for one in found)
    body = f"""
The undefended model has two layers of 64 at the partner. "Read" is the larger of two shares: that of the last epoch,
and that of each record's mean estimate over the run. The reader knows 5 % of the records. Only what validation
chooses is compared with no defense, below the last table; intervals there are corrected for {COMPARISONS} comparisons:
of five choices in test AUC, columns and labels, and of three defenses of labels in the latter two, on four data sets.

{tables}
"""
    claims = [claim for one in found for row in usual(one)[1:] for claim in _claims(one, row)]
    return [
        Section(
            title="What a defense of the activation costs, and what is read behind it",
            body=body,
            figures={_FIGURE: draw(_FIGURE, found, up="test AUC", values=lambda row: row.aucs)},
            captions={_FIGURE: _CAPTION},
            claims=claims,
            opening=_opening(found),
        )
    ]


def _opening(found: Sequence[Measured]) -> str:
    """Return the page in short: without a defense, and behind what validation chooses."""
    headings = ("data", "own columns alone", "no defense", "read", "chosen by validation", "test AUC", "read behind it")
    rows = []
    for one in found:
        bare, picked = one.rows[UNDEFENDED.label], best(one)
        behind = ("none", "–", "–") if picked is None else (picked.way.label, *_both(picked))
        rows.append((one.arrangement.title, shown(one.about["alone"]), *_both(bare), *behind))
    return (
        "In short, test AUCs and the share of variance that is read by who knows 5 % of the records; chosen is what is "
        f"read least among all that costs at most {shown(CHEAP, 2)} of the AUC, both on validation records:\n\n"
        f"{markdown_table(headings, rows)}"
    )


def _both(row: Row) -> tuple[str, str]:
    return with_interval(row.aucs, limits=UNIT), with_interval(row.read(), limits=UNIT)


def _whole(found: Measured) -> str:
    return f"{found.arrangement.words}\n\n{_table(found)}\n\n{_chosen_words(found)}"


def _table(found: Measured) -> str:
    headings = ("defense", "epochs, rate", "test AUC", "less none", "last epoch", "over the run", "read", "less none")
    rows = [_row(found, row) for row in found.rows.values() if row.way not in OF_GRADIENTS]
    own = found.rows[UNDEFENDED.label].shares(figure="without_messages")
    alone = found.about["alone"]
    nothing = (ALONE, "–", shown(alone), "–", shown_mean(own), "–", shown_mean(own), "–")
    return markdown_table(headings, [*rows, nothing])


def _row(found: Measured, row: Row) -> tuple[str, ...]:
    bare = row.way == UNDEFENDED
    return (
        row.way.label,
        f"{row.choice.epochs}, {row.choice.rate:g}",
        with_interval(row.aucs, limits=UNIT),
        "–" if bare else signed(verdicts.utility(found, row).middle),
        shown_mean(row.shares()),
        shown_mean(row.shares(figure="accumulated")),
        with_interval(row.read(), limits=UNIT),
        "–" if bare else signed(verdicts.columns(found, row).middle),
    )


def _chosen_words(found: Measured) -> str:
    """Say which strength of each family validation chooses."""
    picked = {family: chosen(found, family) for family in FAMILIES}
    named = [
        f"{row.way.label} (AUC {shown_mean(row.aucs)}, read {shown_mean(row.read())})" for row in picked.values() if row
    ]
    missing = [family for family, row in picked.items() if row is None]
    text = (
        "Of each family the strength that is read least among those that cost at most "
        f"{shown(CHEAP, 2)} of the AUC, both on validation records: "
    )
    text += ("; ".join(named) or "none") + "."
    return text + (f" Every strength costs more of: {', '.join(missing)}." if missing else "")


def _claims(found: Measured, row: Row) -> list[Claim]:
    where = f"{found.arrangement.title}, {row.way.label} (chosen by validation)"
    read, cost = verdicts.columns(found, row), verdicts.utility(found, row)
    cheap = cost.ends is not None and cost.ends[0] > -CHEAP
    return [
        _claim(f"{where}: less is read than without a defense", read, row, holds=read.side == "less", why="below 0"),
        _claim(
            f"{where}: costs at most {shown(CHEAP, 2)} of the test AUC",
            cost,
            row,
            holds=cheap,
            why=f"above −{shown(CHEAP, 2)}",
        ),
    ]


def _claim(what: str, compared: Compared, row: Row, *, holds: bool, why: str) -> Claim:
    return Claim(
        claim=what,
        published=None,
        ours=compared.middle,
        interval=clipped(compared.ends, DIFFERENCE),
        seeds=len(row.runs),
        verdict="reproduces" if holds else "does not",
        why=f"difference to no defense by seed, the whole interval {why}; corrected for {COMPARISONS} comparisons; "
        f"AUC {shown_mean(row.aucs)}, read {shown_mean(row.read())}",
    )
