from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from splitvfl.data.columns import VerticalData
from splitvfl.data.load import load
from splitvfl.data.sets import DATA_SETS
from splitvfl.errors import ArgumentError, DataError

BUNDLED = ("breast-cancer", "digits", "diabetes", "wine")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": np.arange(100) * 10 + 3,
            "AGE": rng.integers(18, 80, 100),
            "PAY_0": rng.normal(size=100),
            "PAY_2": rng.normal(size=100),
            "job": rng.choice(["clerk", "nurse"], 100),
            "part": ["test" if row % 4 == 0 else "train" for row in range(100)],
            "bought": np.arange(100) % 3 == 0,
        }
    )
    path = tmp_path / "shop.csv"
    frame.to_csv(path, index=False)
    return path


def _load(path: Path, **settings: Any) -> VerticalData:
    return load("table", **{"path": path, "label": "bought", "drop": "id, part", **settings})


def test_a_table_becomes_parties(table: Path) -> None:
    data = _load(
        table,
        drop=(),
        id_column="id",
        split_column="part",
        active_name="shop",
        active=["AGE"],
        passive={"bank": "PAY_*", "agency": "rest"},
        scale="none",
    )
    frame = pd.read_csv(table)
    tested = frame["part"] == "test"

    assert (data.name, data.task, data.classes) == ("shop", "binary", 2)
    assert list(data.passives) == ["bank", "agency"]
    assert data["shop"].column_names == ("AGE",)
    assert data["bank"].column_names == data["bank"].numeric_names == ("PAY_0", "PAY_2")
    assert data["agency"].column_names == ("job",)
    assert data["agency"].numeric_names == ("job=clerk", "job=nurse")
    for records, rows in (("train", ~tested), ("test", tested)):
        bank, shop = getattr(data["bank"], records), getattr(data["shop"], records)
        np.testing.assert_array_equal(bank.ids, frame["id"][rows])
        np.testing.assert_array_equal(shop.ids, bank.ids)
        np.testing.assert_array_equal(bank.columns.numeric, frame[["PAY_0", "PAY_2"]][rows].to_numpy(np.float32))
        np.testing.assert_array_equal(shop.labels, frame["bought"][rows].to_numpy(np.float32))
        assert bank.labels is None


def test_ids_are_row_numbers_of_the_file(table: Path) -> None:
    data = _load(table, active="AGE", scale="none")
    ages = pd.read_csv(table)["AGE"].to_numpy()

    for records in (data.active.train, data.active.test):
        np.testing.assert_array_equal(records.columns.numeric[:, 0], ages[records.ids.numpy()])
    assert sorted([*data.active.train.ids.tolist(), *data.active.test.ids.tolist()]) == list(range(100))


def test_everything_belongs_to_one_passive_party_by_default(table: Path) -> None:
    data = _load(table)

    assert data.active.column_names == ()
    assert data.active.width == 0
    assert data.active.train.columns.numeric.shape == (80, 0)
    assert data["passive"].column_names == ("AGE", "PAY_0", "PAY_2", "job")


def test_codes_instead_of_onehot(table: Path) -> None:
    party = _load(table, categorical="index", categorical_columns="AGE")["passive"]

    assert party.numeric_names == ("PAY_0", "PAY_2")
    assert party.field_sizes[1] == 3
    assert party.train.columns.categorical.shape == (80, 2)
    assert all(
        column.min() >= 0 and column.max() < size
        for column, size in zip(party.train.columns.categorical.T, party.field_sizes, strict=True)
    )


def test_scales_are_fitted_on_training_records(table: Path) -> None:
    numeric = _load(table, passive={"bank": "rest"}, drop="id, part, job")["bank"].train.columns.numeric

    # float32 keeps 1e-7 of values of about 1; the mean of 80 of them is no worse.
    torch.testing.assert_close(numeric.mean(0), torch.zeros(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(numeric.std(0, correction=0), torch.ones(3), rtol=1e-6, atol=0)


def test_loading_twice_gives_the_same_bits(table: Path) -> None:
    one, other = _load(table), _load(table)

    for records in ("train", "test"):
        first, second = getattr(one["passive"], records), getattr(other["passive"], records)
        assert torch.equal(first.ids, second.ids)
        assert torch.equal(first.columns.numeric, second.columns.numeric)
    assert not torch.equal(one.active.test.ids, _load(table, split_seed=1).active.test.ids)


def test_a_party_alone_encodes_its_columns_as_all_do_together(table: Path) -> None:
    together = _load(table, passive={"bank": "PAY_*", "rest": "rest"})
    alone = _load(table, passive={"bank": "PAY_*"}, drop="id, part, AGE, job")

    assert torch.equal(together["bank"].train.columns.numeric, alone["bank"].train.columns.numeric)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": "bougth"}, "no column 'bougth' in shop.csv; did you mean 'bought'?"),
        ({"active": ["AGEE"]}, "no column 'AGEE' in shop.csv; did you mean 'AGE'?"),
        ({"active": ["bought"]}, "'bought' is the label of shop.csv and no feature"),
        ({"active": ["part"]}, "'part' is a dropped column of shop.csv and no feature"),
        ({"drop": "bought"}, "'bought' is the label of shop.csv and no feature"),
        ({"drop": "idd"}, "no column 'idd' in shop.csv; did you mean 'id'?"),
        ({"id_column": "uid", "drop": "part"}, "no column 'uid' in shop.csv; did you mean 'id'?"),
        ({"split_column": "parts"}, "no column 'parts' in shop.csv; did you mean 'part'?"),
        ({"categorical_columns": ["sex"]}, "no column 'sex' in shop.csv"),
        ({"active": "rest", "passive": {"bank": []}}, "passive party 'bank' is left without a column of shop.csv"),
        ({"passive": {"bank": "rest", "tiny": 0.1}}, "passive party 'tiny' is left without a column of shop.csv"),
        ({"passive": {"bank": "PAY_*"}}, "no party claims 'AGE', 'job' of shop.csv"),
        ({"label": "job"}, "label column 'job' of shop.csv holds 'clerk', 'nurse'; a binary task needs 0 and 1"),
        ({"split_column": "part", "drop": "id", "test_value": "x"}, "split column 'part' of shop.csv holds"),
        ({"id_column": "job", "drop": "id, part"}, "column 'job': id 'clerk' is there already in shop.csv, row 0"),
    ],
)
def test_what_does_not_fit_the_table(table: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        _load(table, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("digit", {}, "no data set 'digit'; did you mean 'digits'?"),
        ("table", {"label": "y"}, "data set 'table' needs the path of a CSV or Parquet file"),
        ("wine", {"path": "wine.csv"}, "wine is bundled and takes no path, got 'wine.csv'"),
        ("wine", {"digit": None}, "digit=None is a setting of the sets digits and mnist, not of wine"),
        ("digits", {"digit": 10}, "expected a digit from 0 to 9, or none for all ten classes, got 10"),
        ("wine", {"passive": {}}, "expected one passive party at least, got none"),
        (
            "wine",
            {"passive": {"a": "rest"}, "active_name": "a"},
            "'a' is the active party's name and a passive party's",
        ),
        ("wine", {"id_column": "cultivar"}, "column 'cultivar' cannot be both the label and the id column"),
        ("wine", {"scale": "zscore"}, "expected scale one of standard"),
    ],
)
def test_arguments_that_mean_nothing(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        load(name, **settings)


def test_a_table_needs_a_label(table: Path) -> None:
    with pytest.raises(ArgumentError, match="expected the name of the label column"):
        load("table", path=table)


def _all_rows(data: VerticalData) -> tuple[Any, Any]:
    """Return the passive party's columns and the labels in the order of the source."""
    party = data["passive"]
    order = torch.cat([party.train.ids, party.test.ids]).argsort()
    assert data.active.train.labels is not None
    assert data.active.test.labels is not None
    columns = torch.cat([party.train.columns.numeric, party.test.columns.numeric])[order]
    return columns.numpy(), torch.cat([data.active.train.labels, data.active.test.labels])[order].numpy()


@pytest.mark.parametrize(
    ("name", "settings", "bunch", "labels"),
    [
        ("breast-cancer", {}, load_breast_cancer, lambda target: target == 0),
        ("digits", {}, load_digits, lambda target: target == 8),
        ("digits", {"digit": 3}, load_digits, lambda target: target == 3),
        ("digits", {"digit": None}, load_digits, lambda target: target),
        ("diabetes", {}, load_diabetes, lambda target: target),
        ("wine", {}, load_wine, lambda target: target),
    ],
)
def test_bundled_sets_are_those_of_scikit_learn(name: str, settings: Any, bunch: Any, labels: Any) -> None:
    source = bunch()

    columns, found = _all_rows(load(name, scale="none", **settings))

    np.testing.assert_allclose(columns, source.data, rtol=1e-6)  # one rounding to float32
    np.testing.assert_allclose(found, labels(source.target), rtol=1e-6)


def test_tasks_and_classes_of_the_bundled_sets() -> None:
    found = {name: (load(name).task, load(name).classes) for name in BUNDLED}

    assert found == {
        "breast-cancer": ("binary", 2),
        "digits": ("binary", 2),
        "diabetes": ("regression", 1),
        "wine": ("multiclass", 3),
    }
    ten = load("digits", digit=None)
    assert (ten.task, ten.classes) == ("multiclass", 10)


def test_every_set_says_what_it_is() -> None:
    for name, data_set in DATA_SETS.items():
        assert data_set.description, name
        assert data_set.source, name
        assert data_set.licence, name
        assert (data_set.make is not None) == (name in (*BUNDLED, "clicks"))


def test_a_set_that_is_not_bundled_says_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPLITVFL_DATA", raising=False)
    with pytest.raises(DataError, match=r"credit-default is not bundled; give its path.*credit_default_taiwan.parquet"):
        load("credit-default")
    monkeypatch.setenv("SPLITVFL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=re.escape(f"UCI_Credit_Card.csv in {tmp_path} (SPLITVFL_DATA)")):
        load("credit-default")


def test_the_original_files_differ_in_small_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # UCI's bank file has semicolons and yes/no; Kaggle's credit files number their rows.
    monkeypatch.setenv("SPLITVFL_DATA", str(tmp_path))
    rows = "".join(f"{20 + row};job{row % 2};{'yes' if row % 3 else 'no'}\n" for row in range(30))
    (tmp_path / "bank-additional-full.csv").write_text('"age";"job";"y"\n' + rows)
    rows = "".join(f"{row},{row % 2},{row}\n" for row in range(30))
    (tmp_path / "cs-training.csv").write_text(",SeriousDlqin2yrs,age\n" + rows)
    (tmp_path / "UCI_Credit_Card.csv").write_text("ID,default.payment.next.month,SEX\n" + rows)

    bank, give, credit = load("bank-marketing"), load("give-me-some-credit"), load("credit-default")

    _, labels = _all_rows(bank)
    assert labels.tolist() == [float(row % 3 > 0) for row in range(30)]
    assert bank["passive"].column_names == ("age", "job")
    assert give["passive"].column_names == ("age",)
    assert credit["passive"].column_names == ("SEX",)


def _held_by_user(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> VerticalData:
    if not any((folder / file).is_file() for file in DATA_SETS[name].files):
        pytest.skip(f"no file of {name} in {folder}")
    monkeypatch.setenv("SPLITVFL_DATA", str(folder))
    return load(name, **settings)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "positives"),
    [
        ("credit-default", 30_000, 23, 6_636),
        ("give-me-some-credit", 150_000, 10, 10_026),
        ("bank-marketing", 41_188, 20, 4_640),
        ("adult", 48_842, 14, 11_687),
    ],
)
def test_sets_that_the_user_holds(
    name: str, rows: int, columns: int, positives: int, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _held_by_user(name, data_folder, monkeypatch)

    values, labels = _all_rows(data)

    assert (len(labels), int(labels.sum())) == (rows, positives)
    assert len(data["passive"].column_names) == columns
    assert np.isfinite(values).all()


@pytest.mark.parametrize(("name", "classes", "test"), [("robot", 4, 1076), ("satellite", 6, 2000)])
def test_multiclass_sets_that_the_user_holds(
    name: str, classes: int, test: int, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _held_by_user(name, data_folder, monkeypatch)

    assert (data.task, data.classes, data.active.test.count) == ("multiclass", classes, test)


def test_criteo_has_counts_and_fields(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    party = _held_by_user("criteo", data_folder, monkeypatch, active="I1, I2", passive={"shop": "rest"})["shop"]

    fields = [name for name in party.column_names if name.startswith("C")]
    assert len(party.field_sizes) == len(fields) > 0
    assert "I12 missing" in party.numeric_names
    assert party.train.columns.categorical.amax(0).tolist() == [size - 1 for size in party.field_sizes]


def test_a_model_learns_as_much_as_from_columns_that_scikit_learn_encoded(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _held_by_user("credit-default", data_folder, monkeypatch)
    frame = pd.read_parquet(data_folder / DATA_SETS["credit-default"].files[0])
    train, test = data["passive"].train, data["passive"].test
    labels = frame.pop("default_payment_next_month").to_numpy()
    coded = ["SEX", "EDUCATION", "MARRIAGE"]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(frame[coded].iloc[train.ids.numpy()])
    scaler = StandardScaler().fit(frame.drop(columns=coded).iloc[train.ids.numpy()])
    oracle = np.concatenate([encoder.transform(frame[coded]), scaler.transform(frame.drop(columns=coded))], axis=1)

    def auc(fitted_on: Any, tested_on: Any) -> float:
        model = LogisticRegression(max_iter=200, tol=1e-3).fit(fitted_on, labels[train.ids])
        return float(roc_auc_score(labels[test.ids], model.decision_function(tested_on)))

    ours = auc(train.columns.numeric.numpy(), test.columns.numeric.numpy())
    theirs = auc(oracle[train.ids.numpy()], oracle[test.ids.numpy()])

    # The same columns in another order and precision; the solver stops within its tolerance of the optimum.
    assert ours == pytest.approx(theirs, abs=2e-3)
    assert ours > 0.7
