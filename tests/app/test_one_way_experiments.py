"""Exchange one-way in experiment files: what it makes of them, and what is told where it makes no sense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splitvfl.app.experiment import build_trainer, run_experiment
from splitvfl.app.models import Models
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, config_to_yaml, parse_config
from splitvfl.errors import ConfigError
from splitvfl.learning.tasks import Binary
from splitvfl.models import MLP, PCA
from splitvfl.report.findings import facts
from tests.builders import party_data

TEXT = """\
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["worst *", "* error"]}
model: {name: mlp, bottom: [16, 12]}
train: {epochs: 1, batch_size: 64}
"""


def config_of(exchange: str, more: str = "") -> ExperimentConfig:
    return parse_config(f"{TEXT}exchange: {exchange}\n{more}", source="one.yaml")


@pytest.mark.parametrize(
    ("exchange", "bottom", "widths"),
    [
        ("one-way", MLP, [16, 12]),
        ("{name: one-way, width: 5}", MLP, [16, 5]),
        ("{name: one-way, bottom: pca}", PCA, [12]),
        ("{name: one-way, bottom: pca, width: 20}", PCA, [20]),
    ],
)
def test_bottoms_are_as_the_file_says(exchange: str, bottom: type, widths: list[int]) -> None:
    config = config_of(exchange)
    trainer = build_trainer(config, load_data(config))
    found = trainer.passives["lab"].bottom
    assert type(found) is bottom
    if isinstance(found, PCA):
        assert [len(found.components)] == widths
        assert found.components.norm(dim=1).allclose(torch.ones(widths[0]))
    else:
        assert [layer.out_features for layer in found.layers if isinstance(layer, torch.nn.Linear)] == widths  # type: ignore[union-attr]
    trainer.fit(1)
    assert set(trainer.test) == {"auc", "loss"}


def test_principal_components_are_at_most_as_many_as_there_are_columns() -> None:
    text = TEXT.replace("[16, 12]", "[64]") + "exchange: {name: one-way, bottom: pca}\n"
    config = parse_config(text, source="one.yaml")
    trainer = build_trainer(config, load_data(config))
    assert trainer.passives["lab"].bottom.components.shape == (20, 20)
    wide = config_of("{name: one-way, bottom: pca, width: 21}")
    with pytest.raises(ConfigError, match=r"exchange\.width: expected at most the 20 numeric columns of lab.* got 21"):
        build_trainer(wide, load_data(wide))


def test_principal_components_are_not_drawn() -> None:
    text = TEXT.replace("bottom:", "sampled: true, bottom:") + "exchange: {name: one-way, bottom: pca}\n"
    config = parse_config(text, source="one.yaml")
    with pytest.raises(ConfigError, match=r"model\.sampled: passive parties send principal components"):
        build_trainer(config, load_data(config))


def test_categories_have_no_principal_components() -> None:
    config = config_of("{name: one-way, bottom: pca}")
    models = Models(config.model, config.exchange.make())
    party = replace(party_data("lab", width=2), field_sizes=(3,), field_names=("c",))
    with pytest.raises(ConfigError, match=r"lab has categorical fields \(c\); encode them as numbers"):
        models.of_passive(party, Binary())
    with pytest.raises(ConfigError, match="lab has no columns; encode them"):
        models.of_passive(party_data("lab", width=0), Binary())


@pytest.mark.parametrize(
    ("exchange", "more", "complaint"),
    [
        (
            "one-way",
            "defenses: [isotropic]\n",
            r"one\.yaml:8: defenses\.0\.name: isotropic defends the gradient",
        ),
        ("one-way", "defenses: [{name: randomised-response, epsilon: 1}]\n", "defends the labels, and has nothing"),
        ("one-way", "model: logistic-regression\n", "its top adds up the parties' logits"),
        ("{name: one-way, gradient_clip: 1.0}", "", "gradient_clip: no gradient is sent in exchange one-way"),
        ("{name: one-way, in_flight: 1}", "", "in_flight: nothing comes back in exchange one-way"),
        ("{name: one-way, encryption: {}}", "", "sends activations in the clear, and nothing comes back"),
        ("{name: one-way, bottom: pcs}", "", "bottom: expected"),
        ("{name: one-way, width: 0}", "", "width: "),
        ("{name: one-way, memory_mib: 0}", "", "memory_mib: "),
        ("oneway", "", "no such exchange 'oneway'; did you mean one-way"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_place(exchange: str, more: str, complaint: str) -> None:
    text = TEXT.replace("model: {name: mlp, bottom: [16, 12]}\n", "") if more.startswith("model") else TEXT
    with pytest.raises(ConfigError, match=complaint):
        parse_config(f"{text}exchange: {exchange}\n{more}", source="one.yaml")


def test_a_section_survives_being_written_down() -> None:
    config = config_of("{name: one-way, bottom: pca, width: 4, wire: bf16}")
    again = parse_config(config_to_yaml(config), source="one.yaml")
    assert again.exchange == config.exchange
    said = {"name": "one-way", "wire": "bf16", "bottom": "pca", "width": 4, "memory_mib": 1024, "disk_mib": 65_536}
    assert again.exchange.model_dump() == said


def test_a_run_says_that_nothing_was_sent_and_goes_on_with_more_epochs(tmp_path: Path) -> None:
    config = config_of("one-way", "attacks: [norm]\n")
    first = run_experiment(config, tmp_path / "run")
    assert first.verdict["lab"].labels.state == "no-label-dependent-message"
    said = " ".join(facts(first))
    assert "From what lab sent once, before training, ridge recovers" in said, "nobody has to list a reader"
    (reading,) = first.parties["lab"].readings
    assert (reading.attack, reading.sent_once) == ("ridge", True)
    unwatched = run_experiment(config_of("one-way", "audit: false\nattacks: [norm]\n"), tmp_path / "unwatched")
    assert unwatched.verdict["lab"].features.state == "not-measured"
    longer = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 3})})
    resumed = run_experiment(longer, tmp_path / "run", resume=True)
    whole = run_experiment(longer, tmp_path / "whole")
    assert (resumed.test_metric, resumed.test_loss) == (whole.test_metric, whole.test_loss)
    assert resumed.parties["lab"].readings == whole.parties["lab"].readings == [reading]
    run_experiment(config, tmp_path / "run", overwrite=True)
