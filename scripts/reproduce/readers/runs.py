"""The runs that the page is made of: what is trained, who reads, and what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from scripts.reproduce.defense_table.runs import summary_of, train
from scripts.reproduce.readers.arrangements import PARTNER
from scripts.reproduce.shared.jobs import Result
from splitvfl.leakage.column_figures import ColumnReading, ColumnShare


def read(
    *, about: Mapping[str, str], experiment: Mapping[str, str], seed: int, sample: Mapping[str, Any] | None = None
) -> Result:
    """Train one experiment while its attacks read, and return what they found.

    Args:
        about: For those who watch.
        experiment: Its text, under ``yaml``; the seed is in it.
        seed: For those who watch.
        sample: Fields of :class:`~scripts.reproduce.defense_table.runs.Sample`.

    Returns:
        ``readings``: of the partner's columns, in the order of the attacks; ``members``: of who was trained on;
        ``unavailable``: why attacks could not be run; ``metric``: on the test records.
    """
    summary = summary_of(train(about=about, experiment=experiment, seed=seed, sample=sample))
    partner = summary.parties[PARTNER]
    return {
        "readings": [_told(one) for one in partner.readings],
        "members": [asdict(one) for one in summary.membership],
        "unavailable": dict(partner.unavailable),
        "metric": summary.test_metric,
    }


def _told(reading: ColumnReading) -> dict[str, Any]:
    """Return a reading as JSON: shares in the last epoch, of the run and of the last evaluation."""
    later = [] if reading.evaluation is None else reading.evaluation.columns
    return {
        "attack": reading.attack,
        "known_share": reading.known_share,
        "share": reading.share,
        "accumulated": reading.accumulated,
        "without_messages": reading.without_messages,
        "records": reading.records,
        "columns": [_column(one) for one in reading.columns],
        "evaluated": [_column(one) for one in later],
        "note": reading.note,
    }


def _column(one: ColumnShare) -> dict[str, Any]:
    return {"column": one.column, "share": one.share, "categories": one.right is not None}
