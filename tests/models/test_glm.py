"""The recipe of generalised linear models: what it makes, what it agrees on and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sklearn.metrics import d2_tweedie_score

from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.learning.losses import CrossEntropy, Logistic, SquaredError, link_of
from splitvfl.learning.tasks import Binary, Regression
from splitvfl.models import GLMRecipe, glm_loss
from tests.builders import ACTIVE, party_data

FILE = """
data: {name: diabetes}
parties:
  clinic: {role: active, columns: [age, sex, bmi]}
  lab: {role: passive, columns: rest}
model: MODEL
train: {epochs: 1}
"""


def config_of(model: str, more: str = "") -> ExperimentConfig:
    return parse_config(FILE.replace("MODEL", model) + more, source="study.yaml")


def test_halves_are_linear_and_gamma_begins_at_a_mean_of_1() -> None:
    active, lab, task = party_data(ACTIVE, width=2), party_data("lab", width=3), Regression(glm_loss("gamma"))
    for loss, start in (("gamma", -1.0), ("poisson", 0.0)):
        recipe = GLMRecipe(loss=loss, init="zero")  # type: ignore[arg-type]
        top = recipe.make_top(active, task, [1])
        assert top.intercept.tolist() == [start]
        assert not recipe.make_bottom(lab, task).weight.any()
        outputs = top(torch.cat([torch.zeros(4, 1), torch.randn(4, 2)], dim=1))
        assert recipe.make_loss().scores(outputs).tolist() == [1.0] * 4
    assert not GLMRecipe(intercept=False).make_top(active, task, [1]).intercept.requires_grad


def test_every_setting_of_the_loss_is_a_term() -> None:
    recipe = GLMRecipe(loss="gamma", dispersion=0.5, target_clip=3.0, logit_clip=4.0, logit_margin=0.1, row_norm=1.0)
    assert recipe.terms() == {
        "norm of rows": 1.0,
        "first weights": "zero",
        "loss of the model": "gamma",
        "dispersion of the loss": 0.5,
        "threshold of the loss": None,
        "target_clip of the loss": 3.0,
        "logit_clip of the loss": 4.0,
        "logit_margin of the loss": 0.1,
    }
    loss = recipe.make_loss()
    found = [getattr(loss, name) for name in ("dispersion", "target_clip", "logit_clip", "logit_margin")]
    assert found == [0.5, 3.0, 4.0, 0.1]
    assert GLMRecipe(loss="huber", threshold=2.0).make_loss().constants().lipschitz == 2.0


def test_a_file_names_a_loss_and_its_settings() -> None:
    recipe = config_of("{name: glm, loss: normal, dispersion: 2, target_clip: 300}").model.recipe
    assert recipe == GLMRecipe(loss="normal", dispersion=2.0, target_clip=300.0)
    assert config_of("glm").model.recipe == GLMRecipe(loss="logistic")


@pytest.mark.parametrize(
    ("model", "more", "complaint"),
    [
        ("{name: glm, loss: cauchy}", "", r"study.yaml:6: model.loss: .*'logistic'"),
        ("{name: glm, loss: poisson, dispersion: 2}", "", "study.yaml:6: model: the poisson loss takes no dispersion"),
        (
            "{name: glm, loss: logistic, target_clip: 2}",
            "",
            "study.yaml:6: model: the logistic loss takes no target_cl",
        ),
        ("{name: glm, loss: normal, dispersion: 0}", "", r"study.yaml:6: model.dispersion: expected a number above 0"),
        ("{name: glm, loss: gamma, intercept: false}", "", "study.yaml:6: model: loss gamma needs an intercept"),
        ("{name: glm, private_top: true}", "", "model.private_top"),
        (
            "{name: glm, loss: logistic}",
            "exchange: {name: residue}\n",
            "model.name: it brings its own loss, and exchange residue computes the gradient of another",
        ),
        ("{name: glm}", "exchange: {name: one-way}\n", "in exchange one-way the passive parties' are never trained"),
        (
            "{name: glm, loss: logistic}",
            "defenses: [{name: memoised-response, epsilon: 1.0, corrected: likelihood}]\n",
            "memoised-response: it computes the loss itself, and model glm brings another",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(model: str, more: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        config_of(model, more)


def test_weights_are_kept_in_a_ball_by_sgd_and_proximal_sgd() -> None:
    for name in ("sgd", "proximal-sgd"):
        text = FILE.replace("MODEL", "glm").replace("epochs: 1", f"epochs: 1, optimizer: {{name: {name}, radius: 2}}")
        assert parse_config(text, source="study.yaml").train.optimizer.radius == 2.0
    for name in ("adam", "adagrad"):
        text = FILE.replace("MODEL", "glm").replace("epochs: 1", f"epochs: 1, optimizer: {{name: {name}, radius: 2}}")
        with pytest.raises(
            ConfigError, match=r"study.yaml:7: train.optimizer.radius: weights are kept in a ball by sgd"
        ):
            parse_config(text, source="study.yaml")


def test_a_loss_is_named_once() -> None:
    with pytest.raises(ConfigError, match=r"study.yaml:7: train.loss: model glm brings its own loss, model.loss"):
        parse_config(
            FILE.replace("MODEL", "{name: glm, loss: normal}").replace("epochs: 1", "epochs: 1, loss: squared-error"),
            source="study.yaml",
        )


def test_a_loss_of_other_labels_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"the logistic loss takes 0 and 1, and this is a regression task: .* data\.task: binary"
    ):
        Regression(glm_loss("logistic"))
    with pytest.raises(ArgumentError, match=r"the poisson loss takes numbers, .* data\.task: regression"):
        Binary(glm_loss("poisson"))


@pytest.mark.parametrize(("name", "power"), [("normal", 0), ("poisson", 1), ("gamma", 2)])
def test_the_figure_is_the_explained_deviance_of_scikit_learn(name: Any, power: int) -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 1, generator=random).double()
    if name == "gamma":
        logits = -logits.exp()
    task = Regression(glm_loss(name))
    labels = torch.poisson(torch.full((50,), 2.0), generator=random) + (name == "gamma")
    means = task.loss.scores(logits)

    # With power 0, deviances are squares, and this is R².
    assert task.metric == ("r2" if power == 0 else "d2")
    assert task.measure(logits, labels) == pytest.approx(d2_tweedie_score(labels, means, power=power), rel=1e-9)
    assert math.isnan(task.measure(logits, torch.full((50,), 2.0)))


def test_a_link_is_known_where_scores_are_a_plain_function_of_logits() -> None:
    assert [link_of(loss()) for loss in (Logistic, CrossEntropy, SquaredError)] == ["sigmoid", "softmax", "identity"]
    assert [link_of(glm_loss(name)) for name in ("logistic", "l2-svm", "normal", "huber", "least-squares")] == [
        "sigmoid",
        *["identity"] * 4,
    ]
    # Not of clipped logits, which are known up to the clip only, nor of scores that nobody has described.
    for unknown in (glm_loss("poisson"), glm_loss("gamma"), glm_loss("logistic", logit_clip=2.0), _Doubled()):
        assert link_of(unknown) is None


class _Doubled(SquaredError):
    def scores(self, outputs: torch.Tensor) -> torch.Tensor:
        return 2 * outputs.squeeze(1)
