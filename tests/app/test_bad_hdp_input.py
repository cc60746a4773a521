"""What noise for a linear model's training refuses, rule by rule: in a file, by a check of it, and from Python.

A message says what was expected, what came, and where; nothing is trained, and there is no traceback.
"""

from __future__ import annotations

import csv
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import splitvfl
from splitvfl.cli import main
from splitvfl.defenses import CoefficientNoise, GaussianIR
from splitvfl.errors import ArgumentError, DataError, PrivacyError, SplitVFLError
from splitvfl.learning.batches import Batches
from splitvfl.learning.glm_losses import GammaLoss, PoissonLoss
from splitvfl.privacy import (
    GaussianMessages,
    HdpTraining,
    PrivacyBudget,
    classic_gaussian_sigma,
    dp_paillier_sigma,
    gaussian_delta,
    gaussian_sigma,
    hdp_sensitivity,
    tight_hdp_sensitivity,
)
from splitvfl.privacy.statement import claim_warnings
from tests.rows import every

FILE = """
data: {data}
parties:
  clinic: {{role: active, columns: [a, b], address: "127.0.0.1:7000"}}
  lab: {{role: passive, columns: rest}}
model: {model}
exchange: {exchange}
train: {{epochs: 2, batch_size: {batch}, optimizer: {optimizer}{train}}}
audit: false
{more}
"""
NETWORK = 'network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}'
TABLES: dict[str, Callable[[int], object]] = {
    "binary": lambda row: row % 2,
    "counts": lambda row: row % 4,
    "amounts": lambda row: 0.5 * (row % 7) - 1,
    "negative": lambda row: row % 3 - 1,
    "halves": lambda row: row % 3 + 0.5,
    "positive": lambda row: row % 3 + 1,
    "one": lambda row: 0,
    "nan": lambda row: row % 2,
    "infinite": lambda row: row % 2,
    "twice": lambda row: row % 2,
    "empty": lambda row: row % 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found, rng = tmp_path_factory.mktemp("tables"), random.Random(1)
    for name, label in TABLES.items():
        with (found / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "a", "b", "c", "d", "y"])
            for row in range(0 if name == "empty" else 80):
                cells: list[object] = [round(rng.gauss(0, 1), 3) for _ in range(4)]
                if row == 3 and name in ("nan", "infinite"):
                    cells[2] = {"nan": "nan", "infinite": "inf"}[name]
                writer.writerow([0 if name == "twice" and row == 1 else row, *cells, label(row)])
    return found


def table(name: str, task: str = "binary") -> str:
    return f"{{name: table, path: {name}.csv, label: y, id_column: id, task: {task}}}"


def glm(loss: str, data: str, more: str = "", **settings: str) -> dict[str, str]:
    task = "binary" if data == "binary" else "regression"
    return {"data": table(data, task), "model": f"{{name: glm, loss: {loss}, row_norm: 1.0{more}}}", **settings}


def noise(**settings: str) -> dict[str, str]:
    given = {"epsilon": "1.0", "delta": "0.001"} | settings
    return {"exchange": f"{{name: split, noise: {{{', '.join(f'{key}: {value}' for key, value in given.items())}}}}}"}


def steps(optimizer: str) -> dict[str, str]:
    return {"optimizer": optimizer}


GENTLE = steps("{name: sgd, lr: 0.001}")
IN_A_FILE: dict[str, tuple[dict[str, str], str]] = {
    # Losses whose constants are unbounded.
    "Poisson": (glm("poisson", "counts"), "model: the poisson loss has no bounds here .*; set target_clip"),
    "Gamma": (
        glm("gamma", "positive"),
        "model: the gamma loss has no bounds here .*; set logit_margin and target_clip",
    ),
    "Gamma, labels bounded": (
        glm("gamma", "positive", ", target_clip: 3"),
        "model: the gamma loss .*; set logit_margin",
    ),
    "least squares": (
        glm("least-squares", "amounts"),
        "model: the least-squares loss has no bounds .* set target_clip",
    ),
    # Labels outside a loss's domain.
    "Poisson of negatives": (
        glm("poisson", "negative", ", target_clip: 3", **GENTLE),
        r"the poisson loss takes .*, got -1 .* and 21 more such among the 65 training records of clinic: first in "
        r"that of id \d+",
    ),
    "Poisson of fractions": (glm("poisson", "halves", ", target_clip: 3", **GENTLE), "poisson loss takes .*, got .*5 "),
    "Gamma of zero": (
        glm("gamma", "counts", ", target_clip: 3, logit_margin: 0.5", **GENTLE),
        "the gamma loss takes .*, got 0 ",
    ),
    "logistic of amounts": (glm("logistic", "amounts"), "model.loss: the logistic loss takes 0 and 1, and this is a"),
    "least squares of classes": (glm("least-squares", "binary", ", target_clip: 2"), "loss takes numbers, and this is"),
    "Gamma of logits above 0": (
        glm("gamma", "positive", ", init: normal", exchange="split"),
        r"the gamma loss needs logits below 0.*, up to .*: begin with init: zero",
    ),
    "Gamma without an intercept": (
        glm("gamma", "positive", ", intercept: false"),
        "model: loss gamma needs an intercept",
    ),
    # Steps.
    "eta": (steps("{name: sgd, lr: 9}"), r"train.optimizer.lr: expected a learning rate of at most 4, got 9"),
    "eta with decay": (steps("{name: sgd, lr: 3, weight_decay: 0.1}"), "of at most 2.85714, got 3"),
    "eta zero": (steps("{name: sgd, lr: 0}"), "train.optimizer.lr: expected a number above 0"),
    "eta NaN": (steps("{name: sgd, lr: .nan}"), "train.optimizer.lr: expected a finite number"),
    "momentum": (steps("{name: sgd, lr: 0.1, momentum: 0.9}"), "train.optimizer: .* take sgd without momentum"),
    "Adam": (steps("adam"), "train.optimizer: .* take sgd without momentum, or proximal-sgd"),
    "two layers": ({"model": "{name: mlp, bottom: [4]}"}, "model: .* one linear layer at every party; take logistic"),
    "tables": ({"model": "wide-deep"}, "model: exchange.noise is calculated for one linear layer"),
    "private top": (
        {"model": "{name: logistic-regression, row_norm: 1.0, private_top: true}"},
        "model.private_top: .* one linear layer",
    ),
    "early stopping": ({"train": ", early_stopping: {}"}, "train.early_stopping: .* leave it out"),
    # Records.
    "a record twice": ({"data": table("twice")}, "id '0' is there already in twice.csv, row 0 .* take all but"),
    "rows of any norm": (
        {"model": "logistic-regression"},
        "model.row_norm: .* with row_norm: 1.0 longer rows are scaled",
    ),
    "norm zero": ({"model": "{name: logistic-regression, row_norm: 0}"}, "model.row_norm: expected a number above 0"),
    "batch beyond the data": (
        {"batch": "3200"},
        "train.batch_size: expected 1 to 65, the number of training records, got 3200; .* batch_size: all",
    ),
    "batch zero": ({"batch": "0"}, "train.batch_size: expected at least 1, got 0"),
    "NaN": ({"data": table("nan")}, r"column 'c' of nan.csv has no value in 1 of 80 rows, first in row 3 .* indicator"),
    "infinite": (
        {"data": table("infinite")},
        "column 'c' of infinite.csv is infinite .* row 3 .* write a finite number",
    ),
    "empty": ({"data": table("empty")}, "empty.csv has a header and no rows"),
    "one class": ({"data": table("one")}, "label column 'y' of one.csv is 0 in every row; a binary task needs both"),
    "undersized key": (
        {"exchange": "{name: residue, encryption: {key_bits: 64}}", "model": "logistic-regression"},
        "exchange.encryption.key_bits: expected at least",
    ),
    # Budgets.
    "no step fits": (
        noise(active_sigma="0.001", passive_sigma="0.001"),
        "exchange.noise: no step fits: .* ε 1 at δ 0.001; take larger active_sigma and passive_sigma",
    ),
    "one noise of two": (noise(active_sigma="1"), "active_sigma and passive_sigma go together"),
    "sigma zero": (noise(active_sigma="0", passive_sigma="1"), "exchange.noise.active_sigma: expected at least"),
    "delta one": (noise(delta="1"), "exchange.noise.delta: expected a number below 1.*, got 1"),
    "delta above one": (noise(delta="2"), "exchange.noise.delta: expected a number below 1.*, got 2"),
    "delta zero": (noise(delta="0"), "exchange.noise.delta: expected at least .*, got 0"),
    "epsilon zero": (noise(epsilon="0"), "exchange.noise.epsilon: expected at least .*, got 0"),
    "epsilon negative": (noise(epsilon="-1"), "exchange.noise.epsilon: expected at least .*, got -1"),
    "epsilon NaN": (noise(epsilon=".nan"), "exchange.noise.epsilon: expected a finite number"),
    "k zero": (noise(radius="0"), "exchange.noise.radius: expected at least .*, got 0"),
    "k infinite": (noise(radius=".inf"), "exchange.noise.radius: expected a finite number"),
    "rounding alone spends it": (noise(epsilon="1e-9", delta="1e-9"), "exchange.noise: rounding .* take a larger"),
}


def said(
    command: list[str], settings: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    usual = {
        "data": table("binary"),
        "model": "{name: logistic-regression, row_norm: 1.0}",
        "batch": "16",
        "optimizer": "{name: sgd, lr: 0.1}",
        "train": "",
        "more": "",
    }
    (folder / "wrong.yaml").write_text(FILE.format(**(usual | noise() | settings)))
    code = main([command[0], "wrong.yaml", *command[1:]])
    captured = capsys.readouterr()
    return code, " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize("case", IN_A_FILE)
def test_a_run_is_refused_and_a_check_says_why(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    settings, rule = IN_A_FILE[case]
    run = f"run {case}"
    for command in (["check", "--out", run], ["train", "--out", run]):
        code, told = said(command, settings, folder, capsys)
        assert code == 2, told
        assert re.search(rule, told), told
        assert "Traceback" not in told
    # What a check computes with first weights, training finds in its first step.
    assert not (folder / run / "metrics.jsonl").exists() or case == "Gamma of logits above 0"


def test_what_holds_is_accepted_by_check(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usual settings, from which each case differs in one; and each largest rate that a message names."""
    monkeypatch.chdir(folder)
    assert said(["check", "--out", "run"], {}, folder, capsys)[0] == 0
    for settings in (
        steps("{name: sgd, lr: 9, weight_decay: 0.013}"),
        glm("poisson", "counts", ", target_clip: 3", **steps("{name: sgd, lr: 1}")),
    ):
        _, told = said(["check", "--out", "run"], settings, folder, capsys)
        found = re.search(r"of at most ([\d.e-]+), got", told)
        assert found is not None
        rate = settings["optimizer"].replace("lr: 9", f"lr: {found[1]}").replace("lr: 1}", f"lr: {found[1]}}}")
        code, told = said(["check", "--out", "run"], settings | steps(rate), folder, capsys)
        assert code == 0, told


def test_a_delta_above_one_over_n_is_warned_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for delta, warned in (("0.016", True), ("0.015", False)):  # 1/64 is .015625
        code, told = said(["check", "--out", "run"], noise(delta=delta), folder, capsys)
        assert code == 0
        assert (f"δ {delta} is not below one over the 65 training records" in told) == warned


def test_rows_above_the_norm_are_scaled_down_to_it(folder: Path) -> None:
    """By the party itself, before anything is computed from them: a longer row reaches no model."""
    data = splitvfl.load(
        "table", path=folder / "binary.csv", label="y", id_column="id", active=["a", "b"], passive={"lab": "rest"}
    )
    for party in (data.active, data["lab"]):
        longest = torch.linalg.vector_norm(party.train.columns.numeric.double(), dim=1).max()
        assert longest > 1.5
        bounded = party.with_row_norm(1.0)
        for records in (bounded.train, bounded.test):
            numbers = records.rows(torch.arange(records.count)).columns.numeric.double()
            assert torch.linalg.vector_norm(numbers, dim=1).max() <= 1 + 1e-6


def test_a_deployed_party_checks_for_fixed_seeds_of_noise(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    settings = {"train": ", noise_seed_for_experiments: 5", "more": NETWORK}
    code, told = said(["check", "--as", "lab", "--out", "run"], settings, folder, capsys)
    assert code == 2
    assert (
        "train.noise_seed_for_experiments: whoever knows the seed takes the noise of exchange.noise off again" in told
    )
    assert said(["check", "--as", "lab", "--out", "run"], {"more": NETWORK}, folder, capsys)[0] == 0


# --- from Python


EACH = {"steps": 10, "epochs": 10, "batch_size": 455, "eta": 0.1, "k": 1.0, "lipschitz": 1.0}
OF_LABELS = {"beta_theta": 0.25, "beta_y": 0.5, "k_y": 1.0}
PAILLIER = {"epsilon": 0.5, "delta": 0.01, "G": 1.0, "epochs": 2, "steps": 10, "eta": 0.1, "batch_size": 10}
BAD: tuple[Any, ...] = (0, -1, math.nan, math.inf, "1", None, True)


@every(name=[*EACH, *OF_LABELS], sensitivity=[hdp_sensitivity, tight_hdp_sensitivity], value=BAD)
def test_every_argument_of_a_sensitivity_is_a_number_above_zero(sensitivity: Any, name: str, value: Any) -> None:
    if value is True and name in ("steps", "epochs", "batch_size"):
        value = False
    side, settings = ("passive", EACH) if name in EACH else ("active", EACH | OF_LABELS)
    with pytest.raises(ArgumentError, match=name):
        sensitivity(side, **(settings | {name: value}))


@every(
    name=["weight_decay", "proximal_l2", "row_norm", "step", "last_batch", "after"],
    value=[-1, math.nan, math.inf, "1", 0.5j],
)
def test_every_further_argument_of_the_recursion_is_checked(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        tight_hdp_sensitivity("passive", **EACH, **{name: value})  # type: ignore[arg-type]


@every(name=PAILLIER, value=BAD)
def test_every_argument_of_dp_paillier_is_checked(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        dp_paillier_sigma("A", **(PAILLIER | {name: value}))


@every(value=BAD, formula=[gaussian_sigma, classic_gaussian_sigma])
def test_every_argument_of_a_gaussian_is_checked(formula: Any, value: Any) -> None:
    with pytest.raises(ArgumentError, match="epsilon"):
        formula(value, 0.1, sensitivity=1.0)
    with pytest.raises(ArgumentError, match="delta"):
        formula(0.5, value, sensitivity=1.0)
    with pytest.raises(ArgumentError, match="sensitivity"):
        formula(0.5, 0.1, sensitivity=value)
    with pytest.raises(ArgumentError, match="sigma"):
        gaussian_delta(value, 1.0, sensitivity=1.0)


TRAINING = HdpTraining(party="passive", steps_per_epoch=1, batch_size=1, eta=0.1, k=1, lipschitz=1)


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_what_adds_noise_or_counts_it_takes_numbers_above_zero(value: Any) -> None:
    for make, name in (
        (lambda: GaussianIR(clip=1.0, sigma=value), "sigma"),
        (lambda: GaussianIR(clip=value, sigma=1.0), "clip"),
        (lambda: CoefficientNoise(clip=1.0, sigma=value), "sigma"),
        (lambda: CoefficientNoise(clip=value, sigma=1.0), "clip"),
        (lambda: GaussianMessages("lab", ("bank",), {"row": TRAINING}, value), "sigma"),
    ):
        with pytest.raises(ArgumentError, match=name):
            make()
    stream = GaussianMessages("lab", ("bank",), {"row": TRAINING}, 1.0)
    with pytest.raises(ArgumentError, match="delta"):
        PrivacyBudget([stream], 1, value)
    if value is not True:
        with pytest.raises(ArgumentError, match="steps"):
            PrivacyBudget([stream], value, 0.1)
    if value is not None:
        with pytest.raises(ArgumentError, match="epsilon"):
            PrivacyBudget([stream], 1, 0.1, epsilon=value)
    with pytest.raises(ArgumentError, match="delta"):
        claim_warnings(1.0, value)
    if value not in (0, math.inf):  # nothing is promised of an infinite one, and that can be said
        with pytest.raises(ArgumentError, match="epsilon"):
            claim_warnings(value, 0.1)


# Ids 5, 15 and 17 are tested, with both labels among them.
PEOPLE = pd.DataFrame({"id": range(20), "a": np.arange(20.0), "y": [0, 0, 1, 1] * 5})
CALLS = pd.DataFrame({"id": range(20), "b": np.arange(20.0)})
IN_PYTHON: dict[str, tuple[Callable[[], object], type[SplitVFLError], str]] = {
    "party": (lambda: hdp_sensitivity("third", **EACH), ArgumentError, "party must be 'passive' or 'active'"),  # type: ignore[arg-type]
    "eta": (
        lambda: tight_hdp_sensitivity("active", **(EACH | OF_LABELS | {"eta": 8.1})),  # type: ignore[arg-type]
        ArgumentError,
        "learning rate of at most 8, got 8.1",
    ),
    "eta, passive": (
        lambda: tight_hdp_sensitivity("passive", **(EACH | {"eta": 4.0}), weight_decay=0.3),  # type: ignore[arg-type]
        ArgumentError,
        "learning rate of at most 3.33333, got 4.0",
    ),
    "the textbook's from 1 on": (lambda: classic_gaussian_sigma(1.0, 0.1, sensitivity=1.0), SplitVFLError, "epsilon"),
    "Poisson without a bound": (
        lambda: PoissonLoss().bounded_constants(1.0, math.inf),
        PrivacyError,
        "set target_clip",
    ),
    "Gamma without a margin": (
        lambda: GammaLoss(target_clip=1.0).bounded_constants(1.0, 1.0),
        PrivacyError,
        "set logit_margin",
    ),
    "Gamma of logits from 0": (lambda: GammaLoss().inverse_link(torch.tensor([0.0])), SplitVFLError, "logits below 0"),
    "batch": (lambda: Batches(10, 11, seed=0), DataError, "batch size from 1 to the 10 records there are, got 11"),
    "NaN": (
        lambda: frames(calls=CALLS.assign(b=CALLS.b.replace(3.0, math.nan))),
        DataError,
        "'b' .* no value in 1 of 20 rows.* id 3",
    ),
    "infinite": (
        lambda: frames(calls=CALLS.assign(b=CALLS.b.replace(3.0, math.inf))),
        DataError,
        "'b' .* infinite .*row 3 is id 3",
    ),
    "no rows": (lambda: frames(calls=CALLS[:0]), DataError, "the table of lab has a header and no rows"),
    "no columns": (lambda: frames(calls=CALLS[["id"]]), SplitVFLError, "'lab' is left without a column"),
    "no record in common": (lambda: frames(calls=CALLS.assign(id=CALLS.id + 90)), DataError, "no id is in every table"),
    "a record twice": (lambda: frames(people=PEOPLE.assign(id=0)), DataError, "ids must differ: take all but one out"),
    "one class": (lambda: frames(people=PEOPLE.assign(y=1)), DataError, "is 1 in every row; a binary task needs both"),
    "one record of a class": (
        lambda: frames(
            people=PEOPLE.assign(id=PEOPLE.id + 40, y=[0] * 11 + [1] + [0] * 8), calls=CALLS.assign(id=CALLS.id + 40)
        ),
        DataError,
        "one record of the positive class, in row 11 .* needs 2 at least.*; row 11 is id 51",
    ),
    "a label missing": (
        lambda: frames(people=PEOPLE.assign(y=[math.nan, *PEOPLE.y[1:]])),
        DataError,
        "label column 'y' .* has no value in 1 rows, first in row 0",
    ),
}


def frames(people: pd.DataFrame = PEOPLE, calls: pd.DataFrame = CALLS) -> object:
    return splitvfl.from_tables(active=people, passive={"lab": calls}, label="y", id="id")


@pytest.mark.parametrize("case", IN_PYTHON)
def test_python_names_the_rule(case: str) -> None:
    call, kind, rule = IN_PYTHON[case]
    with pytest.raises(kind, match=rule):
        call()


def test_parties_of_other_sizes_are_told_of_who_is_left_out() -> None:
    with pytest.warns(UserWarning, match="13 of the 20 records of active are left out, as only 7 are in every table"):
        frames(calls=CALLS[3:17:2])
