"""Attacks of a run by party and name, as a notebook shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from splitvfl.leakage.judging import Leak


class Leaks(dict[str, dict[str, Leak]]):
    """The attacks in the seat of each passive party, by party and by name."""

    def _repr_html_(self) -> str:
        summaries = [(party, name, leak.summary) for party, named in self.items() for name, leak in named.items()]
        return html_table(
            ("party", "attack", "AUC of a step", "accumulated", "worst"),
            [(party, name, one.auc, one.accumulated_auc, one.worst) for party, name, one in summaries],
        )


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for a notebook: text is escaped, figures have three decimals, and NaN is a dash.

    >>> html_table(["attack", "AUC"], [["<norm>", 0.5], ["sign", math.nan]]).count("&lt;norm&gt;</td><td>0.500")
    1
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return escape(str(value))
    return "–" if math.isnan(value) else f"{value:.3f}"
