"""The benchmarks of weights of several workers, on small ones. What they measure is no test's business."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.bench import dense, tables, team
from scripts.bench.measuring import main
from scripts.bench.team import done_by_workers
from splitvfl.team.team import Team
from tests.run.forked import FORKS


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a process that has imported everything: imports would take most of the time."""
    monkeypatch.setattr(team, "PROCESSES", FORKS)


def rows_of(bench: Any, out: Path) -> list[dict[str, Any]]:
    main("weights", bench.measure, ["--quick", "--json", str(out)])
    rows: list[dict[str, Any]] = json.loads(out.read_text())["results"]
    assert all(row["value"] > 0 for row in rows)
    return rows


def test_a_quick_run_of_tables_writes_every_row(tmp_path: Path) -> None:
    assert [row["unit"] for row in rows_of(tables, tmp_path / "rows.json")] == ["ms", "ms", "ms", "ratio"]


def test_a_quick_run_of_dense_weights_writes_every_row_and_each_worker_keeps_half(tmp_path: Path) -> None:
    rows = rows_of(dense, tmp_path / "rows.json")
    assert [row["unit"] for row in rows] == ["ms", "ms", "ratio", "ratio"]
    # Of 32 x 256 + 32 + 8 x 32 + 8 weights, and Adam's two numbers for each; it counts steps once for each of 4.
    assert rows[-1]["value"] == pytest.approx(0.5, abs=1e-3)


def failing(own: Team) -> None:
    if own.rank:
        raise SystemExit(3)
    own.collect(b"")


def test_a_worker_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(RuntimeError, match="one has failed"):
        done_by_workers(failing)
