"""Crafted gradients: the attack works, honest protocol code takes them, and what is measured is what the cases say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scripts.bench import hijacking
from scripts.bench.hijacking import CASES, Case, Crafting, run
from scripts.bench.measuring import main

NOTHING = CASES[0]


def test_crafted_gradients_raise_what_is_read_and_are_taken() -> None:
    """What the threat model says of them: nothing is refused, and more is read."""
    honest, crafted, quiet = (run(0, NOTHING, sent, 3) for sent in ("honest", "crafted", "quiet"))
    assert crafted.read > honest.read + 0.03
    assert quiet.auc > honest.auc - 0.02, "the model is as good as without"
    assert max(honest.zero, quiet.zero) < 0.1
    assert crafted.zero > 0.9


def test_a_clip_and_a_penalty_together_hold_what_the_penalty_alone_does_not() -> None:
    penalised, both = (run(0, case, "crafted", 3).read for case in CASES[-2:])
    assert both < penalised - 0.1


def test_quiet_rows_are_no_longer_than_honest_ones() -> None:
    known = torch.randn(hijacking.KNOWN, hijacking.COLUMNS)
    ids = torch.tensor([3, 500, 7])
    honest, activation = torch.tensor([[1.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 0, 0.5]]), torch.randn(3, 4)
    for quiet in (True, False):
        sent = Crafting(known, 4, quiet)._instead(activation, honest, ids)
        assert not torch.equal(sent[[0, 2]], honest[[0, 2]])
        if quiet:
            assert torch.equal(sent[1], honest[1]), "of a record that it does not know"
            torch.testing.assert_close(sent.norm(dim=1), torch.full((3,), 2.0))
        else:
            assert not sent[1].any()


def test_it_writes_what_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hijacking, "QUICK_EPOCHS", 1)
    monkeypatch.setattr(hijacking, "CASES", (Case("nothing"),))
    out = tmp_path / "out.json"
    assert main("hijacking", hijacking.measure, ["--quick", "--json", str(out)]) == 0
    results = json.loads(out.read_text())["results"]
    assert [one["name"] for one in results] == ["before training (one-way)", "nothing, honest", "nothing, crafted"]
    assert {one["unit"] for one in results} == {"of variance"}
