"""The benchmark of scores on request, between real processes. What it measures is no test's business."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench import serving
from scripts.bench.measuring import main
from tests.run.forked import FORKS


def test_quick_run_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PROCESSES", FORKS)
    small = {"RECORDS": 60, "WARM_UP": 1, "QUICK_CLIENTS": ((1, 3), (4, 2)), "BATCH": 20, "QUICK_BATCHES": 2}
    for name, value in small.items():
        monkeypatch.setattr(serving, name, value)
    out = tmp_path / "serving.json"

    assert main("serving", serving.measure, ["--quick", "--json", str(out)]) == 0

    rows = json.loads(out.read_text())["results"]
    assert [row["unit"] for row in rows] == ["ms", "ms", "requests/s", "ms", "ms"] * 2 + ["records/s"]
    assert all(row["value"] > 0 for row in rows if not row["name"].startswith("CPU"))  # which counts in hundredths
    assert rows[0]["value"] <= rows[1]["value"]
