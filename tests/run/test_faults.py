"""Runs that are disturbed in every way end like undisturbed ones: one run of two parties, one of three.

The same faults as ``scripts.bench.faults``, each once. Nothing here depends on how fast the machine is: faults are
timed by steps, and what must happen has minutes to happen.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.bench.faults import (
    KINDS,
    LEAVING,
    Outcome,
    Run,
    Scenario,
    disturbed_run,
    lasting_run,
    results,
    scenarios,
    shares_of,
    undisturbed,
)
from scripts.bench.processes import LIMIT_S, differences
from splitvfl.net.certs import make_certificates
from splitvfl.run import checkpoint
from splitvfl.run.half_folder import read_transform
from splitvfl.run.written_files import FAREWELL_FILE
from tests.run.forked import PACE, Forked, unaudited

TWO, THREE = map(unaudited, scenarios(epochs=5, batch=32, patience=3))
# Each kind once; the run of three takes those that begin at an odd place.
SHARES = {plan.name: [*list(KINDS)[number::2], LEAVING] for number, plan in enumerate((TWO, THREE))}
# With batches in flight those that end a party between two steps, where some are under way.
# What the auditor keeps goes on in this one, which is the shortest.
IN_FLIGHT = replace(scenarios(epochs=3, batch=32, patience=3, exchange="in-flight")[1], name="in-flight")
SHARES[IN_FLIGHT.name] = ["killed", "killed, several at once", "network cut", "asked to stop, SIGTERM", LEAVING]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    make_certificates(folder / "certs", ["clinic", "lab", "shop"])
    return folder


@pytest.mark.slow(reason="a fault of every kind, and a run without any")
@pytest.mark.parametrize("plan", [TWO, THREE, IN_FLIGHT], ids=["two", "three", "in-flight"])
def test_a_disturbed_run_ends_like_an_undisturbed_one(plan: Scenario, workplace: Path) -> None:
    known = undisturbed(plan, workplace, pace=PACE, launch=Forked)
    run = Run(plan, workplace / plan.name, pace=PACE, launch=Forked)
    told: list[str] = []
    outcomes = disturbed_run(run, SHARES[plan.name], known, random.Random(plan.name), told.append)
    assert [outcome.kind for outcome in outcomes] == SHARES[plan.name]
    assert [outcome.kind for outcome in outcomes if not outcome.survived] == [], "\n".join(told)


def test_a_run_that_ends_otherwise_is_noticed() -> None:
    state = {"lab": {"module": {"weight": torch.zeros(2)}, "epoch": 3}, "metrics": b"{}"}
    other = {"lab": {"module": {"weight": torch.tensor([0.0, 1e-45])}, "epoch": 4}, "metrics": b"{}"}
    assert differences(state, state) == []
    assert differences(state, other) == ["lab/epoch", "lab/module/weight"]


def test_the_report_counts_what_was_lost() -> None:
    outcomes = [Outcome("killed", again=4, seconds=2.0), Outcome("network cut", survived=False, note="no end")]
    lost, *kinds, again, seconds = results([*outcomes, Outcome(LEAVING, seconds=9.0)])
    assert (lost.value, lost.unit, lost.holds) == (1, "of 3", False)
    assert "network cut: no end" in lost.note
    assert {row.name: (row.value, row.holds) for row in kinds} == {
        "survived: killed": (1.0, True),
        f"survived: {LEAVING}": (1.0, True),
        "survived: network cut": (0.0, False),
    }
    assert (again.value, seconds.value) == (2.0, 1.0)


def test_every_kind_happens_before_any_happens_again() -> None:
    shares = list(shares_of(50, random.Random(0)))
    happened = [kind for share in shares for kind in share if kind != LEAVING]
    assert sum(map(len, shares)) == 50
    assert set(happened[: len(KINDS)]) == set(KINDS)
    assert all(share[-1] == LEAVING for share in shares)


def test_a_long_run_survives_what_happens_and_spares_the_label_party(workplace: Path) -> None:
    """The form of the hour's run in a few seconds: some faults at random, and weights as in one process."""
    plan = unaudited(scenarios(epochs=3, batch=32, patience=3)[1])
    steps = 3 * 13
    run = Run(plan, workplace / "long", pace=PACE, launch=Forked)
    run.victims = ("lab", "shop")
    told: list[str] = []
    *outcomes, itself = lasting_run(run, steps, random.Random(5), told.append, between_s=(0.0, 0.2))[0]
    assert itself.survived, itself.note
    assert [outcome.kind for outcome in outcomes if not outcome.survived] == [], "\n".join(told)
    assert "clinic" not in {one.party for one in run.ended if one.code}


def test_who_is_done_is_not_held_up_by_who_is_gone(workplace: Path) -> None:
    scenario = unaudited(scenarios(epochs=1, batch=64, patience=1)[0])
    with Run(scenario, workplace / "leaving", pace=PACE, launch=Forked) as run:
        run.finish()
        first = run.state()
        # Started again, a party that has taken its leave waits for nobody, and its half is what it was.
        for name in scenario.parties:
            again = run.launch(run.folder / name, ["party", "run.yaml", "--as", name, "--out", "out"])
            run.until(lambda again=again: again.code() is not None, f"the end of {name}")  # type: ignore[misc]
            assert (again.code(), "waiting" in again.words()) == (0, False)
        # One whose partner left before it heard the last word waits, in vain, and says so.
        (run.out("lab") / FAREWELL_FILE).unlink()
        short = ["party", "run.yaml", "--as", "lab", "--out", "out", "network.meeting_s=0.5"]
        again = run.launch(run.folder / "lab", short)
        run.until(lambda: again.code() is not None, "the end of lab")
        assert again.code() == 0
        assert "no link with clinic" in again.words()
        assert "has done everything, and ends without them" in again.words()
        assert differences(first, run.state()) == []


def test_a_party_that_is_killed_before_its_first_checkpoint_starts_with_the_same_command(workplace: Path) -> None:
    scenario = unaudited(scenarios(epochs=1, batch=64, patience=1)[0])
    run = Run(scenario, workplace / "early", pace=PACE, launch=Forked)
    settings, seen = run.out("lab") / "experiment.yaml", set()
    try:
        for _ in range(2):  # nobody else is there
            run.start("lab")
            run.until(lambda: settings.exists() and settings.stat().st_mtime_ns not in seen, "the settings of the run")
            seen.add(settings.stat().st_mtime_ns)
            assert run.processes["lab"].code() is None
            run.signal("lab", signal.SIGKILL)
            run.until(lambda: run.processes["lab"].code() is not None, "the end of lab")
            assert run.processes["lab"].code() == -signal.SIGKILL
    finally:
        run.__exit__()


def test_a_party_that_drew_its_transform_goes_on_with_it(workplace: Path) -> None:
    """Killed in the second epoch: what it drew from entropy is in its checkpoint, and in the half that it leaves."""
    scenario = unaudited(scenarios(epochs=2, batch=64, patience=1)[0])
    run = Run(scenario, workplace / "rotated", pace=PACE, launch=Forked)
    file, checkpoints = run.folder / "lab" / "run.yaml", run.out("lab") / "checkpoints"
    file.write_text(file.read_text().replace("lab: {role: passive,", "lab: {role: passive, transform: orthonormal,"))

    def kept() -> Any:
        newest = checkpoint.latest(checkpoints)
        assert newest is not None
        return checkpoint.load(newest, only="party")["party"]["transform"]

    with run:
        run.until(lambda: run.steps("lab")[0] > 7, "the second epoch")
        drawn = kept()
        run.signal("lab", signal.SIGKILL)
        run.finish()
    assert [one.party for one in run.ended].count("lab") == 2
    assert differences(drawn, kept()) == []
    assert differences(drawn, read_transform(run.out("lab") / "model").tensors()) == []


@pytest.mark.parametrize(
    ("cheat", "victim", "complaint"),
    [
        ("lab", "clinic", "lab sent another activation for step 10 than before"),
        ("clinic", "lab", "clinic sent another gradient for step 10 than before"),
    ],
)
def test_who_goes_back_and_sends_something_else_is_refused(
    cheat: str, victim: str, complaint: str, workplace: Path
) -> None:
    scenario = unaudited(scenarios(epochs=4, batch=64, patience=4)[0])
    with Run(scenario, workplace / f"cheating-{cheat}", pace=PACE, launch=Forked) as run:
        run.until(lambda: run.steps()[0] >= 12, "step 12")
        run.signal(cheat, signal.SIGKILL)
        _wait(lambda: run.processes[cheat].code() is not None)
        checkpoints = checkpoint.steps(run.out(cheat) / "checkpoints")
        for step in [step for step in checkpoints if step != 10]:
            checkpoint.remove(checkpoints[step])
        other = checkpoint.load(checkpoints[10], only="party")["party"]
        for weight in other["module"].values():
            weight.add_(0.1)
        torch.save(other, checkpoints[10] / "party.pt")
        run.start(cheat)
        _wait(lambda: run.processes[victim].code() is not None)
        assert run.processes[victim].code() == 2
        assert complaint in run.processes[victim].words()
        _wait(lambda: run.processes[cheat].code() is not None)
        assert run.processes[cheat].code() == 2
        assert f"{victim} ended the link for good" in run.processes[cheat].words()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
