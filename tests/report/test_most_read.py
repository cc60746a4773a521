"""What is read most where a category is held as several columns, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splitvfl.leakage.column_figures import ColumnReading, ColumnShare
from splitvfl.report.most_read import MostRead

COLUMNS = [
    ColumnShare("age", 0.8, accumulated=0.9, worst=0.85),
    ColumnShare("sex=a", 0.0, accumulated=0.1, worst=0.0),
    ColumnShare("sex=b", 0.1, accumulated=0.2, worst=0.1),
]
SEX = ColumnShare("sex", 0.4, accumulated=None, right=0.7, commonest=0.5, worst=0.6)
READING = ColumnReading(
    "ridge", 0.05, 0.3, 1, 100, COLUMNS, one_hot=[SEX], in_one_hot=["sex=a", "sex=b"], accumulated=0.2, worst=0.3
)


@pytest.mark.parametrize(
    ("changed", "moment", "expected"),
    [
        ({}, "last", (0.8 + 0.4) / 2),
        ({"worst": 0.35}, "epoch", (0.85 + 0.6) / 2),
        ({"accumulated": 0.5}, "run", (0.9 + 0.4) / 2),  # nobody followed answers to a category over the run
    ],
)
def test_a_category_counts_once_instead_of_by_its_columns(
    changed: dict[str, float], moment: str, expected: float
) -> None:
    found = MostRead(replace(READING, **changed), COLUMNS)

    assert found.moment == moment
    assert found.each_category_once == pytest.approx(expected)


def test_without_such_columns_there_is_no_such_figure() -> None:
    assert MostRead(replace(READING, one_hot=[], in_one_hot=[]), COLUMNS).each_category_once is None
