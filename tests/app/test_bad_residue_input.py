"""Wrong input around noise on residues, secret batches and the attacks on them: each time an error names the rule.

As a user types it: at the command line it is one line or a few, never a traceback, and nothing was sent.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.attacks import additive_noise_llr, recover_labels, sparse_residues
from splitvfl.cli import main
from splitvfl.cut.split_model import SplitModel
from splitvfl.defenses import LaplaceResidue, MultiplicativeLaplaceResidue
from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.selection import KEY_BYTES, SecretBatch
from splitvfl.models import LinearTop
from splitvfl.privacy import choose_multiplicative_bounds

FILE = """
data: {data}
parties:
  clinic: {{role: active, columns: ["mean *"]}}
  lab: {{role: passive, columns: rest}}
model: {model}
exchange: {exchange}
train: {{epochs: 2, batch_size: {batch}, optimizer: {{name: sgd, lr: 0.1}}}}
defenses: [{defense}]
attacks: [{attack}]
audit: false
"""
LAPLACE = "{name: laplace-residue, epsilon: 1.0}"


def laplace(epsilon: str) -> dict[str, Any]:
    return {"defense": f"{{name: laplace-residue, epsilon: {epsilon}}}"}


def multiplicative(epsilon: str = "5", b1: str = "0.5", b2: str = "1", mode: str = "centred_at_one") -> dict[str, Any]:
    named = f"epsilon: {epsilon}, b1: {b1}, b2: {b2}, mode: {mode}"
    return {"defense": f"{{name: multiplicative-laplace-residue, {named}}}"}


def hybrid(epsilon: str = "1", share: str = "0.3", batch: int = 200, **more: Any) -> dict[str, Any]:
    return {"exchange": f"{{name: hybrid, epsilon: {epsilon}, share: {share}}}", "batch": batch, **more}


def table(name: str, more: str = "") -> dict[str, Any]:
    data = f"{{name: table, path: {name}.csv, label: y, id_column: id{more}}}"
    return {"data": data, "batch": 20, "defense": LAPLACE}


IN_A_FILE: dict[str, tuple[dict[str, Any], str]] = {
    "epsilon zero": (laplace("0"), "defenses.0: laplace-residue: epsilon must be positive and finite"),
    "epsilon negative": (laplace("-1"), "epsilon must be positive and finite, from 1e-06 to 1e+06, got -1.0"),
    "epsilon infinite": (laplace(".inf"), "epsilon must be positive and finite"),
    "epsilon NaN": (laplace(".nan"), "epsilon must be positive and finite"),
    "epsilon text": (laplace("much"), "defenses.0.epsilon: expected a number, got 'much'"),
    "epsilon missing": ({"defense": "laplace-residue"}, "defenses.0.epsilon: required"),
    "nominal epsilon infinite": (multiplicative(epsilon=".inf"), "epsilon must be positive and finite"),
    "b1 zero": (multiplicative(b1="0"), "b1 must be above 0, from 1e-06 to 1, the largest residue, got 0"),
    "b1 above one": (multiplicative(b1="1.1"), "b1 must be above 0, from 1e-06 to 1, the largest residue, got 1.1"),
    "b2 zero": (multiplicative(b2="0"), "b2 must be above 0"),
    "b2 negative": (multiplicative(b2="-1"), "b2 must be above 0"),
    "mode": (multiplicative(mode="printed"), "expected 'as_printed', 'sign_preserving' or 'centred_at_one'"),
    "noise alone": (multiplicative(b1="1", mode="as_printed"), "sends noise alone, of no residue at all"),
    "q zero": (hybrid(share="0"), "exchange.share: expected a number above 0"),
    "q one half": (hybrid(share="0.5"), "exchange.share: expected a number below 0.5"),
    "q NaN": (hybrid(share=".nan"), "exchange.share: expected a finite number"),
    "p one half": (hybrid(epsilon="0"), "exchange.epsilon: expected a number above 0"),
    "p one": (hybrid(epsilon="40"), "exchange.epsilon: expected at most 36"),
    "S beyond the data": (hybrid(batch=10_000), "train.batch_size: expected 1 to 440, the number of training records"),
    "S at most d": (hybrid(batch=20), "train.batch_size is 20, and more than 21 are needed"),
    "no feasible draw": (hybrid("30", "0.05"), "a draw counts with a probability of 0"),
    "k zero": (hybrid(share="0.001"), "no record at all, so that none would be used (k = 0)"),
    "limit, additive": (
        {"exchange": "residue"} | laplace("0.1"),
        "value_limit is 16, and laplace-residue sends",
    ),
    "limit, multiplicative": ({"exchange": "residue"} | multiplicative(b2="100"), "agree on value_limit: 128"),
    "limit, hybrid": (hybrid(batch=300) | laplace("0.1"), "value_limit is 16, and laplace-residue sends"),
    "wider cut": ({"model": "{name: mlp, bottom: [4]}"} | laplace("1"), "laplace-residue is for residues"),
    "one class": (table("one"), "is 0 in every row; a binary task needs both classes"),
    "one class, hybrid": (table("one") | hybrid(batch=40), "a binary task needs both classes"),
    "-1 and +1": (table("signs"), "holds -1, 1; a binary task needs 0 and 1, or data.positive: 1"),
    "-1 and +1 as text": (table("signs", ', positive: "1"'), "that is text, and the column holds a number"),
    "three classes": (table("three", ", task: multiclass"), "needs binary labels, the task is multiclass"),
    "amounts": (table("amounts", ", task: regression"), "needs binary labels, the task is regression"),
    "infinite column": (table("infinite"), "column 'c' of infinite.csv is infinite in 1 rows"),
    "attack without epsilon": ({"attack": "additive-llr"}, "attacks.0.epsilon: required"),
    "attack with epsilon zero": ({"attack": "{name: additive-llr, epsilon: 0}"}, "epsilon must be finite and above 0"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found, rng = tmp_path_factory.mktemp("tables"), random.Random(1)
    labels: dict[str, Callable[[], object]] = {
        "one": lambda: 0,
        "signs": lambda: rng.choice([-1, 1]),
        "three": lambda: rng.randrange(3),
        "amounts": lambda: round(rng.gauss(0, 1), 2),
        "infinite": lambda: rng.randrange(2),
    }
    for name, label in labels.items():
        with (found / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "mean a", "mean b", "c", "d", "y"])
            for number in range(80):
                cells = [round(rng.gauss(0, 1), 3) for _ in range(4)]
                spoiled = [*cells[:2], "inf", cells[3]] if name == "infinite" and number == 3 else cells
                writer.writerow([number, *spoiled, label()])
    return found


@pytest.mark.parametrize("case", IN_A_FILE)
def test_the_command_line_names_the_rule(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, rule = IN_A_FILE[case]
    usual = {"data": "breast-cancer", "model": "logistic-regression", "exchange": "split", "batch": 64}
    monkeypatch.chdir(folder)
    Path("wrong.yaml").write_text(FILE.format(**(usual | {"defense": "", "attack": ""} | settings)))

    code = main(["train", "wrong.yaml", "--out", "run"])

    said = " ".join(capsys.readouterr().err.split())
    assert code == 2, said
    assert rule in said
    assert "Traceback" not in said
    assert not Path("run", "metrics.jsonl").exists()


# --- from Python

D = torch.float64
HALF = torch.full((2, 3), 0.5, dtype=D)
EYE = torch.eye(3, dtype=D)


IN_PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "epsilon zero": (lambda: LaplaceResidue(epsilon=0.0), "epsilon must be positive and finite"),
    "epsilon text": (lambda: LaplaceResidue(epsilon="1"), "epsilon must be a number, got '1'"),  # type: ignore[arg-type]
    "epsilon None": (lambda: LaplaceResidue(epsilon=None), "epsilon must be a number"),  # type: ignore[arg-type]
    "epsilon true": (lambda: LaplaceResidue(epsilon=True), "epsilon must be a number"),
    "b1 text": (lambda: MultiplicativeLaplaceResidue(epsilon=1.0, b1="a", b2=1.0), "b1 must be a number"),  # type: ignore[arg-type]
    "mode None": (
        lambda: MultiplicativeLaplaceResidue(epsilon=1.0, b1=0.5, b2=1.0, mode=None),  # type: ignore[arg-type]
        "mode must be one of as_printed",
    ),
    "no true epsilon": (lambda: choose_multiplicative_bounds(0.0), "epsilon must be finite and above 0"),
    "q": (lambda: SecretBatch(1.0, 0.5), "expected share, q, above 0 and below ½"),
    "p": (lambda: SecretBatch(math.nan, 0.3), "must be above ½ and below 1"),
    "p text": (lambda: SecretBatch("1", 0.3), "epsilon must be a number"),  # type: ignore[arg-type]
    "k zero": (lambda: Hybrid(rows=5, epsilon=1.0, share=0.01), r"none would be used \(k = 0\)"),
    "predictions of another shape": (lambda: additive_noise_llr(HALF, HALF.T, 1.0), "of one shape"),
    "predictions of one dimension": (lambda: additive_noise_llr(HALF[0], HALF[0], 1.0), "of one shape"),
    "predictions that are none": (lambda: additive_noise_llr(HALF, 3 * HALF, 1.0), r"expected predictions in \[0, 1\]"),
    "noisy NaN": (lambda: additive_noise_llr(HALF * math.nan, HALF, 1.0), "noisy holds NaN or infinite"),
    "no records": (lambda: sparse_residues(HALF[:0], HALF[0]), r"expected features \(s, d\)"),
    "no equations": (lambda: sparse_residues(HALF[:, :0], HALF[0, :0]), r"expected features \(s, d\)"),
    "rows of zeros": (lambda: sparse_residues(0 * EYE, EYE[0]), "every row of the features is zero"),
    "contradicting equations": (
        lambda: sparse_residues(torch.ones(4, 2, dtype=D), torch.tensor([1.0, 2.0], dtype=D)),
        "its columns contradict each other",
    ),
    "beyond the bound": (lambda: sparse_residues(EYE, 5 * EYE[0]), "no residues of size at most 1 give this sum"),
    "infinite sum": (lambda: sparse_residues(EYE, math.inf * EYE[0]), "gradient holds NaN or infinite"),
    "labels of no record": (lambda: recover_labels(HALF[:0], HALF[0]), r"expected features \(s, d\)"),
}


@pytest.mark.parametrize("case", IN_PYTHON)
def test_python_names_the_rule(case: str) -> None:
    call, rule = IN_PYTHON[case]
    with pytest.raises(ArgumentError, match=rule):
        call()


def test_a_batch_for_which_nothing_can_be_drawn_is_not_sent() -> None:
    with pytest.raises(PrivacyError, match=r"none of 128 draws .* nothing was sent"):
        SecretBatch(1.0, 0.3).draw(bytes(KEY_BYTES), 0, 10, [9])


NOISE = {
    "additive": lambda: LaplaceResidue(epsilon=1.0),
    "multiplicative": lambda: MultiplicativeLaplaceResidue(epsilon=5.0, b1=0.5, b2=1.0),
}


def step(defense: Any, labels: Tensor, *, scale: float = 1.0) -> Tensor | None:
    """Take one step of a loop of one's own, and return the gradient of the passive party's weights."""
    bottom = nn.Linear(3, 1, bias=False)
    model = SplitModel(bottom, LinearTop(1))
    model.cut.defend(defense)
    outputs = model(torch.ones(4, 3), labels=labels, ids=torch.arange(4))
    try:
        (scale * nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels)).backward()
    except PrivacyError:
        assert bottom.weight.grad is None
        raise
    return bottom.weight.grad


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("labels", [[-1.0, 1.0, -1.0, 1.0], [0.0, 2.0, 1.0, 1.0], [0.2, 0.0, 1.0, 1.0]])
def test_labels_that_would_break_the_claim_stop_the_step_before_anything_is_sent(
    noise: str, labels: list[float]
) -> None:
    with pytest.raises(PrivacyError, match=r"labels must be 0 and 1, got .* nothing was sent"):
        step(NOISE[noise](), torch.tensor(labels))


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_residues_that_are_no_numbers_stop_the_step_before_anything_is_sent(noise: str, scale: float) -> None:
    with pytest.raises(PrivacyError, match="residues are NaN or infinite, which no noise covers, so nothing was sent"):
        step(NOISE[noise](), torch.tensor([0.0, 1.0, 0.0, 1.0]), scale=scale)


@pytest.mark.parametrize("noise", NOISE)
def test_a_batch_of_one_class_is_a_batch_like_any_other(noise: str) -> None:
    assert step(NOISE[noise](), torch.zeros(4)) is not None
