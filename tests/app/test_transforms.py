"""A passive party's transform: applied to all records, kept in its half and its checkpoints, and told to nobody."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from splitvfl.app.deployment import Deployment
from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.app.saved_model import load_half
from splitvfl.app.saved_run import load_run
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.transform import Rearrangement, Rotation, random_rotation
from splitvfl.errors import CheckpointError, ConfigError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.run.half_folder import TRANSFORM_FILE

EXPERIMENT = """
data: {{name: table, path: all.csv, id_column: customer, scale: {scale}}}
parties:
  bank: {{role: active, columns: [age, debt], label: default}}
  telecom: {{role: passive, columns: [calls, hours, loud, late, plan], transform: {transform}}}
model: logistic-regression
train: {{epochs: 2, batch_size: 32, device: cpu}}
audit: false
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("transforms")
    draw = np.random.default_rng(0)
    numbers = {name: draw.random(240).round(6) for name in ("age", "debt", "calls", "hours")}
    flags = {name: draw.integers(0, 2, 240) for name in ("loud", "late")}
    plan = draw.choice(["a", "b", "c"], 240)
    label = (numbers["calls"] + numbers["age"] + draw.normal(0, 0.3, 240) > 1).astype(int)
    names = [f"c{number:03d}" for number in range(240)]
    table = pd.DataFrame({"customer": names, **numbers, **flags, "plan": plan, "default": label})
    table[:200].to_csv(place / "all.csv", index=False)
    table[200:].drop(columns="default").to_csv(place / "new.csv", index=False)
    np.save(place / "turn.npy", random_rotation(7, seed=5).matrix.numpy())
    np.save(place / "stretch.npy", 2 * np.eye(7))
    np.save(place / "small.npy", np.eye(2))
    return place


def config(folder: Path, transform: str, *, scale: str = "minmax") -> ExperimentConfig:
    text = EXPERIMENT.format(transform=transform, scale=scale)
    return parse_config(text, source=folder / "credit.yaml")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """A finished run of a random orthonormal matrix."""
    (folder / "credit.yaml").write_text(EXPERIMENT.format(transform="orthonormal", scale="minmax"))
    assert main(["train", str(folder / "credit.yaml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_a_half_keeps_its_transform_readable_by_its_owner_only(trained: Path) -> None:
    half = load_half(trained / "model/telecom")

    assert isinstance(half.transform, Rotation)
    assert half.transform.columns == 7
    assert stat.S_IMODE((trained / "model/telecom" / TRANSFORM_FILE).stat().st_mode) == 0o600
    assert load_half(trained / "model/bank").transform is None
    assert stat.S_IMODE((trained / "experiment.yaml").stat().st_mode) == 0o600, "the setting is in it"


def test_nothing_but_the_partys_own_half_and_settings_tells_of_it(trained: Path) -> None:
    told = [path for path in trained.rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl", ".html")]

    assert {path.name for path in told} >= {"summary.json", "half.json", "metrics.jsonl"}
    for path in told:
        if path.parent.name != "telecom":
            text = path.read_text().replace('"parties.telecom.transform": "\\"(not shown)\\""', "")
            assert "orthonormal" not in text
            assert "transform" not in text


def test_scores_of_test_and_new_records_are_those_of_transformed_columns(trained: Path, folder: Path) -> None:
    run = load_run(trained, modules=folder)
    half = load_half(trained / "model/telecom")
    assert half.transform is not None
    data = load_data(config(folder, "orthonormal"))
    columns, own = data["telecom"].test.columns.numeric, data.active.test.columns.numeric
    with torch.no_grad():
        passive = run.passives["telecom"].bottom(half.transform.of(columns))
        logits = passive + run.active.top.active_logits(own)  # type: ignore[operator]

    torch.testing.assert_close(run.predict(), torch.sigmoid(logits.squeeze(1)), rtol=0, atol=1e-6)
    plain = data["telecom"].with_transform(None)
    assert torch.equal(plain.test.rows(torch.arange(3)).columns.numeric, columns[:3])
    # New records go the same way: those of the test part, read from a file, have the scores that they had.
    table = pd.read_csv(folder / "all.csv").drop(columns="default")
    ids = data.active.test.ids
    order = pd.DataFrame({"customer": [f"c{int(one):03d}" for one in ids]}) if ids.max() < 240 else None
    assert order is not None
    asked = order.merge(table, on="customer")
    torch.testing.assert_close(run.predict(asked), run.predict(), rtol=0, atol=1e-6)
    assert run.predict(folder / "new.csv").shape == (40,)


def test_a_transform_is_applied_once(folder: Path) -> None:
    trainer = build_trainer(config(folder, "flip"), load_data(config(folder, "flip")))
    part = trainer.passives["telecom"].data.train
    rows = torch.arange(4)

    taken = part.rows(rows)

    torch.testing.assert_close(taken.columns.numeric, 1 - part.columns.numeric[:4])
    assert torch.equal(taken.rows(rows).columns.numeric, taken.columns.numeric)
    assert torch.equal(part.to("cpu").rows(rows).columns.numeric, taken.columns.numeric)


def test_a_resumed_run_goes_on_with_the_transform_that_it_drew(folder: Path, tmp_path: Path) -> None:
    chosen = config(folder, "orthonormal")
    first = build_trainer(chosen, load_data(chosen), folder=tmp_path)
    first.fit(1)
    again = build_trainer(chosen, load_data(chosen), folder=tmp_path)
    before, drawn = (trainer.passives["telecom"].data.transform for trainer in (first, again))
    assert isinstance(before, Rotation)
    assert isinstance(drawn, Rotation)
    assert not torch.equal(before.matrix, drawn.matrix)

    again.resume()

    found = again.passives["telecom"].data.transform
    assert isinstance(found, Rotation)
    assert torch.equal(found.matrix, before.matrix)


def test_a_networked_party_transforms_its_columns_and_agrees_on_the_same_terms(folder: Path, tmp_path: Path) -> None:
    network = "\nnetwork: {plaintext_on_loopback: true, listen: '127.0.0.1:0'}\n"
    settings = {}
    for transform in ("null", "{name: permute, seed_for_experiments: 3}"):
        text = EXPERIMENT.format(transform=transform, scale="minmax").replace(", debt]", ", debt], address: 'x:1'")
        chosen = parse_config(text + network, source=folder / "credit.yaml", overrides=["data.drop=[default]"])
        parties = {"telecom": chosen.parties["telecom"], "bank": chosen.parties["bank"]}
        chosen = chosen.model_copy(update={"parties": {**parties, "bank": parties["bank"].model_copy()}})
        if transform != "null":
            with pytest.raises(
                ConfigError, match=r"parties.telecom.transform: .* telecom's secret, and bank.*own file"
            ):
                Deployment(chosen, "bank")
        deployment = Deployment(chosen, "telecom")
        settings[transform] = deployment.run(tmp_path / "run").settings
        party = deployment._passive(TaskSpec("binary", 1))
        assert (party.data.transform is None) == (transform == "null")

    plain, permuted = settings.values()
    assert permuted.terms == plain.terms
    assert permuted.own_terms == plain.own_terms
    assert permuted.data == plain.data


@pytest.mark.parametrize(
    ("transform", "scale", "message"),
    [
        ("flip", "standard", r"telecom.transform: .*columns in \[0, 1\].*minmax"),
        ("{name: flip, columns: [cals]}", "minmax", "did you mean 'calls'"),
        ("{name: permute, columns: [calls, loud]}", "minmax", "hold the same values"),
        ("{name: permute, columns: [calls, hours]}", "standard", "hold the same values"),
        ("{name: orthonormal, matrix: stretch.npy}", "minmax", "orthonormal matrix, H Hᵀ = I"),
        ("{name: orthonormal, matrix: small.npy}", "minmax", r"expected a matrix \(7, 7\)"),
        ("{name: orthonormal, matrix: all.csv}", "minmax", "all.csv is no matrix of numbers that numpy.save wrote"),
        ("{name: flip, matrix: turn.npy}", "minmax", "a matrix is of orthonormal"),
        ("{name: orthonormal, columns: [calls]}", "minmax", "mixes all columns"),
        ("{name: turn}", "minmax", "expected 'flip', 'permute' or 'orthonormal'"),
    ],
)
def test_what_a_transform_cannot_do_is_told(folder: Path, transform: str, scale: str, message: str) -> None:
    def build() -> None:
        chosen = config(folder, transform, scale=scale)
        build_trainer(chosen, load_data(chosen))

    with pytest.raises(ConfigError, match=message):
        build()


def test_the_active_party_has_no_transform(folder: Path) -> None:
    text = EXPERIMENT.format(transform="null", scale="minmax").replace(
        "label: default", "label: default, transform: flip"
    )
    with pytest.raises(ConfigError, match="the active party has none"):
        parse_config(text, source=folder / "credit.yaml")


@pytest.mark.parametrize(
    "transform", ["{name: orthonormal, matrix: turn.npy}", "permute", "{name: flip, columns: [calls]}"]
)
def test_each_kind_of_transform_is_what_was_asked_for(folder: Path, transform: str) -> None:
    chosen = config(folder, transform)
    found = build_trainer(chosen, load_data(chosen)).passives["telecom"].data.transform

    if isinstance(found, Rotation):
        np.testing.assert_array_equal(found.matrix.numpy(), np.load(folder / "turn.npy"))
        return
    assert isinstance(found, Rearrangement)
    if transform == "permute":  # two continuous columns, and five of 0 and 1: flags and categories
        groups = [{0, 1}, {2, 3, 4, 5, 6}]
        assert all({int(found.order[column]) for column in group} == group for group in groups)
        assert not found.flipped.any()
    else:
        assert found.flipped.tolist() == [True] + [False] * 6
        assert found.order.tolist() == list(range(7))


def test_a_damaged_transform_is_found(trained: Path) -> None:
    path = trained / "model/telecom" / TRANSFORM_FILE
    data = path.read_bytes()
    path.chmod(0o600)
    try:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(CheckpointError, match=r"transform\.safetensors is damaged"):
            load_half(path.parent)
    finally:
        path.write_bytes(data)
    assert json.loads((path.parent / "half.json").read_text())["files"].keys() >= {TRANSFORM_FILE}
