"""Encrypted runs that are disturbed: a party that comes back has a new key, and the run ends as if nothing had been.

To the bit, too: sums of integers are exact, whatever key and masks they crossed under. Keys are short here.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scripts.bench.faults import Run, disturbed_run, scenarios, undisturbed
from scripts.bench.processes import LIMIT_S
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.net.certs import make_certificates
from splitvfl.run import checkpoint
from tests.run.forked import PACE, Forked, unaudited


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encrypted")
    make_certificates(folder / "certs", ["clinic", "lab", "shop"])
    return folder


@pytest.mark.slow(reason="faults of an encrypted run, and one without any")
@pytest.mark.parametrize(("exchange", "parties"), [("residue", 2), ("hybrid", 2), ("taylor", 3)])
def test_a_disturbed_encrypted_run_ends_like_an_undisturbed_one(exchange: str, parties: int, workplace: Path) -> None:
    plan = unaudited(scenarios(epochs=2, batch=64, patience=2, exchange=exchange)[parties - 2])
    folder = workplace / exchange
    folder.mkdir()
    (folder / "certs").symlink_to(workplace / "certs")
    known = undisturbed(plan, folder, pace=PACE, launch=Forked)
    told: list[str] = []
    kinds = ["killed", "network cut"]
    run = Run(plan, folder / "disturbed", pace=PACE, launch=Forked)
    outcomes = disturbed_run(run, kinds, known, random.Random(exchange), told.append)
    assert [outcome.kind for outcome in outcomes] == kinds
    assert [outcome.kind for outcome in outcomes if not outcome.survived] == [], "\n".join(told)


def test_who_goes_back_and_computes_otherwise_is_refused_though_every_message_is_new(workplace: Path) -> None:
    """Ciphertexts and masked plaintexts differ each time; what is under the masks must not, where there is noise."""
    scenario = unaudited(scenarios(epochs=2, batch=64, patience=2, exchange="taylor")[0])
    with Run(scenario, workplace / "cheating", pace=PACE, launch=Forked) as run:
        run.until(lambda: run.steps()[0] >= 12, "step 12")
        run.signal("lab", signal.SIGKILL)
        _wait(lambda: run.processes["lab"].code() is not None)
        checkpoints = checkpoint.steps(run.out("lab") / "checkpoints")
        for step in [step for step in checkpoints if step != 10]:
            checkpoint.remove(checkpoints[step])
        other = checkpoint.load(checkpoints[10], only="party")["party"]
        for weight in other["module"].values():
            weight.add_(0.1)
        torch.save(other, checkpoints[10] / "party.pt")
        run.start("lab")
        _wait(lambda: run.processes["clinic"].code() is not None)
        assert run.processes["clinic"].code() == 2
        assert "lab sent another opened for step 10 than before" in run.processes["clinic"].words()


@pytest.mark.parametrize("step", [4, 13])
def test_a_killed_label_party_draws_the_same_secret_batches_again(step: int, workplace: Path) -> None:
    """Before the first checkpoint of the schedule (every ten steps) and after it; the key is from entropy, in no file.

    Draws of another key would be noticed: it keeps digests of activations, and the partner, whose own have noise, of
    selections, and each of them ends the run for good where those of a step that is taken again differ.
    """
    seeded = unaudited(scenarios(epochs=2, batch=64, patience=2, exchange="hybrid")[0])
    scenario = replace(seeded, settings=seeded.settings.replace(", selection_seed_for_experiments: 5", ""))
    assert scenario != seeded
    with Run(scenario, workplace / f"killed at {step}", pace=PACE, launch=Forked) as run:
        run.until(lambda: run.steps()[0] >= step, f"step {step}")
        run.signal("clinic", signal.SIGKILL)
        _wait(lambda: run.processes["clinic"].code() is not None)
        before = _keys(run)
        run.finish()
        after = _keys(run)

    assert [one.code for one in run.ended if one.party == "clinic"] == [-signal.SIGKILL, 0]
    assert before
    assert before == after
    assert after != {Hybrid(rows=64, epsilon=1.0, share=0.4).repeatable(5).selection_key()}


def _keys(run: Run) -> set[bytes]:
    """The keys of the draws in the label party's checkpoints."""
    folders = checkpoint.steps(run.out("clinic") / "checkpoints").values()
    states = [checkpoint.load(folder, only="run")["run"]["side"] for folder in folders]
    return {bytes(state["selection"].tolist()) for state in states}


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
