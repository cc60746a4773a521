"""What a run's summary keeps of its exchange."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from splitvfl.errors import CheckpointError
from splitvfl.exchange.split import Split
from splitvfl.leakage.column_figures import ColumnReading, ColumnShare
from splitvfl.report.party_result import PartyResult
from splitvfl.report.read_words import with_share
from splitvfl.report.report import write_report
from splitvfl.report.summary import ExchangeTraits, read_summary
from tests.report.test_board_row import summary
from tests.summaries import opened


def test_an_exchange_derived_from_split_is_named_in_headings_and_split_is_not() -> None:
    class Own(Split):
        name = "own"

    assert ExchangeTraits.of(Own).in_headings
    assert not ExchangeTraits.of(Split).in_headings


@pytest.mark.parametrize(("seat", "mode"), [("lab", 0o600), ("", 0o644)])
def test_a_passive_partys_own_summary_and_page_are_its_owners_only(tmp_path: Path, seat: str, mode: int) -> None:
    """The errors of answering means and ½ tell how far a column's mean is from ½."""
    told = summary(seat=seat, parties={"lab": PartyResult({})})
    before = os.umask(0o022)
    try:
        for _ in range(2):  # again over what is there, and over what a crash has left
            told.save(tmp_path)
            (tmp_path / ".summary.json").touch()
        page = write_report([tmp_path], tmp_path / "report.html", title="A run")
    finally:
        os.umask(before)

    assert read_summary(tmp_path).seat == seat
    assert stat.S_IMODE((tmp_path / "summary.json").stat().st_mode) == mode
    assert stat.S_IMODE(page.stat().st_mode) == mode


def damaged_by(folder: Path, **changes: object) -> None:
    """Store a party's own summary in which something was changed by hand."""
    told = summary(seat="lab", parties={"lab": PartyResult({}, readings=[reading()])})
    told.save(folder)
    path = folder / "summary.json"
    path.write_text(json.dumps(opened(path) | changes))


def reading(*columns: str) -> ColumnReading:
    return ColumnReading("ridge", 0.1, 0.5, 0, 100, [ColumnShare(name, 0.5) for name in columns or ("age",)])


def test_a_summary_that_no_run_has_written_is_damaged(tmp_path: Path) -> None:
    """What its words would stumble over: a seat that is nobody's, what was read of no column."""
    damaged_by(tmp_path)
    assert read_summary(tmp_path).parties["lab"].readings == [reading()]
    damaged_by(tmp_path, seat="nobody")
    with pytest.raises(CheckpointError, match=r"summary.json is damaged: it is nobody's own, who is not among"):
        read_summary(tmp_path)
    bare = {"lab": {"attacks": {}, "readings": [asdict(reading()) | {"columns": []}]}}
    damaged_by(tmp_path, parties=bare)
    with pytest.raises(CheckpointError, match=r"summary.json is damaged: what ridge read is of no column"):
        read_summary(tmp_path)


def test_a_category_without_the_most_frequent_one_is_a_sentence() -> None:
    assert with_share(ColumnShare("region", 0.5, right=0.8)) == "region (50%)"
