"""A hook is found once, when the file is read, and made anew wherever it is attached."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitvfl.app.deployment import party_run
from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.config.sections import parse_config, parse_defenses

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000"}
  lab: {role: passive, columns: rest}
network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}
audit: false
defenses: [{name: "counted_hook:Counted", bounds: [1, 2]}]
"""

HOOK = """
class Counted:
    made = []

    def __init__(self, *, bounds: list[float]) -> None:
        self.bounds = bounds
        Counted.made.append(self)

    def __call__(self, gradient, secrets, /):
        return gradient
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (tmp_path / "counted_hook.py").write_text(HOOK)
    return tmp_path


def test_it_is_tried_once_and_made_once_for_each_run(folder: Path) -> None:
    config = parse_config(TEXT, source=folder / "run.yaml")
    found = config.defenses[0].found("defenses", folder)
    made = found.factory.made
    assert len(made) == 1
    (folder / "counted_hook.py").write_text("raise ImportError")  # it is not looked for again
    for name in ("clinic", "lab"):
        party_run(config, name, folder / "run")
    assert len(made) == 1
    data = load_data(config)
    for _ in range(2):
        build_trainer(config, data)
    assert len(made) == 3
    made[1].bounds.append(3.0)
    assert [hook.bounds for hook in made] == [[1.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0]]


def test_so_are_those_of_a_comparison(folder: Path) -> None:
    ((hook,),) = parse_defenses("counted_hook:Counted(bounds=[1])", folder=folder)
    made = hook.found("defenses", Path()).factory.made
    assert len(made) == 1
    assert hook.found("defenses", Path()).make() is made[1]
