"""Estimators are what scikit-learn expects of its own, and train what a Trainer trains."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_regression
from sklearn.ensemble import BaggingClassifier
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from splitvfl.data.doubts import DoubtWarning
from splitvfl.defenses import AsymmetricResponse
from splitvfl.errors import ArgumentError, ConfigError
from splitvfl.hooks import Weighed
from splitvfl.models import MLPRecipe
from splitvfl.penalties import DistanceCorrelation
from splitvfl.sklearn import SplitClassifier, SplitRegressor

SMALL: dict[str, Any] = {"model": {"name": "mlp", "bottom": [8]}, "epochs": 2, "learning_rate": 0.1, "batch_size": 16}


@pytest.fixture(scope="module")
def cancer() -> tuple[pd.DataFrame, Any]:
    return load_breast_cancer(return_X_y=True, as_frame=True)


@pytest.fixture(scope="module")
def fitted(cancer: tuple[pd.DataFrame, Any]) -> SplitClassifier:
    """Four hundred rows and nothing said but who holds what."""
    X, y = cancer
    names = np.array(["benign", "malignant"])[1 - y.to_numpy()]
    model = SplitClassifier({"lab": ["worst *"], "ward": "* error"}, audit=False, active_name="clinic")
    return model.set_params(random_state=0).fit(X[:400], names[:400])


def test_defaults_learn_a_table_of_four_hundred_rows(fitted: SplitClassifier, cancer: tuple[pd.DataFrame, Any]) -> None:
    X, y = cancer
    names = np.array(["benign", "malignant"])[1 - y.to_numpy()]

    assert (fitted.epochs_, fitted.batch_size_) == (30, 32)
    assert fitted.score(X[400:], names[400:]) > 0.94
    assert fitted.classes_.tolist() == ["benign", "malignant"]
    assert fitted.feature_names_in_.tolist() == list(X.columns)
    probabilities = fitted.predict_proba(X[400:])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(fitted.predict(X[400:]) == "malignant", probabilities[:, 1] > 0.5)


def test_what_leaked_is_a_table(cancer: tuple[pd.DataFrame, Any]) -> None:
    X, y = cancer
    model = SplitClassifier(
        {"lab": ["worst *"], "ward": "* error"}, **SMALL, attacks=[{"name": "norm"}], random_state=0
    )
    leaks = model.fit(X[:200], y[:200]).leakage_

    assert isinstance(leaks, pd.DataFrame)
    assert list(leaks.columns) == ["party", "attack", "auc", "accumulated_auc", "worst", "scored", "note"]
    beyond = leaks[leaks["attack"] == "beyond the prediction"]
    assert set(beyond["note"]) == {"matched"}
    assert set(leaks["note"].drop(beyond.index)) == {""}
    assert set(leaks["party"]) == {"lab", "ward"}
    worst = leaks.set_index(["party", "attack"])["worst"]
    # Nothing was defended: the auditor reads every label.
    assert worst["lab", "in total"] > 0.99
    assert 0.5 <= worst["ward", "norm"] <= 1


@pytest.fixture(scope="module")
def named() -> pd.DataFrame:
    """The columns of wines, with names."""
    return pd.DataFrame(load_wine().data, columns=[f"x{number}" for number in range(13)])


@pytest.fixture(scope="module")
def of_named(named: pd.DataFrame) -> npt.NDArray[np.float64]:
    """What an estimator that was fitted to a table of pandas says of it."""
    model = SplitClassifier({"lab": ["x0", "x1[2]"]}, **SMALL, audit=False, random_state=3)
    return model.fit(named, load_wine().target).predict_proba(named)


@pytest.mark.parametrize("form", ["pandas", "polars", "arrow", "mapping", "array", "tensor"])
def test_forms_of_a_table_train_alike(form: str, named: pd.DataFrame, of_named: npt.NDArray[np.float64]) -> None:
    X, y = load_wine(return_X_y=True)
    given: Any = {
        "pandas": named,
        "polars": pl.DataFrame(dict(named)),
        "arrow": pa.Table.from_pandas(named),
        "mapping": {name: named[name].to_numpy() for name in named},
        "array": X,
        "tensor": torch.from_numpy(X),
    }[form]
    claims: Any = {"lab": [0, -1]} if form in ("array", "tensor") else {"lab": ["x0", "x12"]}

    ours = SplitClassifier(claims, **SMALL, audit=False, random_state=3)
    ours.fit(given, torch.from_numpy(y) if form == "tensor" else y)

    np.testing.assert_array_equal(ours.predict_proba(given), of_named)
    assert hasattr(ours, "feature_names_in_") == (form not in ("array", "tensor"))


NO_NAMES = "X does not have valid feature names, but SplitClassifier was fitted with feature names"
NEW_NAMES = "X has feature names, but SplitClassifier was fitted without feature names"


@pytest.fixture(scope="module")
def mixed() -> pd.DataFrame:
    """Numbers, text that looks like numbers, truth values and codes."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "amount": rng.normal(size=60),
            "branch": np.where(rng.random(60) < 0.5, "01", "7"),
            "late": rng.random(60) < 0.3,
            "code": rng.integers(3, size=60),
        }
    )


def of_mixed(table: Any, **claims: Any) -> SplitClassifier:
    model = SplitClassifier(claims or {"lab": ["branch", "late"]}, **SMALL, audit=False, random_state=0)
    return model.fit(table, (np.arange(60) % 3 == 0).astype(int))


@pytest.mark.parametrize("form", ["array", "list", "transposed in memory"])
def test_an_array_after_a_frame_is_taken_by_position_with_scikit_learns_warning(form: str, mixed: pd.DataFrame) -> None:
    model = of_mixed(mixed)
    expected = model.predict_proba(mixed)
    values = mixed.to_numpy()
    given = {"array": values, "list": values.tolist(), "transposed in memory": np.asfortranarray(values)}[form]

    with pytest.warns(UserWarning, match=NO_NAMES):
        found = model.predict_proba(given)

    np.testing.assert_array_equal(found, expected)
    other = values.copy()
    other[:, 0] = 0.0
    with pytest.warns(UserWarning, match=NO_NAMES):
        assert not np.array_equal(model.predict_proba(other), expected)


@pytest.mark.parametrize("kind", [np.float64, np.float32, object])
def test_numbers_of_an_array_are_those_of_the_frame(kind: type, mixed: pd.DataFrame) -> None:
    numeric = mixed.drop(columns="branch").astype({"late": float, "amount": np.float32})
    model = of_mixed(numeric, lab=["late"])

    with pytest.warns(UserWarning, match=NO_NAMES):
        found = model.predict_proba(numeric.to_numpy().astype(kind))

    np.testing.assert_array_equal(found, model.predict_proba(numeric))


def test_a_frame_after_an_array_is_taken_by_position_with_scikit_learns_warning(mixed: pd.DataFrame) -> None:
    numeric = mixed.drop(columns="branch").astype(float)
    model = of_mixed(numeric.to_numpy(), lab=[1])
    # Names that would tell another order count for nothing, as everywhere in scikit-learn.
    renamed = numeric.set_axis(["x2", "x0", "x1"], axis=1)

    for frame in (numeric, renamed, pl.from_pandas(numeric)):
        with pytest.warns(UserWarning, match=NEW_NAMES):
            found = model.predict_proba(frame)
        np.testing.assert_array_equal(found, model.predict_proba(numeric.to_numpy()))


def test_columns_with_numbers_for_names_have_none_to_scikit_learn(mixed: pd.DataFrame) -> None:
    numbered = mixed.set_axis(range(4), axis=1)
    model = of_mixed(numbered, lab=[1])

    np.testing.assert_array_equal(model.predict_proba(numbered.to_numpy()), model.predict_proba(numbered))


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        (0, "a", "column 'amount' of X holds values of several types"),
        (0, None, "column 'amount' of X has no value in 1 of 60 rows"),
        (0, np.inf, "column 'amount'"),
        (1, 3, "column 'branch' of X holds values of several types"),
        (0, [1, 2], "column 'amount' of X holds values of several types"),
    ],
)
def test_what_an_array_of_objects_holds_is_looked_at_by_column(
    column: int, value: Any, told: str, mixed: pd.DataFrame
) -> None:
    model = of_mixed(mixed)
    values = mixed.to_numpy()
    values[7, column] = value

    with pytest.warns(UserWarning, match=NO_NAMES), pytest.raises(ValueError, match=told):
        model.predict_proba(values)


def test_an_array_of_other_width_is_refused(mixed: pd.DataFrame) -> None:
    model = of_mixed(mixed)

    with pytest.warns(UserWarning, match=NO_NAMES), pytest.raises(ValueError, match="X has 3 features, but"):
        model.predict_proba(mixed.to_numpy()[:, :3])


def test_what_passes_arrays_on_takes_them(mixed: pd.DataFrame) -> None:
    X, y = mixed.drop(columns="branch"), (np.arange(60) % 3 == 0).astype(int)
    model = SplitClassifier(**{**SMALL, "epochs": 1}, audit=False, random_state=0)

    bagged = BaggingClassifier(model, n_estimators=2, random_state=0).fit(X, y)
    chosen = SequentialFeatureSelector(model, n_features_to_select=1, cv=2).fit(X, y)

    assert bagged.predict_proba(X).shape == (60, 2)
    assert chosen.get_support().sum() == 1


def test_text_truth_values_and_gaps_are_columns_too() -> None:
    rng = np.random.default_rng(0)
    job = rng.choice(["clerk", "nurse", "smith"], 200)
    frame = pd.DataFrame({"job": job, "paid": rng.random(200) < 0.5, "code": rng.integers(0, 3, 200), "gap": np.nan})
    frame.loc[::2, "gap"] = 1.0
    model = SplitClassifier(
        {"lab": ["job", "code"]},
        missing="indicator",
        categorical_columns=[2],
        audit=False,
        random_state=0,
        epochs=15,
        learning_rate=0.02,
    )

    assert model.fit(frame, job == "nurse").score(frame, job == "nurse") > 0.99
    # A trade that nobody had when it was trained is none of the known ones.
    with pytest.warns(DoubtWarning, match=r"lab: job +- +0.0% +0.0% +100.0%"):
        unknown = [model.predict_proba(frame.assign(job=other)) for other in ("pilot", "baker")]
    np.testing.assert_array_equal(*unknown)
    with pytest.raises(ArgumentError, match="column 'gap' of X has no value in 100 of 200 rows"):
        clone(model).set_params(missing="error").fit(frame, job)


def test_classes_that_differ_by_case_and_blanks_are_warned_of() -> None:
    model = SplitClassifier(**SMALL, audit=False, random_state=0)

    with pytest.warns(DoubtWarning, match="3 classes, of which 'Yes' and 'yes ' differ by case"):
        model.fit(np.arange(60.0).reshape(30, 2), ["No", "Yes", "yes "] * 10)
    model.fit(np.arange(60.0).reshape(30, 2), ["No", "Yes", "maybe"] * 10)  # warnings are errors


@pytest.mark.parametrize("value", [7.0, 0.1])
def test_labels_that_are_all_the_same_are_named(value: float) -> None:
    with pytest.raises(ArgumentError, match=f"labels that differ, got {value:g} in all 30 records"):
        SplitRegressor(**SMALL, audit=False).fit(np.arange(60.0).reshape(30, 2), np.full(30, value))


def test_text_that_looks_like_numbers_is_warned_of_and_read_on_request() -> None:
    rng = np.random.default_rng(0)
    dose = rng.normal(size=200)
    cells = [f"{value:.3f}".replace(".", ",") for value in dose]
    frame = pd.DataFrame({"dose": ["?", *cells[1:]], "other": rng.normal(size=200)})
    model = SplitClassifier({"lab": ["dose"]}, audit=False, random_state=0, epochs=1, learning_rate=0.05)

    with pytest.warns(DoubtWarning, match=r"dose \(.*decimal=','.*missing_values=\['\?'\].*text_columns"):
        model.fit(frame, dose > 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(model).set_params(text_columns=[0]).fit(frame, dose > 0)
        model = clone(model).set_params(missing_values=["?"], decimal=",", missing="indicator", epochs=15)
        model.fit(frame, dose > 0)
    assert model.score(frame, dose > 0) > 0.9
    # What is scored later is read alike, or is no number.
    with pytest.raises(ArgumentError, match=r"column 'dose': expected a number as decimal=',' says, got '1.5'"):
        model.predict(frame.assign(dose="1.5"))


def test_a_seed_decides_everything_and_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    X, y = load_breast_cancer(return_X_y=True)
    defense = AsymmetricResponse(detection_error=0.4)
    defenses = [defense, "isotropic(ratio=0.1)"]
    model = SplitClassifier({"lab": 0.5}, **SMALL, defenses=defenses, audit=False, random_state=7)

    first = model.fit(X[:100], y[:100]).predict_proba(X)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  # the generator that must not matter
    again = clone(model).fit(X[:100], y[:100]).predict_proba(X)

    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, clone(model).set_params(random_state=8).fit(X[:100], y[:100]).predict_proba(X))
    entropic = [clone(model).set_params(random_state=None).fit(X[:100], y[:100]).predict_proba(X) for _ in range(2)]
    assert not np.array_equal(*entropic)
    assert list(tmp_path.iterdir()) == []


def test_noise_on_activations_is_in_predictions_too() -> None:
    X, y = load_wine(return_X_y=True)
    settings: dict[str, Any] = {**SMALL, "audit": False, "random_state": 0}
    model = SplitClassifier(**settings, defenses=["gaussian-ir(clip=1, sigma=5)"]).fit(X, y)
    without = SplitClassifier(**settings).fit(X, y)

    same, other = model.predict_proba(X), without.predict_proba(X)

    np.testing.assert_array_equal(same, model.predict_proba(X))
    assert np.abs(same - other).max() > 0.2


def test_the_linear_models_defaults_come_near_least_squares() -> None:
    """At the rate of deeper models it was below a constant, R² -2 to .06."""
    X, y = make_regression(150, 10, noise=20.0, random_state=0)
    fitted, held = slice(0, 100), slice(100, None)
    ours = SplitRegressor({"lab": 0.5}, model="logistic-regression", audit=False, random_state=0)

    least_squares = LinearRegression().fit(X[fitted], y[fitted]).score(X[held], y[held])

    # Early stopping by the number of epochs costs some hundredths of so few records.
    assert ours.fit(X[fitted], y[fitted]).score(X[held], y[held]) > least_squares - 0.1 > 0.8


def test_regression_has_labels_of_any_size() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = SplitRegressor({"lab": [0, 1, 2]}, audit=False, random_state=0)

    model.fit(X[:350], 1e5 + 100 * y[:350])

    assert model.score(X[350:], 1e5 + 100 * y[350:]) > 0.45
    assert model.leakage_.empty
    one = clone(model).set_params(epochs=1).fit(X[:350], y[:350]).predict(X)
    other = clone(model).set_params(epochs=1).fit(X[:350], 1e5 + 100 * y[:350]).predict(X)
    np.testing.assert_allclose(other, 1e5 + 100 * one, rtol=1e-5)


def test_it_goes_where_estimators_go() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X, y = X[:120], y[:120]
    model = SplitClassifier({"lab": slice(10, None)}, **SMALL, audit=False, random_state=0)
    defended = [AsymmetricResponse(detection_error=0.4)]

    scores = cross_val_score(make_pipeline(MinMaxScaler(), model), X, y, cv=2)
    grid = {"parties": [{"lab": 0.5}], "model": ["mlp", MLPRecipe(bottom=(4,))], "defenses": [[], defended]}
    search = GridSearchCV(model, grid, cv=2).fit(X, y)

    assert scores.min() > 0.8
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.predict(X).shape == (120,)


def test_without_pandas_the_table_is_one_of_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitvfl.app.estimators.find_spec", lambda name: None)
    X, y = load_breast_cancer(return_X_y=True)

    model = SplitClassifier(**SMALL).fit({"a": X[:60, 0], "b": X[:60, 1]}, y[:60])

    assert isinstance(model.leakage_, pa.Table)
    assert "in total" in model.leakage_["attack"].to_pylist()
    assert model.predict({"a": X[60:, 0], "b": X[60:, 1]}).shape == (509,)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"parties": {"lab": ["mean raduis"]}}, ArgumentError, "no column 'mean raduis' in X; did you mean"),
        ({"parties": {"lab": [30]}}, ArgumentError, r"parties\['lab'\]: expected the position of one of 30"),
        ({"parties": {"active": "rest"}}, ArgumentError, "they must differ"),
        ({"parties": {}}, ArgumentError, "expected at least one passive party"),
        ({"model": "mpl"}, ArgumentError, "model.name: no such model 'mpl'; did you mean mlp"),
        ({"model": {"name": "mlp", "botom": [3]}}, ArgumentError, "model.botom: .*did you mean bottom"),
        ({"model": 3}, ArgumentError, "expected model as a name, .* got int"),
        ({"defenses": ["sumlk"]}, ConfigError, "no such defense 'sumlk'; did you mean sumkl"),
        ({"defenses": ["max-norm,isotropic"]}, ArgumentError, "expected one defense in each text"),
        ({"defenses": "max-norm"}, ArgumentError, "expected defenses as a list"),
        ({"attacks": ["nrom"]}, ConfigError, "no such attack 'nrom'; did you mean norm"),
        ({"attacks": ["least-squares"]}, ArgumentError, "infers columns"),
        ({"attacks": [{"name": "ridge", "known_share": 0.2}]}, ArgumentError, "ridge infers columns"),
        ({"attacks": [{"known_share": 0.2}]}, ArgumentError, r"attacks\.name: "),
        ({"attacks": [{"name": "ridge", "known_share": 2.0}]}, ConfigError, "known_share"),
        ({"defenses": [{"name": "isotropic", "ration": 2.0}]}, ConfigError, "did you mean ratio"),
        ({"epochs": 0}, ArgumentError, "epochs"),
        ({"scale": "standrad"}, ArgumentError, "expected scale one of"),
    ],
)
def test_settings_that_do_not_do(
    settings: dict[str, Any], error: type[Exception], message: str, cancer: tuple[pd.DataFrame, Any]
) -> None:
    X, y = cancer

    with pytest.raises(error, match=message):
        SplitClassifier(**settings).fit(X, y)


@pytest.mark.parametrize("chosen", ["flip", {"name": "orthonormal"}, {"name": "flip", "columns": ["worst area"]}])
def test_a_transform_is_applied_to_every_record_and_kept(cancer: tuple[pd.DataFrame, Any], chosen: Any) -> None:
    X, y = cancer
    common: dict[str, Any] = {"model": "logistic-regression", "epochs": 3, "scale": "minmax", "audit": False}
    model = SplitClassifier({"lab": ["worst *"]}, **common, transforms={"lab": chosen}, random_state=0)
    scores = model.fit(X[:200], y[:200]).predict_proba(X[200:])

    lab, plain = model._held[1], SplitClassifier({"lab": ["worst *"]}, **common, random_state=0).fit(X[:200], y[:200])
    assert lab.transform is not None
    assert model._held[0].transform is None
    # The same, by transforming what the plain model's party takes.
    table = pa.Table.from_pandas(X[200:], preserve_index=False)
    own = plain._held[1].data(table, train=False, norm=None).test
    told = lab.data(table, train=False, norm=None).test
    rows = torch.arange(own.count)
    expected = lab.transform.of(own.rows(rows).columns.numeric)
    assert torch.equal(told.rows(rows).columns.numeric, expected)
    assert not torch.equal(expected, own.rows(rows).columns.numeric)
    again = clone(model).fit(X[:200], y[:200])
    np.testing.assert_array_equal(again.predict_proba(X[200:]), scores)


def test_a_drawn_transform_differs_without_a_seed(cancer: tuple[pd.DataFrame, Any]) -> None:
    X, y = cancer
    settings: dict[str, Any] = {"model": "logistic-regression", "epochs": 1, "audit": False}
    models = [
        SplitClassifier({"lab": ["worst *"]}, **settings, transforms={"lab": "orthonormal"}).fit(X[:50], y[:50])
        for _ in range(2)
    ]
    first, second = (model._held[1].transform.tensors()["matrix"] for model in models)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("transforms", "scale", "message"),
    [
        ("flip", "minmax", r"expected a mapping from a passive party \(lab\).*\{'lab': 'flip'\}, got 'flip'"),
        ({"active": "flip"}, "minmax", "'active' is no passive party; there are lab"),
        ({"lab": "flip"}, "standard", r"transforms\['lab'\]: .*columns in \[0, 1\].*minmax"),
        ({"lab": "turn"}, "minmax", r"transforms\['lab'\]: name: .*'flip', 'permute' or 'orthonormal'$"),
        ({"lab": {"name": "flip", "columns": ["nothing"]}}, "minmax", r"transforms\['lab'\]: .*nothing"),
    ],
)
def test_a_transform_that_cannot_be_is_refused(
    cancer: tuple[pd.DataFrame, Any], transforms: Any, scale: str, message: str
) -> None:
    X, y = cancer
    with pytest.raises(ArgumentError, match=message):
        SplitClassifier({"lab": ["worst *"]}, transforms=transforms, scale=scale).fit(X[:50], y[:50])


BOTTLENECK = {"name": "mutual-information-bottleneck", "weight": 0.01}
DRAWN = {"name": "mlp", "bottom": [4], "sampled": True}


def first_weight(model: SplitClassifier, party: str = "lab") -> torch.Tensor:
    weight: torch.Tensor = next(model._models[party][0].parameters())
    return weight


def test_penalties_change_what_is_learned_by_name_by_mapping_and_by_party(cancer: tuple[pd.DataFrame, Any]) -> None:
    X, y = cancer
    common = {**SMALL, "audit": False, "random_state": 0}
    parties = {"lab": ["worst *"], "ward": ["* error"]}
    object_of = Weighed(DistanceCorrelation(records=16), 3.0)
    named = {"name": "distance-correlation", "weight": 3.0, "records": 16}

    def trained(penalties: Any) -> SplitClassifier:
        return clone(SplitClassifier(parties, penalties=penalties, **common)).fit(X[:100], y[:100])

    plain, by_name, by_object, at_ward = map(trained, ((), [named], [object_of], {"ward": [named]}))
    assert torch.equal(first_weight(by_name), first_weight(by_object))
    assert not torch.equal(first_weight(plain), first_weight(by_name))
    assert not torch.equal(first_weight(plain, "ward"), first_weight(at_ward, "ward"))
    assert by_name.get_params()["penalties"] == [named]
    assert by_name.set_params(penalties=["distance-correlation"]).fit(X[:100], y[:100]).score(X, y) > 0.5


def test_draws_with_a_bottleneck_predict_anew_unless_there_is_a_seed(cancer: tuple[pd.DataFrame, Any]) -> None:
    X, y = cancer
    settings: dict[str, Any] = {**SMALL, "model": DRAWN, "audit": False, "penalties": [BOTTLENECK]}
    seeded, unseeded = (SplitClassifier(**settings, random_state=seed).fit(X[:100], y[:100]) for seed in (0, None))
    assert np.array_equal(seeded.predict_proba(X), seeded.predict_proba(X))
    assert not np.array_equal(unseeded.predict_proba(X), unseeded.predict_proba(X))
    again = copy.deepcopy(seeded)
    assert np.array_equal(seeded.predict_proba(X), again.predict_proba(X))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"penalties": "distance-correlation"}, "expected penalties as a list"),
        ({"penalties": ["distance-corelation"]}, "no such penalty.*did you mean"),
        ({"penalties": [{"name": "distance-correlation", "weight": -1}]}, r"penalties\.weight: "),
        ({"penalties": {"lba": []}}, "penalties of lba: the passive parties are passive"),
        ({"penalties": [BOTTLENECK]}, "that of passive draws nothing: set model"),
        ({"model": DRAWN}, "model: sampled: what passive sends is drawn, and no penalty"),
        ({"penalties": [BOTTLENECK], "model": "logistic-regression"}, "that of passive draws nothing: set model"),
    ],
)
def test_penalties_that_do_not_do(settings: dict[str, Any], complaint: str, cancer: tuple[pd.DataFrame, Any]) -> None:
    X, y = cancer
    with pytest.raises((ArgumentError, ConfigError), match=complaint):
        SplitClassifier(**{**SMALL, "audit": False, **settings}).fit(X[:60], y[:60])


def test_probabilities_of_answers_are_warned_of_and_those_of_labels_are_not() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = SplitClassifier({"lab": 0.5}, **SMALL, audit=False, random_state=0)
    shifted = clone(model).set_params(defenses=["randomised-response(epsilon=1.0)"]).fit(X, y)
    with pytest.warns(DoubtWarning, match="scores are no probabilities: randomised-response"):
        shifted.predict_proba(X)
    shifted.predict(X)  # the order stays, and so do the classes
    corrected = "randomised-response(epsilon=1.0, corrected=likelihood)"
    clone(model).set_params(defenses=[corrected]).fit(X, y).predict_proba(X)


def test_another_unit_at_prediction_is_warned_of() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = SplitClassifier({"lab": 0.5}, **SMALL, audit=False, random_state=0).fit(X, y)
    model.predict_proba(X[y == 1])  # other records, and no other values
    with pytest.warns(DoubtWarning, match=r"drift: \d+ of 30 columns of 50 records differ from the training"):
        model.predict_proba(1000 * X[:50])
