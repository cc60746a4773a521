"""What parties of a networked run agree on is written down; nothing that must stay secret follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from splitvfl.app.deployment import party_run
from splitvfl.app.records import own_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.errors import ConfigError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.party.party import Party
from splitvfl.run.networked import ActiveRun
from splitvfl.run.prediction import PredictionSettings, prediction_terms
from tests.builders import passive_party

FILE = """
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000"}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [16, 8], top_hidden: [8], dropout: 0.2}
train: {epochs: 1, seed: 5PRIVATE}
network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}
defenses: [{name: isotropic, ratio: 1.0}, {name: gaussian-ir, clip: 1.0, sigma: 0.1}]
"""


def config_with(private: str, folder: Path) -> ExperimentConfig:
    return parse_config(FILE.replace("PRIVATE", private), source=folder / "all.yaml")


def built(config: ExperimentConfig, name: str, folder: Path) -> Party:
    """The party as its run builds it at its first meeting."""
    torch.manual_seed(0)
    run = party_run(config, name, folder / "run", own=own_data(config, name))
    if isinstance(run, ActiveRun):
        return run._build({"lab": 8})[0]
    return run._build(TaskSpec("binary", 1))[0]


def draws(party: Party) -> dict[str, Tensor]:
    """First weights, dropout, and the noise of every defense."""
    with party.random:
        found = {"dropout": torch.rand(100)}
    found |= {name: weight.detach() for name, weight in party.module.named_parameters() if weight.dim() > 1}
    for name, chain in party.chains().items():
        for number, attached in enumerate(chain._attached):
            found[f"{name}/{number}"] = torch.rand(100, generator=attached.generator(party.device))
    return found


@pytest.mark.parametrize("name", ["clinic", "lab"])
def test_nothing_secret_follows_from_the_agreed_seed_or_from_torchs(name: str, tmp_path: Path) -> None:
    config = config_with("", tmp_path)
    first, second = (draws(built(config, name, tmp_path)) for _ in range(2))
    assert len(first) >= 4
    assert [key for key in first if torch.equal(first[key], second[key])] == []


@pytest.mark.parametrize("name", ["clinic", "lab"])
def test_asked_for_by_name_a_run_can_be_repeated(name: str, tmp_path: Path) -> None:
    config = config_with(", private_seed_for_experiments: 1, noise_seed_for_experiments: 2", tmp_path)
    first, second = (draws(built(config, name, tmp_path)) for _ in range(2))
    assert [key for key in first if not torch.equal(first[key], second[key])] == []


def test_the_protocol_names_every_term_that_is_compared(tmp_path: Path, checkout: Path) -> None:
    said = " ".join((checkout / "docs" / "reference" / "protocol.md").read_text().split())
    run = party_run(config_with("", tmp_path), "lab", tmp_path / "run")
    settings = PredictionSettings(learned=TaskSpec("binary", 1), run="a" * 32, step=1, epoch=1)
    terms = {*run.settings.terms, *prediction_terms(passive_party("telecom"), settings)}
    assert sorted(term for term in terms if f"`{term}`" not in said) == []


HYBRID = """
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"], address: "ADDRESS:7000"}
  lab: {role: passive, COLUMNS}
model: logistic-regression
exchange: {name: hybrid, epsilon: 1.0, share: 0.4, selection_seed_for_experiments: 5}
train: {epochs: 1, batch_size: 64, optimizer: {name: sgd, lr: 0.1}}
network: {listen: "127.0.0.1:7000", plaintext_on_loopback: true}
"""


@pytest.mark.parametrize(
    ("name", "address", "columns", "refused"),
    [
        ("clinic", "bank.example", "columns: rest", True),  # a file of both
        ("lab", "bank.example", "columns: rest", True),
        ("clinic", "bank.example", "", False),  # its own, which nobody else reads
        ("clinic", "127.0.0.1", "columns: rest", False),  # processes of one machine: an experiment
        ("lab", "127.0.0.1", "columns: rest", False),
    ],
)
def test_a_seed_of_secret_draws_is_the_label_partys_own(
    name: str, address: str, columns: str, refused: bool, tmp_path: Path
) -> None:
    text = HYBRID.replace("ADDRESS", address).replace("COLUMNS", columns).replace("passive, }", "passive}")
    if not columns:  # of a set that everybody has, every party's columns are known
        rows = "".join(f"{row},{row % 7},{row % 3},{row % 2}\n" for row in range(200))
        (tmp_path / "own.csv").write_text(f"id,a,b,y\n{rows}")
        text = text.replace('"mean *"', "a, b").replace(
            "data: breast-cancer", "data: {name: table, path: own.csv, label: y, id_column: id}"
        )
    config = parse_config(text, source=tmp_path / "all.yaml")
    if not refused:
        party_run(config, name, tmp_path / "run")
        return
    with pytest.raises(ConfigError, match=r"exchange.selection_seed_for_experiments: whoever knows the seed .* leave"):
        party_run(config, name, tmp_path / "run")
