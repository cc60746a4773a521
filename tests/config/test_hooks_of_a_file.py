"""A hook is found once, when the file is read, and made anew wherever it is attached."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitvfl.app.deployment import party_run
from splitvfl.app.experiment import Experiment, Workbench, build_trainer
from splitvfl.app.records import load_data
from splitvfl.config.sections import config_to_yaml, parse_config, parse_defenses
from splitvfl.errors import ConfigError

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


class Loose:
    def __init__(self, *, clip) -> None: ...

    def __call__(self, gradient, secrets, /):
        return gradient
"""
LOOSE = TEXT.replace('"counted_hook:Counted", bounds: [1, 2]', '"counted_hook:Loose", clip: VALUE')
# Any two of them differ, whatever Python says.
VALUES = ("null", ".inf", "-.inf", ".nan", "1", "1.0", "true", "'1'", "0.0", "-0.0", "[1]", "[.inf]", "{a: .inf}")


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


def test_a_party_with_noise_goes_on_under_the_same_options_alone(folder: Path) -> None:
    """Compared with what its folder holds: under others the same noise would be on other numbers."""
    configs = [parse_config(LOOSE.replace("VALUE", value), source=folder / "run.yaml") for value in VALUES]
    terms = [party_run(config, "lab", folder / "run").settings.own_terms["defenses"] for config in configs]
    assert len(set(terms)) == len(VALUES)
    assert party_run(configs[0], "lab", folder / "run").settings.own_terms["defenses"] == terms[0]


def test_a_run_in_one_process_goes_on_under_the_same_options_alone(folder: Path) -> None:
    path = folder / "config.yaml"
    values = [value for value in VALUES if value not in ("1.0", "-0.0")]  # of numbers that are equal, one
    configs = [parse_config(LOOSE.replace("VALUE", value), source=folder / "run.yaml") for value in values]
    bench = Workbench(load_data(configs[0]), {})
    for config, other in zip(configs, (*configs[1:], configs[0]), strict=True):
        path.write_text(config_to_yaml(config))
        Experiment(config, bench).refuse_changes(path)
        with pytest.raises(ConfigError, match=r"started with other settings: defenses;"):
            Experiment(other, bench).refuse_changes(path)
