"""The benchmarks of encryption run, and their sums are right. What they measure is no test's business."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.bench import encrypted_epoch, paillier
from scripts.bench.measuring import Result, main


def rows_of(description: str, measure: Callable[[bool], list[Result]], out: Path) -> list[dict[str, Any]]:
    assert main(description, measure, ["--quick", "--json", str(out)]) == 0
    rows: list[dict[str, Any]] = json.loads(out.read_text())["results"]
    return rows


def test_quick_run_of_a_step_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paillier, "QUICK_SHAPES", ((8, 10, 1), (16, 30, 1)))

    rows = rows_of("paillier", paillier.measure, tmp_path / "paillier.json")

    # Two of what is prepared; at each shape three steps, four phases, error and bytes; and an epoch of breast cancer.
    assert len(rows) == 2 + 2 * 9 + 1
    assert all(math.isfinite(row["value"]) and row["value"] > 0 for row in rows)
    assert [row["target"] for row in rows if "step" in row["name"]] == [14.0, None, 35.0, 18.0, None, 35.0]
    errors = [row for row in rows if "error" in row["name"]]
    assert [row["target"] for row in errors] == [1e-7] * 2
    assert all(row["holds"] for row in errors)


def test_quick_run_of_an_epoch_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted_epoch, "QUICK_SETTINGS", (encrypted_epoch.Setting("breast-cancer", 64, 100, 1),))

    rows = rows_of("epoch", encrypted_epoch.measure, tmp_path / "epoch.json")

    # Of two exchanges also with pools, and with naive phe.
    own, compared = ["s", "s", "s", "KiB"], ["s", "s"]
    assert [row["unit"] for row in rows] == [*own, *own, *compared, *own, *compared, *own]
    assert all(math.isfinite(row["value"]) and row["value"] > 0 for row in rows)
    kib = {
        row["name"].split(": ")[0].removeprefix("breast-cancer, "): row["value"] for row in rows if row["unit"] == "KiB"
    }
    # Under 512-bit keys 64 residues of 128 bytes, and less than as much again of replies; under two keys in Taylor's
    # exchange. In the clear 64 float32 numbers each way, and names.
    assert 2 * 64 * 4 / 1024 < kib["oracle"] < 1
    assert 64 * 128 / 1024 < kib["residue"] < 2 * 64 * 128 / 1024
    # Of 100 records on average (two dozen more or less of one epoch's two or three steps), zeros encrypted too.
    assert 76 * 128 / 1024 < kib["hybrid"] < 2 * 124 * 128 / 1024
    assert 2 * 65 * 128 / 1024 < kib["taylor"] < 4 * 65 * 128 / 1024


def test_a_naive_step_of_the_hybrid_has_residues_of_the_used_records_only() -> None:
    setting = encrypted_epoch.Setting("breast-cancer", 16, 40, 1)

    among_zeros = encrypted_epoch.naive_work(setting, 15, among_zeros=True)
    alone = encrypted_epoch.naive_work(setting, 15, among_zeros=False)

    assert among_zeros.features.shape == (40, 15)
    assert int((among_zeros.residues != 0).sum()) == 16
    assert len(alone.residues) == int((alone.residues != 0).sum()) == 16
