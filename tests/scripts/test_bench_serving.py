"""The benchmark of scores on request, between real processes. What it measures is no test's business."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench import counting, scoring, serving
from scripts.bench.measuring import main
from tests.run.forked import FORKS


def test_quick_run_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PROCESSES", FORKS)
    small = {"RECORDS": 60, "WARM_UP": 1, "QUICK_CLIENTS": ((1, 3), (4, 2)), "BATCH": 20, "QUICK_BATCHES": 2}
    for name, value in small.items():
        monkeypatch.setattr(serving, name, value)
    out = tmp_path / "serving.json"

    monkeypatch.setattr(scoring, "QUICK_CALLS", 1)
    monkeypatch.setattr(counting, "QUICK_CALLS", 1)

    assert main("serving", serving.measure, ["--quick", "--json", str(out)]) == 0

    rows = json.loads(out.read_text())["results"]
    of_roles = ["ms", "bytes"] * len(scoring.ROLES) * len(scoring.SIZES)
    of_ledger = ["ms", "of a call", "of a call", "ms", "ms"]
    expected = ["ms", "ms", "requests/s", "ms", "ms"] * 2 + ["records/s", *of_roles, *of_ledger]
    assert [row["unit"] for row in rows] == expected
    # CPU time of other processes is counted in hundredths, and a ledger's share is a difference.
    assert all(row["value"] > 0 for row in rows if not row["name"].startswith(("CPU", "ledger")))
    assert rows[0]["value"] <= rows[1]["value"]
