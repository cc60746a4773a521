"""The JSON Schema of experiment files, judged by another's reader of such schemas, and by what reads the files."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from splitvfl.cli import main
from splitvfl.config.keys import experiment_keys, flat
from splitvfl.config.schema import DIALECT, experiment_schema, schema_line
from splitvfl.config.sections import parse_config
from splitvfl.config.yaml import Document, to_yaml
from splitvfl.errors import ConfigError
from splitvfl.report.summary import summary_schema

# Together they have a key of every section, and one of every kind of value.
RICH = """
name: rich
data: {name: breast-cancer, drop: [a, b], test_fraction: 0.3, split_seed: 4, scale: minmax, min_count: 2, digit: null}
parties:
  clinic: {role: active, columns: ["mean *"], label: malignant}
  lab: {role: passive, columns: rest, address: "lab:7000", identity: lab.example}
model: {name: mlp, bottom: [8, 4], top_hidden: [3], dropout: 0.1, private_top: true}
exchange: {name: split, wire: bf16}
network: {run: one, listen: ":7000", certificates: certs, meeting_s: 3, retries: 2, publish_scores: true}
train:
  epochs: 2
  batch_size: 32
  optimizer: {name: sgd, lr: 0.1, momentum: 0.5}
  private_top_optimizer: {lr: 0.1}
  loss: logistic
  device: cpu
  early_stopping: {patience: 2, min_delta: 0.1}
defenses: [{name: gaussian-ir, clip: 1.0, sigma: 0.1, at: [training]}, max-norm]
attacks: [norm, {name: model-completion, steps: 3}]
audit: {canaries: 30}
known_positives: 5
"""
STEPS = (("attacks", 1, "steps"), 4)
ENCRYPTED = """
data: breast-cancer
parties:
  clinic: {role: active, columns: 0.5}
  lab: {role: passive, columns: rest}
model: {name: logistic-regression, row_norm: 0.7}
exchange: {name: taylor, encryption: {key_bits: 2048, packed: false}, processes: 1, loss: false}
train: {epochs: 2, lr: 0.1, optimizer: sgd}
"""


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = experiment_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def tree_of(text: str) -> dict[str, Any]:
    return Document(text, source="experiment.yaml").tree


def is_read(tree: dict[str, Any]) -> bool:
    try:
        parse_config(to_yaml(tree), source="experiment.yaml")
    except ConfigError:
        return False
    return True


def places(tree: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*before, key)
        yield from places(value, (*before, key))


def changed(
    tree: dict[str, Any], place: tuple[Any, ...], *, key: str | None = None, value: Any = None
) -> dict[str, Any]:
    """Return a copy in which what is at a place has another key, or another value."""
    found = copy.deepcopy(tree)
    section: Any = found
    for part in place[:-1]:
        section = section[part]
    if key is None:
        section[place[-1]] = value
    else:
        section[key] = section.pop(place[-1])
    return found


@pytest.mark.parametrize("text", [RICH, ENCRYPTED], ids=["rich", "encrypted"])
def test_what_is_refused_for_a_key_or_a_type_is_refused_by_both(text: str, validator: Draft202012Validator) -> None:
    tree = tree_of(text)
    assert is_read(tree)
    assert validator.is_valid(tree)

    differing = []
    for turn, place in enumerate(places(tree)):
        # At one place these, at the next the others: each kind of value comes to half of the places.
        mutants = {
            number: changed(tree, place, value=wrong)
            for number, wrong in enumerate(({"no": "such"}, [[[]]], "☃", True, -1))
            if (number + turn) % 2
        }
        # Names of parties are free, and a list has no keys.
        if isinstance(place[-1], str) and place[:-1] != ("parties",):
            mutants[5] = changed(tree, place, key="no_such_key")
        for number, mutant in mutants.items():
            if validator.is_valid(mutant) and not is_read(mutant):
                differing.append((place, number))

    # What is in the name of a folder, and the ranges that hooks' constructors ask for, a run says.
    assert set(differing) <= {(("name",), 2), *((("defenses", 0, option), 4) for option in ("clip", "sigma")), STEPS}


def test_a_key_of_another_name_is_refused(validator: Draft202012Validator) -> None:
    tree = tree_of(ENCRYPTED)

    for place, value in (
        (("model", "bottom"), [3]),
        (("exchange", "memory_mib"), 3),
        (("train", "optimizer"), {"name": "adam", "momentum": 0.1}),
        (("defenses",), [{"name": "max-norm", "at": "training", "bound": 1}]),
        (("attacks",), [{"name": "norm", "at": "training"}]),
        (("parties", "lab", "colums"), "rest"),
    ):
        mutant = changed(tree, place, value=value)
        assert not validator.is_valid(mutant), place
        assert not is_read(mutant), place


def test_whatever_the_documentation_shows_is_valid(checkout: Path, validator: Draft202012Validator) -> None:
    pages = [checkout / "README.md", *(checkout / "docs").rglob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]
    texts = [*blocks, *(path.read_text("utf-8") for path in (checkout / "splitvfl" / "examples").glob("*.yaml"))]

    whole = []
    for text in texts:
        try:
            tree = tree_of(text)
        except ConfigError:  # a service's settings, say
            continue
        if is_read(tree):
            whole.append(tree)

    assert len(whole) >= 18
    assert [list(validator.iter_errors(tree)) for tree in whole] == [[] for _ in whole]


def test_every_key_is_in_it_and_explained() -> None:
    schema = experiment_schema()

    assert set(schema["properties"]) == {key.name for key in experiment_keys()}
    train = schema["properties"]["train"]["anyOf"][0]["properties"]
    assert all(train[key]["description"] for key in train)
    names = schema["$defs"]["defenses"]["anyOf"][0]["anyOf"][0]["enum"]
    assert {"sumkl", "asymmetric-response"} <= set(names)
    assert all(key.meaning for _, key in flat(experiment_keys()))


def test_a_class_of_ones_own_takes_any_option(validator: Draft202012Validator) -> None:
    tree = tree_of(ENCRYPTED) | {"defenses": [{"name": "my_hooks:Clip", "bound": 0.1}], "attacks": ["my_hooks:Spread"]}

    assert validator.is_valid(tree)
    assert not validator.is_valid(tree | {"attacks": ["no_such_attack"]})


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "experiment.schema.json"

    assert main(["schema", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert main(["schema"]) == 0

    assert json.loads(out.read_text("utf-8")) == json.loads(capsys.readouterr().out) == experiment_schema()
    assert told.out == f"{out}\n"
    assert schema_line(out) in told.err.replace("\n", "")
    assert schema_line(out).startswith("# yaml-language-server: $schema=")
    assert main(["schema", "--summary"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps({"$schema": DIALECT, **summary_schema()}))
    # It is a comment to us.
    assert tree_of(f"{schema_line(out)}\n{ENCRYPTED}") == tree_of(ENCRYPTED)
