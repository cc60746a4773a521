"""Mutated messages: a small run of the benchmark, which must hold, and whether it would notice what it looks for."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.bench import hostile, scenes
from scripts.bench.hostile import MUTATIONS, mutants
from scripts.bench.measuring import main
from splitvfl.exchange import handshake, split_step
from splitvfl.messaging import conversation, json_message
from splitvfl.net import frames


def test_quick_run_refuses_what_it_should_and_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "QUICK_MESSAGES", 600)
    monkeypatch.setattr(hostile, "WARM_UP", 100)
    out = tmp_path / "hostile.json"

    assert main("hostile", hostile.measure, ["--quick", "--json", str(out)]) == 0

    rows = json.loads(out.read_text())["results"]
    assert [row["target"] for row in rows] == [None, None, 0, 0, 0, 0, hostile.MOST_GROWTH_MIB]
    accepted, refused, *faults = rows
    assert accepted["value"] > 0
    assert refused["value"] > 0
    assert accepted["value"] + refused["value"] == hostile.QUICK_MESSAGES
    assert all(row["holds"] for row in faults), faults


def test_the_same_seed_makes_the_same_messages() -> None:
    def outcomes(seed: int) -> list[str]:
        return [outcome for outcome, _ in mutants(60, seed)]

    first = outcomes(1)
    assert outcomes(1) == first
    assert outcomes(2) != first


def test_every_mutation_changes_every_kind_of_conversation() -> None:
    rng = random.Random(0)
    for scene in scenes.scenes():
        for heard in scene.heard.values():
            for mutation in MUTATIONS if heard.messages else ():
                tries = [mutation(rng, heard) for _ in range(20)]
                assert any(one is not None and one != list(heard.frames) for one in tries), mutation.__name__


def test_nothing_larger_than_what_is_awaited_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    genuine = frames._empty

    def empty(shape: tuple[int, ...], dtype: torch.dtype, size: int) -> Any:
        made.append(size)
        return genuine(shape, dtype, size)

    monkeypatch.setattr(frames, "_empty", empty)
    monkeypatch.setattr(hostile, "MUTATIONS", (hostile.resized, hostile.forged, hostile.overwritten))

    assert not [fault for _, fault in mutants(300) if fault is not None]
    # The largest that any half awaits is a note.
    assert 0 < max(made) <= json_message.MAX_NOTE_BYTES


# --- without one of the checks, it is noticed


def faults(messages: int, *exchanges: str) -> Counter[str]:
    return Counter(fault.what for _, fault in mutants(messages, exchanges=exchanges) if fault is not None)


def test_a_frame_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation.Expected, "check", lambda *args, **options: None)
    monkeypatch.setattr(hostile, "MUTATIONS", (hostile.resized, hostile.forged))
    assert faults(100, "training")["crashed"]


def test_a_note_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "_whole", lambda facts, key, highest, party: facts[key])
    monkeypatch.setattr(hostile, "MUTATIONS", (hostile.refilled,))
    assert faults(100, "introduction", "agreement", "resuming")["crashed"]


def test_values_that_are_not_checked_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_step, "all_finite", lambda tensor: True)
    monkeypatch.setattr("splitvfl.party.weights.PartyWeights.has_finite_gradients", lambda weights, *sent: True)
    monkeypatch.setattr(hostile, "MUTATIONS", (hostile.refilled,))
    assert faults(100, "training")["spoiled"]
