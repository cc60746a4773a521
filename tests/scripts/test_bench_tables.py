"""The benchmark of tables of several workers, on a small one. What it measures is no test's business."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.bench import tables
from scripts.bench.measuring import main


def test_quick_run_writes_every_row(tmp_path: Path) -> None:
    out = tmp_path / "tables.json"

    main("tables", tables.measure, ["--quick", "--json", str(out)])

    rows = json.loads(out.read_text())["results"]
    assert [row["unit"] for row in rows] == ["ms", "ms", "ms", "ratio"]
    assert all(row["value"] > 0 for row in rows)
