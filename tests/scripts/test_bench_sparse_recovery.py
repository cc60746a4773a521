"""The benchmark of sparse recovery runs, and its JSON has the agreed form. How fast it is is no test's business."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from scripts.bench import sparse_recovery
from scripts.bench.measuring import main


def test_quick_run_writes_every_row(tmp_path: Path) -> None:
    out = tmp_path / "sparse.json"

    assert main("sparse", sparse_recovery.measure, ["--quick", "--json", str(out)]) == 0

    rows = json.loads(out.read_text())["results"]
    assert [row["unit"] for row in rows] == ["ms"] * 4
    assert [row["target"] for row in rows] == [None, None, 50.0, None]
    assert all(set(row) == {"name", "value", "unit", "target", "better", "holds", "note"} for row in rows)


def test_census_columns_are_six_numbers_and_categories_of_eight_attributes() -> None:
    columns = sparse_recovery.columns_of(np.random.default_rng(0), 400, 81, categories=True).numpy()

    start = 6
    assert all(len(np.unique(columns[:, column])) == 400 for column in range(start))
    for size in sparse_recovery.CATEGORIES:
        own = columns[:, start : start + size]
        assert all(len(np.unique(column)) <= 2 for column in own.T)
        # Of the categories of an attribute a record has one, which is the larger of a column's two values.
        assert ((own > own.mean(axis=0)).sum(axis=1) == 1).all()
        start += size
    assert start == 81


def test_the_claimed_work_is_that_of_equation_12() -> None:
    """The number of pairs and members of subsets: the sum over sizes j of C(L, j) j^2 is L (L + 1) 2^(L - 2)."""
    subsets = [[bit for bit in range(9) if mask >> bit & 1] for mask in range(2**9)]
    assert sparse_recovery.claimed_work(9) == sum(len(subset) ** 2 for subset in subsets)
