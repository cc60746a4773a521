"""The benchmark of readers of columns times what it says: the same training, with and without one that reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scripts.bench import reading
from scripts.bench.measuring import main
from splitvfl.attacks import RidgeAttack


def test_it_writes_what_a_reader_takes_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "QUICK_BATCH", 64)
    monkeypatch.setattr(reading, "QUICK_STEPS", 3)
    out = tmp_path / "out.json"
    assert main("reading", reading.measure, ["--quick", "--json", str(out)]) == 0
    results = json.loads(out.read_text())["results"]
    assert [(one["unit"], one["target"]) for one in results] == [
        ("of a step", reading.LARGEST_SHARE),
        ("of a step", reading.LARGEST_SHARE),
        ("of a step", reading.LARGEST_SHARE_OF_PENALTY),
        ("ms", None),
        ("ms", None),
    ]


def test_both_train_the_same_and_one_reads() -> None:
    read, alone = (reading.trainer(64, 4, attacks) for attacks in ((RidgeAttack(known_share=0.2),), ()))
    for one in (read, alone):
        one.fit(2)
    (found,) = read.column_readings("ads")
    assert found.records > 0
    assert alone.column_readings("ads") == []
    for mine, other in zip(
        read.passives["ads"].bottom.parameters(), alone.passives["ads"].bottom.parameters(), strict=True
    ):
        assert torch.equal(mine, other)
