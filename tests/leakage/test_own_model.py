"""The label owner's own model, against scikit-learn by hand; test records choose nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, RidgeCV
from sklearn.metrics import d2_tweedie_score, r2_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from splitvfl.data.columns import Columns, Records
from splitvfl.errors import DataError
from splitvfl.leakage import own_model as module
from splitvfl.leakage.own_model import own_model
from splitvfl.learning.glm_losses import GammaLoss, PoissonLoss
from splitvfl.learning.losses import SquaredError
from splitvfl.learning.tasks import Binary, Multiclass, Regression, Task


def records(columns: Any, labels: Any, *, codes: Tensor | None = None) -> Records:
    numeric = torch.as_tensor(np.asarray(columns), dtype=torch.float32)
    categorical = torch.zeros(len(numeric), 0, dtype=torch.int64) if codes is None else codes
    return Records(torch.arange(len(numeric)), Columns(numeric, categorical), torch.as_tensor(labels))


def split(whole: Records, first: int) -> tuple[Records, Records]:
    return whole.part(torch.arange(first)), whole.part(torch.arange(first, whole.count))


def linear(model: Any) -> Any:
    return make_pipeline(StandardScaler(), model)


def binary_labels(curved: bool) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(500, 2))
    score = rows[:, 0] * rows[:, 1] if curved else rows[:, 0]
    return rows.astype(np.float32), (score + 0.5 * generator.normal(size=500) > 0).astype(np.float32)


@pytest.mark.parametrize("curved", [False, True])
def test_training_records_choose_between_two_models_of_classes(curved: bool) -> None:
    rows, labels = binary_labels(curved)
    models = {
        "logistic regression": linear(LogisticRegression(max_iter=300)),
        "gradient boosting": HistGradientBoostingClassifier(max_iter=3, random_state=0),
    }
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    aucs = {
        name: roc_auc_score(
            labels[:350],
            cross_val_predict(model, rows[:350], labels[:350], cv=folds, method="predict_proba")[:, 1],
        )
        for name, model in models.items()
    }
    best = max(aucs, key=lambda name: aucs[name])

    found = own_model(*split(records(rows, labels), 350), Binary())

    assert found.name == best == ("gradient boosting" if curved else "logistic regression")
    odds = models[best].fit(rows[:350], labels[:350]).predict_proba(rows[350:])[:, 1]
    assert torch.sigmoid(found.scores).numpy() == pytest.approx(odds, abs=1e-6)
    assert Binary().measure_scores(found.scores, torch.tensor(labels[350:])) == pytest.approx(
        roc_auc_score(labels[350:], odds), abs=1e-9
    )


def test_test_records_choose_nothing() -> None:
    train, asked = split(records(*binary_labels(curved=True)), 350)
    assert asked.labels is not None
    turned = replace(asked, labels=1.0 - asked.labels)
    found = [own_model(train, each, Binary()) for each in (asked, turned, replace(asked, labels=None))]
    assert {one.name for one in found} == {"gradient boosting"}
    assert torch.equal(found[0].scores, found[1].scores)
    assert torch.equal(found[0].scores, found[2].scores)


def test_of_several_classes_the_accuracy_chooses() -> None:
    rows, labels = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    rows, labels = rows[order].astype(np.float32), labels[order]
    task = Multiclass(3)

    found = own_model(*split(records(rows, labels), 120), task)

    assert found.name == "logistic regression"
    model = linear(LogisticRegression(max_iter=300)).fit(rows[:120], labels[:120])
    assert found.scores.exp().numpy() == pytest.approx(model.predict_proba(rows[120:]), abs=1e-5)
    assert task.measure_scores(found.scores, torch.tensor(labels[120:])) == pytest.approx(
        model.score(rows[120:], labels[120:]), abs=1e-6
    )


def test_a_class_with_few_records_is_no_obstacle() -> None:
    rows, labels = load_wine(return_X_y=True)
    labels[:2] = 3
    task = Multiclass(4)
    assert own_model(*split(records(rows, labels), 177), task).scores.shape == (1, 4)


def test_numbers_by_ridge_regression() -> None:
    rows, labels = load_diabetes(return_X_y=True)
    rows = rows.astype(np.float32)
    task = Regression()

    found = own_model(*split(records(rows, labels.astype(np.float32)), 300), task)

    model = linear(RidgeCV(np.logspace(-3.0, 3.0, 7))).fit(rows[:300].astype(np.float64), labels[:300])
    expected = r2_score(labels[300:], model.predict(rows[300:].astype(np.float64)))
    assert found.name == "ridge regression"
    assert task.measure_scores(found.scores, torch.tensor(labels[300:])) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "power", "kind"), [(PoissonLoss(), 1, PoissonRegressor), (GammaLoss(), 2, GammaRegressor)]
)
def test_counts_and_amounts_are_predicted_by_their_own_family(loss: Any, power: int, kind: Any) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(400, 3)).astype(np.float32)
    means = np.exp(0.5 + 0.6 * rows[:, 0])
    labels = generator.poisson(means) if power == 1 else generator.gamma(2.0, means / 2.0)
    labels = labels.astype(np.float32)
    task = Regression(loss)

    found = own_model(*split(records(rows, labels), 250), task)

    model = linear(kind(alpha=1 / 250, max_iter=300)).fit(rows[:250].astype(np.float64), labels[:250])
    expected = model.predict(rows[250:].astype(np.float64))
    assert found.name == f"{loss.name} regression"
    assert found.scores.numpy() == pytest.approx(expected, rel=1e-4)
    figure = task.measure_scores(found.scores, torch.tensor(labels[250:]))
    # scikit-learn's deviances are scaled by the mean label too.
    assert figure == pytest.approx(d2_tweedie_score(labels[250:], expected, power=power), abs=1e-4)
    outputs = found.scores.log() if power == 1 else -1.0 / found.scores
    assert figure == pytest.approx(task.measure(outputs[:, None], torch.tensor(labels[250:])), abs=1e-9)


@pytest.mark.parametrize("task", [Binary(), Multiclass(2), Regression()], ids=["binary", "classes", "numbers"])
def test_categories_tell_and_new_ones_are_taken(task: Task) -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(1, 5, (300, 1), generator=generator)
    labels = (codes[:, 0] > 2).to(torch.int64 if task.name == "multiclass" else torch.float32)
    codes[299] = 7
    whole = records(torch.zeros(300, 1), labels, codes=codes)
    train, asked = split(whole, 200)

    found = own_model(train, asked, task)

    figure = task.measure_scores(found.scores[:99], labels[200:299])
    assert figure is not None
    assert figure > 0.95


def test_dummies_teach_nothing() -> None:
    rows, labels = binary_labels(curved=False)
    train, asked = split(records(rows, labels), 350)
    real = torch.arange(350) % 2 == 0
    assert train.labels is not None
    spoiled = replace(train, labels=torch.where(real, train.labels, 1.0 - train.labels), real=real)
    kept = train.part(real.nonzero()[:, 0])
    for task in (Binary(), Regression()):
        assert torch.equal(own_model(spoiled, asked, task).scores, own_model(kept, asked, task).scores)


def test_of_many_records_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitvfl.learning.drawing.MOST_RECORDS", 60)
    train, asked = split(records(*binary_labels(curved=False)), 350)
    fitted: list[int] = []
    usual = module.predicting

    def noted(matrix: Any, labels: Any, **more: Any) -> Any:
        fitted.append(len(labels) - asked.count)
        return usual(matrix, labels, **more)

    monkeypatch.setattr(module, "predicting", noted)
    own_model(train, asked, Binary())
    assert fitted == [60]


def test_what_is_fitted_once_is_not_fitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    train, asked = split(records(*binary_labels(curved=False)), 340)
    first = own_model(train, asked, Binary())
    monkeypatch.setattr(module, "out_of_fold", lambda *_: pytest.fail("fitted again"))
    assert own_model(train, asked, Binary()) is first
    with pytest.raises(pytest.fail.Exception):
        own_model(train, asked, Binary(), seed=1)


class Own(SquaredError):
    metric, link = "own", None

    def measure(self, outputs: Tensor, labels: Tensor) -> float:
        return 1.0


def test_what_cannot_be_fitted_says_why() -> None:
    rows, labels = binary_labels(curved=False)
    few = records(rows[:20], np.arange(20) < 3)
    with pytest.raises(DataError, match=r"each class needs at least 5 training records, got \[17, 3\]"):
        own_model(few, few, Binary())
    with pytest.raises(DataError, match="expected at least 10 training records, got 8"):
        own_model(records(rows[:8], labels[:8]), few, Regression())
    with pytest.raises(DataError, match="the metric 'own' of the loss is measured of the joint model's outputs only"):
        own_model(records(rows, labels), few, Regression(Own()))
    rows[3, 0] = np.inf
    with pytest.raises(DataError, match=r"no model can be fitted to these columns: .*infinity"):
        own_model(records(rows, labels), few, Binary())
