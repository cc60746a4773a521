"""A model of one's own, as the tutorial has it: trained, resumed, over a network, saved, and predicting."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from splitvfl.app.experiment import build_trainer, run_experiment
from splitvfl.app.records import load_data
from splitvfl.app.saved_model import load_half
from splitvfl.config.sections import ExperimentConfig, config_to_yaml, load_config, parse_config
from splitvfl.errors import ConfigError
from splitvfl.exchange.prediction import predict
from splitvfl.net.certs import make_certificates
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run import checkpoint
from splitvfl.run.training import Interrupted
from tests.run.parties import finished, free_ports, same_weights, start, start_party, weights_of

CPU = torch.device("cpu")
EXPERIMENT = """\
data: {name: breast-cancer, scale: standard}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: "my_model:Net", hidden: 5}
train: {epochs: 2, batch_size: 64, seed: 3, device: cpu, private_seed_for_experiments: 3}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the tutorial's model beside the experiment."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    page = (checkout / "docs" / "tutorial.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Net(Recipe)" in block)
    (tmp_path / "my_model.py").write_text(code)
    yield tmp_path
    sys.modules.pop("my_model", None)


def config_of(*overrides: str, text: str = EXPERIMENT) -> ExperimentConfig:
    return parse_config(text, source=Path("run.yaml").absolute(), overrides=overrides)


def test_the_halves_are_those_of_the_recipe() -> None:
    config = config_of("model.private_top=true")
    trainer = build_trainer(config, load_data(config))
    assert [weight.shape for weight in trainer.passives["lab"].bottom.parameters()] == [(5, 20), (5,), (8, 5), (8,)]
    for top in trainer.active.models:
        assert next(iter(top.parameters())).shape == (16, 8 + 10)
    assert config.model.model_dump() == {"name": "my_model:Net", "hidden": 5, "width": 8, "private_top": True}
    assert parse_config(config_to_yaml(config), source=Path("run.yaml").absolute()) == config
    trainer.fit(2)
    assert trainer.test["auc"] > 0.9


def test_a_run_goes_on_to_the_same_weights(folder: Path) -> None:
    def stop(status: object) -> None:
        if getattr(status, "step", 0) == 9:
            raise Interrupted("stopped")

    config = config_of("train.checkpoint_every_steps=4")
    whole = run_experiment(config, folder / "whole")
    with pytest.raises(Interrupted):
        run_experiment(config, folder / "halves", progress=stop)
    assert run_experiment(config, folder / "halves", resume=True).test_metric == whole.test_metric
    for name in config.parties:
        left, right = ((folder / run / "weights" / f"{name}.safetensors").read_bytes() for run in ("whole", "halves"))
        assert left == right
    with pytest.raises(ConfigError, match=r"started with other settings: model\.hidden"):
        run_experiment(config_of("model.hidden=6", "train.checkpoint_every_steps=4"), folder / "whole", resume=True)


def test_it_crosses_a_network_and_predicts(folder: Path, checkout: Path) -> None:
    """Each party names its own half; the weights are those of one process, and the saved halves score records."""
    make_certificates(folder / "certs", ["clinic", "lab"])
    port = free_ports(1)[0]
    network = f'network: {{listen: ":{port}", certificates: certs}}\n'
    text = EXPERIMENT.replace('["mean *"]', f'["mean *"], address: "127.0.0.1:{port}"') + network
    Path("clinic.yaml").write_text(text)
    # What it is called, and in which file it is, is nobody else's business.
    Path("labs.py").write_text("from my_model import Net as Half\n")
    Path("lab.yaml").write_text(text.replace("my_model:Net", "labs:Half"))
    names = ("clinic", "lab")

    finished({name: start_party(checkout, folder, f"{name}.yaml", name) for name in names})

    run_experiment(config_of(), folder / "whole")
    newest = checkpoint.latest(folder / "whole" / "checkpoints")
    assert newest is not None
    whole = checkpoint.load(newest)
    for name in names:
        assert same_weights(weights_of(folder / "runs" / name), whole[f"party-{name}"]["module"])

    out = {"clinic": ["--out", "scores.csv"], "lab": []}
    scoring = {name: ["predict", f"{name}.yaml", "--as", name, "--model", f"runs/{name}/model"] for name in names}
    finished({name: start(checkout, [*scoring[name], *out[name]], folder) for name in names})

    data = load_data(config_of())
    halves = {}
    for name in names:
        own = load_config(folder / f"{name}.yaml").model
        saved = load_half(folder / "runs" / name / "model")
        halves[name] = saved.party(data[name], device=CPU, own=own)
        with pytest.raises(ConfigError, match="which does not come with splitvfl: it is imported where the experiment"):
            saved.party(data[name], device=CPU)
    active, passive = halves["clinic"], halves["lab"]
    assert isinstance(active, ActiveParty)
    assert isinstance(passive, PassiveParty)
    expected = predict(active, {"lab": passive}).scores
    found = [float(line.split(",")[1]) for line in Path("scores.csv").read_text().splitlines()[1:]]
    assert torch.equal(torch.tensor(found), expected)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("hidden: 5", "hidden: 5.5", "5: model.hidden: expected a whole number, got 5.5"),
        ("hidden: 5", "hiden: 5", "5: model.hiden: no such key; did you mean hidden?"),
        ("my_model:Net", "my_model:Met", "5: model.name: my_model has no 'Met'; did you mean Net?"),
        ("my_model:Net", "my_model:nn", "5: model.name: my_model:nn: expected a class, got <module"),
        ("my_model:Net", "bare:Bare", "5: model.name: bare:Bare: a model is named by its recipe; derive this class"),
        (
            "my_model:Net",
            "bare:NoBottom",
            "5: model.name: bare:NoBottom: this recipe has no make_bottom(columns, task)",
        ),
        ("my_model:Net", "bare:NoTop", "5: model.name: bare:NoTop has no make_top(columns, task, widths), which"),
        ("my_model:Net", "bare:Picky", "5: model: hidden must be even, got 5"),
    ],
)
def test_what_a_class_lacks_is_told_with_the_line(old: str, new: str, told: str) -> None:
    Path("bare.py").write_text(BARE)
    with pytest.raises(ConfigError) as caught:
        config_of(text=EXPERIMENT.replace(old, new))
    assert f"run.yaml:{told}" in str(caught.value)


BARE = """
from dataclasses import dataclass
from splitvfl.models import Recipe

class Bare:
    def make_bottom(self, columns, task): ...

class NoBottom(Recipe):
    def make_top(self, columns, task, widths): ...

class NoTop(Recipe):
    def __init__(self, *, hidden: int = 3) -> None: ...

    def make_bottom(self, columns, task): ...

class Picky(Recipe):
    def __init__(self, *, hidden: int) -> None:
        if hidden % 2:
            raise ValueError(f"hidden must be even, got {hidden}")

    def make_bottom(self, columns, task): ...

    def make_top(self, columns, task, widths): ...
"""


def test_another_width_needs_a_method_that_says_how() -> None:
    one_way = EXPERIMENT + "exchange: {name: one-way, width: 6}\n"
    config = config_of(text=one_way)
    with pytest.raises(
        ConfigError, match=r"exchange.width: Net does not say .* add a method options_for_width\(width\)"
    ):
        build_trainer(config, load_data(config))
    with Path("my_model.py").open("a") as file:
        file.write("    def options_for_width(self, width):\n        return {'width': width}\n")
    sys.modules.pop("my_model")
    config = config_of(text=one_way)
    trainer = build_trainer(config, load_data(config))
    assert [party.output_width() for party in trainer.passives.values()] == [6]
    # Principal components take the width of the model's bottoms where the exchange says none.
    config = config_of(text=EXPERIMENT + "exchange: {name: one-way, bottom: pca}\n")
    trainer = build_trainer(config, load_data(config))
    assert [party.output_width() for party in trainer.passives.values()] == [8]


def test_a_list_called_top_is_its_own_affair() -> None:
    """Of ``mlp`` it says the hidden layers too; nothing is made up for another model."""
    with Path("my_model.py").open("a") as file:
        file.write("\n\n@dataclass(frozen=True, kw_only=True)\nclass Tall(Net):\n    top: tuple[int, ...] = ()\n")
    config = config_of(text=EXPERIMENT.replace('"my_model:Net"', '"my_model:Tall", top: [4, 1]'))
    assert config.model.model_dump()["top"] == (4, 1)
