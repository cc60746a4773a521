from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from splitvfl.data.encoding import Encoded, Encoding
from splitvfl.data.fitting import fit_encoding
from splitvfl.errors import ArgumentError, DataError

ROWS = 60
TRAIN = np.arange(0, ROWS, 2)


def _encode(columns: dict[str, Any], *, categories: tuple[str, ...] = (), **settings: Any) -> Encoded:
    table = pa.table(columns)
    fitted = fit_encoding(
        table,
        table.column_names,
        train=TRAIN if table.num_rows == ROWS else np.arange(table.num_rows - 1),
        encoding=Encoding(**settings),
        categories=frozenset(categories),
        source="t.csv",
    )
    return fitted.apply(table, source="t.csv")


def _skewed() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(ROWS, 3)) * [1, 100, 1e-3] + [0, 1000, 5]


# float32 rounds at 6e-8 relative; values here are below 5.
CLOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-6}


def test_standard_scale_is_that_of_scikit_learn_fitted_on_training_rows() -> None:
    values = _skewed()

    encoded = _encode({"a": values[:, 0], "b": values[:, 1], "c": values[:, 2]})

    np.testing.assert_allclose(encoded.numeric, StandardScaler().fit(values[TRAIN]).transform(values), **CLOSE)
    assert encoded.numeric.dtype == np.float32
    assert encoded.names == ("a", "b", "c")
    assert encoded.codes.shape == (ROWS, 0)


def test_minmax_scale_is_that_of_scikit_learn_clipped() -> None:
    values = _skewed()
    values[1] = 1e6  # a test row outside the training range

    encoded = _encode({"a": values[:, 0], "b": values[:, 1], "c": values[:, 2]}, scale="minmax")

    expected = MinMaxScaler(clip=True).fit(values[TRAIN]).transform(values)
    np.testing.assert_allclose(encoded.numeric, expected, **CLOSE)
    assert encoded.numeric[1].tolist() == [1.0, 1.0, 1.0]


def test_log_scale_is_odd_and_then_standard() -> None:
    values = np.concatenate([[-3.0, 0.0, 65535.0], _skewed()[3:, 1]])

    encoded = _encode({"I2": values}, scale="log1p")

    logs = np.array([-np.log1p(-v) if v < 0 else np.log1p(v) for v in values])[:, None]
    np.testing.assert_allclose(encoded.numeric, StandardScaler().fit(logs[TRAIN]).transform(logs), **CLOSE)


def test_no_scale_leaves_numbers_alone() -> None:
    assert _encode({"a": [1, 2, 70]}, scale="none").numeric.tolist() == [[1.0], [2.0], [70.0]]


@pytest.mark.parametrize("scale", ["standard", "minmax", "log1p"])
def test_a_column_that_never_varies_in_training_is_zero(scale: str) -> None:
    # The standard deviation computed from three times 0.1 is 1e-17 and not 0.
    assert np.full(3, 0.1).std() > 0
    assert _encode({"a": [0.1, 0.1, 0.1, 5.0]}, scale=scale).numeric.tolist() == [[0.0]] * 4


def test_missing_numbers_become_the_training_median_and_a_mark() -> None:
    values = _skewed()[:, :1]
    values[[0, 3, 10]] = np.nan  # rows 0 and 10 are training rows

    encoded = _encode({"a": values[:, 0]}, missing="indicator", scale="none")

    expected = SimpleImputer(strategy="median", add_indicator=True).fit(values[TRAIN]).transform(values)
    np.testing.assert_allclose(encoded.numeric, expected, rtol=1e-6)
    assert encoded.names == ("a", "a missing")


def test_a_gap_in_test_rows_only_gets_no_mark() -> None:
    encoded = _encode({"a": [1.0, 3.0, None]}, missing="indicator", scale="none")

    assert encoded.names == ("a",)
    assert encoded.numeric.tolist() == [[1.0], [3.0], [2.0]]


def test_the_test_rows_do_not_move_what_is_fitted() -> None:
    values = _skewed()[:, 0]
    job = np.array(["a", "b", "c"])[np.arange(ROWS) % 3]
    other_values, other_job = values.copy(), job.copy()
    other_values[1::2] *= 100
    other_job[1::2] = "never seen"

    every: tuple[dict[str, Any], ...] = ({}, {"scale": "minmax"}, {"scale": "log1p"}, {"categorical": "index"})
    for settings in every:
        before = _encode({"x": values, "job": job}, **settings)
        after = _encode({"x": other_values, "job": other_job}, **settings)
        np.testing.assert_array_equal(before.numeric[TRAIN], after.numeric[TRAIN])
        np.testing.assert_array_equal(before.codes[TRAIN], after.codes[TRAIN])
        assert (before.names, before.field_sizes) == (after.names, after.field_sizes)


def test_onehot_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    job, city = rng.choice(["clerk", "nurse", "smith"], ROWS), rng.choice(["x", "y"], ROWS)
    job[1] = "unseen"

    encoded = _encode({"job": job, "city": city})

    oracle = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(np.stack([job, city], 1)[TRAIN])
    np.testing.assert_array_equal(encoded.numeric, oracle.transform(np.stack([job, city], 1)))
    assert encoded.names == ("job=clerk", "job=nurse", "job=smith", "city=x", "city=y")
    assert encoded.numeric[1, :3].tolist() == [0.0, 0.0, 0.0]


def test_codes_count_from_one_in_order_and_zero_is_the_rest() -> None:
    encoded = _encode({"a": ["y", "x", "y", "rare", "x", "unseen"]}, categorical="index", min_count=2)

    assert encoded.codes.tolist() == [[2], [1], [2], [0], [1], [0]]
    assert encoded.field_sizes == (3,)
    assert encoded.numeric.shape == (6, 0)


def test_rare_categories_have_no_onehot_column() -> None:
    assert _encode({"a": ["y", "x", "y", "x", "rare", "x"]}, min_count=2).names == ("a=x", "a=y")


def test_numbers_may_be_categories() -> None:
    encoded = _encode({"SEX": [2, 10, 2, 1], "AGE": [20, 30, 40, 50]}, categories=("SEX",), scale="none")

    # In numeric order: 2 before 10.
    assert encoded.names == ("SEX=2", "SEX=10", "AGE")
    assert encoded.numeric[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("values", [[1.0, None, 2.0, 2.0], [1.0, float("nan"), 2.0, 2.0]])
def test_a_missing_category_is_one_of_its_own(values: list[float | None]) -> None:
    encoded = _encode({"a": pa.array(values, pa.float64())}, categories=("a",))

    assert encoded.names == ("a=1.0", "a=2.0", "a=missing")
    assert encoded.numeric[1].tolist() == [0.0, 0.0, 1.0]


def test_a_category_may_be_missing_throughout() -> None:
    assert _encode({"a": pa.nulls(3)}, categories=("a",)).names == ("a=missing",)


def test_columns_keep_the_order_of_the_table() -> None:
    encoded = _encode({"b": ["x", "x", "x"], "a": [1, 2, 3], "c": ["y", "y", "y"]})

    assert encoded.names == ("b=x", "a", "c=y")


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"a": [1.0, None, None, 2.0]}, {}, "column 'a' of t.csv has no value in 2 of 4 rows, first in row 1 (from 0)"),
        ({"a": [1.0, np.nan, 2.0]}, {}, "missing='indicator'"),
        ({"a": [1.0, 2.0, np.inf]}, {}, "column 'a' of t.csv is infinite in 1 rows, first in row 2"),
        ({"a": [1e39, 2e39, 1.0]}, {"scale": "none"}, "column 'a' of t.csv holds values too large for float32"),
        ({"a": [1e300, -1e300, 1.0]}, {}, "column 'a' of t.csv holds values too large for float32"),
        ({"a": [1e308, -1e308, 1.0]}, {"scale": "minmax"}, "column 'a' of t.csv holds values too large for float32"),
        ({"a": [None, None, 3.0]}, {"missing": "indicator"}, "column 'a' of t.csv has no value in any training row"),
        ({"a": pa.nulls(3)}, {"missing": "indicator"}, "column 'a' of t.csv has no value in any training row"),
        (
            {"a": pa.array([1, 2], pa.date32())},
            {},
            "column 'a' of t.csv holds neither numbers nor text but date32[day]",
        ),
        ({"a": [str(i) for i in range(1002)]}, {}, "column 'a' of t.csv has 1001 categories, and one-hot takes 1000"),
    ],
)
def test_columns_that_cannot_be_encoded(columns: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        _encode(columns, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": "zscore"}, "scale one of standard, minmax, log1p, none, got 'zscore'"),
        ({"missing": "drop"}, "missing one of error, indicator, got 'drop'"),
        ({"categorical": "hash"}, "categorical one of onehot, index, got 'hash'"),
        ({"min_count": 0}, "min_count from 1, got 0"),
    ],
)
def test_unknown_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Encoding(**settings)
