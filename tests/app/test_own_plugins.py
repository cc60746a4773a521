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


@pytest.mark.slow(reason="a network")
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
            r"9: train.optimizer: Invalid learning rate",
        ),
        ('{name: "torch.nn:Linear"}', r"9: train.optimizer.name: torch.nn:Linear: an optimiser takes steps, and this"),
        ('{name: "torch.optim:AdamW", betas: [0.5, 2]}', r"9: train.optimizer: Invalid beta"),
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


EXCHANGE = """
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.split import Split


class Counted(Split):
    "Split learning that may be told a word, which parties compare."

    name = "counted"

    def __init__(self, *, word: str = "", rows: int = 0) -> None:
        if word == "boo":
            raise ValueError("boo is no word")
        self.word, self.rows = word, rows

    def terms(self) -> dict[str, object]:
        return {**super().terms(), "word": self.word, "largest batch": self.rows}


class Nameless(Split): ...


class Half(Exchange):
    name = "half"

    def active(self, party): ...
"""


def exchanged(folder: Path, exchange: str) -> ExperimentConfig:
    (folder / "own_exchange.py").write_text(EXCHANGE)
    text = TEXT.replace("OPTIMIZER", SAME).replace("PORT", str(free_ports(1)[0]))
    return parse_config(f"{text}exchange: {exchange}\n", source=folder / "own.yaml")


def test_an_exchange_of_ones_own_trains(folder: Path) -> None:
    own = exchanged(folder, '{name: "own_exchange:Counted", word: word, gradient_clip: null}')
    summary = run_experiment(own, folder / "own")
    run_experiment(exchanged(folder, "split"), folder / "split")
    assert summary.exchange == "own_exchange:Counted"
    assert_same(weights_in(folder / "own" / "weights"), weights_in(folder / "split" / "weights"))
    written = (folder / "own" / "experiment.yaml").read_text()
    assert "exchange: {name: 'own_exchange:Counted', word: word}" in written
    assert parse_config(written, source="again.yaml", folder=folder).exchange == own.exchange
    terms = own.exchange.make(rows=own.train.batch_size).terms()
    assert terms == {"exchange": "counted", "word": "word", "largest batch": 64}


@pytest.mark.parametrize(
    ("exchange", "told"),
    [
        ('{name: "own_exchange:Counted", wrod: a}', r"exchange.wrod: no such key; did you mean word\?"),
        ('{name: "own_exchange:Counted", word: 1}', r"exchange.word: expected text, got 1"),
        ('{name: "own_exchange:Counted", rows: 1}', r"exchange.rows: no such key"),
        ('{name: "own_exchange:Counted", word: boo}', r"exchange: boo is no word"),
        ('"own_exchange:Nameless"', r"exchange.name: .* give this class a name of its own"),
        ('"own_exchange:Half"', r"exchange.name: .* this exchange has no passive method"),
        ('"splitvfl.exchange.base:Side"', r"exchange.name: .* an exchange has a side for the active party"),
        ('"splitvfl.exchange.evaluation:Evaluation"', r"exchange.name: "),
    ],
)
def test_what_is_wrong_with_an_exchange_is_told_with_its_line(folder: Path, exchange: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"own.yaml:10: {told}"):
        exchanged(folder, exchange)


def test_an_exchange_of_ones_own_takes_the_options_of_the_one_that_it_is_derived_from(folder: Path) -> None:
    (folder / "own_taylor.py").write_text(
        "from typing import Any\n\nfrom splitvfl.exchange.taylor import Taylor\n\n\nclass Own(Taylor):\n"
        "    name = 'own'\n\n    def __init__(self, *, word: str = '', **common: Any) -> None:\n"
        "        super().__init__(**common)\n        self.word = word\n"
    )
    exchange = '{name: "own_taylor:Own", word: a, stock: 7, loss: false, encryption: {key_bits: 2048, value_limit: 5}}'
    section = exchanged(folder, exchange).exchange
    made = section.make(rows=8)
    assert (made.word, made.loss, made.rows, made.sums_only, made.hides_parts) == ("a", False, 8, True, True)
    assert made.encryption.key_bits == 2048
    with pytest.raises(ConfigError, match=r"own.yaml:10: exchange.encryption.mask: delete this key"):
        exchanged(folder, '{name: "own_taylor:Own", encryption: {mask: bounded}}')
    with pytest.raises(ConfigError, match=r"own.yaml:10: exchange.stock: expected at least 0, got -1"):
        exchanged(folder, '{name: "own_taylor:Own", stock: -1}')
