"""A model of one's own, as the tutorial has it, and a loss: trained, resumed, over a network, saved, and predicting."""

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
from splitvfl.system.signals import Interrupted
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
OWN_LOSS = 'train.loss={name: "my_losses:Focal", gamma: 1.5}'
LOSSES = """
import torch
from torch.nn import functional
from splitvfl.learning.losses import Loss, Logistic

class Focal(Loss):
    labels = "binary"

    def __init__(self, *, gamma: float = 2.0) -> None:
        if gamma < 0:
            raise ValueError(f"gamma must not be negative, got {gamma}")
        self.gamma = gamma

    def __call__(self, outputs, targets, /):
        logits, targets = outputs.squeeze(1), targets.to(outputs.dtype)
        loss = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return (loss * (1.0 - torch.exp(-loss)) ** self.gamma).mean()

    def scores(self, outputs):
        return torch.sigmoid(outputs.squeeze(1)) ** 2

class Sloppy(Focal):
    def __init__(self, *, what: str) -> None:
        super().__init__()
        self.what = what

    def __call__(self, outputs, targets, /):
        loss = super().__call__(outputs, targets)
        return {"many": outputs.squeeze(1), "float": 1.0, "detached": loss.detach()}.get(self.what, loss)

    def scores(self, outputs):
        return outputs if self.what == "wide" else missing if self.what == "typo" else outputs.squeeze(1)

class NoScores(Loss):
    def __call__(self, outputs, targets, /): ...

class Other:
    def scores(self, outputs): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the tutorial's model beside the experiment."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    page = (checkout / "docs" / "tutorial.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Net(Recipe)" in block)
    (tmp_path / "my_model.py").write_text(code)
    (tmp_path / "my_losses.py").write_text(LOSSES)
    yield tmp_path
    for module in ("my_model", "my_losses"):
        sys.modules.pop(module, None)


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


@pytest.mark.slow(reason="trains and predicts over a network")
def test_it_crosses_a_network_and_predicts(folder: Path, checkout: Path) -> None:
    """Each party names its own half, and one of them a loss that the other has no file of.

    The weights are those of one process, and the saved halves score records as the loss says.
    """
    make_certificates(folder / "certs", ["clinic", "lab"])
    port = free_ports(1)[0]
    network = f'network: {{listen: ":{port}", certificates: certs}}\n'
    text = EXPERIMENT.replace('["mean *"]', f'["mean *"], address: "127.0.0.1:{port}"') + network
    loss = 'loss: {name: "my_losses:Focal", gamma: 1.5}'
    Path("clinic.yaml").write_text(text.replace("train: {", f"train: {{{loss}, "))
    # What it is called, and in which file it is, is nobody else's business.
    Path("labs.py").write_text("from my_model import Net as Half\n")
    Path("lab.yaml").write_text(text.replace("my_model:Net", "labs:Half"))
    names = ("clinic", "lab")

    finished({name: start_party(checkout, folder, f"{name}.yaml", name) for name in names})

    run_experiment(config_of(OWN_LOSS), folder / "whole")
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
        own = load_config(folder / f"{name}.yaml")
        saved = load_half(folder / "runs" / name / "model")
        halves[name] = saved.party(data[name], device=CPU, own=own.model, own_loss=own.train.loss)
        with pytest.raises(ConfigError, match="which does not come with splitvfl: it is imported where the experiment"):
            saved.party(data[name], device=CPU)
    active, passive = halves["clinic"], halves["lab"]
    assert isinstance(active, ActiveParty)
    assert isinstance(passive, PassiveParty)
    expected = predict(active, {"lab": passive}).scores
    found = [float(line.split(",")[1]) for line in Path("scores.csv").read_text().splitlines()[1:]]
    assert torch.equal(torch.tensor(found), expected)
    with pytest.raises(ConfigError, match="made by the loss 'my_losses:Focal', which does not come with splitvfl"):
        load_half(folder / "runs" / "clinic" / "model").party(data["clinic"], device=CPU, own=config_of().model)


def test_a_step_follows_the_gradient_of_ones_own_loss() -> None:
    text = EXPERIMENT.replace('{name: "my_model:Net", hidden: 5}', "logistic-regression").replace("64", "all")
    config = config_of(OWN_LOSS, "train.optimizer={name: sgd, lr: 0.5}", "train.epochs=1", text=text)
    data = load_data(config)
    trainer = build_trainer(config, data)
    parts = [trainer.passives["lab"].bottom, trainer.active.top]
    before = [[weight.detach().clone() for weight in part.parameters()] for part in parts]
    trainer.fit(1)

    # By hand: the mean of q (1 - exp(-q))^1.5 over records, q the cross-entropy of the sum of all parts.
    lab, clinic = (data[name].train.columns.numeric for name in ("lab", "clinic"))
    (of_lab,), (bias, of_clinic) = [[weight.double().requires_grad_() for weight in part] for part in before]
    logits = lab.double() @ of_lab[0] + clinic.double() @ of_clinic[0] + bias
    signs = 2.0 * data["clinic"].train.labels.double() - 1.0
    entropy = torch.log1p(torch.exp(-signs * logits))
    (entropy * (1.0 - torch.exp(-entropy)) ** 1.5).mean().backward()
    for part, weights in zip(parts, [[of_lab], [bias, of_clinic]], strict=True):
        for found, weight in zip(part.parameters(), weights, strict=True):
            # float32: gradients are below 1, and a step is half of one.
            torch.testing.assert_close(found.double(), weight - 0.5 * weight.grad, rtol=0, atol=1e-6)


def test_the_usual_loss_may_be_named() -> None:
    trainers = [build_trainer(config, load_data(config)) for config in (config_of(), config_of("train.loss=logistic"))]
    for trainer in trainers:
        trainer.fit(1)
    left, right = (trainer.active.top.state_dict() for trainer in trainers)
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ('train.loss={name: "my_losses:Focal", gama: 1.0}', "train.loss.gama: no such key; did you mean gamma?"),
        ('train.loss={name: "my_losses:Focal", gamma: yes}', "train.loss.gamma: expected a number, got 'yes'"),
        ('train.loss={name: "my_losses:Focal", gamma: -1.0}', "train.loss: gamma must not be negative, got -1.0"),
        ("train.loss=my_losses:Other", "train.loss.name: my_losses:Other: derive this class from splitvfl.learning"),
        ("train.loss=my_losses:NoScores", "train.loss.name: my_losses:NoScores: derive this class from"),
        ("train.loss=logistik", "train.loss.name: no such loss 'logistik'; did you mean logistic?"),
    ],
)
def test_what_is_wrong_with_a_loss_is_told(override: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(override)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("many", "must return the mean loss of a batch, one number with a gradient, got"),
        ("float", "must return the mean loss of a batch, one number with a gradient, got 1.0"),
        ("detached", "must return the mean loss of a batch, one number with a gradient, got"),
        ("wide", r"Sloppy.scores must return shape (2,) for outputs (2, 1), got (2, 1)"),
        ("typo", "Sloppy fails on two records: NameError: name 'missing' is not defined"),
    ],
)
def test_what_a_loss_returns_is_looked_at_before_training(what: str, told: str) -> None:
    config = config_of(f'train.loss={{name: "my_losses:Sloppy", what: {what}}}')
    with pytest.raises(ConfigError) as caught:
        build_trainer(config, load_data(config))
    assert "run.yaml: train.loss: " in str(caught.value)
    assert told in str(caught.value)


def test_a_loss_that_could_not_be_used_is_refused() -> None:
    linear = EXPERIMENT.replace('{name: "my_model:Net", hidden: 5}', "logistic-regression")
    with pytest.raises(
        ConfigError, match=r"train\.loss: exchange residue trains logistic regression, with its own loss"
    ):
        config_of(OWN_LOSS, text=linear + "exchange: residue\n")
    with pytest.raises(ConfigError, match=r"abstaining-response: it computes the loss itself, and train\.loss names"):
        config_of(OWN_LOSS, text=EXPERIMENT + "defenses: [{name: abstaining-response, detection_error: 0.3}]\n")
    config = config_of("train.loss=squared-error")
    with pytest.raises(
        ConfigError, match=r"train\.loss: the squared-error loss takes numbers, and this is a binary task"
    ):
        build_trainer(config, load_data(config))


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
