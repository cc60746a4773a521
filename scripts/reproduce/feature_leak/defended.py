"""Test AUC against what is read of columns, for every defense of the activation at three strengths each."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.reproduce.feature_leak import verdicts
from scripts.reproduce.feature_leak.drawing import draw
from scripts.reproduce.feature_leak.study import Measured, Row, at_hand, headed, measured
from scripts.reproduce.feature_leak.verdicts import (
    CHEAP,
    CHOICES,
    COMPARISONS,
    FAMILIES,
    OF_CHOSEN,
    OF_LABELS,
    OF_SHAPES,
    Compared,
    chosen,
    usual,
)
from scripts.reproduce.feature_leak.ways import OF_ACTIVATIONS, OF_GRADIENTS, UNDEFENDED
from scripts.reproduce.shared.claims import (
    DIFFERENCE,
    UNIT,
    Claim,
    clipped,
    markdown_table,
    mean,
    shown,
    shown_mean,
    signed,
    with_interval,
)
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

WAYS = (UNDEFENDED, *OF_ACTIVATIONS, *OF_GRADIENTS)
BETWEEN = (UNDEFENDED, *OF_ACTIVATIONS)
"""What validation chooses between, and what their costs are to."""
ALONE = "label party's own columns alone"

_FIGURE = "feature-leak-cost"
_CAPTION = (
    "Test AUC against the share of the partner's columns that is read, means over seeds; from weak to strong along a "
    "line. The thin line is the label party's own columns alone. AUCs are of all seeds, what is read is of those that "
    "did not collapse; where all did, there is no mark."
)


def all_measured(settings: Settings) -> list[Measured]:
    """Return what was found of every way, one for each data set that is at hand."""
    return [measured(arrangement, WAYS, settings, between=BETWEEN) for arrangement in at_hand(settings)]


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    found = all_measured(settings)
    tables = "\n\n".join(headed(one, _whole(one)) for one in found)
    body = f"""
The undefended model has two layers of 64 at the partner. "Read" is the larger of two shares: that of the last epoch,
and that of each record's mean estimate over the run. The reader knows 5 % of the records.

**Seeds that collapse.** Where the AUC on test records is not above that of the label party's own columns alone, what
the partner sent was of no use, so that it is no merit that little is read in it. Such a seed is named, and has no
figure of what is read; its AUC counts. Where all seeds collapsed a dash stands for what is read. The rule was made
after the runs that are reported, and before those by which strengths are chosen.

**How strengths are chosen.** By {settings.seeds} seeds that are none of those that are reported, and not the one by
which epochs and rates are chosen. The AUC is that of their models on validation records; what is read is of the
training records of the same runs. A strength under which one of these seeds collapses, by the same rule on validation
records, is not chosen. {_cost_words(found)}

**How it is compared.** Only what validation chooses is compared with no defense. Intervals and verdicts of all sections
are corrected for the {COMPARISONS} comparisons of the page together. On each of four data sets these are {OF_SHAPES} of
shapes, above; {OF_CHOSEN} of each of at most {CHOICES} choices, one of each family and what is advised (test AUC,
columns that `ridge` reads, the most that any of three readers reads, and labels); and {OF_LABELS} of each of
{len(OF_GRADIENTS)} defenses of labels (the same without the AUC). No verdict rests on the ± of tables, nor on the
intervals of the trial.

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
        )
    ]


def _whole(found: Measured) -> str:
    return f"{found.arrangement.words}\n\n{_table(found)}\n\n{_chosen_words(found)}"


def _table(found: Measured) -> str:
    headings = (
        "defense",
        "epochs, rate",
        "test AUC",
        "less none",
        "last epoch",
        "over the run",
        "read",
        "less none",
        "seeds that collapsed",
    )
    rows = [_row(found, row) for row in found.rows.values() if row.way not in OF_GRADIENTS]
    own = found.rows[UNDEFENDED.label].shares(figure="without_messages")
    alone = found.about["alone"]
    nothing = (ALONE, "–", shown(alone), "–", shown_mean(own), "–", shown_mean(own), "–", "–")
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
        _collapsed(row),
    )


def _collapsed(row: Row) -> str:
    """Name the seeds that collapsed."""
    if len(row.collapsed) == len(row.runs):
        return "all"
    return ", ".join(map(str, row.collapsed)) or "–"


def _chosen_words(found: Measured) -> str:
    """Say which strength of each family validation chooses."""
    picked = {family: chosen(found, family) for family in FAMILIES}
    named = [
        f"{row.way.label} (AUC {shown_mean(row.aucs)}, read {shown_mean(row.read())})" for row in picked.values() if row
    ]
    missing = [family for family, row in picked.items() if row is None]
    text = (
        "Of each family the strength that is read least in the runs by which is chosen, among those that cost at most "
        f"{shown(CHEAP, 2)} of the AUC on validation records: "
    )
    text += ("; ".join(named) or "none") + "."
    none = f" Of {', '.join(missing)} every strength costs more, or collapsed." if missing else ""
    lost = [row.way.label for row in found.rows.values() if row.collapsed_in_validation]
    return text + none + (f" Collapsed with one of the seeds by which is chosen: {', '.join(lost)}." if lost else "")


def _cost_words(found: Sequence[Measured]) -> str:
    """Say what the choices cost on validation records and on test records."""
    pairs = [(one, row) for one in found for row in usual(one)[1:]]
    if not pairs:
        return ""
    tried = [one.rows[UNDEFENDED.label].validated_auc - row.validated_auc for one, row in pairs]
    tested = [-verdicts.utility(one, row).middle for one, row in pairs]
    over = sum(cost > CHEAP for cost in tested)
    return (
        f"Over the {len(pairs)} choices the mean cost in AUC is {shown(mean(tried), 4)} on validation records and "
        f"{shown(mean(tested), 4)} on test records, where {over} cost more than {shown(CHEAP, 2)}."
    )


def _claims(found: Measured, row: Row) -> list[Claim]:
    why_it = "chosen by validation" if row == chosen(found, row.way.family) else "advised"
    where = f"{found.arrangement.title}, {row.way.label} ({why_it})"
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
        seeds=compared.seeds or len(row.runs),
        verdict="reproduces" if holds else "does not",
        why=f"difference to no defense by seed, the whole interval {why}; {compared.why}; "
        f"AUC {shown_mean(row.aucs)}, read {shown_mean(row.read())}",
    )
