"""Every party in a process of its own, over mutual TLS: the weights and the figures of one process, to the bit."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splitvfl.app.records import own_data
from splitvfl.app.saved_model import load_half
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, load_config
from splitvfl.net.certs import make_certificates
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import read_summary
from splitvfl.run import checkpoint
from tests.run.parties import SHORT_KEYS, finished, free_ports, same_weights, start_party, weights_of
from tests.summaries import opened

THREE = """
data: {name: breast-cancer, test_fraction: 0.7}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error"], penalties: [{name: distance-correlation, weight: 0.2, records: 16}]}
  shop: {role: passive, columns: ["worst *"]}
model: {name: mlp, bottom: [16, 8], top_hidden: [8], dropout: 0.2}
train:
  epochs: 2
  batch_size: 32
  seed: 3
  private_seed_for_experiments: 3
  noise_seed_for_experiments: 5
  checkpoint_every_steps: 4
network: {listen: ":PORT", certificates: certs}
defenses:
  - {name: isotropic, ratio: 0.5}
  - {name: gaussian-ir, clip: 1.0, sigma: 0.1}
attacks: [norm, direction, residual, gradient-classifier, {name: ridge, known_share: 0.3}]
"""

# Logistic regression, bfloat16 on the wire, and a run that stops early.
TWO = """
data: {name: breast-cancer, test_fraction: 0.7}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error", "worst *"]}
model: logistic-regression
exchange: {name: split, wire: bf16}
train:
  epochs: 8
  batch_size: 64
  seed: 1
  private_seed_for_experiments: 1
  optimizer: {name: sgd, lr: 0.5}
  early_stopping: {patience: 2, validation_every: 5}
network: {listen: "127.0.0.1:PORT", certificates: certs}
attacks: [norm, least-squares]
"""

# Every exchange of logistic regression; with noise, Taylor's has no loss.
LOGISTIC = """
data: {name: breast-cancer, test_fraction: 0.7}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error"]}
  shop: {role: passive, columns: ["worst *"]}
model: logistic-regression
exchange: EXCHANGE
train:
  epochs: 1
  batch_size: 64
  seed: 1
  private_seed_for_experiments: 1
  checkpoint_every_steps: 2
  optimizer: {name: sgd, lr: 0.02}
network: {listen: "127.0.0.1:PORT", certificates: certs}
attacks: [least-squares]
"""
EXCHANGES = {
    "oracle": "{name: oracle, approximation: piecewise}",
    "residue": "{name: residue, encryption: {key_bits: 2048}}",
    "taylor": "{name: taylor, encryption: {key_bits: 2048}}",
}
# With one partner, and few steps: of three parties the test of `residue` is.
HYBRID = (
    LOGISTIC.replace(
        "EXCHANGE",
        "{name: hybrid, epsilon: 1.0, share: 0.3, selection_seed_for_experiments: 4, encryption: {key_bits: 2048}}",
    )
    .replace('  shop: {role: passive, columns: ["worst *"]}\n', "")
    .replace('["* error"]', "rest")
    .replace("batch_size: 64", "batch_size: 100")
)
CASES = {"three": (THREE, ("lab", "shop"))} | {
    name: (LOGISTIC.replace("EXCHANGE", section), ("lab", "shop")) for name, section in EXCHANGES.items()
}
ANSWERS = "defenses: [{name: abstaining-response, detection_error: 0.3, corrected: likelihood}, max-norm]\n"
CASES["silence"] = (
    TWO.replace("  seed: 1\n", "  seed: 1\n  noise_seed_for_experiments: 2\n").replace("attacks:", ANSWERS + "attacks:")
    + "audit: {canaries: 60}\n",
    ("lab",),
)
CASES["coordinator"] = (
    LOGISTIC.replace("EXCHANGE", "{name: coordinator, encryption: {key_bits: 2048}}"),
    ("lab", "shop", "coordinator"),
)
CASES["hybrid"] = (HYBRID, ("lab",))
NOISE = "{name: taylor, encryption: {key_bits: 2048}, noise: {epsilon: 0.5, delta: 0.1}}"
# Where nobody defends anything.
CASES["in flight"] = (THREE.replace("train:", "exchange: {name: split, in_flight: 2}\ntrain:"), ("lab", "shop"))
DRAWN = "[{name: mutual-information-bottleneck, weight: 0.01}]"
CASES["sampled"] = (
    THREE.replace("dropout: 0.2", "sampled: true")
    .replace("[{name: distance-correlation, weight: 0.2, records: 16}]", DRAWN)
    .replace('["worst *"]}', f'["worst *"], penalties: {DRAWN}}}'),
    ("lab", "shop"),
)
CASES["noise"] = (
    LOGISTIC.replace("EXCHANGE", NOISE)
    .replace("model: logistic-regression", "model: {name: logistic-regression, row_norm: 0.5}")
    .replace("  seed: 1\n", "  seed: 1\n  noise_seed_for_experiments: 2\n"),
    ("lab", "shop"),
)
# One draw for both partners, from which the label party's own layer learns too.
CASES["record-gaussian"] = (
    THREE.replace("top_hidden: [8], dropout: 0.2", "top_hidden: []")
    .replace("isotropic, ratio: 0.5", "record-gaussian, mu: 3.0, per: run")
    .replace("  - {name: gaussian-ir, clip: 1.0, sigma: 0.1}\n", ""),
    ("lab", "shop"),
)


# All hooks; a cut of few bits, answers and an early end; keys, of parties and of another one.
QUICK = ("three", "silence", "coordinator")


@pytest.mark.parametrize(
    ("text", "passives"),
    [
        pytest.param(*case, id=name, marks=[] if name in QUICK else pytest.mark.slow(reason="processes that train"))
        for name, case in CASES.items()
    ],
)
def test_a_networked_run_ends_like_the_run_in_one_process(
    text: str, passives: tuple[str, ...], tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("clinic", *passives)
    make_certificates(tmp_path / "certs", list(names))
    (tmp_path / "run.yaml").write_text(text.replace("PORT", str(free_ports(1)[0])))
    finished({name: start_party(checkout, tmp_path, "run.yaml", name, within=SHORT_KEYS) for name in names})
    with SHORT_KEYS():
        assert main(["train", "run.yaml", "--out", "runs/whole"]) == 0

    newest = checkpoint.latest(tmp_path / "runs" / "whole" / "checkpoints")
    assert newest is not None
    whole = checkpoint.load(newest)
    for name in set(names) - {"coordinator"}:  # who has no model
        assert same_weights(weights_of(tmp_path / "runs" / name), whole[f"party-{name}"]["module"]), name
    lines = [_figures(tmp_path / "runs" / run) for run in ("clinic", "whole")]
    if "in_flight" in text:  # within an epoch, of 5 steps, the seat in one process has not come to what is under way
        lines = [[line for line in run if line["step"] % 5 == 0] for run in lines]
    assert lines[0] == lines[1]
    assert lines[0]
    apart, together = (opened(tmp_path / "runs" / run / "summary.json") for run in ("clinic", "whole"))
    assert ("canaries" in apart) == ("canaries" in text)
    for figure in ("test_metric", "test_loss", "steps", "epochs", "canaries"):
        assert apart.get(figure) == together.get(figure)
    own = apart["own_model"]
    for key in ("party", "metric", "joint", "records", "of"):  # the other process has more rounds of boosting
        assert own[key] == together["own_model"][key]
    assert own["joint"] == pytest.approx(apart["test_metric"], abs=1e-12), "the label owner has all outputs"
    assert own["alone"] == pytest.approx(own["joint"] - own["difference"], abs=1e-12)
    assert own["low"] <= own["difference"] <= own["high"]
    for name in set(passives) - {"coordinator"}:
        _check_own_columns(tmp_path / "runs", name, load_config(tmp_path / "run.yaml"))
    for name in set(names) - {"coordinator"}:  # who keeps nothing
        inside = [path for path in (tmp_path / "runs" / name).rglob("*") if path.is_dir()]
        assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "runs" / name, *inside)} == {0o700}


CENTRING = """
import torch

class Centring:
    name, needs = "centring", ("gradient",)

    def __call__(self, view, /):
        rows = view.gradient.numpy()
        rows -= rows.mean(axis=0)
        return torch.from_numpy((rows**2).sum(axis=1))
"""


@pytest.mark.slow(reason="processes that train")
def test_an_attack_that_writes_in_the_label_partys_monitor_changes_nothing_that_is_sent(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a run in one process that the attack does not watch."""
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path / "certs", ["clinic", "lab"])
    text = TWO.replace("PORT", str(free_ports(1)[0])).replace("epochs: 8", "epochs: 1")
    (tmp_path / "centring.py").write_text(CENTRING)
    (tmp_path / "run.yaml").write_text(text.replace("[norm", '["centring:Centring", norm'))
    (tmp_path / "plain.yaml").write_text(text)
    finished({name: start_party(checkout, tmp_path, "run.yaml", name) for name in ("clinic", "lab")})
    assert main(["train", "plain.yaml", "--out", "runs/plain"]) == 0
    newest = checkpoint.latest(tmp_path / "runs" / "plain" / "checkpoints")
    assert newest is not None
    plain = checkpoint.load(newest)
    for name in ("clinic", "lab"):
        assert same_weights(weights_of(tmp_path / "runs" / name), plain[f"party-{name}"]["module"]), name
    watched = _figures(tmp_path / "runs" / "clinic")
    assert any("leak_auc/lab/centring" in line for line in watched)
    others = [{tag: value for tag, value in line.items() if "centring" not in tag} for line in watched]
    for line in others + (alone := _figures(tmp_path / "runs" / "plain")):
        for tag in ("leak_auc/worst", "labels/lab/total"):  # that of the attack itself, perhaps
            line.pop(tag, None)
    assert others == alone


SEEDING = """
import torch

class Seeding:
    name = "seeding"

    def __call__(self, activation, held, /):
        torch.manual_seed(1)
        return activation[torch.randperm(len(activation))[:4]].square().mean()
"""


@pytest.mark.slow(reason="processes that train")
def test_a_penalty_without_weight_that_seeds_torch_changes_nothing_of_a_networked_run(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a run in one process without penalties, of a bottom with dropout."""
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path / "certs", ["clinic", "lab"])
    text = TWO.replace("PORT", str(free_ports(1)[0])).replace("epochs: 8", "epochs: 1")
    text = text.replace("logistic-regression", "{name: mlp, bottom: [8, 4], top_hidden: [], dropout: 0.3}")
    (tmp_path / "seeding.py").write_text(SEEDING)
    own = '[{name: "seeding:Seeding", weight: 0}, {name: adversarial-reconstruction, weight: 0, steps: 1}]'
    (tmp_path / "run.yaml").write_text(text.replace('"worst *"]', f'"worst *"], penalties: {own}'))
    (tmp_path / "plain.yaml").write_text(text)
    finished({name: start_party(checkout, tmp_path, "run.yaml", name) for name in ("clinic", "lab")})
    assert main(["train", "plain.yaml", "--out", "runs/plain"]) == 0
    newest = checkpoint.latest(tmp_path / "runs" / "plain" / "checkpoints")
    assert newest is not None
    plain = checkpoint.load(newest)
    for name in ("clinic", "lab"):
        assert same_weights(weights_of(tmp_path / "runs" / name), plain[f"party-{name}"]["module"]), name


def _check_own_columns(runs: Path, name: str, config: ExperimentConfig) -> None:
    """What a passive party found of its columns: by hand, and as the label party's seat of one process has it."""
    found, whole, clinic = (read_summary(runs / run) for run in (name, "whole", "clinic"))
    _check_readings(runs / name, found.parties[name], whole.parties[name], config)
    if not config.model.recipe.is_linear:
        assert not found.parties[name].features
        return
    assert (found.seat, list(found.parties), found.worst) == (name, [name], (None, "", ""))
    assert stat.S_IMODE((runs / name / "summary.json").stat().st_mode) == 0o600, "it tells means of its columns"
    assert f"needs the weights of {name}" in clinic.parties[name].unavailable["least-squares"]
    leaks = {(leak.sees, leak.part): leak for leak in found.parties[name].features}
    together = {(leak.sees, leak.part): leak for leak in whole.parties[name].features}
    assert leaks.keys() == {(sees, part) for sees in ("scores", "activation") for part in ("train", "test")}
    if config.exchange.factory.hides_parts:  # of two parties only the sum is seen
        assert all(leak.joint == leak.features == 10 for leak in leaks.values())
        assert all("worst case" in leak.note for leak in leaks.values())
    else:
        for part in ("train", "test"):
            assert leaks["activation", part] == together["activation", part]
    records = own_data(config, name).data.with_row_norm(config.model.recipe.row_norm).train
    x = records.rows(torch.arange(records.count)).columns.numeric.double().numpy()
    width = np.ptp(x, axis=0)
    A = load_half(runs / name / "model").weights["weight"].double().numpy() * width
    untold = (x - x.min(axis=0)) / width @ (np.eye(A.shape[1]) - np.linalg.pinv(A) @ A)
    # What crossed in bfloat16 has 8 bits; the float32 of others is off by less than 1e-6.
    rough = config.exchange.wire is not None
    for sees in ("scores", "activation"):
        assert leaks[sees, "train"].mse == pytest.approx((untold**2).mean(), rel=1e-3 if rough else 1e-6)
        assert leaks[sees, "train"].equations == 1


def _check_readings(run: Path, own: PartyResult, whole: PartyResult, config: ExperimentConfig) -> None:
    """What a passive party reads of its columns in what it sends: what the seat in one process reads, and live."""
    if not config.exchange.factory.shows_activations:
        assert not own.readings
        assert "does not receive each record's activation" in own.unavailable["ridge"]
        return
    reading, *again = own.readings
    assert [one.attack for one in again if one.standing_still] == ["ridge", "inverse-network", "white-box-inversion"]
    assert len(again) == 3
    steps = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    logged = [value for line in steps for tag, value in line.items() if tag == f"feature_leak/{run.name}/ridge"]
    assert logged
    assert 0.0 <= min(logged) <= max(logged) < 1.0
    if "ridge" in [attack.name for attack in config.attacks]:
        (together,) = whole.readings
        assert reading == replace(together.with_own(None), joint=None, exact_joint=None)
    else:  # the auditor's own, who knows some records of every message
        assert reading.known_share == max(0.05, 12 / config.train.batch_size)


def _figures(run: Path) -> list[dict[str, float]]:
    """What a run logged, but for what the label party of a real run cannot see: passive parties' hooks, columns."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # The total of a run in one process includes the partner's features, which the label party of a network lacks.
    unseen = ("gaussian-ir", "known_without_messages", "feature_leak", "categories_", "penalty/", "/total")
    return [{tag: value for tag, value in line.items() if not any(part in tag for part in unseen)} for line in lines]
