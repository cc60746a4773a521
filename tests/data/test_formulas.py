"""Cells that a spreadsheet takes for formulas: which are, and which files could hold them."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import splitvfl
from splitvfl.data.formulas import Formulas, check_no_formulas, formulas_in, formulas_said
from splitvfl.errors import DataError
from tests.rows import every

FORMULAS = [
    "=1", "=1+1", "=cmd|' /c calc'!A0", "+1+2", "-1+2", "-1-2", "@SUM(A1)", "+cmd", "-abc", "+A1", "-A1", "=", "@x",
    "\t=1", "\tx", "\rx", "\nx", " =1", "\u00a0=1", '"=1', "'=1", '""=1+1', '" =1', "\ufeff=1", "\u200b-1+2", "“=1",
    "＝1", "＋1+2", "－1+2", "＠SUM(A1)", "﹦1", "+1 234", "+49-30-123", "-5;=1", "-1e5+1", "+-5", "--5",
]  # fmt: skip
NONE = [
    "-5", "+5", "5", "-5.25", "+5,25", "-1,234,567.5", "-1e5", "+1.5E-3", "-5%", "-.5", "007", "-007", "", "c1", "a=1",
    "1+1", "1-2", "x@y.example", "'", '"quoted"', "−5", "2026-11-28", "b\t=1",
]  # fmt: skip


@every(kind=[pa.string(), pa.large_string()], cell=FORMULAS)
def test_what_spreadsheets_calculate_is_found(cell: str, kind: pa.DataType) -> None:
    assert formulas_in(pa.array(["c1", cell, "c2", None], kind)) == Formulas(1, cell, 1)


@every(cell=NONE)
def test_numbers_and_other_text_are_no_formulas(cell: str) -> None:
    assert formulas_in(pa.array([cell])) is None


def test_columns_of_numbers_hold_none() -> None:
    for column in (pa.array([-5, 7]), pa.array([-0.5]), pa.array([], pa.string()), pa.array([None], pa.string())):
        assert formulas_in(column) is None


def test_the_count_and_the_first_are_said() -> None:
    names = pa.array(["c1", "-5", "@b", "=a"] * 500)
    said = formulas_said(names, name_column="customer")
    assert said == "1,000 of 2,000 ids in 'customer' begin as a formula does, the first at row 2 (from 0): '@b'"
    one = formulas_said(names[1:3], name_column="customer")
    assert one == "1 of 2 ids in 'customer' begins as a formula does, the first at row 1 (from 0): '@b'"
    long = formulas_said(pa.array(["=" + "x" * 500]), name_column="c")
    assert len(long) < 200
    assert formulas_said(pa.array(["-5", "c"]), name_column="customer") == ""
    assert "column begins" in formulas_said(pa.array(["c"]), name_column="=customer")


def test_they_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"row 1 \(from 0\): '=1'.*Nothing was scored or written"):
        check_no_formulas(pa.array(["c", "=1"]), name_column="customer")
    check_no_formulas(pa.array(["c", "-1"]), name_column="customer")


def test_whatever_writes_csv_files_is_known_here() -> None:
    """Cells of data are in files of scores alone; the others hold numbers and names that the package draws itself, or
    (``spelling``) a line to be typed."""
    package = Path(splitvfl.__path__[0])
    writers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"CSVWriter|write_csv\b|csv\.(writer|DictWriter)|to_csv\(|savetxt", path.read_text("utf-8"))
    }
    assert writers == {"data/score_file.py", "data/clicks.py", "app/network_demo.py", "data/spelling.py"}
