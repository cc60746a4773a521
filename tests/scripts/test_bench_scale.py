"""What is computed of many workers, what faults are drawn, and that the benchmark's rows are there."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scripts.bench import scale, scale_pairs
from scripts.bench.faults import shares_of
from scripts.bench.scale import main
from scripts.bench.scale_alone import CountingAlone, counted
from scripts.bench.scale_equality import figures_apart, largest_difference
from scripts.bench.scale_example import RECORDS, epoch_of
from scripts.bench.scale_faults import KINDS
from scripts.bench.scale_model import (
    LOOPBACK,
    RECORD_BYTES,
    ROW_BYTES,
    Constants,
    Network,
    checked,
    computed,
    constants_of,
    dense_weights,
    line_through,
    step_of,
)
from scripts.bench.scale_pairs import SUMS, Load, Measured, Timed, numbers_of_pairs
from splitvfl.models import MLP, WideDeepTop
from tests.run.forked import FORKS

SOME = Constants(
    fixed_s=1e-3,
    record_s=2e-6,
    row_s=1e-7,
    message_s=5e-4,
    byte_s=1e-9,
    hop_s=1e-4,
    summed_s=2e-9,
    gathered_s=3e-9,
    rows=26,
    dense_bytes=400_000,
    sums=6,
    gathers=2,
)


# --- the model


def test_a_step_of_one_worker_adds_nothing_up() -> None:
    step = step_of(SOME, 4096, 1, LOOPBACK)
    assert step.compute_s == pytest.approx(1e-3 + 4096 * 2e-6)
    assert step.rows_s == pytest.approx(4096 * 26 * 1e-7)
    assert step.messages_s == pytest.approx(2 * 5e-4 + 4096 * 1024 * 1e-9)
    assert step.sums_s == 0.0
    assert step.seconds == pytest.approx(step.compute_s + step.rows_s + step.messages_s)


def test_a_step_of_eight_workers_by_hand() -> None:
    network = Network(8e9, hop_s=1e-5, way_s=1e-3)  # a byte takes 1e-9 s
    step = step_of(SOME, 4096, 8, network)
    assert step.compute_s == pytest.approx(1e-3 + 512 * 2e-6)
    assert step.rows_s == pytest.approx(4096 * 26 * 1e-7)  # as of one: every worker applies the rows of all
    assert step.messages_s == pytest.approx(2 * 1.5e-3 + 512 * 1024 * 2e-9)
    round_s = (6 * 14 + 2 * 7) * 1.1e-4
    # A ring passes each byte on twice but for the own part; 56 bytes a row, from seven of eight workers.
    assert step.sums_s == pytest.approx(round_s + 2 * 7 / 8 * 400_000 * 3e-9 + 7 / 8 * 4096 * 26 * 56 * 4e-9)


def _measured(batch: int, constants: Constants) -> Measured:
    """What would be measured if the model were right."""
    timed = {}
    for workers in (1, 2):
        step = step_of(constants, batch, workers, LOOPBACK)
        timed[workers] = [Timed(step.seconds, step.compute_s / 2, step.rows_s, step.sums_s, step.compute_s / 2)] * 3
    hops = 4 * constants.hop_s
    seconds = (
        hops,
        hops + 4 * SUMS[1][0] * constants.summed_s,
        1.5 * hops + ROW_BYTES * SUMS[2][1] * constants.gathered_s,
    )
    return Measured(Load("Wide & Deep", batch, None, 1, 3, 26), timed, dict(zip(SUMS, seconds, strict=True)))


def test_constants_are_found_in_what_they_would_give() -> None:
    constants = replace(SOME, dense_bytes=4 * dense_weights(26))
    found = constants_of(_measured(4096, constants), _measured(65_536, constants))
    for name in ("fixed_s", "record_s", "row_s", "message_s", "byte_s", "hop_s", "summed_s", "gathered_s"):
        assert getattr(found, name) == pytest.approx(getattr(constants, name)), name
    assert (found.rows, found.sums, found.gathers, found.dense_bytes) == (26, 6, 2, constants.dense_bytes)
    rows = checked([_measured(4096, constants), _measured(65_536, constants)])
    assert [row.value for row in rows] == pytest.approx([1.0] * 4)


def test_a_line_begins_at_nothing_at_least_and_never_falls() -> None:
    assert line_through((2.0, 5.0), (4.0, 9.0)) == (1.0, 2.0)
    assert line_through((1.0, 1.0), (2.0, 4.0)) == (0.0, 2.0)
    assert line_through((1.0, 3.0), (2.0, 1.0)) == (2.0, 0.0)


@given(seconds=st.lists(st.floats(1e-6, 1.0), min_size=10, max_size=10))
def test_no_constant_is_negative_whatever_noise_does(seconds: list[float]) -> None:
    small, large = (
        replace(_measured(batch, SOME), timed={1: [Timed(*seconds[first : first + 5])]})
        for batch, first in ((64, 0), (256, 5))
    )
    assert all(value >= 0 for value in astuple(constants_of(small, large)))


def test_what_is_printed_of_more_workers_is_what_is_computed() -> None:
    found = [_measured(batch, SOME) for batch in (65_536, 4096)]
    rows = computed(found, workers=(8,))
    assert [row.name.rsplit(", ", 1)[1] for row in rows] == ["10 Gbit/s", "25 Gbit/s", "100 Gbit/s"]
    constants = constants_of(found[1], found[0])
    step = step_of(constants, 65_536, 8, Network(10e9, 30e-6, 500e-6)).seconds
    assert rows[0].value == pytest.approx(1e3 * step)
    assert rows[0].value > rows[1].value > rows[2].value


def test_dense_weights_are_those_of_the_models() -> None:
    bottom, top = MLP(13 + 26 * 12, [128] * 4), WideDeepTop(128, 13)
    assert dense_weights(26) == dense_weights(0) == sum(w.numel() for m in (bottom, top) for w in m.parameters())
    assert dense_weights(2) < dense_weights(26)
    assert RECORD_BYTES == 2 * 128 * 4


# --- the example


def test_the_worked_example() -> None:
    """Each figure by another way than the function takes."""
    millions, billions = (epoch_of(records, 13.2e-6) for records in RECORDS)
    assert (millions.step_bytes, epoch_of(1, 0.0, number_bytes=2).step_bytes) == (32 << 20, 16 << 20)
    assert (millions.steps, billions.steps) == (700, 152_588)
    assert millions.crossing_bytes / (700 * 2 * 32) / 2**20 == pytest.approx(1.0, abs=1e-3)
    assert (round(millions.crossing_bytes / 2**30, 1), round(billions.crossing_bytes / 2**40, 1)) == (43.7, 9.3)
    assert round(millions.passive_core_s / 60) == 10
    assert round(billions.passive_core_s / 3600, 1) == 36.7
    assert billions.column_bytes == 1_560_000_000_000


# --- faults


def test_every_kind_of_fault_is_drawn_as_often_as_any_other() -> None:
    drawn = [kind for share in shares_of(30, random.Random(0), KINDS, leaving=False) for kind in share]
    assert Counter(drawn) == dict.fromkeys(KINDS, 5)
    assert set(drawn[:6]) == set(KINDS)
    again, other = (list(shares_of(30, random.Random(seed), KINDS, leaving=False)) for seed in (0, 1))
    assert again == list(shares_of(30, random.Random(0), KINDS, leaving=False)) != other


# --- equality


def test_figures_are_compared_line_by_line() -> None:
    one = [{"step": 1, "train/loss": 0.5, "labels/lab/known_without_messages": 0.9}, {"step": 2, "train/loss": 0.25}]
    several = [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": 0.5}]
    assert figures_apart(several, one) == {"step": 0, "train/loss": 0.25}
    with pytest.raises(ValueError, match="only one log has test/auc at step 2"):
        figures_apart(several, [one[0], {**one[1], "test/auc": 0.5}])
    with pytest.raises(ValueError, match="shorter"):
        figures_apart(several, one[:1])


def test_the_largest_difference_is_that_of_any_weight() -> None:
    left = {"a": torch.zeros(2), "b": torch.tensor([1.0, 2.0])}
    right = {"a": torch.tensor([0.0, 1e-9]), "b": torch.tensor([1.0, 1.5])}
    assert largest_difference(left, right) == 0.5


# --- rows


def test_pairs_follow_from_the_cores() -> None:
    assert [numbers_of_pairs(cores) for cores in (1, 2, 3, 8, 15)] == [
        (1, 2),
        (1, 2),
        (1, 2),
        (1, 2, 4, 8),
        (1, 2, 4, 8),
    ]


def test_a_team_of_one_is_asked_for_little() -> None:
    team = CountingAlone()
    assert (team.size, team.add_up([None]), team.stop_asked) == (1, [None], False)
    assert team.asked == {"size": 1, "add_up": 1, "stop_asked": 1, "stopping": 1}
    assert 0 < sum(counted(2).values()) < 20


@pytest.mark.slow(reason="two and four processes that train, twice")
def test_quick_runs_write_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of workers, forked here, and what is computed of them; the other rows have tests of their own."""
    loads = tuple(
        Load("Wide & Deep", batch, 0.7, 1, 1, 2, divided) for batch, divided in ((64, False), (256, False), (64, True))
    )
    monkeypatch.setattr(scale, "QUICK_LOADS", loads)
    monkeypatch.setattr(scale_pairs, "PROCESSES", FORKS)
    out = tmp_path / "scale.json"

    assert main(["--quick", "--only", "pairs", "model", "--json", str(out)]) == 0

    written: list[dict[str, Any]] = json.loads(out.read_text())["results"]
    assert [row["target"] for row in written if "T1 / (2 T2)" in row["name"]] == [0.7] * 3
    assert sum("computed / measured" in row["name"] for row in written) >= 4
    assert sum(row["name"].startswith("computed step") for row in written) == 9
    assert sum(row["name"].startswith("example") for row in written) == 10
    assert all(row["value"] >= 0 for row in written)


@pytest.mark.parametrize(("arguments", "complaint"), [(["--only", "speed"], "speed"), (["--seed", "x"], "seed")])
def test_wrong_arguments_are_said(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
