from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from splitvfl.data.labels import check_split, read_labels
from splitvfl.errors import ArgumentError, DataError


def _read(values: list[Any], task: Any = "binary", positive: Any = None) -> tuple[Any, int]:
    return read_labels(pa.array(values), task=task, positive=positive, source="label column 'y' of t.csv")


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        ([0, 1, 1], None),
        ([0.0, 1.0, 1.0], None),
        ([False, True, True], None),
        ([-1, 1, 1], 1),
        ([1, 0, 0], 0),
        ([2, 7, 7], 7),
        (["no", "yes", "yes"], "yes"),
        (["yes", "no", "no"], "no"),
        ([False, True, True], True),
    ],
)
def test_binary_labels_become_zero_and_one(values: list[Any], positive: Any) -> None:
    labels, classes = _read(values, positive=positive)

    assert labels.tolist() == [0.0, 1.0, 1.0]
    assert labels.dtype == np.float32
    assert classes == 2


@pytest.mark.parametrize("values", [[30, 10, 20, 10], ["c", "a", "b", "a"], [3.0, 1.0, 2.0, 1.0]])
def test_classes_are_numbered_in_sorted_order(values: list[Any]) -> None:
    labels, classes = _read(values, "multiclass")

    assert labels.tolist() == [2, 0, 1, 0]
    assert labels.dtype == np.int64
    assert classes == 3


def test_real_labels_are_kept() -> None:
    labels, classes = _read([1.5, -2.0, 3.0], "regression")

    assert labels.tolist() == [1.5, -2.0, 3.0]
    assert labels.dtype == np.float32
    assert classes == 1


@pytest.mark.parametrize(
    ("values", "task", "positive", "message"),
    [
        ([-1, 1], "binary", None, "holds -1, 1; a binary task needs 0 and 1, or positive=1"),
        (["no", "yes"], "binary", None, "holds 'no', 'yes'; a binary task needs 0 and 1, or positive, the value"),
        ([0.1, 0.9], "binary", None, "holds 0.1, 0.9; a binary task needs 0 and 1"),
        (list(range(11)), "binary", None, "holds 0, 1, 2, 3, 4, 5, 6, 7 and 3 more; a binary task"),
        (["no", "yes"], "binary", True, "holds 'no', 'yes', so positive=True never occurs"),
        ([0, 1, 2], "binary", 2, "holds 0, 1, 2; beside positive=2, expected exactly one other value"),
        ([0, 0], "binary", None, "is 0 in every row; a binary task needs both classes"),
        (["yes", "yes"], "binary", "yes", "is 'yes' in every row; a binary task needs both classes"),
        ([0, None, 1, None], "binary", None, "has no value in 2 rows, first in row 1 (from 0)"),
        ([0.0, 1.0, float("nan")], "binary", None, "has no value in 1 rows, first in row 2 (from 0)"),
        (["yes", "no", " "], "binary", "yes", "has no value in 1 rows, first in row 2 (from 0)"),
        (["a", "", "b"], "multiclass", None, "has no value in 1 rows, first in row 1 (from 0)"),
        (["a", None], "multiclass", None, "has no value in 1 rows, first in row 1 (from 0)"),
        ([1.0, 2.5], "multiclass", None, "holds 2.5; classes are text or whole numbers"),
        ([1.0, float("inf")], "multiclass", None, "holds inf; classes are text or whole numbers"),
        ([4, 4], "multiclass", None, "is 4 in every row; a multi-class task needs 2 classes"),
        ([1.0, float("inf")], "regression", None, "is infinite, or too large for float32, in row 1 (from 0)"),
        ([1.0, 1e39], "regression", None, "is infinite, or too large for float32, in row 1"),
        (["low"], "regression", None, "holds text such as 'low'; regression needs numbers"),
    ],
)
def test_labels_that_do_not_fit_the_task(values: list[Any], task: str, positive: Any, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"label column 'y' of t.csv {message}")):
        _read(values, task, positive)


def test_labels_of_another_type() -> None:
    with pytest.raises(DataError, match=r"neither numbers nor text but date32\[day\]"):
        read_labels(pa.array([0], pa.date32()), task="binary", positive=None, source="y")


def test_settings_that_mean_nothing() -> None:
    with pytest.raises(ArgumentError, match="expected task binary, multiclass or regression, got 'ranking'"):
        _read([0, 1], "ranking")
    with pytest.raises(ArgumentError, match="positive=1 is for a binary task, not for regression"):
        _read([0, 1], "regression", 1)


def test_what_is_tested_must_have_been_learned() -> None:
    labels = np.array([0, 1, 0, 1, 2])

    check_split(labels, np.array([0, 1, 4]), np.array([2, 3]), task="multiclass", source="y")
    with pytest.raises(DataError, match=r"class 2 .* of y occurs in test rows only"):
        check_split(labels, np.array([0, 1, 2]), np.array([3, 4]), task="multiclass", source="y")
    binary = labels[:4].astype(np.float32)
    with pytest.raises(DataError, match=r"all training rows have one class in y.*split_seed"):
        check_split(binary, np.array([0, 2]), np.array([1]), task="binary", source="y")
    with pytest.raises(DataError, match=r"all test rows have one class in y; .*split_seed.*split column"):
        check_split(binary, np.array([0, 1]), np.array([2]), task="binary", source="y")
    check_split(np.array([1.0, 2.0], np.float32), np.array([0]), np.array([1]), task="regression", source="y")


@pytest.mark.parametrize(("single", "name"), [(1, "positive"), (0, "negative")])
@pytest.mark.parametrize("tested", [[0, 5], [0, 1]])
def test_a_class_of_one_record_is_named_with_its_row_whatever_the_division(
    single: int, name: str, tested: list[int]
) -> None:
    labels = np.full(8, 1 - single, np.float32)
    labels[5] = single
    train, test = np.setdiff1d(np.arange(8), tested), np.array(tested)

    with pytest.raises(DataError, match=rf"^y has one record of the {name} class, in row 5 .*; it needs 2") as raised:
        check_split(labels, train, test, task="binary", source="y")

    assert raised.value.row == 5
    assert "split_seed" not in str(raised.value), "no other division helps"
