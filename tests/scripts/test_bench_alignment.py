"""The benchmark of alignment runs, and its JSON has the agreed form."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from scripts.bench import alignment
from scripts.bench.measuring import main
from splitvfl.cli import main as splitvfl_main


def in_this_process(*words: str, folder: Path) -> None:
    """Certificates are not measured, and a process would mostly import for them."""
    with contextlib.chdir(folder):
        assert splitvfl_main(words) == 0


@pytest.mark.slow(reason="an alignment, and four trainings over what it gives")
def test_quick_run_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "QUICK_SIZES", (20,))
    monkeypatch.setattr(alignment, "BATCH", 32)
    monkeypatch.setattr(alignment, "DATA", {"breast-cancer": ("mean *", "rest")})
    monkeypatch.setattr(alignment, "_run", in_this_process)
    out = tmp_path / "alignment.json"

    assert main("alignment", alignment.measure, ["--quick", "--json", str(out)]) == 0

    rows = json.loads(out.read_text())["results"]
    assert [row["unit"] for row in rows] == ["s", "MiB", "AUC", "AUC", "AUC", "AUC"]
    assert all(row["value"] > 0 for row in rows)
    assert all(set(row) == {"name", "value", "unit", "target", "better", "holds", "note"} for row in rows)


def test_a_padded_half_has_as_many_dummies_as_wanted() -> None:
    data = alignment.load("breast-cancer", active="mean *", passive={"partner": "rest"})
    active, passive = alignment._padded(data, 0.5, seed=0)
    half = data.active.train.count // 2
    assert active.train.real is not None
    assert (int(active.train.real.sum()), active.train.count) == (half, half + round(half / 2))
    assert active.train.ids.tolist() == passive.train.ids.tolist()
    assert len(set(active.train.ids.tolist())) == active.train.count
