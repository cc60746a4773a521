"""Encrypted runs that are disturbed: a party that comes back has a new key, and the run ends as if nothing had been.

To the bit, too: sums of integers are exact, whatever key and masks they crossed under. Keys are short here.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scripts.bench.faults import LIMIT_S, Run, disturbed_run, scenarios, undisturbed
from splitvfl.net.certs import make_certificates
from splitvfl.run import checkpoint
from tests.run.forked import PACE, Forked


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encrypted")
    make_certificates(folder / "certs", ["clinic", "lab", "shop"])
    return folder


@pytest.mark.slow(reason="faults of an encrypted run, and one without any")
@pytest.mark.parametrize(("exchange", "parties"), [("residue", 2), ("hybrid", 2), ("taylor", 3)])
def test_a_disturbed_encrypted_run_ends_like_an_undisturbed_one(exchange: str, parties: int, workplace: Path) -> None:
    plan = scenarios(epochs=2, batch=64, patience=2, exchange=exchange)[parties - 2]
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
    scenario = scenarios(epochs=2, batch=64, patience=2, exchange="taylor")[0]
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


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
