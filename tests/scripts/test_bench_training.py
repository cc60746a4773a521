"""The benchmark of training runs, with categories as skewed as it says. What it measures is no test's business."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scripts.bench import training
from scripts.bench.measuring import main


def test_quick_run_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "QUICK_BATCHES", ((64, 1, 0.4), (128, 1, 0.7)))
    out = tmp_path / "training.json"

    assert main("training", training.measure, ["--quick", "--json", str(out)]) == 0

    rows = json.loads(out.read_text())["results"]
    assert len(rows) == 2 * 3
    assert [row["target"] for row in rows] == [0.4, None, None, 0.7, None, None]
    assert all(row["value"] > 0 for row in rows)


def test_categories_follow_zipfs_law() -> None:
    codes = training.zipf(100_000, 1, 1000)
    shares = codes[:, 0].bincount(minlength=1000) / codes.numel()
    # Code c stands for the numbers from c + 1 to c + 2 of a log-uniform one; five standard errors of a share.
    steps = torch.arange(1, 1001).double()
    expected = ((steps + 1).clamp(max=1000) / steps).log() / torch.tensor(1000.0).log()
    errors = 5 * (expected * (1 - expected) / codes.numel()).sqrt()
    assert ((shares - expected).abs() <= errors + 1e-4).all()
