"""One party's file of a networked run, and the folders of runs: what ``splitvfl audit`` makes of each."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from splitvfl.app.audit_input import read_input
from splitvfl.app.deployment import run_party
from splitvfl.app.party_auditing import audit_party
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.errors import ConfigError, PrivacyError
from tests.run.parties import neighbouring_ports

NOISE = "exchange: {name: split, noise: {epsilon: 4.0, delta: 0.001, radius: 1.0}}"
HDP = f"""
model: {{name: logistic-regression, row_norm: 1.0}}
train: {{epochs: 1, batch_size: all, optimizer: {{name: sgd, lr: 0.1}}}}
{NOISE}
"""
PLAIN = "\nmodel: logistic-regression\ntrain: {epochs: 3, batch_size: 16}\n"

BANK = """
data: {name: table, path: bank.csv, id_column: customer, label: default, ranges: ranges.csv}
parties:
  bank: {role: active, columns: rest}
  shop: {role: passive, address: "127.0.0.1:PORT"}
network: {plaintext_on_loopback: true}
"""
SHOP = """
data: {name: table, path: shop.csv, id_column: customer, ranges: ranges.csv}
parties:
  bank: {role: active}
  shop: {role: passive, columns: rest}
network: {plaintext_on_loopback: true, listen: "127.0.0.1:PORT"}
"""
ADD = "defenses: [{name: laplace-residue, epsilon: 1.0}]\n"
ROWS = "defenses: [{name: gaussian-ir, clip: 1.0, sigma: 2.0}]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    people = pd.DataFrame({"customer": range(80), "default": np.arange(80) % 2})
    people.assign(income=random.normal(size=80)).to_csv("bank.csv", index=False)
    people[["customer"]].assign(spent=random.normal(size=80)).to_csv("shop.csv", index=False)
    Path("ranges.csv").write_text("column,lower,upper\nincome,-3,3\nspent,-3,3\n")
    port = str(neighbouring_ports(1))
    for name, own in (("bank", BANK + ADD + PLAIN), ("shop", SHOP + ROWS + PLAIN),
                      ("bank-noise", BANK + HDP), ("shop-noise", SHOP + HDP)):  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(own.replace("PORT", port))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "own", "claims", "other", "unasked"),
    [("bank", "laplace-residue", 2, "shop", "Columns: "), ("shop", "gaussian-ir", 1, "bank", "Labels: ")],
)
def test_a_partys_own_hooks_are_audited_and_the_others_are_named(
    here: Path, name: str, own: str, claims: int, other: str, unasked: str
) -> None:
    found = audit_party(load_config(f"{name}.yaml"), name, draws=400)
    assert [(each.defense, each.verdict) for each in found.defenses] == [(own, "proven")]
    assert len([claim for claim in found.claims if claim.measured is not None]) == claims
    assert found.party == name
    assert found.passes
    (line,) = [gap for gap in found.gaps if gap.startswith(f"{other}: ")]
    assert f"--as {other}" in line
    # Who protects what: nobody misses what is the other's to protect.
    assert not any(gap.startswith(unasked) for gap in found.gaps)
    assert any("whole run" in gap for gap in found.gaps)


@pytest.mark.parametrize("columns", [["customer", "default", "income"], ["customer", "default"]])
def test_a_label_owner_is_told_that_early_stopping_voids_its_guarantee_without_columns_too(
    here: Path, columns: list[str]
) -> None:
    pd.read_csv("bank.csv")[columns].to_csv("own.csv", index=False)
    flips = ["data.path=own.csv", "data.ranges=null", "defenses=[{name: randomised-response, epsilon: 1.0}]"]
    kept, void = (
        audit_party(load_config("bank.yaml", [*flips, *more]), "bank", draws=400).defenses[0].claims[0]
        for more in ([], ["train.early_stopping={patience: 1}"])
    )
    assert kept.verdict == "proven"
    assert void.verdict == "not covered"
    assert void.why[0].endswith("does not apply: early stopping is made from labels.")


WEIGHTED = """
import torch
from torch.nn import functional
from splitvfl.learning.losses import Logistic

class Weighted(Logistic):
    name = "weighted"

    def __call__(self, outputs, targets, /):
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, pos_weight=torch.tensor(10.0))
"""


@pytest.mark.parametrize("columns", [["customer", "default", "income"], ["customer", "default"]])
def test_a_label_owner_is_told_that_weights_of_classes_void_its_guarantee(here: Path, columns: list[str]) -> None:
    Path("weighing.py").write_text(WEIGHTED)
    pd.read_csv("bank.csv")[columns].to_csv("own.csv", index=False)
    more = ["data.ranges=null", "train.loss=weighing:Weighted", "defenses=[{name: randomised-response, epsilon: 1.0}]"]
    claim = audit_party(load_config("bank.yaml", ["data.path=own.csv", *more]), "bank", draws=400).defenses[0].claims[0]
    assert claim.verdict == "not covered"
    assert claim.why[0].endswith("does not apply: class weights is made from labels.")


def test_of_calculated_noise_a_passive_party_audits_its_own(here: Path) -> None:
    (plan,) = audit_party(load_config("shop-noise.yaml"), "shop", draws=400).defenses
    (claim,) = plan.claims
    assert claim.claim.startswith("All that a passive party sends")
    # The ranges of columns are public here, so that evaluations in the clear are all that is not covered.
    assert claim.verdict == "not covered"
    assert "evaluation" in claim.why[0]
    assert [line for line in claim.why if line.startswith("Tried: ")] == [claim.why[1]]
    assert len(claim.why) == 3


def test_of_calculated_noise_a_label_party_audits_its_own(here: Path) -> None:
    (plan,) = audit_party(load_config("bank-noise.yaml"), "bank", draws=400).defenses
    (claim,) = plan.claims
    assert claim.claim.startswith("All that the label party sends")
    assert claim.verdict == "proven"  # evaluations are what passive parties send


def test_evaluations_with_noise_of_their_own_are_part_of_the_claim(here: Path) -> None:
    changes = ["exchange.noise.evaluation_share=0.25"]
    config = load_config("shop-noise.yaml", changes)
    (plan,) = audit_party(config, "shop", draws=400).defenses
    (claim,) = plan.claims
    assert claim.verdict == "proven"
    assert claim.calculated is not None
    # By Balle and Wang's formula the δ of training and evaluations is what is claimed; that of training alone, with
    # three quarters of μ², is far less.
    assert claim.calculated.value == pytest.approx(1e-3, rel=1e-3)
    alone = math.sqrt(0.75) * brentq(lambda mu: _delta(mu, 4.0) - 1e-3, 0.1, 10.0)
    assert _delta(alone, 4.0) < 2e-4


def _delta(mu: float, epsilon: float) -> float:
    upper, lower = norm.cdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
    return float(upper - math.exp(epsilon) * lower)


def test_in_a_shared_file_the_hooks_of_others_are_theirs(here: Path) -> None:
    text = (here / "bank.yaml").read_text().replace("{role: passive,", "{role: passive, columns: rest,")
    both = text.replace(ADD, "").replace("columns: rest}", "columns: [income]}")
    (here / "both.yaml").write_text(f"{both}{ADD.rstrip()[:-1]}, {{name: gaussian-ir, clip: 1.0, sigma: 2.0}}]\n")
    found = audit_party(load_config("both.yaml"), "bank", draws=400)
    assert [each.defense for each in found.defenses] == ["laplace-residue"]
    assert any("gaussian-ir(clip=1.0, sigma=2.0)" in gap for gap in found.gaps if gap.startswith("shop: "))


def test_the_labels_of_a_party_without_columns_are_audited(here: Path) -> None:
    pd.read_csv("bank.csv").drop(columns="income").to_csv("bank.csv", index=False)
    found = audit_party(load_config("bank.yaml"), "bank", draws=400)
    assert found.defenses[0].verdict == "proven"
    assert any("no model to attach them at" in gap for gap in found.gaps)


def test_a_seed_that_partners_know_is_no_pass(here: Path) -> None:
    found = audit_party(load_config("bank.yaml", ["train.noise_seed_for_experiments=1"]), "bank", draws=400)
    assert found.defenses[0].verdict == "not covered"
    with pytest.raises(ConfigError, match="noise_seed_for_experiments"):
        audit_party(load_config("bank-noise.yaml", ["train.noise_seed_for_experiments=1"]), "bank", draws=400)


def test_what_a_run_refuses_is_refused(here: Path) -> None:
    with pytest.raises(PrivacyError, match="activation_clip"):
        audit_party(load_config("shop.yaml", ["exchange.activation_clip=0.5"]), "shop", draws=400)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bank.yaml"], "--as: bank.yaml describes the columns of one party"),
        (["shop.yaml"], "--as bank or shop"),
        (["shop.yaml", "--as", "lab"], "there is no 'lab'; there are bank, shop"),
        (["bank.yaml", "--as", "active", "--canaries", "30"], "bank has only its own features"),
        (["bank.yaml", "--as", "bank", "--draws", "10"], "at least 400"),
        (["."], "there is no experiment.yaml in it"),
        (["bank.yaml", "--as", "coordinator", "exchange=coordinator"], "has a key and no data"),
    ],
)  # fmt: skip
def test_what_cannot_be_audited_so_says_why(
    here: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (here / "audit.json").exists()


def test_the_folder_of_a_partys_run_says_whose_it_is(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = {name: load_config(f"{name}.yaml", ["train.epochs=1"]) for name in ("bank", "shop")}
    other = threading.Thread(target=run_party, args=(configs["shop"], "shop", here / "runs" / "shop"))
    other.start()
    run_party(configs["bank"], "bank", here / "runs" / "bank")
    other.join()
    for name, defense in (("bank", "laplace-residue"), ("shop", "gaussian-ir")):
        assert main(["audit", f"runs/{name}", "--draws", "400", "--seeds", "0"]) == 0
        said = json.loads((here / "runs" / name / "audit.json").read_text())
        assert (said["party"], [each["defense"] for each in said["defenses"]]) == (name, [defense])
    assert not (here / "audit.json").exists()
    assert read_input(Path("runs/bank"), "active").party == "bank"
    with pytest.raises(ConfigError, match="runs/bank is the folder of bank's run, got shop"):
        read_input(Path("runs/bank"), "shop")


def test_no_code_is_taken_from_the_folder_of_a_run(here: Path) -> None:
    own = "from splitvfl.defenses import LaplaceResidue\n\n\nclass Own(LaplaceResidue):\n    name = 'own'\n"
    (here / "run").mkdir()
    asked = (here / "bank.yaml").read_text().replace("laplace-residue", "'mine:Own'")
    (here / "run" / "experiment.yaml").write_text(asked.replace("bank.csv", str(here / "bank.csv")))
    (here / "run" / "mine.py").write_text("raise SystemError('executed')\n")
    with pytest.raises(ConfigError, match="run"):
        read_input(Path("run"), "bank")
    (here / "run" / "mine.py").unlink()
    (here / "mine.py").write_text(own)
    assert read_input(Path("run"), "bank").party == "bank"
