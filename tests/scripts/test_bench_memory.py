"""The slope of memory, of processes that come and go."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest

from scripts.bench.faults import MOST_GROWTH, memory_results
from scripts.bench.memory import Sample, Sampler, growth, resident_bytes


def life(pid: int, steps: range, *, each: float, noise: float = 0.0, party: str = "clinic") -> list[Sample]:
    """A process that grows by so many bytes a step, from 500 MB on, after it has taken 20 MB more at first."""
    draw = np.random.default_rng(pid)
    return [
        Sample(
            party, pid, step, int(5e8 + 2e7 * min(1.0, (step - steps[0]) / 900) + each * step + draw.normal(0, noise))
        )
        for step in steps
    ]


@pytest.mark.parametrize("each", [0.0, 21.0, 250.0])
def test_growth_is_found_in_what_several_processes_did(each: float) -> None:
    samples = life(1, range(0, 40_000, 40), each=each, noise=2e4) + life(2, range(40_000, 60_000, 40), each=each)
    # A checkpoint that is being written, one moment in twenty.
    rng = random.Random(0)
    spoiled = [
        Sample(one.party, one.pid, one.steps, one.resident + (8_000_000 if rng.random() < 0.05 else 0))
        for one in samples
    ]
    found, steps = growth(spoiled, warm_up=1000)
    # Pairs are thousands of steps apart, and noise of 20 kB is some bytes a step over these; the median averages it.
    assert found == pytest.approx(each, abs=3)
    assert steps == 39_960 - 1000 + 59_960 - 41_000


def test_what_never_got_beyond_its_warm_up_tells_nothing() -> None:
    found, steps = growth(life(1, range(900), each=5.0), warm_up=1000)
    assert math.isnan(found)
    assert steps == 0
    assert math.isnan(growth([], warm_up=0)[0])


def test_a_leak_is_a_missed_target_and_a_short_run_has_none() -> None:
    steady, leaking = (life(1, range(0, 40_000, 100), each=each) for each in (2.0, 163.0))
    partner = life(2, range(0, 40_000, 100), each=300.0, party="lab")
    (clinic, lab) = memory_results([*steady, *partner], ["clinic", "lab"])
    assert (clinic.holds, clinic.target, round(clinic.value)) == (True, MOST_GROWTH, 2)
    assert (lab.target, round(lab.value)) == (None, 300)
    assert not memory_results(leaking, ["clinic"])[0].holds
    assert memory_results(leaking[:100], ["clinic"])[0].target is None


def test_the_sampler_sees_this_process_and_none_that_is_gone() -> None:
    def look() -> Iterator[tuple[str, int, int]]:
        yield "clinic", os.getpid(), 7
        yield "lab", 2**22 + 1, 7

    with Sampler(look, every_s=0.01) as sampler:
        deadline = time.monotonic() + 10
        while len(sampler.samples) < 3 and time.monotonic() < deadline and resident_bytes(os.getpid()) is not None:
            time.sleep(0.01)
    assert {sample.party for sample in sampler.samples} <= {"clinic"}
    if resident_bytes(os.getpid()) is not None:
        assert len(sampler.samples) >= 3
        assert sampler.samples[0].resident > 1 << 20
