"""A party that is deployed leaves a trace of what happened, and none of its data."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from scripts.bench.faults import Run, scenarios
from splitvfl.errors import RefusedError
from splitvfl.net.certs import make_certificates
from splitvfl.net.frames import Hello
from splitvfl.net.links import dial
from splitvfl.net.tls import Identity
from splitvfl.run import checkpoint
from tests.run.forked import PACE, Forked, unaudited

# Every entry is one of these, so that nothing else is in the log: no figure but steps, meetings and seconds.
REASONS = r"[\w' ,;:.*()/?-]*"
ENTRIES = {
    "cli": [r"begins: party", r"ends with exit code \d+"],
    "exchange": [
        r"(lab|clinic): agrees with (lab|clinic) on records and settings",
        r"(lab|clinic): all go on from step \d+",
        r"(lab|clinic): all have ended after \d+ steps",
    ],
    "net": [
        r"(lab|clinic): meeting \d+, linked with (lab|clinic)",
        rf"(lab|clinic): links closed: {REASONS}",
        r"(lab|clinic): links closed, everything done",
    ],
    "net.links": [rf"refused a call from ipv4:127\.0\.0\.1:\d+: {REASONS}"],
    "run": [r"checkpoint of step \d+ is in out/checkpoints/step-\d{9}(-\d+)?"],
}
ENTRY = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (INFO|WARNING) splitvfl\.("
    + "|".join(rf"{name}: ({'|'.join(known)})" for name, known in ENTRIES.items())
    + ")"
)


def logged(folder: Path, arguments: list[str]) -> Forked:
    return Forked(folder, ["--log", "party.log", *arguments])


def test_a_party_leaves_a_trace_of_what_happened_and_of_none_of_its_data(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", ["clinic", "lab"])
    plan = unaudited(scenarios(epochs=2, batch=32, patience=3)[0])
    with Run(plan, tmp_path / "run", pace=PACE, launch=logged) as run:  # type: ignore[arg-type]
        run.until(lambda: checkpoint.steps(run.out("lab") / "checkpoints").keys() - {0} != set(), "a checkpoint")
        run.signal("lab", signal.SIGKILL)
        port = int(re.findall(r"listen: \"127.0.0.1:(\d+)\"", (run.folder / "clinic" / "run.yaml").read_text())[0])
        with pytest.raises(RefusedError, match="another run"):
            dial(
                "clinic",
                f"127.0.0.1:{port}",
                Identity.load("lab", folder=tmp_path / "certs"),
                hello=Hello("lab", "another run", "passive"),
                identity="clinic",
                timeout=20,
            )
        run.finish()
        steps = max(checkpoint.steps(run.out("lab") / "checkpoints"))
        texts = {name: (run.folder / name / "party.log").read_text() for name in plan.parties}

    for name, text in texts.items():
        others = [line for line in text.splitlines() if not ENTRY.fullmatch(line)]
        assert not others, f"{name}: {others}"
        keys = (tmp_path / "certs" / f"{name}.key").read_text().splitlines()[1:-1]
        assert not [line for line in keys if line in text]
    clinic, lab = texts["clinic"], texts["lab"]
    assert "INFO splitvfl.net: clinic: meeting 2, linked with lab" in clinic
    assert "WARNING splitvfl.net: clinic: links closed: " in clinic
    assert "WARNING splitvfl.net.links: refused a call from " in clinic
    for text, name in ((clinic, "clinic"), (lab, "lab")):
        assert f"{name}: all go on from step 0" in text
        assert re.search(f"{name}: all go on from step [1-9]", text)
        assert f"INFO splitvfl.run: checkpoint of step {steps} is in " in text
        assert f"{name}: all have ended after {steps} steps" in text
        assert f"{name}: links closed, everything done" in text
        assert text.endswith("INFO splitvfl.cli: ends with exit code 0\n")
    assert lab.count("splitvfl.cli: begins: party") == 2
