"""Labels that messages to the partner tell, beside columns that its activations tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from scripts.reproduce.feature_leak import verdicts
from scripts.reproduce.feature_leak.defended import all_measured
from scripts.reproduce.feature_leak.drawing import draw
from scripts.reproduce.feature_leak.study import Measured, Row, headed
from scripts.reproduce.feature_leak.verdicts import COMPARISONS, usual
from scripts.reproduce.feature_leak.ways import OF_GRADIENTS, UNDEFENDED
from scripts.reproduce.shared.claims import DIFFERENCE, UNIT, Claim, clipped, markdown_table, shown, with_interval
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    found = all_measured(settings)
    tables = "\n\n".join(headed(one, _table(one), ", both") for one in found)
    body = f"""
The auditor's attacks look at every gradient that goes to the partner, in the same runs. "Labels" is the worst AUC of
them, per step or over the run. Three defenses of labels stand beside what validation chose above. In bold is a
difference to no defense whose whole interval is on one side of 0, corrected for {COMPARISONS} comparisons as above.
Columns are those that `ridge` reads in seeds that did not collapse, labels are of all seeds.

{_counted([(one, row) for one in found for row in usual(one)[1:]], "chosen defenses of activations", "labels")}
{_counted([(one, row) for one in found for row in _labelled(one)], "defenses of labels", "columns")}
What is in bold is shown; of the others it is not shown that nothing changes. {_room(found)}

{tables}
"""
    name = "feature-leak-both"
    return [
        Section(
            title="Both directions",
            body=body,
            figures={name: draw(name, found, up="worst AUC of labels", values=lambda row: row.labels, alone=False)},
            captions={name: "Labels that are read against columns that are read, means over seeds, in the same runs."},
            claims=[_claim(one, row) for one in found for row in _labelled(one)],
        )
    ]


def _labelled(found: Measured) -> list[Row]:
    return [row for row in found.rows.values() if row.way in OF_GRADIENTS]


def _counted(rows: Sequence[tuple[Measured, Row]], named: str, what: Literal["labels", "columns"]) -> str:
    """Say in how many rows something else is read more or less than without a defense."""
    compare = verdicts.labels if what == "labels" else verdicts.columns
    sides = [compare(one, row).side for one, row in rows]
    more, less = sides.count("more"), sides.count("less")
    return (
        f"Of {len(sides)} {named}, on all data sets together, {more} let more of the {what} be read than no defense, "
        f"and {less} less; of {len(sides) - more - less} neither is shown."
    )


def _room(found: Sequence[Measured]) -> str:
    """Say where no more labels could be read, so that it says nothing that no more were."""
    least = min((value for one in found for value in one.rows[UNDEFENDED.label].labels), default=0.0)
    if least < 0.9995:
        return ""
    return (
        "That no defense of activations lets more of the labels be read could not have come out otherwise: without a "
        "defense the attacks tell labels with an AUC of 1.000 in every run, and there is no more to read."
    )


def _table(found: Measured) -> str:
    headings = ("defense", "labels", "less none", "columns read", "less none", "test AUC")
    rows = [_row(found, row) for row in [*usual(found), *_labelled(found)]]
    known = ("partner's own columns", shown(found.about["known"]), "–", "–", "–", "–")
    return markdown_table(headings, [*rows, known])


def _row(found: Measured, row: Row) -> tuple[str, ...]:
    bare = row.way == UNDEFENDED
    return (
        row.way.label,
        with_interval(row.labels, limits=UNIT),
        "–" if bare else verdicts.labels(found, row).shown,
        with_interval(row.read(), limits=UNIT),
        "–" if bare else verdicts.columns(found, row).shown,
        with_interval(row.aucs, limits=UNIT),
    )


def _claim(found: Measured, row: Row) -> Claim:
    compared = verdicts.columns(found, row)
    return Claim(
        claim=f"{found.arrangement.title}, {row.way.label}: what protects labels lets more of the columns be read",
        published=None,
        ours=compared.middle,
        interval=clipped(compared.ends, DIFFERENCE),
        seeds=compared.seeds or len(row.runs),
        verdict="reproduces" if compared.side == "more" else "does not",
        why=f"difference to no defense by seed, the whole interval above 0; {compared.why}"
        f"{'; surely less is read' if compared.side == 'less' else ''}",
    )
