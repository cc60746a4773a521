"""Both sides are told before step 1 that a partner's only feature can be reconstructed; nobody reconstructs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from splitvfl.app.checking import check_experiment, check_party
from splitvfl.app.experiment import run_experiment
from splitvfl.config.sections import parse_config
from splitvfl.report.summary import read_summary
from tests.summaries import opened

TEXT = """
data: {name: breast-cancer, drop: ["* error", "worst [!rt]*", "worst radius"]}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000"}
  lab: {role: passive, columns: rest}
model: logistic-regression
exchange: taylor
train: {epochs: 20, batch_size: 8, optimizer: {name: sgd, lr: 0.05}}
"""
NETWORK = 'network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}\n'
SAID = "can reconstruct the only feature of lab"


def checked(folder: Path, *changes: str) -> str:
    config = parse_config(TEXT, source=folder / "all.yaml", overrides=changes)
    lines: list[str] = []
    assert check_experiment(config, folder / "run", tell=lines.append) == []
    return "\n".join(lines)


@pytest.mark.parametrize(
    "change", ["train.seed=1", "exchange=residue", "exchange=split", "exchange=oracle", "train.batch_size=11"]
)
def test_check_says_it_of_one_feature(change: str, tmp_path: Path) -> None:
    assert f"{SAID}, up to its sign" in checked(tmp_path, change)


@pytest.mark.parametrize(
    "change",
    [
        'data.drop=["* error", "worst [!rt]*"]',
        "train.batch_size=17",  # ten features and the intercept's one give eleven sums, and the last batch has 15
        "train.batch_size=1",
        "exchange={name: taylor, noise: {epsilon: 0.5, delta: 0.1}}",
        "model={name: mlp, bottom: [4]}",
    ],
)
def test_check_says_nothing_where_it_does_not_follow(change: str, tmp_path: Path) -> None:
    changes = [change]
    if "mlp" in change:
        changes.append("exchange=split")
    if "noise" in change:
        changes.append("model.row_norm=0.7")
    assert SAID not in checked(tmp_path, *changes)


def test_noise_of_a_defense_on_what_the_partner_sends_prevents_it(tmp_path: Path) -> None:
    noise = "defenses=[{name: gaussian-ir, clip: 1.0, sigma: 0.1}]"
    assert SAID not in checked(tmp_path, "exchange=residue", noise)
    assert SAID in checked(tmp_path, "exchange=residue", "defenses=[{name: isotropic, ratio: 1.0}]")


def test_the_last_batch_of_an_epoch_alone_may_be_small_enough(tmp_path: Path) -> None:
    said = checked(tmp_path, "train.batch_size=12")  # 37 of 12, and one of 11
    assert f"{SAID} in the last batch of an epoch" in said
    assert SAID not in checked(tmp_path, "train.batch_size=12", "train.drop_last=true")


def test_a_run_says_what_check_says_and_its_summary_keeps_it(tmp_path: Path) -> None:
    changes = ["exchange=oracle", "train.epochs=1", "audit=false"]
    config = parse_config(TEXT, source=tmp_path / "all.yaml", overrides=changes)
    lines: list[str] = []
    run_experiment(config, tmp_path / "done", notify=lines.append)
    (said,) = [line for line in lines if SAID in line]
    assert said in checked(tmp_path, *changes)
    summary = read_summary(tmp_path / "done")
    (found,) = summary.columns_solvable
    assert " ".join(found.sentences()) == said
    assert said in summary.notes
    path = tmp_path / "done" / "summary.json"
    older = opened(path)
    del older["columns_solvable"]
    path.write_text(json.dumps(older))
    assert read_summary(tmp_path / "done").columns_solvable == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("clinic", "If lab has one feature only: The label owner can"), ("lab", "if the label owner has 7 features")],
)
def test_each_party_of_a_network_is_told(name: str, expected: str, tmp_path: Path) -> None:
    config = parse_config(TEXT + NETWORK, source=tmp_path / f"{name}.yaml")
    lines: list[str] = []
    problems = check_party(config, name, tmp_path / "run", connect_s=None, tell=lines.append)
    assert problems == []
    assert expected in "\n".join(lines)
