"""The benchmarks of weights of several workers, on small ones. What they measure is no test's business."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.bench import dense, tables
from scripts.bench.measuring import main
from scripts.bench.team import done_by_workers
from splitvfl.team.team import Team


@pytest.mark.parametrize(
    ("bench", "units"), [(tables, ["ms", "ms", "ms", "ratio"]), (dense, ["ms", "ms", "ratio", "ratio"])]
)
def test_quick_run_writes_every_row(bench: Any, units: list[str], tmp_path: Path) -> None:
    out = tmp_path / "rows.json"

    main("weights", bench.measure, ["--quick", "--json", str(out)])

    rows = json.loads(out.read_text())["results"]
    assert [row["unit"] for row in rows] == units
    assert all(row["value"] > 0 for row in rows)


def test_two_workers_keep_half_of_dense_weights_each() -> None:
    *_, kept = dense.measure(quick=True)
    # Of 32 x 256 + 32 + 8 x 32 + 8 weights, and Adam's two numbers for each; it counts steps once for each of 4.
    assert kept.value == pytest.approx(0.5, abs=1e-3)


def failing(team: Team) -> None:
    if team.rank:
        raise SystemExit(3)
    team.collect(b"")


def test_a_worker_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(RuntimeError, match="one has failed"):
        done_by_workers(failing)
