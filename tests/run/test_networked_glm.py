"""Generalised linear models over a network: the weights of one process to the bit, and no start under two losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitvfl.cli import main
from splitvfl.net.certs import make_certificates
from splitvfl.run import checkpoint
from tests.run.parties import finished, free_ports, same_weights, start_party, weights_of
from tests.summaries import opened

# Counts, of which labels and logits are clipped, and weights in a ball.
FILE = """
data: {name: diabetes}
parties:
  clinic: {role: active, columns: [age, sex, bmi], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: [bp, s1, s2]}
  shop: {role: passive, columns: [s3, s4, s5, s6]}
model: {name: glm, loss: poisson, target_clip: 300, logit_clip: 6}
train:
  epochs: 2
  batch_size: 64
  seed: 3
  private_seed_for_experiments: 3
  noise_seed_for_experiments: 5
  optimizer: {name: proximal-sgd, lr: 0.002, l1: 0.5, l2: 0.1, radius: 2.5}
network: {listen: ":PORT", certificates: certs}
defenses: [{name: gaussian-ir, clip: 3.0, sigma: 0.01}]
attacks: []
"""
NAMES = ("clinic", "lab", "shop")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with certificates and the parties' file, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    make_certificates(tmp_path / "certs", list(NAMES))
    (tmp_path / "run.yaml").write_text(FILE.replace("PORT", str(free_ports(1)[0])))
    return tmp_path


def test_a_networked_run_ends_like_the_run_in_one_process(folder: Path, checkout: Path) -> None:
    finished({name: start_party(checkout, folder, "run.yaml", name) for name in NAMES})
    assert main(["train", "run.yaml", "--out", "runs/whole"]) == 0

    newest = checkpoint.latest(folder / "runs" / "whole" / "checkpoints")
    assert newest is not None
    whole = checkpoint.load(newest)
    for name in NAMES:
        weights = weights_of(folder / "runs" / name)
        assert same_weights(weights, whole[f"party-{name}"]["module"]), name
        assert any(bool(value.any()) for value in weights.values()), name
    apart, together = (opened(folder / "runs" / run / "summary.json") for run in ("clinic", "whole"))
    assert apart["metric"] == "d2"
    for figure in ("test_metric", "test_loss", "steps", "epochs"):
        assert apart[figure] == together[figure]
    for own in (apart["own_model"], together["own_model"]):
        assert own["metric"] == "d2"
        assert own["model"] in ("poisson regression", "gradient boosting")
        assert own["joint"] == pytest.approx(apart["test_metric"], abs=1e-9)


def test_unequal_losses_are_refused_with_words(folder: Path, checkout: Path) -> None:
    text = (folder / "run.yaml").read_text()
    (folder / "other.yaml").write_text(text.replace("loss: poisson", "loss: normal, dispersion: 2"))
    parties = {name: start_party(checkout, folder, "run.yaml", name) for name in ("clinic", "shop")}
    parties["lab"] = start_party(checkout, folder, "other.yaml", "lab")

    said = {}
    for name, process in parties.items():
        _, said[name] = process.communicate(timeout=120)
        assert process.returncode != 0, name

    together = said["clinic"] + said["lab"]
    assert "do not agree" in together
    assert "dispersion of the loss: " in together
    assert "loss of the model: " in together
    for loss in ("poisson", "normal"):
        assert loss in together
    assert not list(folder.glob("runs/*/checkpoints/*"))  # not a step was taken
