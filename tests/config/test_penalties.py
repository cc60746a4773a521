"""Penalties in an experiment file: per party, with a weight, of one's own too; what cannot be is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitvfl.app.deployment import party_run
from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, config_to_yaml, parse_config
from splitvfl.errors import ConfigError
from splitvfl.models import Sampled
from splitvfl.penalties import AdversarialReconstruction, DistanceCorrelation

TEXT = """\
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]MORE}
  lab: {role: passive, columns: rest, penalties: PENALTIES}
train: {epochs: 1, batch_size: 64, device: cpu}
"""

OWN = """
class Length:
    needs = frozenset()

    def __init__(self, *, power: float = 2.0) -> None:
        self.power = power

    def __call__(self, activation, held, /):
        return activation.norm(dim=1).pow(self.power).mean()
"""


def parsed(penalties: str, folder: Path, *, more: str = "", after: str = "") -> ExperimentConfig:
    text = TEXT.replace("PENALTIES", penalties).replace("MORE", more) + after
    return parse_config(text, source=folder / "run.yaml")


def test_each_has_its_weight_and_its_options(tmp_path: Path) -> None:
    config = parsed(
        "[distance-correlation, {name: adversarial-reconstruction, weight: 0.5, warm_up_steps: 7, hidden: 3}]", tmp_path
    )
    trainer = build_trainer(config, load_data(config))
    first, second = trainer.passives["lab"].penalties
    assert isinstance(first.penalty, DistanceCorrelation)
    assert (first.weight, first.warm_up_steps) == (1.0, 0)
    assert isinstance(second.penalty, AdversarialReconstruction)
    assert (second.weight, second.warm_up_steps) == (0.5, 7)
    again = parse_config(config_to_yaml(config), source=tmp_path / "run.yaml")
    assert again == config
    trainer.fit(1)
    assert set(trainer.passives["lab"].penalised) == {"lab/distance-correlation", "lab/adversarial-reconstruction"}
    assert "adds 0.5 times the penalty adversarial-reconstruction" in trainer.passives["lab"].penalties.notes[1]


def test_one_of_ones_own_is_named_by_module_and_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (tmp_path / "own_penalty.py").write_text(OWN)
    config = parsed('[{name: "own_penalty:Length", weight: 0.1, power: 1}]', tmp_path)
    trainer = build_trainer(config, load_data(config))
    trainer.fit(1)
    assert trainer.passives["lab"].penalised["lab/Length"] > 0


@pytest.mark.parametrize(
    ("penalties", "more", "after", "complaint"),
    [
        ("[distance-corelation]", "", "", "yaml:4: .*no such penalty.*did you mean distance-corr"),
        ("[{name: distance-correlation, records: 1}]", "", "", "penalties.*records: expected at least 2, got 1"),
        ("[{name: distance-correlation, weight: -1}]", "", "", "lab.penalties.0.weight: expected at least 0"),
        ("[{name: distance-correlation, at: training}]", "", "", "is a penalty, and acts in training alone"),
        ("[distance-correlation]", "", "exchange: one-way\n", "exchange one-way has no place for penalties"),
        (
            "[distance-correlation]",
            "",
            "model: logistic-regression\nexchange: oracle\n",
            "parties.lab.penalties: exchange oracle has no place for penalties.*take exchange split",
        ),
        ("[]", ", penalties: [distance-correlation]", "", "the active party sends none"),
    ],
)
def test_what_cannot_be_is_told(penalties: str, more: str, after: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"(?s){complaint}"):
        parsed(penalties, tmp_path, more=more, after=after)


def test_several_workers_are_refused_before_anybody_is_met(tmp_path: Path) -> None:
    config = parsed(
        "[distance-correlation]",
        tmp_path,
        more=', address: "127.0.0.1:7000"',
        after='network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}\nteam: {workers: 2}\n',
    )
    with pytest.raises(ConfigError, match=r"penalties: not with team\.workers above 1: a penalty"):
        party_run(config, "lab", tmp_path / "run")


BOTTLENECK = "[{name: mutual-information-bottleneck, weight: 0.01}]"


def test_a_sampled_model_has_a_bottleneck(tmp_path: Path) -> None:
    config = parsed(BOTTLENECK, tmp_path, after="model: {name: mlp, bottom: [8, 3], sampled: true}\n")
    trainer = build_trainer(config, load_data(config))
    assert isinstance(trainer.passives["lab"].bottom, Sampled)
    assert trainer.passives["lab"].output_width() == 3
    trainer.fit(1)
    assert trainer.passives["lab"].penalised["lab/mutual-information-bottleneck"] > 0


@pytest.mark.parametrize(
    ("penalties", "sampled", "complaint"),
    [
        (BOTTLENECK, "false", r"that of lab draws nothing: set model: \{name: mlp, sampled: true\}"),
        ("[]", "true", r"model: sampled: what lab sends is drawn.*give lab penalties: .*or leave sampled out"),
        ("[distance-correlation]", "true", "model: sampled: what lab sends is drawn, and no penalty"),
    ],
)
def test_one_of_the_two_without_the_other_is_refused(
    penalties: str, sampled: str, complaint: str, tmp_path: Path
) -> None:
    config = parsed(penalties, tmp_path, after=f"model: {{name: mlp, bottom: [8, 3], sampled: {sampled}}}\n")
    with pytest.raises(ConfigError, match=complaint):
        build_trainer(config, load_data(config))
