"""The benchmark of starting compares the right processes, and its plain script learns what the example does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from scripts.bench import startup
from splitvfl.config.sections import load_config


def test_every_process_is_set_against_its_own_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    # CPU seconds of each, by a word of its arguments or variables; the first that is found counts.
    costs = {"--version": 1.0, "--help": 2.0, "complete_bash": 3.0, "SplitModel": 10.5, "import splitvfl": 0.5}
    costs |= {"sklearn": 20.0, "train": 30.0, "import torch": 10.0}
    used = [0.0]

    def cost(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        said = " ".join([*arguments, *variables.values()])
        used[0] += next(seconds for word, seconds in costs.items() if word in said)

    monkeypatch.setattr(startup, "run", cost)
    monkeypatch.setattr(startup, "cpu_of_ended", lambda: used[0])

    rows = {row.name: (row.value, row.target) for row in startup.measure(quick=True)}

    assert rows == {
        "splitvfl --version": (1.0, 0.3),
        "splitvfl --version / import torch": (0.1, None),
        "splitvfl --help": (2.0, 0.3),
        "splitvfl --help / import torch": (0.2, None),
        "completion": (3.0, 0.3),
        "completion / import torch": (0.3, None),
        "import splitvfl": (0.5, 0.15),
        "import splitvfl / import torch": (0.05, None),
        "splitvfl.SplitModel above import torch": (0.5, 0.3),
        "splitvfl.SplitModel / import torch": (1.05, None),
        "splitvfl train / plain script": (1.5, 1.6),
    }


def test_the_plain_script_trains_as_the_example_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = load_config(startup.EXAMPLE, []).train

    exec(startup.PLAIN, {"FOLDER": str(tmp_path)})

    assert 0.9 < float(capsys.readouterr().out) <= 1.0
    assert f"lr={train.optimizer.lr}" in startup.PLAIN
    assert f"split({train.batch_size})" in startup.PLAIN
    assert list(tmp_path.glob("events.*"))
