"""A class of one's own beside the experiment: named as ``module:Class``, and trained with."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from splitvfl.app.deployment import run_party
from splitvfl.app.experiment import run_experiment
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.errors import ConfigError
from tests.run.parties import free_ports

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error", "worst *"]}
model: {name: mlp, bottom: [4]}
audit: false
network: {listen: "127.0.0.1:PORT", plaintext_on_loopback: true, meeting_s: 30, message_s: 10, retries: 0}
train: {epochs: 2, batch_size: 64, private_seed_for_experiments: 0, optimizer: OPTIMIZER}
"""

OPTIMIZER = """
import torch

class HalfSGD(torch.optim.SGD):
    "Descends at half the rate that it is told."

    def __init__(self, params, *, lr: float, patience: int = 3) -> None:
        super().__init__(params, lr=lr / 2)
"""

OWN = '{name: "own_optimizer:HalfSGD", lr: 0.25}'
SAME = "{name: sgd, lr: 0.125}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of an experiment that is not the current one."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (tmp_path / "own_optimizer.py").write_text(OPTIMIZER)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def config_of(folder: Path, optimizer: str) -> ExperimentConfig:
    text = TEXT.replace("OPTIMIZER", optimizer).replace("PORT", str(free_ports(1)[0]))
    return parse_config(text, source=folder / "own.yaml")


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.rglob("*.safetensors"))
    assert files
    return {f"{file.stem}/{key}": value for file in files for key, value in load_file(file).items()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=0)


def test_an_optimiser_of_ones_own_trains_and_goes_on(folder: Path) -> None:
    for name, optimizer in (("own", OWN), ("same", SAME)):
        run_experiment(config_of(folder, optimizer), folder / name)
    assert_same(weights_in(folder / "own" / "weights"), weights_in(folder / "same" / "weights"))
    written = (folder / "own" / "experiment.yaml").read_text()
    assert "optimizer: {name: 'own_optimizer:HalfSGD', lr: 0.25, patience: 3}" in written
    for name, optimizer in (("own", OWN), ("same", SAME)):
        longer = config_of(folder, optimizer)
        train = longer.train.model_copy(update={"epochs": 3})
        written = (folder / name / "experiment.yaml").read_text()
        before = parse_config(written, source="before.yaml", folder=folder)
        run_experiment(before.model_copy(update={"train": train}), folder / name, resume=True)
    assert_same(weights_in(folder / "own" / "weights"), weights_in(folder / "same" / "weights"))


def test_an_optimiser_of_ones_own_trains_over_a_network(folder: Path) -> None:
    """It is each party's own business: here the passive party has its own, and the label party has not."""
    found = {}
    for name, optimizer in (("own", OWN), ("same", SAME)):
        text = TEXT.replace("PORT", str(free_ports(1)[0]))
        configs = {
            party: parse_config(text.replace("OPTIMIZER", chosen), source=folder / f"{party}.yaml")
            for party, chosen in (("clinic", SAME), ("lab", optimizer))
        }
        lab = threading.Thread(target=run_party, args=(configs["lab"], "lab", folder / name / "lab"))
        lab.start()
        run_party(configs["clinic"], "clinic", folder / name / "clinic")
        lab.join(timeout=60)
        assert not lab.is_alive()
        found[name] = weights_in(folder / name)
    assert_same(found["own"], found["same"])


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        (
            '{name: "own_optimizer:HalfSDG"}',
            r"9: train.optimizer.name: own_optimizer has no 'HalfSDG'",
        ),
        ('{name: "own_optimizer:HalfSGD"}', r"9: train.optimizer.lr: required, and missing"),
        ('{name: "own_optimizer:HalfSGD", lr: "1"}', r"9: train.optimizer.lr: expected a number, got '1'"),
        (
            '{name: "own_optimizer:HalfSGD", rate: 1, lr: 1}',
            r"9: train.optimizer.rate: no such key",
        ),
        (
            '{name: "own_optimizer:HalfSGD", lr: -1}',
            r"9: train.optimizer: .*: Invalid learning rate",
        ),
        ('{name: "torch.nn:Linear"}', r"9: train.optimizer.name: torch.nn:Linear: an optimiser takes steps, and this"),
        ('{name: "torch.optim:AdamW", betas: [0.5, 2]}', r"9: train.optimizer: torch.optim:AdamW: Invalid beta"),
    ],
)
def test_what_is_wrong_with_it_is_told_with_its_line(folder: Path, optimizer: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"own.yaml:{told}"):
        config_of(folder, optimizer)


def test_an_optimiser_of_torch_needs_no_file(folder: Path) -> None:
    config = config_of(folder, '{name: "torch.optim:AdamW", lr: 0.5, betas: [0.5, 0.75]}')
    made = config.train.optimizer.make([torch.nn.Parameter(torch.zeros(1))])
    assert type(made) is torch.optim.AdamW
    assert (made.defaults["lr"], made.defaults["betas"]) == (0.5, (0.5, 0.75))
