"""The benchmark runs, and its JSON has the agreed form. What it measures is no test's business."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from scripts.bench import cut, loading, network
from scripts.bench.measuring import Result, cpu_of_all_processes, interleaved, main, ratio
from tests.run.forked import FORKS


def test_quick_run_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "QUICK_BATCHES", ((512, 1), (4096, 1)))
    out = tmp_path / "cut.json"

    assert main("cut", cut.measure, ["--quick", "--json", str(out)]) == 0

    written = json.loads(out.read_text())
    assert set(written) == {"machine", "results"}
    assert len(written["results"]) == 2 * 9 + 2
    for row in written["results"]:
        assert set(row) == {"name", "value", "unit", "target", "better", "holds", "note"}
        assert row["value"] > 0
        assert row["holds"] == (row["target"] is None or row["value"] <= row["target"])


def test_the_floor_takes_the_same_step() -> None:
    bench = cut.Bench(64, 2, cut.ROWS + 1)
    for _ in range(3):
        bench.whole_step()
        bench.two_optimiser_step()
        bench.split_step()
    split = [bench.passive.module, bench.active.module]
    for one, by_hand, party in zip(bench.whole, bench.halves, split, strict=True):
        for expected, *same in zip(one.parameters(), by_hand.parameters(), party.parameters(), strict=True):
            assert all(torch.equal(weight, expected) for weight in same)


def test_quick_run_of_the_loader_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "QUICK_RECORDS", 1 << 12)
    monkeypatch.setattr(loading, "QUICK_BATCHES", ((512, 2, 1),))
    out = tmp_path / "loading.json"

    assert main("loading", loading.measure, ["--quick", "--json", str(out)]) == 0

    written = json.loads(out.read_text())["results"]
    assert [row["unit"] for row in written] == ["of a step", "ratio", "Mrows/s"]
    assert all(row["value"] > 0 for row in written)
    assert [row["target"] for row in written] == [0.03, None, None]


def test_quick_run_of_the_network_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "QUICK_BATCHES", ((64, 9.0, 1.35, 2, 1),))
    # One of them is enough: each starts a process of its own; forked here, for imports would take most of the time.
    monkeypatch.setattr(network, "PROCESSES", FORKS)
    monkeypatch.setattr(network, "EXCHANGES", {"training step": network.EXCHANGES["training step"]})
    out = tmp_path / "network.json"

    assert main("network", network.measure, ["--quick", "--json", str(out)]) == 0

    written = json.loads(out.read_text())["results"]
    assert [row["unit"] for row in written] == ["ratio", "ms", "ratio", "ms", "ms"]
    assert [row["target"] for row in written] == [9.0, None, 1.35, None, None]
    assert all(row["value"] > 0 for row in written)


def test_work_is_interleaved_and_warm_up_is_not_counted() -> None:
    order: list[str] = []

    times = interleaved([lambda: order.append("a"), lambda: order.append("b")], runs=3, warm_up=1, repeats=[1, 2])

    assert order == ["a", "b", "b", "b", "b", "a"] * 2
    assert [len(taken) for taken in times] == [3, 3]


def test_ratio_is_the_median_of_paired_ratios() -> None:
    assert ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0])[0] == 2.0


@pytest.mark.parametrize(
    ("value", "better", "holds"), [(1.0, "lower", True), (3.0, "lower", False), (3.0, "higher", True)]
)
def test_a_target_holds_on_its_better_side(value: float, better: str, holds: bool) -> None:
    assert Result("row", value, "ratio", 2.0, better=better).holds is holds  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell")
def test_cpu_of_all_processes_has_that_of_running_and_ended_ones() -> None:
    """A child of a child works, and says how long by its own clock."""
    work = "import time; sum(range(2 * 10**7)); print(time.process_time(), flush=True); input()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    before = cpu_of_all_processes() - time.process_time()
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        worked = float(child.stdout.readline())
        running = cpu_of_all_processes() - time.process_time()
        child.communicate(b"\n")
    ended = cpu_of_all_processes() - time.process_time()

    # The two clocks of a process differ by less than a tick of a hundredth of a second, for user and system.
    assert running - before >= worked - 0.02
    assert ended - before >= worked - 0.04
