"""``model.private_top`` in experiment files: every kind of model, every exchange, one process and a network."""

from __future__ import annotations

import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from splitvfl.app.deployment import party_run
from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.app.saved_model import load_half
from splitvfl.cli import main
from splitvfl.config.sections import parse_config
from splitvfl.errors import ConfigError
from splitvfl.leakage.monitor import read_metrics
from splitvfl.messaging import conversation
from splitvfl.messaging.messages import Message
from splitvfl.net.certs import make_certificates
from splitvfl.party.top_model import PrivateTop
from splitvfl.report.report import write_report
from splitvfl.report.summary import read_summary
from splitvfl.run import checkpoint
from splitvfl.run import trainer as training
from tests.builders import same
from tests.run.parties import finished, free_ports, start_party

EXPERIMENT = """\
data: {name: table, path: people.csv, label: y}
parties:
  bank: {role: active, columns: [age, income]}
  paper: {role: passive, columns: [ads, days, hours]}
model: MODEL
train: {epochs: 3, batch_size: 32, device: cpu, noise_seed_for_experiments: 1, early_stopping: {validation_every: 4}}
defenses: [{name: asymmetric-response, detection_error: 0.45}]
attacks: [norm]
"""
MODELS = {
    "mlp": "{name: mlp, bottom: [6, 4], top_hidden: [5], dropout: 0.2, private_top: true}",
    "logistic-regression": "{name: logistic-regression, private_top: true}",
    "wide-deep": (
        "{name: wide-deep, embedding_dim: 3, bottom: [8, 6, 4], cut_after: 2, crosses: [[age, income]], "
        "cross_buckets: 50, sparse: true, private_top: true}"
    ),
}


@pytest.fixture(autouse=True)
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    lines = ["age,income,ads,days,hours,y"]
    for _ in range(240):
        row = [draw.randrange(9) for _ in range(5)]
        lines.append(",".join(map(str, [*row, int(sum(row) + draw.randrange(9) > 25)])))
    Path("people.csv").write_text("\n".join(lines) + "\n")


def text_of(model: str) -> str:
    text = EXPERIMENT.replace("MODEL", MODELS[model])
    if model == "wide-deep":
        text = text.replace("label: y}", "label: y, categorical_columns: [age, income, ads]}")
    return text


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_one_and_sends_what_it_sends_without(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for overrides in (["model.private_top=false"], []):
        crossed: list[Message] = []
        recording = partial(conversation.converse, record=crossed.append)
        monkeypatch.setattr(
            training, "converse", lambda halves, do=recording, **more: do(halves, turns=more.get("turns"))
        )
        config = parse_config(text_of(model), source="people.yaml", overrides=overrides)
        trainer = build_trainer(config, load_data(config))
        trainer.fit(2)
        found.append((trainer, crossed))
    (plain, without), (beside, crossed) = found
    assert len(without) == len(crossed) > 20
    for one, other in zip(without, crossed, strict=True):
        assert (one.kind, one.step) == (other.kind, other.step)
        assert torch.equal(one.payload, other.payload)
    assert len(plain.active.models) == 1
    sending, private = beside.active.models
    assert sending.state_dict().keys() == plain.active.top.state_dict().keys()
    if model != "logistic-regression":  # whose private top has weights of its own for the parts of the logits
        assert private.state_dict().keys() == sending.state_dict().keys()
    first = next(iter(private.parameters()))
    assert not any(torch.equal(first, weight) for weight in sending.parameters())
    assert beside.test["sending/auc"] == plain.test["auc"]
    assert beside.test["sending/loss"] != beside.test["loss"]


def test_a_finished_run_says_which_top_its_figures_are_of(capsys: pytest.CaptureFixture[str]) -> None:
    Path("people.yaml").write_text(text_of("mlp"))
    assert main(["train", "people.yaml", "--out", "run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    folder = Path("run")
    summary = read_summary(folder)
    (last,) = [row for row in read_metrics(folder) if row["step"] == summary.steps]
    kept = {key: value for key, value in last.items() if key.startswith(("test/", "validation/"))}
    figures = [f"{of}{name}" for of in ("", "sending/") for name in ("auc", "loss")]
    assert kept.keys() == {f"{part}/{figure}" for part in ("test", "validation") for figure in figures}
    assert summary.sending_metric is not None
    assert summary.sending_metric != summary.test_metric
    assert f"The top model that sends gradients has a test AUC of {summary.sending_metric:.3f}." in said
    assert "learned from true labels and sent nothing" in said
    page = write_report([folder], folder / "report.html", title="").read_text()
    assert f"The top model that sends gradients has a test AUC of {summary.sending_metric:.3f}." in page

    sending, private = (load_file(folder / "weights" / f"bank{of}.safetensors") for of in ("", ".private-top"))
    assert sending.keys() == private.keys()
    assert not any(torch.equal(sending[name], private[name]) for name in sending)


def test_a_run_is_not_resumed_without_what_it_had(capsys: pytest.CaptureFixture[str]) -> None:
    Path("people.yaml").write_text(text_of("mlp"))
    assert main(["train", "people.yaml", "train.epochs=1", "--out", "run"]) == 0
    assert main(["train", "people.yaml", "model.private_top=false", "--out", "run", "--resume"]) == 2
    assert "other settings: model.private_top" in " ".join(capsys.readouterr().err.split())


def test_a_private_top_that_diverged_is_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    learn = PrivateTop.learn

    def spoiled(top: PrivateTop, *given: Any) -> None:
        learn(top, *given)
        for weight in top.module.parameters():
            weight.data.fill_(math.nan)  # as an optimiser's step can that overflows, of a gradient that does not

    monkeypatch.setattr(PrivateTop, "learn", spoiled)
    Path("people.yaml").write_text(text_of("mlp"))
    assert main(["train", "people.yaml", "--out", "run"]) == 0
    summary = read_summary(Path("run"))
    assert summary.test_metric is None
    assert summary.sending_metric is not None
    assert summary.validation_metric is not None
    said = " ".join(capsys.readouterr().out.split())
    assert f"In {summary.steps - 1} steps the private top's loss or a gradient was NaN or infinite" in said
    write_report([Path("run")], Path("run/report.html"), title="")


@pytest.mark.parametrize(
    "exchange",
    [
        "oracle",
        "{name: residue, encryption: {key_bits: 2048}}",
        "{name: taylor, encryption: {key_bits: 2048}}",
        "{name: coordinator, encryption: {key_bits: 2048}}",
    ],
)
def test_exchanges_that_train_none_refuse_it_with_the_line(exchange: str) -> None:
    text = text_of("logistic-regression") + f"exchange: {exchange}\n"
    with pytest.raises(
        ConfigError, match=r"people.yaml:5: model.private_top: exchange \w+ trains no private top: .*split"
    ):
        parse_config(text, source="people.yaml")
    parse_config(text, source="people.yaml", overrides=["model.private_top=false"])
    parse_config(text_of("logistic-regression") + "exchange: {wire: bf16}\n", source="people.yaml")


def test_it_is_a_truth_value() -> None:
    with pytest.raises(ConfigError, match=r"people.yaml:5: model.private_top: .*got 'both'"):
        parse_config(text_of("mlp").replace("private_top: true", "private_top: both"), source="people.yaml")


def test_it_has_an_optimiser_of_its_own() -> None:
    text = text_of("wide-deep")
    for section, expected in (
        ("", (torch.optim.Adam, 1e-2)),
        ("private_top_optimizer: {lr: 0.5}, ", (torch.optim.Adam, 0.5)),
        ("private_top_optimizer: {name: sgd, lr: 0.25}, ", (torch.optim.SGD, 0.25)),
    ):
        config = parse_config(text.replace("train: {", f"train: {{{section}"), source="people.yaml")
        trainer = build_trainer(config, load_data(config))
        private, optimizer = trainer.active.private_top, trainer.active.weights.optimizer
        assert private is not None
        assert private._optimizer is not None
        assert optimizer is not None
        found, others = private._optimizer.param_groups, optimizer.param_groups
        assert [group["lr"] for group in found] == [expected[1], 0.02]  # of tables row-wise Adagrad's
        assert [group["lr"] for group in others] == [1e-3, 0.02]
        assert type(private._optimizer._parts["dense"]) is expected[0]  # type: ignore[attr-defined]
    text = text_of("mlp").replace(", private_top: true", "").replace("train: {", "train: {private_top_optimizer: sgd, ")
    config = parse_config(text, source="people.yaml")
    with pytest.raises(ConfigError, match=r"people.yaml: train.private_top_optimizer: there is no private top"):
        build_trainer(config, load_data(config))
    network = "network: {plaintext_on_loopback: true, listen: '127.0.0.1:1'}\n"
    config = parse_config(text + network, source="people.yaml")
    with pytest.raises(ConfigError, match=r"people.yaml: train.private_top_optimizer: there is no private top"):
        party_run(config, "bank", Path("run"))  # before anybody is met


NETWORKED = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error"]}
  shop: {role: passive, columns: ["worst *"]}
model: {name: mlp, bottom: [16, 8], top_hidden: [8], dropout: 0.2}
train:
  epochs: 5
  batch_size: 64
  seed: 3
  private_seed_for_experiments: 3
  noise_seed_for_experiments: 5
  early_stopping: {patience: 2, validation_every: 5}
network: {listen: ":PORT", certificates: certs}
audit: false
defenses:
  - {name: asymmetric-response, detection_error: 0.45}
"""


def test_over_a_network_it_is_the_label_partys_own_business(tmp_path: Path, checkout: Path) -> None:
    """The others' files say nothing of it, no term is compared, and their weights are those of a run without."""
    make_certificates(tmp_path / "certs", ["clinic", "lab", "shop"])
    Path("run.yaml").write_text(NETWORKED.replace("PORT", str(free_ports(1)[0])))
    own = {"clinic": ["model.private_top=true"], "lab": [], "shop": []}
    finished({name: start_party(checkout, tmp_path, "run.yaml", name, *more) for name, more in own.items()})
    for folder, more in (("whole", own["clinic"]), ("plain", [])):
        assert main(["train", "run.yaml", *more, "--out", folder]) == 0

    newest = {run: checkpoint.latest(Path(run) / "checkpoints") for run in ("whole", "plain")}
    whole, plain = (checkpoint.load(path) for path in newest.values() if path is not None)
    for name in own:
        path = checkpoint.latest(Path("runs") / name / "checkpoints")
        assert path is not None
        found = checkpoint.load(path)["party"]
        assert same(found["module"], whole[f"party-{name}"]["module"])
        assert same(found["kept"], whole[f"party-{name}"]["kept"])
        if name != "clinic":
            assert same(found["module"], plain[f"party-{name}"]["module"])
    assert read_summary(Path("runs/clinic")).test_metric == read_summary(Path("whole")).test_metric
    assert read_summary(Path("runs/clinic")).sending_metric == read_summary(Path("plain")).test_metric
    # The half that scores new records is the private one, of the epoch that is kept.
    kept = whole["party-clinic"]["kept"]
    half = load_half(Path("runs/clinic/model")).weights
    assert same(dict(half), {name: kept[f"private_top.{name}"] for name in half})
    for name in ("lab", "shop"):
        assert "private_top: true" not in (Path("runs") / name / "experiment.yaml").read_text()
