"""What is told of one name, compared with what happens to an experiment that names it, and with what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from splitvfl.app.experiment import Experiment, Workbench
from splitvfl.config.describing import entry
from splitvfl.config.registry import PluginKind, built_in, describe
from splitvfl.config.sections import HookConfig, parse_config
from splitvfl.config.yaml import Document
from splitvfl.data.columns import VerticalData
from splitvfl.data.load import load
from splitvfl.errors import ConfigError, SplitVFLError
from splitvfl.hooks import crossing_of

EVERY_NAME = [(kind, name) for kind in (*get_args(PluginKind), "data") for name, _ in describe(kind)]
TASKS = {"binary": "breast-cancer", "multiclass": "wine", "regression": "diabetes"}
# Which models an exchange trains is not the question here.
MODELS = {"split": "mlp", "one-way": "mlp"}
ADVICE = {"multiclass": "classes: 3", "regression": "label_range: [20, 350]"}

PARTIES = "parties: {clinic: {role: active, columns: 0.5}, lab: {role: passive, columns: rest}}\n"


@pytest.fixture(scope="module")
def sets() -> Mapping[str, VerticalData]:
    return {task: load(name, active=0.5, passive={"lab": "rest"}, active_name="clinic") for task, name in TASKS.items()}


def is_taken(data: VerticalData, exchange: str, hooks: str) -> bool:
    """Return whether a run can be put together, of some model; nothing is trained."""
    settings = "train: {batch_size: 64, optimizer: {name: sgd, lr: 0.1}}\naudit: false\n"
    own = ", epsilon: 1.0, share: 0.3" if exchange == "hybrid" else ""  # it needs settings
    models = dict.fromkeys([MODELS.get(exchange, "logistic-regression"), "logistic-regression"])
    # Noise needs room under encryption; what does not encrypt has no such setting.
    for model, room in product(models, ("", ", encryption: {value_limit: 1024}")):
        text = f"data: {data.name}\n{PARTIES}model: {model}\nexchange: {{name: {exchange}{own}{room}}}\n"
        with suppress(SplitVFLError):
            config = parse_config(f"{text}{settings}{hooks}\n", source="experiment.yaml")
            Experiment(config, Workbench(data, {})).trainer()
            return True
    return False


@pytest.mark.parametrize(("kind", "name"), EVERY_NAME)
def test_every_name_is_described_with_all_its_settings(kind: str, name: str) -> None:
    found = entry(kind, name)

    assert found.summary
    for key in found.options:
        assert key.meaning, f"{kind} {name}: say what {key.name} means, in Args or Attributes of its docstring"
        assert key.takes != "anything", f"{kind} {name}: {key.name} has no annotation"
    assert not re.search(r"``|:class:|:mod:|:func:|None\b", " ".join([found.summary, *found.facts.values()]))


@pytest.mark.parametrize(("kind", "name"), [one for one in EVERY_NAME if one[0] in ("defenses", "exchanges", "models")])
def test_every_example_is_an_experiment(kind: str, name: str) -> None:
    linear = "model: logistic-regression\n" if kind == "exchanges" and name not in MODELS else ""
    text = f"data: breast-cancer\n{PARTIES}{linear}{entry(kind, name).example}\n"

    config = parse_config(text, source="example.yaml")

    assert name in str(config.model_dump()) or name == "pca"


@pytest.mark.parametrize("name", sorted(built_in("defenses")))
def test_a_defense_goes_with_the_exchanges_that_are_told(name: str, sets: Mapping[str, VerticalData]) -> None:
    found = entry("defenses", name)

    taken = [one for one in built_in("exchanges") if is_taken(sets["binary"], one, found.example)]

    assert found.facts["Exchanges"].split(", ") == taken


@pytest.mark.parametrize("name", sorted(built_in("defenses")))
def test_a_defense_is_for_the_labels_that_are_told(name: str, sets: Mapping[str, VerticalData]) -> None:
    found = entry("defenses", name)
    with_advice = {
        task: found.example.replace("}]", f", {advice}}}]")
        for task, advice in ADVICE.items()
        if advice[:5] in found.facts["Labels"]
    }

    taken = {task for task, data in sets.items() if is_taken(data, "split", with_advice.get(task, found.example))}

    told = {
        "0 and 1": {"binary"},
        "of every task": set(TASKS),
        "of every task but regression": set(TASKS) - {"regression"},
    }
    expected = told.get(found.facts["Labels"], {"binary", *with_advice})
    assert taken == expected


def test_costs_are_those_that_were_measured(checkout: Path) -> None:
    page = (checkout / "docs" / "results" / "defenses.md").read_text(encoding="utf-8")
    table = page.partition("| choice | test AUC")[2].partition("\n## ")[0]
    # Behind a mean stands ± or, where that would reach beyond 1, the least and the most in square brackets.
    rows = dict(re.findall(r"^\| `([\w=().-]+)` \| (\.\d+ [±[][^|]+ \| \.\d+ [±[][^|]+) \|", table, re.MULTILINE))
    measured = {}
    for name in built_in("defenses"):
        found = entry("defenses", name)
        hook = Document(found.example, source=name).tree["defenses"][0]
        row = rows.get(str(HookConfig(**hook) if isinstance(hook, dict) else HookConfig(name=hook)))
        if row is None:
            of_scores = crossing_of(built_in("defenses")[name]) == "scores"  # docs/hiding-columns.md
            assert "not measured here" in found.facts["Cost"] or of_scores
            continue
        sending, private = (cell.split()[0] for cell in row.split(" | "))
        none = rows["none"].split(" ")[0]
        assert found.facts["Cost"].startswith(
            f"on digits a test AUC of {sending} for {none} undefended (private top: {private})."
        )
        measured[name] = sending

    assert len(measured) >= 14


def test_the_attacks_of_an_exchange_are_those_whose_needs_it_shows() -> None:
    def exchanges(name: str) -> set[str]:
        return set(entry("attacks", name).facts["Exchanges"].split(", "))

    encrypted = {"residue", "taylor", "coordinator", "hybrid"}
    assert exchanges("norm") == {"split"}
    assert exchanges("residue-solving") == {"split", "oracle"} | encrypted
    assert exchanges("model-completion") == {"split", "oracle", "one-way"} | encrypted
    assert "one-way" not in exchanges("component")


def test_a_class_of_ones_own_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_clip_hooks.py").write_text(
        'class Clip:\n    """Cut rows.\n\n    Claim: none.\n\n    Args:\n        bound: Largest norm.\n    """\n\n'
        "    def __init__(self, *, bound: float) -> None:\n        self.bound = bound\n\n"
        "    def __call__(self, gradient, secrets, /):\n        return gradient\n"
    )
    monkeypatch.chdir(tmp_path)

    found = entry("defenses", "my_clip_hooks:Clip")

    assert (found.summary, found.facts["Claim"]) == ("Cut rows.", "none.")
    assert [(key.name, key.meaning) for key in found.options] == [("bound", "Largest norm.")]
    assert found.example == 'defenses: [{name: "my_clip_hooks:Clip", bound: ...}]'


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("defenses", "sumkle", "did you mean sumkl?"),
        ("data", "digit", "did you mean digits?"),
        ("exchange", "split", "did you mean exchanges?"),
    ],
)
def test_a_name_that_is_none_is_told_with_the_nearest(kind: str, name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        entry(kind, name)
