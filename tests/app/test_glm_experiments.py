"""Generalised linear models beyond training: saved runs, students, forecasts, estimators, and hooks that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import d2_tweedie_score

from splitvfl import load_run
from splitvfl.app.distillation import distill
from splitvfl.app.forecasting import forecast
from splitvfl.app.trainer import Trainer
from splitvfl.attacks import LeastSquaresAttack
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.defenses import (
    GaussianTargets,
    LaplaceResidue,
    MemoisedResponse,
    Rounding,
    ScoreNoise,
    TopOne,
)
from splitvfl.errors import ArgumentError, ConfigError, DataError, PrivacyError
from splitvfl.hooks import Secrets
from splitvfl.learning.tasks import task_for
from splitvfl.models import GLMRecipe, glm_loss
from splitvfl.party.attaching import attach_defense
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.report.summary import read_summary
from splitvfl.run import student
from splitvfl.sklearn import SplitClassifier, SplitRegressor
from tests.builders import ACTIVE, party_data, seeded

FILE = """
data: {name: DATA}
parties: {clinic: {role: active, columns: 0.4}, lab: {role: passive, columns: rest}}
model: MODEL
train: {epochs: 3, batch_size: 64, device: cpu, optimizer: {name: sgd, lr: RATE}}
audit: false
attacks: []
"""
COUNTS = {"DATA": "diabetes", "MODEL": "{name: glm, loss: poisson}", "RATE": "1e-3"}
MARGINS = {"DATA": "breast-cancer", "MODEL": "{name: glm, loss: l2-svm}", "RATE": "1e-2"}


def text_of(settings: dict[str, str]) -> str:
    text = FILE
    for name, value in settings.items():
        text = text.replace(name, value)
    return text


def trained(folder: Path, settings: dict[str, str]) -> Path:
    (folder / "one.yaml").write_text(text_of(settings))
    assert main(["train", str(folder / "one.yaml"), "--out", str(folder / "run")]) == 0
    return folder / "run"


# --- what cannot be trained


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (COUNTS | {"MODEL": "{name: glm, loss: gamma}", "RATE": "0.1"}, "the gamma loss needs logits below 0"),
        (
            MARGINS | {"MODEL": "{name: glm, loss: gamma}"},
            "model.loss: the gamma loss takes numbers, and this is a binary task",
        ),
        (COUNTS | {"MODEL": "glm"}, "the logistic loss takes 0 and 1, and this is a regression task"),
    ],
)
def test_what_a_loss_cannot_learn_ends_in_words(
    settings: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.yaml").write_text(text_of(settings))
    assert main(["train", str(tmp_path / "one.yaml"), "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


# --- what is kept


def test_a_saved_run_predicts_means_of_the_loss_that_the_model_names(tmp_path: Path) -> None:
    run = load_run(trained(tmp_path, COUNTS))

    labels = run.own_data.active.test.labels
    outputs = run.outputs(run.own_tests().records).outputs.double()
    assert labels is not None
    np.testing.assert_allclose(run.predict(), outputs[:, 0].exp(), rtol=1e-6)  # scores are float32
    found = d2_tweedie_score(labels, outputs[:, 0].exp(), power=1)
    summary = read_summary(tmp_path / "run")
    assert (summary.metric, summary.metric_name) == ("d2", "explained deviance")
    assert summary.test_metric == pytest.approx(found, abs=1e-5)
    schema = run.halves["clinic"].schema
    assert (schema.model["loss"], schema.loss) == ("poisson", msgspec.UNSET)  # it is said once


def test_a_student_learns_from_means_and_not_from_margins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(student, "_MOST_EPOCHS", 2)
    (tmp_path / "counts").mkdir()
    (tmp_path / "margins").mkdir()

    assert distill(trained(tmp_path / "counts", COUNTS)).metric == "r2"  # the student's own, of squares
    with pytest.raises(DataError, match="joint scores are no probabilities"):
        distill(trained(tmp_path / "margins", MARGINS))


def test_a_forecast_needs_scores_from_which_equations_follow(tmp_path: Path) -> None:
    text = text_of(COUNTS)
    (tmp_path / "counts.yaml").write_text(text)
    (tmp_path / "sums.yaml").write_text(text.replace("loss: poisson", "loss: huber, threshold: 20"))

    with pytest.raises(ConfigError, match=r"from those of the poisson loss none do here"):
        forecast(load_config(tmp_path / "counts.yaml"), "lab")
    assert forecast(load_config(tmp_path / "sums.yaml"), "lab").party == "lab"


# --- estimators


def test_estimators_take_counts_as_they_are() -> None:
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:200] / X[:200].std(axis=0), np.round(y[:200] / 50)
    settings: dict[str, Any] = {"epochs": 40, "batch_size": 50, "learning_rate": 0.03, "audit": False}

    ours = SplitRegressor({"lab": 0.5}, model={"name": "glm", "loss": "poisson"}, random_state=0, **settings)
    means = ours.fit(X, y).predict(X)

    # Forty epochs of Adam end near the minimum, not in it.
    theirs = PoissonRegressor(alpha=0.0, tol=1e-8, max_iter=1000).fit(X, y).predict(X)
    assert np.corrcoef(means, theirs)[0, 1] > 0.98
    assert means.mean() == pytest.approx(y.mean(), rel=0.05)
    with pytest.raises(ArgumentError, match="the poisson loss takes counts"):
        SplitRegressor({"lab": 0.5}, model={"name": "glm", "loss": "poisson"}, **settings).fit(X, y + 0.5)
    with pytest.raises(ArgumentError, match="the logistic loss takes 0 and 1"):
        SplitRegressor({"lab": 0.5}, model="glm", **settings).fit(X, y)


def test_a_classifier_of_margins_has_classes_and_no_probabilities() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = {"name": "glm", "loss": "l2-svm"}

    ours = SplitClassifier({"lab": 0.5}, model=model, audit=False, random_state=0).fit(X, y)

    assert ours.score(X, y) > 0.95
    with pytest.raises(ArgumentError, match="the l2-svm loss has margins and no probabilities"):
        ours.predict_proba(X)


# --- hooks


def party_of(loss: str, **settings: float) -> ActiveParty:
    made = glm_loss(loss, **settings)  # type: ignore[arg-type]
    task = task_for(made.labels or "", 2, made)
    data = party_data(ACTIVE, width=2, task=task.name)
    if loss == "poisson":
        train, test = (replace(part, labels=part.labels.abs().round()) for part in (data.train, data.test))  # type: ignore[union-attr]
        data = replace(data, train=train, test=test)
    top = GLMRecipe().make_top(data, task, [1])
    party = ActiveParty(data, top, task=task)
    party.connect("lab")
    return party


@pytest.mark.parametrize(
    ("loss", "settings", "defense"),
    [
        ("logistic", {}, MemoisedResponse(epsilon=1.0)),
        ("logistic", {}, LaplaceResidue(epsilon=1.0)),
        ("logistic", {"logit_clip": 2.0}, LaplaceResidue(epsilon=1.0)),
        ("logistic", {}, TopOne()),
        ("l2-svm", {}, Rounding(decimals=2)),
        ("poisson", {}, Rounding(decimals=2)),
        ("poisson", {}, GaussianTargets(sigma=1.0, label_range=(0.0, 9.0))),
        ("normal", {"dispersion": 2.0}, GaussianTargets(sigma=1.0, label_range=(0.0, 9.0))),
    ],
)
def test_defenses_that_fit_a_loss_are_attached(loss: str, settings: dict[str, float], defense: Any) -> None:
    assert attach_defense(party_of(loss, **settings), defense, number=0, noise_seed=None)


@pytest.mark.parametrize(
    ("loss", "settings", "defense", "error", "complaint"),
    [
        ("l2-svm", {}, MemoisedResponse(epsilon=1.0), ConfigError, "gradient of the l2-svm loss is not linear in them"),
        (
            "huber",
            {},
            GaussianTargets(sigma=1.0, label_range=(0.0, 9.0)),
            ConfigError,
            "of the huber loss is not linear",
        ),
        (
            "normal",
            {"target_clip": 3.0},
            GaussianTargets(sigma=1.0, label_range=(0.0, 9.0)),
            ConfigError,
            r"nor in labels that are clipped, target_clip",
        ),
        ("l2-svm", {}, LaplaceResidue(epsilon=1.0), PrivacyError, "below the logistic loss alone.*take model.loss"),
        ("l2-svm", {}, TopOne(), ConfigError, "those of the l2-svm loss are none"),
        ("poisson", {}, ScoreNoise(scheme=1, power=0.1), ConfigError, "those of the poisson loss are none"),
        ("poisson", {}, MemoisedResponse(epsilon=1.0), ConfigError, "needs binary labels, the task is regression"),
    ],
)
def test_defenses_that_do_not_fit_a_loss_are_refused(
    loss: str, settings: dict[str, float], defense: Any, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        attach_defense(party_of(loss, **settings), defense, number=0, noise_seed=None)


def test_label_defenses_that_answer_with_labels_fit_all_losses() -> None:
    class Flip:
        name, crossing, target_values = "flip", "labels", (0.0, 1.0)

        def __call__(self, labels: torch.Tensor, _: Secrets, /) -> torch.Tensor:
            return 1 - labels

    assert attach_defense(party_of("l2-svm"), Flip(), number=0, noise_seed=None)


@pytest.mark.parametrize("loss", ["normal", "poisson", "gamma", "least-squares"])
def test_noisy_targets_train_what_the_labels_would_on_average(loss: Any) -> None:
    """Targets beyond a family's labels leave the loss finite and its gradient linear."""
    made = glm_loss(loss)
    logits = torch.tensor([-0.3, -2.0], dtype=torch.float64).requires_grad_()
    gradients = []
    for targets in ([2.0, 1.0], [-1.0, -4.0], [0.5, -1.5]):
        value = made(logits[:, None], torch.tensor(targets))
        assert torch.isfinite(value)
        (found,) = torch.autograd.grad(value, logits)
        gradients.append(found)
    torch.testing.assert_close((gradients[0] + gradients[1]) / 2, gradients[2])


def trainer_of(loss: str, **settings: float) -> Trainer:
    active = party_of(loss, **settings)
    active.cuts.pop("lab")
    data = party_data("lab", width=1)
    bottom = seeded("bottom", lambda: GLMRecipe(init="normal").make_bottom(data, active.task))
    return Trainer(active, {"lab": PassiveParty(data, bottom)}, batch_size=16, attacks=[LeastSquaresAttack()])


@pytest.mark.parametrize("loss", ["l2-svm", "logistic", "huber", "normal", "least-squares"])
def test_a_prediction_that_tells_a_logit_is_an_equation(loss: str) -> None:
    leaks = trainer_of(loss).feature_leaks()["lab"]
    # One unknown column in one equation; float32 scores leave 1e-7 or so of it.
    assert {leak.sees for leak in leaks} == {"scores", "activation"}
    assert all(leak.mse < 1e-9 < leak.blind_mse for leak in leaks)


@pytest.mark.parametrize(("loss", "settings"), [("poisson", {}), ("logistic", {"logit_clip": 0.1})])
def test_a_prediction_that_does_not_is_listed_with_the_reason(loss: str, settings: dict[str, float]) -> None:
    trainer = trainer_of(loss, **settings)
    assert {leak.sees for leak in trainer.feature_leaks()["lab"]} == {"activation"}
    assert trainer.unavailable["lab"]["least-squares (scores)"] == (
        f"needs scores that logits are read from, and those of the {loss} loss are others"
    )
