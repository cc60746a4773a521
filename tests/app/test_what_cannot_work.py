"""What people write themselves and that cannot work is told in words, with its place, and not by a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitvfl.cli import main

MODULE = """
from torch import nn
from splitvfl.exchange.split import Split
from splitvfl.party.recipe import Recipe


class Own(Recipe):
    def make_bottom(self, columns, task):
        return nn.Linear(columns.width, 4)

    def make_top(self, columns, task, widths):
        return nn.Linear(sum(widths) + columns.width, task.outputs)


class NoBottom(Own):
    def make_bottom(self, columns, task):
        return None


class NoTop(Own):
    def make_top(self, columns, task, widths):
        return "a top"


class Raises(Own):
    def make_bottom(self, columns, task):
        raise KeyError("width")


class TooWide(Own):
    def make_bottom(self, columns, task):
        return nn.Linear(columns.width + 1, 4)


class Defense:
    def __call__(self, gradient):
        return gradient


class Attack:
    def __call__(self, view, labels):
        return view


class Silent(Split):
    name = "silent"

    def active(self, party):
        return None
"""
EXPERIMENT = """
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: mine:Own
train: {epochs: 1, batch_size: 200}
audit: false
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "tumour.yaml").write_text(EXPERIMENT)
    return tmp_path / "tumour.yaml"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("model=mine:NoBottom", "make_bottom of mine:NoBottom must return a torch.nn.Module, got NoneType"),
        ("model=mine:NoTop", "make_top of mine:NoTop must return a torch.nn.Module, got str"),
        ("model=mine:Raises", "make_bottom of mine:Raises failed: KeyError: 'width' (mine.py, line 27)"),
        ("model=mine:TooWide", "the first layer of the bottom model of lab takes rows of width 21, and gets 20"),
        ("defenses=[mine:Defense]", "expected __call__(self, message, secrets, /)"),
        ("attacks=[mine:Attack]", "expected __call__(self, view, /)"),
        ("exchange=mine:Silent", "exchange Silent: active and passive must each return a Side, got NoneType"),
        ("train.optimizer=torch.optim:LBFGS", "train.optimizer: LBFGS cannot take a step"),
        ("train.optimizer=torch.optim:SparseAdam", "train.optimizer: SparseAdam cannot take a step"),
    ],
)
def test_it_is_told_in_words(change: str, told: str, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(experiment), change, "--out", str(experiment.parent / "run")]) == 2
    assert told in capsys.readouterr().err
    assert not (experiment.parent / "run").exists()


def test_what_works_is_found_to_be_in_order(experiment: Path) -> None:
    changes = ["train.optimizer={name: 'torch.optim:AdamW', betas: [0.9, 0.99]}"]
    assert main(["check", str(experiment), *changes, "--out", str(experiment.parent / "run")]) == 0
