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
    check_split(np.array([1.0, 2.0], np.float32), np.array([0]), np.array([1]), task="regression", source="y")


@pytest.mark.parametrize(
    ("split_column", "change"), [(None, "split_seed or test_fraction"), ("part", "split_column='part'")]
)
def test_a_part_of_one_class_says_what_to_change(split_column: str | None, change: str) -> None:
    labels = np.array([0, 1, 0, 1], np.float32)
    how: dict[str, Any] = {"task": "binary", "source": "y", "split_column": split_column}

    check_split(labels, np.array([0, 1]), np.array([2, 3]), **how)
    with pytest.raises(DataError, match=f"all training rows have one class in y.*{change}"):
        check_split(labels, np.array([0, 2]), np.array([1, 3]), **how)
    with pytest.raises(DataError, match=f"all test rows have one class in y; .*{change}"):
        check_split(labels, np.array([0, 1, 2]), np.array([3]), **how)


@pytest.mark.parametrize("test", [[2], [0, 3]])
def test_the_only_record_of_a_class_is_named_wherever_it_falls(test: list[int]) -> None:
    """No division gives both parts one, so none is advised."""
    labels = np.array([1, 1, 0, 1, 1], np.float32)

    with pytest.raises(DataError) as caught:
        check_split(labels, np.setdiff1d(np.arange(5), test), np.array(test), task="binary", source="y")

    assert "y has one record of the negative class, in row 2 (from 0); it needs 2 at least" in str(caught.value)
    assert "split_seed" not in str(caught.value)
    assert caught.value.row == 2


def test_a_class_given_once_with_its_count_is_no_single_record() -> None:
    labels = np.array([0, 1], np.float32)
    both = np.array([0, 1])

    check_split(labels, both, both, task="binary", source="y", counts=np.array([4, 2]))
    with pytest.raises(DataError, match="y has one record of the positive class; it needs 2 at least"):
        check_split(labels, both, np.array([0]), task="binary", source="y", counts=np.array([4, 1]))
