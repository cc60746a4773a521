"""What a run's summary keeps of its exchange."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from splitvfl.exchange.split import Split
from splitvfl.report.report import write_report
from splitvfl.report.summary import ExchangeTraits, PartyResult, read_summary
from tests.report.test_board_row import summary


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
