"""What attacks read of the labels as one table: for a notebook, a data frame, or a look."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from splitvfl.leakage.after_training import AfterTraining
from splitvfl.leakage.leak_summary import nanmax
from splitvfl.leakage.leaks import html_table
from splitvfl.leakage.message_audit import WITHOUT_FEATURES
from splitvfl.leakage.watching import Watch

IN_TOTAL, BEYOND = "in total", "beyond the prediction"
"""In place of an attack's name: the two figures of :class:`~splitvfl.leakage.label_leak.LabelLeak` that it decides."""


@dataclass(frozen=True)
class LeakRow:
    """What one attack read of the labels at one party. AUCs are NaN where there are none.

    Attributes:
        party: The passive party.
        attack: Its name; :data:`IN_TOTAL` and :data:`BEYOND` are the auditor's figures of the whole run.
        auc: Mean leak AUC of a step, in the attack's own orientation.
        accumulated_auc: Leak AUC of all that came of each record in the run.
        worst: The larger of the two in the better orientation, of all records: what decides.
        scored: Share of the records of a step that it scored.
        note: How :data:`BEYOND` was measured: ``"matched"`` between records of equal prediction, which leaves
            prediction in and may read well above what a defense promises; or among how many canaries, which may be
            held against it. Of :data:`IN_TOTAL`, where the partner's features are not known,
            :data:`~splitvfl.leakage.message_audit.WITHOUT_FEATURES`. Of other rows "".
    """

    party: str
    attack: str
    auc: float = math.nan
    accumulated_auc: float = math.nan
    worst: float = math.nan
    scored: float = math.nan
    note: str = ""


@dataclass(frozen=True)
class LeakTable:
    """What attacks read of the labels, a row per party and attack; the figures that sum it up come first.

    Attributes:
        rows: The rows.
    """

    rows: tuple[LeakRow, ...]

    @classmethod
    def of(cls, watch: Watch, after_training: Mapping[str, Mapping[str, AfterTraining]] | None = None) -> LeakTable:
        """Return the table of a run.

        Args:
            watch: What was watched.
            after_training: What attacks found that waited for the end.
        """
        waited = after_training or {}
        return cls(tuple(row for party in watch.leaks for row in _rows(party, watch, waited.get(party, {}))))

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns by name, in the order of the attributes of :class:`LeakRow`."""
        return {field.name: [getattr(row, field.name) for row in self.rows] for field in fields(LeakRow)}

    def _repr_html_(self) -> str:
        return html_table([field.name for field in fields(LeakRow)], map(astuple, self.rows))


def _rows(party: str, watch: Watch, waited: Mapping[str, AfterTraining]) -> list[LeakRow]:
    found = []
    three = watch.label_leak(party)
    if three is not None:
        how = f"{three.canaries} canaries" if three.canaries else "matched"
        what = "" if three.includes_features else WITHOUT_FEATURES
        sums = [(IN_TOTAL, three.total, what), (BEYOND, three.beyond, how)]
        found += [LeakRow(party, name, worst=value, note=note) for name, value, note in sums if value is not None]
    found += [
        LeakRow(party, name, one.auc, one.accumulated_auc, one.worst, one.scored)
        for name, one in watch.summaries(party).items()
    ]
    for name, after in waited.items():
        worst = nanmax(after.train.worst_auc, after.test.worst_auc)
        found.append(LeakRow(party, name, worst=worst, scored=after.scored))
    return found
